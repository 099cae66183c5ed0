//! Memory of small files that were read and not sent yet, for all clients.

use crate::server::limits::BATCH_BYTES_MAX;
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_buffers::PageBuffer;
use towpath_quota::{Permit, Quota};

/// Buffers kept for reuse: fresh memory costs a page fault for each 4 KiB.
const SPARE_BUFFERS_MAX: usize = 4;

/// Counts bytes once they are read, so batches being read may exceed the quota.
#[derive(Debug)]
pub(crate) struct SmallFiles {
    quota: Arc<Quota>,
    /// Empty buffers of the size of a batch.
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

    /// An empty buffer of the size of a batch, so that it doesn't grow. Not counted until [`SmallFiles::hold_batch`].
    pub(crate) fn buffer(&self) -> PageBuffer {
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| PageBuffer::with_capacity(BATCH_BYTES_MAX))
    }

    /// Counts a batch's buffer from now on until all slices of it are gone.
    pub(crate) fn hold_batch(self: &Arc<SmallFiles>, buffer: PageBuffer) -> Bytes {
        if buffer.len() < buffer.capacity() / 2 {
            // Copied, or a large buffer would be held for few bytes.
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
        // Buffers that have grown far beyond a batch are not kept.
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
    fn memory_is_released_with_the_last_slice() {
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
    fn a_few_buffers_are_reused() {
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
