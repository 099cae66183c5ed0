//! What the path that is served leads to now.
//!
//! Operators replace what they serve: another directory is renamed to the path, or the path is a link that is switched to the next
//! release. So a request sees what the path leads to when it begins, and what is under way goes on with what it began with. The
//! path is the operator's, and trusted as it was at the start; that nothing leads out of a root holds for each root on its own.

use super::resource_errors::Shortage;
use crate::root::{Root, RootError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The path, and the root that it led to when somebody looked last.
pub(super) struct RootWatch {
    path: PathBuf,
    root: Mutex<Arc<Root>>,
    /// Held by whoever opens another root: it is opened once, and told once.
    reopening: Mutex<()>,
    /// The path leads nowhere, which was told.
    is_gone: AtomicBool,
}

/// The root of the requests of a client that are under way at the same time: they all see the same one.
#[derive(Debug, Default)]
pub(super) struct RootSnapshot(OnceLock<Arc<Root>>);

impl RootSnapshot {
    /// The root, looked for by the first job that asks. Blocks.
    pub(super) fn root(&self, current: &RootWatch) -> Arc<Root> {
        Arc::clone(self.0.get_or_init(|| current.look()))
    }

    /// The same, or as long as nobody has asked, what was there when somebody looked last. Never blocks.
    pub(super) fn likely(&self, current: &RootWatch) -> Arc<Root> {
        self.0.get().map_or_else(|| current.last(), Arc::clone)
    }
}

impl RootWatch {
    pub(super) fn open(path: &Path) -> Result<RootWatch, RootError> {
        let root = Mutex::new(Arc::new(Root::serve(path)?));
        Ok(RootWatch { path: path.to_owned(), root, reopening: Mutex::default(), is_gone: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Root>> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was there when somebody looked last. Never blocks.
    pub(super) fn last(&self) -> Arc<Root> {
        Arc::clone(&self.lock())
    }

    /// The same if it is known to be there still. Never blocks: where it would take a disk to know, it isn't.
    pub(super) fn look_in_memory(&self) -> Option<Arc<Root>> {
        Some(self.last()).filter(|root| root.is_known_to_be_at(&self.path))
    }

    /// What the path leads to now, or if that is nothing that can be served, what it led to before. Blocks.
    pub(super) fn look(&self) -> Arc<Root> {
        let last = self.last();
        if matches!(last.is_at(&self.path), Ok(true)) {
            self.is_there();
            return last;
        }
        let _one_at_a_time = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.last();
        let found = match last.is_at(&self.path) {
            Ok(true) => Ok(None),
            Ok(false) => Root::serve(&self.path).map(Some),
            Err(error) => Err(error),
        };
        match found {
            Ok(None) => self.is_there(),
            Ok(Some(root)) => {
                self.is_gone.store(false, Ordering::Relaxed);
                let root = Arc::new(root);
                *self.lock() = Arc::clone(&root);
                tracing::info!(path = %self.path.display(), "the served path was replaced: new requests get what is there now");
                return root;
            }
            // Where there are no descriptors to look with, nothing is known to be gone.
            Err(error) if Shortage::is_why(&error) => {}
            Err(error) => {
                if !self.is_gone.swap(true, Ordering::Relaxed) {
                    let path = self.path.display();
                    tracing::warn!(%path, reason = %error, "the served path is gone: what was there before is served");
                }
            }
        }
        last
    }

    fn is_there(&self) {
        if self.is_gone.load(Ordering::Relaxed) && self.is_gone.swap(false, Ordering::Relaxed) {
            tracing::info!(path = %self.path.display(), "the served path is back as it was");
        }
    }
}
