//! Acknowledgements of outcomes, until they are sent to the broker.

use std::time::Duration;
use towpath_requests::numbered::{Block, FromClient};

/// Longest delay of an acknowledgement.
const DELAY: Duration = Duration::from_millis(50);

/// Outcomes after which acknowledgements are sent even if there is nothing else to send.
const MANY: u64 = 1024;

/// Ranges of numbers to acknowledge.
#[derive(Debug, Default)]
pub(super) struct Acks {
    ranges: Vec<(u64, u64)>,
    count: u64,
    since: Option<Duration>,
}

impl Acks {
    #[inline]
    pub fn add(&mut self, number: u64, now: Duration) {
        self.add_range(number, 1, now);
    }

    #[inline]
    pub fn add_range(&mut self, first: u64, count: u64, now: Duration) {
        self.count += count;
        self.since.get_or_insert(now);
        if let Some((start, length)) = self.ranges.last_mut() {
            if *start + *length == first {
                *length += count;
                return;
            }
            if first + count == *start {
                *start = first;
                *length += count;
                return;
            }
        }
        self.ranges.push((first, count));
    }

    /// When they must be sent.
    pub fn due(&self) -> Option<Duration> {
        self.since.map(|since| if self.count >= MANY { since } else { since + DELAY })
    }

    /// Sends them at the next opportunity.
    pub fn hurry(&mut self) {
        if let Some(since) = &mut self.since {
            *since = Duration::ZERO;
            self.count = self.count.max(MANY);
        }
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.count = 0;
        self.since = None;
    }

    /// Appends all ranges, merged.
    pub fn put(&mut self, block: &mut Block) {
        self.ranges.sort_unstable();
        let mut merged: Option<(u64, u64)> = None;
        let mut put = |(first, count): (u64, u64)| {
            let (mut first, mut count) = (first, count);
            while count > 0 {
                let now = u32::try_from(count).unwrap_or(u32::MAX);
                FromClient::confirm(block, first, now);
                first += u64::from(now);
                count -= u64::from(now);
            }
        };
        for &(first, count) in &self.ranges {
            merged = match merged {
                // A number is there twice if its reply came twice.
                Some((start, length)) if first <= start + length => Some((start, length.max(first + count - start))),
                before => {
                    before.into_iter().for_each(&mut put);
                    Some((first, count))
                }
            };
        }
        merged.into_iter().for_each(put);
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_are_merged_in_any_order() {
        let mut acks = Acks::default();
        for number in [5, 6, 3, 4, 9, 6, 1, 10] {
            acks.add(number, Duration::ZERO);
        }
        assert_eq!(acks.due(), Some(DELAY));
        let mut block = Block::default();
        acks.put(&mut block);
        assert_eq!(acks.due(), None);
        let message = block.drain().next().unwrap();
        let mut rest = &message.block[..];
        let mut said = Vec::new();
        while !rest.is_empty() {
            match FromClient::decode(&mut rest).unwrap() {
                FromClient::Confirm { first, count } => said.push((first, count)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(said, [(1, 1), (3, 4), (9, 2)]);
    }
}
