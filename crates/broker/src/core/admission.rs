//! Admission: which requests are taken, which are refused, and which stock clients have to wait.

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

/// Why a request is refused, and when to try again.
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

/// Refuses what would be journalled.
pub(super) const NO_JOURNAL: Refusal = Refusal {
    status: Status::NO_STORAGE,
    retry_ms: 1_000,
    reason: "the journal can't be written; see the broker's log",
};

const fn retry_in(retry_ms: u32, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { status: Status::UNAVAILABLE, retry_ms, reason })
}

/// Whether `length` is below a fraction of `most`. A limit of one request has no half.
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
    /// Whether memory was freed that a paused client may use.
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
    /// Whether a request of so many bytes is admitted. `key`: its session; `None`: there is none yet.
    pub(super) fn admit(
        &mut self,
        key: Option<SessionKey>,
        service: &[u8],
        bytes: usize,
        journalled: bool,
    ) -> Result<(), Refusal> {
        let settings = &self.settings;
        if bytes > settings.client_bytes_max.min(settings.bytes_max).min(settings.service_bytes_max) {
            let reason = "larger than the memory limit of a client or a service";
            return Err(Refusal { status: Status::TOO_LARGE, retry_ms: 0, reason });
        }
        if self.drain.is_stopping() {
            return retry_in(1_000, STOPPING);
        }
        // Volatile requests need no journal.
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

    /// Whether a request fits into the memory and its service's queue.
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

    /// Whether a request would add a service beyond the number that requests may add.
    pub(super) fn exceeds_services(&mut self, service: &[u8]) -> bool {
        self.services.len() >= self.settings.asked_services_max()
            && self.services.find(service).is_none()
            && !is_built_in(service)
    }

    /// Whether a stock client is below the limits, so that it may be read. `own`, `shared`: whether it is even below that
    /// fraction of its own limits, and of the shared ones.
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

    /// Whether memory and requests are below a fraction of their limits.
    fn is_below_shared_limits(&self, divisor: usize) -> bool {
        below(self.bytes, self.settings.bytes_max, divisor)
            && below(self.requests.len(), self.settings.requests_max, divisor)
    }

    /// The memory pressure while so many bytes are queued for peers. They count once more, since the replies to requests that are
    /// here may be as large.
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

    /// Pauses reading from a stock client until it is below its own limits, the shared ones, and those of this service's queue.
    pub(super) fn pause_client(&mut self, key: SessionKey, service: Bytes) {
        let session = &mut self.sessions[key];
        if let (false, Some(peer)) = (session.paused, session.peer) {
            session.paused = true;
            self.paused.queue.push_back((key, service));
            self.actions.push(Action::Pause { peer, paused: true });
        }
    }

    /// Whether [`Core::resume_clients`] may have something to do.
    #[inline]
    pub(super) fn may_resume(&self) -> bool {
        self.paused.may_resume() && !self.drain.is_stopping()
    }

    /// Resumes stock clients below half of their own limits, those that waited longest first: all of them if the shared memory is
    /// half free, otherwise one in each tick. Numbered clients may fill more than half of it with unconfirmed outcomes for hours.
    pub(super) fn resume_clients(&mut self) {
        let (mut resumed, mut stay) = (0, 0);
        for _ in 0..self.paused.queue.len() {
            let shared = if resumed == 0 { 1 } else { 2 };
            // The others aren't looked at: there may be thousands.
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
        // The resumed client may send nothing: then it is the next one's turn.
        self.paused.memory_freed = resumed > 0 && !self.paused.queue.is_empty();
    }

    /// The driver couldn't take in a numbered client's request. `retry_ms`: when the client may try again; 0: never.
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
            return self.disconnect(now, peer, "a request before HELLO");
        };
        // A request that was accepted before isn't refused when it is repeated.
        if !self.is_duplicate(key, number, peer) {
            self.counters.refused += 1;
            self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
            self.leave_when_done(peer);
        }
    }

    /// The driver couldn't take in a part of a worker's reply. Ends the request; the rest of the reply is late.
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

    /// The driver couldn't take in a stock client's request.
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
