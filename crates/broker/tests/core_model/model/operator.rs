//! Operations of an operator: pausing and purging services, sending dead letters again or dropping them, draining.

use super::{Awaiting, DEAD_LETTER, DEAD_LETTER_SERVICES, Model, Request, Seen, State};
use towpath_broker::core::{LetterAction, Millis};

impl Model {
    /// Pauses a service, or resumes it.
    pub fn pause(&mut self, service: u8, paused: bool) {
        match paused {
            true => self.paused_services.insert(service),
            false => self.paused_services.remove(&service),
        };
        self.dispatch(service);
    }

    /// Ends what waits for a service.
    pub fn purge(&mut self, service: u8) -> usize {
        let waiting: Vec<usize> = self.queues.get(&service).into_iter().flat_map(|queue| queue.requests()).collect();
        waiting.iter().for_each(|slot| self.end(*slot));
        waiting.len()
    }

    /// Ends a request.
    pub fn end_request(&mut self, name: u64) {
        let slot = self.find(name).expect("it is there");
        self.end(slot);
    }

    fn end(&mut self, slot: usize) {
        self.withdraw(slot);
        self.counters.purged += 1;
        if self.is_dead_letter(slot) {
            self.forget(slot);
        } else {
            self.settle(slot, 499, 0, 0);
            self.counters.failed -= 1;
        }
    }

    /// The number of requests of a service, in whatever state.
    pub fn requests_of(&self, service: u8) -> usize {
        self.requests.iter().filter(|(_, request)| request.service == service).count()
    }

    /// Dead letters of a service.
    pub fn letters(&self, service: u8) -> usize {
        self.letters_of(service).len()
    }

    fn letters_of(&self, service: u8) -> Vec<(u64, usize)> {
        let queue = service % DEAD_LETTER_SERVICES + DEAD_LETTER_SERVICES;
        let sessions = self.sessions.iter().filter(|(_, session)| session.letter != 0);
        let letters = sessions.filter_map(|(key, session)| Some((session.letter, self.numbered(key, 0)?)));
        let of_queue = |slot: usize| self.requests.all[slot].as_ref().is_some_and(|request| request.service == queue);
        let mut letters: Vec<(u64, usize)> = letters.filter(|(_, slot)| of_queue(*slot)).collect();
        letters.sort_unstable();
        letters
    }

    /// Sends the dead letters of a service to it again, or drops them, and says how many.
    pub fn act_on_letters(&mut self, now: Millis, service: u8, action: LetterAction) -> usize {
        let mut done = 0;
        for (_, slot) in self.letters_of(service) {
            match self.act_on_slot(now, service, slot, action) {
                Some(true) => done += 1,
                Some(false) => break,
                None => {}
            }
        }
        done
    }

    /// The same with one of them.
    pub fn act_on_letter(&mut self, now: Millis, service: u8, which: usize, action: LetterAction) -> bool {
        let (_, slot) = self.letters_of(service)[which];
        self.act_on_slot(now, service, slot, action) == Some(true)
    }

    /// Whether it is done, unless a worker has the letter.
    fn act_on_slot(&mut self, now: Millis, service: u8, slot: usize, action: LetterAction) -> Option<bool> {
        let request = self.requests.at(slot);
        if !matches!(request.state, State::Waiting | State::Parked) {
            return None;
        }
        let (to, length) = (service % DEAD_LETTER_SERVICES, request.body_bytes());
        match action {
            LetterAction::Requeue if !self.is_draining && self.admits(0, None, to, length) => {
                self.move_letter(now, slot, to)
            }
            LetterAction::Requeue => return Some(false),
            LetterAction::Drop => {
                self.withdraw(slot);
                self.counters.purged += 1;
                self.forget(slot);
            }
        }
        Some(true)
    }

    /// Adds a dead letter.
    pub(super) fn add_letter(&mut self, now: Millis, service: u8, attempts: u16, name: u64, length: usize) {
        let session = self.add_session(Some(u8::MAX), None);
        self.last_letter += 1;
        self.letter_names.insert(name & (DEAD_LETTER - 1), name);
        (self.sessions.at(session).letter, self.sessions.at(session).absent_since) = (self.last_letter, now);
        self.accept(now, session, 0, Millis::MAX, true, attempts, service, name, length);
        self.counters.accepted -= 1;
    }

