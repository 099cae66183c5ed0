//! The destination: a directory that nothing done here leads out of.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::path::RelPath;
use crate::root::{Dir, FileKind, FileStat, Links, Root, RootError, Timestamp};
use crate::transfer::names::random_names;
use crate::transfer::{DiskError, Source};

use super::DiskOptions;
use super::installed::Installed;
use super::ledger::Ledger;
use super::metadata::SET_GROUP_ID;
use super::notices::Notices;
use super::partial::root_error;
use super::tree_lock::{Held, TreeLock};

/// Mode of directories that are made, less the umask, until they get their own.
const DIR_MODE: u32 = 0o777;
/// Root can do anything anyway.
const ROOT_USER: u32 = 0;
/// Mode bits that this process needs to write into a directory.
pub(crate) const OWNER_MODE: u32 = 0o700;

/// The destination of a transfer.
#[derive(Debug)]
pub(super) struct Destination {
    root: Root,
    /// Its path, for people.
    pub(super) place: String,
    pub(super) options: DiskOptions,
    /// The user that this process's files belong to here.
    pub(super) user: u32,
    /// Files of this transfer that are in place.
    pub(super) installed: Installed,
    pub(super) ledger: Arc<Ledger>,
    pub(super) notices: Arc<Notices>,
    /// Partial files that were found by inspecting, until they are resumed.
    partials: Mutex<HashMap<RelPath, FileStat>>,
    /// Directories whose names were synced.
    synced: Mutex<HashSet<RelPath>>,
    /// The lock of a tree, if there is one.
    tree_lock: Mutex<Option<TreeLock>>,
}

