//! The memory that replies may take.
//!
//! A request that doesn't fit is refused. A reply can't be: the work is done, and numbered clients are promised that it is kept until
//! they confirm it. So there are three limits, each for when the one before it wasn't enough:
//!
//! 1. Requests wait in their queue while the replies to dispatched requests may need all the memory that is left. Each reply is expected
//!    to need as much beyond its request as recent ones of its service did.
//! 2. A client's requests are parked while it has many unconfirmed replies here.
//! 3. A reply that doesn't fit all the same is discarded, and its request ends with a status that says so. A quarter of the memory is
//!    reserved for clients that confirm.

use super::outcomes::{OutcomeSize, Outcomes};
use super::requests::State;
use super::settings::{Millis, Settings};
use super::{Action, Core, ServiceKey, SessionKey};
use std::collections::{HashMap, VecDeque};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// Memory that every outcome may have: the broker's own reasons are longer than a few words.
const REASON_BYTES: usize = 64;

/// Reason for a discarded reply. Short enough to need no memory beside the request's.
const NO_SPACE: &str = "executed, but no space for the reply";

/// The fraction (1/64) by which the expected size approaches a smaller reply.
const DECAY: usize = 64;

/// A client that has confirmed nothing for so long, although it could, doesn't take its replies.
const CONFIRMS_WITHIN_MS: Millis = 10_000;

/// Shorter for a client that has never confirmed anything.
const FIRST_CONFIRM_WITHIN_MS: Millis = 1_000;

/// Services that are looked at in one tick when they wait for memory. There may be very many.
const SERVICES_PER_TICK: usize = 16;

/// Memory that a reply is expected to need beyond its request's. Whole kibibytes, so that it fits into the request's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpectedBytes(u16);

impl ExpectedBytes {
    const UNIT: usize = 1024;
    const NOTHING: ExpectedBytes = ExpectedBytes(0);

    fn of(bytes: usize) -> ExpectedBytes {
        ExpectedBytes(u16::try_from(bytes / Self::UNIT).unwrap_or(u16::MAX))
    }

    fn bytes(self) -> usize {
        usize::from(self.0) * Self::UNIT
    }
}

/// Replies of one service.
#[derive(Debug, Default)]
pub(super) struct ServiceReplies {
    /// Bytes that recent ones needed: the largest, decaying. `None`: there was none.
    recent: Option<usize>,
    /// Bytes expected for its dispatched requests.
    expected: usize,
    /// Its requests wait for memory: it is in [`ReplyBudget::waiting`].
    waits_for_memory: bool,
}

impl ServiceReplies {
    /// Learns from a reply of this many bytes.
    #[inline]
    pub fn observe(&mut self, bytes: usize) {
        let recent = self.recent.unwrap_or(0);
        self.recent = Some(if bytes >= recent { bytes } else { recent - (recent - bytes).div_ceil(DECAY) });
    }

    #[cfg(test)]
    pub fn waits_for_memory(&self) -> bool {
        self.waits_for_memory
    }
}

/// Replies to one client.
#[derive(Debug, Default)]
pub(super) struct ClientReplies {
    /// Its unconfirmed outcomes.
    pub kept: Outcomes,
    /// Bytes expected for its dispatched requests.
    expected: usize,
    /// When it last confirmed something, or last had nothing to confirm.
    idle_since: Millis,
    has_confirmed: bool,
}

impl ClientReplies {
    /// Bytes of its unconfirmed outcomes.
    #[inline]
    pub fn unconfirmed(&self) -> usize {
        self.kept.bytes
    }

    /// A worker replied to one of its requests.
    #[inline]
    pub fn arrived(&mut self, now: Millis) {
        if self.kept.count == 0 {
            self.idle_since = now;
        }
    }

    /// The client has confirmed a reply.
    #[inline]
    pub fn confirmed(&mut self, now: Millis) {
        (self.idle_since, self.has_confirmed) = (now, true);
    }

    /// Whether it confirms its replies: it has done so, and not only long ago.
    fn is_confirming(&self, now: Millis) -> bool {
        self.has_confirmed && self.idle_ms(now) <= CONFIRMS_WITHIN_MS
    }

    /// Whether it hasn't had the time to confirm anything yet.
    fn is_new(&self, now: Millis) -> bool {
        !self.has_confirmed && self.idle_ms(now) <= FIRST_CONFIRM_WITHIN_MS
    }

    /// For how long it could have confirmed something and hasn't.
    fn idle_ms(&self, now: Millis) -> Millis {
        if self.kept.count == 0 { 0 } else { now.saturating_sub(self.idle_since) }
    }
}

