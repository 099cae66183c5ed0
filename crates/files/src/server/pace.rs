//! How fast a transfer is, and what it waits for most of the time. The caller says the time.

use super::stats::Wait;
use std::time::{Duration, Instant};

/// Time that is summed up together.
const SLOT: Duration = Duration::from_secs(5);
/// Slots that are remembered: a minute, and those that are compared.
const SLOTS: usize = 14;
/// Slots in a minute.
const MINUTE_SLOTS: u64 = 12;
/// Age at which a transfer has a rate.
const AGE_MIN: Duration = Duration::from_millis(200);

/// Rates of a transfer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// Since its last byte of progress.
    pub stalled: Duration,
    /// Bytes a second over the last 5 to 10 seconds; `None` in its first fifth of a second.
    pub rate: Option<u64>,
    /// The same a minute earlier; `None` if it is younger.
    pub rate_before: Option<u64>,
}

/// Counts a transfer's bytes and waits.
#[derive(Debug)]
pub(super) struct Meter {
    begun: Instant,
    /// Bytes so far, and when they last became more.
    moved: u64,
    moved_at: Instant,
    /// Its wait since then.
    wait: (Option<Wait>, Instant),
    /// Number of the slot of now; the last ones are remembered.
    slot: u64,
    bytes: [u64; SLOTS],
    /// Waits in this slot and the one before, in microseconds.
    waits: [[u32; Wait::ALL.len()]; 2],
}

impl Meter {
    pub(super) fn new(now: Instant) -> Meter {
        Meter {
            begun: now,
            moved: 0,
            moved_at: now,
            wait: (None, now),
            slot: 0,
            bytes: [0; SLOTS],
            waits: Default::default(),
        }
    }

    /// Notes what it waits for from now on, and the bytes moved so far.
    pub(super) fn note(&mut self, wait: Option<Wait>, moved: u64, now: Instant) {
        let (before, since) = std::mem::replace(&mut self.wait, (wait, now));
        let waited = now.saturating_duration_since(since);
        let slot = (now.saturating_duration_since(self.begun).as_millis() / SLOT.as_millis()) as u64;
        if slot > self.slot {
            for next in (self.slot + 1..=slot).take(SLOTS) {
                self.bytes[next as usize % SLOTS] = 0;
            }
            let last = std::mem::take(&mut self.waits[0]);
            self.waits[1] = if slot == self.slot + 1 { last } else { Default::default() };
            self.slot = slot;
        }
        if let Some(before) = before {
            // Of a long time only as much as these slots have.
            let micros = u32::try_from(waited.min(2 * SLOT).as_micros()).unwrap_or(u32::MAX);
            let sum = &mut self.waits[0][before as usize];
            *sum = sum.saturating_add(micros);
        }
        if moved > self.moved {
            self.bytes[slot as usize % SLOTS] += moved - self.moved;
            (self.moved, self.moved_at) = (moved, now);
        }
    }

    /// Whether it was last noted at this time.
    pub(super) fn is_of(&self, now: Instant) -> bool {
        self.wait.1 == now
    }

    /// Bytes became known to have left, or to have come.
    pub(super) fn progressed(&mut self, at: Instant) {
        self.moved_at = self.moved_at.max(at);
    }

    /// Its wait now.
    pub(super) fn wait(&self) -> Option<Wait> {
        self.wait.0
    }

    /// Its wait in at least half of the last seconds, if that is one. To be called after [`Meter::note`].
    pub(super) fn main_wait(&self, now: Instant) -> Option<Wait> {
        let half = (self.recent(now).as_micros() / 2).max(1);
        let waited = |wait: &Wait| self.waits.iter().map(|waits| u128::from(waits[*wait as usize])).sum::<u128>();
        Wait::ALL.into_iter().find(|wait| waited(wait) >= half)
    }

    /// The time of this slot, and of the one before.
    fn recent(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.begun);
        let begin = SLOT.saturating_mul(u32::try_from(self.slot.saturating_sub(1)).unwrap_or(u32::MAX));
        age.saturating_sub(begin)
    }

    /// Its rates. To be called after [`Meter::note`].
    pub(super) fn pace(&self, now: Instant) -> Pace {
        let bytes = |slot: u64| self.bytes[slot as usize % SLOTS];
        let recent = self.recent(now);
        let moved = bytes(self.slot) + self.slot.checked_sub(1).map_or(0, bytes);
        let before = self.slot.checked_sub(MINUTE_SLOTS);
        Pace {
            stalled: now.saturating_duration_since(self.moved_at),
            rate: (recent >= AGE_MIN).then(|| (moved as f64 / recent.as_secs_f64()) as u64),
            rate_before: before.map(|before| (bytes(before) + bytes(before + 1)) / (2 * SLOT.as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    #[test]
    fn the_rate_of_the_last_seconds_is_compared_with_that_of_a_minute_ago() {
        let begin = Instant::now();
        let mut meter = Meter::new(begin);
        let mut moved = 0;
        for tenth in 1..=1200 {
            moved += if tenth < 700 { 1000 } else { 100 };
            meter.note(Some(Wait::Receiver), moved, at(begin, tenth * 100));
            let pace = meter.pace(at(begin, tenth * 100));
            match tenth {
                ..2 => assert_eq!(pace.rate, None, "{tenth}"),
                2..590 => assert!(pace.rate > Some(9800) && pace.rate_before.is_none(), "{tenth} {pace:?}"),
                650..699 => assert!(pace.rate > Some(9800) && pace.rate_before > Some(9800), "{tenth} {pace:?}"),
                820..1200 => assert!(pace.rate < Some(1100) && pace.rate_before > Some(9800), "{tenth} {pace:?}"),
                _ => {}
            }
        }
        meter.note(Some(Wait::Receiver), moved, at(begin, 200_000));
        let pace = meter.pace(at(begin, 200_000));
        assert_eq!((pace.stalled, pace.rate, pace.rate_before), (Duration::from_secs(80), Some(0), Some(0)));
    }

    #[test]
    fn the_main_wait_is_what_took_half_of_the_last_seconds() {
        let begin = Instant::now();
        let mut meter = Meter::new(begin);
        let wait = |ms: u64| match ms {
            0..20_000 if ms % 1000 < 700 => Some(Wait::Disk),
            0..20_000 => Some(Wait::Receiver),
            20_000..40_000 if ms % 1000 < 400 => Some(Wait::Disk),
            20_000..40_000 if ms % 1000 < 800 => Some(Wait::Credit),
            20_000..40_000 => None,
            _ => Some(Wait::Hash),
        };
        for ms in (0..60_000).step_by(100) {
            meter.note(wait(ms), ms, at(begin, ms));
            let main = meter.main_wait(at(begin, ms));
            match ms {
                2000..20_000 => assert_eq!(main, Some(Wait::Disk), "{ms}"),
                31_000..40_000 => assert_eq!(main, None, "{ms}"),
                50_000.. => assert_eq!(main, Some(Wait::Hash), "{ms}"),
                _ => {}
            }
        }
        // Nothing was noted for a long time: it waits for the same.
        meter.note(Some(Wait::Hash), 60_000, at(begin, 90_000));
        assert_eq!(meter.main_wait(at(begin, 90_000)), Some(Wait::Hash));
    }
}
