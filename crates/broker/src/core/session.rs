//! Sessions: what the broker knows of a client.

use super::absent::Untried;
use super::dead_letter::LetterNumber;
use super::in_flight::InFlightWindow;
use super::reply_budget::ClientReplies;
use super::requests::List;
use super::sequence_map::SequenceMap;
use super::settings::Millis;
use super::tenants::NOBODY;
use super::{Peer, SessionKey, TenantKey};
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Index, IndexMut};
use towpath_requests::numbered::ClientId;

/// Bytes of memory that a gap between confirmed numbers counts.
pub(super) const GAP_BYTES: usize = 64;

/// Ranges of numbers in one record of the journal.
const RECORD_RANGES_MAX: usize = 64;

/// A numbered client, across its connections; or a stock client, as long as its connection lasts.
#[derive(Debug)]
pub(super) struct Session {
    /// The id of a numbered client. `None`: a stock client, whose requests the broker numbers.
    pub client: Option<ClientId>,
    /// Its connection, if it is connected.
    pub peer: Option<Peer>,
    /// Whose share and turns it has: those of its last connection.
    pub tenant: TenantKey,
    /// Connections that it has had.
    pub connections: u32,
    /// When its last connection ended.
    pub absent_since: Millis,
    /// Its requests without a confirmed outcome, by number.
    pub requests: SequenceMap,
    /// Those of them that are in the journal.
    pub journalled: usize,
    /// The highest number that was requested or confirmed.
    pub highest: u64,
    /// Numbers that are confirmed.
    pub confirmed: NumberSet,
    /// Numbers whose outcomes were dropped while it was away: they are over all the same.
    pub dropped: NumberSet,
    /// The journal's record of these. 0: it has none.
    pub dropped_id: u64,
    /// Entries of the journal of which that record is the last.
    pub dropped_by: u64,
    /// No outcome of its is dropped before, as long as it is away. May be too early.
    pub next_drop: Millis,
    /// The number of a stock client's next request.
    pub next_number: u64,
    /// Bytes of memory of its requests, unconfirmed replies and gaps.
    pub bytes: usize,
    pub replies: ClientReplies,
    /// Its queued and parked requests that nobody would miss: see [`Core::count_untried`](super::Core::count_untried).
    pub untried: Untried,
    /// Requests that wait until it confirms replies.
    pub parked: List,
    /// Bytes sent to it.
    pub window: InFlightWindow,
    /// Requests whose outcomes wait until its window opens.
    pub pending_outcomes: List,
    /// The driver takes no more output for it.
    pub blocked: bool,
    /// Not read until there is space.
    pub paused: bool,
    /// Takes one reply for a request: parts are kept for it.
    pub one_reply: bool,
    /// Has journalled requests, or had some since its connection began.
    pub is_journalled: bool,
    /// Was refused because the broker is stopping or drained, and is sent away when it has nothing left here.
    pub is_leaving: bool,
    /// The dead letter that is its one request; 0 for the session of a client.
    pub letter: LetterNumber,
    /// No client's session: its one request is a stored one, whose outcome counts as the request did until it is closed.
    pub is_stored: bool,
}

impl Session {
    pub fn new(client: Option<ClientId>, peer: Option<Peer>) -> Session {
        Session {
            client,
            peer,
            tenant: NOBODY,
            connections: 0,
            absent_since: 0,
            requests: SequenceMap::default(),
            journalled: 0,
            highest: 0,
            confirmed: NumberSet::default(),
            dropped: NumberSet::default(),
            dropped_id: 0,
            dropped_by: 0,
            next_drop: 0,
            next_number: 1,
            bytes: 0,
            replies: ClientReplies::default(),
            untried: Untried::default(),
            parked: List::default(),
            window: InFlightWindow::default(),
            pending_outcomes: List::default(),
            blocked: false,
            paused: false,
            one_reply: false,
            is_journalled: false,
            is_leaving: false,
            letter: 0,
            is_stored: false,
        }
    }

    #[inline]
    pub fn is_dead_letter(&self) -> bool {
        self.letter != 0
    }

