//! The credit that a worker keeps back after it had no place for a request with a large body. Such requests are given back at once, for
//! others to do; a worker that had its credit back at once, too, would be given all of them.

use std::time::Duration;

/// How long the credit of one is kept back. Twice as long for each that follows without one that had a place.
const FIRST: Duration = Duration::from_secs(1);
const DOUBLINGS_MAX: u32 = 4;

/// What is kept back.
#[derive(Debug, Default)]
pub(super) struct Rest {
    credits: Vec<Credit>,
    in_a_row: u32,
}

/// The credit of one request.
#[derive(Debug)]
struct Credit {
    lasts: Duration,
    /// Known at the first look at the clock.
    ends: Option<Duration>,
}

impl Rest {
    /// A request had no place.
    pub fn begin(&mut self) {
        let lasts = FIRST * 2_u32.pow(self.in_a_row.min(DOUBLINGS_MAX));
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.credits.push(Credit { lasts, ends: None });
    }

    /// One had.
    pub fn had_a_place(&mut self) {
        self.in_a_row = 0;
    }

    /// How much credit is kept back.
    pub fn credit(&self) -> u32 {
        u32::try_from(self.credits.len()).unwrap_or(u32::MAX)
    }

    pub fn deadline(&self) -> Option<Duration> {
        self.credits.iter().map(|credit| credit.ends.unwrap_or_default()).min()
    }

    /// Looks at the clock. Whether some of it is free again.
    pub fn on_time(&mut self, now: Duration) -> bool {
        let before = self.credits.len();
        self.credits.retain_mut(|credit| *credit.ends.get_or_insert(now + credit.lasts) > now);
        self.credits.len() < before
    }
}
