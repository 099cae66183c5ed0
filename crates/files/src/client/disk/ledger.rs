//! What a follower and its disk tell each other of a path: what was there when it was planned with, and what was put there.
//!
//! Minutes may pass before a large file gets its name, and somebody may work on what is there meanwhile. So nothing is replaced or changed but
//! what was planned with, as the times of its last changes tell. Where they don't tell that it is as it was put there, the disk compares its
//! content. A transfer that isn't a follower's plans nothing here, and replaces what it finds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cancel::Cancelled;
use super::destination::Destination;
use super::inspect::digest_of;
use crate::client::transfer::DiskError;
use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::{Dir, FileKind, FileStat};

/// See the [module](self).
#[derive(Debug, Default)]
pub(in crate::client) struct Ledger(Mutex<HashMap<RelPath, Account>>);

#[derive(Debug, Default)]
struct Account {
    /// Was there; `None` if nothing was.
    there: Option<FileStat>,
    /// It must have one of these contents, which is still to be found out; empty if it needn't be.
    digests: Vec<Digest>,
    /// It has none of them.
    is_foreign: bool,
    /// Is there now, by this transfer.
    put: Option<FileStat>,
}

impl Ledger {
    /// Something is going to be put at a path. What is there may be replaced, if it has one of these contents unless there are none.
    pub(in crate::client) fn plan(&self, path: &RelPath, there: Option<FileStat>, digests: Vec<Digest>) {
        self.lock().insert(path.clone(), Account { there, digests, ..Account::default() });
    }

    /// What was planned with has got another name, which changed its metadata, and nothing else if size and time are as before.
    pub(in crate::client) fn linked(&self, path: &RelPath, before: &FileStat, now: FileStat) {
        let is_same = |of: &FileStat| (of.inode, of.size, of.modified) == (now.inode, now.size, now.modified);
        if let Some(account) = self.lock().get_mut(path)
            && account.is(before)
            && is_same(before)
        {
            account.there = Some(now);
        }
    }

    /// Whether what is there was found to have another content than it might have.
    pub(in crate::client) fn is_foreign(&self, path: &RelPath, there: &FileStat) -> bool {
        self.lock().get(path).is_some_and(|account| account.is_foreign && account.is(there))
    }

    /// What is at a path now by this transfer, as it was when it got there.
    pub(in crate::client) fn put(&self, path: &RelPath) -> Option<FileStat> {
        self.lock().get(path)?.put
    }

    /// Forgets all paths, but for what was found to be somebody else's.
    pub(in crate::client) fn settle(&self) {
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
            kind => there.kind == kind && planned.same_content(there),
        })
    }
}

impl Destination {
    /// An error if what is there may not be replaced or changed. Directories are replaced only if they are empty, whoever made them.
    pub(super) fn may_replace(&self, local: &RelPath, there: &FileStat) -> Result<(), DiskError> {
        match self.ledger.lock().get(local) {
            Some(account) if there.kind != FileKind::Dir && !(account.is(there) && account.digests.is_empty()) => {
                Err(changed_here())
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
            Some(account) if account.is(there) => account.digests.clone(),
            _ => Vec::new(),
        };
        if !digests.is_empty() {
            let found = digest_of(dir, name, cancelled).filter(|(_, stat)| stat.same_content(there));
            // What can't be read, or is being changed, isn't known.
            let Some((digest, _)) = found else { return Err(changed_here()) };
            if let Some(account) = self.ledger.lock().get_mut(local) {
                account.is_foreign = !digests.contains(&digest);
                if !account.is_foreign {
                    account.digests.clear();
                }
            }
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
            (account.there, account.put) = (Some(stat), Some(stat));
            account.digests.clear();
        }
        Ok(())
    }
}

fn changed_here() -> DiskError {
    DiskError { full: false, message: "what is there was changed here meanwhile".to_owned() }
}
