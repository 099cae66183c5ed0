//! The journal's thread: takes what waits, makes it durable, says so, and removes what isn't needed any more.

use super::JournalError;
use super::compaction::{CleanError, Cleaning};
use super::index::Index;
use super::queue::{Batch, Shared};
use super::record::Record;
use super::recover::segment_name;
use super::segments::Segments;
use super::storage::Storage;
use crate::spool::SpooledBody;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two attempts to write, or to free a segment. Tests have thousands of faults to get through.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
pub(super) const RETRY_MAX: Duration = Duration::from_secs(2);
/// At least so much of an old segment is looked at with a batch, at most so much, and else so many times the batch's own bytes: what
/// is freed has to keep ahead of what comes.
const CLEAN_BYTES_MIN: usize = 64 * 1024;
const CLEAN_BYTES_MAX: usize = 16 * 1024 * 1024;
const CLEAN_FACTOR: usize = 4;
/// Cleaning begins when the segments are more than so many times what is needed of them, and so many segments more.
const CLEAN_OVER_FACTOR: u64 = 3;
const CLEAN_OVER_SEGMENTS: u64 = 4;

pub(super) struct Writer<S: Storage, W> {
    pub(super) segments: Segments<S>,
    pub(super) index: Index,
    pub(super) shared: Arc<Shared>,
    pub(super) segment_bytes: u64,
    pub(super) next_id: u64,
    pub(super) wake: W,
    cleaning: Option<Cleaning<S::File>>,
    /// What is to be freed isn't what was written. It stays as it is; it is only not freed before the next start.
    stuck: bool,
    /// Freeing failed, and is left alone until then.
    paused_until: Option<Instant>,
    /// For how long the next time.
    pause: Duration,
    /// Requests for which there is no room are given up.
    pub(super) gives_up: bool,
    /// When that was last, and for how long nothing was tried then.
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
        let (cleaning, stuck, paused_until, pause) = (None, false, None, RETRY_MIN);
        let (gives_up, gave_up) = (false, None);
        Writer {
            segments,
            index,
            shared,
            segment_bytes,
            next_id,
            wake,
            cleaning,
            stuck,
            paused_until,
            pause,
            gives_up,
            gave_up,
        }
    }

    /// Until the journal is closed. An error if something could not be made durable before.
    pub(super) fn run(mut self) -> Result<(), JournalError> {
        let mut empty = Batch::default();
        while let Some(mut batch) = self.shared.take(empty, self.next_freeing()) {
            if self.is_cleaning_due() {
                self.clean(&mut batch);
            }
            if !batch.is_empty() {
                self.make_durable(&mut batch)?;
                self.shared.publish(batch.upto);
                (self.wake)();
                self.take_in(&batch);
            }
            self.remove_unneeded();
            self.tell_figures();
            batch.reset();
            empty = batch;
        }
        Ok(())
    }

    fn make_durable(&mut self, batch: &mut Batch) -> Result<(), JournalError> {
        let mut wait = RETRY_MIN;
        loop {
            // What fails after a close has begun is not tried again.
            let last = self.shared.is_closing();
            if batch.is_empty() {
                // All of it was given up.
                return Ok(());
            }
            let written = self.keep_bodies(batch).and_then(|()| self.segments.write(batch, self.next_id));
            let Err(error) = written else { return Ok(()) };
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

    /// Bodies get their names, durably, before the records that name them.
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
            // Told once only: the next sync would succeed though names are lost, so that they are made anew.
            for pending in &mut batch.bodies {
                (pending.kept, pending.copy) = (false, true);
            }
            JournalError::io("sync", storage.body_path(""))(error)
        })?;
        batch.bodies.clear();
        Ok(())
    }

    /// The batch is durable.
    pub(super) fn take_in(&mut self, batch: &Batch) {
        let segment = self.segments.number();
        let storage = &self.segments.storage;
        let mut rest = batch.bytes.get(super::block::BLOCK_HEADER_BYTES..).unwrap_or_default();
        // All of it was encoded here.
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

    /// When there is something to do though nothing is to be written, if there is.
    fn next_freeing(&self) -> Option<Instant> {
        self.paused_until.or_else(|| self.is_cleaning_due().then(Instant::now))
    }

    fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    fn is_cleaning_due(&self) -> bool {
        let Some(oldest) = self.segments.sealed.front() else { return false };
        let allowed = CLEAN_OVER_FACTOR * self.index.total() + CLEAN_OVER_SEGMENTS * self.segment_bytes;
        // One of which nothing is needed is only to be removed.
        let is_needed = self.index.needed_of(oldest.number) > 0;
        is_needed && !self.stuck && self.segments.used_bytes() > allowed && !self.is_paused()
    }

    /// Puts a piece of what is needed of the oldest segment in front of the batch: what the batch says of it comes later.
    fn clean(&mut self, batch: &mut Batch) {
        let Some(oldest) = self.segments.sealed.front() else { return };
        let budget = (CLEAN_FACTOR * batch.records_bytes()).clamp(CLEAN_BYTES_MIN, CLEAN_BYTES_MAX);
        let mut moved = Batch::default();
        let mut step = || {
            if self.cleaning.as_ref().is_none_or(|cleaning| cleaning.number() != oldest.number) {
                self.cleaning = Some(Cleaning::begin(&self.segments.storage, oldest).map_err(CleanError::Io)?);
            }
            self.cleaning.as_mut().map_or(Ok(()), |cleaning| cleaning.step(budget, &self.index, &mut moved))
        };
        let done = step();
        let segment = || self.segments.storage.path(&segment_name(oldest.number));
        match done {
            Ok(()) => self.pause = RETRY_MIN,
            Err(CleanError::Io(error)) => {
                let error = JournalError::io("read", segment())(error);
                self.pause_freeing(&error);
            }
            Err(CleanError::Damaged(error)) => {
                let segment = segment();
                tracing::error!(segment = %segment.display(), error, "cannot free a segment; all are kept until the next start");
                self.stuck = true;
                self.cleaning = None;
            }
        }
        if !moved.is_empty() {
            moved.bytes.extend_from_slice(batch.bytes.get(super::block::BLOCK_HEADER_BYTES..).unwrap_or_default());
            batch.bytes = moved.bytes;
            batch.records += moved.records;
        }
    }

    /// Leaves freeing alone for a while.
    fn pause_freeing(&mut self, error: &JournalError) {
        if self.pause == RETRY_MIN {
            tracing::warn!(%error, "cannot free a segment, and tries again");
        }
        self.paused_until = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }

    /// Removes the oldest segments as long as nothing of them is needed.
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
                return self.pause_freeing(&error);
            }
            self.pause = RETRY_MIN;
            self.index.forget_before(number + 1);
            if self.cleaning.as_ref().is_some_and(|cleaning| cleaning.number() == number) {
                self.cleaning = None;
            }
        }
    }

    pub(super) fn tell_figures(&self) {
        let (shared, segments) = (&self.shared, &self.segments);
        shared.segments.store(segments.sealed.len() as u64 + 1, Ordering::Relaxed);
        shared.log_bytes.store(segments.used_bytes(), Ordering::Relaxed);
        shared.needed_bytes.store(self.index.total(), Ordering::Relaxed);
        shared.requests.store(self.index.requests() as u64, Ordering::Relaxed);
        shared.written_bytes.store(segments.written_bytes, Ordering::Relaxed);
    }
}
