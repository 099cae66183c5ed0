//! What becomes of requests for which the disk has no room, if nobody was told that they are kept.
//!
//! A block whose write failed may lie at the segment's end all the same, whole, as when there was no room for the zeros behind it. So its
//! place is made an end first, durably; where that can't be done, all of it stays and is written when there is room.

use super::index::body_name;
use super::queue::Batch;
use super::record::{Record, Stored, What};
use super::storage::Storage;
use super::writer::{RETRY_MAX, RETRY_MIN, Writer};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest time for which nothing is tried. Tests have thousands of disks that are full once.
const REST_MAX: Duration = if cfg!(test) { Duration::from_millis(4) } else { RETRY_MAX };

/// A disk that was found full again so soon has been full in between.
const STILL_FULL: Duration = Duration::from_secs(2 * RETRY_MAX.as_secs());

impl<S: Storage, W: Fn()> Writer<S, W> {
    /// Takes all that is about new requests out of the batch and of what waits. Gives how long nothing should be tried: new ones are
    /// refused at once meanwhile.
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
        // Of these no file has its name yet.
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

/// All of it was encoded here.
fn records(batch: &Batch) -> impl Iterator<Item = Record<'_>> {
    let mut rest = batch.bytes.get(super::block::BLOCK_HEADER_BYTES..).unwrap_or_default();
    std::iter::from_fn(move || Record::take(&mut rest).ok())
}

/// The requests that a batch brings. Others of it were moved from an older segment, and have smaller ids.
fn new_requests(batch: &Batch, next_id: u64, ids: &mut HashSet<u64>) {
    let accepted = records(batch).filter(|record| matches!(record.what, What::Accepted { .. }));
    ids.extend(accepted.map(|record| record.id).filter(|id| *id >= next_id));
}

/// Leaves out what is about these requests, and tells the files that they would have had.
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
