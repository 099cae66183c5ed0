//! How much of the memory replies may take.
//!
//! A request for which there is no room is refused. A reply can't be: by then the work is done, and numbered clients are promised that it
//! is kept until they confirm it. So there are three bounds, each for when the one before it wasn't enough:
//!
//! 1. Requests wait in their queue while replies to what workers have may need all that there is for them. Each is expected to need as
//!    much beyond its request as those of its service needed lately.
//! 2. A client's requests are held back while it has much here that it doesn't confirm.
//! 3. A reply for which there is no room all the same isn't kept, and the request ends so. A quarter of the memory is for clients that
//!    confirm what they have.

use super::requests::State;
use super::session::Session;
use super::settings::Millis;
use super::{Action, Core, ServiceKey, SessionKey};
use std::collections::{HashMap, VecDeque};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// Memory that every outcome has: reasons of the broker's own that are longer than a few words.
const REASON_BYTES: usize = 64;

/// Why a reply isn't kept. Short enough to take no memory beside the request's.
const NO_ROOM: &str = "executed, but no room for the reply";

/// By how much of the difference to what comes less is expected next time.
const FORGETTING: usize = 64;

/// Who confirms none of the replies that are here for so long doesn't take them.
const TAKES_MS: Millis = 10_000;

/// The same of a client that has never confirmed any.
const BEGINS_MS: Millis = 1_000;

/// Services that wait for room are looked at so many at a time, in turn: there may be very many.
const SERVICES_PER_RETRY: usize = 16;

/// Memory that a reply is expected to need beyond its request's, in whole kibibytes: so it has its place in the request's state.
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

/// The replies of a service.
#[derive(Debug, Default)]
pub(super) struct ServiceReplies {
    /// What they needed lately: the largest of them, fading; `None`: there was none.
    size: Option<usize>,
    /// Bytes that those to what workers have are expected to need beyond their requests.
    expected: usize,
    /// Its requests wait until there is room for their replies.
    waits_for_memory: bool,
}

impl ServiceReplies {
    #[inline]
    pub fn observe(&mut self, bytes: usize) {
        let expected = self.size.unwrap_or(0);
        self.size = Some(if bytes >= expected { bytes } else { expected - (expected - bytes).div_ceil(FORGETTING) });
    }
}

/// Those of all services and clients.
#[derive(Debug, Default)]
pub(super) struct ReplyBudget {
    /// Bytes of those that are here, with what their requests cost, and that their clients haven't confirmed.
    unconfirmed: usize,
    expected: usize,
    /// Services whose requests wait until there is room; they are looked at in turn.
    short: VecDeque<ServiceKey>,
}

impl Core {
    /// What the reply to a request is expected to need, if it is kept.
    #[inline]
    pub(super) fn expected_of(&self, service: ServiceKey, slot: u32) -> ExpectedBytes {
        let size = self.services.at(service).replies.size.unwrap_or(self.settings.reply_bytes_expected);
        // Mostly it is nothing, and the request needn't be looked at.
        if size < ExpectedBytes::UNIT {
            return ExpectedBytes::NOTHING;
        }
        let request = self.requests.at(slot);
        let bytes = size.saturating_sub(request.body.memory_bytes());
        if self.keeps_replies(request.session) { ExpectedBytes::of(bytes) } else { ExpectedBytes::NOTHING }
    }

    /// Whether the outcome of a client's requests is kept until it confirms it.
    fn keeps_replies(&self, key: SessionKey) -> bool {
        let session = &self.sessions[key as usize];
        session.client.is_some() && !session.is_dead_letter
    }

    /// Whether a request has to wait until there is room for its reply; if so, [`Core::retry_waiting_services`] gives it to a worker then. A service
    /// of which no worker has anything may always have one.
    #[inline]
    pub(super) fn must_wait_for_memory(&mut self, key: ServiceKey, expected: ExpectedBytes) -> bool {
        if expected == ExpectedBytes::NOTHING {
            return false;
        }
        let most = self.settings.bytes_max;
        let here = self.replies.unconfirmed;
        let room = (most / 4 * 3).saturating_sub(here).max(most / 4).min(most.saturating_sub(here));
        let service = &mut self.services.at_mut(key).replies;
        if service.expected == 0 || self.replies.expected + expected.bytes() <= room {
            return false;
        }
        if !std::mem::replace(&mut service.waits_for_memory, true) {
            self.replies.short.push_back(key);
        }
        true
    }

