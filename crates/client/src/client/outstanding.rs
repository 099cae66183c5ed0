//! Requests that have no outcome yet, by number.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use towpath_requests::body::Body;

/// The ring may be so many times as long as there are requests in it, beside a constant, before one that others overtook is
/// put aside.
const SPARSE: usize = 4;
const SPARSE_CONSTANT: usize = 4096;

/// Where a request stands on the present connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be sent.
    Waiting,
    /// Sent.
    Sent,
    /// Refused; to be sent when its time has come.
    Held,
    /// It has its outcome.
    Done,
}

/// A request that is held until its outcome is here.
#[derive(Debug)]
pub(super) struct Entry {
    pub body: Body,
    pub deadline: Option<Duration>,
    /// The number of its service's name.
    pub service: u32,
    /// Who is told.
    pub owner: u32,
    /// The number that the next part of the reply has, unless they begin again; 0 where none came on the present connection.
    pub next_part: u32,
    pub state: State,
    pub volatile: bool,
    /// It is in the broker's journal.
    pub accepted: bool,
    /// It has been sent before.
    pub sent_before: bool,
    /// The broker may have it.
    pub known: bool,
    /// A broker may have had it on an earlier connection, whatever the present one says.
    pub elsewhere: bool,
}

/// A ring of requests in the order of their numbers, and those that fell behind.
#[derive(Debug)]
pub(super) struct Table {
    /// The number of the ring's first place.
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

    /// The number that the next request will have.
    pub fn next_number(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// The lowest number without an outcome, or the next one.
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

    /// The first in the ring is waited for while very many behind it are done: it makes room for them to be forgotten.
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

    /// Ends a request: its body and its place are given back. `look` sees it for the last time, and may take what it wants.
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

    /// The first request from this number on that waits to be sent.
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

    /// All requests without an outcome, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Entry)> {
        let base = self.base;
        let ring = self.ring.iter_mut().enumerate().map(move |(place, entry)| (base + place as u64, entry));
        let all = self.stragglers.iter_mut().map(|(number, entry)| (*number, entry)).chain(ring);
        all.filter(|(_, entry)| entry.state != State::Done)
    }

    /// Requests without an outcome whose numbers are `first` and `count - 1` that follow.
    pub fn range_mut(&mut self, first: u64, count: u64) -> impl Iterator<Item = &mut Entry> {
        let end = first.saturating_add(count);
        let length = self.ring.len() as u64;
        let from = first.saturating_sub(self.base).min(length) as usize;
        let to = end.saturating_sub(self.base).min(length) as usize;
        let aside = self.stragglers.range_mut(first..end).map(|(_, entry)| entry);
        aside.chain(self.ring.range_mut(from..to.max(from))).filter(|entry| entry.state != State::Done)
    }

    /// Numbers that have their outcome although lower ones don't, as ranges.
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
