//! Events from workers, and dispatch.

use super::in_flight::InFlightWindow;
use super::reply_budget::ExpectedBytes;
use super::requests::{List, State};
use super::service::Place;
use super::settings::{Millis, NEVER};
use super::tenants::NOBODY;
use super::token::Ticket;
use super::worker::{Rest, Worker};
use super::{Action, Core, Kind, Peer, Role, ServiceKey, WorkerKey};
use smallvec::SmallVec;
use towpath_requests::body::{Body, IncomingBody};
use towpath_requests::is_built_in;
use towpath_requests::numbered::{Status, Token};

/// Reason for a reply in parts whose worker went.
const CUT_SHORT: &str = "the worker went in the middle of its reply";

/// Most requests that one worker is given at a time, whatever credit it announces.
const CREDIT_MAX: u32 = 65_536;

impl Core {
    /// A worker introduces itself, for one service.
    pub fn worker_ready(&mut self, now: Millis, peer: Peer, kind: Kind, service: &[u8], credit: u32) {
        match self.roles.get(peer) {
            Role::None => {}
            Role::Client(_) => return self.disconnect(now, peer, "a client can't be a worker too"),
            Role::Worker(_) => return self.disconnect(now, peer, "a second READY on one connection"),
        }
        if is_built_in(service) && !(kind == Kind::Stock && self.may_be_titanic(service)) {
            return self.disconnect(now, peer, "names that begin with mmi. or titanic. are the broker's own");
        }
        if self.services.len() >= self.settings.services_max && self.services.find(service).is_none() {
            return self.disconnect(now, peer, "the broker has as many services as it can hold");
        }
        let service = self.find_or_add_service(NOBODY, service);
        self.services.at_mut(service).workers += 1;
        let worker = self.workers.insert(Worker {
            peer,
            service,
            kind,
            credit: credit.min(CREDIT_MAX),
            held: List::default(),
            abandoned: SmallVec::new(),
            last_received: now,
            leaving: false,
            window: InFlightWindow::default(),
            blocked: false,
            in_available: false,
            rest: Rest::default(),
            failed_in_a_row: 0,
        });
        self.roles.set(peer, Role::Worker(worker));
        if self.drain.is_stopping() {
            self.actions.push(Action::Leave { peer });
        }
        self.mark_available(worker);
        self.dispatch(now, service);
    }

    /// Whether a worker may serve a Titanic service: without a journal the broker has none of its own.
    fn may_be_titanic(&self, service: &[u8]) -> bool {
        !self.settings.journal && service.starts_with(b"titanic.")
    }

    /// Whether the broker itself answers for a service.
    #[inline]
    pub(crate) fn answers_for(&mut self, service: &[u8]) -> bool {
        is_built_in(service) && !(self.may_be_titanic(service) && self.services.find(service).is_some())
    }

    /// A worker has sent something, whatever it was.
    pub fn worker_alive(&mut self, now: Millis, peer: Peer) {
        if let Role::Worker(key) = self.roles.get(peer) {
            self.workers[key].last_received = now;
        }
    }

    /// Whether a connection is a worker's.
    pub fn is_worker(&self, peer: Peer) -> bool {
        matches!(self.roles.get(peer), Role::Worker(_))
    }

    /// A worker announces how many requests it takes at a time.
    pub fn worker_credit(&mut self, now: Millis, peer: Peer, credit: u32) {
        let Role::Worker(key) = self.roles.get(peer) else {
            return self.disconnect(now, peer, "CREDIT before READY");
        };
        self.workers[key].credit = credit.min(CREDIT_MAX);
        self.mark_available(key);
        self.dispatch(now, self.workers[key].service);
    }

    /// A worker takes no more requests.
    pub fn worker_leaving(&mut self, now: Millis, peer: Peer) {
        let Role::Worker(key) = self.roles.get(peer) else {
            return self.disconnect(now, peer, "LEAVING before READY");
        };
        self.workers[key].leaving = true;
    }

