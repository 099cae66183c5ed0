//! Memory of the names that listings keep until they are over, also between their pages: counted, for each client and for all of
//! them together.

use super::limits::{CLIENT_LIST_NAMES_BYTES_MAX, CLIENT_LIST_NAMES_BYTES_SURE, LIST_NAMES_BYTES_MAX};
use crate::root::DirEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the allocator adds to a name, and the least that it gives out.
const ALLOCATED_EXTRA: usize = 8;
const ALLOCATED_MIN: usize = 32;
/// What one name takes at least.
const NAME_BYTES_MIN: usize = size_of::<DirEntry>() + ALLOCATED_MIN;

/// Bytes of names of the listings of all clients.
#[derive(Debug, Default)]
pub(super) struct Names(AtomicUsize);

/// The same of one client.
#[derive(Debug)]
pub(super) struct ClientNames {
    bytes: AtomicUsize,
    all: Arc<Names>,
}

/// What the names of one directory have of them, until this is dropped.
#[derive(Debug)]
pub(super) struct HeldNames {
    bytes: usize,
    client: Arc<ClientNames>,
}

impl ClientNames {
    pub(super) fn new(all: &Arc<Names>) -> Arc<ClientNames> {
        Arc::new(ClientNames { bytes: AtomicUsize::new(0), all: Arc::clone(all) })
    }

    /// More names than this certainly have no room. Some room there is for everybody: nobody can be kept out by others who take all
    /// that there is.
    pub(super) fn room(&self) -> usize {
        let (held, of_all) = (self.bytes.load(Ordering::Relaxed), self.all.0.load(Ordering::Relaxed));
        let common = CLIENT_LIST_NAMES_BYTES_MAX.saturating_sub(held).min(LIST_NAMES_BYTES_MAX.saturating_sub(of_all));
        common.max(CLIENT_LIST_NAMES_BYTES_SURE.saturating_sub(held)) / NAME_BYTES_MIN
    }

    /// Counts names, if there is room for them.
    pub(super) fn hold(self: &Arc<ClientNames>, names: &Vec<DirEntry>) -> Option<HeldNames> {
        self.hold_bytes(memory_bytes(names))
    }

    fn hold_bytes(self: &Arc<ClientNames>, bytes: usize) -> Option<HeldNames> {
        let of_client = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let of_all = self.all.0.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let held = HeldNames { bytes, client: Arc::clone(self) };
        let is_room = of_client <= CLIENT_LIST_NAMES_BYTES_MAX && of_all <= LIST_NAMES_BYTES_MAX;
        (is_room || of_client <= CLIENT_LIST_NAMES_BYTES_SURE).then_some(held)
    }
}

/// What names take, the room that is reserved for more of them included.
fn memory_bytes(names: &Vec<DirEntry>) -> usize {
    let of_name = |entry: &DirEntry| (entry.name.len() + ALLOCATED_EXTRA).next_multiple_of(16).max(ALLOCATED_MIN);
    names.capacity() * size_of::<DirEntry>() + names.iter().map(of_name).sum::<usize>()
}

impl Drop for HeldNames {
    fn drop(&mut self) {
        self.client.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.client.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_for_a_client_and_for_all_and_a_little_is_sure() {
        let all = Arc::<Names>::default();
        let piece = CLIENT_LIST_NAMES_BYTES_MAX / 4;
        let take = |client: &Arc<ClientNames>| -> Vec<_> { std::iter::from_fn(|| client.hold_bytes(piece)).collect() };
        let first = ClientNames::new(&all);
        let mut of_first = take(&first);
        assert_eq!((of_first.len(), first.room()), (4, 0));
        // What ends makes room.
        of_first.pop();
        assert!(first.room() > 0);
        assert_eq!(take(&first).len(), 1);

        let others: Vec<_> = (0..16).map(|_| ClientNames::new(&all)).collect();
        let of_others: Vec<_> = others.iter().map(take).collect();
        let count = of_first.len() + of_others.iter().map(Vec::len).sum::<usize>();
        assert_eq!(count, LIST_NAMES_BYTES_MAX / piece);
        let last = ClientNames::new(&all);
        let sure = last.hold_bytes(CLIENT_LIST_NAMES_BYTES_SURE);
        assert!(sure.is_some() && last.hold_bytes(1).is_none() && last.room() == 0);
        drop((of_first, of_others));
        assert!(last.hold_bytes(piece).is_some());
        drop(sure);
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
