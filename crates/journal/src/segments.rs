//! The segments of an open journal: the one that is written, those before it, and those that can be used again.

use super::JournalError;
use super::block::{ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, SegmentHeader, next_offset};
use super::queue::Batch;
use super::recover::{FoundSegment, segment_name};
use super::storage::{Storage, StorageFile};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Zeros are written ahead of what is appended, as far as a multiple of this: where a block has been written before, syncing it
/// changes nothing but bytes.
const AHEAD_BYTES: u64 = 256 * 1024;
/// Blocks larger than this take longer than what could be saved.
const AHEAD_OF_BYTES_MAX: usize = 64 * 1024;
/// Segments that are kept to be used again.
const SPARES_MAX: usize = 2;
/// A segment that isn't one yet. It becomes one when all of it is durable.
pub(super) const NEXT_NAME: &str = "next.tmp";
pub(super) const SPARE_SUFFIX: &str = ".spare";

/// A segment that isn't written any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    pub(super) number: u32,
    pub(super) header: SegmentHeader,
    pub(super) end: u64,
    /// Bytes of its file.
    pub(super) bytes: u64,
}

struct Active<F> {
    file: F,
    header: SegmentHeader,
    /// Where the next block goes.
    offset: u64,
    /// Bytes of its file.
    capacity: u64,
    /// Up to here the file has been written at some time.
    initialised: u64,
    /// Writing to it failed in a way that makes its pages doubtful.
    doubtful: bool,
}

pub(super) struct Segments<S: Storage> {
    pub(super) storage: S,
    segment_bytes: u64,
    active: Option<Active<S::File>>,
    pub(super) sealed: VecDeque<Sealed>,
    spares: Vec<(String, u64)>,
    /// The number of the last segment that was given its name.
    named: u32,
    /// The oldest segment has lost its name, and that isn't durable yet.
    nameless: bool,
    /// What may be left of spares that can't be used. It goes with the next segment that does.
    strays: Vec<String>,
    /// The next block's.
    sequence: u64,
    pub(super) written_bytes: u64,
}

impl<S: Storage> Segments<S> {
    /// Behind segments that were found. Nothing can be written before the first [`Segments::begin`].
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

    /// The number of the segment that is written.
    pub(super) fn number(&self) -> u32 {
        self.active.as_ref().map_or(0, |active| active.header.number)
    }

    /// Writes a batch and waits until it is durable. On an error nothing of it is, or all of it; it can be tried again, and nothing else
    /// may be written before.
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
                // The system may count pages as written that are not: they are left alone.
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

    /// Whether nothing of a batch that could not be written is ever found again: where it was to go there is an end, durably. While
    /// that isn't certain the batch must be written.
    pub(super) fn take_back(&mut self) -> bool {
        // The next segment, with the batch in it, may have its name.
        if self.named > self.number() {
            return false;
        }
        let Some(active) = self.active.as_mut().filter(|active| !active.doubtful) else { return false };
        // There is room: these bytes were written with the block before.
        let done = active.file.write_all_at(&[0; BLOCK_HEADER_BYTES], active.offset);
        if done.and_then(|()| active.file.sync()).is_err() {
            active.doubtful = true;
        }
        !active.doubtful
    }

    /// What is written to a directory that was moved away, the next start doesn't find: it must not be called durable.
    fn check_place(&self) -> Result<(), JournalError> {
        let path = self.storage.path("");
        match self.storage.is_in_place() {
            Ok(true) => Ok(()),
            Ok(false) => Err(JournalError::Moved { path }),
            Err(error) => Err(JournalError::io("find", path)(error)),
        }
    }

    /// Where the segment that is written ends.
    fn active_end(&self) -> u64 {
        self.active.as_ref().map_or(SEGMENT_HEADER_BYTES as u64, |active| active.offset)
    }

    /// Begins the next segment, with a batch in it, so that it is whole before it has its name. The one before ends at
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
        // Odd: even the first byte of a block differs from zeros.
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
                // Ours, whose name could not be synced.
                true => storage.rename(NEXT_NAME, &name),
                false => storage.rename_new(NEXT_NAME, &name),
            })
            .and_then(|()| {
                self.named = number;
                storage.sync()
            })
            .map_err(|error| {
                // So that it doesn't take the room that someone may make.
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

    /// A file under the name that isn't a segment's yet, how large it is, and how much of that was written before.
    fn fresh_file(&mut self, needed: u64) -> io::Result<(S::File, u64, u64)> {
        if let Some((name, bytes)) = self.spares.pop_if(|(_, bytes)| needed <= *bytes) {
            // If this fails the spare isn't used any more, and the next attempt makes a file.
            self.storage.rename(&name, NEXT_NAME).inspect_err(|_| self.strays.push(name))?;
            return Ok((self.storage.open(NEXT_NAME)?, bytes, bytes));
        }
        let file = self.storage.create(NEXT_NAME)?;
        let wanted = self.segment_bytes.max(needed);
        match file.allocate(wanted) {
            Ok(()) => Ok((file, wanted, 0)),
            // The last room there is, so that what is under way can be brought to its end.
            Err(error) if is_full(&error) => {
                file.set_length(0)?;
                let wanted = (2 * needed).next_multiple_of(64 * 1024).min(wanted);
                file.allocate(wanted).inspect_err(|_| drop(file.set_length(0)))?;
                Ok((file, wanted, 0))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the oldest segment, or keeps its file to be used again. Each removal is made durable before the next: a journal has no
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
                // Someone else has removed it.
                Err(error) if is_gone(&error) => None,
                removed => removed.map_err(cannot)?,
            };
            self.nameless = true;
        }
        self.strays.retain(|stray| storage.remove(stray).is_err_and(|error| !is_gone(&error)));
        storage.sync().map_err(|error| {
            // Told once only: after a crash the file might have its old name, with what would have been written to it.
            self.strays.extend(spare.take());
            cannot(error)
        })?;
        self.nameless = false;
        self.spares.extend(spare.map(|spare| (spare, oldest.bytes)));
        self.sealed.pop_front();
        Ok(())
    }

    /// Bytes of all files, as far as they are used; small segments count for more than they have, since there shouldn't be many.
    pub(super) fn used_bytes(&self) -> u64 {
        let least = self.segment_bytes / 16;
        self.sealed.iter().map(|sealed| sealed.bytes.max(least)).sum::<u64>() + self.active_end()
    }
}

/// Whether there is nothing of that name.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Whether there is no room: then what was written before is as it was.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
