//! A window of credit that finds its size: it grows while it lasts less than three round trips, and halves once it lasts more than twelve.
//!
//! So it follows the rate at which what came is written, whether the network or the disk is what is slow.

use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_quota::{Permit, Quota};

/// Round trips that a window lasts at least: one until the first bytes come for a credit, the rest for credit that waits to be worth a
/// message, and for what is late.
const ROUND_TRIPS_MIN: u32 = 3;
/// Round trips that it is to last when it has grown.
const ROUND_TRIPS_GROWN: u32 = 4;
/// Round trips from which it is larger than it need be, even if the rate doubles.
const ROUND_TRIPS_MAX: u32 = 12;

/// A window, in bytes.
#[derive(Debug)]
pub(crate) struct Window {
    /// Its first size, which it keeps whatever the budget.
    first: u64,
    limit: u64,
    /// Memory that all windows share for what they grow.
    budget: Arc<Quota>,
    /// Its part of the budget.
    grown: Permit,
    /// The size to which it shrinks as credit becomes free.
    target: u64,
    /// Bytes used in this period.
    used: u64,
    /// The beginning of the period: the first one begins when the first bytes are free again.
    since: Option<Instant>,
    round_trip: Duration,
}

impl Window {
    /// A window that may grow to a limit, within a budget.
    pub(crate) fn new(first: u64, limit: u64, budget: Arc<Quota>) -> Window {
        let (first, grown) = (first.min(limit), budget.acquire(0));
        Window { first, limit, budget, grown, target: first, used: 0, since: None, round_trip: Duration::ZERO }
    }

    pub(crate) fn size(&self) -> u64 {
        self.first + self.grown.units()
    }

    /// Sets the time from a credit to its first byte.
    pub(crate) fn round_trip(&mut self, time: Duration) {
        self.round_trip = time;
    }

    /// The time that was last set.
    pub(crate) fn round_trip_time(&self) -> Duration {
        self.round_trip
    }

    /// Begins anew, with another connection.
    pub(crate) fn reset(&mut self) {
        (self.used, self.since) = (0, None);
    }

    /// Notes that bytes of it were used and are free again. Returns how many there are to grant for them, and for its growth.
    pub(crate) fn freed(&mut self, bytes: u64, now: Instant) -> u64 {
        let shrunk = bytes.min(self.size().saturating_sub(self.target));
        drop(self.grown.split(shrunk));
        self.used = self.used.saturating_add(bytes);
        let lasted = now.saturating_duration_since(*self.since.get_or_insert(now));
        if self.used < self.size() {
            return bytes - shrunk;
        }
        (self.used, self.since) = (0, Some(now));
        if lasted > self.round_trip * ROUND_TRIPS_MAX {
            self.target = (self.size() / 2).max(self.first);
            return bytes - shrunk;
        }
        let more = match lasted < self.round_trip * ROUND_TRIPS_MIN {
            true => self.budget.try_acquire_up_to(self.growth(lasted)),
            false => None,
        };
        let before = self.size();
        // Of the same quota.
        let _ = more.map(|more| self.grown.merge(more));
        let grown = self.size() - before;
        self.target = self.size();
        bytes - shrunk + grown
    }

