//! The last hour of a server: its sums, its busiest services or followers, and what happened. Bounded to 4 MiB, whatever there is.
//!
//! Pure: it has neither a clock nor a file. Times are in seconds since 1970.

mod events;
mod file;

use self::events::Events;
pub use self::events::{Event, EventKind};
pub use self::file::FILE_BYTES_MAX;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Seconds that are kept.
const KEPT: u32 = 60 * 60;

/// Seconds between two samples of the totals, and between those of services and followers.
pub const INTERVAL: u32 = 5;
pub const LONG_INTERVAL: u32 = 10;

const TOTALS_MAX: usize = (KEPT / INTERVAL) as usize;
const SAMPLES_MAX: usize = (KEPT / LONG_INTERVAL) as usize;

/// Services, or followers, that are remembered: the busiest ones.
const THINGS_MAX: usize = 500;

/// Bytes of the name of one. Services have at most 255.
const NAME_BYTES_MAX: usize = 255;

/// Seconds between two samples of a sum, beyond which its rate isn't known.
const GAP: f64 = 60.0;

/// Part of its weight that a service or follower keeps at a sample.
const DECAY: f64 = 0.95;

/// Seconds that a present rate is the mean of.
const RECENT: u32 = 60;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A sum since the start; its growth each second is kept.
    Sum,
    /// Kept as it is.
    Level,
}

use Meaning::{Level, Sum};

/// Values of a server.
const TOTALS: [(&str, Meaning); 12] = [
    ("requests_in", Sum),
    ("requests_out", Sum),
    ("requests_failed", Sum),
    ("waiting", Level),
    ("requests", Level),
    ("transfers", Level),
    ("received_bytes", Sum),
    ("sent_bytes", Sum),
    ("peers", Level),
    ("workers", Level),
    ("memory_bytes", Level),
    ("problems", Level),
];

/// Values of a service, and of a follower.
const SERVICE: [(&str, Meaning); 4] = [("in", Sum), ("out", Sum), ("failed", Sum), ("waiting", Level)];
const FOLLOWER: [(&str, Meaning); 2] = [("behind", Level), ("behind_seconds", Level)];

/// Values of a thing at most.
const VALUES_MAX: usize = 4;

/// Things that are remembered beside the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Things {
    Services,
    Followers,
}

impl Things {
    fn values(self) -> &'static [(&'static str, Meaning)] {
        match self {
            Things::Services => &SERVICE,
            Things::Followers => &FOLLOWER,
        }
    }
}

/// A server at one moment.
#[derive(Debug, Default)]
pub struct Sample {
    /// Some of the values of a server, by name. Sums are those since its start.
    pub totals: Vec<(&'static str, f64)>,
    /// Services or followers, if they are sampled this time: their names, and values in the order of the API.
    pub things: Option<Vec<(Vec<u8>, [f64; VALUES_MAX])>>,
}

/// Samples of some values, the latest last. A value that isn't known is NaN.
#[derive(Debug)]
struct Ring<const N: usize> {
    samples: VecDeque<(u32, [f32; N])>,
    samples_max: usize,
    /// When a sample was last added, and its values before they became rates.
    before: Option<(f64, [f64; N])>,
}

impl<const N: usize> Ring<N> {
    fn new(samples_max: usize) -> Self {
        Ring { samples: VecDeque::with_capacity(samples_max), samples_max, before: None }
    }

    fn add(&mut self, now: f64, values: [f64; N], meanings: &[(&str, Meaning)]) -> [f32; N] {
        let elapsed = self.before.map_or(f64::INFINITY, |(then, _)| now - then);
        let kept = std::array::from_fn(|index| match (meanings.get(index), &self.before) {
            (Some((_, Level)), _) => values[index] as f32,
            (Some((_, Sum)), Some((_, before)))
                if values[index] >= before[index] && elapsed > 0.0 && elapsed <= GAP =>
            {
                ((values[index] - before[index]) / elapsed) as f32
            }
            _ => f32::NAN,
        });
        self.before = Some((now, values));
        let time = now as u32;
        // The clock was set back.
        while self.samples.back().is_some_and(|(last, _)| *last >= time) {
            self.samples.pop_back();
        }
        self.push(time, kept);
        self.forget(time);
        kept
    }

