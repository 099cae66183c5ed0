//! Rate limits of log lines by kind, as a pure account: the caller says the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Time after which a kind may log again, and its suppressed lines are reported.
pub const WINDOW: Duration = Duration::from_secs(10);

/// How often lines of one kind may be logged.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    /// Lines in a burst.
    pub burst: u32,
    /// Lines that each window adds, up to a burst.
    pub per_window: u32,
}

/// Lines that were not logged.
#[derive(Debug, PartialEq, Eq)]
pub struct Suppressed<D> {
    pub count: u64,
    pub over: Duration,
    /// Description of the first one.
    pub first: D,
}

/// State of one kind of line.
struct Bucket<D> {
    /// Start of the window, which is the first line after the end of the last one.
    since: Instant,
    left: u32,
    suppressed: Option<(u64, D)>,
}

/// Rate limiter of all kinds. Kinds are few: nothing from a peer makes one.
pub struct Limiter<K, D> {
    by_kind: HashMap<K, Bucket<D>>,
    /// Of windows that have ended.
    ended: Vec<Suppressed<D>>,
}

impl<K, D> Default for Limiter<K, D> {
    fn default() -> Self {
        Limiter { by_kind: HashMap::new(), ended: Vec::new() }
    }
}

impl<K: Hash + Eq, D> Limiter<K, D> {
    /// True if one more line of this kind may be logged; otherwise counts it. `describe` is called for the first suppressed line of a window.
    pub fn try_log(&mut self, now: Instant, kind: K, limit: RateLimit, describe: impl FnOnce() -> D) -> bool {
        let fresh = Bucket { since: now, left: limit.burst, suppressed: None };
        let bucket = self.by_kind.entry(kind).or_insert(fresh);
        let windows = now.saturating_duration_since(bucket.since).as_secs() / WINDOW.as_secs();
        if windows > 0 {
            let more = u32::try_from(windows).unwrap_or(u32::MAX).saturating_mul(limit.per_window);
            bucket.left = bucket.left.saturating_add(more).min(limit.burst);
            bucket.since = now;
            self.ended.extend(bucket.take_suppressed(WINDOW));
        }
        if bucket.left > 0 {
            bucket.left -= 1;
            return true;
        }
        bucket.suppressed.get_or_insert_with(|| (0, describe())).0 += 1;
        false
    }

    /// Suppressed lines of windows that have ended.
    pub fn take_ended(&mut self, now: Instant) -> Vec<Suppressed<D>> {
        let has_ended = |bucket: &Bucket<D>| now.saturating_duration_since(bucket.since) >= WINDOW;
        for bucket in self.by_kind.values_mut().filter(|bucket| has_ended(bucket)) {
            self.ended.extend(bucket.take_suppressed(WINDOW));
        }
        std::mem::take(&mut self.ended)
    }

    /// When the next window with suppressed lines ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.by_kind.values().filter(|bucket| bucket.suppressed.is_some()).map(|bucket| bucket.since + WINDOW).min()
    }

    /// All suppressed lines, at the end of the log.
    pub fn finish(&mut self, now: Instant) -> Vec<Suppressed<D>> {
        let mut all = self.take_ended(now);
        all.extend(self.by_kind.drain().filter_map(|(_, mut bucket)| {
            let over = now.saturating_duration_since(bucket.since);
            bucket.take_suppressed(over)
        }));
        all
    }
}

impl<D> Bucket<D> {
    fn take_suppressed(&mut self, over: Duration) -> Option<Suppressed<D>> {
        self.suppressed.take().map(|(count, first)| Suppressed { count, over, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: RateLimit = RateLimit { burst: 5, per_window: 2 };

    /// Tries to log `count` lines; returns how many were logged.
    fn log(limiter: &mut Limiter<&'static str, String>, now: Instant, kind: &'static str, count: u64) -> usize {
        (0..count).filter(|n| limiter.try_log(now, kind, FEW, || format!("{kind} {n}"))).count()
    }

    fn suppressed(count: u64, over_s: u64, first: &str) -> Suppressed<String> {
        Suppressed { count, over: Duration::from_secs(over_s), first: first.to_owned() }
    }

    #[test]
    fn flood_is_limited_and_counted() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(log(&mut limiter, at(0), "bad", 1000), 5);
        assert_eq!(limiter.next_end(), Some(at(10)));
        // Other kinds have limits and windows of their own.
        assert_eq!(log(&mut limiter, at(4), "good", 5), 5);
        assert_eq!(log(&mut limiter, at(4), "good", 1), 0);
        assert_eq!(log(&mut limiter, at(9), "bad", 1), 0);
        assert!(limiter.take_ended(at(9)).is_empty());
        assert_eq!(limiter.take_ended(at(10)), [suppressed(996, 10, "bad 5")]);
        assert_eq!((limiter.take_ended(at(10)), limiter.next_end()), (vec![], Some(at(14))));
        assert_eq!(log(&mut limiter, at(10), "bad", 10), 2);
        assert_eq!(limiter.take_ended(at(14)), [suppressed(1, 10, "good 0")]);
        // Each window is reported by itself, even if it was not taken in time.
        assert_eq!(log(&mut limiter, at(21), "bad", 4), 2);
        assert_eq!(limiter.take_ended(at(21)), [suppressed(8, 10, "bad 2")]);
        assert_eq!(limiter.finish(at(24)), [suppressed(2, 3, "bad 2")]);
    }

    #[test]
    fn unused_lines_add_up_to_one_burst() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(log(&mut limiter, at(0), "one", 5), 5);
        assert_eq!(log(&mut limiter, at(21), "one", 9), 4);
        assert_eq!(log(&mut limiter, at(1_000_000), "one", 9), 5);
        limiter.take_ended(at(2_000_000));
        // A clock that goes back adds nothing.
        assert_eq!(log(&mut limiter, at(3), "one", 9), 0);
        assert_eq!(limiter.finish(at(0)), [suppressed(9, 0, "one 0")]);
    }
}
