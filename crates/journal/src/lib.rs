//! The journal: requests that a broker has accepted and not yet finished, on disk.
//!
//! [`Journal::append`] copies an entry into memory. The journal's thread writes all entries that have come together, syncs
//! them, and publishes how far it got ([`Journal::durable`]). One sync is shared by all entries that came during the
//! previous one, and the owner never waits.
// docs/formats/journal.md has the format, recovery, and why this isn't an embedded store.

mod block;
mod compaction;
mod content;
mod directory;
mod discard;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod faulty_disk;
mod file_lock;
mod index;
mod inspect;
mod queue;
mod read;
mod record;
mod recover;
mod replay;
mod segments;
mod shared_bodies;
mod storage;
#[cfg(test)]
mod tests;
mod types;
mod writer;

pub use content::{Content, encode};
pub use error::JournalError;
pub use inspect::{Inspected, InspectedKind, InspectedSegment, fuzz_segment, inspect};
pub use types::{
    CutTail, Entry, Expiry, JournalFigures, JournalOptions, Letter, Lsn, Recovered, RecoveredLetter, RecoveredRequest,
    Status,
};

use queue::{Batch, PendingBody, Shared};
use replay::Finished;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::{DirStorage, Storage, StorageFile};
use towpath_requests::limits::{JOURNAL_PENDING_BYTES_MAX, JOURNAL_RECORD_BYTES_MAX};
use towpath_spool::SpooledBody;