    /// A worker's reply. `part`: the index of a part; `None`: the whole reply, or the last part.
    #[inline]
    pub fn worker_reply<'a>(
        &mut self,
        now: Millis,
        peer: Peer,
        token: &Token,
        status: Status,
        part: Option<u32>,
        body: impl Into<IncomingBody<'a>>,
    ) {
        let body = body.into();
        let Role::Worker(key) = self.roles.get(peer) else {
            return self.reply_without_role(now, peer, token, status, part, body);
        };
        let Some(slot) = self.find_held(key, token) else {
            return self.unexpected_reply(now, key, token, status, part, body);
        };
        if let Some(part) = part {
            return self.partial_reply(now, slot, part, body.into_body());
        }
        let worker = &mut self.workers[key];
        let rest = &worker.rest;
        if rest.in_a_row > 0 && status.is_ok() && (!rest.is_large || self.requests.at(slot).body.large_bytes() > 0) {
            worker.rest = Rest::default();
        }
        worker.failed_in_a_row = if status == Status::FAILED { worker.failed_in_a_row.saturating_add(1) } else { 0 };
        let service = worker.service;
        let body = match status.is_ok() || self.dead_letters.is_empty() {
            true => body,
            false => {
                let body = body.into_body();
                self.note_failed_letter(key, slot, status, &body);
                body.into()
            }
        };
        let took = now.saturating_sub(self.requests.at(slot).since);
        self.release_from_worker(key, slot);
        let bytes = body.memory_bytes();
        let of_service = self.services.at_mut(service);
        of_service.replies.observe(bytes);
        of_service.usual.observe(took);
        self.sessions[self.requests.at(slot).session].replies.arrived(now);
        self.mark_available(key);
        if bytes > 0 && !self.reply_fits(now, slot, bytes) {
            self.discard_reply(slot, bytes);
        } else {
            self.settle(slot, status, body);
        }
        self.dispatch(now, service);
    }

    /// Takes a request out of its worker's list. The caller sets its state, then calls [`Core::mark_available`] and
    /// [`Core::dispatch`], as the worker may get another one.
    #[inline]
    pub(super) fn release_from_worker(&mut self, key: WorkerKey, slot: u32) {
        self.requests.unlink(&mut self.workers[key].held, slot);
        self.services.at_mut(self.requests.at(slot).service).in_flight -= 1;
        self.letter_is_held(slot, false);
        self.count_held(slot, false);
        if let State::Held(_, expected) = self.requests.at(slot).state {
            self.unexpect_reply(slot, expected);
        }
    }

    /// The request of a token, if this worker has it.
    #[inline]
    pub(super) fn find_held(&self, key: WorkerKey, token: &Token) -> Option<u32> {
        let ticket = Ticket::read(token);
        let request = self.requests.find(ticket.slot, ticket.generation)?;
        let is_its_own =
            matches!(request.state, State::Held(worker, _) if worker == key) && request.attempt == ticket.attempt;
        // An earlier broker may have used the same slot. The tag of its token is another one.
        (is_its_own && self.tokens.is_genuine(ticket, token)).then_some(ticket.slot)
    }

    /// A reply to a request that this worker doesn't have: any more, or at all.
    fn unexpected_reply(
        &mut self,
        now: Millis,
        key: WorkerKey,
        token: &Token,
        status: Status,
        part: Option<u32>,
        body: IncomingBody<'_>,
    ) {
        let worker = &mut self.workers[key];
        let ticket = Ticket::read(token);
        if let Some(index) = worker.abandoned.iter().position(|(abandoned, _)| abandoned == token) {
            self.counters.late_replies += 1;
            if part.is_none() {
                worker.abandoned.swap_remove(index);
                let service = worker.service;
                self.mark_available(key);
                self.dispatch(now, service);
            }
            return;
        }
        let found = self.requests.find(ticket.slot, ticket.generation);
        let is_of_its_service = found.is_none_or(|request| request.service == worker.service);
        if !is_of_its_service || !self.tokens.is_genuine(ticket, token) {
            let (peer, is_numbered) = (worker.peer, worker.kind == Kind::Numbered);
            // Workers finish requests of a broker that was restarted.
            if is_numbered {
                self.counters.late_replies += 1;
                return;
            }
            return self.disconnect(now, peer, "a reply to a request that the worker wasn't given");
        }
        self.reply_to_earlier_attempt(now, ticket, status, part, body);
    }

    /// A reply over a connection that hasn't introduced itself. libzmq connects again unknown to a stock worker, which may have
    /// finished what it was given before.
    #[cold]
    fn reply_without_role(
        &mut self,
        now: Millis,
        peer: Peer,
        token: &Token,
        status: Status,
        part: Option<u32>,
        body: IncomingBody<'_>,
    ) {
        let ticket = Ticket::read(token);
        let mut reason = "a reply before READY";
        if self.roles.get(peer) == Role::None && self.tokens.is_genuine(ticket, token) {
            self.reply_to_earlier_attempt(now, ticket, status, part, body);
            reason = "it replies over a new connection, on which it has to say again what it serves";
        }
        self.disconnect(now, peer, reason);
    }

    /// A reply to a request that was given to the worker over another connection, or before another worker got it.
    fn reply_to_earlier_attempt(
        &mut self,
        now: Millis,
        ticket: Ticket,
        status: Status,
        part: Option<u32>,
        body: IncomingBody<'_>,
    ) {
        let slot = ticket.slot;
        let found = self.requests.find(slot, ticket.generation);
        let is_open = found.is_some_and(|request| {
            matches!(request.state, State::Waiting | State::Parked | State::Postponed | State::Held(..))
        });
        let has_parts = found.is_some_and(|request| request.has_parts());
        match part {
            // A dead letter that one worker fails is left to another.
            None if is_open && !has_parts && (status.is_ok() || !self.is_dead_letter(slot)) => {
                self.withdraw(now, slot);
                match self.reply_fits(now, slot, body.memory_bytes()) {
                    true => self.settle(slot, status, body),
                    false => self.discard_reply(slot, body.memory_bytes()),
                }
            }
            _ => {
                // Parts are lost, or mixed with those of another worker: the rest isn't the reply.
                if is_open && part.is_some() {
                    self.requests.at_mut(slot).set_has_parts();
                }
                self.counters.late_replies += 1;
            }
        }
    }

    fn partial_reply(&mut self, now: Millis, slot: u32, part: u32, body: Body) {
        let request = self.requests.at_mut(slot);
        request.since = now;
        request.set_has_parts();
        let key = request.session;
        let session = &self.sessions[key];
        let (number, status, connection) = (request.number, Status::OK, session.connections);
        let was_on = request.parts_on;
        match (session.peer, session.client) {
            // Kept for a client that takes one reply, or begun for one that was absent.
            _ if session.one_reply || !request.parts().is_empty() => {
                if let Err((status, reason)) = self.collect_part(slot, body) {
                    self.withdraw(now, slot);
                    self.settle(slot, status, Body::from(reason).into());
                }
            }
            // The earlier parts went over another connection.
            (Some(_), Some(_)) if was_on != 0 && was_on != connection => self.counters.lost_parts += 1,
            (Some(peer), Some(_)) => {
                if was_on == 0 {
                    self.requests.at_mut(slot).parts_on = connection;
                }
                self.windows.add(peer, &mut self.sessions[key].window, body.memory_bytes());
                self.actions.push(Action::Reply { peer, number, status, part: Some(part), body });
            }
            (Some(peer), None) => {
                request.parts_on = connection.max(1);
                let envelope = request.envelope();
                let asked = request.asked_service();
                let service = asked.unwrap_or_else(|| self.services.at(request.service).name.clone());
                self.actions.push(Action::StockReply { peer, envelope, service, status, partial: true, body });
            }
            (None, _) => {
                self.counters.lost_parts += 1;
                // This number is that of the last connection. The next one has another, so the parts are lost.
                if was_on == 0 {
                    self.requests.at_mut(slot).parts_on = connection;
                }
            }
        }
    }

    /// The broker's answer to a request for a built-in service.
    pub fn built_in_reply(&mut self, token: &Token, status: Status, body: Body) {
        let ticket = Ticket::read(token);
        let found = self.requests.find(ticket.slot, ticket.generation);
        if found.is_some_and(|request| request.state == State::Detached) {
            self.settle(ticket.slot, status, body.into());
        }
    }

    /// Adds a worker to its service's available ones, if it has credit.
    #[inline]
    pub(super) fn mark_available(&mut self, key: WorkerKey) {
        let worker = &mut self.workers[key];
        if !worker.in_available && worker.has_credit() {
            worker.in_available = true;
            self.services.at_mut(worker.service).available.push_back(key);
        }
    }

    /// Gives queued requests to available workers, one each in turn.
    #[inline]
    pub(super) fn dispatch(&mut self, now: Millis, key: ServiceKey) {
        loop {
            let Some(service) = self.services.get(key).filter(|service| !service.is_paused) else { return };
            let Some(&first) = service.available.front() else { return };
            let Some(slot) = self.services.first_waiting(key) else { return };
            let worker = &self.workers[first];
            if !worker.has_credit() {
                self.services.at_mut(key).available.pop_front();
                self.workers[first].in_available = false;
                continue;
            }
            let session = self.requests.at(slot).session;
            let expected = self.expected_reply(key, slot);
            if self.is_held_back(now, session, 1)
                || self.replies.expects_enough(now, &self.sessions[session].replies, expected)
            {
                self.dequeue(slot, false);
                self.park(slot);
                continue;
            }
            if self.replies.must_wait(key, &mut self.services.at_mut(key).replies, expected) {
                return;
            }
            self.dequeue(slot, true);
            self.dispatch_to(now, slot, first, expected);
            self.services.at_mut(key).available.pop_front();
            self.workers[first].in_available = false;
            self.mark_available(first);
        }
    }

    #[inline]
    fn dispatch_to(&mut self, now: Millis, slot: u32, key: WorkerKey, expected: ExpectedBytes) {
        let worker = &mut self.workers[key];
        self.requests.push_back(&mut worker.held, slot);
        self.services.at_mut(self.requests.at(slot).service).in_flight += 1;
        let (peer, kind) = (worker.peer, worker.kind);
        self.windows.add(peer, &mut worker.window, self.requests.at(slot).body.memory_bytes());
        if let Some(busy) = self.settings.busy_timeout_ms {
            self.deadlines.expires_at(now.saturating_add(busy));
        }
        self.expect_reply(slot, expected);
        self.letter_is_held(slot, true);
        self.count_held(slot, true);
        let request = self.requests.at_mut(slot);
        request.state = State::Held(key, expected);
        request.attempt = request.attempt.saturating_add(1);
        request.since = now;
        request.parts_on = 0;
        let ttl_ms = match request.expires {
            NEVER => 0,
            at => u32::try_from(at.saturating_sub(now).max(1)).unwrap_or(u32::MAX),
        };
        let attempt = request.attempt;
        let token = self.tokens.seal(Ticket { slot, generation: request.generation, attempt });
        self.counters.dispatched += 1;
        match kind {
            Kind::Numbered => self.queue_dispatch(peer, token, slot, attempt, ttl_ms),
            // Sent even if it is cancelled at once: a stock worker can't be cancelled, and stays busy until it replies.
            Kind::Stock => {
                let body = request.body.clone();
                self.actions.push(Action::Dispatch { peer, token, attempt, ttl_ms, body });
            }
        }
    }

    /// Whether parts were sent to a stock client, which couldn't distinguish them from those of another attempt.
    pub(super) fn has_sent_stock_parts(&self, slot: u32) -> bool {
        let request = self.requests.at(slot);
        request.parts_on != 0 && self.sessions[request.session].client.is_none()
    }

    /// A worker's connection has ended. Puts its requests back at the front of the queue, in the order of their dispatch:
    /// their clients have waited for their turns.
    pub(super) fn worker_gone(&mut self, now: Millis, key: WorkerKey, reason: &'static str) {
        let service = self.workers[key].service;
        self.services.at_mut(service).available.retain(|&available| available != key);
        let (mut given_up, mut cut_short) = (Vec::new(), Vec::new());
        while let Some(slot) = self.workers[key].held.last() {
            self.release_from_worker(key, slot);
            self.update_request(slot, |request| drop(request.take_parts()));
            if self.has_sent_stock_parts(slot) {
                self.requests.at_mut(slot).state = State::Detached;
                cut_short.push(slot);
            } else if self.requests.at(slot).attempts() >= self.settings.attempts_max {
                self.requests.at_mut(slot).state = State::Detached;
                given_up.push(slot);
            } else {
                self.counters.requeued += 1;
                self.enqueue(slot, Place::Next);
            }
        }
        for slot in given_up.into_iter().rev() {
            let failure = self.failure_of(key, reason.as_bytes());
            self.give_up(now, slot, failure);
        }
        for slot in cut_short.into_iter().rev() {
            self.settle(slot, Status::LOST, Body::from(CUT_SHORT).into());
        }
        self.workers.remove(key);
        self.services.at_mut(service).workers -= 1;
        self.dispatch(now, service);
        self.remove_service_if_unused(service);
    }

    pub(super) fn worker_blocked(&mut self, now: Millis, key: WorkerKey, blocked: bool) {
        let worker = &mut self.workers[key];
        worker.blocked = blocked;
        if !blocked {
            self.open_worker_window(now, key);
        }
    }

    /// Opens a worker's window.
    pub(super) fn open_worker_window(&mut self, now: Millis, key: WorkerKey) {
        let worker = &mut self.workers[key];
        worker.window.reset();
        let service = worker.service;
        self.mark_available(key);
        self.dispatch(now, service);
    }
}
