//! The bytes of a file that are there: a set of ranges that merge as they touch.

use std::collections::BTreeMap;

use crate::protocol::control::Range;

/// Bytes of a file, as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// The end of each range, by its start.
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Bytes in the set.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Adds `offset..offset + length`; returns how many of these bytes are new.
    pub fn insert(&mut self, offset: u64, length: u64) -> u64 {
        let before = self.total;
        let (mut start, mut end) = (offset, offset.saturating_add(length));
        if start == end {
            return 0;
        }
        // All ranges that overlap or touch; the last of them begins at `end` or before.
        while let Some((&other_start, &other_end)) = self.ends.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.ends.remove(&other_start);
            self.total -= other_end - other_start;
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ends.insert(start, end);
        self.total += end - start;
        self.total - before
    }

    /// Removes `offset..offset + length`; returns how many of these bytes were there.
    pub fn remove(&mut self, offset: u64, length: u64) -> u64 {
        let before = self.total;
        let (start, end) = (offset, offset.saturating_add(length));
        if start == end {
            return 0;
        }
        while let Some((&other_start, &other_end)) = self.ends.range(..end).next_back() {
            if other_end <= start {
                break;
            }
            self.ends.remove(&other_start);
            self.total -= other_end - other_start;
            if other_end > end {
                self.ends.insert(end, other_end);
                self.total += other_end - end;
            }
            if other_start < start {
                self.ends.insert(other_start, start);
                self.total += start - other_start;
            }
        }
        before - self.total
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ends.clear();
        self.total = 0;
    }

    /// Whether all bytes of a file of this size are there.
    pub fn covers(&self, size: u64) -> bool {
        size == 0 || self.ends.get(&0).is_some_and(|&end| end >= size)
    }

    /// The ranges of `0..size` that are missing, in ascending order: at most `count_max`.
    pub fn missing(&self, size: u64, count_max: usize) -> Vec<Range> {
        let mut missing = Vec::new();
        let mut at = 0;
        for (&start, &end) in self.ends.range(..size) {
            if missing.len() == count_max {
                return missing;
            }
            if start > at {
                missing.push(Range { offset: at, length: start - at });
            }
            at = end;
        }
        if at < size && missing.len() < count_max {
            missing.push(Range { offset: at, length: size - at });
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    proptest! {
        /// Compared with the obvious: a flag for each byte.
        #[test]
        fn behaves_as_a_set_of_bytes(steps in proptest::collection::vec((any::<bool>(), 0..SIZE, 0..SIZE), 0..40)) {
            let mut set = RangeSet::default();
            let mut flags = [false; SIZE as usize];
            for (insert, offset, length) in steps {
                let length = length.min(SIZE - offset);
                let bytes = &mut flags[offset as usize..(offset + length) as usize];
                let changed = bytes.iter().filter(|flag| **flag != insert).count() as u64;
                bytes.fill(insert);
                let counted = if insert { set.insert(offset, length) } else { set.remove(offset, length) };
                prop_assert_eq!(counted, changed);
                prop_assert_eq!(set.total(), flags.iter().filter(|flag| **flag).count() as u64);
                prop_assert_eq!(set.covers(SIZE), flags.iter().all(|flag| *flag));
                let mut rest = flags;
                let missing = set.missing(SIZE, usize::MAX);
                prop_assert!(missing.windows(2).all(|pair| pair[0].end() < pair[1].offset), "not merged: {:?}", missing);
                for range in missing {
                    for flag in &mut rest[range.offset as usize..range.end() as usize] {
                        prop_assert!(!*flag);
                        *flag = true;
                    }
                }
                prop_assert!(rest.iter().all(|flag| *flag));
            }
        }
    }

    #[test]
    fn removing_an_empty_range_changes_nothing() {
        let mut set = RangeSet::default();
        set.insert(0, 10);
        assert_eq!(set.remove(5, 0), 0);
        assert!(set.covers(10));
    }

    #[test]
    fn no_more_ranges_than_asked_for() {
        let mut set = RangeSet::default();
        for at in 0..10 {
            set.insert(at * 10 + 5, 1);
        }
        assert_eq!(set.missing(1000, 3), vec![(0, 5).into(), (6, 9).into(), (16, 9).into()]);
        assert_eq!(set.missing(1000, 100).len(), 11);
        assert_eq!(set.missing(0, 100), vec![]);
    }
}
