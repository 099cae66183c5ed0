//! How much is read of one peer before what it says is passed on.

use crate::wire::{BLOCK_BYTES_MAX, BLOCK_RECORDS};

/// The least: with less, a turn costs more than what it does.
pub(super) const READ_TURN_BYTES_MIN: usize = 16 * 1024;

/// About a block.
const READ_TURN_BYTES_MAX: usize = BLOCK_BYTES_MAX + 4 * 1024;

/// After so many records, those before count half.
const RECORDS_MAX: usize = 8 * BLOCK_RECORDS;

/// How long records have been lately.
///
/// What one peer has sent is passed on before more of it is read, so that others can begin; but as many records together as fill a
/// block, however long they are, since it is by the record that the work is shared out.
#[derive(Debug, Default)]
pub(super) struct Pace {
    bytes: usize,
    records: usize,
}

impl Pace {
    /// A block of so many octets had so many records.
    #[inline]
    pub fn note(&mut self, bytes: usize, records: usize) {
        self.bytes += bytes;
        self.records += records;
        if self.records > RECORDS_MAX {
            self.bytes /= 2;
            self.records /= 2;
        }
    }

    /// Octets to read of one peer in a turn.
    #[inline]
    pub fn read_turn_bytes(&self) -> usize {
        let block = BLOCK_RECORDS * self.bytes / self.records.max(1);
        block.clamp(READ_TURN_BYTES_MIN, READ_TURN_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_about_a_block_of_records_as_they_are_lately() {
        let mut pace = Pace::default();
        assert_eq!(pace.read_turn_bytes(), READ_TURN_BYTES_MIN);
        pace.note(BLOCK_RECORDS * 200, BLOCK_RECORDS);
        assert_eq!(pace.read_turn_bytes(), BLOCK_RECORDS * 200);
        pace.note(1 << 40, 1);
        assert_eq!(pace.read_turn_bytes(), READ_TURN_BYTES_MAX);
        for _ in 0..1000 {
            pace.note(BLOCK_RECORDS * 100, BLOCK_RECORDS);
        }
        let exactly = BLOCK_RECORDS * 100;
        assert!((exactly..exactly + BLOCK_RECORDS).contains(&pace.read_turn_bytes()), "{}", pace.read_turn_bytes());
    }
}
