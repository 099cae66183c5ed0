//! How many lines of each kind a log takes, as a pure account: it is given the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// After so long a kind may say something again, and what was held back of it is told.
pub const WINDOW: Duration = Duration::from_secs(10);

/// How often something may be said.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// So many lines one after another.
    pub at_once: u32,
    /// And so many more in each window, which are saved up as far as that.
    pub in_window: u32,
}

/// Lines that were not said.
#[derive(Debug, PartialEq, Eq)]
pub struct HeldBack<D> {
    pub count: u64,
    pub over: Duration,
    /// What the first of them was about.
    pub about: D,
}

/// One kind of line.
struct Account<D> {
    /// A window begins with the first line after the last one has ended.
    since: Instant,
    left: u32,
    held: Option<(u64, D)>,
}

/// What was said and held back, by kind. Kinds are few: nothing that a peer says makes one.
pub struct Accounts<K, D> {
    by_kind: HashMap<K, Account<D>>,
    /// Of windows that have ended.
    ended: Vec<HeldBack<D>>,
}

impl<K, D> Default for Accounts<K, D> {
    fn default() -> Self {
        Accounts { by_kind: HashMap::new(), ended: Vec::new() }
    }
}

impl<K: Hash + Eq, D> Accounts<K, D> {
    /// Whether one more line of this kind is said; if not, it is counted. `about` is asked for the first of each window only.
    pub fn may_say(&mut self, now: Instant, kind: K, allowance: Allowance, about: impl FnOnce() -> D) -> bool {
        let fresh = Account { since: now, left: allowance.at_once, held: None };
        let account = self.by_kind.entry(kind).or_insert(fresh);
        let windows = now.saturating_duration_since(account.since).as_secs() / WINDOW.as_secs();
        if windows > 0 {
            let more = u32::try_from(windows).unwrap_or(u32::MAX).saturating_mul(allowance.in_window);
            account.left = account.left.saturating_add(more).min(allowance.at_once);
            account.since = now;
            self.ended.extend(account.held.take().map(|(count, about)| HeldBack { count, over: WINDOW, about }));
        }
        if account.left > 0 {
            account.left -= 1;
            return true;
        }
        account.held.get_or_insert_with(|| (0, about())).0 += 1;
        false
    }

    /// What was held back in windows that have ended.
    pub fn ended(&mut self, now: Instant) -> Vec<HeldBack<D>> {
        let over = |account: &Account<D>| now.saturating_duration_since(account.since) >= WINDOW;
        for account in self.by_kind.values_mut().filter(|account| over(account)) {
            self.ended.extend(account.held.take().map(|(count, about)| HeldBack { count, over: WINDOW, about }));
        }
        std::mem::take(&mut self.ended)
    }

    /// When there will be something to tell, if nothing else is said.
    pub fn next_end(&self) -> Option<Instant> {
        self.by_kind.values().filter(|account| account.held.is_some()).map(|account| account.since + WINDOW).min()
    }

    /// All that was held back: the log ends.
    pub fn finish(&mut self, now: Instant) -> Vec<HeldBack<D>> {
        let mut all = self.ended(now);
        all.extend(self.by_kind.drain().filter_map(|(_, Account { since, held, .. })| {
            held.map(|(count, about)| HeldBack { count, over: now.saturating_duration_since(since), about })
        }));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Allowance = Allowance { at_once: 5, in_window: 2 };

    /// How many of `count` lines are said.
    fn say(accounts: &mut Accounts<&'static str, String>, now: Instant, kind: &'static str, count: u64) -> usize {
        (0..count).filter(|n| accounts.may_say(now, kind, FEW, || format!("{kind} {n}"))).count()
    }

    fn held(count: u64, over_s: u64, about: &str) -> HeldBack<String> {
        HeldBack { count, over: Duration::from_secs(over_s), about: about.to_owned() }
    }

    #[test]
    fn a_flood_costs_few_lines_and_is_counted() {
        let (mut accounts, start) = (Accounts::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(say(&mut accounts, at(0), "bad", 1000), 5);
        assert_eq!(accounts.next_end(), Some(at(10)));
        // Others are not affected, and their windows are their own.
        assert_eq!(say(&mut accounts, at(4), "good", 5), 5);
        assert_eq!(say(&mut accounts, at(4), "good", 1), 0);
        assert_eq!(say(&mut accounts, at(9), "bad", 1), 0);
        assert!(accounts.ended(at(9)).is_empty());
        assert_eq!(accounts.ended(at(10)), [held(996, 10, "bad 5")]);
        assert_eq!((accounts.ended(at(10)), accounts.next_end()), (vec![], Some(at(14))));
        assert_eq!(say(&mut accounts, at(10), "bad", 10), 2);
        assert_eq!(accounts.ended(at(14)), [held(1, 10, "good 0")]);
        // Even if nobody asked in time, each window is told by itself.
        assert_eq!(say(&mut accounts, at(21), "bad", 4), 2);
        assert_eq!(accounts.ended(at(21)), [held(8, 10, "bad 2")]);
        assert_eq!(accounts.finish(at(24)), [held(2, 3, "bad 2")]);
    }

    #[test]
    fn what_is_not_said_is_saved_up_to_the_limit() {
        let (mut accounts, start) = (Accounts::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(say(&mut accounts, at(0), "one", 5), 5);
        assert_eq!(say(&mut accounts, at(21), "one", 9), 4);
        assert_eq!(say(&mut accounts, at(1_000_000), "one", 9), 5);
        accounts.ended(at(2_000_000));
        // Of a clock that goes back, nothing comes.
        assert_eq!(say(&mut accounts, at(3), "one", 9), 0);
        assert_eq!(accounts.finish(at(0)), [held(9, 0, "one 0")]);
    }
}
