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
    fn tenants_take_turns_then_keys_and_lines_keep_their_order(
        tape in proptest::collection::vec((0u8..9, 0u8..6, 0usize..100), 0..200),
    ) {
        let mut queue = FairQueue::default();
        let mut model: Vec<ModelTenant> = Vec::new();
        for (what, key, item) in tape {
            let tenant = key / 2;
            match what {
                0..=3 => {
                    queue.push(&tenant, key, item);
                    model_line(&mut model, key).push_back(item);
                }
                4 => {
                    queue.push_front(&tenant, key, item);
                    model_line(&mut model, key).push_front(item);
                }
                5 => prop_assert_eq!(queue.pop(key), model_pop(&mut model, key)),
                6 | 7 => {
                    let next = model.first().map(|(_, lines)| lines[0].0);
                    prop_assert_eq!(queue.pop_next(), next.and_then(|key| Some((key, model_pop(&mut model, key)?))));
                }
                _ => {
                    queue.remove(key);
                    model.iter_mut().for_each(|(_, lines)| lines.retain(|(of, _)| *of != key));
                    model.retain(|(_, lines)| !lines.is_empty());
                }
            }
            let firsts: Vec<_> = queue.firsts().map(|(key, item)| (key, *item)).collect();
            let lines = || model.iter().flat_map(|(_, lines)| lines);
            let expected: Vec<_> = lines().map(|(key, line)| (*key, line[0])).collect();
            prop_assert_eq!(firsts, expected);
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.first(key), lines().find(|(of, _)| *of == key).map(|(_, line)| &line[0]));
            prop_assert_eq!(queue.contains(key), lines().any(|(of, _)| *of == key));
        }
    }
}

/// A tenant, and its keys' lines, each in the order of turns.
type ModelTenant = (u8, Vec<(u8, VecDeque<usize>)>);

fn model_line(model: &mut Vec<ModelTenant>, key: u8) -> &mut VecDeque<usize> {
    let at = model.iter().position(|(tenant, _)| *tenant == key / 2).unwrap_or_else(|| {
        model.push((key / 2, Vec::new()));
        model.len() - 1
    });
    let lines = &mut model[at].1;
    let at = lines.iter().position(|(of, _)| *of == key).unwrap_or_else(|| {
        lines.push((key, VecDeque::new()));
        lines.len() - 1
    });
    &mut lines[at].1
}

fn model_pop(model: &mut Vec<ModelTenant>, key: u8) -> Option<usize> {
    let at = model.iter().position(|(_, lines)| lines.iter().any(|(of, _)| *of == key))?;
    let (tenant, mut lines) = model.remove(at);
    let at = lines.iter().position(|(of, _)| *of == key)?;
    let (_, mut line) = lines.remove(at);
    let item = line.pop_front();
    if !line.is_empty() {
        lines.push((key, line));
    }
    if !lines.is_empty() {
        model.push((tenant, lines));
    }
    item
}

#[test]
fn a_line_that_was_moved_to_the_front_has_the_next_turn() {
    let (mut turns, mut order): (Turns<u8, u8, u8, u8>, _) = Default::default();
    for key in 0..6 {
        let (line, of_tenant) = turns.line(&mut order, &(key / 2), key);
        *line = key;
        *of_tenant += key;
    }
    let keys = |turns: &Turns<u8, u8, u8, u8>, order: &Order| turns.iter(order).map(|(key, _)| key).collect::<Vec<_>>();
    turns.move_to_front(&mut order, 5);
    assert_eq!(keys(&turns, &order), [5, 4, 0, 1, 2, 3]);
    turns.end_turn(&mut order, 5);
    assert_eq!(turns.first(&order), Some((0, &0)));
    assert_eq!(keys(&turns, &order), [0, 1, 2, 3, 4, 5]);
    assert_eq!([0, 1, 2, 3].map(|tenant| turns.tenant(&tenant).copied()), [Some(1), Some(5), Some(9), None]);
}