impl Destination {
    /// A destination below this directory, which is trusted.
    pub(super) fn new(path: &std::path::Path, options: DiskOptions, ledger: Arc<Ledger>) -> Result<Self, RootError> {
        let place = match (options.place, path.to_str()) {
            (Some(place), _) => place.to_owned(),
            (None, Some(".")) => "below the working directory".to_owned(),
            _ => format!("below {}", path.display()),
        };
        let root = Root::directory(path, Links::Never)?;
        let user = root.open_dir(&RelPath::root())?.own_user(&random_names().0);
        Ok(Self {
            root,
            place,
            options,
            user,
            installed: Installed::default(),
            ledger,
            notices: Arc::default(),
            partials: Mutex::default(),
            synced: Mutex::default(),
            tree_lock: Mutex::default(),
        })
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// Locks out other transfers of the same tree for as long as this exists.
    pub(super) fn lock_tree(&self, source: &Source) -> Result<(), String> {
        let Ok(dir) = self.root.open_dir(&RelPath::root()) else { return Ok(()) };
        match TreeLock::take(self, dir, source) {
            Ok(lock) => *self.tree_lock.lock().unwrap_or_else(PoisonError::into_inner) = lock,
            Err(Held(name)) => {
                return Err(format!("another transfer of the same source into it is in progress, and holds {name}"));
            }
        }
        Ok(())
    }

    /// The parent of a file, made if it is missing, and the file's name there.
    pub(super) fn parent_of(&self, local: &RelPath) -> Result<(Dir, Vec<u8>), DiskError> {
        let (parent, name) = local
            .split()
            .ok_or_else(|| DiskError { full: false, message: "the destination itself is a directory".to_owned() })?;
        Ok((self.dir(&parent)?, name.to_vec()))
    }

    /// A directory below, made if it is missing.
    pub(super) fn dir(&self, path: &RelPath) -> Result<Dir, DiskError> {
        let dir = self.root.create_dirs(path, DIR_MODE);
        let dir = dir.map_err(|error| root_error("cannot open its directory", &error))?;
        self.sync_names(path)?;
        Ok(dir)
    }

    /// Syncs the names of a directory and of those above it, also of those that it didn't make, if `durable`: nothing below them is
    /// durable before.
    pub(super) fn sync_names(&self, path: &RelPath) -> Result<(), DiskError> {
        if !self.options.durable {
            return Ok(());
        }
        let synced = || self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let above = std::iter::successors(Some(path.clone()), RelPath::parent);
        let unsynced: Vec<RelPath> = above.take_while(|dir| !dir.is_root() && !synced().contains(dir)).collect();
        // From the top, so that what is recorded is durable all the way up.
        for dir in unsynced.into_iter().rev() {
            let parent = self.root.open_dir(&dir.parent().unwrap_or_default());
            let done = parent.and_then(|parent| parent.sync());
            done.map_err(|error| root_error("cannot sync the parent of its directory", &error))?;
            synced().insert(dir);
        }
        Ok(())
    }

    /// Forgets what was installed, and which names were synced.
    pub(super) fn forget_installed(&self) {
        self.installed.clear();
        self.synced.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A directory below, if it exists.
    pub(super) fn existing_dir(&self, path: &RelPath) -> Result<Option<Dir>, RootError> {
        match self.root.open_dir(path) {
            Ok(dir) => Ok(Some(dir)),
            Err(RootError::NotFound | RootError::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An error if nothing can be made in a directory below, or if it is missing, in the one that it would be made in.
    pub(super) fn check_writable(&self, path: &RelPath) -> Result<(), RootError> {
        for above in std::iter::successors(Some(path.clone()), RelPath::parent) {
            if let Some(dir) = self.existing_dir(&above)? {
                return dir.check_writable();
            }
        }
        Ok(())
    }

    /// Creates a directory that can be written into, replacing a file or link.
    pub(super) fn make_dir(&self, parent: &Dir, name: &[u8], local: &RelPath) -> Result<(), DiskError> {
        let failed = |error: RootError| root_error("cannot create the directory", &error);
        let made = parent.create_dir(name, DIR_MODE);
        // Mostly it is new.
        if matches!(made, Err(RootError::Exists))
            && let Some(there) = parent.existing(name).map_err(failed)?
        {
            self.claim(parent, name, &there, local)?;
            if there.kind == FileKind::Dir {
                if there.mode & OWNER_MODE != OWNER_MODE {
                    // Left by an earlier transfer. It gets its mode at the end.
                    self.mode_set(parent.set_entry_mode(name, there.mode | OWNER_MODE), local)?;
                }
                return self.placed(local, || Ok(there));
            }
            check_in_the_way(Some(&there))?;
            self.may_replace(local, &there)?;
            parent.remove_file(name).map_err(failed)?;
            self.installed.forget(&there);
            parent.create_dir(name, DIR_MODE).map_err(failed)?;
        } else {
            made.map_err(failed)?;
        }
        let made = parent.stat(name).map_err(failed)?;
        self.installed.record(&made, local);
        self.placed(local, || Ok(made))
    }

    /// Sets the time of the destination itself, and its mode if it is to have one: nothing more is written below it.
    pub(super) fn finish(&self, mode: Option<u32>, modified: Timestamp) -> Result<(), DiskError> {
        // The lock is a file in here, and removing it changes the time.
        drop(self.tree_lock.lock().unwrap_or_else(PoisonError::into_inner).take());
        let failed = |error: RootError| root_error("cannot set mode and time", &error);
        let root = RelPath::root();
        let dir = match self.root.open_dir(&root) {
            Ok(dir) => dir,
            // It existed, and may belong to somebody else.
            Err(_) if mode.is_none() => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        match mode {
            Some(mode) => {
                let own = dir.own_stat().map_err(failed)?.mode & SET_GROUP_ID;
                self.mode_set(dir.set_own_mode(self.options.metadata.dir_mode(mode) | own), &root)?;
                self.set_time(&root, || dir.set_own_modified(modified))?;
            }
            None if self.options.metadata.has_times() => {
                if let Err(error) = dir.set_own_modified(modified) {
                    tracing::debug!(%error, "the destination keeps its time");
                }
            }
            None => {}
        }
        match self.options.durable.then(|| dir.sync()) {
            Some(Err(error)) if mode.is_some() => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Whether a file may be kept as it is: another user may have its own open for writing.
    pub(super) fn is_own(&self, stat: &FileStat) -> bool {
        stat.owner == self.user || stat.owner == ROOT_USER
    }

    /// Records a partial file that can be resumed, as it was found.
    pub(super) fn note_partial(&self, local: &RelPath, stat: FileStat) {
        self.partials.lock().unwrap_or_else(PoisonError::into_inner).insert(local.clone(), stat);
    }

    /// Takes what was recorded of a partial file.
    pub(super) fn take_partial(&self, local: &RelPath) -> Option<FileStat> {
        self.partials.lock().unwrap_or_else(PoisonError::into_inner).remove(local)
    }

    /// Free bytes for this process.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.root.open_dir(&RelPath::root()).ok()?.free_bytes().ok()
    }
}

/// Devices, pipes and sockets are never replaced.
pub(super) fn check_in_the_way(existing: Option<&FileStat>) -> Result<(), DiskError> {
    match existing {
        Some(FileStat { kind: FileKind::Other, .. }) => Err(in_the_way("a device, pipe or socket of this name")),
        _ => Ok(()),
    }
}

pub(super) fn in_the_way(what: &str) -> DiskError {
    DiskError { full: false, message: format!("{what} is in the way") }
}