/// Replies of all services to all clients, and what they may take.
#[derive(Debug)]
pub(super) struct ReplyBudget {
    /// Outcomes that aren't confirmed.
    kept: Outcomes,
    /// Outcomes of clients, without those of stored requests: requests of others are accepted beside them.
    of_clients: Outcomes,
    /// Bytes of those of clients that are absent.
    pub absent_bytes: usize,
    expected: usize,
    /// Services whose requests wait for memory, in the order of their turns.
    waiting: VecDeque<ServiceKey>,
    /// Bytes of memory of all requests and replies.
    bytes_max: usize,
    /// Bytes of replies to one client that confirms them.
    client_bytes_max: usize,
    /// Bytes of replies that every client may have, however much there is for others.
    client_bytes_min: usize,
    /// Size of the first reply of a service.
    first_reply_bytes: usize,
}

impl ReplyBudget {
    pub fn new(settings: &Settings) -> ReplyBudget {
        ReplyBudget {
            kept: Outcomes::default(),
            of_clients: Outcomes::default(),
            absent_bytes: 0,
            expected: 0,
            waiting: VecDeque::new(),
            bytes_max: settings.bytes_max,
            client_bytes_max: settings.client_bytes_max,
            client_bytes_min: settings.bytes_max / 2048,
            first_reply_bytes: settings.reply_bytes_expected,
        }
    }

    /// Bytes of the next reply of a service.
    #[inline]
    fn expected_size(&self, service: &ServiceReplies) -> usize {
        service.recent.unwrap_or(self.first_reply_bytes)
    }

    /// Whether a request must wait because there may be no memory for its reply. A service without dispatched requests may always have
    /// one. If so, the service gets a turn when there is some.
    #[inline]
    pub fn must_wait(&mut self, key: ServiceKey, service: &mut ServiceReplies, expected: ExpectedBytes) -> bool {
        if expected == ExpectedBytes::NOTHING {
            return false;
        }
        let left = self.bytes_max.saturating_sub(self.kept.bytes);
        let most = (self.bytes_max / 4 * 3).saturating_sub(self.kept.bytes).max(self.bytes_max / 4).min(left);
        if service.expected == 0 || self.expected + expected.bytes() <= most {
            return false;
        }
        if !std::mem::replace(&mut service.waits_for_memory, true) {
            self.waiting.push_back(key);
        }
        true
    }

    /// A request is dispatched.
    #[inline]
    fn expect(&mut self, service: &mut ServiceReplies, client: &mut ClientReplies, expected: ExpectedBytes) {
        self.expected += expected.bytes();
        service.expected += expected.bytes();
        client.expected += expected.bytes();
    }

    /// No worker has it any more.
    #[inline]
    fn unexpect(&mut self, service: &mut ServiceReplies, client: &mut ClientReplies, expected: ExpectedBytes) {
        self.expected -= expected.bytes();
        service.expected -= expected.bytes();
        client.expected -= expected.bytes();
    }

    /// Whether no more replies may be expected for a client, because memory is scarce and the client may not confirm them. Each client
    /// may have a few, or one.
    #[inline]
    pub fn expects_enough(&self, now: Millis, client: &ClientReplies, expected: ExpectedBytes) -> bool {
        if expected == ExpectedBytes::NOTHING || self.kept.bytes <= self.bytes_max / 2 {
            return false;
        }
        let bytes = client.kept.bytes + client.expected;
        bytes > 0 && bytes + expected.bytes() > self.client_bytes_min && !client.is_confirming(now)
    }

    /// Outcomes that are kept until they are confirmed.
    pub fn kept(&self) -> Outcomes {
        self.kept
    }

    /// The part of clients.
    #[inline]
    pub fn of_clients(&self) -> Outcomes {
        self.of_clients
    }

    /// An outcome is kept until it is confirmed. `is_stored`: until it is closed.
    #[inline]
    pub fn add_unconfirmed(&mut self, client: &mut ClientReplies, size: OutcomeSize, is_stored: bool) {
        self.kept.add(size);
        client.kept.add(size);
        if !is_stored {
            self.of_clients.add(size);
        }
    }

    #[inline]
    pub fn remove_unconfirmed(&mut self, client: &mut ClientReplies, size: OutcomeSize, is_stored: bool) {
        self.kept.remove(size);
        client.kept.remove(size);
        if !is_stored {
            self.of_clients.remove(size);
        }
    }

    /// Whether a client must confirm replies before more of its requests are dispatched. `divisor`: whether it still has more than that
    /// fraction of the limit.
    #[inline]
    pub fn is_held_back(&self, now: Millis, client: &ClientReplies, divisor: usize) -> bool {
        if client.kept.bytes <= self.client_bytes_min / divisor {
            return false;
        }
        let most = match client.is_confirming(now) {
            true => self.client_bytes_max,
            false => {
                let left = (self.bytes_max / 2).saturating_sub(self.kept.bytes);
                left.max(self.client_bytes_min).min(self.client_bytes_max)
            }
        };
        client.kept.bytes > most / divisor
    }

