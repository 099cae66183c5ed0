//! Reading segments block by block: for recovery, compaction and inspection.

use super::block::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, SegmentHeader, next_offset};
use super::storage::StorageFile;
use std::io;
use towpath_buffers::PageBuffer;

/// Read size if blocks are small.
const WINDOW_BYTES: usize = 256 * 1024;
/// Larger windows aren't reused.
const WINDOW_KEPT_BYTES: usize = 4 * 1024 * 1024;

/// Reads a segment from its first block on.
pub(super) struct Reader<F> {
    file: F,
    salt: u64,
    /// Sequence number of the next block.
    sequence: u64,
    /// Offset of the next block.
    offset: u64,
    /// Limit for reading.
    end: u64,
    window: PageBuffer,
    window_at: u64,
}

/// Content at a reader's position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Block {
        start: u64,
        records: u32,
        bytes: &'a [u8],
    },
    /// A proper end.
    End,
    /// Anything else: why it is no block.
    Bad(&'static str),
}

impl<F: StorageFile> Reader<F> {
    /// Reads `file` up to `end`.
    pub(super) fn new(file: F, header: &SegmentHeader, end: u64) -> Reader<F> {
        let (salt, sequence) = (header.salt, header.sequence);
        let offset = SEGMENT_HEADER_BYTES as u64;
        Reader { file, salt, sequence, offset, end, window: PageBuffer::default(), window_at: 0 }
    }

    /// Offset at which the next block begins or should begin.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Expected sequence number.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The next block, if there is a whole one.
    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        let start = self.offset;
        let bytes = self.bytes(start, BLOCK_HEADER_BYTES)?;
        // Also a file that was truncated to this byte: no block is cut.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Next::End);
        }
        let salt = self.salt;
        let Some(header) = BlockHeader::decode(self.bytes(start, BLOCK_HEADER_BYTES)?, salt) else {
            return Ok(Next::Bad("no header of a block"));
        };
        if header.sequence != self.sequence {
            return Ok(Next::Bad("a block out of sequence"));
        }
        let (at, length) = (start + BLOCK_HEADER_BYTES as u64, u64::from(header.length));
        // Before anything is allocated.
        if at + length > self.end {
            return Ok(Next::Bad("a block is cut off"));
        }
        if !header.holds(self.bytes(at, header.length as usize)?) {
            return Ok(Next::Bad("the checksum of a block is wrong"));
        }
        self.offset = next_offset(at, length);
        self.sequence += 1;
        let bytes = self.bytes(at, header.length as usize)?;
        Ok(Next::Block { start, records: header.records, bytes })
    }

    /// Bytes from here to the file's last byte that isn't zero.
    pub(super) fn used_behind(&mut self) -> io::Result<u64> {
        let (start, mut offset, mut used) = (self.offset, self.offset, 0);
        loop {
            let bytes = self.bytes(offset, WINDOW_BYTES)?;
            if bytes.is_empty() {
                return Ok(used);
            }
            if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                used = offset + last as u64 + 1 - start;
            }
            offset += bytes.len() as u64;
        }
    }

    /// Makes one block without records of the damaged bytes from here to `until`, where the block with this sequence number begins or the segment
    /// ends, so that they can be skipped from now on. False: there is no space for that.
    pub(super) fn mark_gap(&mut self, until: u64, sequence: u64) -> io::Result<bool> {
        let lost = sequence.saturating_sub(self.sequence);
        let header = BLOCK_HEADER_BYTES as u64;
        if lost == 0 || (until - self.offset) / header < lost {
            return Ok(false);
        }
        for _ in 1..lost {
            self.write_empty_block(0)?;
        }
        self.write_empty_block(until - self.offset - header)?;
        self.file.sync()?;
        self.window = PageBuffer::default();
        Ok(true)
    }

    fn write_empty_block(&mut self, bytes: u64) -> io::Result<()> {
        let mut block = vec![0; BLOCK_HEADER_BYTES + usize::try_from(bytes).unwrap_or(usize::MAX - BLOCK_HEADER_BYTES)];
        self.file.read_full_at(&mut block[BLOCK_HEADER_BYTES..], self.offset + BLOCK_HEADER_BYTES as u64)?;
        BlockHeader::seal(&mut block, self.salt, self.sequence, 0);
        self.file.write_all_at(&block[..BLOCK_HEADER_BYTES], self.offset)?;
        self.offset += block.len() as u64;
        self.sequence += 1;
        Ok(())
    }

    /// Offset and sequence number of a later block behind the bad place, which proves that the place was durable.
    pub(super) fn later_block(&mut self) -> io::Result<Option<(u64, u64)>> {
        let (salt, sequence) = (self.salt, self.sequence);
        let mut offset = self.offset + ALIGNMENT;
        loop {
            let bytes = self.bytes(offset, WINDOW_BYTES)?;
            let found = bytes.chunks_exact(ALIGNMENT as usize).enumerate().find_map(|(index, chunk)| {
                let rest =
                    chunk.starts_with(&salt.to_le_bytes()).then(|| bytes.get(index * ALIGNMENT as usize..))??;
                let header = BlockHeader::decode(rest, salt).filter(|header| header.sequence > sequence)?;
                Some((offset + index as u64 * ALIGNMENT, header.sequence))
            });
            if found.is_some() {
                return Ok(found);
            }
            if bytes.len() <= BLOCK_HEADER_BYTES {
                return Ok(None);
            }
            // A header may straddle the end of this window.
            let looked_at = bytes.len() - BLOCK_HEADER_BYTES;
            offset += (looked_at as u64).next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        }
    }

    /// Bytes at an offset: fewer than `length` at the end.
    fn bytes(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let wanted = length.min(usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX));
        let window_end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || offset + wanted as u64 > window_end {
            let most = WINDOW_BYTES.min(usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX));
            if self.window.capacity() > WINDOW_KEPT_BYTES && wanted <= WINDOW_KEPT_BYTES {
                self.window = PageBuffer::default();
            }
            self.window.resize(wanted.max(most));
            self.window_at = offset;
            let read = self.file.read_full_at(&mut self.window, offset);
            self.window.truncate(*read.as_ref().unwrap_or(&0));
            read?;
        }
        let at = usize::try_from(offset - self.window_at).unwrap_or(usize::MAX);
        let there = self.window.get(at..).unwrap_or_default();
        Ok(&there[..wanted.min(there.len())])
    }
}
