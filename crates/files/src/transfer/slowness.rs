//! Why a client is slow, as it reports to the server: at most once a second, and only what took most of that time.

use crate::protocol::control::Slow;
use std::time::{Duration, Instant};

/// Time that a report is about.
const PERIOD: Duration = Duration::from_secs(1);

/// Measures what a client waits for on its own side.
#[derive(Debug)]
pub(crate) struct Slowness {
    begun: Instant,
    /// Its wait since then.
    last: (Option<Slow>, Instant),
    /// Waits in this period, by cause.
    waited: [Duration; Slow::ALL.len()],
    said: Option<Slow>,
}

impl Slowness {
    pub(crate) fn new(now: Instant) -> Slowness {
        Slowness { begun: now, last: (None, now), waited: Default::default(), said: None }
    }

    /// The last report.
    pub(crate) fn said(&self) -> Option<Slow> {
        self.said
    }

    /// Notes what it waits for now. Whether there is something else to report.
    pub(crate) fn note(&mut self, wait: Option<Slow>, now: Instant) -> bool {
        let (before, since) = std::mem::replace(&mut self.last, (wait, now));
        if let Some(waited) = before.and_then(|before| self.waited.get_mut(before as usize)) {
            *waited += now.saturating_duration_since(since);
        }
        let period = now.saturating_duration_since(self.begun);
        if period < PERIOD {
            return false;
        }
        let waited = std::mem::take(&mut self.waited);
        let most = Slow::ALL.into_iter().zip(waited).find(|(_, waited)| *waited > period / 2);
        self.begun = now;
        let slow = most.map(|(slow, _)| slow);
        std::mem::replace(&mut self.said, slow) != slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_most_of_a_second_is_reported_once() {
        let begin = Instant::now();
        let mut slowness = Slowness::new(begin);
        let mut reports = Vec::new();
        for tenth in 0..80 {
            let wait = match tenth {
                // Now and then: no cause.
                0..20 => (tenth % 3 == 0).then_some(Slow::Disk),
                20..45 => (tenth % 5 > 0).then_some(Slow::Rate),
                45..60 => Some(if tenth % 2 == 0 { Slow::Disk } else { Slow::Rate }),
                _ => None,
            };
            if slowness.note(wait, begin + Duration::from_millis(100 * tenth)) {
                reports.push((tenth / 10, slowness.said()));
            }
        }
        assert_eq!(reports, [(3, Some(Slow::Rate)), (6, None)]);
    }
}