    fn push(&mut self, time: u32, values: [f32; N]) {
        if self.samples.len() >= self.samples_max {
            self.samples.pop_front();
        }
        self.samples.push_back((time, values));
    }

    fn forget(&mut self, now: u32) {
        while self.samples.front().is_some_and(|(time, _)| time.saturating_add(KEPT) < now) {
            self.samples.pop_front();
        }
    }

    /// Times after this one, and each value that is known at one of them at least.
    fn json(&self, meanings: &[(&'static str, Meaning)], after: u32) -> (Value, Value) {
        let from = self.samples.partition_point(|(time, _)| *time <= after);
        let samples = || self.samples.range(from..);
        let values = meanings.iter().enumerate().filter_map(|(index, (name, _))| {
            let column: Vec<Value> = samples().map(|(_, values)| number(values[index])).collect();
            column.iter().any(|value| !value.is_null()).then(|| ((*name).to_owned(), column.into()))
        });
        (samples().map(|(time, _)| *time).collect(), Value::Object(values.collect::<Map<_, _>>()))
    }
}

/// To the thousandth; null if it isn't known.
fn number(value: f32) -> Value {
    let rounded = (f64::from(value) * 1000.0).round() / 1000.0;
    if rounded.is_finite() { rounded.into() } else { Value::Null }
}

/// A service or a follower.
#[derive(Debug)]
struct Thing {
    ring: Ring<VALUES_MAX>,
    /// How busy it is and was, decaying.
    weight: f64,
}

/// The last hour of a server.
#[derive(Debug)]
pub struct History {
    of: Things,
    totals: Ring<{ TOTALS.len() }>,
    things: BTreeMap<Vec<u8>, Thing>,
    events: Events,
}

/// Values of a service lately, each second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    pub accepted: f64,
    pub replied: f64,
    pub failed: f64,
}

/// Why a file isn't that of a history.
#[derive(Debug, PartialEq, Eq)]
pub enum FileError {
    Foreign,
    OtherVersion(u32),
    Damaged,
}

impl fmt::Display for FileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Foreign => out.write_str("it is no history of this kind of server"),
            FileError::OtherVersion(version) => {
                write!(out, "it has version {version}, which this program doesn't read")
            }
            FileError::Damaged => out.write_str("it is damaged"),
        }
    }
}

impl History {
    /// One of which nothing is known.
    pub fn new(of: Things) -> History {
        History { of, totals: Ring::new(TOTALS_MAX), things: BTreeMap::new(), events: Events::default() }
    }

    /// Adds what is known at a moment.
    pub fn add(&mut self, now: f64, sample: Sample) {
        let value = |name: &str| sample.totals.iter().find(|(of, _)| *of == name).map_or(f64::NAN, |(_, value)| *value);
        debug_assert!(sample.totals.iter().all(|(name, _)| TOTALS.iter().any(|(of, _)| of == name)));
        self.totals.add(now, TOTALS.map(|(name, _)| value(name)), &TOTALS);
        if let Some(things) = sample.things {
            self.add_things(now, things);
        }
        self.events.forget(now as u32, KEPT);
    }

