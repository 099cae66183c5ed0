//! Memory of small files that were read and not sent yet, for all clients.

use crate::server::limits::BATCH_BYTES_MAX;
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_buffers::MappedBuffer;
use towpath_quota::{Permit, Quota};

/// Buffers kept for reuse: fresh memory costs a page fault for each 4 KiB.
const SPARE_BUFFERS_MAX: usize = 4;

/// Counts bytes once they are read, so batches being read may exceed the quota.
#[derive(Debug)]
pub(crate) struct SmallFiles {
    quota: Arc<Quota>,
    /// Empty buffers of the size of a batch.
    spare: Mutex<Vec<MappedBuffer>>,
}

/// Bytes that count until the last slice of them is dropped, also in the socket's queue.
struct Held {
    bytes: Memory,
    files: Arc<SmallFiles>,
    _permit: Permit,
}

enum Memory {
    /// Goes back to the spare buffers.
    Batch(MappedBuffer),
    Exact(Vec<u8>),
}

impl SmallFiles {
    pub(crate) fn new(bytes_max: usize) -> Arc<SmallFiles> {
        Arc::new(SmallFiles { quota: Quota::new(bytes_max as u64), spare: Mutex::default() })
    }

    /// An empty buffer of the size of a batch, not counted until [`SmallFiles::hold_batch`]. `None` if this many bytes aren't available, or
    /// the system has no memory.
    pub(crate) fn buffer(&self) -> Option<MappedBuffer> {
        if self.quota.available() < BATCH_BYTES_MAX as u64 {
            return None;
        }
        let spare = self.lock().pop();
        let buffer = spare.map_or_else(|| MappedBuffer::with_capacity(BATCH_BYTES_MAX), Ok);
        buffer.inspect_err(|error| tracing::warn!(%error, "no memory for small files")).ok()
    }

    /// Counts a batch's buffer from now on until all slices of it are gone.
    pub(crate) fn hold_batch(self: &Arc<SmallFiles>, buffer: MappedBuffer) -> Bytes {
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

    fn put_back(&self, mut buffer: MappedBuffer) {
        let mut spare = self.lock();
        if spare.len() < SPARE_BUFFERS_MAX {
            buffer.truncate(0);
            spare.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MappedBuffer>> {
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
        if let Memory::Batch(buffer) = std::mem::replace(&mut self.bytes, Memory::Exact(Vec::new())) {
            self.files.put_back(buffer);
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
        assert_eq!(budget.quota.available(), 20);
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(budget.quota.available(), 20);
        drop(slice);
        assert_eq!(budget.quota.available(), 100);
    }

    #[test]
    fn a_few_buffers_are_reused() {
        let budget = SmallFiles::new(10 * BATCH_BYTES_MAX);
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let full = |mut buffer: MappedBuffer| {
            while buffer.len() < BATCH_BYTES_MAX {
                buffer.append_from(&zeros, 0).unwrap();
            }
            budget.hold_batch(buffer)
        };
        let batches: Vec<Bytes> = std::iter::from_fn(|| budget.buffer().map(full)).collect();
        assert_eq!(batches.len(), 10);
        drop(batches);
        assert_eq!(budget.lock().len(), SPARE_BUFFERS_MAX);
        let buffers: Vec<MappedBuffer> = (0..10).filter_map(|_| budget.buffer()).collect();
        assert!(buffers.len() == 10 && buffers.iter().all(|buffer| buffer.is_empty()) && budget.lock().is_empty());
        // A batch of little gives its buffer back at once, and holds only what it is.
        let mut little = std::fs::File::open("/proc/self/comm").unwrap();
        let mut name = Vec::new();
        std::io::Read::read_to_end(&mut little, &mut name).unwrap();
        let mut buffer = budget.buffer().unwrap();
        buffer.append_from(&little, 0).unwrap();
        let held = budget.hold_batch(buffer);
        assert_eq!((&held[..], budget.lock().len()), (&name[..], 1));
    }
}
