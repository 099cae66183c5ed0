//! Workers.

use super::{Model, Role, Seen, State, Worker, memory_bytes};
use towpath_broker::core::{Kind, Millis, Peer};

impl Model {
    pub fn ready(&mut self, now: Millis, peer: Peer, kind: Kind, service: u8, credit: usize) {
        if self.roles.contains_key(&peer) {
            return self.disconnect(now, peer);
        }
        let key = self.workers.put(Worker {
            peer,
            service,
            kind,
            credit,
            held: Vec::new(),
            abandoned: Vec::new(),
            last_received: now,
            leaving: false,
            blocked: false,
            available: None,
        });
        self.roles.insert(peer, Role::Worker(key));
        self.mark_available(key);
        self.dispatch(service);
    }

    pub fn change_worker(&mut self, now: Millis, peer: Peer, credit: Option<usize>) {
        let Some(&Role::Worker(key)) = self.roles.get(&peer) else { return self.disconnect(now, peer) };
        match credit {
            None => self.workers.at(key).leaving = true,
            Some(credit) => {
                self.workers.at(key).credit = credit;
                self.mark_available(key);
                self.dispatch(self.workers.all[key].as_ref().expect("it is there").service);
            }
        }
    }

    pub fn received(&mut self, now: Millis, peer: Peer) {
        if let Some(&Role::Worker(key)) = self.roles.get(&peer) {
            self.workers.at(key).last_received = now;
        }
    }

    pub fn blocked(&mut self, peer: Peer, blocked: bool) {
        match self.roles.get(&peer) {
            None => {}
            Some(&Role::Client(key)) => {
                self.sessions.at(key).blocked = blocked;
                self.unpark(key);
            }
            Some(&Role::Worker(key)) => {
                self.workers.at(key).blocked = blocked;
                if !blocked {
                    let service = self.workers.at(key).service;
                    self.mark_available(key);
                    self.dispatch(service);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub fn reply(
        &mut self,
        now: Millis,
        peer: Peer,
        (request, attempt): (u64, u16),
        ok: bool,
        part: Option<u32>,
        what: u64,
        length: usize,
    ) {
        let key = match self.roles.get(&peer) {
            Some(&Role::Worker(key)) => key,
            Some(Role::Client(_)) => return self.disconnect(now, peer),
            // A worker that was connected again without knowing it.
            None => {
                self.late_reply(request, ok, part, what, length);
                return self.disconnect(now, peer);
            }
        };
        let slot = self.find(request);
        let state = slot.map(|slot| self.requests.at(slot).state);
        let status = if ok { 200 } else { 500 };
        let is_own = slot.is_some_and(|p| self.requests.at(p).attempt == attempt) && state == Some(State::Held(key));
        if let Some(index) = self.workers.at(key).abandoned.iter().position(|given| *given == (request, attempt)) {
            self.counters.late_replies += 1;
            if part.is_none() {
                self.workers.at(key).abandoned.remove(index);
                let service = self.workers.at(key).service;
                self.mark_available(key);
                self.dispatch(service);
            }
            return;
        }
        // A worker's late reply counts, if it is of the same service.
        if slot.is_some_and(|slot| self.requests.at(slot).service != self.workers.at(key).service) {
            if self.workers.at(key).kind == Kind::Numbered {
                self.counters.late_replies += 1;
                return;
            }
            return self.disconnect(now, peer);
        }
        let Some(slot) = slot.filter(|_| is_own) else { return self.late_reply(request, ok, part, what, length) };
        if let Some(part) = part {
            self.requests.at(slot).has_parts = true;
            let (session, number) = (self.requests.at(slot).session, self.requests.at(slot).number);
            let was_on = self.requests.at(slot).parts_on;
            let session = self.sessions.at(session);
            let connection = session.connections;
            match (session.peer, session.client) {
                (Some(_), Some(_)) if was_on != 0 && was_on != connection => self.counters.lost_parts += 1,
                (Some(peer), Some(_)) => {
                    self.requests.at(slot).parts_on = connection;
                    self.seen.push(Seen::Reply { peer, number, status: 200, part: Some(part), what })
                }
                (Some(peer), None) => {
                    self.requests.at(slot).parts_on = 1;
                    self.seen.push(Seen::StockReply { peer, status: 200, partial: true, what });
                }
                (None, _) => {
                    self.counters.lost_parts += 1;
                    if was_on == 0 {
                        self.requests.at(slot).parts_on = connection;
                    }
                }
            }
        } else {
            let service = self.workers.at(key).service;
            self.workers.at(key).held.retain(|&held| held != slot);
            self.requests.at(slot).expected = 0;
            self.observe(service, memory_bytes(length));
            let session = self.requests.at(slot).session;
            if self.of_session(session).all(|request| request.state != State::Settled) {
                self.sessions.at(session).idle_since = now;
            }
            self.mark_available(key);
            self.settle_reply(slot, status, what, length);
            self.dispatch(service);
        }
    }

    /// A reply to an attempt that isn't, or isn't any more, this connection's.
    fn late_reply(&mut self, request: u64, ok: bool, part: Option<u32>, what: u64, length: usize) {
        let slot = self.find(request);
        let state = slot.map(|slot| self.requests.at(slot).state);
        let is_open = matches!(state, Some(State::Waiting | State::Parked | State::Held(_)));
        match slot.filter(|_| is_open) {
            Some(slot) if part.is_none() && !self.requests.at(slot).has_parts && (ok || !self.is_dead_letter(slot)) => {
                self.withdraw(slot);
                self.settle_reply(slot, if ok { 200 } else { 500 }, what, length);
            }
            open => {
                if let Some(slot) = open.filter(|_| part.is_some()) {
                    self.requests.at(slot).has_parts = true;
                }
                self.counters.late_replies += 1;
            }
        }
    }

    pub(super) fn mark_available(&mut self, key: usize) {
        self.turns += 1;
        let turn = self.turns;
        let worker = self.workers.at(key);
        if worker.available.is_none() && worker.has_credit() {
            worker.available = Some(turn);
        }
    }

    pub(super) fn dispatch(&mut self, service: u8) {
        if self.paused_services.contains(&service) {
            return;
        }
        loop {
            let of_service = self.workers.iter().filter(|(_, w)| w.service == service && w.available.is_some());
            let first = of_service.min_by_key(|(_, worker)| worker.available).map(|(key, _)| key);
            let queue = self.queues.entry(service).or_default();
            let (Some(key), Some(slot)) = (first, queue.first()) else { return };
            if !self.workers.at(key).has_credit() {
                self.workers.at(key).available = None;
                continue;
            }
            let session = self.requests.at(slot).session;
            let expected = self.expected(slot);
            if self.is_held_back(session, 1) || self.expects_enough(session, expected) {
                self.queues.entry(service).or_default().remove(slot);
                self.memory_freed = true;
                self.sessions.at(session).parked.push(slot);
                self.requests.at(slot).state = State::Parked;
                continue;
            }
            if self.must_wait_for_memory(service, expected) {
                return;
            }
            self.queues.entry(service).or_default().take(slot);
            self.memory_freed = true;
            let worker = self.workers.at(key);
            worker.held.push(slot);
            worker.available = None;
            let peer = worker.peer;
            let request = self.requests.at(slot);
            request.expected = expected;
            (request.state, request.attempt) = (State::Held(key), request.attempt + 1);
            request.parts_on = 0;
            let (request, attempt) = (request.name, request.attempt);
            self.counters.dispatched += 1;
            self.seen.push(Seen::Dispatch { peer, request, attempt });
            self.mark_available(key);
        }
    }
}
