//! What fetches name takes memory until they are over: some ten times the bytes that it took on the wire. So it is counted, for each
//! client and for all of them together.

use crate::protocol::control::FetchRequest;
use crate::server::limits::{CLIENT_FETCH_NAMES_BYTES_MAX, CLIENT_FETCH_NAMES_BYTES_SURE, FETCH_NAMES_BYTES_MAX};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of memory of what the fetches of all clients name.
#[derive(Debug, Default)]
pub(in crate::server) struct Naming(AtomicUsize);

/// What one fetch has of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Named {
    bytes: usize,
    all: Arc<Naming>,
}

impl Naming {
    /// Counts what a fetch names, if there is room beside what its client's other fetches do. A little there is for everybody: nobody
    /// can be kept out by others who take all that there is.
    pub(super) fn admit(self: &Arc<Naming>, request: &FetchRequest, held: usize) -> Option<Named> {
        let bytes = request.memory_bytes();
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let named = Named { bytes, all: Arc::clone(self) };
        let of_client = held.saturating_add(bytes);
        let is_room =
            of_client <= CLIENT_FETCH_NAMES_BYTES_MAX && before.saturating_add(bytes) <= FETCH_NAMES_BYTES_MAX;
        (is_room || of_client <= CLIENT_FETCH_NAMES_BYTES_SURE).then_some(named)
    }
}

impl Named {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
