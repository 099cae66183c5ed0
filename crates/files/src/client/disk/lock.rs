//! The lock of a partial file: the file belongs to the transfer that holds the lock of the file which has its name
//! *now*.
//!
//! A lock is on a file, not on its name. Between opening and locking it, another transfer may have removed or
//! installed the file and made its own under the name, so the name is checked again with the lock held. Only the
//! holder of the lock removes a partial file or its state, or renames it.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::partial::{PARTIAL_MODE, root_error, stat_of};
use crate::client::transfer::DiskError;
use crate::root::{Dir, RootError};

/// Attempts when the name is given to another file meanwhile. Each time another transfer made progress.
const ATTEMPTS_MAX: usize = 16;

/// Why a partial file that may be there can't be claimed.
#[derive(Debug)]
pub(super) enum Unclaimed {
    /// It could not be opened.
    Closed(RootError),
    /// It belongs to another transfer.
    Taken(DiskError),
}

/// Creates a partial file, replacing one that is left over.
pub(super) fn create(dir: &Dir, part_name: &[u8]) -> Result<File, DiskError> {
    // The former file stays locked until the new one is: others find the name taken, instead of making one too.
    let mut _displaced = None;
    for _ in 0..ATTEMPTS_MAX {
        match dir.create_file(part_name, PARTIAL_MODE) {
            Ok(file) => {
                if let Some(file) = hold(dir, part_name, file)? {
                    return Ok(file);
                }
            }
            Err(RootError::Exists) => _displaced = displace(dir, part_name)?,
            Err(error) => return Err(cannot_make(&error)),
        }
    }
    Err(taken())
}

/// Removes what has the name of a partial file, unless it belongs to another transfer. Returns it, locked, if it was a
/// file.
pub(super) fn displace(dir: &Dir, part_name: &[u8]) -> Result<Option<File>, DiskError> {
    let left_over = match claim(dir, part_name) {
        Ok(file) => Some(file),
        Err(Unclaimed::Taken(error)) => return Err(error),
        // Such as a link: nobody writes to that.
        Err(Unclaimed::Closed(_)) => None,
    };
    match dir.remove_file(part_name) {
        Ok(()) | Err(RootError::NotFound) => Ok(left_over),
        Err(error) => Err(cannot_make(&error)),
    }
}

/// Opens an existing partial file, and locks it.
pub(super) fn claim(dir: &Dir, part_name: &[u8]) -> Result<File, Unclaimed> {
    for _ in 0..ATTEMPTS_MAX {
        let (file, _) = dir.open_writable(part_name).map_err(Unclaimed::Closed)?;
        if let Some(file) = hold(dir, part_name, file).map_err(Unclaimed::Taken)? {
            return Ok(file);
        }
    }
    Err(Unclaimed::Taken(taken()))
}

/// Locks a partial file that was just opened. `None` if the name isn't its own any more: nobody would find what is
/// written to it.
pub(super) fn hold(dir: &Dir, part_name: &[u8], file: File) -> Result<Option<File>, DiskError> {
    lock(&file)?;
    Ok(has_name(dir, part_name, &file)?.then_some(file))
}

/// Locks a file, since two transfers of the same file would write into one another.
pub(super) fn lock(file: &File) -> Result<(), DiskError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => Err(taken()),
        // A file system without locks: the user has to prevent it.
        Err(_) => Ok(()),
    }
}

/// Whether this file has this name.
pub(super) fn has_name(dir: &Dir, name: &[u8], file: &File) -> Result<bool, DiskError> {
    let named = dir.existing(name).map_err(|error| root_error("cannot inspect the partial file", &error))?;
    let own = stat_of(file)?;
    Ok(named.is_some_and(|named| (named.device, named.inode) == (own.device, own.inode)))
}

/// The error of a partial file that lost its name while it was locked. Only programs that ignore locks do that.
pub(super) fn lost() -> DiskError {
    DiskError { full: false, message: "its partial file was removed or replaced by another program".to_owned() }
}

fn taken() -> DiskError {
    DiskError { full: false, message: "another transfer is receiving this file".to_owned() }
}

fn cannot_make(error: &RootError) -> DiskError {
    root_error("cannot create a partial file", error)
}
