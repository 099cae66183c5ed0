//! Choice of the endpoint to try next, and when: each in turn, with growing delays once all have failed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The current endpoint, and failures so far.
#[derive(Debug)]
pub(super) struct Failover {
    endpoints: usize,
    current: usize,
    /// Failed attempts and short-lived connections since the last success.
    failures: u32,
    first: Duration,
    most: Duration,
    random: RandomState,
}

impl Failover {
    /// Starts with the first of several endpoints.
    pub fn new(endpoints: usize, first: Duration, most: Duration) -> Failover {
        Failover { endpoints: endpoints.max(1), current: 0, failures: 0, first, most, random: RandomState::new() }
    }

    /// Index of the current endpoint.
    pub fn current(&self) -> usize {
        self.current
    }

    /// The connection worked.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The connection failed: moves on to the next endpoint, and returns the delay before trying it.
    pub fn failed(&mut self) -> Duration {
        self.current = (self.current + 1) % self.endpoints;
        self.failures = self.failures.saturating_add(1);
        let all = u32::try_from(self.endpoints).unwrap_or(u32::MAX);
        if self.failures < all {
            return Duration::ZERO;
        }
        let doublings = (self.failures / all).saturating_sub(1).min(16);
        let wait = self.first.saturating_mul(1 << doublings).min(self.most);
        // Jitter from half to the whole delay, so that many clients don't reconnect in step.
        let random = self.random.hash_one(self.failures) % 1024;
        wait / 2 + wait.mul_f64(random as f64 / 2048.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_endpoints_are_tried_before_delays_grow() {
        let (first, most) = (Duration::from_millis(20), Duration::from_secs(1));
        let mut failover = Failover::new(2, first, most);
        failover.succeeded();
        assert_eq!(failover.failed(), Duration::ZERO);
        assert_eq!(failover.current(), 1);
        let wait = failover.failed();
        assert!(wait >= first / 2 && wait <= first, "{wait:?}");
        assert_eq!(failover.current(), 0);
        let waits: Vec<_> = (0..40).map(|_| failover.failed()).collect();
        assert!(waits.iter().all(|wait| *wait <= most));
        assert!(waits[39] >= most / 2);
        failover.succeeded();
        assert_eq!(failover.failed(), Duration::ZERO);
    }
}
