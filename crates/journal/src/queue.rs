//! The queue between the journal's owner and its thread.

use super::block::BLOCK_HEADER_BYTES;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use towpath_requests::body::LargeBody;

/// Larger buffers aren't reused.
const BUFFER_KEPT_BYTES: usize = 16 * 1024 * 1024;

/// Records that become durable together: a block, with space for its header in front.
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) records: u32,
    /// Position of the first record after this batch.
    pub(super) upto: u64,
    /// Bodies that must get their names first.
    pub(super) bodies: Vec<PendingBody>,
}

pub(super) struct PendingBody {
    pub(super) name: String,
    pub(super) body: Arc<dyn LargeBody>,
    /// Has its name, and its bytes are synced.
    pub(super) kept: bool,
    /// Its sync failed, so that the page cache is unreliable: it is written once more.
    pub(super) copy: bool,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { bytes: vec![0; BLOCK_HEADER_BYTES], records: 0, upto: 0, bodies: Vec::new() }
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == BLOCK_HEADER_BYTES
    }

    /// Bytes of the records.
    pub(super) fn records_bytes(&self) -> usize {
        self.bytes.len() - BLOCK_HEADER_BYTES
    }

    /// Empties the batch and keeps its memory unless that is large.
    pub(super) fn reset(&mut self) {
        if self.bytes.capacity() > BUFFER_KEPT_BYTES {
            self.bytes = vec![0; BLOCK_HEADER_BYTES];
        }
        self.bytes.truncate(BLOCK_HEADER_BYTES);
        self.records = 0;
        self.bodies.clear();
    }
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) batch: Batch,
    /// Bytes of the batch that is being written.
    pub(super) in_flight: usize,
    /// When that began.
    since: Option<Instant>,
    /// Position of the next record.
    pub(super) next: u64,
    /// The disk was found full: these requests aren't written. Nothing is appended before the owner has read this, since it
    /// may be about one of them.
    pub(super) given_up: Option<Vec<u64>>,
    /// The thread waits for work.
    idle: bool,
    closing: bool,
}

/// State shared by owner and thread.
#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    pub(super) durable: AtomicU64,
    /// Whether `given_up` is set.
    pub(super) has_given_up: AtomicBool,
    failing: AtomicBool,
    failure: Mutex<String>,
    pub(super) segments: AtomicU64,
    pub(super) log_bytes: AtomicU64,
    pub(super) needed_bytes: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) commits: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    /// In microseconds.
    pub(super) sync_sum: AtomicU64,
    pub(super) sync_last: AtomicU64,
    pub(super) sync_max: AtomicU64,
    pub(super) errors: AtomicU64,
}

impl Shared {
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        // No operation under the lock can leave it half done.
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Releases the lock, and wakes the thread if it is idle.
    pub(super) fn appended(&self, mut queue: MutexGuard<'_, Queue>) {
        let idle = std::mem::take(&mut queue.idle);
        drop(queue);
        if idle {
            self.changed.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.queue().closing = true;
        self.changed.notify_one();
    }

    /// Takes the queued batch and leaves `empty` in its place. Waits for one until `until`, if there is other work then.
    /// `None` if the queue is empty and closed.
    pub(super) fn take(&self, empty: Batch, until: Option<Instant>) -> Option<Batch> {
        let mut queue = self.queue();
        while queue.batch.is_empty() {
            if queue.closing {
                return None;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            queue.idle = true;
            queue = match left {
                Some(left) => self.changed.wait_timeout(queue, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0,
                None => self.changed.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner()),
            };
        }
        queue.idle = false;
        let mut batch = std::mem::replace(&mut queue.batch, empty);
        batch.upto = queue.next;
        queue.in_flight = batch.records_bytes();
        queue.since = (!batch.is_empty()).then(Instant::now);
        Some(batch)
    }

    /// Publishes that all records below `upto` are durable.
    pub(super) fn publish(&self, upto: u64) {
        let mut queue = self.queue();
        queue.in_flight = 0;
        let took = queue.since.take().map_or(0, |since| since.elapsed().as_micros() as u64);
        drop(queue);
        self.sync_sum.fetch_add(took, Ordering::Relaxed);
        self.sync_last.store(took, Ordering::Relaxed);
        self.sync_max.fetch_max(took, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.durable.store(upto, Ordering::Release);
        if self.failing.swap(false, Ordering::AcqRel) {
            tracing::debug!("the journal goes on");
        }
    }

    /// Bytes that aren't durable yet, and for how long those that are being written have been.
    pub(super) fn pending(&self) -> (usize, Duration) {
        let queue = self.queue();
        let writing = queue.since.map_or(Duration::ZERO, |since| since.elapsed());
        (queue.in_flight + queue.batch.records_bytes(), writing)
    }

    /// Whether the owner is closing the journal.
    pub(super) fn is_closing(&self) -> bool {
        self.queue().closing
    }

    /// Records a failed write.
    pub(super) fn failed(&self, error: &super::JournalError) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let text = error.to_string();
        let mut failure = self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !self.failing.load(Ordering::Acquire) || *failure != text {
            tracing::error!("the journal cannot be written, and tries again: {text}");
        }
        *failure = text;
        drop(failure);
        self.failing.store(true, Ordering::Release);
    }

    /// Waits before a retry, unless the journal is closing.
    pub(super) fn rest(&self, wait: Duration) {
        let queue = self.queue();
        if queue.closing {
            return;
        }
        // Only a close wakes it early.
        let (_queue, _) = self.changed.wait_timeout(queue, wait).unwrap_or_else(|poisoned| poisoned.into_inner());
    }

    /// Last error, until writing works again.
    pub(super) fn failure(&self) -> Option<String> {
        if !self.failing.load(Ordering::Acquire) {
            return None;
        }
        Some(self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }

    /// Records why the thread ended.
    pub(super) fn ended(&self, why: &str) {
        *self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = why.to_owned();
        self.failing.store(true, Ordering::Release);
    }
}
