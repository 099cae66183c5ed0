//! Whether there is room for a request, and what becomes of one for which there is none.

use super::drain::STOPPING;
use super::service::Service;
use super::settings::{Millis, Settings};
use super::{Action, Core, Peer, Role, SessionKey, StockEnvelope};
use bytes::Bytes;
use std::collections::VecDeque;
use towpath_requests::body::Body;
use towpath_requests::is_built_in;
use towpath_requests::numbered::{Status, Token};

pub(super) const TOO_MANY_SERVICES: &str = "the broker has as many services as it can hold";

/// Why a request is not taken, and when it would be worth another try.
pub(super) struct Refusal {
    pub status: Status,
    pub retry_ms: u32,
    pub reason: &'static str,
}

/// How much of the shared memory is used. Decides whether large messages are read, whose senders can't act on a refusal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MemoryPressure {
    /// At least half is free.
    Low,
    /// Less than half is free: large messages one at a time.
    High,
    /// More than half is output that peers haven't read. Some never will.
    Backlog,
    /// Nothing is free.
    Full,
}

/// Of what should be in the journal, and can't be.
pub(super) const NO_JOURNAL: Refusal = Refusal {
    status: Status::NO_STORAGE,
    retry_ms: 1_000,
    reason: "the journal can't be written; see the broker's log",
};

const fn retry_in(retry_ms: u32, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { status: Status::UNAVAILABLE, retry_ms, reason })
}

/// Whether less is there than so much, or a part of it. A bound of one request has no half.
fn below(length: usize, most: usize, divisor: usize) -> bool {
    length < (most / divisor).max(1)
}

/// Stock clients that aren't read, because they can't act on a refusal.
#[derive(Debug, Default)]
pub(super) struct PausedClients {
    /// In the order of their turns, with the service whose queue each waits for. By name, since keys are reused.
    queue: VecDeque<(SessionKey, Bytes)>,
    /// Memory was freed since the queue was last looked at.
    pub memory_freed: bool,
    /// Clients looked at.
    #[cfg(test)]
    pub looks: usize,
}

impl PausedClients {
    /// Whether something was freed that a paused client may have.
    #[inline]
    fn may_resume(&self) -> bool {
        self.memory_freed && !self.queue.is_empty()
    }

