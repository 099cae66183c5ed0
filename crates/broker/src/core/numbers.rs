//! A client's requests by their numbers.

use foldhash::fast::FixedState;
use std::collections::hash_map::Values;
use std::collections::{BTreeSet, HashMap};

/// Numbers that a [`Walk`] may try in vain, beside as many as it finds, before it asks for the order of those that are there.
const VAIN_MAX: u32 = 16;

/// An order that isn't asked for is kept at least for so many requests: looking through the table isn't free, however few are in it.
const ORDER_KEPT: usize = 4_096;

/// Finds a request by its number, and all whose numbers are in a range.
///
/// Clients number without gaps and confirm what they have, so one look at a table each is all that it takes. But a record of a few
/// octets can name four thousand million numbers, none of which is there: what it costs to take a range out must depend on what was
/// in it, and on nothing else. Whoever tries too much in vain has its numbers put in order, and pays for the order from then on, until
/// it hasn't been asked for during as many requests as it would take to make it again.
#[derive(Debug)]
pub(super) struct Numbers {
    slots: HashMap<u64, u32, FixedState>,
    order: Option<Order>,
    /// What was done, in looks at one number.
    #[cfg(test)]
    pub steps: usize,
}

#[derive(Debug)]
struct Order {
    numbers: BTreeSet<u64>,
    /// Requests that came since it was last asked for.
    unasked: usize,
}

/// A range that is being taken out.
#[derive(Debug)]
pub(super) struct Walk {
    next: u64,
    end: u64,
    vain: u32,
}

impl Walk {
    /// From `first` to one below `end`.
    pub fn new(first: u64, end: u64) -> Walk {
        Walk { next: first, end, vain: 0 }
    }
}

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers {
            slots: HashMap::with_hasher(FixedState::with_seed(seed)),
            order: None,
            #[cfg(test)]
            steps: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slots of all, in no order.
    pub fn slots(&self) -> Values<'_, u64, u32> {
        self.slots.values()
    }

    #[inline]
    pub fn get(&self, number: u64) -> Option<u32> {
        self.slots.get(&number).copied()
    }

    #[inline]
    pub fn insert(&mut self, number: u64, slot: u32) {
        self.slots.insert(number, slot);
        if let Some(order) = &mut self.order {
            order.numbers.insert(number);
            order.unasked += 1;
            if order.unasked > order.numbers.len().max(ORDER_KEPT) {
                self.order = None;
            }
        }
    }

    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<u32> {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        let slot = self.slots.remove(&number)?;
        if let Some(order) = &mut self.order {
            order.numbers.remove(&number);
        }
        Some(slot)
    }

    /// Removes the next one in a range, from the lowest to the highest.
    #[inline]
    pub fn take_next(&mut self, walk: &mut Walk) -> Option<u32> {
        while walk.next < walk.end {
            if walk.vain > VAIN_MAX {
                walk.next = self.first_in(walk.next, walk.end)?;
            }
            let number = walk.next;
            walk.next += 1;
            if let Some(slot) = self.remove(number) {
                walk.vain = walk.vain.saturating_sub(1);
                return Some(slot);
            }
            walk.vain += 1;
        }
        None
    }

    #[cold]
    fn first_in(&mut self, from: u64, end: u64) -> Option<u64> {
        #[cfg(test)]
        {
            self.steps += if self.order.is_some() { 1 } else { self.slots.len() };
        }
        let slots = &self.slots;
        let order = self.order.get_or_insert_with(|| Order { numbers: slots.keys().copied().collect(), unasked: 0 });
        order.unasked = 0;
        order.numbers.range(from..end).next().copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn take_all(numbers: &mut Numbers, first: u64, end: u64) -> Vec<u32> {
        let mut walk = Walk::new(first, end);
        std::iter::from_fn(|| numbers.take_next(&mut walk)).collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        InsertMany(u64, u64),
        Remove(u64),
        Take(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Near each other, and so far that nobody looks at all in between.
        let number = prop_oneof![0..300_u64, 0..40_u64, any::<u64>()];
        prop_oneof![
            4 => number.clone().prop_map(Step::Insert),
            1 => (0..300_u64, 0..200_u64).prop_map(|(first, count)| Step::InsertMany(first, count)),
            2 => number.clone().prop_map(Step::Remove),
            4 => (number, prop_oneof![0..60_u64, 0..=u64::from(u32::MAX)]).prop_map(|(n, count)| Step::Take(n, count)),
        ]
    }

    proptest! {
        #[test]
        fn a_range_takes_out_what_is_in_it_in_its_order(steps in prop::collection::vec(step(), 0..60)) {
            let (mut numbers, mut model) = (Numbers::new(1), BTreeMap::new());
            let mut slot = 0;
            for step in steps {
                match step {
                    Step::Insert(number) => {
                        slot += 1;
                        numbers.insert(number, slot);
                        model.insert(number, slot);
                    }
                    Step::InsertMany(first, count) => for number in first..first + count {
                        slot += 1;
                        numbers.insert(number, slot);
                        model.insert(number, slot);
                    },
                    Step::Remove(number) => prop_assert_eq!(numbers.remove(number), model.remove(&number)),
                    Step::Take(first, count) => {
                        let end = first.saturating_add(count);
                        let taken: Vec<u64> = model.range(first..end).map(|(&number, _)| number).collect();
                        let slots: Vec<u32> = taken.iter().filter_map(|number| model.remove(number)).collect();
                        prop_assert_eq!(take_all(&mut numbers, first, end), slots);
                    }
                }
                prop_assert_eq!(numbers.len(), model.len());
                if let Some(order) = &numbers.order {
                    prop_assert!(order.numbers.iter().eq(model.keys()));
                }
            }
        }
    }

    #[test]
    fn what_a_range_costs_depends_on_what_is_in_it() {
        const HELD: u64 = 100_000;
        const RANGES: u64 = 1_000;
        let mut numbers = Numbers::new(1);
        // One in a thousand, so that there is much in between.
        for index in 0..HELD {
            numbers.insert(index * 1_000, index as u32);
        }
        numbers.steps = 0;
        let mut found = 0;
        for range in 0..RANGES {
            let first = range * 500 + 1;
            for count in [3, 60, 1_500, 150_000, u64::from(u32::MAX)] {
                // Below what is there, beyond it, between, and one or two of it.
                found += take_all(&mut numbers, (1 << 40) + first, (1 << 40) + first + count).len();
                found += take_all(&mut numbers, first * 1_000 + 1, first * 1_000 + 1 + count.min(1_500)).len();
            }
            // What else it does must not make it put all in order time and again.
            numbers.insert((1 << 50) + range, 0);
        }
        let most = HELD as usize + RANGES as usize * 10 * (VAIN_MAX as usize + 3) + 3 * found;
        assert!(numbers.steps <= most, "{} steps, {most} at most, for {found}", numbers.steps);
        assert!(found > 0 && numbers.order.is_some());
    }

    #[test]
    fn an_order_that_nobody_asks_for_is_given_up() {
        let mut numbers = Numbers::new(1);
        for number in 0..10_000 {
            numbers.insert(number, 0);
        }
        assert!(take_all(&mut numbers, 10_000, u64::MAX).is_empty());
        assert!(numbers.order.is_some());
        for number in 10_000..20_002 {
            assert!(numbers.order.is_some());
            numbers.insert(number, 0);
            assert_eq!(take_all(&mut numbers, number - 9_999, number - 9_998).len(), 1);
        }
        assert!(numbers.order.is_none());
    }
}
