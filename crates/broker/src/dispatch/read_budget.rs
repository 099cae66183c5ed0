//! How much is read of one peer before what it says is passed on.

use towpath_requests::numbered::Extent;

/// The least: with less, a turn costs more than what it does.
const READ_TURN_BYTES_MIN: usize = 4 * 1024;

/// What a message has beside its block, and a little of the next: a block that isn't read whole has to wait for another turn.
const MORE_BYTES: usize = 1024;

/// After so many records, those before count half.
const RECORDS_MAX: usize = 1536;

/// How long records have been lately.
///
/// What one peer has sent is passed on before more of it is read, so that others can begin; but as many records together as fill a
/// block, however long they are, since it is by the record that the work is shared out.
#[derive(Debug, Default)]
pub(super) struct ReadBudget {
    bytes: usize,
    records: usize,
}

impl ReadBudget {
    /// So many records came, of so many bytes in all. Of a body that streams, each piece is one.
    #[inline]
    pub fn note(&mut self, bytes: usize, records: usize) {
        self.bytes += bytes;
        self.records += records;
        if self.records > RECORDS_MAX {
            self.bytes /= 2;
            self.records /= 2;
        }
    }

    /// Bytes to read of one peer in a turn, if blocks are so long.
    #[inline]
    pub fn read_turn_bytes(&self, extent: Extent) -> usize {
        let block = extent.of_records(self.bytes / self.records.max(1));
        (block + block / 8 + MORE_BYTES).max(READ_TURN_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_budget_follows_the_size_of_recent_records() {
        let (mut pace, extent) = (ReadBudget::default(), Extent::default());
        let least = pace.read_turn_bytes(extent);
        assert_eq!(pace.read_turn_bytes(Extent::among(1)), READ_TURN_BYTES_MIN);
        pace.note(100 * 250, 100);
        let block = extent.of_records(250);
        assert!((block + 100..block + block / 4).contains(&pace.read_turn_bytes(extent)));
        assert!(pace.read_turn_bytes(Extent::among(100)) < block / 2);
        pace.note(1 << 40, 1);
        let longest = extent.of_records(1 << 20);
        assert_eq!(pace.read_turn_bytes(extent), longest + longest / 8 + MORE_BYTES);
        assert!(longest < 64 * 1024, "{longest}");
        for _ in 0..1000 {
            pace.note(100 * 50, 100);
        }
        assert_eq!(pace.read_turn_bytes(extent), least);
    }
}
