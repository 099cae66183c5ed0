//! Bytes read from each peer in one poll where very many messages arrive at once.
//!
//! What was read is processed before anything else, and a message of a few bytes may cost as much as one of a mebibyte: some hundred peers that
//! send small ones without end would keep all others waiting for seconds.

use crate::options::READ_AHEAD_BYTES_MAX;
use std::time::{Duration, Instant};

/// The budget shrinks after polls that take longer because of many events, and grows after shorter ones.
const LONG: Duration = Duration::from_millis(20);
const SHORT: Duration = Duration::from_millis(10);
const MANY_EVENTS: usize = 2_000;

/// Minimum bytes to read from a peer: for less, the system call costs more than it brings.
const BYTES_MIN: usize = 512;

/// Bytes to read from a peer in one poll, besides one large frame.
#[derive(Debug)]
pub(in crate::hub) struct ReadBudget {
    bytes: usize,
    /// When the last poll began to read, and the events that it brought.
    started_at: Instant,
    events: usize,
}

impl ReadBudget {
    /// Unlimited as long as polls are short.
    pub fn new(now: Instant) -> ReadBudget {
        ReadBudget { bytes: usize::MAX, started_at: now, events: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A poll begins to read.
    pub fn start_reading(&mut self, now: Instant) {
        self.started_at = now;
    }

    /// Counts the events of a poll.
    pub fn stop_reading(&mut self, events: usize) {
        self.events = events;
    }

    /// The application has processed the events, and begins the next poll.
    pub fn adjust(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.started_at);
        if took > LONG && self.events > MANY_EVENTS {
            self.bytes = (self.bytes.min(READ_AHEAD_BYTES_MAX) / 2).max(BYTES_MIN);
        } else if took < SHORT {
            self.bytes = self.bytes.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budget after this many polls of this many events and this duration.
    fn after(budget: &mut ReadBudget, polls: usize, events: usize, took: Duration) -> usize {
        let mut now = Instant::now();
        for _ in 0..polls {
            budget.start_reading(now);
            budget.stop_reading(events);
            now += took;
            budget.adjust(now);
        }
        budget.bytes()
    }

    #[test]
    fn long_polls_of_many_messages_shrink_the_budget_and_short_ones_grow_it() {
        let mut budget = ReadBudget::new(Instant::now());
        assert_eq!(after(&mut budget, 1, 10_000, 2 * LONG), READ_AHEAD_BYTES_MAX / 2);
        assert_eq!(after(&mut budget, 20, 10_000, 2 * LONG), BYTES_MIN);
        assert_eq!(after(&mut budget, 20, 100, (LONG + SHORT) / 2), BYTES_MIN);
        assert_eq!(after(&mut budget, 1, 100, SHORT / 2), 2 * BYTES_MIN);
        assert_eq!(after(&mut budget, 100, 100, SHORT / 2), usize::MAX);
    }

    #[test]
    fn long_polls_of_few_messages_leave_the_budget() {
        let mut budget = ReadBudget::new(Instant::now());
        assert_eq!(after(&mut budget, 20, 1_000, 10 * LONG), usize::MAX);
    }
}
