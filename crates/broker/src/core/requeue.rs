//! Requeue: a worker gives a request back that it can't begin, because it has no space for its body, or can't start its command. Another
//! worker may be able to. The first one rests meanwhile, or it would get, and give back, all of them.

use super::service::Place;
use super::settings::Millis;
use super::worker::Rest;
use super::{Core, Peer, Role};
use bytes::Bytes;
use towpath_requests::body::Body;
use towpath_requests::numbered::{Status, Token};

/// The first rest of a worker. Each one is twice as long as the one before, until the worker has replied to such a request.
const FIRST_REST_MS: Millis = 1_000;
const DOUBLINGS_MAX: u8 = 4;

impl Core {
    /// A worker gives a request back that it hasn't begun. Not counted as an attempt. Returns for how long the worker rests, if a rest begins.
    pub fn worker_returns_request(&mut self, now: Millis, peer: Peer, token: &Token, reason: &[u8]) -> Option<Millis> {
        let Role::Worker(key) = self.roles.get(peer) else {
            self.disconnect(now, peer, "a request is given back before READY");
            return None;
        };
        let Some(slot) = self.find_held(key, token) else {
            // It has ended, or another worker has it.
            self.counters.late_replies += 1;
            return None;
        };
        // Parts of an earlier attempt are void, unless a stock client has them.
        if !self.requests.at(slot).parts().is_empty() || self.has_sent_stock_parts(slot) {
            self.worker_reply(now, peer, token, Status::FAILED, None, Body::from(Bytes::copy_from_slice(reason)));
            return None;
        }
        let is_large = self.requests.at(slot).body.large_bytes() > 0;
        let worker = &mut self.workers[key];
        // Requests that it was sent with this one come back as well: they count as one time.
        let mut rest_ms = None;
        if worker.rest.until.is_none() {
            let rest = FIRST_REST_MS << worker.rest.in_a_row.min(DOUBLINGS_MAX);
            let until = now.saturating_add(rest);
            let in_a_row = worker.rest.in_a_row.saturating_add(1);
            worker.rest = Rest { until: Some(until), in_a_row, is_large, reason: Bytes::copy_from_slice(reason) };
            self.workers.next_rest_end = self.workers.next_rest_end.min(until);
            rest_ms = Some(rest);
        }
        let service = self.workers[key].service;
        self.release_from_worker(key, slot);
        self.counters.requeued += 1;
        let request = self.requests.at_mut(slot);
        request.attempt = request.attempt.saturating_sub(1);
        // Behind its client's other requests, which another worker may be able to do.
        self.enqueue(slot, Place::Back);
        self.dispatch(now, service);
        rest_ms
    }

    /// Ends rests, and gives those workers requests.
    pub(super) fn end_rests(&mut self, now: Millis) {
        for key in self.workers.take_rested(now) {
            let service = self.workers[key].service;
            self.mark_available(key);
            self.dispatch(now, service);
        }
    }
}
