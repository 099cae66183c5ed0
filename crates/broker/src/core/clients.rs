//! Events from clients.

use super::admission::{Refusal, TOO_MANY_SERVICES};
use super::requests::{State, envelope_bytes};
use super::sequence_map::RangeCursor;
use super::service::Place;
use super::session::{GAP_BYTES, Session};
use super::settings::{Millis, NEVER};
use super::tenants::NOBODY;
use super::{Action, Core, Peer, Role, ServiceKey, SessionKey, StockEnvelope};
use bytes::Bytes;
use towpath_requests::body::{Body, IncomingBody, RequestChecksum};
use towpath_requests::numbered::{ClientId, Sent, Status};

/// Gaps between confirmed numbers that one client may have. More than the requests that it may have here, since it may hold more
/// itself: otherwise it would be disconnected over and over.
const GAPS_MAX: usize = 262_144;

/// The one service by which all built-in ones are counted. Otherwise requests for `mmi.1`, `mmi.2` and so on would use up the
/// services.
const BUILT_IN: &[u8] = b"mmi.";

/// Reason for a request whose outcome was dropped.
const DROPPED: &str = "it has ended, and its outcome was dropped while its client was away";
/// Refusal of the same before that is durable.
const BEING_DROPPED: Refusal = Refusal {
    status: Status::UNAVAILABLE,
    retry_ms: 100,
    reason: "its outcome is being dropped, which isn't in the journal yet",
};
/// Why a request is refused whose number is another one's.
const OTHER_CONTENT: &str =
    "this client has asked something else under this number: two clients have one id, or it was started again";

/// Why a request is refused whose number was confirmed.
const CONFIRMED: &str =
    "this client has had the outcome of this number: two clients have one id, or it was started again";

/// Properties of an accepted request, beside the request itself.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Claim {
    /// Attempts elsewhere, or before.
    pub attempts: u16,
    pub checksum: RequestChecksum,
}

impl Core {
    /// A numbered client introduces itself. All numbers below `first` are confirmed.
    pub fn client_hello(&mut self, now: Millis, peer: Peer, client: ClientId, first: u64) {
        match self.roles.get(peer) {
            Role::None => {}
            Role::Client(_) => return self.disconnect(now, peer, "a second HELLO on one connection"),
            Role::Worker(_) => return self.disconnect(now, peer, "a worker can't be a client too"),
        }
        let key = match self.sessions.find(client) {
            Some(key) => key,
            None => self.sessions.insert(Session::new(Some(client), None)),
        };
        self.set_tenant(key, self.tenants.of_peer(peer));
        if self.sessions[key].peer.is_none() {
            self.count_away(key, false);
        }
        let session = &mut self.sessions[key];
        let former = session.peer.replace(peer);
        session.connections = session.connections.wrapping_add(1).max(1);
        session.blocked = false;
        session.one_reply = false;
        session.is_leaving = false;
        if former.is_none() && !session.is_stored {
            self.replies.absent_bytes -= session.replies.unconfirmed();
        }
        if let Some(former) = former {
            self.roles.set(former, Role::None);
            self.forget_pending_outcomes(key);
            self.actions
                .push(Action::Disconnect { peer: former, reason: "a new connection of the same client took over" });
        }
        self.roles.set(peer, Role::Client(key));
        self.actions.push(Action::Welcome { peer });
        self.forget_range(now, key, 0, first);
        let session = &mut self.sessions[key];
        let gaps = session.gaps();
        session.confirmed.insert_below(first);
        session.dropped.remove(0, first);
        session.highest = session.highest.max(first.saturating_sub(1));
        self.update_gap_bytes(key, gaps);
        self.dropped_confirmed(key);
        self.unpark(now, key);
    }

