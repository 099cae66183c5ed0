//! Segments of an open journal: the active one, the sealed ones before it, and spares for reuse.

use super::JournalError;
use super::block::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, SegmentHeader, next_offset};
use super::queue::Batch;
use super::recover::{FoundSegment, segment_name};
use super::storage::{Storage, StorageFile, is_full};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Zeros are written ahead up to a multiple of this. Syncing a block over initialised bytes changes no metadata.
const AHEAD_BYTES: u64 = 256 * 1024;
/// For larger blocks, writing ahead costs more than it saves.
const AHEAD_OF_BYTES_MAX: usize = 64 * 1024;
/// Most spares.
const SPARES_MAX: usize = 2;
/// Name of a segment until all of it is durable.
pub(super) const NEXT_NAME: &str = "next.tmp";
pub(super) const SPARE_SUFFIX: &str = ".spare";

/// A segment that is no longer written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    pub(super) number: u32,
    pub(super) header: SegmentHeader,
    pub(super) end: u64,
    /// Size of its file.
    pub(super) bytes: u64,
}

struct Active<F> {
    file: F,
    header: SegmentHeader,
    /// Offset of the next block.
    offset: u64,
    /// Size of its file.
    capacity: u64,
    /// Bytes of the file that were ever written.
    initialised: u64,
    /// A write failed, so that the page cache is unreliable.
    doubtful: bool,
}

pub(super) struct Segments<S: Storage> {
    pub(super) storage: S,
    segment_bytes: u64,
    active: Option<Active<S::File>>,
    pub(super) sealed: VecDeque<Sealed>,
    spares: Vec<(String, u64)>,
    /// Number of the last segment that got its name.
    named: u32,
    /// The oldest segment was removed, and that isn't durable yet.
    nameless: bool,
    /// Spares that can't be used, removed with the next segment that can be.
    strays: Vec<String>,
    /// Sequence number of the next block.
    sequence: u64,
    pub(super) written_bytes: u64,
}

impl<S: Storage> Segments<S> {
    /// Continues after the segments found by recovery. [`Segments::begin`] comes before the first write.
    pub(super) fn new(storage: S, segment_bytes: u64, found: &[FoundSegment], sequence: u64) -> Segments<S> {
        let sealed = found
            .iter()
            .map(|found| Sealed { number: found.number, header: found.header, end: found.end, bytes: found.end })
            .collect();
        Segments {
            storage,
            segment_bytes,
            active: None,
            sealed,
            spares: Vec::new(),
            named: 0,
            nameless: false,
            strays: Vec::new(),
            sequence,
            written_bytes: 0,
        }
    }

    /// Number of the active segment.
    pub(super) fn number(&self) -> u32 {
        self.active.as_ref().map_or(0, |active| active.header.number)
    }

    /// Writes a batch and waits until it is durable. After an error either nothing or all of it is there; the same batch
    /// must be retried before any other write.
    pub(super) fn write(&mut self, batch: &mut Batch, next_id: u64) -> Result<(), JournalError> {
        self.check_place()?;
        let block = batch.bytes.len();
        let needed = next_offset(0, block as u64) + BLOCK_HEADER_BYTES as u64;
        let Some(active) = self.active.as_mut().filter(|active| !active.doubtful) else {
            return self.begin(Some(batch), next_id, self.active_end());
        };
        if active.offset + needed > active.capacity {
            return self.begin(Some(batch), next_id, self.active_end());
        }
        let (offset, end) = (active.offset, active.offset + needed);
        BlockHeader::seal(&mut batch.bytes, active.header.salt, self.sequence, batch.records);
        let mut padded = needed;
        if end > active.initialised && block <= AHEAD_OF_BYTES_MAX {
            padded = end.next_multiple_of(AHEAD_BYTES).min(active.capacity) - offset;
        }
        batch.bytes.resize(padded as usize, 0);
        let done = active.file.write_all_at(&batch.bytes, offset).and_then(|()| {
            active.file.sync().inspect_err(|_| {
                // The system may count pages as written that aren't: don't reuse them.
                active.doubtful = true;
            })
        });
        batch.bytes.truncate(block);
        done.map_err(|error| {
            active.doubtful |= !is_full(&error);
            JournalError::io("write", self.storage.path(&segment_name(active.header.number)))(error)
        })?;
        active.initialised = active.initialised.max(offset + padded);
        active.offset = next_offset(offset, block as u64);
        self.sequence += 1;
        self.written_bytes += padded;
        Ok(())
    }

    /// Makes sure that a batch whose write failed is never found, by durably marking the end in its place. Unless this
    /// returns true, the batch must be written.
    pub(super) fn take_back(&mut self) -> bool {
        // The next segment, which holds the batch, may have its name.
        if self.named > self.number() {
            return false;
        }
        let Some(active) = self.active.as_mut().filter(|active| !active.doubtful) else { return false };
        // There is space: the previous block initialised these bytes.
        let done = active.file.write_all_at(&[0; BLOCK_HEADER_BYTES], active.offset);
        if done.and_then(|()| active.file.sync()).is_err() {
            active.doubtful = true;
        }
        !active.doubtful
    }

    /// A directory that was moved away isn't found by the next start: nothing in it may be called durable.
    fn check_place(&self) -> Result<(), JournalError> {
        let path = self.storage.path("");
        match self.storage.is_in_place() {
            Ok(true) => Ok(()),
            Ok(false) => Err(JournalError::Moved { path }),
            Err(error) => Err(JournalError::io("find", path)(error)),
        }
    }

