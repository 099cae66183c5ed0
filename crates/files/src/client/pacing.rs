//! Limits how fast a server sends, by holding credit back. The caller says the time.

use std::time::{Duration, Instant};

/// Credit that gathers while nothing is due is worth this long at most, so that a pause isn't followed by a burst.
const BURST: Duration = Duration::from_millis(250);

/// Credit that a transfer gives, and that is passed on at a rate.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Bytes a second.
    rate: u64,
    /// Least credit in one message, in bytes: a server sends pieces of at most what it has.
    grant_min: u64,
    /// Credit that isn't passed on yet, in bytes.
    owed: u64,
    /// Until when what was passed on takes at this rate.
    busy_until: Instant,
}

impl Pacer {
    pub(super) fn new(rate: u64, grant_min: u64, now: Instant) -> Self {
        Self { rate: rate.max(1), grant_min: grant_min.max(1), owed: 0, busy_until: now }
    }

    /// The transfer gives credit.
    pub(super) fn owe(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_add(bytes);
    }

    /// The connection is lost, and all credit with it.
    pub(super) fn reset(&mut self) {
        self.owed = 0;
    }

    /// Credit to pass on now.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        if self.owed == 0 || now < self.busy_until {
            return None;
        }
        let begin = self.busy_until.max(now.checked_sub(BURST).unwrap_or(now));
        let allowed = (now.duration_since(begin).as_secs_f64() * self.rate as f64) as u64;
        let grant = self.owed.min(allowed.max(self.grant_min));
        self.owed -= grant;
        self.busy_until = begin + Duration::from_secs_f64(grant as f64 / self.rate as f64);
        Some(grant)
    }

    /// When more is due.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.owed > 0).then_some(self.busy_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However credit comes and time passes, no more is passed on than the rate allows, and all is in the end.
        #[test]
        fn credit_is_passed_on_at_the_rate(
            rate in 1_000_u64..10_000_000,
            grant_min in 1_u64..100_000,
            steps in prop::collection::vec((0_u64..1_000_000, 0_u64..2_000), 1..50),
        ) {
            let begin = Instant::now();
            let mut pacer = Pacer::new(rate, grant_min, begin);
            let (mut now, mut owed, mut passed) = (begin, 0, 0);
            for (bytes, ms) in steps {
                pacer.owe(bytes);
                owed += bytes;
                while let Some(grant) = pacer.due(now) {
                    prop_assert!(grant > 0);
                    passed += grant;
                }
                let seconds = now.duration_since(begin).as_secs_f64() + BURST.as_secs_f64();
                let most = (seconds * rate as f64) as u64 + grant_min + 1;
                prop_assert!(passed <= most, "{passed} of {most}");
                now += Duration::from_millis(ms);
            }
            while let Some(next) = pacer.next() {
                now = now.max(next);
                passed += pacer.due(now).unwrap();
            }
            prop_assert_eq!(passed, owed);
        }
    }
}