    fn add_things(&mut self, now: f64, things: Vec<(Vec<u8>, [f64; VALUES_MAX])>) {
        let meanings = self.of.values();
        for thing in self.things.values_mut() {
            thing.weight *= DECAY;
            thing.ring.forget(now as u32);
        }
        self.things.retain(|_, thing| !thing.ring.samples.is_empty());
        let mut others = Vec::new();
        for (name, values) in things {
            match self.things.get_mut(&name) {
                Some(thing) => thing.add(now, values, meanings),
                None if name.len() <= NAME_BYTES_MAX => others.push((name, values)),
                None => {}
            }
        }
        others.sort_by_cached_key(|(_, values)| Reverse(first_weight(values) as u64));
        for (name, values) in others {
            if self.things.len() >= THINGS_MAX {
                let least = self.things.iter().min_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight));
                let Some(least) = least.filter(|(_, least)| least.weight < first_weight(&values)) else { break };
                let least = least.0.clone();
                self.things.remove(&least);
            }
            let mut thing = Thing { ring: Ring::new(SAMPLES_MAX), weight: 0.0 };
            thing.add(now, values, meanings);
            thing.weight = first_weight(&values);
            self.things.insert(name, thing);
        }
    }

    /// Adds an event.
    pub fn note(&mut self, event: Event) {
        self.events.add(event);
    }

    /// The totals after this time.
    pub fn totals(&self, after: u32) -> Value {
        let (times, values) = self.totals.json(&TOTALS, after);
        self.reply(INTERVAL, times, values, self.events.json(after, None))
    }

    /// A service or follower, after this time. Without samples if it isn't among the busiest ones.
    pub fn thing(&self, name: &[u8], after: u32) -> Value {
        let thing = self.things.get(name);
        let (times, values) = thing.map_or((json!([]), json!({})), |thing| thing.ring.json(self.of.values(), after));
        self.reply(LONG_INTERVAL, times, values, self.events.json(after, Some(name)))
    }

    fn reply(&self, interval: u32, times: Value, values: Value, events: Value) -> Value {
        json!({ "interval_seconds": interval, "times": times, "values": values, "events": events })
    }

    /// Rates of a service during the last minute, if it is among the busiest ones.
    pub fn rates(&self, service: &[u8], now: u32) -> Option<Rates> {
        let samples = &self.things.get(service)?.ring.samples;
        let recent: Vec<_> = samples.iter().rev().take_while(|(time, _)| *time + RECENT >= now).collect();
        let mean = |index: usize| {
            let known = || recent.iter().map(|(_, values)| f64::from(values[index])).filter(|value| value.is_finite());
            let count = known().count();
            (count > 0).then(|| known().sum::<f64>() / count as f64)
        };
        Some(Rates { accepted: mean(0)?, replied: mean(1)?, failed: mean(2)? })
    }

    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        file::encode(self)
    }

    /// The history that a file has, without what is older than an hour.
    pub fn decode(bytes: &[u8], of: Things, now: u32) -> Result<History, FileError> {
        let mut history = file::decode(bytes, of)?;
        history.totals.forget(now);
        history.things.values_mut().for_each(|thing| thing.ring.forget(now));
        history.things.retain(|_, thing| !thing.ring.samples.is_empty());
        history.events.forget(now, KEPT);
        Ok(history)
    }

    /// Bytes of memory.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let ring = |capacity: usize, values: usize| capacity * (values + 1) * size_of::<f32>();
        let thing = |(name, thing): (&Vec<u8>, &Thing)| {
            name.capacity() + size_of::<(Vec<u8>, Thing)>() + ring(thing.ring.samples.capacity(), VALUES_MAX)
        };
        ring(self.totals.samples.capacity(), TOTALS.len())
            + self.things.iter().map(thing).sum::<usize>()
            + self.events.memory_bytes()
    }
}

impl Thing {
    fn add(&mut self, now: f64, values: [f64; VALUES_MAX], meanings: &[(&str, Meaning)]) {
        let kept = self.ring.add(now, values, meanings);
        self.weight += kept.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value)).sum::<f64>();
    }
}

/// The weight of one that is new: rates aren't known yet, sums and levels are.
fn first_weight(values: &[f64]) -> f64 {
    values.iter().filter(|value| value.is_finite()).sum()
}

#[cfg(test)]
mod tests;
