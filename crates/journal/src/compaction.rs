//! Freeing old segments: what is still needed of the oldest is written again at the end, a bounded piece with each batch.
//!
//! Segments go in the order in which they were made, so that a record that ends another is never removed before it.

use super::index::{Index, Needed};
use super::queue::Batch;
use super::read::{Next, Reader};
use super::record::Record;
use super::recover::segment_name;
use super::segments::Sealed;
use super::storage::Storage;
use std::io;

/// Why a segment can't be freed.
pub(super) enum CleanError {
    /// It can't be read now; that may pass.
    Io(io::Error),
    /// It isn't what was written.
    Damaged(&'static str),
}

/// The oldest segment, as far as it has been read.
pub(super) struct Cleaning<F> {
    number: u32,
    reader: Reader<F>,
    block: Vec<u8>,
    /// Bytes of the block that are done.
    done: usize,
    ended: bool,
}

impl<F: super::storage::StorageFile> Cleaning<F> {
    pub(super) fn begin<S: Storage<File = F>>(storage: &S, segment: &Sealed) -> io::Result<Cleaning<F>> {
        let file = storage.open(&segment_name(segment.number))?;
        let reader = Reader::new(file, &segment.header, segment.end);
        Ok(Cleaning { number: segment.number, reader, block: Vec::new(), done: 0, ended: false })
    }

    /// Which segment.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Reads on for about `budget` bytes, and appends to the batch what is needed of them. There is something: all of it came before
    /// if the segment has ended. After an error of reading it can be tried again.
    pub(super) fn step(&mut self, budget: usize, index: &Index, batch: &mut Batch) -> Result<(), CleanError> {
        if self.ended {
            return Err(CleanError::Damaged("not all that is needed was found in it"));
        }
        let mut looked_at = 0;
        while looked_at < budget && !self.ended {
            let mut rest = self.block.get(self.done..).unwrap_or_default();
            if rest.is_empty() {
                self.done = 0;
                match self.reader.next().map_err(CleanError::Io)? {
                    Next::Block { bytes, .. } => {
                        self.block.clear();
                        self.block.extend_from_slice(bytes);
                        // A block of nothing has a header.
                        looked_at += 32;
                    }
                    Next::End => self.ended = true,
                    Next::Bad(what) => return Err(CleanError::Damaged(what)),
                }
                continue;
            }
            let record = Record::take(&mut rest).map_err(CleanError::Damaged)?;
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
