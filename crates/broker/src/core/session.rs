//! What the broker knows of a client: its requests by number, and the numbers that are settled.

use super::Peer;
use super::in_flight::InFlightWindow;
use super::requests::List;
use super::sequence_map::SequenceMap;
use super::settings::Millis;
use std::collections::BTreeMap;
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
    /// Of these, bytes of replies.
    pub reply_bytes: usize,
    /// Bytes that replies to what workers have of it are expected to need beyond their requests.
    pub reply_bytes_expected: usize,
    /// When there was nothing for it to confirm, or it last confirmed something.
    pub takes_since: Millis,
    /// It has confirmed a reply.
    pub has_confirmed: bool,
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
            reply_bytes: 0,
            reply_bytes_expected: 0,
            takes_since: 0,
            has_confirmed: false,
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
