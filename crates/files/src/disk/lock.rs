//! The lock of a partial file: the file belongs to the transfer that holds the lock of the file which has its name
//! *now*.
//!
//! And it has to be this user's alone. Where others can write into the directory, they can put something under the name,
//! keep it open, and write into it when it is verified, or read what should be private. So nothing of them is opened to
//! be used, nor is its lock respected: it is removed, or where it can't be, another name is used.
//!
//! A lock is on a file, not on its name. Between opening and locking it, another transfer may have removed or
//! installed the file and made its own under the name, so the name is checked again with the lock held. Only the
//! holder of the lock removes a partial file or its state, or renames it.

use std::collections::HashMap;
use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::destination::Destination;
use super::partial::{PARTIAL_MODE, root_error, stat_of};
use crate::path::Escaped;
use crate::root::{Dir, RootError};
use crate::transfer::DiskError;
use crate::transfer::names::{partial_names, random_names, state_of};

/// Attempts when the name is given to another file meanwhile. Each time another transfer made progress.
const ATTEMPTS_MAX: usize = 16;
/// Entries of a directory that is looked through for partial files.
const LEFT_OVER_MAX: usize = 4096;

/// Why a partial file that may be there can't be claimed.
#[derive(Debug)]
pub(super) enum Unclaimed {
    /// Could not be opened.
    Closed(RootError),
    /// Belongs to another user, or others can write to it.
    Foreign,
    /// Belongs to another transfer.
    Taken(DiskError),
}

/// The names of a partial file and of its state.
pub(super) type Names = (Vec<u8>, Vec<u8>);

/// Creates a partial file for a file of this name, replacing one that is left over, and removes its state.
pub(super) fn create(destination: &Destination, dir: &Dir, name: &[u8]) -> Result<(File, Names), DiskError> {
    under_free_name(destination, dir, name, |(part_name, state_name)| {
        let file = dir.create_file(part_name, PARTIAL_MODE).map_err(Unclaimed::Closed)?;
        let Some(file) = hold(dir, part_name, file).map_err(Unclaimed::Taken)? else { return Ok(None) };
        match dir.remove_file(state_name) {
            Ok(()) | Err(RootError::NotFound) => Ok(Some(file)),
            Err(_) => {
                let _ = dir.remove_file(part_name);
                Err(Unclaimed::Foreign)
            }
        }
    })
}

/// Makes something under the name of a partial file, replacing what is left over there, or under a random name if that
/// can't be removed. `make` returns `None` if the name was given to another file meanwhile.
pub(super) fn under_free_name<T>(
    destination: &Destination,
    dir: &Dir,
    name: &[u8],
    mut make: impl FnMut(&Names) -> Result<Option<T>, Unclaimed>,
) -> Result<(T, Names), DiskError> {
    // The former file stays locked until the new one is: others find the name taken, instead of making one too.
    let mut _displaced = None;
    let mut names = partial_names(name);
    for _ in 0..ATTEMPTS_MAX {
        match make(&names) {
            Ok(Some(made)) => return Ok((made, names)),
            Ok(None) => {}
            Err(Unclaimed::Closed(RootError::Exists)) => match displace(destination, dir, &names) {
                Ok(file) => _displaced = file,
                Err(Unclaimed::Taken(error)) => return Err(error),
                Err(Unclaimed::Foreign | Unclaimed::Closed(_)) => names = random_names(),
            },
            Err(Unclaimed::Foreign) => {
                foreign(destination, &names.1);
                names = random_names();
            }
            Err(Unclaimed::Closed(error)) => return Err(root_error("cannot create a partial file", &error)),
            Err(Unclaimed::Taken(error)) => return Err(error),
        }
    }
    Err(taken())
}

/// Removes what has the name of a partial file, with its state, unless it belongs to another transfer. Returns it,
/// locked, if it was this user's. An error if it can't be removed.
pub(super) fn displace(destination: &Destination, dir: &Dir, names: &Names) -> Result<Option<File>, Unclaimed> {
    let (part_name, state_name) = names;
    let left_over = match claim(destination, dir, part_name) {
        Ok(file) => Some(file),
        Err(error @ Unclaimed::Taken(_)) => return Err(error),
        Err(Unclaimed::Closed(RootError::NotFound) | Unclaimed::Foreign) => None,
        // Such as a link, or a file that another user keeps closed.
        Err(Unclaimed::Closed(_)) => {
            foreign(destination, part_name);
            None
        }
    };
    match dir.remove_file(part_name) {
        Ok(()) | Err(RootError::NotFound) => {
            if left_over.is_some() {
                let _ = dir.remove_file(state_name);
            }
            Ok(left_over)
        }
        Err(error) => Err(Unclaimed::Closed(error)),
    }
}

/// Removes the partial files in a directory, with their states, unless other transfers are receiving them, or something else is
/// there too: then the directory stays, and with it what may go on later.
pub(crate) fn remove_left_over(dir: &Dir) -> Result<(), RootError> {
    let entries = dir.entries(LEFT_OVER_MAX)?;
    let parts: HashMap<Vec<u8>, &[u8]> =
        entries.iter().filter_map(|entry| Some((state_of(&entry.name)?, &*entry.name))).collect();
    if !entries.iter().all(|entry| parts.contains_key(&*entry.name) || state_of(&entry.name).is_some()) {
        return Ok(());
    }
    for (state_name, part_name) in parts {
        let (file, _) = dir.open_writable(part_name)?;
        // Held until it is removed.
        if let Ok(Some(_held)) = hold(dir, part_name, file) {
            dir.remove_file(part_name)?;
            let _ = dir.remove_file(&state_name);
        }
    }
    Ok(())
}

/// Opens an existing partial file, and locks it.
pub(super) fn claim(destination: &Destination, dir: &Dir, part_name: &[u8]) -> Result<File, Unclaimed> {
    for _ in 0..ATTEMPTS_MAX {
        let file = open_own(destination, dir, part_name)?;
        if let Some(file) = hold(dir, part_name, file).map_err(Unclaimed::Taken)? {
            return Ok(file);
        }
    }
    Err(Unclaimed::Taken(taken()))
}

/// Opens an existing file if it is this user's alone.
pub(super) fn open_own(destination: &Destination, dir: &Dir, name: &[u8]) -> Result<File, Unclaimed> {
    let (file, stat) = dir.open_writable(name).map_err(Unclaimed::Closed)?;
    if stat.is_private_to(destination.user) {
        return Ok(file);
    }
    foreign(destination, name);
    Err(Unclaimed::Foreign)
}

/// Notes that something has the name of a partial file, and isn't used.
fn foreign(destination: &Destination, name: &[u8]) {
    destination.notices.foreign_parts.add(|| Escaped(name).to_string());
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