    /// Whether nothing has to be remembered of it.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.dropped.is_empty()
    }

    /// Gaps between its numbers, each of which costs memory.
    pub fn gaps(&self) -> usize {
        self.confirmed.gaps() + self.dropped.gaps().saturating_sub(1)
    }

    /// Remembers all numbers between those that are over as dropped ones, so that nothing that costs memory is left of a client that may
    /// never come back.
    pub fn forget_gaps(&mut self) {
        let ranges = self.dropped.ranges.iter().chain(&self.confirmed.ranges);
        let all = ranges.fold((u64::MAX, 0), |(first, last), (&from, &to)| (first.min(from), last.max(to)));
        self.confirmed.ranges.clear();
        self.dropped.insert(all.0, all.1);
    }

    /// Whether it is connected, by this one of its connections.
    #[inline]
    pub fn is_on(&self, connection: u32) -> bool {
        self.peer.is_some() && self.connections == connection
    }
}

/// All sessions, and numbered clients by their ids.
#[derive(Debug)]
pub(super) struct Sessions {
    slab: Slab<Session>,
    by_client: HashMap<ClientId, SessionKey, FixedState>,
}

impl Sessions {
    pub fn new(seed: u64) -> Sessions {
        Sessions { slab: Slab::new(), by_client: HashMap::with_hasher(FixedState::with_seed(seed)) }
    }

    /// The session of a numbered client.
    pub fn find(&self, client: ClientId) -> Option<SessionKey> {
        self.by_client.get(&client).copied()
    }

    /// Adds a session. No other session has the same client.
    pub fn insert(&mut self, session: Session) -> SessionKey {
        let client = session.client;
        let key = self.slab.insert(session) as SessionKey;
        if let Some(client) = client {
            let former = self.by_client.insert(client, key);
            debug_assert!(former.is_none(), "two sessions of one client");
        }
        key
    }

    pub fn remove(&mut self, key: SessionKey) -> Session {
        let session = self.slab.remove(key as usize);
        if let Some(client) = session.client {
            self.by_client.remove(&client);
        }
        session
    }

    pub fn get(&self, key: SessionKey) -> Option<&Session> {
        self.slab.get(key as usize)
    }

    #[inline]
    pub fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.slab.get_mut(key as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.slab.iter().map(|(key, session)| (key as SessionKey, session))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SessionKey, &mut Session)> {
        self.slab.iter_mut().map(|(key, session)| (key as SessionKey, session))
    }

    /// Panics unless every id leads to its own session.
    pub fn check(&self) {
        let named = self.iter().filter_map(|(key, session)| Some((session.client?, key)));
        let count = named.inspect(|&(client, key)| assert_eq!(self.find(client), Some(key))).count();
        assert_eq!(count, self.by_client.len());
    }
}

impl Index<SessionKey> for Sessions {
    type Output = Session;

    #[inline]
    fn index(&self, key: SessionKey) -> &Session {
        &self.slab[key as usize]
    }
}

impl IndexMut<SessionKey> for Sessions {
    #[inline]
    fn index_mut(&mut self, key: SessionKey) -> &mut Session {
        &mut self.slab[key as usize]
    }
}

/// A set of numbers: all below a bound, and ranges above it.
#[derive(Debug, Default)]
pub(super) struct NumberSet {
    below: u64,
    /// From the first number to the end, exclusive. Ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl NumberSet {
    pub fn contains(&self, number: u64) -> bool {
        number < self.below || self.ranges.range(..=number).next_back().is_some_and(|(_, &end)| number < end)
    }

