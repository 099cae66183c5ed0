//! The catalogue, shared by the thread that watches and the jobs that make pages.

use super::events::Events;
use super::state::State;
use super::stats::{CatalogueStats, WatchStats};
use crate::catalogue::{Catalogue, Content, Entry};
use crate::path::RelPath;
use crate::root::FileStat;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use towpath_sockets::Waker;

/// See the [module](self).
pub(in crate::server) struct SharedCatalogue {
    catalogue: Mutex<Catalogue>,
    /// Stored state of the catalogue, if any. Locked after the catalogue.
    state: Mutex<Option<State>>,
    /// Never locked while the disk is used.
    stats: Mutex<CatalogueStats>,
    /// Whether something was published that followers don't know of.
    has_changes: AtomicBool,
    waker: Waker,
    /// Paths that the watcher is asked to look at.
    events: OnceLock<Arc<Events>>,
}

impl SharedCatalogue {
    pub(in crate::server) fn new(catalogue: Catalogue, state: Option<State>, waker: Waker) -> SharedCatalogue {
        let (state, stats) = (Mutex::new(state), Mutex::new(CatalogueStats::of(&catalogue)));
        SharedCatalogue {
            catalogue: Mutex::new(catalogue),
            state,
            stats,
            has_changes: AtomicBool::new(false),
            waker,
            events: OnceLock::new(),
        }
    }

    /// The catalogue, to be read for a moment.
    pub(in crate::server) fn read(&self) -> MutexGuard<'_, Catalogue> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the catalogue, and wakes the event loop.
    pub(in crate::server) fn change<R>(&self, change: impl FnOnce(&mut Catalogue) -> R) -> R {
        let changed = {
            let mut catalogue = self.read();
            let changed = change(&mut catalogue);
            // Before anybody can see the new numbers.
            self.with_state(|state| state.store(&catalogue));
            self.lock_stats().note(&catalogue, Instant::now());
            changed
        };
        self.has_changes.store(true, Ordering::Release);
        self.waker.wake();
        changed
    }

    /// From now on somebody watches.
    pub(super) fn is_watched_by(&self, events: Arc<Events>) {
        let _ = self.events.set(events);
    }

    /// Compares a file that was found: if it isn't the published one, the watcher looks at it. No event comes of a file that is written under
    /// another one of its names.
    pub(in crate::server) fn found(&self, path: &RelPath, stat: &FileStat) {
        let is_other = |entry: &Entry| matches!(entry.content, Content::File { .. }) && !entry.is_file(stat);
        if self.events.get().is_some() && self.read().get(path.as_bytes()).is_some_and(is_other) {
            self.look_at(path);
        }
    }

    /// Has the watcher look at a path that differs from what is published.
    pub(in crate::server) fn look_at(&self, path: &RelPath) {
        if let (Some(events), Some((parent, name))) = (self.events.get(), path.split()) {
            events.look_at(&parent, name);
        }
    }

    /// Sums, for the operator.
    pub(in crate::server) fn stats(&self) -> CatalogueStats {
        self.lock_stats().clone()
    }

    /// Notes how the watching goes.
    pub(super) fn note_watch(&self, watch: WatchStats) {
        self.lock_stats().watch = Some(watch);
    }

    fn lock_stats(&self) -> MutexGuard<'_, CatalogueStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode of the root that was watched before, if that is known; that of the root now is noted otherwise.
    pub(super) fn watched_before(&self, inode: u64) -> u64 {
        let mut before = inode;
        self.with_state(|state| match state.root() {
            Some(root) => {
                before = root;
                Ok(())
            }
            None => state.note_root(inode),
        });
        before
    }

    /// Another root is watched from now on.
    pub(super) fn note_root(&self, inode: u64) {
        self.with_state(|state| state.note_root(inode));
    }

    /// Mount points below the root before a restart.
    pub(super) fn mounts_before(&self) -> BTreeSet<RelPath> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().map(|state| state.mounts().clone()).unwrap_or_default()
    }

    /// Notes where file systems are mounted, or were.
    pub(super) fn note_mounts(&self, mounts: &BTreeSet<RelPath>) {
        self.with_state(|state| state.note_mounts(mounts));
    }

    fn with_state(&self, store: impl FnOnce(&mut State) -> std::io::Result<()>) {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = &mut *guard else { return };
        if let Err(error) = store(state) {
            tracing::error!(%error, "the catalogue can't be stored: a restart begins a new epoch");
            // Numbers that it doesn't know must not be given out again.
            if let Some(Err(error)) = guard.take().map(State::abandon) {
                tracing::error!(%error, "nor can its file be removed: remove it before the next start");
            }
        }
    }

    /// Whether something was published since the last call.
    pub(in crate::server) fn take_changed(&self) -> bool {
        self.has_changes.swap(false, Ordering::AcqRel)
    }
}

impl std::fmt::Debug for SharedCatalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}
