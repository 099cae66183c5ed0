//! An operator's figures of the catalogue and of the watching, noted where something changes, so that nobody who asks waits for the disk.

use crate::catalogue::Catalogue;
use crate::protocol::follow::Epoch;
use crate::protocol::manifest::VERSIONS;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Times that are remembered.
const TIMES_MAX: usize = 1024;
/// Numbers that were given out within this time have one.
const TIMES_EVERY: Duration = Duration::from_secs(1);

/// Sums of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CatalogueStats {
    /// The numbers' epoch.
    pub epoch: Epoch,
    /// The newest number.
    pub head: u64,
    /// Paths at which something is.
    pub paths: usize,
    /// The tree was read once, as a whole.
    pub is_complete: bool,
    /// Entries of published versions.
    pub versions: usize,
    /// Of the watching, if the server itself watches.
    pub watch: Option<WatchStats>,
    times: Times,
}

/// The watching of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchStats {
    /// Files that are to be published when they are finished.
    pub waiting: usize,
    /// Files of these that are written to all the time.
    pub written: usize,
    /// The first of them.
    pub written_paths: Vec<String>,
    /// Directories and files that can't be read.
    pub unread: usize,
    /// The first of them.
    pub unread_paths: Vec<String>,
    /// Deletions that are held, and why.
    pub held: Option<(u64, &'static str)>,
    /// When everything was last looked at, and how long that took.
    pub looked: Option<(Instant, Duration)>,
    /// Some directories can't be watched: everything is looked at every 30 s.
    pub is_blind: bool,
    /// Whether there are too many paths, so that some aren't published.
    pub is_full: bool,
    /// Overflows of the kernel's queue of events.
    pub overflows: u64,
}

impl CatalogueStats {
    pub(super) fn of(catalogue: &Catalogue) -> CatalogueStats {
        let times = Times(VecDeque::from([(0, Instant::now())]));
        let mut stats = CatalogueStats {
            epoch: catalogue.epoch(),
            head: 0,
            paths: 0,
            is_complete: false,
            versions: 0,
            watch: None,
            times,
        };
        stats.note(catalogue, Instant::now());
        stats
    }

    /// Updates the figures.
    pub(super) fn note(&mut self, catalogue: &Catalogue, now: Instant) {
        if catalogue.epoch() != self.epoch || catalogue.head() < self.head {
            // The server of a relay has begun again.
            self.times = Times(VecDeque::from([(0, now)]));
        } else if catalogue.head() > self.head {
            self.times.note(self.head + 1, now);
        }
        self.epoch = catalogue.epoch();
        self.head = catalogue.head();
        self.paths = catalogue.len();
        self.is_complete = catalogue.is_complete();
        self.versions = catalogue.below(VERSIONS.as_bytes()).count();
    }

    /// The lag of a follower that has everything up to a number: in changes, and the minimum age of the first missing one.
    pub fn behind(&self, seq: u64, now: Instant) -> (u64, Duration) {
        let changes = self.head.saturating_sub(seq);
        let since = self.times.of(seq + 1).filter(|_| changes > 0);
        (changes, since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)))
    }
}

/// From which number on they were given out when. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Times(VecDeque<(u64, Instant)>);

impl Times {
    fn note(&mut self, first: u64, now: Instant) {
        if self.0.back().is_some_and(|(of, at)| *of > 0 && now.saturating_duration_since(*at) < TIMES_EVERY) {
            return;
        }
        if self.0.len() >= TIMES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((first, now));
    }

    fn of(&self, seq: u64) -> Option<Instant> {
        let after = self.0.partition_point(|(first, _)| *first <= seq);
        self.0.get(after.saturating_sub(1)).map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::follow::Cursor;

    #[test]
    fn the_age_of_a_change_is_known_to_the_second() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut times = Times(VecDeque::from([(0, start)]));
        for (first, seconds) in [(1, 10), (5, 20), (6, 20), (9, 40)] {
            times.note(first, at(seconds));
        }
        for (seq, seconds) in [(1, 10), (4, 10), (5, 20), (8, 20), (9, 40), (100, 40)] {
            assert_eq!(times.of(seq), Some(at(seconds)), "{seq}");
        }
        // Older ones are forgotten, and as old as the oldest that is known.
        for second in 0..2 * TIMES_MAX as u64 {
            times.note(10 + second, at(50 + second));
        }
        assert_eq!((times.0.len(), times.of(10)), (TIMES_MAX, Some(at(50 + TIMES_MAX as u64))));
    }

    #[test]
    fn numbers_that_begin_again_are_as_old_as_that() {
        let (mut catalogue, epoch) = (Catalogue::relayed(), |one| Epoch([one; 16]));
        catalogue.reset(None, Cursor { epoch: epoch(1), seq: 100 }, Vec::new()).unwrap();
        let (mut stats, start) = (CatalogueStats::of(&catalogue), Instant::now());
        catalogue.reset(None, Cursor { epoch: epoch(2), seq: 100 }, Vec::new()).unwrap();
        stats.note(&catalogue, start + Duration::from_secs(60));
        assert_eq!(stats.behind(98, start + Duration::from_secs(61)), (2, Duration::from_secs(1)));
    }
}
