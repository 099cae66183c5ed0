//! How much of the memory for all replies may take.
//!
//! A request for which there is no room is refused. A reply can't be: by then the work is done. So each request that a worker is given
//! takes along what its reply is expected to need beyond its own memory: as much as those of its service needed lately. A client
//! for which much is expected, or which has much here that it hasn't confirmed, must take some of that before workers are given more
//! of its requests: with all others like it it has half of the memory, so that there is room for requests of those who do take theirs.
//! Where more comes than was expected, such as in the first replies of a service, what is too much has no room.

use super::requests::State;
use super::settings::Millis;
use super::{Action, Core, SessionKey};
use crate::body::Body;
use crate::wire::Status;
use std::collections::HashMap;

/// Memory that every outcome has: reasons of the broker's own that are longer than a few words.
const REASON_BYTES: usize = 64;

/// Why a reply isn't kept. Short enough to take no memory beside the request's.
const NO_ROOM: &str = "executed, but no room for the reply";

/// By how much of the difference to what comes less is expected next time.
const FORGETTING: usize = 64;

/// Memory that a reply is expected to need beyond its request's, in whole kibibytes: so it has its place in the request's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected(u16);

impl Expected {
    const UNIT: usize = 1024;
    const NOTHING: Expected = Expected(0);

    fn of(bytes: usize) -> Expected {
        Expected(u16::try_from(bytes / Self::UNIT).unwrap_or(u16::MAX))
    }

    fn bytes(self) -> usize {
        usize::from(self.0) * Self::UNIT
    }
}

/// What the replies of a service needed lately: the largest of them, fading; `None`: there was none.
#[derive(Debug, Default)]
pub(super) struct ReplySize(Option<usize>);

impl ReplySize {
    #[inline]
    pub fn learn(&mut self, bytes: usize) {
        let expected = self.0.unwrap_or(0);
        self.0 = Some(if bytes >= expected { bytes } else { expected - (expected - bytes).div_ceil(FORGETTING) });
    }
}

/// Octets of replies, of a client or of all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReplyBytes {
    /// That are here, with what their requests cost, and that their clients haven't confirmed.
    pub unconfirmed: usize,
    /// That those to what workers have are expected to need beyond their requests.
    pub expected: usize,
}

impl ReplyBytes {
    #[inline]
    fn sum(&self) -> usize {
        self.unconfirmed + self.expected
    }
}

impl Core {
    /// What the reply to a request is expected to need is set aside for it.
    #[inline]
    pub(super) fn expect_reply(&mut self, slot: u32) -> Expected {
        let request = self.requests.at(slot);
        let size = self.services.at(request.service).reply_size.0.unwrap_or(self.settings.reply_bytes_expected);
        // Mostly it is nothing, and then nobody need know.
        if size < Expected::UNIT {
            return Expected::NOTHING;
        }
        let expected = Expected::of(size.saturating_sub(request.body.memory_bytes()));
        self.replies.expected += expected.bytes();
        self.sessions[request.session as usize].replies.expected += expected.bytes();
        expected
    }

    /// No reply is expected any more. [`Core::unpark`] should follow.
    #[inline]
    pub(super) fn expect_no_reply(&mut self, session: SessionKey, expected: Expected) {
        if expected != Expected::NOTHING {
            self.replies.expected -= expected.bytes();
            self.sessions[session as usize].replies.expected -= expected.bytes();
        }
    }

    /// An outcome of so many octets is kept until it is confirmed.
    #[inline]
    pub(super) fn keep_reply(&mut self, session: SessionKey, bytes: usize) {
        self.replies.unconfirmed += bytes;
        self.sessions[session as usize].replies.unconfirmed += bytes;
    }

    /// It isn't any more.
    #[inline]
    pub(super) fn keep_no_reply(&mut self, session: SessionKey, bytes: usize) {
        self.replies.unconfirmed -= bytes;
        self.sessions[session as usize].replies.unconfirmed -= bytes;
    }