const SEGMENT_BYTES_MIN: u64 = 4 * 1024;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// An open journal. Dropping closes it, without reporting errors.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), JournalError>>>,
    pending_bytes: usize,
    /// Held while the thread writes.
    _lock: Option<file_lock::Lock>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("durable", &self.durable).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in a directory, creating it if needed. `wake` is called by the journal's thread whenever more is
    /// durable and when a write has failed; it must not block.
    ///
    /// Errors: another process has the journal; durable records are damaged; the directory can't be written.
    pub fn open(
        dir: &Path,
        options: JournalOptions,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(Journal, Recovered), JournalError> {
        directory::make_dir(dir)?;
        let opened = directory::open(dir)?;
        let lock = directory::lock(dir, &opened)?;
        directory::make_bodies(dir, &opened)?;
        // Locked as long as the thread has it.
        Journal::open_on(DirStorage::new(dir, opened, true), &options, Some(lock), wake)
    }

    fn open_on<S>(
        storage: S,
        options: &JournalOptions,
        lock: Option<file_lock::Lock>,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(Journal, Recovered), JournalError>
    where
        S: Storage<File: Send>,
    {
        let segment_bytes =
            options.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(block::ALIGNMENT);
        let mut loading = replay::Loading::default();
        let mut found = recover::read_all(&storage, options.repairs, |record, segment| loading.apply(record, segment))?;
        if let Some(cut) = &found.cut {
            let (file, CutTail { offset, bytes, what, .. }) = (cut.path.display(), cut);
            tracing::warn!(%file, offset, bytes, what, "{}", CutTail::MEANING);
        }
        let Finished { requests, files, given_up } =
            loading.replay.finish(&storage, found.cut.as_mut(), found.has_gaps)?;
        directory::remove_spares(&storage)?;
        // The last segment's name may only be in the page cache if the previous process was killed. A machine crash must
        // not lose it and keep the next one.
        storage.sync().map_err(JournalError::io("sync", storage.path("")))?;

        // The last block may only be in the page cache, or lost if its sync had failed. It is written again as the first
        // block of a new segment, so the old copy doesn't matter.
        let last_segment = found.segments.last().map(|segment| segment.number);
        let mut batch = None;
        let mut end = found.segments.last().map_or(block::SEGMENT_HEADER_BYTES as u64, |segment| segment.end);
        if let Some(last) = found.last_block.take() {
            let mut again = Batch::default();
            // A gap is left where it is.
            if last.records > 0 {
                again.records = last.records;
                again.bytes.extend_from_slice(&last.bytes);
            }
            end = last.start;
            found.sequence -= 1;
            batch = Some(again);
        }
        if let Some(last) = found.segments.last_mut() {
            last.end = end;
        }
        if !given_up.is_empty() {
            let batch = batch.get_or_insert_default();
            for id in given_up {
                record::encode(&Entry::Forgotten { id }, record::PREFIX_BYTES, &mut batch.bytes);
                batch.records += 1;
            }
        }
        let mut segments = segments::Segments::new(storage, segment_bytes, &found.segments, found.sequence);
        segments.begin(batch.as_mut(), found.next_id, end)?;
        if let Some(number) = last_segment {
            let name = recover::segment_name(number);
            let storage = &segments.storage;
            storage
                .open(&name)
                .and_then(|file| file.set_length(end))
                .map_err(JournalError::io("shorten", storage.path(&name)))?;
        }

        directory::remove_bodies(&segments.storage, &files)?;

        let shared = Arc::new(Shared::default());
        let mut writer =
            writer::Writer::new(segments, loading.index, shared.clone(), segment_bytes, found.next_id, wake);
        writer.gives_up = options.gives_up;
        if let Some(batch) = &batch {
            writer.take_in(batch);
            writer.unmarked_since = (batch.records > 0).then(Instant::now);
        }
        writer.remove_unneeded();
        writer.publish_figures();
        let thread = {
            let ended = Ended(shared.clone());
            let run = move || {
                let _ended = ended;
                writer.run()
            };
            let builder = std::thread::Builder::new().name("journal".to_owned());
            builder.spawn(run).map_err(|error| JournalError::Thread(error.to_string()))?
        };
        let pending_bytes = options.pending_bytes.min(JOURNAL_PENDING_BYTES_MAX);
        let journal = Journal { shared, thread: Some(thread), pending_bytes, _lock: lock };
        Ok((journal, Recovered { requests, cut: found.cut, next_id: found.next_id }))
    }

    /// Appends to the next batch, in memory, without waiting for the disk. After an error nothing was appended.
    ///
    /// Errors: [`JournalError::Full`] if too much is queued; [`JournalError::Failing`] while the journal can't be written,
    /// or until [`Journal::take_given_up`] was called; [`JournalError::TooLarge`] and [`JournalError::UnknownBody`] for
    /// entries that a journal doesn't take.
    pub fn append(&mut self, entry: &Entry) -> Result<Lsn, JournalError> {
        if let Some(why) = self.shared.failure() {
            return Err(JournalError::Failing(why));
        }
        let bytes = record::encoded_bytes(entry)?;
        if bytes > JOURNAL_RECORD_BYTES_MAX {
            return Err(JournalError::TooLarge("the entry"));
        }
        let file = body_in_file(entry)?;
        let mut queue = self.shared.queue();
        if queue.given_up.is_some() {
            return Err(JournalError::Failing("requests were given up".to_owned()));
        }
        let waiting = queue.in_flight + queue.batch.records_bytes();
        if waiting > 0 && waiting + bytes > self.pending_bytes {
            return Err(JournalError::Full);
        }
        record::encode(entry, bytes, &mut queue.batch.bytes);
        queue.batch.records += 1;
        queue.batch.bodies.extend(file);
        let lsn = Lsn(queue.next);
        queue.next += 1;
        self.shared.appended(queue);
        Ok(lsn)
    }

    /// Position below which all entries are durable. One atomic load.
    #[inline]
    pub fn durable(&self) -> Lsn {
        Lsn(self.shared.durable.load(Ordering::Acquire))
    }

    /// Requests given up because the disk was found full since the last call, if it was. No entry of them is in the journal
    /// or will be, and no more may be appended. Call after [`Journal::durable`], which doesn't cover them. Always `None`
    /// without [`JournalOptions::gives_up`].
    #[inline]
    pub fn take_given_up(&mut self) -> Option<Vec<u64>> {
        if !self.shared.has_given_up.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.shared.queue();
        self.shared.has_given_up.store(false, Ordering::Release);
        queue.given_up.take()
    }

    /// Whether the journal can be written.
    pub fn status(&self) -> Status {
        self.shared.failure().map_or(Status::Working, Status::Failing)
    }

    /// Bytes queued for the disk.
    pub fn pending_bytes(&self) -> usize {
        self.shared.pending().0
    }

    /// Figures for an operator.
    pub fn figures(&self) -> JournalFigures {
        let shared = &self.shared;
        let (pending_bytes, writing) = shared.pending();
        let time = |micros: &AtomicU64| Duration::from_micros(micros.load(Ordering::Relaxed));
        JournalFigures {
            segments: shared.segments.load(Ordering::Relaxed),
            log_bytes: shared.log_bytes.load(Ordering::Relaxed),
            needed_bytes: shared.needed_bytes.load(Ordering::Relaxed),
            requests: shared.requests.load(Ordering::Relaxed),
            commits: shared.commits.load(Ordering::Relaxed),
            written_bytes: shared.written_bytes.load(Ordering::Relaxed),
            pending_bytes: pending_bytes as u64,
            writing,
            sync_sum: time(&shared.sync_sum),
            sync_last: time(&shared.sync_last),
            sync_max: time(&shared.sync_max),
            errors: shared.errors.load(Ordering::Relaxed),
        }
    }

    /// Makes everything durable and ends the thread. A failed write is retried once; entries that aren't durable then are
    /// given up, which nobody was promised.
    pub fn close(mut self) -> Result<(), JournalError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), JournalError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.shared.close();
        thread.join().unwrap_or_else(|_| Err(JournalError::Thread("it has panicked".to_owned())))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the journal was not closed well");
        }
    }
}

/// Marks the thread as ended, also when it panics.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended(if std::thread::panicking() { "its thread has failed" } else { "it is closed" });
    }
}

/// The body of an entry that needs a file name.
fn body_in_file(entry: &Entry) -> Result<Option<PendingBody>, JournalError> {
    let (id, body, of_outcome) = match entry {
        Entry::Accepted { id, body, .. } => (*id, body, false),
        Entry::Finished { id, body, .. } => (*id, body, true),
        Entry::Moved { .. } | Entry::Forgotten { .. } => return Ok(None),
    };
    let Some(large) = body.as_large() else { return Ok(None) };
    let any: &dyn Any = &**large;
    if !any.is::<SpooledBody>() {
        return Err(JournalError::UnknownBody);
    }
    let name = index::body_name(id, of_outcome);
    Ok(Some(PendingBody { name, body: large.clone(), kept: false, copy: false }))
}
