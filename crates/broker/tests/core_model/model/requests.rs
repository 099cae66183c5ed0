//! Requests.

use super::{
    Awaiting, DEAD_LETTER, DEAD_LETTER_SERVICES, LETTER_BYTES, Model, REQUEST_BYTES, Request, Role, Seen, State,
    memory_bytes,
};
use towpath_broker::core::{Kind, Millis, Peer};

impl Model {
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub fn request(
        &mut self,
        now: Millis,
        peer: Peer,
        number: u64,
        ttl: Millis,
        volatile: bool,
        service: u8,
        name: u64,
        length: usize,
    ) {
        let Some(key) = self.client(now, peer) else { return };
        if let Some(slot) = self.numbered(key, number) {
            if self.requests.at(slot).asked != (service, name, length.max(8)) {
                return self.refuse(peer, number);
            }
            self.counters.duplicates += 1;
            let request = self.requests.at(slot);
            let is_durable = request.is_durable;
            if request.state == State::Settled && request.may_send_outcome {
                self.send_outcome(slot);
            } else if is_durable {
                self.seen.push(Seen::Accepted { peer, number });
            }
        } else if self.sessions.at(key).dropped.contains(&number) {
            self.counters.duplicates += 1;
            self.seen.push(Seen::Reply { peer, number, status: 410, part: None, what: 0 });
        } else if self.sessions.at(key).confirmed.contains(&number) {
            self.refuse(peer, number);
        } else if self.is_draining
            || !self.admits(self.tenant_of_session(key), Some(key), service, memory_bytes(length))
        {
            self.refuse(peer, number);
            self.leave_when_done(key);
        } else {
            let ttl = if ttl == 0 { self.settings.ttl_ms } else { ttl };
            let is_journalled = self.settings.journal && !volatile;
            self.accept(now, key, number, ttl, is_journalled, 0, service, name, length);
        }
    }

    fn refuse(&mut self, peer: Peer, number: u64) {
        self.counters.refused += 1;
        self.seen.push(Seen::Refused { peer, number });
    }

    /// A client's request under a number that isn't forgotten.
    pub fn asked(&self, peer: Peer, number: u64) -> Option<(u8, u64, usize)> {
        let Some(Role::Client(key)) = self.roles.get(&peer) else { return None };
        let slot = self.numbered(*key, number)?;
        self.requests.all[slot].as_ref().map(|request| request.asked)
    }

    fn tenant_of_session(&self, key: usize) -> u8 {
        self.sessions.all[key].as_ref().map_or(0, |session| session.tenant)
    }

    pub(super) fn queued(&self, service: u8) -> (usize, usize) {
        self.sums(self.queues.get(&service).into_iter().flat_map(|queue| queue.requests()))
    }

    /// The number of queued requests, and the bytes of their bodies.
    fn sums(&self, queued: impl Iterator<Item = usize>) -> (usize, usize) {
        let of = |slot: usize| self.requests.all[slot].as_ref().map_or(0, |request| request.body_bytes());
        queued.fold((0, 0), |(count, bytes), slot| (count + 1, bytes + of(slot)))
    }

    /// Requests and bytes that a tenant may have beside those that it has, of all and of a service's queue. It may have three times what is
    /// free. Of a queue others may have a third more.
    fn left_of_shares(&self, tenant: u8, service: u8) -> (usize, usize) {
        let settings = &self.settings;
        let ((all, all_bytes), (queued, queued_bytes)) = (self.used(), self.queued(service));
        if tenant == 0 {
            let requests = settings.requests_max.saturating_sub(all);
            let bytes = settings.bytes_max.saturating_sub(all_bytes);
            return (
                requests.min(settings.service_requests_max.saturating_sub(queued)),
                bytes.min(settings.service_bytes_max.saturating_sub(queued_bytes)),
            );
        }
        let its = self.sessions.iter().filter(|(_, session)| session.tenant == tenant).map(|(key, _)| key);
        let (own, own_bytes) = its.fold((0, 0), |(count, bytes), key| {
            (
                count + self.of_session(key).filter(|r| r.state != State::Settled).count(),
                bytes + self.bytes_of(key) - self.unconfirmed(key),
            )
        });
        let (waiting, waiting_bytes) = self.queued_of(tenant, service);
        let left = |most: usize, used: usize, own: usize| {
            let free = most.saturating_sub(used);
            free.min((3 * free).saturating_sub(own))
        };
        let of_queue = |most: usize, used: usize, own: usize| {
            left(most + most.div_ceil(3), used, own).min(most.saturating_sub(own))
        };
        let bytes = left(settings.bytes_max, all_bytes, own_bytes);
        let requests = left(settings.requests_max, all, own).min(bytes / REQUEST_BYTES);
        let bytes = bytes.saturating_sub(REQUEST_BYTES);
        (
            requests.min(of_queue(settings.service_requests_max, queued, waiting)),
            bytes.min(of_queue(settings.service_bytes_max, queued_bytes, waiting_bytes)),
        )
    }