    /// Gives to workers what has waited for room, as far as there is some now.
    pub(super) fn retry_waiting_services(&mut self, now: Millis) {
        let mut looks = SERVICES_PER_RETRY;
        for _ in 0..self.replies.short.len() {
            let Some(key) = self.replies.short.pop_front() else { return };
            // It may be gone, or another one now.
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

    /// A worker has a request to which such a reply is expected.
    #[inline]
    pub(super) fn expect(&mut self, slot: u32, expected: ExpectedBytes) {
        if expected != ExpectedBytes::NOTHING {
            let (request, bytes) = (self.requests.at(slot), expected.bytes());
            self.replies.expected += bytes;
            self.services.at_mut(request.service).replies.expected += bytes;
            self.sessions[request.session as usize].reply_bytes_expected += bytes;
        }
    }

    /// No worker has it any more.
    #[inline]
    pub(super) fn unexpect(&mut self, slot: u32, expected: ExpectedBytes) {
        if expected != ExpectedBytes::NOTHING {
            let (request, bytes) = (self.requests.at(slot), expected.bytes());
            self.replies.expected -= bytes;
            self.services.at_mut(request.service).replies.expected -= bytes;
            self.sessions[request.session as usize].reply_bytes_expected -= bytes;
        }
    }

    /// Whether enough is coming to a client of which nobody knows yet whether it confirms anything, where others don't: a little, or one
    /// reply.
    #[inline]
    pub(super) fn expects_enough_replies(&self, now: Millis, key: SessionKey, expected: ExpectedBytes) -> bool {
        if expected == ExpectedBytes::NOTHING || self.replies.unconfirmed <= self.settings.bytes_max / 2 {
            return false;
        }
        let session = &self.sessions[key as usize];
        let its = session.reply_bytes + session.reply_bytes_expected;
        its > 0 && its + expected.bytes() > self.settings.share_of_replies_min() && !session.takes_replies(now)
    }

    /// A worker replies to a request of a client's.
    #[inline]
    pub(super) fn note_reply(&mut self, now: Millis, session: SessionKey) {
        let session = &mut self.sessions[session as usize];
        if session.reply_bytes == 0 {
            session.takes_since = now;
        }
    }

    /// An outcome of so many bytes is kept until it is confirmed.
    #[inline]
    pub(super) fn add_unconfirmed(&mut self, session: SessionKey, bytes: usize) {
        self.replies.unconfirmed += bytes;
        self.sessions[session as usize].reply_bytes += bytes;
    }

    /// It isn't any more.
    #[inline]
    pub(super) fn remove_unconfirmed(&mut self, session: SessionKey, bytes: usize) {
        self.replies.unconfirmed -= bytes;
        self.sessions[session as usize].reply_bytes -= bytes;
    }

    /// Whether a client must confirm replies before workers are given more of its requests; with a divisor over 1, whether it must confirm
    /// more still until they are given some again.
    #[inline]
    pub(super) fn is_held_back(&self, now: Millis, key: SessionKey, divisor: usize) -> bool {
        let (session, settings) = (&self.sessions[key as usize], &self.settings);
        if session.blocked {
            return true;
        }
        if session.reply_bytes <= settings.share_of_replies_min() / divisor {
            return false;
        }
        let most = match session.takes_replies(now) {
            true => settings.client_bytes_max,
            false => {
                let left = (settings.bytes_max / 2).saturating_sub(self.replies.unconfirmed);
                left.max(settings.share_of_replies_min()).min(settings.client_bytes_max)
            }
        };
        session.reply_bytes > most / divisor
    }

    /// Whether there is room for a reply of so many bytes.
    #[inline]
    pub(super) fn reply_fits(&self, now: Millis, slot: u32, bytes: usize) -> bool {
        let request = self.requests.at(slot);
        bytes <= request.body.memory_bytes().max(REASON_BYTES) || self.unconfirmed_fits(now, request.session, bytes)
    }

    fn unconfirmed_fits(&self, now: Millis, key: SessionKey, bytes: usize) -> bool {
        let (session, most) = (&self.sessions[key as usize], self.settings.bytes_max);
        let all = self.replies.unconfirmed + bytes;
        if all <= most / 4 * 3 || !self.keeps_replies(key) {
            return true;
        }
        // What is left is for those who confirm, or have nothing here that they could confirm; and there is always some for requests of
        // others, as long as it isn't known who confirms.
        let is_little = || session.reply_bytes + bytes <= 2 * self.settings.share_of_replies_min();
        let begins = || session.begins(now) && all <= most / 8 * 7;
        all <= most && (session.takes_replies(now) || session.reply_bytes == 0 || is_little() || begins())
    }

    /// Ends a request that is in no list, and to which there was a reply.
    #[cold]
    pub(super) fn discard_reply(&mut self, slot: u32, bytes: usize) {
        let request = self.requests.at(slot);
        let (number, client) = (request.number, self.sessions[request.session as usize].client);
        let service = self.services.at(request.service).name.clone();
        self.actions.push(Action::ReplyLost { client, number, service, bytes });
        self.settle(slot, Status::NO_STORAGE, Body::from(NO_ROOM).into());
    }

    /// Bytes of memory that are left for what can't be refused as a request is: half as much again as requests may have.
    pub(super) fn bytes_left_beyond_requests(&self) -> usize {
        self.settings.bytes_max.saturating_add(self.settings.bytes_max / 2).saturating_sub(self.bytes)
    }

    /// Looks at all clients that are held back: there may be more left than when something of theirs last changed.
    pub(super) fn check_held_back(&mut self, now: Millis) {
        let held_back = self.sessions.iter().filter(|(_, session)| session.parked.len > 0 && !session.is_dead_letter);
        let held_back: Vec<SessionKey> = held_back.map(|(key, _)| key as SessionKey).collect();
        held_back.into_iter().for_each(|key| self.unpark(now, key));
    }

    /// Panics if the sums aren't those of what is there: for [`Core::check`].
    pub(super) fn check_replies(&self) {
        let (mut of_services, mut of_sessions) = (HashMap::new(), HashMap::<_, (usize, usize)>::new());
        for (_, request) in self.requests.iter() {
            match request.state {
                State::Held(_, expected) => {
                    *of_services.entry(request.service).or_default() += expected.bytes();
                    of_sessions.entry(request.session).or_default().1 += expected.bytes();
                }
                State::Settled => of_sessions.entry(request.session).or_default().0 += request.bytes(),
                _ => {}
            }
        }
        assert_eq!(of_services.values().sum::<usize>(), self.replies.expected);
        assert_eq!(of_sessions.values().map(|its| its.0).sum::<usize>(), self.replies.unconfirmed);
        for (key, service) in self.services.iter_by_key() {
            assert_eq!(of_services.get(&key).unwrap_or(&0), &service.replies.expected);
            assert!(!service.replies.waits_for_memory || self.replies.short.contains(&key));
        }
        for (key, session) in &self.sessions {
            let its = of_sessions.get(&(key as SessionKey)).copied().unwrap_or_default();
            assert_eq!(its, (session.reply_bytes, session.reply_bytes_expected));
        }
    }

    /// Whether requests of a service wait for room.
    #[cfg(test)]
    pub(super) fn waits_for_memory(&self, key: ServiceKey) -> bool {
        self.services.at(key).replies.waits_for_memory
    }
}

impl Session {
    /// Whether it confirms what is here for it: it has done so before, and not only long ago.
    fn takes_replies(&self, now: Millis) -> bool {
        self.has_confirmed && self.has_had_time(now) <= TAKES_MS
    }

    /// Whether it hasn't had the time to confirm anything yet.
    fn begins(&self, now: Millis) -> bool {
        !self.has_confirmed && self.has_had_time(now) <= BEGINS_MS
    }

    /// Since when it could have confirmed something, and hasn't.
    fn has_had_time(&self, now: Millis) -> Millis {
        if self.reply_bytes == 0 { 0 } else { now.saturating_sub(self.takes_since) }
    }
}
