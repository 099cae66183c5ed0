//! Requests between states: queued, withdrawn, settled, forgotten; and replies in parts.

use super::requests::{REQUEST_BYTES, State};
use super::service::Place;
use super::settings::Millis;
use super::token::Ticket;
use super::{Action, Core, Kind, Peer, SessionKey};
use towpath_requests::body::{Body, IncomingBody};
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use towpath_requests::numbered::{Status, Token};

/// Reason for parts that are larger than one reply may be.
const TOO_MUCH_IN_PARTS: &str = "the parts of the reply are too large for a client that takes one reply";

/// Reason for parts that don't fit into the memory.
const NO_SPACE_FOR_PARTS: &str = "executed; no space for its parts";

/// Reason for a reply whose first parts went over another connection.
const PARTS_LOST: &str = "the connection was lost in between";

impl Core {
    pub(super) fn token_of(&self, slot: u32) -> Token {
        let request = self.requests.at(slot);
        self.tokens.seal(Ticket { slot, generation: request.generation, attempt: request.attempt })
    }

    /// The tokens of all requests.
    #[cfg(test)]
    pub(crate) fn tokens_of_all(&self) -> Vec<Token> {
        self.requests.iter().map(|(slot, _)| self.token_of(slot)).collect()
    }

    /// Puts a request that is in no list into its service's queue.
    #[inline]
    pub(super) fn enqueue(&mut self, slot: u32, place: Place) {
        let tenant = self.sessions[self.requests.at(slot).session].tenant;
        self.services.enqueue(&mut self.requests, tenant, slot, place);
        self.count_untried(slot, true);
    }

    /// Takes a request out of its service's queue. `ends_turn`: it is its client's turn, which is over.
    #[inline]
    pub(super) fn dequeue(&mut self, slot: u32, ends_turn: bool) {
        self.services.dequeue(&mut self.requests, slot, ends_turn);
        self.count_untried(slot, false);
        self.paused.memory_freed = true;
    }

    /// Parks a request that is in no list.
    pub(super) fn park(&mut self, slot: u32) {
        let request = self.requests.at_mut(slot);
        request.state = State::Parked;
        let session = request.session;
        self.requests.push_back(&mut self.sessions[session].parked, slot);
        self.count_untried(slot, true);
    }

    /// Takes a request out of its client's parked ones. The caller sets its state.
    fn take_parked(&mut self, slot: u32) {
        let session = self.requests.at(slot).session;
        self.requests.unlink(&mut self.sessions[session].parked, slot);
        self.count_untried(slot, false);
    }

    /// Takes a request that isn't settled out of its list. A worker that has it receives CANCEL, or, if its protocol has none, stays
    /// busy until it replies.
    pub(super) fn withdraw(&mut self, now: Millis, slot: u32) {
        match self.requests.at(slot).state {
            State::Waiting => self.dequeue(slot, false),
            State::Parked => self.take_parked(slot),
            State::Postponed => self.forget_retry(slot),
            State::Held(key, _) => {
                let (token, since) = (self.token_of(slot), self.requests.at(slot).since);
                self.release_from_worker(key, slot);
                self.requests.at_mut(slot).state = State::Detached;
                let worker = &mut self.workers[key];
                match worker.kind {
                    Kind::Numbered => self.actions.push(Action::CancelWork { peer: worker.peer, token }),
                    Kind::Stock => worker.abandoned.push((token, since)),
                }
                let service = worker.service;
                self.mark_available(key);
                self.dispatch(now, service);
                return;
            }
            State::Detached | State::Settled | State::Free => return,
        }
        self.requests.at_mut(slot).state = State::Detached;
    }

    /// Settles a request that is in no list: sends the outcome, and keeps it for a numbered client.
    #[inline]
    pub(super) fn settle(&mut self, slot: u32, status: Status, body: IncomingBody<'_>) {
        let is_dead_letter = self.is_dead_letter(slot);
        if is_dead_letter && !status.is_ok() {
            return self.postpone(slot);
        }
        let (status, body) = self.join_parts(slot, status, body);
        let (status, body) = self.status_after_parts(slot, status, body);
        let of_service = &mut self.services.at_mut(self.requests.at(slot).service).counters;
        if matches!(status, Status::OK | Status::IN_PARTS) {
            self.counters.replied += 1;
            of_service.replied += 1;
        } else {
            self.counters.failed += 1;
            of_service.failed += 1;
        }
        if is_dead_letter {
            return self.forget(slot);
        }
        let request = self.requests.at_mut(slot);
        let session = &self.sessions[request.session];
        if session.client.is_none() {
            if let Some(peer) = session.peer {
                let (envelope, body) = (request.envelope(), body.into_body());
                let service = request.asked_service().unwrap_or_else(|| self.services.at(request.service).name.clone());
                self.actions.push(Action::StockReply { peer, envelope, service, status, partial: false, body });
            }
            return self.forget(slot);
        }
        let grace = self.settings.outcome_grace_ms;
        self.update_request(slot, |request| {
            request.state = State::Settled;
            request.status = status;
            request.expires = request.expires.saturating_add(grace);
            request.take_parts();
            body.replace(&mut request.body);
        });
        let request = self.requests.at(slot);
        let (session, size) = (request.session, request.outcome_size());
        self.add_unconfirmed(session, size);
        if self.requests.at(slot).journal_id != 0 {
            self.journal_finished(slot);
        } else {
            self.send_outcome(slot);
        }
    }

