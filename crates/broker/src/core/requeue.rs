//! Requeue: a worker returns a request that it hasn't begun, because it has no room for its large body. Another worker may have.
//! The first one rests meanwhile, or it would get, and return, all of them.

use super::service::Place;
use super::settings::Millis;
use super::worker::Worker;
use super::{Core, Peer, Role, WorkerKey};
use towpath_requests::body::Body;
use towpath_requests::numbered::{Status, Token};

/// The first rest of a worker. Each one is twice as long as the one before, until the worker has replied to a large request.
const FIRST_REST_MS: Millis = 1_000;
const DOUBLINGS_MAX: u8 = 4;

impl Core {
    /// A worker returns a request that it hasn't begun. Not counted as an attempt.
    pub fn worker_returns_request(&mut self, now: Millis, peer: Peer, token: &Token, reason: Body) {
        let Role::Worker(key) = self.roles.get(peer) else {
            return self.disconnect(now, peer, "a reply before READY");
        };
        let Some(slot) = self.find_held(key, token) else {
            // It has ended, or another worker has it.
            self.counters.late_replies += 1;
            return;
        };
        // Parts of an earlier attempt are void, unless a stock client has them.
        let has_begun = !self.requests.at(slot).parts().is_empty() || self.has_sent_stock_parts(slot);
        if has_begun || !self.another_worker_may_take_it(key) {
            return self.worker_reply(now, peer, token, Status::FAILED, None, reason);
        }
        let worker = &self.workers[key];
        // Requests that it was sent with this one come back as well: they count as one time.
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
        // Behind its client's other requests, which may be small.
        self.enqueue(slot, Place::Back);
        self.dispatch(now, service);
    }

    /// Whether another worker of its service may have room. Those that rest had none a moment ago.
    fn another_worker_may_take_it(&self, key: WorkerKey) -> bool {
        let worker = &self.workers[key];
        let service = self.services.at(worker.service);
        service.workers > service.workers_out + usize::from(!worker.is_out())
    }

    /// Changes a worker, and whether it counts as out in its service.
    pub(super) fn change_worker(&mut self, key: WorkerKey, change: impl FnOnce(&mut Worker)) {
        let worker = &mut self.workers[key];
        let out = &mut self.services.at_mut(worker.service).workers_out;
        *out -= usize::from(worker.is_out());
        change(worker);
        *out += usize::from(worker.is_out());
    }

    /// Ends rests, and gives those workers requests.
    pub(super) fn end_rests(&mut self, now: Millis) {
        for key in self.workers.take_rested(now) {
            self.change_worker(key, |worker| worker.rests_until = None);
            let service = self.workers[key].service;
            self.mark_available(key);
            self.dispatch(now, service);
        }
    }
}
