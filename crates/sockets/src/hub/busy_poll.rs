//! Polling again instead of going to sleep, while it pays.

use std::time::Duration;

/// Maximum credit: more short waits in a row don't make another one more likely.
const CREDIT_MAX: u8 = 8;

/// Credit lost by a wait that was longer than expected.
const CREDIT_LOST: u8 = 4;

/// Decides whether to poll for a while before sleeping.
///
/// Waking up costs both sides more than a short exchange of messages, above all on virtual machines, whose idle processors are given away. So
/// after a few short waits, the next one is spent polling. If it turns out long, several short ones must follow before that is tried again.
#[derive(Debug)]
pub(super) struct BusyPoll {
    most: Duration,
    credit: u8,
}

impl BusyPoll {
    /// Polls for at most this long; zero: never.
    pub fn new(most: Duration) -> BusyPoll {
        let alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        BusyPoll { most: if alone { Duration::ZERO } else { most }, credit: 0 }
    }

    /// How long to poll before sleeping.
    pub fn next(&self) -> Option<Duration> {
        (self.credit > 0).then_some(self.most)
    }

    /// Takes in the duration of a wait. Sleeping adds the time to wake up, about as much again.
    pub fn waited(&mut self, took: Duration) {
        if took <= self.most.saturating_mul(2) {
            self.credit = (self.credit + 1).min(CREDIT_MAX);
        } else {
            self.credit = self.credit.saturating_sub(CREDIT_LOST);
        }
    }

    /// Whether it ever polls.
    pub fn is_off(&self) -> bool {
        self.most.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_while_waits_are_short_and_seldom_in_vain() {
        let (short, long) = (Duration::from_micros(30), Duration::from_millis(1));
        let mut poll = BusyPoll { most: Duration::from_micros(50), credit: 0 };
        assert_eq!(poll.next(), None);
        poll.waited(short);
        assert_eq!(poll.next(), Some(poll.most));
        for _ in 0..100 {
            poll.waited(short);
        }
        poll.waited(long);
        poll.waited(long);
        assert_eq!(poll.next(), None);
        // Mixed waits: at most one in four is spent in vain.
        let mut vain = 0;
        for _ in 0..100 {
            for wait in [short, short, short, long] {
                vain += usize::from(wait == long && poll.next().is_some());
                poll.waited(wait);
            }
        }
        assert!(vain <= 100);
    }
}
