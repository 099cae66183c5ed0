//! Memory that small files may take, of all clients together.

use super::limits::BATCH_BYTES_MAX;
use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers that are kept for the next batch: fresh memory costs a page fault for each 4 KiB that is read into it.
const SPARE_BUFFERS_MAX: usize = 4;

/// Counts what is held. Going over it by what is being read at the moment is possible, by more than that it isn't.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    held: AtomicUsize,
    /// Empty buffers, each of room for a batch.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// Bytes that count until the last slice of them is dropped, also those that the socket has.
struct Held {
    bytes: Vec<u8>,
    budget: Arc<Budget>,
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, held: AtomicUsize::new(0), spare: Mutex::default() })
    }

    /// Whether as much is free.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.held.load(Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max
    }

    /// An empty buffer of room for a batch, so that nothing is copied while it fills; what is not handed to [`Budget::hold`]
    /// doesn't count.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| Vec::with_capacity(BATCH_BYTES_MAX))
    }

    /// Counts bytes from now on until all slices of them are gone.
    pub(super) fn hold(self: &Arc<Budget>, mut bytes: Vec<u8>) -> Bytes {
        if bytes.len() < bytes.capacity() / 2 {
            // What was reserved and not filled would be held for little.
            let exact = bytes.as_slice().to_vec();
            self.put_back(std::mem::replace(&mut bytes, exact));
        }
        self.held.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Bytes::from_owner(Held { bytes, budget: Arc::clone(self) })
    }

    fn put_back(&self, mut bytes: Vec<u8>) {
        let mut spare = self.lock();
        // One that has grown beyond a batch and its last file would stay that large.
        if spare.len() < SPARE_BUFFERS_MAX && (BATCH_BYTES_MAX..=4 * BATCH_BYTES_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            spare.push(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
        self.budget.put_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_hold_their_share_until_the_last_is_gone() {
        let budget = Budget::new(100);
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
        let budget = Budget::new(100 * BATCH_BYTES_MAX);
        let full = |octet| budget.hold(vec![octet; BATCH_BYTES_MAX]);
        let batches: Vec<Bytes> = (0..10).map(full).collect();
        drop(batches);
        assert_eq!(budget.lock().len(), SPARE_BUFFERS_MAX);
        let buffers: Vec<Vec<u8>> = (0..10).map(|_| budget.buffer()).collect();
        assert!(buffers.iter().all(Vec::is_empty));
        // A batch of little gives its buffer back at once, and holds only what it is.
        let mut little = Vec::with_capacity(BATCH_BYTES_MAX);
        little.push(5);
        let held = budget.hold(little);
        assert_eq!((&held[..], budget.buffer().capacity()), (&[5][..], BATCH_BYTES_MAX));
    }
}
