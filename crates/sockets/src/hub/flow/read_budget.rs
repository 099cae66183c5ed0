//! How much is read of each peer in a turn where very many messages come at once.
//!
//! What has been read is worked on before anything else is, and a message of a few bytes may cost as much as one of a mebibyte: some
//! hundred peers that send small ones without end would keep all others waiting for seconds.

use crate::peer::read::READ_AHEAD_BYTES_MAX;
use std::time::{Duration, Instant};

/// Turns that take longer, because of so many events, are shortened; and those that take less may become longer again.
const LONG: Duration = Duration::from_millis(20);
const SHORT: Duration = Duration::from_millis(10);
const MANY_EVENTS: usize = 2_000;

/// The least that is read of a peer: with less, a system call costs more than what it brings.
const BYTES_MIN: usize = 512;

/// What is read of a peer in a turn, beside one large frame.
#[derive(Debug)]
pub(in crate::hub) struct Share {
    bytes: usize,
    /// When the turn before began, after its wait, and how much came in it.
    begun: Instant,
    events: usize,
}

impl Share {
    /// There is no bound as long as turns are short.
    pub fn new(now: Instant) -> Share {
        Share { bytes: usize::MAX, begun: now, events: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A turn begins to read.
    pub fn begin(&mut self, now: Instant) {
        self.begun = now;
    }

    /// So many events are for the application.
    pub fn read(&mut self, events: usize) {
        self.events = events;
    }

    /// The application has done what there was to do, and begins the next turn.
    pub fn end(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.begun);
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

    /// A peer's share after so many turns of so many events, which take so long.
    fn after(share: &mut Share, turns: usize, events: usize, took: Duration) -> usize {
        let mut now = Instant::now();
        for _ in 0..turns {
            share.begin(now);
            share.read(events);
            now += took;
            share.end(now);
        }
        share.bytes()
    }

    #[test]
    fn long_turns_of_many_messages_become_shorter_and_longer_again() {
        let mut share = Share::new(Instant::now());
        assert_eq!(after(&mut share, 1, 10_000, 2 * LONG), READ_AHEAD_BYTES_MAX / 2);
        assert_eq!(after(&mut share, 20, 10_000, 2 * LONG), BYTES_MIN);
        assert_eq!(after(&mut share, 20, 100, (LONG + SHORT) / 2), BYTES_MIN);
        assert_eq!(after(&mut share, 1, 100, SHORT / 2), 2 * BYTES_MIN);
        assert_eq!(after(&mut share, 100, 100, SHORT / 2), usize::MAX);
    }

    #[test]
    fn what_takes_long_because_of_a_few_messages_takes_no_less_with_less_of_others() {
        let mut share = Share::new(Instant::now());
        assert_eq!(after(&mut share, 20, 1_000, 10 * LONG), usize::MAX);
    }
}
