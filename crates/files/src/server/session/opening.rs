//! Large files of fetches are open from when they are looked at until they are over, however long their clients take: so their
//! descriptors are counted, for each client and for all of them together. What may not open any more yet goes on later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that all clients have open, and what may be opened for them by jobs that run.
#[derive(Debug)]
pub(in crate::server) struct OpenFiles {
    most: usize,
    count: AtomicUsize,
}

/// What one client has of them, until this is dropped.
#[derive(Debug)]
pub(super) struct ClientFiles {
    count: usize,
    all: Arc<OpenFiles>,
    /// Something was refused, as there was no room.
    waits: bool,
}

impl OpenFiles {
    pub(in crate::server) fn new(most: usize) -> Arc<OpenFiles> {
        Arc::new(OpenFiles { most, count: AtomicUsize::new(0) })
    }

    /// How many more may be opened.
    pub(in crate::server) fn room(&self) -> usize {
        self.most.saturating_sub(self.count.load(Ordering::Relaxed))
    }
}

impl ClientFiles {
    pub(super) fn new(all: Arc<OpenFiles>) -> ClientFiles {
        ClientFiles { count: 0, all, waits: false }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Counts up to so many files that are to be opened: how many may be. None if there is no room; but a client that has no file
    /// gets one whatever others have, so that everybody goes on.
    pub(super) fn reserve(&mut self, most: usize) -> Option<usize> {
        let granted = most.min(self.all.room()).max(usize::from(self.count == 0));
        if granted == 0 {
            self.waits = true;
            return None;
        }
        self.add(granted);
        Some(granted)
    }

    /// Files were opened.
    pub(super) fn add(&mut self, count: usize) {
        self.count += count;
        self.all.count.fetch_add(count, Ordering::Relaxed);
    }

    /// Files are closed, or weren't opened after all.
    pub(super) fn give_back(&mut self, count: usize) {
        let count = count.min(self.count);
        self.count -= count;
        self.all.count.fetch_sub(count, Ordering::Relaxed);
    }

    /// Whether something has been refused since this was last asked.
    pub(super) fn take_waits(&mut self) -> bool {
        std::mem::take(&mut self.waits)
    }
}

impl Drop for ClientFiles {
    fn drop(&mut self) {
        self.give_back(self.count);
    }
}
