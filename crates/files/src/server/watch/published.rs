//! The catalogue, shared by the thread that watches and the jobs that make pages.

use crate::catalogue::Catalogue;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use towpath_sockets::Waker;

/// See the [module](self).
pub(in crate::server) struct Published {
    catalogue: Mutex<Catalogue>,
    /// Something was published that followers weren't told of.
    has_news: AtomicBool,
    waker: Waker,
}

impl Published {
    pub(in crate::server) fn new(catalogue: Catalogue, waker: Waker) -> Published {
        Published { catalogue: Mutex::new(catalogue), has_news: AtomicBool::new(false), waker }
    }

    /// The catalogue, to be read for a moment.
    pub(in crate::server) fn read(&self) -> MutexGuard<'_, Catalogue> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the catalogue, and wakes the event loop.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Catalogue) -> R) -> R {
        let changed = change(&mut self.read());
        self.has_news.store(true, Ordering::Release);
        self.waker.wake();
        changed
    }

    /// Whether something was published since the last call.
    pub(in crate::server) fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::AcqRel)
    }
}

impl std::fmt::Debug for Published {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}
