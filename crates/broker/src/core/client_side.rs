//! What clients say.

use super::numbers::Walk;
use super::requests::State;
use super::session::Session;
use super::settings::{Millis, NEVER};
use super::{Action, Core, Peer, Role, ServiceKey, SessionKey, StockEnvelope};
use crate::body::{Arriving, Body};
use crate::wire::{ClientId, Status};
use bytes::Bytes;

/// Gaps between confirmed numbers that are remembered for one client. It may hold more requests than it may have here, so the
/// bound on these is none on the gaps: it would be disconnected over and over.
const GAPS_MAX: usize = 262_144;

/// Why a request is not taken, and when it would be worth another try.
pub(super) struct Refusal {
    status: Status,
    retry_ms: u32,
    reason: &'static str,
}

const fn not_now(retry_ms: u32, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { status: Status::UNAVAILABLE, retry_ms, reason })
}

/// Whether the broker itself answers for a service: Majordomo's `mmi.*` (RFC 8), and Titanic's (RFC 9).
pub fn is_built_in(service: &[u8]) -> bool {
    service.starts_with(b"mmi.") || service.starts_with(b"titanic.")
}

impl Core {
    /// A numbered client says who it is, and which of its numbers are settled.
    pub fn client_hello(&mut self, now: Millis, peer: Peer, client: ClientId, first: u64) {
        match self.role(peer) {
            Role::None => {}
            Role::Client(_) => return self.disconnect(now, peer, "a client says who it is once a connection"),
            Role::Worker(_) => return self.disconnect(now, peer, "a worker can't be a client too"),
        }
        let key = match self.session_by_client.get(&client) {
            Some(&key) => key,
            None => {
                let session = Session::new(Some(client), None);
                let key = self.sessions.insert(session) as SessionKey;
                self.session_by_client.insert(client, key);
                key
            }
        };
        let session = &mut self.sessions[key as usize];
        let former = session.peer.replace(peer);
        session.blocked = false;
        session.one_reply = false;
        if let Some(former) = former {
            self.set_role(former, Role::None);
            self.actions
                .push(Action::Disconnect { peer: former, reason: "a new connection of the same client took over" });
        }
        self.set_role(peer, Role::Client(key));
        self.actions.push(Action::Welcome { peer });
        self.drop_interest(now, key, 0, first);
        let session = &mut self.sessions[key as usize];
        session.confirmed.insert_below(first);
        session.highest = session.highest.max(first.saturating_sub(1));
        self.unpark(now, key);
    }

