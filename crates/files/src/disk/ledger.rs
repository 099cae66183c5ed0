//! State of paths that a follower and its disk share: what was there at the time of planning, and what was put there.
//!
//! Minutes may pass before a large file gets its name, and somebody may work on what is there meanwhile. So nothing is replaced or changed but
//! what was planned with, as the times of its last changes show. Where they don't show that it is as it was put there, the disk compares its
//! content. A transfer that isn't a follower's plans nothing here, and replaces what it finds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cancel::Cancelled;
use super::destination::Destination;
use super::inspect::digest_of;
use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::{Dir, FileKind, FileStat};
use crate::transfer::DiskError;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<HashMap<RelPath, Account>>);

#[derive(Debug, Default)]
struct Account {
    /// Was there; `None` if nothing was.
    there: Option<FileStat>,
    /// Whether it may be replaced as it is. Otherwise its content decides.
    is_sure: bool,
    /// Contents that may be replaced.
    digests: Vec<Digest>,
    /// The content of the file that was there, if that is known.
    content: Option<Digest>,
    /// Whether the file in place is somebody else's.
    is_foreign: bool,
    /// Is there now, by this transfer.
    put: Option<FileStat>,
}

impl Ledger {
    /// Plans to put something at a path. The file in place may be replaced: as it is, if that is `sure`, when it has the first of these contents, and
    /// else with any of them.
    pub(crate) fn plan(&self, path: &RelPath, there: Option<FileStat>, is_sure: bool, digests: Vec<Digest>) {
        let content = digests.first().copied().filter(|_| is_sure);
        self.lock().insert(path.clone(), Account { there, is_sure, digests, content, ..Account::default() });
    }

    /// The content of a file that is there, if it is known without reading it.
    pub(super) fn content(&self, path: &RelPath, there: &FileStat) -> Option<Digest> {
        let accounts = self.lock();
        accounts.get(path).filter(|account| account.is_sure && account.is(there))?.content
    }

    /// Notes that a planned file has got another name, which changed its metadata, and nothing else if size and time are as before.
    pub(crate) fn linked(&self, path: &RelPath, before: &FileStat, now: FileStat) {
        let is_same = |of: &FileStat| (of.inode, of.size, of.modified) == (now.inode, now.size, now.modified);
        if let Some(account) = self.lock().get_mut(path)
            && account.is(before)
            && is_same(before)
        {
            account.there = Some(now);
        }
    }

    /// Whether what is there was found to be somebody else's.
    pub(crate) fn is_foreign(&self, path: &RelPath, there: &FileStat) -> bool {
        self.lock().get(path).is_some_and(|account| account.is_foreign && account.is(there))
    }

    /// The file that this transfer put at a path, as it was then.
    pub(crate) fn put(&self, path: &RelPath) -> Option<FileStat> {
        self.lock().get(path)?.put
    }

    /// Forgets all paths, but for what was found to be somebody else's.
    pub(crate) fn settle(&self) {
        self.lock().retain(|_, account| account.is_foreign);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RelPath, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Whether this is what was planned with.
    fn is(&self, there: &FileStat) -> bool {
        self.there.is_some_and(|planned| match planned.kind {
            FileKind::Dir => there.kind == FileKind::Dir,
            kind => there.kind == kind && is_as(&planned, there),
        })
    }
}

impl Destination {
    /// An error if what is there may not be replaced or changed. Directories are replaced only if they are empty.
    pub(super) fn may_replace(&self, local: &RelPath, there: &FileStat) -> Result<(), DiskError> {
        match self.ledger.lock().get_mut(local) {
            Some(account) if there.kind != FileKind::Dir && !(account.is_sure && account.is(there)) => {
                (account.there, account.is_foreign) = (Some(*there), true);
                Err(DiskError { full: false, message: "what is there was changed here meanwhile".to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Finds out whether what is there may be replaced, by its content if need be.
    pub(super) fn find_replaceable(
        &self,
        dir: &Dir,
        name: &[u8],
        there: &FileStat,
        local: &RelPath,
        cancelled: &Cancelled,
    ) -> Result<(), DiskError> {
        let digests = match self.ledger.lock().get(local) {
            Some(account) if !(account.is_sure && account.is(there)) => account.digests.clone(),
            _ => Vec::new(),
        };
        if there.kind == FileKind::File
            && !digests.is_empty()
            && let Some((digest, stat)) = digest_of(dir, name, cancelled)
            && digests.contains(&digest)
            && let Some(account) = self.ledger.lock().get_mut(local)
        {
            (account.there, account.is_sure, account.content) = (Some(stat), true, Some(digest));
        }
        self.may_replace(local, there)
    }

    /// Notes what is at a path now by this transfer.
    pub(super) fn placed(
        &self,
        local: &RelPath,
        stat: impl FnOnce() -> Result<FileStat, DiskError>,
    ) -> Result<(), DiskError> {
        if !self.ledger.lock().contains_key(local) {
            return Ok(());
        }
        let stat = stat()?;
        if let Some(account) = self.ledger.lock().get_mut(local) {
            (account.there, account.is_sure, account.put) = (Some(stat), true, Some(stat));
            account.content = None;
        }
        Ok(())
    }
}

/// Whether a file is as it was. Not every file system distinguishes files by numbers that last.
fn is_as(before: &FileStat, now: &FileStat) -> bool {
    (before.size, before.modified, before.changed) == (now.size, now.modified, now.changed)
}
