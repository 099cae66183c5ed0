//! What the broker knows of a client: its requests by number, and the numbers that are settled.

use super::in_flight::InFlightWindow;
use super::reply_budget::ClientReplies;
use super::requests::List;
use super::sequence_map::SequenceMap;
use super::settings::Millis;
use super::{Peer, SessionKey};
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Index, IndexMut};
use towpath_requests::numbered::ClientId;

/// What a gap between confirmed numbers costs.
pub(super) const GAP_BYTES: usize = 64;

/// A client: one that says who it is, over all its connections; or a stock one, as long as its connection lasts.
#[derive(Debug)]
pub(super) struct Session {
    /// Who it says it is; `None`: a stock client, whose requests are numbered here.
    pub client: Option<ClientId>,
    /// Its connection.
    pub peer: Option<Peer>,
    /// How many it has had.
    pub connections: u32,
    /// Since when it has none.
    pub absent_since: Millis,
    /// Its requests that aren't settled, or are and not confirmed.
    pub requests: SequenceMap,
    /// No greater number was requested or confirmed.
    pub highest: u64,
    /// SequenceMap that are confirmed.
    pub confirmed: ConfirmedNumbers,
    /// The number for the next request of a stock client.
    pub next_number: u64,
    /// Bytes of its requests and unconfirmed replies.
    pub bytes: usize,
    pub replies: ClientReplies,
    /// Requests that no worker gets before it has taken replies.
    pub parked: List,
    /// What it was told.
    pub window: InFlightWindow,
    /// Requests whose outcome waits until it takes more.
    pub pending_outcomes: List,
    /// Its output is full.
    pub blocked: bool,
    /// No more is read from it.
    pub paused: bool,
    /// It takes one reply a request: parts are collected for it.
    pub one_reply: bool,
    /// Some of its requests are in the journal, or were since its connection began.
    pub is_journalled: bool,
    /// It is sent away as soon as it has nothing here: the broker is stopping.
    pub is_leaving: bool,
    /// It is nobody: it has one request, which was given up and is kept aside.
    pub is_dead_letter: bool,
}

impl Session {
    pub fn new(client: Option<ClientId>, peer: Option<Peer>) -> Session {
        Session {
            client,
            peer,
            connections: 0,
            absent_since: 0,
            requests: SequenceMap::default(),
            highest: 0,
            confirmed: ConfirmedNumbers::default(),
            next_number: 1,
            bytes: 0,
            replies: ClientReplies::default(),
            parked: List::default(),
            window: InFlightWindow::default(),
            pending_outcomes: List::default(),
            blocked: false,
            paused: false,
            one_reply: false,
            is_journalled: false,
            is_leaving: false,
            is_dead_letter: false,
        }
    }

    /// Whether it has a connection, which is this one of all that it has had.
    #[inline]
    pub fn is_on(&self, connection: u32) -> bool {
        self.peer.is_some() && self.connections == connection
    }
}

/// All sessions, and who of them says which name.
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

    /// Adds a session, under its client's name if it has one. No other session has that name.
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

    pub fn contains(&self, key: SessionKey) -> bool {
        self.slab.contains(key as usize)
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

    /// Panics if a name leads to another session than its own.
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

/// A set of numbers that grows together: all below a mark, and ranges above it.
#[derive(Debug, Default)]
pub(super) struct ConfirmedNumbers {
    below: u64,
    /// First to one past the last; they neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl ConfirmedNumbers {
    pub fn contains(&self, number: u64) -> bool {
        number < self.below || self.ranges.range(..=number).next_back().is_some_and(|(_, &end)| number < end)
    }

    /// Adds the numbers from `first` to one below `end`.
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

    /// Adds all numbers below this one.
    pub fn insert_below(&mut self, end: u64) {
        self.insert(self.below, end);
    }

    /// Gaps that have to be remembered.
    pub fn gaps(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn confirmed_numbers_are_a_set(
            inserts in prop::collection::vec((0_u64..60, 0_u64..8), 0..40),
            below in 0_u64..20,
        ) {
            let mut confirmed = ConfirmedNumbers::default();
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
    }
}