    /// Whether a reply of this many bytes fits, if it is kept until it is confirmed.
    fn fits(&self, now: Millis, client: &ClientReplies, bytes: usize) -> bool {
        let (all, most) = (self.kept.bytes + bytes, self.bytes_max);
        if all <= most / 4 * 3 {
            return true;
        }
        // The rest is for clients that confirm, or have nothing here to confirm. Some of it is for requests of others, as long as it isn't
        // known which clients confirm.
        let is_little = || client.kept.bytes + bytes <= 2 * self.client_bytes_min;
        let is_new = || client.is_new(now) && all <= most / 8 * 7;
        all <= most && (client.is_confirming(now) || client.kept.bytes == 0 || is_little() || is_new())
    }
}

impl Core {
    /// Bytes that the reply to a request is expected to need, if it is kept.
    #[inline]
    pub(super) fn expected_reply(&self, service: ServiceKey, slot: u32) -> ExpectedBytes {
        let size = self.replies.expected_size(&self.services.at(service).replies);
        // Mostly nothing, and the request needn't be looked at.
        if size < ExpectedBytes::UNIT {
            return ExpectedBytes::NOTHING;
        }
        let request = self.requests.at(slot);
        let bytes = size.saturating_sub(request.body.memory_bytes());
        if self.keeps_replies(request.session) { ExpectedBytes::of(bytes) } else { ExpectedBytes::NOTHING }
    }

    /// Whether outcomes are kept until the client confirms them.
    fn keeps_replies(&self, key: SessionKey) -> bool {
        let session = &self.sessions[key];
        session.client.is_some() && !session.is_dead_letter()
    }

    /// Notes a dispatched request whose reply is expected to have this many bytes.
    #[inline]
    pub(super) fn expect_reply(&mut self, slot: u32, expected: ExpectedBytes) {
        if expected != ExpectedBytes::NOTHING {
            let request = self.requests.at(slot);
            let service = &mut self.services.at_mut(request.service).replies;
            self.replies.expect(service, &mut self.sessions[request.session].replies, expected);
        }
    }

    /// No worker has it any more.
    #[inline]
    pub(super) fn unexpect_reply(&mut self, slot: u32, expected: ExpectedBytes) {
        if expected != ExpectedBytes::NOTHING {
            let request = self.requests.at(slot);
            let service = &mut self.services.at_mut(request.service).replies;
            self.replies.unexpect(service, &mut self.sessions[request.session].replies, expected);
        }
    }

    /// Whether no more of a client's requests are dispatched, because it is blocked or has to confirm replies first.
    #[inline]
    pub(super) fn is_held_back(&self, now: Millis, key: SessionKey, divisor: usize) -> bool {
        let session = &self.sessions[key];
        session.blocked || self.replies.is_held_back(now, &session.replies, divisor)
    }

    /// Dispatches requests that have waited for memory, as far as there is some now.
    pub(super) fn retry_waiting_services(&mut self, now: Millis) {
        let mut looks = SERVICES_PER_TICK;
        for _ in 0..self.replies.waiting.len() {
            let Some(key) = self.replies.waiting.pop_front() else { return };
            // It may be gone, or its key another service's.
            let Some(service) = self.services.get_mut(key).filter(|service| service.replies.waits_for_memory) else {
                continue;
            };
            service.replies.waits_for_memory = false;
            self.dispatch(now, key);
            looks -= 1;
            if looks == 0 {
                return;
            }
        }
    }

    /// Unparks requests of clients that are held back no longer: there may be more memory left than when something of theirs last changed.
    pub(super) fn check_held_back(&mut self, now: Millis) {
        let parked = self.sessions.iter().filter(|(_, session)| session.parked.len > 0 && !session.is_dead_letter());
        let parked: Vec<SessionKey> = parked.map(|(key, _)| key).collect();
        parked.into_iter().for_each(|key| self.unpark(now, key));
    }

    /// Whether a reply of this many bytes fits.
    #[inline]
    pub(super) fn reply_fits(&self, now: Millis, slot: u32, bytes: usize) -> bool {
        let request = self.requests.at(slot);
        bytes <= request.body.memory_bytes().max(REASON_BYTES)
            || !self.keeps_replies(request.session)
            || self.replies.fits(now, &self.sessions[request.session].replies, bytes)
    }

    /// Ends a request that is in no list, and whose reply doesn't fit.
    #[cold]
    pub(super) fn discard_reply(&mut self, slot: u32, bytes: usize) {
        let request = self.requests.at(slot);
        let (number, client) = (request.number, self.sessions[request.session].client);
        let service = self.services.at(request.service).name.clone();
        self.actions.push(Action::ReplyLost { client, number, service, bytes });
        self.settle(slot, Status::NO_STORAGE, Body::from(NO_SPACE).into());
    }