    /// Moves a dead letter. Its attempts so far don't count there.
    fn move_letter(&mut self, now: Millis, slot: usize, to: u8) {
        self.withdraw(slot);
        let request = self.requests.at(slot);
        let (session, former) = (request.session, std::mem::replace(&mut request.service, to));
        (request.state, request.uncounted, request.parts_on) = (State::Waiting, request.attempt, 0);
        request.has_parts = false;
        self.sessions.at(session).absent_since = now;
        self.awaiting.push_back(Awaiting::Nothing);
        let tenant = self.sessions.at(session).tenant;
        self.queues.entry(to).or_default().push_back(tenant, session, slot);
        self.dispatch(to);
        self.forget_service(former);
    }

    /// Dead letters whose time is over go; those that failed are queued again, for the dead-letter queue.
    pub(super) fn retry_letters(&mut self, now: Millis) {
        let retention = self.settings.journal_retention_ms;
        let sessions = self.sessions.iter().filter(|(key, s)| s.letter != 0 && self.numbered(*key, 0).is_some());
        let mut letters: Vec<_> =
            sessions.map(|(key, s)| (s.letter, key, now - s.absent_since > retention, !s.parked.is_empty())).collect();
        letters.sort_unstable();
        letters.iter().filter(|(_, _, is_over, _)| *is_over).for_each(|(_, key, ..)| self.remove_session(*key));
        for (_, key, ..) in letters.into_iter().filter(|(_, _, is_over, is_parked)| !is_over && *is_parked) {
            let Some(slot) = self.numbered(key, 0) else { continue };
            let (service, length) = (self.requests.at(slot).service, self.requests.at(slot).body_bytes());
            if service < DEAD_LETTER_SERVICES {
                if !self.admits(0, None, service + DEAD_LETTER_SERVICES, length) {
                    continue;
                }
                self.counters.dead_letters += 1;
                self.move_letter(now, slot, service + DEAD_LETTER_SERVICES);
            } else {
                self.unpark_all(key);
            }
        }
    }

    /// Takes no more requests, or takes them again.
    pub fn drain(&mut self, on: bool) {
        self.is_draining = on;
        if !on {
            for key in std::mem::take(&mut self.leaving) {
                if let Some(session) = &mut self.sessions.all[key] {
                    session.is_leaving = false;
                }
            }
        }
    }

    /// Requests without an outcome, without dead letters that wait in their queue.
    pub fn left(&self) -> usize {
        let is_letter = |session: usize| self.sessions.all[session].as_ref().is_some_and(|session| session.letter != 0);
        let requests = self.requests.iter().map(|(_, request)| request);
        let is_at_rest = |request: &&Request| {
            let is_in_queue = request.service >= DEAD_LETTER_SERVICES && !matches!(request.state, State::Held(_));
            is_in_queue && is_letter(request.session)
        };
        requests.filter(|request| request.state != State::Settled && !is_at_rest(request)).count()
    }

    /// A numbered client was refused.
    pub(super) fn leave_when_done(&mut self, key: usize) {
        if self.is_draining && !std::mem::replace(&mut self.sessions.at(key).is_leaving, true) {
            self.leaving.push(key);
        }
    }

    /// Sends away the clients that were refused and have nothing left here.
    pub(super) fn send_away(&mut self, now: Millis) {
        for key in std::mem::take(&mut self.leaving) {
            let has_requests = self.of_session(key).next().is_some();
            let Some(session) = self.sessions.all[key].as_mut().filter(|session| session.is_leaving) else { continue };
            match session.peer {
                None => session.is_leaving = false,
                Some(_) if has_requests => self.leaving.push(key),
                Some(peer) => {
                    self.gone(now, peer);
                    self.seen.push(Seen::CloseAfterFlush(peer));
                }
            }
        }
    }
}
