//! A request that a stock broker hasn't answered, and may not have understood.

use std::time::Duration;

/// After so long the next dialect is tried, on the same connection: the request may be slow, and its reply still on its way.
const TRIAL: Duration = Duration::from_secs(1);

/// Dialects beside the first one.
const OTHERS: u8 = 2;

/// When a broker that has said nothing yet is asked in another dialect.
#[derive(Debug, Default)]
pub(super) struct Trial {
    at: Option<Duration>,
    tried: u8,
}

impl Trial {
    /// It was asked for the first time.
    pub fn begin(&mut self, now: Duration) {
        if self.at.is_none() && self.tried == 0 {
            self.at = Some(now + TRIAL);
        }
    }

    /// When [`Trial::again`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.at
    }

    /// Whether it is to be asked in the next dialect now.
    pub fn again(&mut self, now: Duration) -> bool {
        let is_due = self.at.is_some_and(|at| at <= now);
        if is_due {
            self.tried += 1;
            self.at = (self.tried < OTHERS).then_some(now + TRIAL);
        }
        is_due
    }

    /// Whether there is no dialect that it wasn't asked in.
    pub fn is_exhausted(&self) -> bool {
        self.tried >= OTHERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_others_is_tried_once() {
        let mut trial = Trial::default();
        assert!(!trial.again(TRIAL * 9) && trial.deadline().is_none());
        trial.begin(TRIAL);
        trial.begin(TRIAL * 8);
        let due: Vec<u32> = (0..10).filter(|&second| trial.again(TRIAL * second)).collect();
        assert_eq!((due, trial.deadline(), trial.is_exhausted()), (vec![2, 3], None, true));
        trial.begin(TRIAL * 20);
        assert!(!trial.again(TRIAL * 30));
    }
}
