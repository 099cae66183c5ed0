//! A segment's header, and the blocks behind it, one for each batch of records that became durable together.
//!
//! Behind the last block are [`BLOCK_HEADER_BYTES`] zeros, written with it and overwritten by the next. So a proper end
//! differs from a torn one, also in a reused file full of old blocks, whose salt is another.

use crc32c::{crc32c, crc32c_append};
use towpath_requests::limits::JOURNAL_BLOCK_BYTES_MAX;

/// The format that this build writes and reads.
pub(super) const VERSION: u32 = 6;
const MAGIC: &[u8; 8] = b"TOWJRNL\n";
pub(super) const SEGMENT_HEADER_BYTES: usize = 64;
pub(super) const BLOCK_HEADER_BYTES: usize = 32;
/// Alignment of blocks.
pub(super) const ALIGNMENT: u64 = 16;

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Numbers count from 1.
    pub(super) number: u32,
    /// Random; repeated in every block header of this segment.
    pub(super) salt: u64,
    /// Sequence number of the segment's first block. Each block of the journal adds one.
    pub(super) sequence: u64,
    /// End of the previous segment. Anything behind it is ignored.
    pub(super) previous_end: u64,
    /// Greater than any id in the previous segments.
    pub(super) next_id: u64,
}

/// Why a segment header is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    Version(u32),
    Damaged(&'static str),
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&u64::from(self.number).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.next_id.to_le_bytes());
        let checksum = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<SegmentHeader, BadHeader> {
        let Some(bytes) = bytes.first_chunk::<SEGMENT_HEADER_BYTES>() else {
            return Err(BadHeader::Damaged("it is shorter than a header"));
        };
        if &bytes[..8] != MAGIC {
            return Err(BadHeader::Damaged("it does not begin as a segment does"));
        }
        // Before the checksum: another version may have it elsewhere.
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        if crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(BadHeader::Damaged("the checksum of its header is wrong"));
        }
        let number = u32::try_from(u64_at(bytes, 16)).map_err(|_| BadHeader::Damaged("its number is too large"))?;
        Ok(SegmentHeader {
            number,
            salt: u64_at(bytes, 24),
            sequence: u64_at(bytes, 32),
            previous_end: u64_at(bytes, 40),
            next_id: u64_at(bytes, 48),
        })
    }
}

/// Header in front of the records of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockHeader {
    pub(super) sequence: u64,
    /// Bytes of the records.
    pub(super) length: u32,
    /// Count of the records.
    pub(super) records: u32,
    own_checksum: u32,
    checksum: u32,
}

impl BlockHeader {
    /// Writes the header of a block into the space in front of its records.
    pub(super) fn seal(block: &mut [u8], salt: u64, sequence: u64, records: u32) {
        let (header, bytes) = block.split_at_mut(BLOCK_HEADER_BYTES);
        header[..8].copy_from_slice(&salt.to_le_bytes());
        header[8..16].copy_from_slice(&sequence.to_le_bytes());
        header[16..20].copy_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        header[20..24].copy_from_slice(&records.to_le_bytes());
        let own_checksum = crc32c(&header[..24]);
        header[24..28].copy_from_slice(&own_checksum.to_le_bytes());
        header[28..].copy_from_slice(&crc32c_append(own_checksum, bytes).to_le_bytes());
    }

    /// Decodes the header of a block of this segment. `None` if it is anything else, or longer than a block can be.
    pub(super) fn decode(bytes: &[u8], salt: u64) -> Option<BlockHeader> {
        let bytes = bytes.first_chunk::<BLOCK_HEADER_BYTES>()?;
        if u64_at(bytes, 0) != salt || crc32c(&bytes[..24]) != u32_at(bytes, 24) {
            return None;
        }
        let header = BlockHeader {
            sequence: u64_at(bytes, 8),
            length: u32_at(bytes, 16),
            records: u32_at(bytes, 20),
            own_checksum: u32_at(bytes, 24),
            checksum: u32_at(bytes, 28),
        };
        (header.length as usize <= JOURNAL_BLOCK_BYTES_MAX).then_some(header)
    }

    /// Whether these bytes match the checksum.
    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length as usize && crc32c_append(self.own_checksum, bytes) == self.checksum
    }
}

/// Offset of the next block, after one of `bytes` with its header at `offset`.
pub(super) fn next_offset(offset: u64, bytes: u64) -> u64 {
    (offset + bytes).next_multiple_of(ALIGNMENT)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
