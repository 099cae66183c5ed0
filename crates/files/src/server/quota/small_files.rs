//! Memory of small files that were read and not sent yet, of all clients together.

use crate::server::limits::BATCH_BYTES_MAX;
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_buffers::PageBuffer;
use towpath_quota::{Permit, Quota};

/// Buffers that are kept for the next batch: fresh memory costs a page fault for each 4 KiB that is read into it.
const SPARE_BUFFERS_MAX: usize = 4;

/// Counts bytes once they are read: what is being read at the moment may exceed the quota.
#[derive(Debug)]
pub(crate) struct SmallFiles {
    quota: Arc<Quota>,
    /// Empty buffers, each of room for a batch.
    spare: Mutex<Vec<PageBuffer>>,
}

/// Bytes that count until the last slice of them is dropped, also in the socket's queue.
struct Held {
    bytes: Memory,
    files: Arc<SmallFiles>,
    _permit: Permit,
}

enum Memory {
    /// Goes back to the spare buffers.
    Batch(PageBuffer),
    Exact(Vec<u8>),
}

impl SmallFiles {
    pub(crate) fn new(bytes_max: usize) -> Arc<SmallFiles> {
        Arc::new(SmallFiles { quota: Quota::new(bytes_max as u64), spare: Mutex::default() })
    }

    /// Whether this many bytes are available.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.quota.available() >= bytes as u64
    }

    /// An empty buffer of room for a batch, so that nothing is copied while it fills; what is not handed to [`SmallFiles::hold`]
    /// doesn't count.
    pub(crate) fn buffer(&self) -> PageBuffer {
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| PageBuffer::with_capacity(BATCH_BYTES_MAX))
    }

    /// Counts a batch's buffer from now on until all slices of it are gone.
    pub(crate) fn hold_batch(self: &Arc<SmallFiles>, buffer: PageBuffer) -> Bytes {
        if buffer.len() < buffer.capacity() / 2 {
            // What was reserved and not filled would be held for little.
            let exact = buffer.to_vec();
            self.put_back(buffer);
            return self.hold(exact);
        }
        self.count(buffer.capacity(), Memory::Batch(buffer))
    }

    /// Counts bytes from now on until all slices of them are gone.
    pub(crate) fn hold(self: &Arc<SmallFiles>, bytes: Vec<u8>) -> Bytes {
        self.count(bytes.capacity(), Memory::Exact(bytes))
    }

    fn count(self: &Arc<SmallFiles>, counted: usize, bytes: Memory) -> Bytes {
        let permit = self.quota.acquire(counted as u64);
        Bytes::from_owner(Held { bytes, files: Arc::clone(self), _permit: permit })
    }

    fn put_back(&self, mut buffer: PageBuffer) {
        let mut spare = self.lock();
        // One that has grown beyond a batch and its last file would stay that large.
        if spare.len() < SPARE_BUFFERS_MAX && (BATCH_BYTES_MAX..=4 * BATCH_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.truncate(0);
            spare.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PageBuffer>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Memory::Batch(buffer) => buffer,
            Memory::Exact(bytes) => bytes,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Memory::Batch(buffer) = &mut self.bytes {
            self.files.put_back(std::mem::take(buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_hold_their_share_until_the_last_is_gone() {
        let budget = SmallFiles::new(100);
        let bytes = budget.hold(vec![1; 80]);
        assert!(budget.has(20));
        assert!(!budget.has(21));
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert!(!budget.has(21));
        drop(slice);
        assert!(budget.has(100));
    }

    #[test]
    fn buffers_of_batches_are_used_again_and_no_more_of_them_than_a_few() {
        let budget = SmallFiles::new(100 * BATCH_BYTES_MAX);
        let full = |_| budget.hold_batch(PageBuffer::zeroed(BATCH_BYTES_MAX));
        let batches: Vec<Bytes> = (0..10).map(full).collect();
        drop(batches);
        assert_eq!(budget.lock().len(), SPARE_BUFFERS_MAX);
        let buffers: Vec<PageBuffer> = (0..10).map(|_| budget.buffer()).collect();
        assert!(buffers.iter().all(|buffer| buffer.is_empty()));
        // A batch of little gives its buffer back at once, and holds only what it is.
        let mut little = PageBuffer::with_capacity(BATCH_BYTES_MAX);
        little.extend_from_slice(&[5]);
        let (room, held) = (little.capacity(), budget.hold_batch(little));
        assert_eq!((&held[..], budget.buffer().capacity()), (&[5][..], room));
    }
}