    /// Bytes of memory left for what can't be refused as a request is: half as much again as requests may have.
    pub(super) fn bytes_left_beyond_requests(&self) -> usize {
        self.settings.bytes_max.saturating_add(self.settings.bytes_max / 2).saturating_sub(self.used().1)
    }

    /// Part of [`Core::check`].
    pub(super) fn check_replies(&self) {
        let (mut of_services, mut of_sessions) = (HashMap::new(), HashMap::<_, (Outcomes, usize)>::new());
        let (mut kept, mut of_clients) = (Outcomes::default(), Outcomes::default());
        for (_, request) in self.requests.iter() {
            match request.state {
                State::Held(_, expected) => {
                    *of_services.entry(request.service).or_default() += expected.bytes();
                    of_sessions.entry(request.session).or_default().1 += expected.bytes();
                }
                State::Settled => {
                    let size = request.outcome_size();
                    of_sessions.entry(request.session).or_default().0.add(size);
                    kept.add(size);
                    if !self.sessions[request.session].is_stored {
                        of_clients.add(size);
                    }
                }
                _ => {}
            }
        }
        assert_eq!(of_services.values().sum::<usize>(), self.replies.expected);
        assert_eq!((kept, of_clients), (self.replies.kept, self.replies.of_clients));
        let absent = self.sessions.iter().filter(|(_, session)| session.peer.is_none() && !session.is_stored);
        assert_eq!(absent.map(|(_, session)| session.replies.kept.bytes).sum::<usize>(), self.replies.absent_bytes);
        for (key, service) in self.services.iter() {
            assert_eq!(of_services.get(&key).unwrap_or(&0), &service.replies.expected);
            assert!(!service.replies.waits_for_memory || self.replies.waiting.contains(&key));
        }
        for (key, session) in self.sessions.iter() {
            let its = of_sessions.get(&key).copied().unwrap_or_default();
            assert_eq!(its, (session.replies.kept, session.replies.expected));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget() -> ReplyBudget {
        let settings = Settings { bytes_max: 64 * MIB, client_bytes_max: 32 * MIB, ..Settings::default() };
        ReplyBudget::new(&settings)
    }

    #[test]
    fn expected_size_grows_at_once_and_decays() {
        let (budget, mut service) = (budget(), ServiceReplies::default());
        assert_eq!(budget.expected_size(&service), Settings::default().reply_bytes_expected);
        service.observe(64_000);
        assert_eq!(budget.expected_size(&service), 64_000);
        service.observe(0);
        assert_eq!(budget.expected_size(&service), 63_000);
        (0..2_000).for_each(|_| service.observe(10));
        assert_eq!(budget.expected_size(&service), 10);
    }

    #[test]
    fn a_service_without_dispatched_requests_never_waits() {
        let (mut budget, mut client) = (budget(), ClientReplies::default());
        let (mut busy, mut idle) = (ServiceReplies::default(), ServiceReplies::default());
        let expected = ExpectedBytes::of(MIB);
        while !budget.must_wait(0, &mut busy, expected) {
            budget.expect(&mut busy, &mut client, expected);
        }
        assert_eq!((budget.expected, &budget.waiting), (48 * MIB, &VecDeque::from([0])));
        assert!(budget.must_wait(0, &mut busy, expected) && budget.waiting.len() == 1);
        assert!(!budget.must_wait(1, &mut idle, expected));
        budget.unexpect(&mut busy, &mut client, expected);
        assert!(!budget.must_wait(0, &mut busy, expected));
    }

    fn add(budget: &mut ReplyBudget, client: &mut ClientReplies, bytes: usize) {
        budget.add_unconfirmed(client, OutcomeSize { bytes, large_bytes: 0 }, false);
    }

    #[test]
    fn the_last_quarter_is_for_clients_that_confirm() {
        let (mut budget, mut hoarder, mut other) = (budget(), ClientReplies::default(), ClientReplies::default());
        hoarder.arrived(0);
        add(&mut budget, &mut hoarder, 47 * MIB);
        assert!(budget.fits(2_000, &hoarder, MIB) && !budget.fits(2_000, &hoarder, 2 * MIB));
        assert!(budget.is_held_back(2_000, &hoarder, 1));
        // One that has nothing yet, is new, or confirms.
        assert!(budget.fits(2_000, &other, 17 * MIB) && !budget.fits(2_000, &other, 18 * MIB));
        other.arrived(2_000);
        add(&mut budget, &mut other, MIB);
        assert!(budget.fits(3_000, &other, 7 * MIB) && !budget.fits(3_001, &other, 7 * MIB));
        other.confirmed(4_000);
        assert!(budget.fits(14_000, &other, 7 * MIB) && !budget.fits(14_001, &other, 7 * MIB));
        assert!(!budget.is_held_back(14_000, &other, 1) && budget.is_held_back(14_001, &other, 1));
    }
}
