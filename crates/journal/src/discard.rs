//! Giving up new requests when the disk is full, unless they were acknowledged.
//!
//! A block whose write failed may be whole on the disk all the same, for example if only the zeros behind it didn't fit.
//! Its place is therefore durably marked as the end first; where that fails, the whole batch stays and is written when
//! there is space.

use super::index::body_name;
use super::queue::Batch;
use super::record::{Record, Stored, What};
use super::storage::Storage;
use super::writer::{RETRY_MAX, RETRY_MIN, Writer};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest pause after the disk was full. Short in tests, which fill thousands of disks.
const REST_MAX: Duration = if cfg!(test) { Duration::from_millis(4) } else { RETRY_MAX };

/// A disk found full again this soon was full all the time.
const STILL_FULL: Duration = Duration::from_secs(2 * RETRY_MAX.as_secs());

impl<S: Storage, W: Fn()> Writer<S, W> {
    /// Removes everything about new requests from the batch and the queue. Returns the pause in which new requests are
    /// refused at once.
    pub(super) fn give_up(&mut self, batch: &mut Batch) -> Duration {
        let is_taken_back = self.segments.take_back();
        let mut given_up = HashSet::new();
        let mut queue = self.shared.queue();
        new_requests(&queue.batch, self.next_id, &mut given_up);
        let mut files = Vec::new();
        if is_taken_back {
            new_requests(batch, self.next_id, &mut given_up);
            take_out(batch, &given_up, &mut files);
            queue.in_flight = batch.records_bytes();
        }
        // Bodies in the queue have no file name yet.
        take_out(&mut queue.batch, &given_up, &mut Vec::new());
        queue.given_up.get_or_insert_default().extend(given_up);
        self.shared.has_given_up.store(true, Ordering::Release);
        drop(queue);
        let storage = &self.segments.storage;
        for name in files {
            if let Err(error) = storage.remove_body(&name)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(name, %error, "cannot remove a body; the next start tries again");
            }
        }
        let now = Instant::now();
        let wait = match self.gave_up {
            Some((at, wait)) if now.duration_since(at) < STILL_FULL => (wait * 2).min(REST_MAX),
            _ => RETRY_MIN,
        };
        self.gave_up = Some((now, wait));
        wait
    }
}

/// The records of a batch, all encoded by this process.
fn records(batch: &Batch) -> impl Iterator<Item = Record<'_>> {
    let mut rest = batch.bytes.get(super::block::BLOCK_HEADER_BYTES..).unwrap_or_default();
    std::iter::from_fn(move || Record::take(&mut rest).ok())
}

/// Ids of the new requests in a batch. Records moved by compaction have smaller ids.
fn new_requests(batch: &Batch, next_id: u64, ids: &mut HashSet<u64>) {
    // A dead letter is part of an outcome.
    let accepted = records(batch).filter(|record| matches!(record.what, What::Accepted { letter: None, .. }));
    ids.extend(accepted.map(|record| record.id).filter(|id| *id >= next_id));
}

/// Removes records of these requests, and collects the names of their files.
fn take_out(batch: &mut Batch, ids: &HashSet<u64>, files: &mut Vec<String>) {
    if ids.is_empty() {
        return;
    }
    let mut kept = Batch { upto: batch.upto, ..Batch::default() };
    for record in records(batch) {
        if !ids.contains(&record.id) {
            kept.bytes.extend_from_slice(record.bytes);
            kept.records += 1;
            continue;
        }
        match record.what {
            What::Accepted { body: Stored::File(_), .. } => files.push(body_name(record.id, false)),
            What::Finished { body: Stored::File(_), .. } => files.push(body_name(record.id, true)),
            _ => {}
        }
    }
    kept.bodies = std::mem::take(&mut batch.bodies);
    kept.bodies.retain(|pending| !files.contains(&pending.name));
    *batch = kept;
}
