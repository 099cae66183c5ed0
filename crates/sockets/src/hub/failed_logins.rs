//! Failed logins: guessing passwords is slow for each tenant, whatever connections it makes, and for nobody else.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Failures of a tenant that are answered at once; each second there may be one more.
const AT_ONCE: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest delay of an answer. A tenant whose next failure would have to wait longer isn't listened to.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Tenants that are remembered.
const TENANTS_MAX: usize = 4096;

/// Tenants with failed logins, each with the time when all of its failures are forgiven.
#[derive(Debug)]
pub(super) struct FailedLogins<T>(HashMap<T, Instant>);

impl<T: Clone + Eq + Hash> FailedLogins<T> {
    pub(super) fn new() -> FailedLogins<T> {
        FailedLogins(HashMap::new())
    }

    /// Whether a tenant may try to log in.
    pub(super) fn may_try(&self, tenant: &T, now: Instant) -> bool {
        self.0.get(tenant).is_none_or(|forgiven| *forgiven <= now + INTERVAL * AT_ONCE + DELAY_MAX)
    }

    /// Counts a failure; returns how long to delay the refusal.
    pub(super) fn failed(&mut self, tenant: T, now: Instant) -> Duration {
        if self.0.len() >= TENANTS_MAX && !self.0.contains_key(&tenant) {
            self.0.retain(|_, forgiven| *forgiven > now);
            // If all have failed lately, the one with the least failures is forgiven.
            let least = self.0.iter().min_by_key(|(_, forgiven)| **forgiven).map(|(tenant, _)| tenant.clone());
            if let Some(least) = least.filter(|_| self.0.len() >= TENANTS_MAX) {
                self.0.remove(&least);
            }
        }
        let forgiven = self.0.entry(tenant).or_insert(now);
        *forgiven = (*forgiven).max(now) + INTERVAL;
        forgiven.duration_since(now).saturating_sub(INTERVAL * AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_beyond_a_few_take_a_second_each_and_others_none() {
        let (mut logins, start) = (FailedLogins::new(), Instant::now());
        for _ in 0..AT_ONCE {
            assert_eq!(logins.failed("hostile", start), Duration::ZERO);
        }
        assert_eq!(logins.failed("honest", start), Duration::ZERO);
        // As many at once as it likes, and again and again.
        let mut tried = 0;
        for millisecond in 0..100_000 {
            let now = start + Duration::from_millis(millisecond);
            while logins.may_try(&"hostile", now) {
                assert!(logins.failed("hostile", now) <= DELAY_MAX + INTERVAL);
                tried += 1;
            }
            assert!(logins.may_try(&"honest", now));
        }
        assert!((95..110).contains(&tried), "{tried}");
        assert_eq!(logins.failed("hostile", start + Duration::from_secs(1000)), Duration::ZERO);
    }

    #[test]
    fn few_tenants_are_remembered() {
        let (mut logins, now) = (FailedLogins::new(), Instant::now());
        for _ in 0..20 {
            logins.failed(0, now);
        }
        for tenant in 0..3 * TENANTS_MAX {
            logins.failed(tenant, now);
        }
        assert_eq!(logins.0.len(), TENANTS_MAX);
        assert!(!logins.may_try(&0, now), "the worst one is among them");
    }
}
