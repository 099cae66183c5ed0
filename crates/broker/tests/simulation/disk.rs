//! The journal as the broker sees it: what is written becomes durable late and in order, and a crash loses the rest.

use crate::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use towpath_broker::core::{Entry, Millis, Restored};

#[derive(Debug, Default)]
pub struct Disk {
    durable: Vec<Entry>,
    pending: VecDeque<(Millis, Entry)>,
    /// What isn't even taken, because writing fails.
    refused: VecDeque<Entry>,
    last: Millis,
    /// Entries that became durable in this life of the broker.
    count: u64,
    pub failing: bool,
    was_failing: bool,
}

impl Disk {
    pub fn write(&mut self, now: Millis, entries: impl IntoIterator<Item = Entry>, rng: &mut Rng) {
        self.refused.extend(entries);
        while !self.failing
            && let Some(entry) = self.refused.pop_front()
        {
            let delay = if rng.percent(5) { rng.between(20, 300) } else { rng.below(12) };
            self.last = self.last.max(now + delay);
            self.pending.push_back((self.last, entry));
        }
    }

    /// How many entries are durable, and whether the journal fails if that is news.
    pub fn take_durable(&mut self, now: Millis, rng: &mut Rng) -> (u64, Option<bool>) {
        while !self.failing
            && self.due().is_some_and(|at| at <= now)
            && let Some((_, entry)) = self.pending.pop_front()
        {
            self.durable.push(entry);
            self.count += 1;
        }
        self.write(now, [], rng);
        let failing = self.failing || !self.refused.is_empty();
        let news = (failing != self.was_failing).then_some(failing);
        self.was_failing = failing;
        (self.count, news)
    }

    pub fn due(&self) -> Option<Millis> {
        self.pending.front().filter(|_| !self.failing).map(|(at, _)| *at)
    }

    /// Brings everything to the disk, but for what it doesn't take.
    pub fn close(&mut self) {
        if self.failing {
            self.pending.clear();
        }
        self.durable.extend(self.pending.drain(..).map(|(_, entry)| entry));
        self.refused.clear();
        (self.count, self.last, self.was_failing) = (0, 0, false);
    }

    /// What has not become durable is lost, but for a beginning that was on the disk before anybody was told.
    pub fn crash(&mut self, rng: &mut Rng) {
        let survives = if rng.percent(50) { rng.index(self.pending.len() + 1) } else { 0 };
        let survivors: Vec<Entry> = self.pending.drain(..).take(survives).map(|(_, entry)| entry).collect();
        self.durable.extend(survivors);
        self.refused.clear();
        (self.count, self.last, self.was_failing) = (0, 0, false);
    }

    /// What a broker finds when it starts, and the last name that was given.
    pub fn restore(&self) -> (Vec<Restored>, u64) {
        let mut requests = BTreeMap::new();
        let mut last = 0;
        for entry in &self.durable {
            match entry.clone() {
                Entry::Accepted { id, client, number, service, expires, body } => {
                    last = last.max(id);
                    requests.insert(id, Restored { id, client, number, service, expires, body, outcome: None });
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
}
