//! Workers that have no place for a request with a large body, and so haven't begun it: others may. A worker that is done with each of
//! them in no time would be given all of them, so it rests, as long as there is another one that doesn't.

use super::settings::Millis;
use super::worker::Worker;
use super::{Core, Peer, Role, WorkerKey};
use towpath_requests::body::Body;
use towpath_requests::numbered::{Status, Token};

/// How long a worker rests. Twice as long each time, until it has had a place for one.
const FIRST_REST_MS: Millis = 1_000;
const DOUBLINGS_MAX: u8 = 4;

impl Core {
    /// A worker gives back a request that it hasn't begun. That costs no attempt.
    pub fn worker_returns_request(&mut self, now: Millis, peer: Peer, token: &Token, reason: Body) {
        let Role::Worker(key) = self.roles.get(peer) else {
            return self.disconnect(now, peer, "a worker says that it is ready before it replies");
        };
        let Some(slot) = self.find_held(key, token) else {
            // It is over, or somebody else's already.
            self.counters.late_replies += 1;
            return;
        };
        // Parts of an earlier attempt are void, but for what nobody can call back.
        let has_begun = !self.requests.at(slot).parts().is_empty() || self.has_sent_stock_parts(slot);
        if has_begun || !self.another_worker_may_take_it(key) {
            return self.worker_reply(now, peer, token, Status::FAILED, None, reason);
        }
        let worker = &self.workers[key];
        // What it had beside the first comes back as well: that is one time.
        if worker.rests_until.is_none() {
            let until = now.saturating_add(FIRST_REST_MS << worker.rests_in_a_row.min(DOUBLINGS_MAX));
            self.change_worker(key, |worker| {
                worker.rests_until = Some(until);
                worker.rests_in_a_row = worker.rests_in_a_row.saturating_add(1);
            });
            self.workers.next_rest_end = self.workers.next_rest_end.min(until);
        }
        let service = self.workers[key].service;
        self.release_from_worker(key, slot);
        self.counters.requeued += 1;
        let request = self.requests.at_mut(slot);
        request.attempt = request.attempt.saturating_sub(1);
        // Behind what waits: that may be small.
        self.enqueue(slot, false);
        self.dispatch(now, service);
    }

    /// Whether a worker isn't the only one of its service that may have a place. Those that rest had none a moment ago.
    fn another_worker_may_take_it(&self, key: WorkerKey) -> bool {
        let worker = &self.workers[key];
        let service = self.services.at(worker.service);
        service.workers > service.workers_out + usize::from(!worker.is_out())
    }

    /// Changes whether a worker is out, and counts it with those of its service.
    pub(super) fn change_worker(&mut self, key: WorkerKey, change: impl FnOnce(&mut Worker)) {
        let worker = &mut self.workers[key];
        let out = &mut self.services.at_mut(worker.service).workers_out;
        *out -= usize::from(worker.is_out());
        change(worker);
        *out += usize::from(worker.is_out());
    }

    /// Gives work to those that have rested.
    pub(super) fn end_rests(&mut self, now: Millis) {
        for key in self.workers.take_rested(now) {
            self.change_worker(key, |worker| worker.rests_until = None);
            let service = self.workers[key].service;
            self.mark_available(key);
            self.dispatch(now, service);
        }
    }
}
