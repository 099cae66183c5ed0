//! A client's requests by their numbers.

use std::collections::{BTreeMap, VecDeque};

/// No slot.
const VACANT: u32 = u32::MAX;

/// A number so far beyond the last one still continues the ring, with vacant places in between.
const GAP_MAX: u64 = 16;

/// The ring may have this many places for each number in it, beside a constant.
const SPARSE: usize = 4;
const SPARSE_CONSTANT: usize = 1024;

/// Vacant places that may be looked at before the ring is given up, beside some for each number that is inserted.
const MISSES_MAX: usize = 65_536;
const MISSES_PER_INSERT: usize = 16;

/// A map from a client's numbers to slots, with removal of ranges.
///
/// Clients count, so almost all numbers are side by side in a ring. A hash table would scatter them and cost a cache miss for
/// each. Numbers that don't fit are in a tree, whose cost doesn't depend on the choice of numbers.
///
/// A record of a few bytes can name four billion numbers, none of which is here: the cost of removing a range must depend only on
/// what is in it. So vacant places that are looked at are counted, and when there are too many, all numbers move to the tree.
#[derive(Debug, Default)]
pub(super) struct SequenceMap {
    /// The number of the ring's first place, which isn't vacant.
    base: u64,
    ring: VecDeque<u32>,
    tree: BTreeMap<u64, u32>,
    len: usize,
    /// Vacant places of the ring that were looked at, less what inserted numbers allow for.
    misses: usize,
    /// Places looked at.
    #[cfg(test)]
    pub steps: usize,
}

/// A cursor over a range that is being removed.
#[derive(Debug)]
pub(super) struct RangeCursor {
    next: u64,
    end: u64,
}

impl RangeCursor {
    /// From `first` to `end`, exclusive.
    pub fn new(first: u64, end: u64) -> RangeCursor {
        RangeCursor { next: first, end }
    }
}

impl SequenceMap {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn get(&self, number: u64) -> Option<u32> {
        match self.place(number).and_then(|place| self.ring.get(place)) {
            Some(&slot) if slot != VACANT => Some(slot),
            _ if self.tree.is_empty() => None,
            _ => self.tree.get(&number).copied(),
        }
    }

    /// Adds a number that isn't in the map.
    #[inline]
    pub fn insert(&mut self, number: u64, slot: u32) {
        debug_assert!(self.get(number).is_none() && slot != VACANT);
        self.len += 1;
        if self.ring.is_empty() {
            self.base = number;
        }
        let Some(beyond) = self.place(number) else {
            self.tree.insert(number, slot);
            return;
        };
        if let Some(place) = self.ring.get_mut(beyond) {
            *place = slot;
            return;
        }
        if (beyond - self.ring.len()) as u64 > GAP_MAX {
            self.tree.insert(number, slot);
            return;
        }
        self.ring.resize(beyond, VACANT);
        self.ring.push_back(slot);
        self.misses = self.misses.saturating_sub(MISSES_PER_INSERT);
        self.limit_sparseness();
    }

    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<u32> {
        let place = self.place(number).and_then(|place| self.ring.get_mut(place)).filter(|slot| **slot != VACANT);
        let slot = match place {
            Some(place) => {
                let slot = std::mem::replace(place, VACANT);
                if number == self.base {
                    self.trim();
                }
                slot
            }
            None => self.tree.remove(&number)?,
        };
        self.len -= 1;
        Some(slot)
    }