    /// A numbered client's request, or one once more. `ttl_ms` of 0 is the broker's default.
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    #[inline]
    pub fn request<'a>(
        &mut self,
        now: Millis,
        peer: Peer,
        number: u64,
        ttl_ms: u32,
        volatile: bool,
        service: &[u8],
        body: impl Into<Arriving<'a>>,
    ) {
        let body = body.into();
        let Some(key) = self.numbered(peer) else {
            return self.disconnect(now, peer, "a client says who it is before its first request");
        };
        let session = &self.sessions[key as usize];
        if number <= session.highest {
            if let Some(slot) = session.requests.get(number) {
                self.counters.duplicates += 1;
                return self.tell_again(slot, peer);
            }
            if session.confirmed.contains(number) {
                self.counters.duplicates += 1;
                return;
            }
        }
        if let Err(Refusal { status, retry_ms, reason }) = self.room_for(Some(key), service, body.memory_bytes()) {
            self.counters.refused += 1;
            self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
            return;
        }
        let ttl_ms = if ttl_ms == 0 { self.settings.ttl_ms } else { Millis::from(ttl_ms) };
        // The broker answers for its own services at once, and after a restart nobody else would.
        let journalled = self.settings.journal && !volatile && !is_built_in(service);
        self.take(now, key, number, ttl_ms, journalled, service, body, None);
    }

    /// A numbered client's request couldn't be taken in, for want of room that may be there later.
    pub fn refuse(&mut self, peer: Peer, number: u64, reason: &'static str) {
        self.counters.refused += 1;
        let (status, retry_ms) = (Status::NO_STORAGE, 1_000);
        self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
    }

    /// A request of a stock client. It gets its reply as long as its connection lasts. `one_reply`: it knows no parts.
    pub fn stock_request(
        &mut self,
        now: Millis,
        peer: Peer,
        one_reply: bool,
        envelope: StockEnvelope,
        service: &[u8],
        body: Body,
    ) {
        let key = match self.role(peer) {
            Role::Client(key) if self.sessions[key as usize].client.is_none() => key,
            Role::Client(_) => return self.disconnect(now, peer, "a numbered client can't be a stock one too"),
            Role::Worker(_) => return self.disconnect(now, peer, "a worker can't be a client too"),
            Role::None => {
                let session = Session::new(None, Some(peer));
                let key = self.sessions.insert(session) as SessionKey;
                self.set_role(peer, Role::Client(key));
                key
            }
        };
        if self.bytes + body.memory_bytes() > self.settings.bytes_max + self.settings.unfinished_bytes_max() {
            self.counters.refused += 1;
            let (service, body) = (Bytes::copy_from_slice(service), Body::from("the broker has all that it can hold"));
            let status = Status::UNAVAILABLE;
            self.actions.push(Action::StockReply { peer, envelope, service, status, partial: false, body });
            return;
        }
        let session = &mut self.sessions[key as usize];
        session.one_reply = one_reply;
        let number = session.next_number;
        session.next_number += 1;
        let ttl_ms = self.settings.ttl_ms;
        // It isn't told to come again, as numbered clients are. What is done is to stop reading before the next one; many clients
        // may each have one beyond the bound, but not more together than the broker was prepared to hold while they came.
        let service = self.take(now, key, number, ttl_ms, false, service, Arriving::Body(body), envelope);
        if !self.has_room(key, service, 1, 1) {
            self.pause(key, service);
        }
    }

    #[inline]
    fn numbered(&self, peer: Peer) -> Option<SessionKey> {
        match self.role(peer) {
            Role::Client(key) if self.sessions[key as usize].client.is_some() => Some(key),
            _ => None,
        }
    }

    /// Whether a request of so many octets is taken; `None`: of a client that isn't there yet.
    pub(super) fn room_for(&mut self, key: Option<SessionKey>, service: &[u8], bytes: usize) -> Result<(), Refusal> {
        let settings = &self.settings;
        if bytes > settings.client_bytes_max.min(settings.bytes_max).min(settings.service_bytes_max) {
            let reason = "larger than all that the broker holds for a client or a service";
            return Err(Refusal { status: Status::TOO_LARGE, retry_ms: 0, reason });
        }
        if self.stopping {
            return not_now(1_000, "the broker is stopping");
        }
        if self.storage_failed {
            let reason = "the journal can't be written; see the broker's log";
            return Err(Refusal { status: Status::NO_STORAGE, retry_ms: 1_000, reason });
        }
        if let Some(session) = key.map(|key| &self.sessions[key as usize])
            && (session.requests.len() >= settings.client_requests_max
                || session.bytes + bytes > settings.client_bytes_max)
        {
            return not_now(50, "this client has too much outstanding; confirm replies, or wait");
        }
        if self.bytes + bytes > settings.bytes_max || self.requests.len() >= settings.requests_max {
            return not_now(200, "the broker has all that it can hold");
        }
        match self.services.find(service).map(|key| self.services.at(key)) {
            None if self.services.len() >= settings.asked_services_max() && !is_built_in(service) => {
                not_now(1_000, "the broker has as many services as it can hold")
            }
            Some(service)
                if service.waiting.len >= settings.service_requests_max
                    || service.waiting_bytes + bytes > settings.service_bytes_max =>
            {
                not_now(200, "the service's queue is full")
            }
            _ => Ok(()),
        }
    }

    /// Whether a stock client may go on; with divisors over 1, whether there is so much more room in what is its own and in what
    /// is everybody's.
    fn has_room(&self, key: SessionKey, service: ServiceKey, own: usize, shared: usize) -> bool {
        let settings = &self.settings;
        let session = &self.sessions[key as usize];
        // A bound of one request has no half.
        let below = |length: usize, most: usize, divisor: usize| length < (most / divisor).max(1);
        below(session.requests.len(), settings.client_requests_max, own)
            && below(session.bytes, settings.client_bytes_max, own)
            && below(self.bytes, settings.bytes_max, shared)
            && below(self.requests.len(), settings.requests_max, shared)
            && self.services.get(service).is_none_or(|service| {
                below(service.waiting.len, settings.service_requests_max, shared)
                    && below(service.waiting_bytes, settings.service_bytes_max, shared)
            })
    }

    fn pause(&mut self, key: SessionKey, service: ServiceKey) {
        let session = &mut self.sessions[key as usize];
        if let (false, Some(peer)) = (session.paused, session.peer) {
            session.paused = true;
            self.paused.push_back((key, service));
            self.actions.push(Action::Pause { peer, paused: true });
        }
    }

    /// Lets stock clients go on whose own queues have become half as long, those first that have waited longest: all of them if
    /// what is everybody's is half empty too, or else one a turn as long as there is room at all. Others, such as numbered
    /// clients that are away from their outcomes, may keep more than half of it for hours.
    pub(super) fn resume_clients(&mut self) {
        if !std::mem::take(&mut self.relieved) || self.paused.is_empty() || self.stopping {
            return;
        }
        let mut resumed = 0;
        for _ in 0..self.paused.len() {
            let Some((key, service)) = self.paused.pop_front() else { break };
            // The key may be another client's by now, which is then not paused.
            let Some(peer) = self.sessions.get(key as usize).filter(|s| s.paused).and_then(|s| s.peer) else {
                continue;
            };
            let shared = if resumed == 0 { 1 } else { 2 };
            if self.has_room(key, service, 2, shared) {
                resumed += 1;
                self.sessions[key as usize].paused = false;
                self.actions.push(Action::Pause { peer, paused: false });
            } else {
                self.paused.push_back((key, service));
            }
        }
        // The one may have nothing more to ask, and leave the room to the next.
        self.relieved = resumed > 0 && !self.paused.is_empty();
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    #[inline]
    pub(super) fn take(
        &mut self,
        now: Millis,
        session: SessionKey,
        number: u64,
        ttl_ms: Millis,
        journalled: bool,
        service: &[u8],
        body: Arriving<'_>,
        envelope: StockEnvelope,
    ) -> ServiceKey {
        let service = self.services.find_or_add(service);
        let expires = now.checked_add(ttl_ms).unwrap_or(NEVER);
        self.next_expiry = self.next_expiry.min(expires);
        let slot = self.requests.insert(session, number, service, expires, body);
        let request = self.requests.at_mut(slot);
        if envelope.is_some() {
            request.extra_mut().envelope = envelope;
        }
        let bytes = request.bytes();
        self.bytes += bytes;
        let state = &mut self.sessions[session as usize];
        state.bytes += bytes;
        state.requests.insert(number, slot);
        state.highest = state.highest.max(number);
        self.services.at_mut(service).live += 1;
        self.counters.accepted += 1;
        if journalled {
            self.journal_accepted(slot);
        }
        if is_built_in(&self.services.at(service).name) {
            self.requests.at_mut(slot).state = State::BuiltIn;
            let token = self.token_of(slot);
            let service = self.services.at(service).name.clone();
            self.actions.push(Action::BuiltIn { token, service, body: self.requests.at(slot).body.clone() });
        } else {
            self.enqueue(slot, false);
            self.dispatch(now, service);
        }
        service
    }

    /// Outcomes have arrived at a numbered client.
    #[inline]
    pub fn confirm(&mut self, now: Millis, peer: Peer, first: u64, count: u32) {
        let Some(key) = self.numbered(peer) else {
            return self.disconnect(now, peer, "a client says who it is before it confirms anything");
        };
        let end = first.saturating_add(u64::from(count));
        self.drop_interest(now, key, first, end);
        let session = &mut self.sessions[key as usize];
        session.confirmed.insert(first, end);
        session.highest = session.highest.max(end.saturating_sub(1));
        if session.confirmed.gaps() > self.settings.client_requests_max.max(GAPS_MAX) {
            return self.disconnect(now, peer, "a client numbers its requests without gaps");
        }
        self.unpark(now, key);
    }

    /// A client doesn't want some outcomes any more, or has them.
    #[inline]
    fn drop_interest(&mut self, now: Millis, key: SessionKey, first: u64, end: u64) {
        let mut walk = Walk::new(first, end);
        while let Some(slot) = self.sessions[key as usize].requests.take_next(&mut walk) {
            if self.requests.at(slot).state != State::Settled {
                self.withdraw(now, slot);
            }
            self.forget_unlisted(slot);
        }
    }

    /// A numbered client cancels a request. It has an outcome all the same.
    pub fn cancel(&mut self, now: Millis, peer: Peer, number: u64) {
        let Some(key) = self.numbered(peer) else {
            return self.disconnect(now, peer, "a client says who it is before it cancels anything");
        };
        let Some(slot) = self.sessions[key as usize].requests.get(number) else { return };
        if self.requests.at(slot).state != State::Settled {
            self.withdraw(now, slot);
            self.settle(slot, Status::CANCELLED, Body::from("cancelled by its client").into());
        }
    }

    /// A client's connection is gone.
    pub(super) fn client_gone(&mut self, now: Millis, key: SessionKey) {
        let session = &mut self.sessions[key as usize];
        session.peer = None;
        session.absent_since = now;
        session.blocked = false;
        if session.client.is_none() || session.requests.is_empty() {
            self.remove_session(now, key);
        } else {
            self.unpark(now, key);
        }
    }

    /// Forgets a client. What stock workers have of its requests they finish, and nobody hears of it.
    pub(super) fn remove_session(&mut self, now: Millis, key: SessionKey) {
        let mut slots: Vec<u32> = self.sessions[key as usize].requests.slots().collect();
        // First what waits: a worker that becomes free must not be given more of this client's.
        slots.sort_unstable_by_key(|&slot| {
            let request = self.requests.at(slot);
            (matches!(request.state, State::Held(_)), request.number)
        });
        for slot in slots {
            if self.requests.at(slot).state != State::Settled {
                self.counters.given_up += 1;
                self.withdraw(now, slot);
            }
            self.forget(slot);
        }
        let session = self.sessions.remove(key as usize);
        if let Some(client) = session.client {
            self.session_by_client.remove(&client);
        }
    }
}
