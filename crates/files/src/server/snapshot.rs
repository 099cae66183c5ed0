//! The served root, which may be replaced.
//!
//! Operators rename another directory to the served path, or switch a link to the next release. A request sees the root that the path leads to
//! when it begins, and keeps it to its end. The path is trusted, as at the start; each root is confined on its own.

use super::resource_errors::Shortage;
use super::source::Source;
use crate::root::{Root, RootError, Secrets};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The served path, and the root that it led to when last checked.
pub(super) struct RootWatch {
    path: PathBuf,
    /// The same for all roots.
    versions: OnceLock<Arc<Root>>,
    /// Files that aren't served, whatever the root is.
    secrets: Arc<Secrets>,
    root: Mutex<Arc<Root>>,
    /// Held while a new root is opened, so that it is opened and logged once.
    reopening: Mutex<()>,
    /// The path leads nowhere, which was logged.
    is_gone: AtomicBool,
}

/// The source of a server.
pub(super) enum Served {
    /// Directory or file at a path of this machine.
    Path(Arc<RootWatch>),
    /// Any other.
    Source(Arc<dyn Source>),
}

/// The root that the concurrent requests of a client see.
#[derive(Debug, Default)]
pub(super) struct RootSnapshot(OnceLock<Arc<dyn Source>>);

impl RootSnapshot {
    /// The root, looked up by the first call. Blocks.
    pub(super) fn root(&self, served: &Served) -> Arc<dyn Source> {
        Arc::clone(self.0.get_or_init(|| match served {
            Served::Path(current) => current.look(),
            Served::Source(source) => Arc::clone(source),
        }))
    }

    /// The root; before the first call of [`RootSnapshot::root`], the one last seen. Doesn't block.
    pub(super) fn likely(&self, served: &Served) -> Arc<dyn Source> {
        self.0.get().map_or_else(|| served.last(), Arc::clone)
    }
}

impl Served {
    fn last(&self) -> Arc<dyn Source> {
        match self {
            Served::Path(current) => current.last(),
            Served::Source(source) => Arc::clone(source),
        }
    }

    /// See [`RootWatch::look_in_memory`]. `None` of other sources.
    pub(super) fn look_in_memory(&self) -> Option<Arc<Root>> {
        self.path()?.look_in_memory()
    }

    /// The source that is served, if it is no path of this machine.
    pub(super) fn source(&self) -> Option<Arc<dyn Source>> {
        match self {
            Served::Path(_) => None,
            Served::Source(source) => Some(Arc::clone(source)),
        }
    }

    /// The path that is served, if it is one of this machine.
    pub(super) fn path(&self) -> Option<&Arc<RootWatch>> {
        match self {
            Served::Path(current) => Some(current),
            Served::Source(_) => None,
        }
    }
}

impl RootWatch {
    pub(super) fn open(path: &Path, secrets: Secrets) -> Result<RootWatch, RootError> {
        let secrets = Arc::new(secrets);
        let root = Mutex::new(Arc::new(Root::serve(path)?.with_secrets(Arc::clone(&secrets))));
        let is_gone = AtomicBool::new(false);
        let (versions, reopening) = (OnceLock::new(), Mutex::default());
        Ok(RootWatch { path: path.to_owned(), versions, secrets, root, reopening, is_gone })
    }

    /// Serves a directory of versions with it from now on.
    pub(super) fn add_versions(&self, versions: Arc<Root>) -> Result<(), RootError> {
        self.versions.get_or_init(|| versions);
        *self.lock() = Arc::new(self.serve()?);
        Ok(())
    }

    fn serve(&self) -> Result<Root, RootError> {
        let root = Root::serve(&self.path)?.with_versions(self.versions.get().cloned());
        Ok(root.with_secrets(Arc::clone(&self.secrets)))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Root>> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root last seen. Doesn't block.
    pub(super) fn last(&self) -> Arc<Root> {
        Arc::clone(&self.lock())
    }

    /// The root last seen, if the kernel's cache shows that the path still leads there. Doesn't block.
    pub(super) fn look_in_memory(&self) -> Option<Arc<Root>> {
        Some(self.last()).filter(|root| self.secrets.is_fresh() && root.is_known_to_be_at(&self.path))
    }

    /// The root that the path leads to now; if it can't be served, the one before. Blocks.
    pub(super) fn look(&self) -> Arc<Root> {
        self.secrets.refresh();
        let last = self.last();
        if matches!(last.is_at(&self.path), Ok(true)) {
            self.is_there();
            return last;
        }
        let _one_at_a_time = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.last();
        let found = match last.is_at(&self.path) {
            Ok(true) => Ok(None),
            Ok(false) => self.serve().map(Some),
            Err(error) => Err(error),
        };
        match found {
            Ok(None) => self.is_there(),
            Ok(Some(root)) => {
                self.is_gone.store(false, Ordering::Relaxed);
                let root = Arc::new(root);
                *self.lock() = Arc::clone(&root);
                tracing::info!(path = %self.path.display(), "the served path was replaced: new requests see the new root");
                return root;
            }
            // Without descriptors to look with, the path may well be there.
            Err(error) if Shortage::is_why(&error) => {}
            Err(error) => {
                if !self.is_gone.swap(true, Ordering::Relaxed) {
                    let path = self.path.display();
                    tracing::warn!(%path, reason = %error, "the served path is gone: the previous root is still served");
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
