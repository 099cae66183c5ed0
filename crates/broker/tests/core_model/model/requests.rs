//! What becomes of a request.

use super::{ASIDE, ASIDE_SERVICES, Awaiting, Model, REQUEST_BYTES, Request, Role, Seen, State, memory_bytes};
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
        if let Some(place) = self.numbered(key, number) {
            self.counters.duplicates += 1;
            let request = self.requests.at(place);
            let is_durable = request.is_durable;
            if request.state == State::Settled && request.is_tellable {
                self.tell(place);
            } else if is_durable {
                self.seen.push(Seen::Accepted { peer, number });
            }
        } else if self.sessions.at(key).confirmed.contains(&number) {
            self.counters.duplicates += 1;
        } else if !self.has_room_for(Some(key), service, memory_bytes(length)) {
            self.counters.refused += 1;
            self.seen.push(Seen::Refused { peer, number });
        } else {
            let ttl = if ttl == 0 { self.settings.ttl_ms } else { ttl };
            let is_journalled = self.settings.journal && !volatile;
            self.take(now, key, number, ttl, is_journalled, service, name, length);
        }
    }

    pub(super) fn queued(&self, service: u8) -> (usize, usize) {
        let queue = self.queues.get(&service).map_or(&[][..], |queue| queue);
        let of = |place: &usize| self.requests.all[*place].as_ref().map_or(0, |request| request.bytes - REQUEST_BYTES);
        (queue.len(), queue.iter().map(of).sum())
    }

    /// `None`: of a client that isn't there yet.
    pub(super) fn has_room_for(&self, key: Option<usize>, service: u8, bytes: usize) -> bool {
        let settings = &self.settings;
        let (requests, of_client) = key.map_or((0, 0), |key| (self.of_session(key).count(), self.bytes_of(key)));
        let (all, all_bytes) = self.load();
        let (waiting, waiting_bytes) = self.queued(service);
        bytes <= settings.client_bytes_max.min(settings.bytes_max).min(settings.service_bytes_max)
            && requests < settings.client_requests_max
            && of_client + bytes <= settings.client_bytes_max
            && all < settings.requests_max
            && all_bytes + bytes <= settings.bytes_max
            && waiting < settings.service_requests_max
            && waiting_bytes + bytes <= settings.service_bytes_max
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
        let number = self.sessions.at(key).next_number;
        self.sessions.at(key).next_number += 1;
        self.take(now, key, number, self.settings.ttl_ms, false, service, name, length);
        if !self.may_go_on(key, service, 1, 1) && !self.sessions.at(key).paused {
            self.sessions.at(key).paused = true;
            self.paused.push_back((key, service));
            self.seen.push(Seen::Pause { peer, paused: true });
        }
    }

    /// `own` and `shared`: below which part of the bounds that are its own, and of those that are everybody's.
    pub(super) fn may_go_on(&self, key: usize, service: u8, own: usize, shared: usize) -> bool {
        let settings = &self.settings;
        let below = |length: usize, most: usize, divisor: usize| length < most / divisor;
        let (all, all_bytes) = self.load();
        let (waiting, waiting_bytes) = self.queued(service);
        below(self.of_session(key).count(), settings.client_requests_max, own)
            && below(self.bytes_of(key), settings.client_bytes_max, own)
            && below(all, settings.requests_max, shared)
            && below(all_bytes, settings.bytes_max, shared)
            && below(waiting, settings.service_requests_max, shared)
            && below(waiting_bytes, settings.service_bytes_max, shared)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub(super) fn take(
        &mut self,
        now: Millis,
        session: usize,
        number: u64,
        ttl: Millis,
        is_journalled: bool,
        service: u8,
        name: u64,
        length: usize,
    ) {
        self.counters.accepted += 1;
        let place = self.requests.put(Request {
            name,
            session,
            number,
            service,
            expires: now.saturating_add(ttl),
            bytes: REQUEST_BYTES + memory_bytes(length),
            expected: 0,
            state: State::Waiting,
            attempt: 0,
            has_parts: false,
            parts_on: 0,
            outcome: (0, 0),
            is_journalled,
            is_durable: false,
            is_tellable: true,
        });
        if is_journalled {
            self.sessions.at(session).is_journalled = true;
            self.awaiting.push_back(Awaiting::Accepted(name));
        }
        self.queues.entry(service).or_default().push(place);
        self.dispatch(service);
    }

    pub fn confirm(&mut self, now: Millis, peer: Peer, first: u64, count: u64) {
        let Some(key) = self.client(now, peer) else { return };
        let before = self.load().1;
        self.drop_all(now, key, first..first + count);
        self.add_confirmed(key, first..first + count);
        let after = self.load().1;
        if after > before && after >= self.settings.bytes_max * 3 / 2 {
            return self.disconnect(now, peer);
        }
        self.unpark(key);
    }

    pub fn cancel(&mut self, now: Millis, peer: Peer, number: u64) {
        let Some(key) = self.client(now, peer) else { return };
        if let Some(place) = self.numbered(key, number)
            && self.requests.at(place).state != State::Settled
        {
            self.withdraw(place);
            self.settle(place, 499, 0, 0);
        }
    }

    fn unconfirmed(&self, key: usize) -> usize {
        let settled = self.of_session(key).filter(|request| request.state == State::Settled);
        settled.map(|request| request.bytes).sum()
    }

    fn all_unconfirmed(&self) -> usize {
        self.sessions.iter().map(|(key, _)| self.unconfirmed(key)).sum()
    }

    /// Since when a client could have confirmed something and hasn't.
    fn has_had_time(&self, key: usize) -> Millis {
        let session = self.sessions.all[key].as_ref().expect("it is there");
        if self.unconfirmed(key) == 0 { 0 } else { self.now - session.takes_since }
    }

    fn has_confirmed(&self, key: usize) -> bool {
        self.sessions.all[key].as_ref().is_some_and(|session| session.has_confirmed)
    }

    fn takes_replies(&self, key: usize) -> bool {
        self.has_confirmed(key) && self.has_had_time(key) <= 10_000
    }

    /// Whether a client has to confirm more than this part of what it may have here.
    pub(super) fn is_held_back(&mut self, key: usize, divisor: usize) -> bool {
        let left = (self.settings.bytes_max / 2).saturating_sub(self.all_unconfirmed());
        let most = match self.takes_replies(key) {
            true => self.settings.client_bytes_max,
            false => left.clamp(self.settings.bytes_max / 2048, self.settings.client_bytes_max),
        };
        self.sessions.at(key).blocked || self.unconfirmed(key) > most / divisor
    }

    /// Whether enough is coming to a client of which it isn't known yet whether it confirms anything.
    pub(super) fn has_enough_coming(&self, key: usize, expected: usize) -> bool {
        let its = self.unconfirmed(key) + self.of_session(key).map(|request| request.expected).sum::<usize>();
        let most = self.settings.bytes_max;
        let is_enough = its > 0 && its + expected > most / 2048;
        expected > 0 && self.all_unconfirmed() > most / 2 && is_enough && !self.takes_replies(key)
    }

    /// What a reply is expected to need beyond its request, if it is kept.
    pub(super) fn expected(&mut self, place: usize) -> usize {
        let request = self.requests.at(place);
        let (session, service, bytes) = (request.session, request.service, request.bytes - REQUEST_BYTES);
        let session = self.sessions.at(session);
        let size = self.reply_sizes.get(&service).unwrap_or(&self.settings.reply_bytes_expected);
        let is_kept = session.client.is_some() && !session.is_aside;
        if is_kept { size.saturating_sub(bytes) / 1024 * 1024 } else { 0 }
    }

    /// Whether a request has to wait for room for its reply.
    pub(super) fn waits_for_room(&mut self, service: u8, expected: usize) -> bool {
        let of_service = self.requests.iter().filter(|(_, request)| request.service == service);
        let of_service: usize = of_service.map(|(_, request)| request.expected).sum();
        let of_all: usize = self.requests.iter().map(|(_, request)| request.expected).sum();
        let (most, here) = (self.settings.bytes_max, self.all_unconfirmed());
        let room = (most / 4 * 3).saturating_sub(here).max(most / 4).min(most.saturating_sub(here));
        let waits = expected > 0 && of_service > 0 && of_all + expected > room;
        if waits && !self.short.contains(&service) {
            self.short.push_back(service);
        }
        waits
    }

    /// Goes on with services that wait for room, in turn.
    pub(super) fn end_shortage(&mut self) {
        for _ in 0..self.short.len().min(16) {
            let service = self.short.pop_front().expect("it is there");
            self.dispatch(service);
        }
    }

    pub(super) fn learn(&mut self, service: u8, bytes: usize) {
        let size = self.reply_sizes.entry(service).or_default();
        *size = bytes.max(*size - size.saturating_sub(bytes).div_ceil(64));
    }

    /// Nothing is known of a service of which there is nothing.
    pub(super) fn forget_service(&mut self, service: u8) {
        let has_request = self.requests.iter().any(|(_, request)| request.service == service);
        if !has_request && !self.workers.iter().any(|(_, worker)| worker.service == service) {
            self.reply_sizes.remove(&service);
        }
    }

    pub(super) fn unpark(&mut self, key: usize) {
        let Some(&first) = self.sessions.at(key).parked.first() else { return };
        let expected = self.expected(first);
        let is_aside = self.sessions.at(key).is_aside;
        if !is_aside && !self.is_held_back(key, 2) && !self.has_enough_coming(key, expected) {
            self.unpark_all(key);
        }
    }

    pub(super) fn unpark_all(&mut self, key: usize) {
        let mut services = Vec::new();
        for place in std::mem::take(&mut self.sessions.at(key).parked) {
            let request = self.requests.at(place);
            request.state = State::Waiting;
            services.push(request.service);
            self.queues.entry(request.service).or_default().push(place);
        }
        services.dedup();
        services.into_iter().for_each(|service| self.dispatch(service));
    }

    pub(super) fn withdraw(&mut self, place: usize) {
        let request = self.requests.at(place);
        let (state, service, session) = (request.state, request.service, request.session);
        let (name, attempt) = (request.name, request.attempt);
        if state != State::Settled {
            request.state = State::Ended;
        }
        match state {
            State::Waiting => {
                self.queues.entry(service).or_default().retain(|&other| other != place);
                self.relieved = true;
            }
            State::Parked => self.sessions.at(session).parked.retain(|&other| other != place),
            State::Held(key) => {
                let worker = self.workers.at(key);
                worker.held.retain(|&other| other != place);
                match worker.kind {
                    Kind::Stock => worker.abandoned.push((name, attempt)),
                    Kind::Numbered => {
                        self.seen.push(Seen::CancelWork { peer: worker.peer, request: name, attempt });
                    }
                }
                self.requests.at(place).expected = 0;
                self.offer(key);
                self.dispatch(service);
            }
            State::Ended | State::Settled => {}
        }
    }

    /// All workers that had it went.
    pub(super) fn give_up(&mut self, now: Millis, place: usize) {
        let request = self.requests.at(place);
        let (session, number, name) = (request.session, request.number, request.name);
        let (service, length) = (request.service + ASIDE_SERVICES, request.bytes - REQUEST_BYTES);
        let is_journalled = request.is_journalled;
        if self.sessions.at(session).is_aside {
            return self.put_off(place);
        }
        let is_aside = |request: &&Request| self.sessions.all[request.session].as_ref().is_some_and(|s| s.is_aside);
        let aside: usize = self.requests.iter().map(|(_, request)| request).filter(is_aside).map(|r| r.bytes).sum();
        let has_room = aside + REQUEST_BYTES + length <= self.settings.bytes_max / 4;
        let kept = is_journalled && has_room && self.has_room_for(None, service, length);
        if kept {
            self.counters.dead_letters += 1;
            let session = self.add_session(Some(u8::MAX), None);
            let aside = self.sessions.at(session);
            (aside.is_aside, aside.absent_since) = (true, now);
            self.take(now, session, 0, Millis::MAX, true, service, name | ASIDE, length);
            self.counters.accepted -= 1;
        }
        self.seen.push(Seen::GaveUp { number, kept });
        // As long as the reason.
        self.settle(place, 502, 0, if kept { 62 } else { 42 });
    }

    pub(super) fn is_aside(&mut self, place: usize) -> bool {
        let session = self.requests.at(place).session;
        self.sessions.at(session).is_aside
    }

    fn put_off(&mut self, place: usize) {
        let request = self.requests.at(place);
        request.state = State::Parked;
        let session = request.session;
        self.sessions.at(session).parked.push(place);
    }

    /// With what a worker replied, if there is room for it.
    pub(super) fn settle_reply(&mut self, place: usize, status: u16, what: u64, length: usize) {
        let of = self.requests.at(place).session;
        let (unconfirmed, bytes, most) = (self.unconfirmed(of), memory_bytes(length), self.settings.bytes_max);
        let its_own = self.requests.at(place).bytes - REQUEST_BYTES;
        let all = self.all_unconfirmed() + bytes;
        let begins = !self.has_confirmed(of) && self.has_had_time(of) <= 1_000 && all <= most / 8 * 7;
        let is_little = unconfirmed + bytes <= most / 2048 * 2;
        let has_room =
            all <= most / 4 * 3 || (all <= most && (self.takes_replies(of) || unconfirmed == 0 || is_little || begins));
        let is_kept = self.sessions.at(of).client.is_some() && !self.sessions.at(of).is_aside;
        match bytes > its_own.max(64) && is_kept && !has_room {
            true => {
                let number = self.requests.at(place).number;
                self.seen.push(Seen::ReplyLost { number });
                self.settle(place, 507, 0, 0);
            }
            false => self.settle(place, status, what, length),
        }
    }

    pub(super) fn settle(&mut self, place: usize, status: u16, what: u64, length: usize) {
        let of = self.requests.at(place).session;
        let is_aside = self.sessions.at(of).is_aside;
        if is_aside && status != 200 {
            return self.put_off(place);
        }
        let parts_on = self.requests.at(place).parts_on;
        let was_told = parts_on != 0 && status == 200 && self.sessions.at(of).client.is_some();
        let lost = was_told && !self.sessions.at(of).is_on(parts_on);
        let (status, what, length) = match was_told {
            true if lost => (410, 0, 0),
            true => (206, what, length),
            false => (status, what, length),
        };
        if matches!(status, 200 | 206) {
            self.counters.replied += 1;
        } else {
            self.counters.failed += 1;
        }
        let (session, name) = (self.requests.at(place).session, self.requests.at(place).name);
        if is_aside {
            return self.forget(place);
        }
        if self.sessions.at(session).client.is_none() {
            if let Some(peer) = self.sessions.at(session).peer {
                self.seen.push(Seen::StockReply { peer, status, partial: false, what });
            }
            return self.forget(place);
        }
        let request = self.requests.at(place);
        (request.state, request.outcome) = (State::Settled, (status, what));
        let before = request.bytes;
        request.bytes = REQUEST_BYTES + memory_bytes(length);
        let is_less = request.bytes < before;
        request.expires = Millis::MAX;
        self.relieved |= is_less;
        let request = self.requests.at(place);
        if request.is_journalled {
            request.is_tellable = false;
            self.awaiting.push_back(Awaiting::Finished(name));
        } else {
            self.tell(place);
        }
    }

    pub(super) fn tell(&mut self, place: usize) {
        let request = self.requests.at(place);
        let (session, number, (status, what)) = (request.session, request.number, request.outcome);
        if let Some(peer) = self.sessions.at(session).peer {
            self.seen.push(Seen::Reply { peer, number, status, part: None, what });
        }
    }

    pub(super) fn forget(&mut self, place: usize) {
        if self.requests.at(place).is_journalled {
            self.awaiting.push_back(Awaiting::Nothing);
        }
        let service = self.requests.take(place).service;
        self.forget_service(service);
        self.relieved = true;
    }

    /// So many more entries are on the disk.
    pub fn persisted(&mut self, count: usize) {
        for _ in 0..count.min(self.awaiting.len()) {
            match self.awaiting.pop_front() {
                Some(Awaiting::Accepted(name)) => {
                    let Some(place) = self.find(name) else { continue };
                    let request = self.requests.at(place);
                    request.is_durable = true;
                    let (session, number) = (request.session, request.number);
                    if let Some(peer) = self.sessions.at(session).peer {
                        self.seen.push(Seen::Accepted { peer, number });
                    }
                }
                Some(Awaiting::Finished(name)) => {
                    let Some(place) = self.find(name) else { continue };
                    self.requests.at(place).is_tellable = true;
                    self.tell(place);
                }
                _ => {}
            }
        }
    }
}
