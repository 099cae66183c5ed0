//! Retries: a worker can't do a request now, and asks for another attempt later. And the id by which it recognises a second attempt.

use super::listed::first_bytes;
use super::requests::State;
use super::service::Place;
use super::settings::{Millis, NEVER};
use super::token::Ticket;
use super::{Core, Peer, Role};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::BTreeSet;
use std::hash::Hasher;
use towpath_requests::body::Body;
use towpath_requests::numbered::{RequestId, Status, Token};

/// Pause before the second attempt. Doubled with each attempt.
const FIRST_PAUSE_MS: Millis = 1_000;
const PAUSE_MS_MAX: Millis = 60_000;

/// Bytes of a reason that are kept.
const REASON_BYTES: usize = 160;

/// Postponed requests, by the time of their next attempt.
#[derive(Debug, Default)]
pub(super) struct Retries(BTreeSet<(Millis, u32)>);

impl Retries {
    /// When the first one is due.
    #[inline]
    pub fn next(&self) -> Millis {
        self.0.first().map_or(NEVER, |(due, _)| *due)
    }

    /// Part of [`Core::check`].
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Core {
    /// A worker asks for another attempt at a request, which it can't do now. Its last attempt fails it.
    pub fn worker_tries_later(&mut self, now: Millis, peer: Peer, token: &Token, reason: Body) {
        let Role::Worker(key) = self.roles.get(peer) else {
            return self.disconnect(now, peer, "a reply before READY");
        };
        let found = self.find_held(key, token);
        let Some(slot) = found.filter(|slot| !self.has_sent_stock_parts(*slot)) else {
            return self.worker_reply(now, peer, token, Status::FAILED, None, reason);
        };
        self.release_from_worker(key, slot);
        self.update_request(slot, |request| drop(request.take_parts()));
        let request = self.requests.at_mut(slot);
        if request.attempts() >= self.settings.attempts_max {
            request.state = State::Detached;
            let said = first_bytes(&reason, REASON_BYTES).unwrap_or_default();
            let failure = self.failure_of(key, &said);
            self.give_up(now, slot, failure);
        } else {
            let doublings = u32::from(request.attempts().saturating_sub(1)).min(16);
            let due = now.saturating_add((FIRST_PAUSE_MS << doublings).min(PAUSE_MS_MAX));
            (request.state, request.since) = (State::Postponed, due);
            self.retries.0.insert((due, slot));
            self.counters.requeued += 1;
        }
        let service = self.workers[key].service;
        self.mark_available(key);
        self.dispatch(now, service);
    }

    /// The id of a token's request.
    pub fn request_id(&self, token: &Token) -> Option<RequestId> {
        let Ticket { slot, generation, .. } = Ticket::read(token);
        let request = self.requests.find(slot, generation)?;
        let session = &self.sessions[request.session];
        let own = session.client.map(|client| (client, request.number));
        // A dead letter is still the request that it is a copy of.
        let hasher = match self.dead_letters.origin(session.letter).or(own) {
            // The same at every broker, and only computable with the client's id.
            Some((client, number)) => {
                let mut hasher = SipHasher24::new_with_key(&client.0);
                hasher.write_u64(number);
                hasher
            }
            None => {
                let [first, second] = self.settings.secret;
                let mut hasher = SipHasher24::new_with_keys(first, second);
                hasher.write_u32(slot);
                hasher.write_u32(generation);
                hasher
            }
        };
        Some(RequestId(hasher.finish128().as_bytes()))
    }

    /// Forgets the next attempt of a postponed request.
    #[cold]
    pub(super) fn forget_retry(&mut self, slot: u32) {
        let due = self.requests.at(slot).since;
        self.retries.0.remove(&(due, slot));
    }

    /// Queues postponed requests that are due.
    #[cold]
    pub(super) fn end_pauses(&mut self, now: Millis) {
        while self.retries.next() <= now
            && let Some((_, slot)) = self.retries.0.pop_first()
        {
            self.enqueue(slot, Place::Back);
            self.dispatch(now, self.requests.at(slot).service);
        }
    }
}