    /// Adds the numbers from `first` to `end`, exclusive.
    pub fn insert(&mut self, first: u64, end: u64) {
        let (mut first, mut end) = (first.max(self.below), end);
        if first >= end {
            return;
        }
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < first {
                break;
            }
            (first, end) = (first.min(from), end.max(to));
            self.ranges.remove(&from);
        }
        if first <= self.below {
            self.below = end;
        } else {
            self.ranges.insert(first, end);
        }
    }

    /// Removes the numbers from `first` to `end`, exclusive. For a set without a bound below.
    pub fn remove(&mut self, first: u64, end: u64) {
        debug_assert_eq!(self.below, 0);
        while let Some((&from, &to)) = self.ranges.range(..end).next_back().filter(|(_, to)| **to > first) {
            self.ranges.remove(&from);
            if to > end {
                self.ranges.insert(end, to);
            }
            if from < first {
                self.ranges.insert(from, first);
            }
        }
    }

    /// The ranges as they are in the journal. All beyond the limit are one: what lies between them is over, too, as a rule.
    pub fn to_bytes(&self) -> Vec<u8> {
        let last = self.ranges.values().next_back().copied().unwrap_or_default();
        let ranges = self.ranges.iter().take(RECORD_RANGES_MAX).enumerate();
        let ends = ranges.map(|(index, (&from, &to))| [from, if index + 1 < RECORD_RANGES_MAX { to } else { last }]);
        ends.flatten().flat_map(u64::to_le_bytes).collect()
    }

    /// Adds ranges from the journal. Returns the end of the last one.
    pub fn insert_bytes(&mut self, bytes: &[u8]) -> u64 {
        let (words, _) = bytes.as_chunks();
        let ends = words.chunks_exact(2).map(|ends| (u64::from_le_bytes(ends[0]), u64::from_le_bytes(ends[1])));
        ends.take(RECORD_RANGES_MAX).fold(0, |_, (from, to)| {
            self.insert(from.max(1), to);
            to
        })
    }

    pub fn is_empty(&self) -> bool {
        self.below == 0 && self.ranges.is_empty()
    }

    /// Adds all numbers below `end`.
    pub fn insert_below(&mut self, end: u64) {
        self.insert(self.below, end);
    }

    /// The number of gaps, each of which costs memory.
    pub fn gaps(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_of_a_record_are_bounded_and_damaged_ones_are_ignored() {
        let mut numbers = NumberSet::default();
        let many = 3 * RECORD_RANGES_MAX as u64;
        (1..=many).for_each(|number| numbers.insert(3 * number, 3 * number + 1));
        let bytes = numbers.to_bytes();
        assert_eq!(bytes.len(), 16 * RECORD_RANGES_MAX);
        let mut again = NumberSet::default();
        assert_eq!(again.insert_bytes(&bytes), 3 * many + 1);
        assert!((1..=3 * many + 1).all(|number| !numbers.contains(number) || again.contains(number)));
        assert!(again.contains(3 * many) && !again.contains(2) && !again.contains(3 * many + 1));
        for wrong in [&b""[..], &[1; 15], &[7; 16]] {
            let mut none = NumberSet::default();
            none.insert_bytes(wrong);
            assert!(none.is_empty());
        }
    }

    proptest! {
        #[test]
        fn numbers_are_a_set(
            inserts in prop::collection::vec((0_u64..60, 0_u64..8), 0..40),
            below in 0_u64..20,
        ) {
            let mut confirmed = NumberSet::default();
            let mut model = BTreeSet::new();
            for (index, (first, count)) in inserts.into_iter().enumerate() {
                if index == 10 {
                    confirmed.insert_below(below);
                    model.extend(0..below);
                }
                confirmed.insert(first, first + count);
                model.extend(first..first + count);
            }
            for number in 0..80 {
                prop_assert_eq!(confirmed.contains(number), model.contains(&number), "{}", number);
            }
            let gaps = (1..80_u64).filter(|number| model.contains(number) && !model.contains(&(number - 1))).count();
            prop_assert!(confirmed.gaps() <= gaps);
        }

        #[test]
        fn numbers_are_removed(
            steps in prop::collection::vec((any::<bool>(), 1_u64..60, 0_u64..8), 0..40),
        ) {
            let (mut numbers, mut model) = (NumberSet::default(), BTreeSet::new());
            for (adds, first, count) in steps {
                if adds {
                    numbers.insert(first, first + count);
                    model.extend(first..first + count);
                } else {
                    numbers.remove(first, first + count);
                    model.retain(|number| !(first..first + count).contains(number));
                }
                prop_assert_eq!(numbers.is_empty(), model.is_empty());
            }
            for number in 0..80 {
                prop_assert_eq!(numbers.contains(number), model.contains(&number), "{}", number);
            }
        }
    }
}
