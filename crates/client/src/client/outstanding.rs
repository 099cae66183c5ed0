//! Outstanding requests by number.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use towpath_requests::body::Body;

/// The ring may be this many times longer than its requests, plus a constant, before an overtaken request is moved out of
/// it.
const SPARSE: usize = 4;
const SPARSE_CONSTANT: usize = 4096;

/// State of a request on the current connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be sent.
    Waiting,
    /// Sent.
    Sent,
    /// Refused; resent at its time.
    Held,
    /// Has its outcome.
    Done,
}

/// An outstanding request.
#[derive(Debug)]
pub(super) struct Entry {
    pub body: Body,
    pub deadline: Option<Duration>,
    /// Index of the service's name.
    pub service: u32,
    /// Owner of the outcome.
    pub owner: u32,
    /// Next part number, unless parts start over. 0 if none came on this connection.
    pub next_part: u32,
    pub state: State,
    pub volatile: bool,
    /// Durable in the broker's journal.
    pub accepted: bool,
    /// Was sent before.
    pub sent_before: bool,
    /// The broker may have it.
    pub known: bool,
    /// A broker may have had it on an earlier connection, whatever the current one says.
    pub elsewhere: bool,
}

/// A ring of requests in order of number, and those that were overtaken.
#[derive(Debug)]
pub(super) struct Table {
    /// Number of the ring's first slot.
    base: u64,
    ring: VecDeque<Entry>,
    stragglers: BTreeMap<u64, Entry>,
    outstanding: usize,
}

impl Table {
    pub fn new() -> Table {
        Table { base: 1, ring: VecDeque::new(), stragglers: BTreeMap::new(), outstanding: 0 }
    }

    /// Requests without an outcome.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Number of the next request.
    pub fn next_number(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// Lowest number without an outcome, or the next number.
    pub fn lowest(&self) -> u64 {
        self.stragglers.keys().next().copied().unwrap_or(self.base)
    }

    pub fn push(&mut self, entry: Entry) -> u64 {
        let number = self.next_number();
        self.outstanding += 1;
        self.ring.push_back(entry);
        if self.ring.len() > SPARSE_CONSTANT + SPARSE * self.outstanding {
            self.put_aside();
        }
        number
    }

    /// Moves the ring's first request aside if very many behind it are done, so that these can be dropped.
    fn put_aside(&mut self) {
        if let Some(first) = self.ring.pop_front() {
            self.stragglers.insert(self.base, first);
            self.base += 1;
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.ring.front().is_some_and(|entry| entry.state == State::Done) {
            self.ring.pop_front();
            self.base += 1;
        }
    }

    #[inline]
    pub fn find(&mut self, number: u64) -> Option<&mut Entry> {
        let entry = match number.checked_sub(self.base) {
            Some(place) => self.ring.get_mut(usize::try_from(place).ok()?)?,
            None => self.stragglers.get_mut(&number)?,
        };
        (entry.state != State::Done).then_some(entry)
    }

    /// Ends a request and frees its slot. `look` sees the entry last and may take from it.
    #[inline]
    pub fn finish<T>(&mut self, number: u64, look: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let Some(place) = number.checked_sub(self.base) else {
            let mut entry = self.stragglers.remove(&number)?;
            self.outstanding -= 1;
            return Some(look(&mut entry));
        };
        let entry = self.ring.get_mut(usize::try_from(place).ok()?).filter(|entry| entry.state != State::Done)?;
        let seen = look(entry);
        self.outstanding -= 1;
        if place == 0 {
            self.ring.pop_front();
            self.base += 1;
            self.trim();
        } else {
            entry.state = State::Done;
            entry.body = Body::default();
        }
        Some(seen)
    }

    /// The first request from this number on that is to be sent.
    #[inline]
    pub fn next_waiting(&mut self, from: u64) -> Option<(u64, &mut Entry)> {
        if from < self.base {
            let waits = |(_, entry): &(&u64, &Entry)| entry.state == State::Waiting;
            if let Some(number) = self.stragglers.range(from..).find(waits).map(|(number, _)| *number) {
                return self.stragglers.get_mut(&number).map(|entry| (number, entry));
            }
        }
        let mut place = usize::try_from(from.saturating_sub(self.base)).ok()?;
        while self.ring.get(place)?.state != State::Waiting {
            place += 1;
        }
        let base = self.base;
        self.ring.get_mut(place).map(|entry| (base + place as u64, entry))
    }

    /// Requests without an outcome, in order of number.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Entry)> {
        let base = self.base;
        let ring = self.ring.iter_mut().enumerate().map(move |(place, entry)| (base + place as u64, entry));
        let all = self.stragglers.iter_mut().map(|(number, entry)| (*number, entry)).chain(ring);
        all.filter(|(_, entry)| entry.state != State::Done)
    }

    /// Requests without an outcome among `count` numbers from `first`.
    pub fn range_mut(&mut self, first: u64, count: u64) -> impl Iterator<Item = &mut Entry> {
        let end = first.saturating_add(count);
        let length = self.ring.len() as u64;
        let from = first.saturating_sub(self.base).min(length) as usize;
        let to = end.saturating_sub(self.base).min(length) as usize;
        let aside = self.stragglers.range_mut(first..end).map(|(_, entry)| entry);
        aside.chain(self.ring.range_mut(from..to.max(from))).filter(|entry| entry.state != State::Done)
    }

    /// Ranges of numbers that have their outcome although lower ones don't.
    pub fn done_ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut add = |first: u64, count: u64| match ranges.last_mut() {
            Some((start, length)) if *start + *length == first => *length += count,
            _ => ranges.push((first, count)),
        };
        let mut next = None;
        for number in self.stragglers.keys() {
            if let Some(next) = next.filter(|next| next < number) {
                add(next, number - next);
            }
            next = Some(number + 1);
        }
        if let Some(next) = next.filter(|next| *next < self.base) {
            add(next, self.base - next);
        }
        for (place, entry) in self.ring.iter().enumerate() {
            if entry.state == State::Done {
                add(self.base + place as u64, 1);
            }
        }
        ranges
    }
}
