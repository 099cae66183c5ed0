//! Locks of files and directories.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;

/// A file or directory that is unlocked when dropped. Closing it isn't enough: a process that another thread is just starting has a
/// copy of the descriptor until it runs its program, and the copy keeps the lock.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Holds the lock that the caller takes.
    pub(super) fn new(file: File) -> Lock {
        Lock(file)
    }
}

impl std::ops::Deref for Lock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