    /// Whether a client must take replies before workers are given more of its requests; with a divisor over 1, whether it has to take
    /// more still until they are given some again. It may have as much as is left for all then: so there is some left for others,
    /// however many don't take theirs. One of which nothing is here, and nothing expected, may always have one more.
    #[inline]
    pub(super) fn is_held_back(&self, key: SessionKey, divisor: usize) -> bool {
        let (session, settings) = (&self.sessions[key as usize], &self.settings);
        let left = (settings.bytes_max / 2).saturating_sub(self.replies.sum());
        let most = left.max(settings.share_of_replies_min()).min(settings.client_bytes_max);
        session.blocked || session.replies.sum() > most / divisor
    }

    /// Whether there is room for a reply of so many octets. A client that has others here, which it hasn't confirmed, may have as much
    /// as is left of three quarters of all memory; one that has none half as much again as there is.
    #[inline]
    pub(super) fn has_room_for_reply(&self, slot: u32, bytes: usize) -> bool {
        let request = self.requests.at(slot);
        let its_own = request.body.memory_bytes();
        bytes <= its_own.max(REASON_BYTES) || self.has_room_for(request.session, bytes, its_own)
    }

    fn has_room_for(&self, key: SessionKey, bytes: usize, its_own: usize) -> bool {
        let session = &self.sessions[key as usize];
        // What nobody confirms isn't kept.
        if session.client.is_none() || session.is_aside {
            return true;
        }
        let unconfirmed = session.replies.unconfirmed;
        let left = (self.settings.bytes_max / 4 * 3).saturating_sub(self.replies.unconfirmed);
        let most = left.max(2 * self.settings.share_of_replies_min());
        (unconfirmed == 0 || unconfirmed + bytes <= most) && bytes <= self.left_beyond_requests() + its_own
    }

    /// Ends a request that is in no list, and to which there was a reply.
    #[cold]
    pub(super) fn lose_reply(&mut self, slot: u32, bytes: usize) {
        let request = self.requests.at(slot);
        let (number, client) = (request.number, self.sessions[request.session as usize].client);
        let service = self.services.at(request.service).name.clone();
        self.actions.push(Action::ReplyLost { client, number, service, bytes });
        self.settle(slot, Status::NO_STORAGE, Body::from(NO_ROOM).into());
    }

    /// Octets of memory that are left for what can't be refused as a request is: half as much again as requests may have.
    pub(super) fn left_beyond_requests(&self) -> usize {
        self.settings.bytes_max.saturating_add(self.settings.bytes_max / 2).saturating_sub(self.bytes)
    }

    /// Looks at all clients that are held back: there may be more left than when something of theirs last changed.
    pub(super) fn check_held_back(&mut self, now: Millis) {
        let held_back = self.sessions.iter().filter(|(_, session)| session.parked.len > 0 && !session.is_aside);
        let held_back: Vec<SessionKey> = held_back.map(|(key, _)| key as SessionKey).collect();
        held_back.into_iter().for_each(|key| self.unpark(now, key));
    }

    /// Panics if the sums aren't those of what is there: for [`Core::check`].
    pub(super) fn check_replies(&self) {
        let mut all = ReplyBytes::default();
        let mut of_sessions: HashMap<SessionKey, ReplyBytes> = HashMap::new();
        for (_, request) in self.requests.iter() {
            let of_session = of_sessions.entry(request.session).or_default();
            for sum in [&mut all, of_session] {
                match request.state {
                    State::Held(_, expected) => sum.expected += expected.bytes(),
                    State::Settled => sum.unconfirmed += request.bytes(),
                    _ => {}
                }
            }
        }
        assert_eq!(all, self.replies);
        for (key, session) in &self.sessions {
            assert_eq!(of_sessions.remove(&(key as SessionKey)).unwrap_or_default(), session.replies);
        }
    }
}