    /// The outcome behind parts that were sent. Only the client knows whether they arrived; if it has reconnected since, they are
    /// lost.
    #[inline]
    fn status_after_parts<'a>(&self, slot: u32, status: Status, body: IncomingBody<'a>) -> (Status, IncomingBody<'a>) {
        let request = self.requests.at(slot);
        let session = &self.sessions[request.session];
        match request.parts_on {
            on if on == 0 || !status.is_ok() || session.client.is_none() => (status, body),
            on if session.is_on(on) => (Status::IN_PARTS, body),
            _ => (Status::LOST, Body::from(PARTS_LOST).into()),
        }
    }

    /// Sends a repeated request's outcome again, or acknowledges it again.
    pub(super) fn resend_outcome(&mut self, slot: u32, peer: Peer) {
        let request = self.requests.at(slot);
        if request.state == State::Settled && request.may_send_outcome {
            self.send_outcome(slot);
        } else if request.is_durable {
            self.actions.push(Action::Accepted { peer, first: request.number, count: 1 });
        }
    }

    /// Removes a request that is in no list.
    #[inline]
    pub(super) fn forget(&mut self, slot: u32) {
        let request = self.requests.at(slot);
        self.sessions[request.session].requests.remove(request.number);
        self.free_request(slot);
    }

    /// Like [`Core::forget`], for a request that is no longer in its session's map.
    #[inline]
    pub(super) fn free_request(&mut self, slot: u32) {
        self.clear_pending_outcome(self.requests.at(slot).session, slot);
        let request = self.requests.at(slot);
        let (key, bytes) = (request.session, request.bytes());
        if request.state == State::Settled {
            let size = request.outcome_size();
            self.remove_unconfirmed(key, size);
        }
        self.change_bytes(key, bytes, 0);
        let session = &self.sessions[key];
        self.tenants.at_mut(session.tenant).requests -= 1;
        let request = self.requests.at(slot);
        let (service, letter, large_bytes) = (request.service, session.letter, request.body.large_bytes());
        if request.journal_id != 0 {
            self.sessions[key].journalled -= 1;
            self.journal_forgotten(slot);
        } else {
            self.remove_fragile(key);
        }
        if letter != 0 {
            self.unmark_dead_letter(letter, service, bytes, large_bytes);
        }
        let of_service = self.services.at_mut(service);
        of_service.live -= 1;
        of_service.change_bytes(bytes, 0);
        self.remove_service_if_unused(service);
        self.requests.remove(slot);
    }

    /// Queues a client's parked requests again, if it is held back no longer.
    pub(super) fn unpark(&mut self, now: Millis, key: SessionKey) {
        // Half of the limit, so that they aren't parked again at once.
        let session = &self.sessions[key];
        let Some(first) = session.parked.first().filter(|_| !session.is_dead_letter()) else { return };
        let expected = self.expected_reply(self.requests.at(first).service, first);
        if !self.is_held_back(now, key, 2) && !self.replies.expects_enough(now, &self.sessions[key].replies, expected) {
            self.unpark_all(now, key);
        }
    }

    /// Queues a client's parked requests again, before those that came later.
    pub(super) fn unpark_all(&mut self, now: Millis, key: SessionKey) {
        let mut services = Vec::new();
        while let Some(slot) = self.sessions[key].parked.last() {
            self.take_parked(slot);
            self.enqueue(slot, Place::Front);
            let service = self.requests.at(slot).service;
            if services.last() != Some(&service) {
                services.push(service);
            }
        }
        for service in services {
            self.dispatch(now, service);
        }
    }

    /// Keeps a part of a reply for a client that takes one reply. Fails if the parts are too large together.
    pub(super) fn collect_part(&mut self, slot: u32, body: Body) -> Result<(), (Status, &'static str)> {
        let held = self.requests.at(slot).bytes() - REQUEST_BYTES;
        if held + body.memory_bytes() > BODY_BYTES_MAX || (self.keeps_outcome(slot) && body.frames().is_none()) {
            return Err((Status::TOO_LARGE, TOO_MUCH_IN_PARTS));
        }
        if held + body.memory_bytes() > self.bytes_left_beyond_requests() {
            return Err((Status::NO_STORAGE, NO_SPACE_FOR_PARTS));
        }
        self.update_request(slot, |request| request.extra_mut().add_part(body));
        Ok(())
    }

    /// Joins the kept parts and the last one.
    #[inline]
    fn join_parts<'a>(&mut self, slot: u32, status: Status, last: IncomingBody<'a>) -> (Status, IncomingBody<'a>) {
        if self.requests.at(slot).parts().is_empty() || !status.is_ok() {
            return (status, last);
        }
        let mut parts = Vec::new();
        self.update_request(slot, |request| parts = request.take_parts());
        let body = Body::joined(parts.into_iter().chain([last.into_body()]));
        let is_too_large = || {
            let frames = body.frames().map(|frames| frames.len());
            frames.is_none_or(|frames| frames > BODY_FRAMES_MAX) || body.length() > BODY_BYTES_MAX as u64
        };
        if self.keeps_outcome(slot) && is_too_large() {
            return (Status::TOO_LARGE, Body::from(TOO_MUCH_IN_PARTS).into());
        }
        (status, body.into())
    }

    /// Whether the outcome is kept until its client confirms it, and so has to be one body.
    fn keeps_outcome(&self, slot: u32) -> bool {
        self.sessions[self.requests.at(slot).session].client.is_some()
    }
}