    /// A numbered client's request, possibly a repeated one. `ttl_ms`: milliseconds until it expires; 0: the broker's default. `sent`: how it
    /// came, or just whether it needn't be journalled.
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    #[inline]
    pub fn request<'a>(
        &mut self,
        now: Millis,
        peer: Peer,
        number: u64,
        ttl_ms: u32,
        sent: impl Into<Sent>,
        service: &[u8],
        body: impl Into<IncomingBody<'a>>,
    ) {
        let (Sent { volatile, resent }, body) = (sent.into(), body.into());
        let Some(key) = self.numbered_session(peer) else {
            return self.disconnect(now, peer, "a request before HELLO");
        };
        let checksum = body.request_checksum(service);
        if self.is_duplicate(key, number, peer, Some(checksum)) {
            return;
        }
        // Built-in services answer at once, and after a restart nobody would.
        let journalled = self.settings.journal && !volatile && !self.answers_for(service);
        let space = self.admit(self.sessions[key].tenant, Some(key), service, body.memory_bytes(), journalled);
        if let Err(Refusal { status, retry_ms, reason }) = space {
            self.note_refusal(now, self.sessions[key].tenant, status, reason);
            self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
            self.leave_when_done(peer);
            return;
        }
        let ttl_ms = match ttl_ms {
            0 => self.settings.ttl_ms,
            ttl_ms => Millis::from(ttl_ms).min(self.settings.ttl_max_ms),
        };
        self.accept(
            now,
            key,
            number,
            ttl_ms,
            journalled,
            Claim { attempts: u16::from(resent), checksum },
            service,
            body,
            None,
        );
    }

    /// Whether a number is a repeated one, accepted or confirmed before. If so, sends its state to the client again, or refuses a request that
    /// isn't the one of that number: two clients have one id.
    #[inline]
    pub(super) fn is_duplicate(
        &mut self,
        key: SessionKey,
        number: u64,
        peer: Peer,
        checksum: Option<RequestChecksum>,
    ) -> bool {
        let session = &self.sessions[key];
        if number > session.highest {
            return false;
        }
        if let Some(slot) = session.requests.get(number) {
            let known = self.requests.at(slot).checksum;
            if checksum.is_some_and(|checksum| checksum.contradicts(known)) {
                self.refuse_conflict(peer, number, OTHER_CONTENT);
            } else {
                self.counters.duplicates += 1;
                self.resend_outcome(slot, peer);
            }
            return true;
        }
        if session.dropped.contains(number) {
            self.counters.duplicates += 1;
            // A broker that recovers without the record of that would execute it again.
            if session.dropped_by > self.durability.durable() {
                let Refusal { status, retry_ms, reason } = BEING_DROPPED;
                self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
                return true;
            }
            let (status, body) = (Status::LOST, Body::from(DROPPED));
            self.actions.push(Action::Reply { peer, number, status, part: None, body });
            return true;
        }
        let is_confirmed = session.confirmed.contains(number);
        if is_confirmed {
            self.refuse_conflict(peer, number, CONFIRMED);
        }
        is_confirmed
    }

    #[cold]
    fn refuse_conflict(&mut self, peer: Peer, number: u64, reason: &'static str) {
        self.counters.refused += 1;
        self.actions.push(Action::Refused { peer, number, status: Status::CONFLICT, retry_ms: 0, reason });
    }

    /// A stock client's session, added for a new connection. `None`: the connection has another role, and is disconnected.
    pub(super) fn stock_session(&mut self, now: Millis, peer: Peer) -> Option<SessionKey> {
        let why = match self.roles.get(peer) {
            Role::Client(key) if self.sessions[key].client.is_none() => return Some(key),
            Role::None => {
                let key = self.sessions.insert(Session::new(None, Some(peer)));
                self.set_tenant(key, self.tenants.of_peer(peer));
                self.roles.set(peer, Role::Client(key));
                return Some(key);
            }
            Role::Client(_) => "a numbered client can't be a stock one too",
            Role::Worker(_) => "a worker can't be a client too",
        };
        self.disconnect(now, peer, why);
        None
    }

    /// A stock client's request. The reply is dropped if the connection ends before it. `one_reply`: the client knows no parts.
    pub fn stock_request(
        &mut self,
        now: Millis,
        peer: Peer,
        one_reply: bool,
        envelope: StockEnvelope,
        service: &[u8],
        body: Body,
    ) {
        let bytes = body.memory_bytes() + envelope_bytes(&envelope);
        if self.used().1 + bytes > self.settings.bytes_max + self.settings.late_bytes_max() {
            let (status, reason) = (Status::UNAVAILABLE, "the broker has all that it can hold");
            self.stock_refuse(now, peer, envelope, service, status, reason);
            // Everything that it sends now would be refused as well.
            if let Role::Client(key) = self.roles.get(peer) {
                self.pause_client(key, Bytes::copy_from_slice(service));
            }
            return;
        }
        // Of a stopping broker, stock clients that were connected before aren't read any more.
        if let Some(reason) = self.refuses_all(service) {
            return self.stock_refuse(now, peer, envelope, service, Status::UNAVAILABLE, reason);
        }
        let Some(key) = self.stock_session(now, peer) else { return };
        let session = &mut self.sessions[key];
        session.one_reply = one_reply;
        if session.blocked && self.answers_for(service) {
            // The answers would pile up.
            let (status, reason) = (Status::UNAVAILABLE, "replies are queued; read them before you ask for more");
            return self.stock_refuse(now, peer, envelope, service, status, reason);
        }
        if self.exceeds_services(self.sessions[key].tenant, service) {
            return self.stock_refuse(now, peer, envelope, service, Status::UNAVAILABLE, TOO_MANY_SERVICES);
        }
        let session = &mut self.sessions[key];
        let number = session.next_number;
        session.next_number += 1;
        let ttl_ms = self.settings.ttl_ms;
        // A stock client can't be asked to retry. Instead it isn't read before the next request. Each client may exceed the limit
        // by one request, and all of them together by `late_bytes_max`.
        let service =
            self.accept(now, key, number, ttl_ms, false, Claim::default(), service, IncomingBody::Body(body), envelope);
        if !self.is_below_limits(key, Some(service), 1, 1) {
            self.pause_client(key, self.services.at(service).name.clone());
        }
    }

    #[inline]
    pub(super) fn numbered_session(&self, peer: Peer) -> Option<SessionKey> {
        match self.roles.get(peer) {
            Role::Client(key) if self.sessions[key].client.is_some() => Some(key),
            _ => None,
        }
    }

    /// Takes a request.
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    #[inline]
    pub(super) fn accept(
        &mut self,
        now: Millis,
        session: SessionKey,
        number: u64,
        ttl_ms: Millis,
        journalled: bool,
        claim: Claim,
        service: &[u8],
        body: IncomingBody<'_>,
        envelope: StockEnvelope,
    ) -> ServiceKey {
        let asked = service;
        let is_built_in = self.answers_for(asked);
        let service = match is_built_in {
            true => self.find_or_add_service(NOBODY, BUILT_IN),
            false => self.find_or_add_service(self.sessions[session].tenant, asked),
        };
        let expires = now.checked_add(ttl_ms).unwrap_or(NEVER);
        self.deadlines.expires_at(expires);
        let slot = self.requests.insert(session, number, service, expires, body);
        let request = self.requests.at_mut(slot);
        if envelope.is_some() {
            request.extra_mut().envelope = envelope;
        }
        let is_stock = self.sessions[session].client.is_none();
        // The reply names the service as the client did: a built-in one, or an alias.
        if is_stock && self.services.at(service).name != asked {
            request.extra_mut().asked_service = Some(Bytes::copy_from_slice(asked));
        }
        let bytes = request.bytes();
        self.add_request(session, number, slot, bytes);
        let its = self.services.at_mut(service);
        its.live += 1;
        its.counters.accepted += 1;
        let request = self.requests.at_mut(slot);
        request.set_purges_before(its.purges);
        request.since = now;
        (request.attempt, request.uncounted, request.checksum) = (claim.attempts, claim.attempts, claim.checksum);
        self.counters.accepted += 1;
        if journalled {
            self.journal_accepted(slot);
        }
        if is_built_in {
            self.requests.at_mut(slot).state = State::Detached;
            let token = self.token_of(slot);
            let service = Bytes::copy_from_slice(asked);
            self.actions.push(Action::BuiltIn { token, service, body: self.requests.at(slot).body.clone() });
        } else {
            self.enqueue(slot, Place::Back);
            self.dispatch(now, service);
        }
        service
    }

    /// Adds a request of this many bytes to its session.
    #[inline]
    pub(super) fn add_request(&mut self, key: SessionKey, number: u64, slot: u32, bytes: usize) {
        let session = &mut self.sessions[key];
        session.requests.insert(number, slot);
        session.highest = session.highest.max(number);
        self.tenants.at_mut(session.tenant).requests += 1;
        self.services.at_mut(self.requests.at(slot).service).change_bytes(0, bytes);
        self.change_bytes(key, 0, bytes);
        self.add_fragile(key);
    }

    /// A numbered client confirms outcomes.
    #[inline]
    pub fn confirm(&mut self, now: Millis, peer: Peer, first: u64, count: u32) {
        let Some(key) = self.numbered_session(peer) else {
            return self.disconnect(now, peer, "CONFIRM before HELLO");
        };
        if count == 0 {
            return self.unpark(now, key);
        }
        let end = first.saturating_add(u64::from(count));
        let before = self.bytes;
        self.forget_range(now, key, first, end);
        let session = &mut self.sessions[key];
        let gaps = session.gaps();
        session.confirmed.insert(first, end);
        session.dropped.remove(first, end);
        session.highest = session.highest.max(end.saturating_sub(1));
        self.update_gap_bytes(key, gaps);
        self.dropped_confirmed(key);
        // Confirming what it asked for frees memory.
        if self.bytes > before && self.bytes_left_beyond_requests() == 0 {
            return self.disconnect(now, peer, "no memory for more confirmed numbers that were never requested");
        }
        let session = &self.sessions[key];
        if session.confirmed.gaps() > self.settings.client_requests_max.max(GAPS_MAX) {
            return self.disconnect(now, peer, "too many gaps between confirmed numbers");
        }
        self.unpark(now, key);
    }

    /// Updates the sums of bytes after the gaps between a client's numbers have changed. `before`: how many there were.
    pub(super) fn update_gap_bytes(&mut self, key: SessionKey, before: usize) {
        let after = self.sessions[key].gaps();
        self.change_bytes(key, before * GAP_BYTES, after * GAP_BYTES);
    }

    /// Forgets the requests in a range of numbers: the client has their outcomes or doesn't want them.
    #[inline]
    fn forget_range(&mut self, now: Millis, key: SessionKey, first: u64, end: u64) {
        let mut cursor = RangeCursor::new(first, end);
        while let Some(slot) = self.sessions[key].requests.remove_next(&mut cursor) {
            match self.requests.at(slot).state {
                State::Settled => {
                    self.sessions[key].replies.confirmed(now);
                }
                // A worker that had it gets another one, which may be this client's.
                _ => self.withdraw(now, slot),
            }
            self.free_request(slot);
        }
    }

    /// A numbered client cancels a request. Its outcome says so.
    pub fn cancel(&mut self, now: Millis, peer: Peer, number: u64) {
        let Some(key) = self.numbered_session(peer) else {
            return self.disconnect(now, peer, "CANCEL before HELLO");
        };
        let Some(slot) = self.sessions[key].requests.get(number) else { return };
        if self.requests.at(slot).state != State::Settled {
            self.withdraw(now, slot);
            self.settle(slot, Status::CANCELLED, Body::from("cancelled by its client").into());
        }
    }

    /// A client's connection has ended.
    pub(super) fn client_gone(&mut self, now: Millis, key: SessionKey) {
        let session = &mut self.sessions[key];
        session.peer = None;
        session.absent_since = now;
        session.next_drop = 0;
        if !session.is_stored {
            self.replies.absent_bytes += session.replies.unconfirmed();
        }
        session.blocked = false;
        // If nothing journalled is left, it is kept as long as any other.
        session.is_journalled = session.is_journalled
            && (session.dropped_id != 0 || session.requests.slots().any(|slot| self.requests.at(slot).journal_id != 0));
        let (is_numbered, is_over) = (session.client.is_some(), session.client.is_none() || session.is_empty());
        if is_numbered {
            self.count_away(key, true);
        }
        self.forget_pending_outcomes(key);
        if is_over {
            self.remove_session(now, key);
        } else {
            self.unpark(now, key);
        }
    }

    /// Forgets a client. Stock workers finish what they have of its requests; the replies are dropped.
    pub(super) fn remove_session(&mut self, now: Millis, key: SessionKey) {
        let mut slots: Vec<u32> = self.sessions[key].requests.slots().collect();
        // Waiting requests first: a worker that becomes free must not get one of these.
        slots.sort_unstable_by_key(|&slot| {
            let request = self.requests.at(slot);
            (matches!(request.state, State::Held(..)), request.number)
        });
        for slot in slots {
            if self.requests.at(slot).state != State::Settled {
                self.counters.given_up += 1;
                self.withdraw(now, slot);
            }
            self.forget(slot);
        }
        let session = self.sessions.remove(key);
        self.forget_mark(session.dropped_id);
        if session.paused {
            self.paused.remove(key);
        }
        // Somebody connected under the name of a stored request that the journal rejected.
        if let Some(peer) = session.peer {
            self.roles.set(peer, Role::None);
            self.actions
                .push(Action::Disconnect { peer, reason: "the journal couldn't keep the stored request of this name" });
        }
        // Gaps between confirmed numbers.
        self.bytes -= session.bytes;
        self.tenants.at_mut(session.tenant).bytes -= session.bytes;
        self.tenants.release(session.tenant);
        self.paused.memory_freed |= session.bytes > 0;
    }
}
