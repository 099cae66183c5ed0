#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[test]
fn units_return_when_the_permit_is_dropped() {
    let quota = Quota::new(10);
    let mut permit = quota.try_acquire(10).unwrap();
    assert!(quota.try_acquire(1).is_none());
    let part = permit.split(4).unwrap();
    assert!(permit.split(7).is_none());
    drop(permit);
    assert_eq!((quota.used(), quota.available(), part.units()), (4, 6, 4));
    drop(part);
    assert_eq!(quota.used(), 0);
}

#[test]
fn a_lower_limit_keeps_the_rest_for_others() {
    let quota = Quota::new(100);
    let low = quota.try_acquire_below(75, 75);
    assert!(low.is_some() && quota.try_acquire_below(75, 1).is_none());
    assert!(quota.try_acquire(25).is_some());
    assert!(quota.try_acquire_below(1000, 26).is_none());
}

#[test]
fn what_is_there_already_counts_beyond_the_limit() {
    let quota = Quota::new(100);
    let mut permit = quota.acquire(150);
    assert_eq!((quota.used(), quota.available()), (150, 0));
    assert!(quota.try_acquire(0).is_none());
    permit.merge(quota.acquire(50)).unwrap();
    assert!(permit.merge(Quota::new(1).acquire(1)).is_err());
    drop(permit);
    assert_eq!(quota.used(), 0);
}

proptest! {
    /// Sums are exact, no share exceeds its maximum, all of them exceed the quota by no more than what is guaranteed, and nothing within the
    /// guaranteed minimum is refused.
    #[test]
    fn shares_stay_within_their_limits(
        tape in proptest::collection::vec((0u8..4, 0usize..4, 1u64..120), 0..300),
    ) {
        const MAX: u64 = 300;
        const SHARE: (u64, u64) = (20, 150);
        let quota = Quota::new(MAX);
        let shares: Vec<_> = (0..4).map(|_| quota.share(SHARE.0, SHARE.1)).collect();
        let mut permits: Vec<(usize, Permit)> = Vec::new();
        for (what, holder, units) in tape {
            let share = &shares[holder];
            let (used, available) = (share.used(), share.available());
            match what {
                0 | 1 => {
                    let permit = share.try_acquire(units);
                    prop_assert_eq!(permit.is_some(), units <= available);
                    prop_assert!(permit.is_some() || used + units > SHARE.0);
                    permits.extend(permit.map(|permit| (holder, permit)));
                }
                2 => {
                    let permit = share.try_acquire_up_to(units);
                    prop_assert_eq!(permit.as_ref().map_or(0, Permit::units), units.min(available));
                    permits.extend(permit.map(|permit| (holder, permit)));
                }
                _ if !permits.is_empty() => drop(permits.swap_remove(units as usize % permits.len())),
                _ => {}
            }
            for (holder, share) in shares.iter().enumerate() {
                let held: u64 = permits.iter().filter(|(of, _)| *of == holder).map(|(_, permit)| permit.units()).sum();
                prop_assert_eq!(share.used(), held);
                prop_assert!(held <= SHARE.1);
            }
            prop_assert_eq!(quota.used(), permits.iter().map(|(_, permit)| permit.units()).sum::<u64>());
            prop_assert!(quota.used() <= MAX + 4 * SHARE.0);
        }
        permits.clear();
        prop_assert_eq!(quota.used(), 0);
    }

    #[test]
    fn keys_take_turns_and_lines_keep_their_order(
        tape in proptest::collection::vec((0u8..8, 0u8..4, 0usize..100), 0..200),
    ) {
        let mut queue = FairQueue::default();
        let mut model: VecDeque<(u8, VecDeque<usize>)> = VecDeque::new();
        for (what, key, item) in tape {
            let at = model.iter().position(|(of, _)| *of == key);
            match (what, at) {
                (0..=4, None) => {
                    queue.push(key, item);
                    model.push_back((key, VecDeque::from([item])));
                }
                (0..=3, Some(at)) => {
                    queue.push(key, item);
                    model[at].1.push_back(item);
                }
                (4, Some(at)) => {
                    queue.push_front(key, item);
                    model[at].1.push_front(item);
                }
                (5, Some(at)) => {
                    let (_, mut line) = model.remove(at).unwrap();
                    prop_assert_eq!(queue.pop(key), line.pop_front());
                    if !line.is_empty() {
                        model.push_back((key, line));
                    }
                }
                (6, _) if !model.is_empty() => {
                    let (key, mut line) = model.pop_front().unwrap();
                    prop_assert_eq!(queue.pop_next(), line.pop_front().map(|item| (key, item)));
                    if !line.is_empty() {
                        model.push_back((key, line));
                    }
                }
                (_, at) => {
                    queue.remove(key);
                    at.map(|at| model.remove(at));
                }
            }
            let firsts: Vec<_> = queue.firsts().map(|(key, item)| (key, *item)).collect();
            let expected: Vec<_> = model.iter().map(|(key, line)| (*key, line[0])).collect();
            prop_assert_eq!(firsts, expected);
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.contains(key), model.iter().any(|(of, _)| *of == key));
        }
    }
}
