//! The limit on deletions: too many at a time are held until a person releases them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Deletions within this time count together: those of `rm -r` come in many small batches.
const TOGETHER: Duration = Duration::from_secs(60);

/// How many deletions are published at a time, and what is held.
#[derive(Debug)]
pub(super) struct DeleteLimit {
    most: u64,
    /// Set by a person, from any thread.
    release: Arc<AtomicBool>,
    /// Begin of the time in which they count together, and how many were published in it.
    begun: Option<Instant>,
    count: u64,
    /// No deletion is published before a look at everything finds fewer.
    is_over: bool,
    /// So many are held, as was logged.
    held: u64,
    /// A person allows this many.
    released: Option<u64>,
}

/// The decision on deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Publish,
    /// Too many for now: a full scan shows whether they really are.
    LookAgain,
    Hold,
}

impl DeleteLimit {
    pub(super) fn new(most: u64, release: Arc<AtomicBool>) -> DeleteLimit {
        DeleteLimit { most, release, begun: None, count: 0, is_over: false, held: 0, released: None }
    }

    /// Whether a person has released what is held, since the last call. Everything is to be looked at then.
    pub(super) fn take_release(&mut self) -> bool {
        if !self.release.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.released = Some(self.held).filter(|held| *held > 0);
        if self.released.is_none() {
            tracing::warn!("no deletions are held: there is nothing to release");
        }
        self.released.is_some()
    }

    /// Whether a person has released this many. That is good for one look.
    pub(super) fn is_released(&mut self, gone: u64) -> bool {
        let is_released = self.released.take().is_some_and(|most| gone <= most);
        if is_released {
            (self.begun, self.is_over, self.held) = (None, false, 0);
        }
        is_released
    }

    /// So many are held, for whatever reason. Returns whether they are more than before.
    pub(super) fn hold(&mut self, gone: u64) -> bool {
        std::mem::replace(&mut self.held, gone) < gone
    }

    /// Number of held deletions.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Judges this many deletions where this many paths are published.
    pub(super) fn judge(&mut self, gone: u64, there: u64, is_everything: bool, now: Instant) -> Verdict {
        if self.is_over && !is_everything {
            return if gone == 0 { Verdict::Publish } else { Verdict::Hold };
        }
        if self.begun.is_none_or(|begun| now.duration_since(begun) > TOGETHER) {
            (self.begun, self.count) = (Some(now), 0);
        }
        let together = self.count + gone;
        self.is_over = gone > 0 && together > self.most && together.saturating_mul(10) > there + self.count;
        if !self.is_over {
            self.count = together;
            return Verdict::Publish;
        }
        if is_everything { Verdict::Hold } else { Verdict::LookAgain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_count_together_and_a_whole_look_decides() {
        let (begin, mut limit) = (Instant::now(), DeleteLimit::new(100, Arc::default()));
        let mut judge =
            |gone, there, whole, seconds| limit.judge(gone, there, whole, begin + Duration::from_secs(seconds));
        // Many, but few of all.
        assert_eq!(judge(500, 10_000, false, 0), Verdict::Publish);
        assert_eq!(judge(60, 600, false, 100), Verdict::Publish);
        assert_eq!(judge(60, 540, false, 110), Verdict::LookAgain, "120 of 600 within a minute");
        assert_eq!(judge(1, 540, false, 111), Verdict::Hold, "nothing before it was looked at");
        assert_eq!(judge(60, 540, true, 112), Verdict::Hold);
        assert_eq!(judge(0, 541, false, 1000), Verdict::Publish, "what is new");
        assert_eq!(judge(1, 541, false, 1000), Verdict::Hold, "however long it takes");
        assert_eq!(judge(10, 540, true, 1001), Verdict::Publish, "most are back");
        assert_eq!(judge(10, 530, false, 1002), Verdict::Publish);
    }

    #[test]
    fn a_release_is_good_once_and_for_what_was_shown() {
        let release = Arc::new(AtomicBool::new(false));
        let mut limit = DeleteLimit::new(1, Arc::clone(&release));
        release.store(true, Ordering::Release);
        assert!(!limit.take_release() && !limit.is_released(0), "nothing is held");
        for (gone, expected) in [(6, false), (5, true), (1, false)] {
            limit.hold(5);
            release.store(true, Ordering::Release);
            assert!(limit.take_release());
            if gone == 1 {
                assert!(limit.is_released(5));
            }
            assert_eq!(limit.is_released(gone), expected, "{gone}");
        }
    }
}