    /// End of the active segment.
    fn active_end(&self) -> u64 {
        self.active.as_ref().map_or(SEGMENT_HEADER_BYTES as u64, |active| active.offset)
    }

    /// Starts the next segment with a batch in it, so that it is whole before it gets its name. The previous one ends at
    /// `previous_end`.
    pub(super) fn begin(
        &mut self,
        batch: Option<&mut Batch>,
        next_id: u64,
        previous_end: u64,
    ) -> Result<(), JournalError> {
        let last = self.active.as_ref().map(|active| active.header.number);
        let number = last.or(self.sealed.back().map(|sealed| sealed.number)).unwrap_or(0).checked_add(1);
        let number = number.ok_or_else(|| JournalError::Thread("there are no more numbers for segments".to_owned()))?;
        // Odd, so that even the first byte of a block isn't zero.
        let salt = RandomState::new().hash_one((number, previous_end)) | 1;
        let header = SegmentHeader { number, salt, sequence: self.sequence, previous_end, next_id };
        let mut bytes = header.encode().to_vec();
        let blocks = u64::from(batch.is_some());
        if let Some(batch) = batch {
            BlockHeader::seal(&mut batch.bytes, salt, self.sequence, batch.records);
            bytes.extend_from_slice(&batch.bytes);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        }
        let offset = bytes.len() as u64;
        bytes.resize(bytes.len() + BLOCK_HEADER_BYTES, 0);

        let name = segment_name(number);
        let path = self.storage.path(&name);
        let (file, capacity, initialised) =
            self.fresh_file(bytes.len() as u64).map_err(JournalError::io("make", &path))?;
        let storage = &self.storage;
        file.write_all_at(&bytes, 0)
            .and_then(|()| file.sync())
            .and_then(|()| match self.named == number {
                // Ours, from an attempt whose sync failed.
                true => storage.rename(NEXT_NAME, &name),
                false => storage.rename_new(NEXT_NAME, &name),
            })
            .and_then(|()| {
                self.named = number;
                storage.sync()
            })
            .map_err(|error| {
                // Free the space, which may be all there is.
                let _ = storage.remove(NEXT_NAME);
                JournalError::io("write", &path)(error)
            })?;

        let initialised = initialised.max(bytes.len() as u64);
        self.sequence += blocks;
        self.written_bytes += bytes.len() as u64;
        let active = Active { file, header, offset, capacity, initialised, doubtful: false };
        if let Some(before) = self.active.replace(active) {
            let Active { header, offset: end, capacity: bytes, .. } = before;
            self.sealed.push_back(Sealed { number: header.number, header, end, bytes });
        }
        Ok(())
    }

    /// A file under the temporary name, its size, and how much of it was written before.
    fn fresh_file(&mut self, needed: u64) -> io::Result<(S::File, u64, u64)> {
        if let Some((name, bytes)) = self.spares.pop_if(|(_, bytes)| needed <= *bytes) {
            // On failure the spare is given up, and the next attempt makes a new file.
            self.storage.rename(&name, NEXT_NAME).inspect_err(|_| self.strays.push(name))?;
            return Ok((self.storage.open(NEXT_NAME)?, bytes, bytes));
        }
        let file = self.storage.create(NEXT_NAME)?;
        let wanted = self.segment_bytes.max(needed);
        match file.allocate(wanted) {
            Ok(()) => Ok((file, wanted, 0)),
            // The last free space, so that outstanding requests can be finished.
            Err(error) if is_full(&error) => {
                file.set_length(0)?;
                let wanted = (2 * needed).next_multiple_of(64 * 1024).min(wanted);
                file.allocate(wanted).inspect_err(|_| drop(file.set_length(0)))?;
                Ok((file, wanted, 0))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the oldest segment, or keeps its file as a spare. Each removal is durable before the next: a journal has no
    /// gaps.
    pub(super) fn remove_oldest(&mut self) -> Result<(), JournalError> {
        let Some(oldest) = self.sealed.front().copied() else { return Ok(()) };
        let name = segment_name(oldest.number);
        let storage = &self.storage;
        let cannot = |error| JournalError::io("remove", storage.path(&name))(error);
        let mut spare = None;
        if !self.nameless {
            let removed = if oldest.bytes == self.segment_bytes && self.spares.len() < SPARES_MAX {
                let spare = format!("{:08x}{SPARE_SUFFIX}", oldest.number);
                storage.rename(&name, &spare).map(|()| Some(spare))
            } else {
                storage.remove(&name).map(|()| None)
            };
            spare = match removed {
                // Removed from outside.
                Err(error) if is_gone(&error) => None,
                removed => removed.map_err(cannot)?,
            };
            self.nameless = true;
        }
        self.strays.retain(|stray| storage.remove(stray).is_err_and(|error| !is_gone(&error)));
        storage.sync().map_err(|error| {
            // Reported once: after a crash the file might be back under its old name, with newer content.
            self.strays.extend(spare.take());
            cannot(error)
        })?;
        self.nameless = false;
        self.spares.extend(spare.map(|spare| (spare, oldest.bytes)));
        self.sealed.pop_front();
        Ok(())
    }

    /// Bytes of all files in use. Small segments count for more than they have, since there shouldn't be many.
    pub(super) fn used_bytes(&self) -> u64 {
        let least = self.segment_bytes / 16;
        self.sealed.iter().map(|sealed| sealed.bytes.max(least)).sum::<u64>() + self.active_end()
    }
}

/// Whether the name doesn't exist.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