    /// All slots, in no order.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.ring.iter().copied().filter(|&slot| slot != VACANT).chain(self.tree.values().copied())
    }

    /// Removes the next number in the range, in ascending order.
    #[inline]
    pub fn remove_next(&mut self, cursor: &mut RangeCursor) -> Option<u32> {
        if cursor.next >= cursor.end {
            return None;
        }
        let before = if self.tree.is_empty() {
            cursor.end
        } else {
            self.tree.range(cursor.next..cursor.end).next().map_or(cursor.end, |(&number, _)| number)
        };
        let found = self.first_in_ring(cursor.next, before).unwrap_or(before);
        cursor.next = found.saturating_add(1);
        if found < cursor.end { self.remove(found) } else { None }
    }

    /// The first number in the ring from `from` to `end`, exclusive.
    #[inline]
    fn first_in_ring(&mut self, from: u64, end: u64) -> Option<u64> {
        let from = from.max(self.base);
        let places = self.place(from).filter(|&place| place < self.ring.len() && from < end)?;
        let misses = self.ring.range(places..).zip(from..end).take_while(|(slot, _)| **slot == VACANT).count();
        #[cfg(test)]
        {
            self.steps += misses + 1;
        }
        if misses > 0 {
            self.misses += misses;
            if self.misses > MISSES_MAX {
                self.move_ring_to_tree();
                return self.tree.range(from..end).next().map(|(&number, _)| number);
            }
        }
        let found = from + misses as u64;
        (found < end && places + misses < self.ring.len()).then_some(found)
    }

    #[cold]
    fn move_ring_to_tree(&mut self) {
        #[cfg(test)]
        {
            self.steps += self.ring.len();
        }
        let ring = (self.base..).zip(self.ring.drain(..));
        self.tree.extend(ring.filter(|(_, slot)| *slot != VACANT));
        self.misses = 0;
    }

    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.base)?).ok()
    }

    /// Limits the vacant places: a number that stays must not keep a place for each one that came and went since.
    fn limit_sparseness(&mut self) {
        let of_ring = self.len - self.tree.len();
        if self.ring.len() <= SPARSE_CONSTANT + SPARSE * of_ring {
            return;
        }
        if let Some(first) = self.ring.pop_front() {
            self.tree.insert(self.base, first);
            self.base += 1;
            self.trim();
        }
    }

    fn trim(&mut self) {
        while self.ring.front() == Some(&VACANT) {
            self.ring.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take_all(numbers: &mut SequenceMap, first: u64, end: u64) -> Vec<u32> {
        let mut cursor = RangeCursor::new(first, end);
        std::iter::from_fn(|| numbers.remove_next(&mut cursor)).collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        InsertMany(u64, u64, usize),
        Remove(u64),
        Take(u64, u64),
        GiveUp,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Near each other, and too far to look at every number in between.
        let number = prop_oneof![0..300_u64, 0..40_u64, any::<u64>()];
        prop_oneof![
            4 => number.clone().prop_map(Step::Insert),
            2 => (0..300_u64, 0..200_u64, 1..20_usize).prop_map(|(first, count, gap)| Step::InsertMany(first, count, gap)),
            2 => number.clone().prop_map(Step::Remove),
            4 => (number, prop_oneof![0..60_u64, 0..=u64::from(u32::MAX)]).prop_map(|(n, count)| Step::Take(n, count)),
            1 => Just(Step::GiveUp),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_plain_map(steps in prop::collection::vec(step(), 0..60)) {
            let (mut numbers, mut model) = (SequenceMap::default(), BTreeMap::new());
            let mut slot = 0;
            for step in steps {
                match step {
                    Step::Insert(number) => {
                        prop_assert_eq!(numbers.get(number), model.get(&number).copied());
                        if let std::collections::btree_map::Entry::Vacant(entry) = model.entry(number) {
                            slot += 1;
                            numbers.insert(number, *entry.insert(slot));
                        }
                    }
                    Step::InsertMany(first, count, gap) => for number in (first..first + count).step_by(gap) {
                        if let std::collections::btree_map::Entry::Vacant(entry) = model.entry(number) {
                            slot += 1;
                            numbers.insert(number, *entry.insert(slot));
                        }
                    },
                    Step::Remove(number) => prop_assert_eq!(numbers.remove(number), model.remove(&number)),
                    Step::Take(first, count) => {
                        let end = first.saturating_add(count);
                        let taken: Vec<u64> = model.range(first..end).map(|(&number, _)| number).collect();
                        let slots: Vec<u32> = taken.iter().filter_map(|number| model.remove(number)).collect();
                        prop_assert_eq!(take_all(&mut numbers, first, end), slots);
                    }
                    Step::GiveUp => numbers.move_ring_to_tree(),
                }
                prop_assert_eq!((numbers.len(), numbers.is_empty()), (model.len(), model.is_empty()));
                let mut slots: Vec<u32> = numbers.slots().collect();
                slots.sort_unstable();
                let mut expected: Vec<u32> = model.values().copied().collect();
                expected.sort_unstable();
                prop_assert_eq!(slots, expected);
            }
        }
    }

    #[test]
    fn the_cost_of_a_range_depends_on_what_is_in_it() {
        const HELD: u64 = 100_000;
        const RANGES: u64 = 1_000;
        for gap in [1, 5, GAP_MAX, 1_000] {
            let mut numbers = SequenceMap::default();
            // Numbers far apart, in the ring or beyond it. Most are removed again, which leaves long vacant stretches.
            for index in 0..HELD {
                numbers.insert(index * gap, index as u32);
            }
            for index in (0..HELD).filter(|index| index % 10_000 > 100) {
                numbers.remove(index * gap);
            }
            numbers.steps = 0;
            let mut found = 0;
            for range in 0..RANGES {
                let first = range * 500 + 1;
                for count in [3, 60, 1_500, 150_000, u64::from(u32::MAX)] {
                    // Below all numbers, beyond them, between them, and one or two of them.
                    found += take_all(&mut numbers, (1 << 40) + first, (1 << 40) + first + count).len();
                    found += take_all(&mut numbers, first * gap + 1, first * gap + 1 + count.min(1_500)).len();
                }
                // Other operations must not bring the ring back.
                numbers.insert((1 << 50) + range, 0);
            }
            let most = HELD as usize * 8 + 2 * MISSES_MAX + RANGES as usize * (10 + MISSES_PER_INSERT) + 3 * found;
            assert!(numbers.steps <= most, "{} steps, {most} at most, for {found}, gap {gap}", numbers.steps);
        }
    }

    #[test]
    fn a_number_that_stays_does_not_grow_the_ring() {
        let mut numbers = SequenceMap::default();
        numbers.insert(1, 1);
        for number in 2..100_000 {
            numbers.insert(number, 2);
            assert_eq!(numbers.remove(number), Some(2));
            assert!(numbers.ring.len() <= SPARSE_CONSTANT + 2 * SPARSE, "{}", numbers.ring.len());
        }
        assert_eq!((numbers.get(1), numbers.len()), (Some(1), 1));
    }

    #[test]
    fn gaps_cost_no_memory() {
        let mut numbers = SequenceMap::default();
        for number in (0..).step_by(GAP_MAX as usize + 2).take(10_000) {
            numbers.insert(number, 7);
        }
        assert!(numbers.ring.len() < 100, "{}", numbers.ring.len());
        assert_eq!(numbers.len(), 10_000);
    }
}
