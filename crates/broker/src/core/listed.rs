//! Requests of a service as an operator sees them, and the end of one.

use super::requests::State;
use super::settings::{Millis, NEVER};
use super::{Core, Peer, ServiceKey};
use std::fmt;
use std::str::FromStr;
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;
use towpath_sockets::{PAGE_MAX, Page, Tenant};

/// Slots that are looked at in one step: requests of another service may be in most of them.
const LOOKED_AT_MAX: u32 = 4_096;

/// Bytes of a body that are shown.
pub(super) const FIRST_BYTES: usize = 64;

/// Reasons, short enough to need no memory beside the request's.
const ENDED: &str = "ended by the operator; never begun";
const ENDED_LATER: &str = "ended by the operator; perhaps begun";

/// A request, by its slot and generation: no later one has the same, until the broker is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestKey {
    slot: u32,
    generation: u32,
}

impl fmt::Display for RequestKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.slot, self.generation)
    }
}

/// Text that isn't the id of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request's id is two numbers, such as 3.0")]
pub struct NoRequestKey;

impl FromStr for RequestKey {
    type Err = NoRequestKey;

    fn from_str(text: &str) -> Result<RequestKey, NoRequestKey> {
        let (slot, generation) = text.split_once('.').ok_or(NoRequestKey)?;
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number).ok_or(NoRequestKey)
        };
        Ok(RequestKey { slot: number(slot)?, generation: number(generation)? })
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// Its id here.
    pub key: RequestKey,
    /// Its state.
    pub state: RequestState,
    /// Its number at its client.
    pub number: u64,
    /// When it was taken, or a worker last got it; of a postponed one, when it is queued again.
    pub since: Millis,
    /// When it expires, if ever; of one that has ended, when its outcome may be dropped.
    pub expires: Option<Millis>,
    /// Attempts so far.
    pub attempts: u16,
    /// Bytes of its body, or of the reply.
    pub bytes: u64,
    /// The first bytes of these, if they are in memory.
    pub first: Option<Vec<u8>>,
    /// Whether it is in the journal.
    pub is_journalled: bool,
    /// Whether it is a dead letter.
    pub is_letter: bool,
    /// The client's user or address, if it is known.
    pub client: Option<Tenant>,
    /// The client's connection, if it is connected.
    pub peer: Option<Peer>,
    /// The connection of the worker that has it.
    pub worker: Option<Peer>,
}

/// State of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// In its service's queue.
    Waiting,
    /// Held back until its client confirms replies; a dead letter that failed, until its next turn.
    HeldBack,
    /// A worker couldn't do it: it is queued again later.
    Postponed,
    /// A worker has it.
    Worker,
    /// The broker itself answers it.
    Answered,
    /// Ended; its client hasn't confirmed the outcome.
    Ended,
}

/// Why a request isn't ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotEnded {
    /// There is none.
    #[error("there is no such request of this service: it has ended")]
    Gone,
    /// Ended already.
    #[error("it has ended already, and its outcome waits for its client")]
    Over,
}

/// The first bytes of a body, if it is in memory.
pub(super) fn first_bytes(body: &Body, most: usize) -> Option<Vec<u8>> {
    Some(body.frames()?.flatten().take(most).copied().collect())
}

impl Core {
    /// A step of a list of the requests of a service, in whatever state, from this number on.
    pub fn requests_from(&self, service: &[u8], from: u32) -> Page<RequestInfo> {
        let mut page = Page::default();
        let Some(service) = self.services.find_by_name(service) else { return page };
        let end = from.saturating_add(LOOKED_AT_MAX);
        page.next = (end < self.requests.slots()).then_some(end);
        for (slot, request) in self.requests.iter_range(from, end) {
            if request.service != service {
                continue;
            }
            if page.entries.len() == PAGE_MAX {
                page.next = Some(slot);
                break;
            }
            page.entries.push((slot, self.request_info(slot)));
        }
        page
    }

    fn request_info(&self, slot: u32) -> RequestInfo {
        let request = self.requests.at(slot);
        let session = &self.sessions[request.session];
        let (state, worker) = match request.state {
            State::Waiting | State::Free => (RequestState::Waiting, None),
            State::Parked => (RequestState::HeldBack, None),
            State::Postponed => (RequestState::Postponed, None),
            State::Held(worker, _) => (RequestState::Worker, self.workers.get(worker).map(|worker| worker.peer)),
            State::Detached => (RequestState::Answered, None),
            State::Settled => (RequestState::Ended, None),
        };
        RequestInfo {
            key: RequestKey { slot, generation: request.generation },
            state,
            number: request.number,
            since: request.since,
            expires: Some(request.expires).filter(|expires| *expires != NEVER),
            attempts: request.attempt,
            bytes: request.body.length(),
            first: first_bytes(&request.body, FIRST_BYTES),
            is_journalled: request.journal_id != 0,
            is_letter: session.is_dead_letter(),
            client: self.tenants.at(session.tenant).tenant.clone(),
            peer: session.peer,
            worker,
        }
    }

    /// Ends a request of a service, whose client gets an outcome. A worker that has it is asked to cancel it. A dead letter is removed.
    pub fn end_request(&mut self, now: Millis, service: &[u8], key: RequestKey) -> Result<(), NotEnded> {
        let service: Option<ServiceKey> = self.services.find_by_name(service);
        let request = self.requests.find(key.slot, key.generation).filter(|request| Some(request.service) == service);
        match request.ok_or(NotEnded::Gone)?.state {
            State::Settled | State::Detached => Err(NotEnded::Over),
            _ => {
                self.end_by_operator(now, key.slot, [ENDED, ENDED_LATER]);
                Ok(())
            }
        }
    }

    /// Ends a request, for a reason if it was never begun, and another one if it may have been. Doesn't count as a failure.
    pub(super) fn end_by_operator(&mut self, now: Millis, slot: u32, reasons: [&'static str; 2]) {
        self.withdraw(now, slot);
        debug_assert_eq!(self.requests.at(slot).state, State::Detached);
        self.counters.purged += 1;
        if self.is_dead_letter(slot) {
            return self.forget(slot);
        }
        let [never, perhaps] = reasons;
        let reason = if self.requests.at(slot).attempt == 0 { never } else { perhaps };
        let key = self.requests.at(slot).service;
        let before = (self.counters.failed, self.services.at(key).counters);
        self.settle(slot, Status::CANCELLED, Body::from(reason).into());
        self.counters.failed = before.0;
        // It may have gone with its last request.
        if let Some(service) = self.services.get_mut(key) {
            service.counters = before.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_two_numbers() {
        let key = RequestKey { slot: 12, generation: 3 };
        assert_eq!(key.to_string().parse(), Ok(key));
        for wrong in ["", "1", "1.", ".1", "1.2.3", "+1.2", "1.4294967296", "a.b"] {
            assert_eq!(wrong.parse::<RequestKey>(), Err(NoRequestKey), "{wrong}");
        }
    }
}
