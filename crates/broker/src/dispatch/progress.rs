//! Whether a peer reads. The transport reports space only when half of a queue is gone, which may be one large message; the
//! bytes that the system has taken for the peer are more precise.

use crate::core::Millis;

/// Fraction of its backlog that a peer has to take in the allowed time, as one part of this many.
const PART: usize = 12;

/// Nothing is known of the time between two looks that are further apart.
const SEEN_WITHIN: Millis = 1_000;

/// When a peer last read of what it was sent.
#[derive(Debug, Default)]
pub(super) struct LastRead {
    bytes: u64,
    at: Millis,
}

impl LastRead {
    /// So many bytes have been taken by now.
    pub fn note(&mut self, now: Millis, bytes: u64) {
        *self = LastRead { bytes, at: now };
    }

    /// Whether no bytes were taken for `most` milliseconds. `bytes` is only called if it matters.
    pub fn has_stalled(&mut self, now: Millis, most: Millis, bytes: impl FnOnce() -> u64) -> bool {
        if now.saturating_sub(self.at) < most {
            return false;
        }
        let before = self.bytes;
        let bytes = bytes();
        if bytes != before {
            self.note(now, bytes);
        }
        bytes == before
    }
}

/// How long a peer has hardly read of what waits for it, as it is seen in one look after the other.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// When it had last read enough, and what it had been sent, and was to be sent, at that time.
    at: Millis,
    bytes: u64,
    waiting: usize,
    seen: Millis,
}

impl Progress {
    /// Updates with the bytes taken so far and the bytes waiting, and returns the milliseconds since the peer last read
    /// enough. A peer without a backlog, or seen after a pause, starts afresh.
    pub fn look(&mut self, now: Millis, bytes: u64, waiting: usize) -> Millis {
        let is_unknown = now.saturating_sub(std::mem::replace(&mut self.seen, now)) > SEEN_WITHIN;
        let taken = bytes.saturating_sub(self.bytes);
        let enough = (self.waiting / PART).max(1) as u64;
        if is_unknown || waiting == 0 || self.waiting == 0 || taken >= enough {
            (self.at, self.bytes, self.waiting) = (now, bytes, waiting);
        }
        now - self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reader_has_not_stalled() {
        let mut last_read = LastRead::default();
        last_read.note(1_000, 500);
        assert!(!last_read.has_stalled(5_999, 5_000, || panic!("asked for nothing")));
        // A little now and then, of a message that takes a minute.
        for second in (6..60).step_by(5) {
            assert!(!last_read.has_stalled(second * 1_000, 5_000, || 500 + second));
        }
        let last = 56;
        assert!(!last_read.has_stalled(last * 1_000 + 4_999, 5_000, || panic!("asked for nothing")));
        assert!(last_read.has_stalled(last * 1_000 + 5_000, 5_000, || 500 + last));
    }

    #[test]
    fn reader_of_almost_nothing_is_idle() {
        let mut progress = Progress::default();
        let mut look = |at: Millis, bytes, waiting| progress.look(100_000 + at, bytes, waiting);
        assert_eq!(look(0, 500, 1200), 0);
        // Less than a twelfth in all.
        assert_eq!(look(900, 550, 2400), 900);
        assert_eq!(look(1_800, 599, 2400), 1_800);
        assert_eq!(look(2_700, 600, 2400), 0);
        assert_eq!(look(3_600, 601, 2400), 900);
        // Nothing was left, and then something came.
        assert_eq!(look(4_500, 601, 0), 0);
        assert_eq!(look(5_400, 601, 5), 0);
        assert_eq!(look(6_300, 601, 5), 900);
        // A minute of which nobody knows.
        assert_eq!(look(60_000, 601, 5), 0);
        assert_eq!(look(60_900, 601, 5), 900);
    }
}
