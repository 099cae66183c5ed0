//! The journal's disk: what is written becomes durable late and in order, and a crash loses the rest.

use crate::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use towpath_broker::core::{Entry, Millis, Restored, RestoredLetter};

#[derive(Debug, Default)]
pub struct Disk {
    durable: Vec<Entry>,
    pending: VecDeque<(Millis, Entry)>,
    last: Millis,
    /// Entries that were appended in this life of the broker, and how many of these became durable.
    appended: u64,
    count: u64,
    /// A fault: it takes nothing, and what it has taken doesn't become durable.
    pub failing: bool,
}

impl Disk {
    /// The entry's position, unless the disk fails.
    pub fn append(&mut self, now: Millis, entry: Entry, rng: &mut Rng) -> Option<u64> {
        if self.failing {
            return None;
        }
        let delay = if rng.percent(5) { rng.between(20, 300) } else { rng.below(12) };
        self.last = self.last.max(now + delay);
        self.pending.push_back((self.last, entry));
        self.appended += 1;
        Some(self.appended - 1)
    }

    pub fn poll(&mut self, now: Millis) {
        while self.due().is_some_and(|at| at <= now)
            && let Some((_, entry)) = self.pending.pop_front()
        {
            self.durable.push(entry);
            self.count += 1;
        }
    }

    pub fn durable_count(&self) -> u64 {
        self.count
    }

    pub fn due(&self) -> Option<Millis> {
        self.pending.front().filter(|_| !self.failing).map(|(at, _)| *at)
    }

    /// Brings everything to the disk, unless it fails.
    pub fn close(&mut self) {
        if self.failing {
            self.pending.clear();
        }
        self.durable.extend(self.pending.drain(..).map(|(_, entry)| entry));
        self.restart();
    }

    /// Loses entries that aren't durable, but for a beginning that was on the disk before anybody knew.
    pub fn crash(&mut self, rng: &mut Rng) {
        let survives = if rng.percent(50) { rng.index(self.pending.len() + 1) } else { 0 };
        let survivors: Vec<Entry> = self.pending.drain(..).take(survives).map(|(_, entry)| entry).collect();
        self.durable.extend(survivors);
        self.restart();
    }

    fn restart(&mut self) {
        (self.appended, self.count, self.last) = (0, 0, 0);
    }

    /// The requests that a broker recovers at its start, and the last id that was given.
    pub fn restore(&self) -> (Vec<Restored>, u64) {
        restored(&self.durable)
    }
}

/// The requests that entries restore, and the last id that was given.
pub fn restored<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> (Vec<Restored>, u64) {
    let mut requests = BTreeMap::new();
    let mut last = 0;
    for entry in entries {
        match entry.clone() {
            Entry::Accepted { id, client, number, service, expires, checksum, letter, body } => {
                assert!(id > last, "(4) the log has what was accepted in another order: {id} after {last}");
                last = last.max(id);
                let letter = letter.map(|details| RestoredLetter { moves: 0, details });
                let outcome = None;
                requests.insert(
                    id,
                    Restored { id, client, number, service, expires, overdue_ms: 0, checksum, letter, body, outcome },
                );
            }
            Entry::Moved { id, moves, letter, service } => {
                if let Some(request) = requests.get_mut(&id) {
                    (request.service, request.letter) = (service, Some(RestoredLetter { moves, details: letter }));
                }
            }
            Entry::Finished { id, status, body } => {
                if let Some(request) = requests.get_mut(&id) {
                    request.outcome = Some((status, body));
                }
            }
            Entry::Forgotten { id } => {
                requests.remove(&id);
            }
        }
    }
    (requests.into_values().collect(), last)
}
