//! Memory that small files may take, of all clients together.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is held. Going over it by what is being read at the moment is possible, by more than that it isn't.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    held: AtomicUsize,
}

/// Octets that count until the last slice of them is dropped, also those that the socket has.
struct Held {
    octets: Vec<u8>,
    budget: Arc<Budget>,
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, held: AtomicUsize::new(0) })
    }

    /// Whether as much is free.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.held.load(Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max
    }

    /// Counts octets from now on until all slices of them are gone.
    pub(super) fn hold(self: &Arc<Budget>, mut octets: Vec<u8>) -> Bytes {
        // What was reserved and not filled would be held and not counted.
        octets.shrink_to_fit();
        self.held.fetch_add(octets.len(), Ordering::Relaxed);
        Bytes::from_owner(Held { octets, budget: Arc::clone(self) })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.octets
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.octets.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_hold_their_share_until_the_last_is_gone() {
        let budget = Budget::new(100);
        let octets = budget.hold(vec![1; 80]);
        assert!(budget.has(20));
        assert!(!budget.has(21));
        let slice = octets.slice(10..20);
        drop(octets);
        assert!(!budget.has(21));
        drop(slice);
        assert!(budget.has(100));
    }
}