    /// The same as [`Model::queued`] of one tenant. 0: of all.
    fn queued_of(&self, tenant: u8, service: u8) -> (usize, usize) {
        if tenant == 0 {
            return self.queued(service);
        }
        self.sums(self.queues.get(&service).into_iter().flat_map(|queue| queue.requests_of(tenant)))
    }

    /// `key`: the client's session, if there is one yet.
    pub(super) fn admits(&self, tenant: u8, key: Option<usize>, service: u8, bytes: usize) -> bool {
        let settings = &self.settings;
        let (requests_left, bytes_left) = self.left_of_shares(tenant, service);
        let (all, all_bytes) = self.used();
        let (requests, of_client) = key.map_or((0, 0), |key| (self.of_session(key).count(), self.bytes_of(key)));
        bytes <= settings.client_bytes_max.min(settings.bytes_max).min(settings.service_bytes_max)
            && requests < settings.client_requests_max
            && of_client + bytes <= settings.client_bytes_max
            && all < settings.requests_max
            && all_bytes + bytes <= settings.bytes_max
            && requests_left > 0
            && bytes <= bytes_left
            && (key.is_none() || self.may_have_outcomes(tenant))
    }

    /// Whether a tenant has less than its share of the outcomes: three times what is free.
    fn may_have_outcomes(&self, tenant: u8) -> bool {
        let its = self.sessions.iter().filter(|(_, session)| tenant != 0 && session.tenant == tenant);
        let own: usize = its.map(|(key, _)| self.unconfirmed(key)).sum();
        let free = self.settings.bytes_max.saturating_sub(self.all_unconfirmed());
        free > 0 && 3 * free > own
    }

    pub fn stock_request(&mut self, now: Millis, peer: Peer, service: u8, name: u64, length: usize) {
        let key = match self.roles.get(&peer) {
            Some(&Role::Client(key)) if self.sessions.at(key).client.is_none() => key,
            Some(_) => return self.disconnect(now, peer),
            None => {
                let key = self.add_session(None, Some(peer));
                self.roles.insert(peer, Role::Client(key));
                key
            }
        };
        if self.is_draining {
            self.counters.refused += 1;
            return self.seen.push(Seen::StockReply { peer, status: 503, partial: false, what: 0 });
        }
        let number = self.sessions.at(key).next_number;
        self.sessions.at(key).next_number += 1;
        self.accept(now, key, number, self.settings.ttl_ms, false, 0, service, name, length);
        if !self.is_below_limits(key, service, 1, 1) && !self.sessions.at(key).paused {
            self.sessions.at(key).paused = true;
            let tenant = self.sessions.at(key).tenant;
            self.paused.push_back(tenant, key, key);
            self.paused_for.insert(key, service);
            self.seen.push(Seen::Pause { peer, paused: true });
        }
    }

