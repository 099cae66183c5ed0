//! Limits a rate in bytes. Where this side receives, credit is granted at the rate; where it sends, pieces leave at it. The caller says the
//! time.

use std::time::{Duration, Instant};

/// Lowest rate, in bytes a second.
pub const BYTES_PER_SECOND_MIN: u64 = 4 << 10;
/// Credit that gathers in a pause is worth this long at most, so that a pause isn't followed by a burst.
const BURST: Duration = Duration::from_millis(250);
/// The part of a second that a piece takes at most.
const PIECES_A_SECOND: u64 = 4;

/// A rate, and what was taken of it.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    /// Bytes a second.
    rate: u64,
    /// Least to take at a time, in bytes: pieces aren't cut smaller.
    piece: u64,
    /// Until when what was taken takes at this rate.
    busy_until: Instant,
}

/// Largest piece at a rate: one doesn't take long, and little is in flight.
pub(crate) fn piece_bytes(rate: Option<u64>, chunk_bytes: u64, least: u64) -> u64 {
    rate.map_or(chunk_bytes, |rate| chunk_bytes.min((rate / PIECES_A_SECOND).max(least)))
}

impl Pacer {
    pub(crate) fn new(rate: u64, piece: u64, now: Instant) -> Self {
        Self { rate: rate.max(BYTES_PER_SECOND_MIN), piece: piece.max(1), busy_until: now }
    }

    /// Takes up to this many bytes that are due now; 0 if none are.
    pub(crate) fn take(&mut self, wanted: u64, now: Instant) -> u64 {
        if now < self.busy_until {
            return 0;
        }
        let begin = self.busy_until.max(now.checked_sub(BURST).unwrap_or(now));
        let allowed = (now.duration_since(begin).as_secs_f64() * self.rate as f64) as u64;
        let taken = wanted.min(allowed.max(self.piece));
        self.spend(taken, now);
        taken
    }

    /// Counts bytes that have passed, due or not.
    pub(crate) fn spend(&mut self, bytes: u64, now: Instant) {
        let begin = self.busy_until.max(now.checked_sub(BURST).unwrap_or(now));
        self.busy_until = begin + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
    }

    /// When more is due.
    pub(crate) fn next(&self) -> Instant {
        self.busy_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However much is wanted and time passes, no more is taken than the rate allows, and all of it in the end.
        #[test]
        fn bytes_are_taken_at_the_rate(
            rate in BYTES_PER_SECOND_MIN..10_000_000,
            piece in 1_u64..100_000,
            steps in prop::collection::vec((0_u64..1_000_000, 0_u64..2_000), 1..50),
        ) {
            let begin = Instant::now();
            let mut pacer = Pacer::new(rate, piece, begin);
            let (mut now, mut wanted, mut passed) = (begin, 0, 0);
            for (bytes, ms) in steps {
                wanted += bytes;
                loop {
                    let taken = pacer.take(wanted, now);
                    if taken == 0 {
                        break;
                    }
                    wanted -= taken;
                    passed += taken;
                }
                let seconds = now.duration_since(begin).as_secs_f64() + BURST.as_secs_f64();
                let most = (seconds * rate as f64) as u64 + piece + 1;
                prop_assert!(passed <= most, "{passed} of {most}");
                now += Duration::from_millis(ms);
            }
            while wanted > 0 {
                now = now.max(pacer.next());
                let taken = pacer.take(wanted, now);
                prop_assert!(taken > 0);
                wanted -= taken;
            }
        }
    }
}
