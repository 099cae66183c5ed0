//! The journal's thread: makes queued records durable, publishes that, and removes segments that aren't needed.

use super::compaction::{Compaction, CompactionError};
use super::index::Index;
use super::queue::{Batch, Shared};
use super::record::{self, Record};
use super::recover::segment_name;
use super::segments::Segments;
use super::storage::Storage;
use super::{Entry, JournalError};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_spool::SpooledBody;

/// Shortest pause between attempts. Tests have thousands of faults to get through.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
pub(super) const RETRY_MAX: Duration = Duration::from_secs(2);
/// The end of a journal is marked when nothing was written for so long.
pub(super) const IDLE: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 1000 });
/// Bytes of an old segment that are processed with a batch: at least, and per byte of the batch, so that compaction keeps
/// ahead of new records.
const COMPACT_BYTES_MIN: usize = 64 * 1024;
const COMPACT_BYTES_MAX: usize = 16 * 1024 * 1024;
const COMPACT_FACTOR: usize = 4;
/// Compaction starts when the segments exceed their needed bytes by this factor, plus this many segments.
const COMPACT_OVER_FACTOR: u64 = 3;
const COMPACT_OVER_SEGMENTS: u64 = 4;

pub(super) struct Writer<S: Storage, W> {
    pub(super) segments: Segments<S>,
    pub(super) index: Index,
    pub(super) shared: Arc<Shared>,
    pub(super) segment_bytes: u64,
    pub(super) next_id: u64,
    pub(super) wake: W,
    compaction: Option<Compaction<S::File>>,
    /// The oldest segment is damaged. It is left alone until the next start.
    stuck: bool,
    /// Compaction failed and pauses until then.
    paused_until: Option<Instant>,
    /// Length of the next pause.
    pause: Duration,
    /// Give up requests that the disk has no space for.
    pub(super) gives_up: bool,
    /// When the last block was written, if no end mark is behind it.
    pub(super) unmarked_since: Option<Instant>,
    /// Time of the last give-up, and the pause after it.
    pub(super) gave_up: Option<(Instant, Duration)>,
}

impl<S: Storage, W: Fn()> Writer<S, W> {
    pub(super) fn new(
        segments: Segments<S>,
        index: Index,
        shared: Arc<Shared>,
        segment_bytes: u64,
        next_id: u64,
        wake: W,
    ) -> Writer<S, W> {
        let (compaction, stuck, paused_until, pause) = (None, false, None, RETRY_MIN);
        let (gives_up, gave_up) = (false, None);
        Writer {
            segments,
            index,
            shared,
            segment_bytes,
            next_id,
            wake,
            compaction,
            stuck,
            paused_until,
            pause,
            gives_up,
            unmarked_since: None,
            gave_up,
        }
    }

    /// Runs until the journal is closed. The error is of entries that could not be made durable.
    pub(super) fn run(mut self) -> Result<(), JournalError> {
        let mut empty = Batch::default();
        while let Some(mut batch) = self.shared.take(empty, self.next_work()) {
            if self.is_compaction_due() {
                self.compact(&mut batch);
            }
            if !batch.is_empty() {
                self.make_durable(&mut batch)?;
                self.shared.publish(batch.upto);
                (self.wake)();
                self.take_in(&batch);
                self.unmarked_since = Some(Instant::now());
            } else if self.unmarked_since.is_some_and(|since| since.elapsed() >= IDLE) {
                self.mark_end();
            }
            self.remove_unneeded();
            self.publish_figures();
            batch.reset();
            empty = batch;
        }
        if self.unmarked_since.is_some() {
            self.mark_end();
        }
        Ok(())
    }

    /// Writes a block without records behind the last one, which then isn't the last any more: whatever is wrong with it later is damage, and
    /// not taken for a block that was being written. Of no use where it fails, so the next one tries again.
    fn mark_end(&mut self) {
        self.unmarked_since = None;
        if let Err(error) = self.segments.write(&mut Batch::default(), self.next_id) {
            tracing::debug!(%error, "the end of the journal isn't marked");
        }
    }

