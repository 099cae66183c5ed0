//! Compaction: records of the oldest segment that are still needed are appended again, a bounded number of bytes with each
//! batch.
//!
//! Segments are removed in the order in which they were made, so that a record that ends another is never removed before
//! it.

use super::index::{Index, Needed};
use super::queue::Batch;
use super::read::{Next, Reader};
use super::record::Record;
use super::recover::segment_name;
use super::segments::Sealed;
use super::storage::Storage;
use std::io;

/// Why a segment can't be freed.
pub(super) enum CompactionError {
    /// A read failed, perhaps temporarily.
    Io(io::Error),
    /// The content isn't what was written.
    Damaged(&'static str),
}

/// The oldest segment, and how far it has been read.
pub(super) struct Compaction<F> {
    number: u32,
    reader: Reader<F>,
    block: Vec<u8>,
    /// Bytes of the current block that were processed.
    done: usize,
    ended: bool,
}

impl<F: super::storage::StorageFile> Compaction<F> {
    pub(super) fn begin<S: Storage<File = F>>(storage: &S, segment: &Sealed) -> io::Result<Compaction<F>> {
        let file = storage.open(&segment_name(segment.number))?;
        let reader = Reader::new(file, &segment.header, segment.end);
        Ok(Compaction { number: segment.number, reader, block: Vec::new(), done: 0, ended: false })
    }

    /// Number of the segment.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Reads on for about `budget` bytes and appends records that are needed to the batch. All needed records were found
    /// earlier if the segment has ended. May be retried after a read error.
    pub(super) fn step(&mut self, budget: usize, index: &Index, batch: &mut Batch) -> Result<(), CompactionError> {
        if self.ended {
            return Err(CompactionError::Damaged("not all that is needed was found in it"));
        }
        let mut looked_at = 0;
        while looked_at < budget && !self.ended {
            let mut rest = self.block.get(self.done..).unwrap_or_default();
            if rest.is_empty() {
                self.done = 0;
                match self.reader.next().map_err(CompactionError::Io)? {
                    Next::Block { bytes, records, .. } => {
                        self.block.clear();
                        // What is in a gap can't be read.
                        if records > 0 {
                            self.block.extend_from_slice(bytes);
                        }
                        // Cost of an empty block: its header.
                        looked_at += 32;
                    }
                    Next::End => self.ended = true,
                    Next::Bad(what) => return Err(CompactionError::Damaged(what)),
                }
                continue;
            }
            let record = Record::take(&mut rest).map_err(CompactionError::Damaged)?;
            looked_at += record.bytes.len();
            self.done += record.bytes.len();
            let needed = index.needed(&record, self.number);
            if needed != Needed::No {
                record.copy(&mut batch.bytes, needed == Needed::Whole);
                batch.records += 1;
            }
        }
        Ok(())
    }
}