    pub fn remove(&mut self, key: SessionKey) {
        self.queue.retain(|(paused, _)| *paused != key);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

impl Core {
    /// Whether a request of so many bytes is taken; `None`: of a client that isn't there yet.
    pub(super) fn admit(
        &mut self,
        key: Option<SessionKey>,
        service: &[u8],
        bytes: usize,
        journalled: bool,
    ) -> Result<(), Refusal> {
        let settings = &self.settings;
        if bytes > settings.client_bytes_max.min(settings.bytes_max).min(settings.service_bytes_max) {
            let reason = "larger than all that the broker holds for a client or a service";
            return Err(Refusal { status: Status::TOO_LARGE, retry_ms: 0, reason });
        }
        if self.drain.is_stopping() {
            return retry_in(1_000, STOPPING);
        }
        // What needs no journal is as well off as without one.
        if self.storage_failed && journalled {
            return Err(NO_JOURNAL);
        }
        if let Some(session) = key.map(|key| &self.sessions[key])
            && (session.requests.len() >= settings.client_requests_max
                || session.bytes + bytes > settings.client_bytes_max)
        {
            return retry_in(50, "this client has too much outstanding; confirm replies, or wait");
        }
        self.admit_shared(service, bytes)
    }

    /// Whether there is room in what is everybody's, and in the service's queue.
    pub(super) fn admit_shared(&mut self, service: &[u8], bytes: usize) -> Result<(), Refusal> {
        let settings = &self.settings;
        if self.bytes + bytes > settings.bytes_max || self.requests.len() >= settings.requests_max {
            return retry_in(200, "the broker has all that it can hold");
        }
        let Some(service) = self.services.find(service).map(|key| self.services.at(key)) else {
            return if self.exceeds_services(service) { retry_in(1_000, TOO_MANY_SERVICES) } else { Ok(()) };
        };
        if service.waiting.len() >= settings.service_requests_max
            || service.waiting.bytes() + bytes > settings.service_bytes_max
        {
            return retry_in(200, "the service's queue is full");
        }
        Ok(())
    }

    /// Whether a request would call a service into being, and there are as many as requests alone may.
    pub(super) fn exceeds_services(&mut self, service: &[u8]) -> bool {
        self.services.len() >= self.settings.asked_services_max()
            && self.services.find(service).is_none()
            && !is_built_in(service)
    }

    /// Whether a stock client may go on; with divisors over 1, whether there is so much more room in what is its own and in what
    /// is everybody's.
    pub(super) fn is_below_limits(
        &self,
        key: SessionKey,
        service: Option<&Service>,
        own: usize,
        shared: usize,
    ) -> bool {
        let settings = &self.settings;
        let session = &self.sessions[key];
        below(session.requests.len(), settings.client_requests_max, own)
            && below(session.bytes, settings.client_bytes_max, own)
            && self.is_below_shared_limits(shared)
            && service.is_none_or(|service| {
                below(service.waiting.len(), settings.service_requests_max, shared)
                    && below(service.waiting.bytes(), settings.service_bytes_max, shared)
            })
    }

    /// The same of what is everybody's, whichever service it is for.
    fn is_below_shared_limits(&self, divisor: usize) -> bool {
        below(self.bytes, self.settings.bytes_max, divisor)
            && below(self.requests.len(), self.settings.requests_max, divisor)
    }

    /// How much is left of what is everybody's, while so many bytes wait for peers to read them: as much as the requests that are here
    /// may come to yet, if their replies are as large.
    pub fn memory_pressure(&self, waiting_bytes: usize) -> MemoryPressure {
        let Settings { bytes_max, requests_max, .. } = self.settings;
        let (half, has_half) = (bytes_max / 2, below(self.requests.len(), requests_max, 2));
        if !self.is_below_shared_limits(1) {
            MemoryPressure::Full
        } else if waiting_bytes > half {
            MemoryPressure::Backlog
        } else if has_half && self.bytes.saturating_add(waiting_bytes) <= half {
            MemoryPressure::Low
        } else {
            MemoryPressure::High
        }
    }

    /// Has a stock client not read until there is room in what is its own, everybody's, and the service's of that name.
    pub(super) fn pause_client(&mut self, key: SessionKey, service: Bytes) {
        let session = &mut self.sessions[key];
        if let (false, Some(peer)) = (session.paused, session.peer) {
            session.paused = true;
            self.paused.queue.push_back((key, service));
            self.actions.push(Action::Pause { peer, paused: true });
        }
    }

    /// Whether something was freed that paused clients may have, and nobody has looked since.
    #[inline]
    pub(super) fn may_resume(&self) -> bool {
        self.paused.may_resume() && !self.drain.is_stopping()
    }

    /// Lets stock clients go on whose own queues have become half as long, those first that have waited longest: all of them if
    /// what is everybody's is half empty too, or else one a turn as long as there is room at all. Others, such as numbered
    /// clients that are away from their outcomes, may keep more than half of it for hours.
    pub(super) fn resume_clients(&mut self) {
        let (mut resumed, mut stay) = (0, 0);
        for _ in 0..self.paused.queue.len() {
            let shared = if resumed == 0 { 1 } else { 2 };
            // None of the others is looked at then: there may be thousands.
            if !self.is_below_shared_limits(shared) {
                self.paused.queue.rotate_right(stay);
                break;
            }
            #[cfg(test)]
            {
                self.paused.looks += 1;
            }
            let Some((key, service)) = self.paused.queue.pop_front() else { break };
            let Some(peer) = self.sessions.get(key).filter(|s| s.paused).and_then(|s| s.peer) else {
                continue;
            };
            if self.is_below_limits(key, self.services.by_name(&service), 2, shared) {
                resumed += 1;
                self.sessions[key].paused = false;
                self.actions.push(Action::Pause { peer, paused: false });
            } else {
                stay += 1;
                self.paused.queue.push_back((key, service));
            }
        }
        // The one may have nothing more to ask, and leave the room to the next.
        self.paused.memory_freed = resumed > 0 && !self.paused.queue.is_empty();
    }

    /// A numbered client's request couldn't be taken in. `retry_ms` of 0: nor can it be later.
    pub fn refuse(
        &mut self,
        now: Millis,
        peer: Peer,
        number: u64,
        status: Status,
        retry_ms: u32,
        reason: &'static str,
    ) {
        let Some(key) = self.numbered_session(peer) else {
            return self.disconnect(now, peer, "a client says who it is before its first request");
        };
        // What was taken when it came before isn't refused because it comes again.
        if !self.is_duplicate(key, number, peer) {
            self.counters.refused += 1;
            self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
            self.leave_when_done(peer);
        }
    }

    /// A part of a worker's reply couldn't be taken in: its request has ended then, and what else comes of the reply is late.
    pub fn reject_part(&mut self, now: Millis, peer: Peer, token: &Token, status: Status, reason: &'static str) {
        let held = match self.roles.get(peer) {
            Role::Worker(key) => self.find_held(key, token),
            Role::None | Role::Client(_) => None,
        };
        match held {
            Some(slot) => {
                self.withdraw(now, slot);
                self.settle(slot, status, Body::from(reason).into());
            }
            None => self.worker_reply(now, peer, token, status, Some(0), Body::from(reason)),
        }
    }

    /// A stock client's request couldn't be taken in.
    pub fn stock_refuse(
        &mut self,
        now: Millis,
        peer: Peer,
        envelope: StockEnvelope,
        service: &[u8],
        status: Status,
        reason: &'static str,
    ) {
        if self.stock_session(now, peer).is_some() {
            self.counters.refused += 1;
            let (service, body) = (Bytes::copy_from_slice(service), Body::from(reason));
            self.actions.push(Action::StockReply { peer, envelope, service, status, partial: false, body });
        }
    }
}