    fn make_durable(&mut self, batch: &mut Batch) -> Result<(), JournalError> {
        let mut wait = RETRY_MIN;
        loop {
            // Failures after a close has begun aren't retried.
            let last = self.shared.is_closing();
            let is_given_up = batch.is_empty();
            if is_given_up {
                if last {
                    return Ok(());
                }
                // Nobody may send anything for long: whether there is space again shows when this is written.
                record::encode(&Entry::Forgotten { id: 0 }, record::PREFIX_BYTES, &mut batch.bytes);
                batch.records += 1;
            }
            let written = self.keep_bodies(batch).and_then(|()| self.segments.write(batch, self.next_id));
            let Err(error) = written else { return Ok(()) };
            if is_given_up {
                batch.reset();
            }
            if last {
                return Err(error);
            }
            self.shared.failed(&error);
            if self.gives_up && error.is_full() {
                wait = wait.max(self.give_up(batch));
            }
            (self.wake)();
            self.shared.rest(wait);
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// Names bodies durably, before the records that name them.
    fn keep_bodies(&mut self, batch: &mut Batch) -> Result<(), JournalError> {
        let storage = &self.segments.storage;
        if batch.bodies.is_empty() {
            return Ok(());
        }
        for pending in batch.bodies.iter_mut().filter(|pending| !pending.kept) {
            let body: &dyn Any = &*pending.body;
            let Some(spooled) = body.downcast_ref::<SpooledBody>() else { continue };
            if let Err(error) = storage.keep_body(&pending.name, spooled, pending.copy) {
                pending.copy = true;
                return Err(JournalError::io("keep", storage.body_path(&pending.name))(error));
            }
            pending.kept = true;
        }
        storage.sync_bodies().map_err(|error| {
            // An error is reported once only: the next sync would succeed though names are lost, so they are made again.
            for pending in &mut batch.bodies {
                (pending.kept, pending.copy) = (false, true);
            }
            JournalError::io("sync", storage.body_path(""))(error)
        })?;
        batch.bodies.clear();
        Ok(())
    }

    /// Updates the index with a durable batch.
    pub(super) fn take_in(&mut self, batch: &Batch) {
        let segment = self.segments.number();
        let storage = &self.segments.storage;
        let mut rest = batch.bytes.get(super::block::BLOCK_HEADER_BYTES..).unwrap_or_default();
        // All of it was encoded by this process.
        while let Ok(record) = Record::take(&mut rest) {
            self.next_id = self.next_id.max(record.id.saturating_add(1));
            self.index.apply(&record, segment, |name| {
                if let Err(error) = storage.remove_body(&name)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    tracing::warn!(name, %error, "cannot remove a body; the next start tries again");
                }
            });
        }
    }

    /// Time of the next compaction step or end mark if nothing is queued.
    fn next_work(&self) -> Option<Instant> {
        let compaction = self.paused_until.or_else(|| self.is_compaction_due().then(Instant::now));
        compaction.into_iter().chain(self.unmarked_since.map(|since| since + IDLE)).min()
    }

    fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    fn is_compaction_due(&self) -> bool {
        let Some(oldest) = self.segments.sealed.front() else { return false };
        let allowed = COMPACT_OVER_FACTOR * self.index.total() + COMPACT_OVER_SEGMENTS * self.segment_bytes;
        // A segment without needed records is only removed.
        let is_needed = self.index.needed_of(oldest.number) > 0;
        is_needed && !self.stuck && self.segments.used_bytes() > allowed && !self.is_paused()
    }

    /// Puts needed records of the oldest segment in front of the batch, whose own entries are later.
    fn compact(&mut self, batch: &mut Batch) {
        let Some(oldest) = self.segments.sealed.front() else { return };
        let budget = (COMPACT_FACTOR * batch.records_bytes()).clamp(COMPACT_BYTES_MIN, COMPACT_BYTES_MAX);
        let mut moved = Batch::default();
        let mut step = || {
            if self.compaction.as_ref().is_none_or(|compaction| compaction.number() != oldest.number) {
                self.compaction = Some(Compaction::begin(&self.segments.storage, oldest).map_err(CompactionError::Io)?);
            }
            self.compaction.as_mut().map_or(Ok(()), |compaction| compaction.step(budget, &self.index, &mut moved))
        };
        let done = step();
        let segment = || self.segments.storage.path(&segment_name(oldest.number));
        match done {
            Ok(()) => self.pause = RETRY_MIN,
            Err(CompactionError::Io(error)) => {
                let error = JournalError::io("read", segment())(error);
                self.pause_compaction(&error);
            }
            Err(CompactionError::Damaged(error)) => {
                let segment = segment();
                tracing::error!(segment = %segment.display(), error, "cannot free a segment; all are kept until the next start");
                self.stuck = true;
                self.compaction = None;
            }
        }
        if !moved.is_empty() {
            moved.bytes.extend_from_slice(batch.bytes.get(super::block::BLOCK_HEADER_BYTES..).unwrap_or_default());
            batch.bytes = moved.bytes;
            batch.records += moved.records;
        }
    }

    /// Pauses compaction.
    fn pause_compaction(&mut self, error: &JournalError) {
        if self.pause == RETRY_MIN {
            tracing::warn!(%error, "cannot free a segment, and tries again");
        }
        self.paused_until = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }

    /// Removes the oldest segments while nothing in them is needed.
    pub(super) fn remove_unneeded(&mut self) {
        if self.is_paused() {
            return;
        }
        self.paused_until = None;
        while let Some(oldest) = self.segments.sealed.front()
            && self.index.needed_of(oldest.number) == 0
        {
            let number = oldest.number;
            if let Err(error) = self.segments.remove_oldest() {
                return self.pause_compaction(&error);
            }
            self.pause = RETRY_MIN;
            self.index.forget_before(number + 1);
            if self.compaction.as_ref().is_some_and(|compaction| compaction.number() == number) {
                self.compaction = None;
            }
        }
    }

    pub(super) fn publish_figures(&self) {
        let (shared, segments) = (&self.shared, &self.segments);
        shared.segments.store(segments.sealed.len() as u64 + 1, Ordering::Relaxed);
        shared.log_bytes.store(segments.used_bytes(), Ordering::Relaxed);
        shared.needed_bytes.store(self.index.total(), Ordering::Relaxed);
        shared.requests.store(self.index.requests() as u64, Ordering::Relaxed);
        shared.written_bytes.store(segments.written_bytes, Ordering::Relaxed);
    }
}
