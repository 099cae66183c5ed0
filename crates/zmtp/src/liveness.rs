//! How long a peer may give no sign of life: after a PING, or with bytes to take, behind which no PING goes.
//!
//! A sign is also that its system takes what this side's still holds. On a slow link megabytes of that are between this side's last
//! byte and the peer's answer to it. A driver that can see that is asked to look twice: when half of the time is over, and at its end.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Patience {
    most: Duration,
    since: Instant,
    /// So many bytes had been written before: only these tell of a peer that is slow to get them. Its system takes later ones as well,
    /// such as further PINGs, if it has hung.
    before: u64,
    /// The first look since then has been, if anybody looks at all.
    looked: bool,
    /// What its system had taken when somebody last looked since then.
    seen: Option<u64>,
}

impl Patience {
    /// Such a peer is given up when it has given no sign for so long.
    pub fn new(most: Duration, before: u64, now: Instant) -> Patience {
        Patience { most, since: now, before, looked: false, seen: None }
    }

    /// A sign of life at `at`, or until then it wasn't the peer's doing that there was none.
    pub fn sign(&mut self, at: Instant) {
        if at > self.since {
            *self = Patience::new(self.most, self.before, at);
        }
    }

    /// Whether a look at what its system has taken would tell something.
    pub fn doubts(&self, now: Instant) -> bool {
        self.is_over(now) || (!self.looked && self.waited(now) >= self.most / 2)
    }

    /// What its system has taken in all, if that can be seen: more than at the last look is a sign of life.
    pub fn saw(&mut self, taken: u64, now: Instant) {
        let taken = taken.min(self.before);
        match self.seen {
            Some(seen) if taken > seen => self.since = now,
            Some(_) => {}
            // This side was late: there has been nothing yet to compare with.
            None if self.is_over(now) => self.since = now.checked_sub(self.most / 2).unwrap_or(now),
            None => {}
        }
        (self.looked, self.seen) = (true, Some(taken));
    }

    /// Whether the peer has to be given up. If half of the time is over, the first look was possible by now.
    pub fn ends(&mut self, now: Instant) -> bool {
        self.looked |= self.waited(now) >= self.most / 2;
        self.is_over(now)
    }

    /// When to ask again. `None`: never, as far as a clock can tell.
    pub fn deadline(&self) -> Option<Instant> {
        self.since.checked_add(if self.looked { self.most } else { self.most / 2 })
    }

    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.waited(now) >= self.most
    }
}
