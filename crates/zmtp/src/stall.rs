//! Whether a peer that has octets to take, behind which no PING goes, is there at all.

use std::time::{Duration, Instant};

/// A peer that reads as long as it lives, and when it last gave a sign of that.
#[derive(Debug)]
pub(crate) struct Stall {
    most: Duration,
    taken: u64,
    since: Instant,
}

impl Stall {
    /// Such a peer is given up when it has given none for so long.
    pub fn new(most: Duration, now: Instant) -> Stall {
        Stall { most, taken: 0, since: now }
    }

    /// It isn't the peer's doing that nothing leaves for it, or nothing does.
    pub fn excuse(&mut self, now: Instant) {
        self.since = now;
    }

    /// Looks at the octets that it has taken in all, and when it was last heard; gives whether it has to be given up.
    pub fn look(&mut self, taken: u64, heard: Instant, now: Instant) -> bool {
        if taken != self.taken {
            (self.taken, self.since) = (taken, now);
        }
        self.since = self.since.max(heard);
        now.saturating_duration_since(self.since) >= self.most
    }
}