    /// Bytes by which it is to grow, so that it lasts [`ROUND_TRIPS_GROWN`]. How far it is from that isn't known if the sender lacked credit: then it
    /// has lasted one round trip.
    fn growth(&self, lasted: Duration) -> u64 {
        let size = u128::from(self.size());
        let wanted = size * (self.round_trip * ROUND_TRIPS_GROWN).as_nanos() / lasted.as_nanos().max(1);
        let more = wanted.min(size * u128::from(ROUND_TRIPS_GROWN)) - size;
        // Half of what is left, so that there is something for the next one.
        let most = (self.limit - self.size()).min(self.budget.available() / 2);
        most.min(u64::try_from(more).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const FIRST: u64 = 8 << 20;
    const BUDGET: u64 = 256 << 20;

    /// A link, and a sender that always has something to send.
    struct World {
        window: Window,
        budget: Arc<Quota>,
        now: Instant,
        round_trip: Duration,
        bytes_per_second: f64,
        /// Bytes that the receiver's disk takes in a second.
        written_per_second: f64,
        credit: u64,
        /// Credit on its way, and bytes on theirs, with the times when they come.
        credits: VecDeque<(Instant, u64)>,
        pieces: VecDeque<(Instant, u64)>,
        /// Bytes that have come, and aren't written.
        held: f64,
        ungranted: u64,
        /// Part of a byte that is left.
        rest: f64,
        /// Delays of what comes, one after another.
        jitter: Vec<Duration>,
        steps: usize,
    }

    const STEPS: u32 = 50;

    impl World {
        fn new(round_trip: Duration, bytes_per_second: f64, jitter: Vec<Duration>) -> World {
            let (budget, now) = (Quota::new(BUDGET), Instant::now());
            let mut window = Window::new(FIRST, u64::MAX, Arc::clone(&budget));
            window.round_trip(round_trip);
            World {
                window,
                budget,
                now,
                round_trip,
                bytes_per_second,
                written_per_second: f64::INFINITY,
                credit: FIRST,
                credits: VecDeque::new(),
                pieces: VecDeque::new(),
                held: 0.0,
                ungranted: 0,
                rest: 0.0,
                jitter,
                steps: 0,
            }
        }

        /// A part of a round trip. Whether the sender could have sent more than it had credit for.
        fn step(&mut self) -> bool {
            let time = self.round_trip / STEPS;
            (self.now, self.steps) = (self.now + time, self.steps + 1);
            while let Some((_, bytes)) = self.credits.pop_front_if(|(at, _)| *at <= self.now) {
                self.credit += bytes;
            }
            let may = self.bytes_per_second * time.as_secs_f64() + self.rest;
            let sent = self.credit.min(may as u64);
            self.rest = (may - sent as f64).min(1.0);
            self.credit -= sent;
            let late = self.jitter.get(self.steps % self.jitter.len().max(1)).copied().unwrap_or_default();
            let last = self.pieces.back().map_or(self.now, |(at, _)| *at);
            self.pieces.push_back(((self.now + self.round_trip / 2 + late).max(last), sent));
            while let Some((_, bytes)) = self.pieces.pop_front_if(|(at, _)| *at <= self.now) {
                self.held += bytes as f64;
            }
            let written = self.held.min(self.written_per_second * time.as_secs_f64()) as u64;
            self.held -= written as f64;
            self.ungranted += self.window.freed(written, self.now);
            if self.ungranted >= self.window.size() / 4 {
                self.credits.push_back((self.now + self.round_trip / 2, std::mem::take(&mut self.ungranted)));
            }
            let in_flight: u64 = self.credits.iter().chain(&self.pieces).map(|(_, bytes)| bytes).sum();
            assert_eq!(in_flight + self.credit + self.held as u64 + self.ungranted, self.window.size());
            assert!(self.window.size() <= FIRST + BUDGET && self.budget.used() == self.window.size() - FIRST);
            sent < may as u64
        }

        /// Runs for so many round trips, in which credit is never lacking, unless half of the budget isn't enough.
        fn never_idle(&mut self, round_trips: u32) {
            for _ in 0..round_trips * STEPS {
                let is_idle = self.step();
                let size = self.window.size();
                assert!(!is_idle || size >= BUDGET / 2, "idle in step {} with a window of {size}", self.steps);
            }
        }

        fn run(&mut self, round_trips: u32) {
            (0..round_trips * STEPS).for_each(|_| _ = self.step());
        }
    }

    proptest! {
        #[test]
        fn after_five_round_trips_no_sender_lacks_credit(
            round_trip_ms in 1u64..600, mbit in 10u64..10_000, jitter in prop::collection::vec(0u64..100, 0..50), faster in any::<bool>(),
        ) {
            let round_trip = Duration::from_millis(round_trip_ms);
            // Losses are late, too: TCP hands out what follows with what was sent again.
            let jitter = jitter.into_iter().map(|part| round_trip * part as u32 / 400).collect();
            let mut world = World::new(round_trip, mbit as f64 * 125_000.0, jitter);
            // One for the first bytes.
            world.run(6);
            world.never_idle(20);
            world.bytes_per_second *= if faster { 10.0 } else { 0.1 };
            world.run(6);
            world.never_idle(40);
        }
    }

    #[test]
    fn a_window_shrinks_while_the_disk_is_slow() {
        let mut world = World::new(Duration::from_millis(200), 125e6, Vec::new());
        world.run(8);
        let fast = world.window.size();
        assert!((50 << 20..=200 << 20).contains(&fast), "{fast}");
        world.written_per_second = 1e6;
        world.run(2000);
        assert_eq!(world.window.size(), FIRST);
        world.written_per_second = f64::INFINITY;
        world.run(6);
        world.never_idle(20);
    }

    #[test]
    fn windows_share_a_budget() {
        let budget = Quota::new(BUDGET);
        let start = Instant::now();
        let mut windows: Vec<_> = (0..5).map(|_| Window::new(FIRST, 64 << 20, Arc::clone(&budget))).collect();
        for round in 1..10 {
            for window in &mut windows {
                window.round_trip(Duration::from_secs(1));
                window.freed(window.size(), start + Duration::from_millis(round));
                assert!(window.size() <= 64 << 20);
            }
        }
        let sizes: Vec<_> = windows.iter().map(Window::size).collect();
        assert!(sizes.iter().all(|size| *size >= 24 << 20) && budget.used() <= BUDGET, "{sizes:?}");
        drop(windows);
        assert_eq!(budget.used(), 0);
    }
}