    /// `own`, `shared`: fractions of the client's own limits and of the shared ones.
    pub(super) fn is_below_limits(&self, key: usize, service: u8, own: usize, shared: usize) -> bool {
        let settings = &self.settings;
        let below = |length: usize, most: usize, divisor: usize| length < most / divisor;
        let (all, all_bytes) = self.used();
        let tenant = self.tenant_of_session(key);
        let (waiting, waiting_bytes) = self.queued_of(tenant, service);
        let (requests_left, bytes_left) = self.left_of_shares(tenant, service);
        below(self.of_session(key).count(), settings.client_requests_max, own)
            && below(self.bytes_of(key), settings.client_bytes_max, own)
            && below(all, settings.requests_max, shared)
            && below(all_bytes, settings.bytes_max, shared)
            && below(waiting, settings.service_requests_max, shared)
            && below(waiting_bytes, settings.service_bytes_max, shared)
            && requests_left > 0
            && bytes_left > 0
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub(super) fn accept(
        &mut self,
        now: Millis,
        session: usize,
        number: u64,
        ttl: Millis,
        is_journalled: bool,
        attempts: u16,
        service: u8,
        name: u64,
        length: usize,
    ) {
        self.counters.accepted += 1;
        let slot = self.requests.put(Request {
            name,
            session,
            number,
            service,
            expires: now.saturating_add(ttl),
            bytes: REQUEST_BYTES + memory_bytes(length) + if number == 0 { LETTER_BYTES } else { 0 },
            expected: 0,
            state: State::Waiting,
            attempt: attempts,
            uncounted: attempts,
            asked: (service, name, length.max(8)),
            has_parts: false,
            parts_on: 0,
            outcome: (0, 0),
            is_journalled,
            is_durable: false,
            may_send_outcome: true,
        });
        if is_journalled {
            self.sessions.at(session).is_journalled = true;
            self.awaiting.push_back(Awaiting::Accepted(name));
        }
        let tenant = self.sessions.at(session).tenant;
        self.queues.entry(service).or_default().push_back(tenant, session, slot);
        self.dispatch(service);
    }

    pub fn confirm(&mut self, now: Millis, peer: Peer, first: u64, count: u64) {
        let Some(key) = self.client(now, peer) else { return };
        let before = self.load().1;
        self.forget_range(now, key, first..first + count);
        self.add_confirmed(key, first..first + count);
        let after = self.load().1;
        if after > before && self.used().1 >= self.settings.bytes_max * 3 / 2 {
            return self.disconnect(now, peer);
        }
        self.unpark(key);
    }

    pub fn cancel(&mut self, now: Millis, peer: Peer, number: u64) {
        let Some(key) = self.client(now, peer) else { return };
        if let Some(slot) = self.numbered(key, number)
            && self.requests.at(slot).state != State::Settled
        {
            self.withdraw(slot);
            self.settle(slot, 499, 0, 0);
        }
    }

    pub(super) fn unconfirmed(&self, key: usize) -> usize {
        let settled = self.of_session(key).filter(|request| request.state == State::Settled);
        settled.map(|request| request.bytes).sum()
    }

    fn all_unconfirmed(&self) -> usize {
        self.sessions.iter().map(|(key, _)| self.unconfirmed(key)).sum()
    }

    /// For how long a client could have confirmed something and hasn't.
    fn idle_ms(&self, key: usize) -> Millis {
        let session = self.sessions.all[key].as_ref().expect("it is there");
        if self.unconfirmed(key) == 0 { 0 } else { self.now - session.idle_since }
    }

    fn has_confirmed(&self, key: usize) -> bool {
        self.sessions.all[key].as_ref().is_some_and(|session| session.has_confirmed)
    }

    fn is_confirming(&self, key: usize) -> bool {
        self.has_confirmed(key) && self.idle_ms(key) <= 10_000
    }

    /// Whether a client has more unconfirmed replies than a fraction of its limit.
    pub(super) fn is_held_back(&mut self, key: usize, divisor: usize) -> bool {
        let left = (self.settings.bytes_max / 2).saturating_sub(self.all_unconfirmed());
        let most = match self.is_confirming(key) {
            true => self.settings.client_bytes_max,
            false => left.clamp(self.settings.bytes_max / 2048, self.settings.client_bytes_max),
        };
        self.sessions.at(key).blocked || self.unconfirmed(key) > most / divisor
    }

    /// Whether enough is expected for a client that may not confirm.
    pub(super) fn expects_enough(&self, key: usize, expected: usize) -> bool {
        let its = self.unconfirmed(key) + self.of_session(key).map(|request| request.expected).sum::<usize>();
        let most = self.settings.bytes_max;
        let is_enough = its > 0 && its + expected > most / 2048;
        expected > 0 && self.all_unconfirmed() > most / 2 && is_enough && !self.is_confirming(key)
    }

    /// Bytes expected of a reply beyond its request, if it is kept.
    pub(super) fn expected(&mut self, slot: usize) -> usize {
        let request = self.requests.at(slot);
        let (session, service, bytes) = (request.session, request.service, request.body_bytes());
        let session = self.sessions.at(session);
        let size = self.reply_sizes.get(&service).unwrap_or(&self.settings.reply_bytes_expected);
        let is_kept = session.client.is_some() && session.letter == 0;
        if is_kept { size.saturating_sub(bytes) / 1024 * 1024 } else { 0 }
    }

    /// Whether a request has to wait for memory.
    pub(super) fn must_wait_for_memory(&mut self, service: u8, expected: usize) -> bool {
        let of_service = self.requests.iter().filter(|(_, request)| request.service == service);
        let of_service: usize = of_service.map(|(_, request)| request.expected).sum();
        let of_all: usize = self.requests.iter().map(|(_, request)| request.expected).sum();
        let (most, here) = (self.settings.bytes_max, self.all_unconfirmed());
        let space = (most / 4 * 3).saturating_sub(here).max(most / 4).min(most.saturating_sub(here));
        let waits = expected > 0 && of_service > 0 && of_all + expected > space;
        if waits && !self.waiting_services.contains(&service) {
            self.waiting_services.push_back(service);
        }
        waits
    }

    /// Dispatches for services that wait for memory, in turn.
    pub(super) fn retry_waiting_services(&mut self) {
        for _ in 0..self.waiting_services.len().min(16) {
            let service = self.waiting_services.pop_front().expect("it is there");
            self.dispatch(service);
        }
    }

    pub(super) fn observe(&mut self, service: u8, bytes: usize) {
        let size = self.reply_sizes.entry(service).or_default();
        *size = bytes.max(*size - size.saturating_sub(bytes).div_ceil(64));
    }

    /// Forgets the sizes of a service without requests and workers.
    pub(super) fn forget_service(&mut self, service: u8) {
        let has_request = self.requests.iter().any(|(_, request)| request.service == service);
        if !has_request && !self.workers.iter().any(|(_, worker)| worker.service == service) {
            self.reply_sizes.remove(&service);
        }
    }

    pub(super) fn unpark(&mut self, key: usize) {
        let Some(&first) = self.sessions.at(key).parked.first() else { return };
        let expected = self.expected(first);
        let is_dead_letter = self.sessions.at(key).letter != 0;
        if !is_dead_letter && !self.is_held_back(key, 2) && !self.expects_enough(key, expected) {
            self.unpark_all(key);
        }
    }

    pub(super) fn unpark_all(&mut self, key: usize) {
        let mut services = Vec::new();
        let tenant = self.sessions.at(key).tenant;
        for slot in std::mem::take(&mut self.sessions.at(key).parked).into_iter().rev() {
            let request = self.requests.at(slot);
            request.state = State::Waiting;
            services.push(request.service);
            self.queues.entry(request.service).or_default().push_front(tenant, key, slot);
        }
        services.dedup();
        services.into_iter().for_each(|service| self.dispatch(service));
    }

    pub(super) fn withdraw(&mut self, slot: usize) {
        let request = self.requests.at(slot);
        let (state, service, session) = (request.state, request.service, request.session);
        let (name, attempt) = (request.name, request.attempt);
        if state != State::Settled {
            request.state = State::Ended;
        }
        match state {
            State::Waiting => {
                self.queues.entry(service).or_default().remove(slot);
                self.memory_freed = true;
            }
            State::Parked => self.sessions.at(session).parked.retain(|&other| other != slot),
            State::Held(key) => {
                let worker = self.workers.at(key);
                worker.held.retain(|&other| other != slot);
                match worker.kind {
                    Kind::Stock => worker.abandoned.push((name, attempt)),
                    Kind::Numbered => {
                        self.seen.push(Seen::CancelWork { peer: worker.peer, request: name, attempt });
                    }
                }
                self.requests.at(slot).expected = 0;
                self.mark_available(key);
                self.dispatch(service);
            }
            State::Ended | State::Settled => {}
        }
    }

    /// Ends a request that has used up its attempts.
    pub(super) fn give_up(&mut self, now: Millis, slot: usize) {
        let request = self.requests.at(slot);
        let (session, number, name, attempts) = (request.session, request.number, request.name, request.attempt);
        let (service, length) = (request.service + DEAD_LETTER_SERVICES, request.body_bytes());
        let is_journalled = request.is_journalled;
        if self.sessions.at(session).letter != 0 {
            return self.postpone(slot);
        }
        let is_dead_letter =
            |request: &&Request| self.sessions.all[request.session].as_ref().is_some_and(|s| s.letter != 0);
        let dead_letters: usize =
            self.requests.iter().map(|(_, request)| request).filter(is_dead_letter).map(|r| r.bytes).sum();
        let has_space = dead_letters + REQUEST_BYTES + LETTER_BYTES + length <= self.settings.bytes_max / 4;
        let kept = is_journalled && has_space && self.admits(0, None, service, length);
        if kept {
            self.counters.dead_letters += 1;
            self.add_letter(now, service, attempts, name | DEAD_LETTER, length);
        }
        self.seen.push(Seen::GaveUp { number, kept });
        // The length of the reason.
        self.settle(slot, 502, 0, if kept { 94 } else { 76 });
    }

    pub(super) fn is_dead_letter(&mut self, slot: usize) -> bool {
        let session = self.requests.at(slot).session;
        self.sessions.at(session).letter != 0
    }

    fn postpone(&mut self, slot: usize) {
        let request = self.requests.at(slot);
        request.state = State::Parked;
        let session = request.session;
        self.sessions.at(session).parked.push(slot);
    }

    /// Settles a request with a reply, if it fits.
    pub(super) fn settle_reply(&mut self, slot: usize, status: u16, what: u64, length: usize) {
        let of = self.requests.at(slot).session;
        let (unconfirmed, bytes, most) = (self.unconfirmed(of), memory_bytes(length), self.settings.bytes_max);
        let its_own = self.requests.at(slot).body_bytes();
        let all = self.all_unconfirmed() + bytes;
        let begins = !self.has_confirmed(of) && self.idle_ms(of) <= 1_000 && all <= most / 8 * 7;
        let is_little = unconfirmed + bytes <= most / 2048 * 2;
        let has_space =
            all <= most / 4 * 3 || (all <= most && (self.is_confirming(of) || unconfirmed == 0 || is_little || begins));
        let is_kept = self.sessions.at(of).client.is_some() && self.sessions.at(of).letter == 0;
        match bytes > its_own.max(64) && is_kept && !has_space {
            true => {
                let number = self.requests.at(slot).number;
                self.seen.push(Seen::ReplyLost { number });
                self.settle(slot, 507, 0, 0);
            }
            false => self.settle(slot, status, what, length),
        }
    }

    pub(super) fn settle(&mut self, slot: usize, status: u16, what: u64, length: usize) {
        let of = self.requests.at(slot).session;
        let is_dead_letter = self.sessions.at(of).letter != 0;
        if is_dead_letter && status != 200 {
            return self.postpone(slot);
        }
        let parts_on = self.requests.at(slot).parts_on;
        let was_answered = parts_on != 0 && status == 200 && self.sessions.at(of).client.is_some();
        let lost = was_answered && !self.sessions.at(of).is_on(parts_on);
        let (status, what, length) = match was_answered {
            true if lost => (410, 0, 0),
            true => (206, what, length),
            false => (status, what, length),
        };
        if matches!(status, 200 | 206) {
            self.counters.replied += 1;
        } else {
            self.counters.failed += 1;
        }
        let (session, name) = (self.requests.at(slot).session, self.requests.at(slot).name);
        if is_dead_letter {
            return self.forget(slot);
        }
        if self.sessions.at(session).client.is_none() {
            if let Some(peer) = self.sessions.at(session).peer {
                self.seen.push(Seen::StockReply { peer, status, partial: false, what });
            }
            return self.forget(slot);
        }
        let request = self.requests.at(slot);
        (request.state, request.outcome) = (State::Settled, (status, what));
        request.bytes = REQUEST_BYTES + memory_bytes(length);
        self.memory_freed = true;
        let request = self.requests.at(slot);
        if request.is_journalled {
            request.may_send_outcome = false;
            self.awaiting.push_back(Awaiting::Finished(name));
        } else {
            self.send_outcome(slot);
        }
    }

    pub(super) fn send_outcome(&mut self, slot: usize) {
        let request = self.requests.at(slot);
        let (session, number, (status, what)) = (request.session, request.number, request.outcome);
        if let Some(peer) = self.sessions.at(session).peer {
            self.seen.push(Seen::Reply { peer, number, status, part: None, what });
        }
    }

    pub(super) fn forget(&mut self, slot: usize) {
        if self.requests.at(slot).is_journalled {
            self.awaiting.push_back(Awaiting::Nothing);
        }
        let service = self.requests.take(slot).service;
        self.forget_service(service);
        self.memory_freed = true;
    }

    /// So many more entries are on the disk.
    pub fn persisted(&mut self, count: usize) {
        for _ in 0..count.min(self.awaiting.len()) {
            match self.awaiting.pop_front() {
                Some(Awaiting::Accepted(name)) => {
                    let Some(slot) = self.find(name) else { continue };
                    let request = self.requests.at(slot);
                    request.is_durable = true;
                    let (session, number) = (request.session, request.number);
                    if let Some(peer) = self.sessions.at(session).peer {
                        self.seen.push(Seen::Accepted { peer, number });
                    }
                }
                Some(Awaiting::Finished(name)) => {
                    let Some(slot) = self.find(name) else { continue };
                    self.requests.at(slot).may_send_outcome = true;
                    self.send_outcome(slot);
                }
                _ => {}
            }
        }
    }
}
