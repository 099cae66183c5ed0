//! Budget of bytes that are read from one peer before they are passed on.

use towpath_requests::numbered::BatchLimit;

/// The minimum: with less, the overhead of a poll exceeds its work.
const READ_TURN_BYTES_MIN: usize = 4 * 1024;

/// Space for a message's header and a little of the next: a block that is only partly read waits for another turn.
const MORE_BYTES: usize = 1024;

/// Records after which earlier ones count half.
const RECORDS_MAX: usize = 1536;

/// Average length of recent records.
///
/// Little of each peer is read at a time, so that others get their turn, but at least as many records as fill a block,
/// whatever their length: work is shared out by the record.
#[derive(Debug, Default)]
pub(super) struct ReadBudget {
    bytes: usize,
    records: usize,
}

impl ReadBudget {
    /// Counts records and their bytes. Each piece of a streamed body counts as one.
    #[inline]
    pub fn note(&mut self, bytes: usize, records: usize) {
        self.bytes += bytes;
        self.records += records;
        if self.records > RECORDS_MAX {
            self.bytes /= 2;
            self.records /= 2;
        }
    }

    /// Bytes to read from a peer in a turn, for blocks closed at this limit.
    #[inline]
    pub fn read_turn_bytes(&self, limit: BatchLimit) -> usize {
        let block = limit.of_records(self.bytes / self.records.max(1));
        (block + block / 8 + MORE_BYTES).max(READ_TURN_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_budget_follows_the_size_of_recent_records() {
        let (mut pace, limit) = (ReadBudget::default(), BatchLimit::default());
        let least = pace.read_turn_bytes(limit);
        assert_eq!(pace.read_turn_bytes(BatchLimit::among(1)), READ_TURN_BYTES_MIN);
        pace.note(100 * 250, 100);
        let block = limit.of_records(250);
        assert!((block + 100..block + block / 4).contains(&pace.read_turn_bytes(limit)));
        assert!(pace.read_turn_bytes(BatchLimit::among(100)) < block / 2);
        pace.note(1 << 40, 1);
        let longest = limit.of_records(1 << 20);
        assert_eq!(pace.read_turn_bytes(limit), longest + longest / 8 + MORE_BYTES);
        assert!(longest < 64 * 1024, "{longest}");
        for _ in 0..1000 {
            pace.note(100 * 50, 100);
        }
        assert_eq!(pace.read_turn_bytes(limit), least);
    }
}
