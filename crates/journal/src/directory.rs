//! The journal's directory: creating and locking it, and removing leftovers of a killed process.

use super::JournalError;
use super::file_lock::Lock;
use super::segments::{NEXT_NAME, SPARE_SUFFIX};
use super::storage::{BODIES_NAME, Storage};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

const LOCK_NAME: &str = "lock";

/// Makes the directory if needed. One of another user's isn't used: that user could replace what is kept in it.
pub(super) fn make_dir(dir: &Path) -> Result<(), JournalError> {
    if let Ok(there) = rustix::fs::stat(dir)
        && FileType::from_raw_mode(there.st_mode) == FileType::Directory
    {
        if there.st_uid == 0 || there.st_uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        let why = format!("it belongs to another user ({}), who could replace what is in it", there.st_uid);
        return Err(JournalError::io("use", dir)(std::io::Error::other(why)));
    }
    let cannot = || JournalError::io("make", dir);
    towpath_spool::make_dir(dir).map_err(cannot())?;
    // The directory's own name has to be durable as well.
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(cannot())
}

/// Makes the directory of bodies if needed.
pub(super) fn make_bodies(path: &Path, dir: &File) -> Result<(), JournalError> {
    let made = match mkdirat(dir, BODIES_NAME, Mode::RWXU) {
        Ok(()) => dir.sync_all(),
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    };
    made.map_err(JournalError::io("make", path.join(BODIES_NAME)))
}

/// Opens the directory.
pub(super) fn open(path: &Path) -> Result<Lock, JournalError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    Ok(Lock::new(File::from(opened.map_err(|errno| JournalError::io("open", path)(errno.into()))?)))
}

/// Takes the write lock. The directory is locked, so that removing the lock file doesn't help; the file is locked too, for
/// earlier builds that lock nothing else.
pub(super) fn lock(path: &Path, dir: &File) -> Result<Lock, JournalError> {
    lock_dir(path, dir, FlockOperation::NonBlockingLockExclusive)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(dir, LOCK_NAME, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(opened.map_err(|errno| JournalError::io("open", path.join(LOCK_NAME))(errno.into()))?);
    lock_file(path, &file, FlockOperation::NonBlockingLockExclusive)?;
    // Only for the message of a second process; failing to write it is no reason not to start.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(Lock::new(file))
}

/// Takes the read lock. A copy of a journal may lack the lock file: nobody writes to it.
pub(super) fn lock_to_read(path: &Path, dir: &File) -> Result<Option<Lock>, JournalError> {
    lock_dir(path, dir, FlockOperation::NonBlockingLockShared)?;
    match open_lock(dir) {
        Ok(file) => {
            lock_file(path, &file, FlockOperation::NonBlockingLockShared)?;
            Ok(Some(Lock::new(file)))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(JournalError::io("open", path.join(LOCK_NAME))(errno.into())),
    }
}

fn open_lock(dir: &File) -> Result<File, Errno> {
    Ok(openat(dir, LOCK_NAME, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn lock_dir(path: &Path, dir: &File, operation: FlockOperation) -> Result<(), JournalError> {
    match flock(dir, operation) {
        Err(Errno::AGAIN) => Err(locked(path, open_lock(dir).ok().as_ref())),
        // Not every file system locks directories; the file is enough there.
        _ => Ok(()),
    }
}

fn lock_file(path: &Path, file: &File, operation: FlockOperation) -> Result<(), JournalError> {
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => Err(locked(path, Some(file))),
        Err(errno) => Err(JournalError::io("lock", path.join(LOCK_NAME))(errno.into())),
    }
}

/// The error for a journal that another process has, with that process's id from the lock file.
fn locked(path: &Path, file: Option<&File>) -> JournalError {
    let mut text = String::new();
    if let Some(file) = file {
        let _ = file.take(20).read_to_string(&mut text);
    }
    let holder = text.trim().parse::<u32>().map_or(String::new(), |process| format!(" (process {process})"));
    JournalError::Locked { path: path.to_owned(), holder }
}

/// Removes unfinished and spare segments of a killed process.
pub(super) fn remove_spares<S: Storage>(storage: &S) -> Result<(), JournalError> {
    let names = storage.names().map_err(JournalError::io("list", storage.path("")))?;
    for name in names.iter().filter(|name| *name == NEXT_NAME || name.ends_with(SPARE_SUFFIX)) {
        storage.remove(name).map_err(JournalError::io("remove", storage.path(name)))?;
    }
    Ok(())
}

/// Removes bodies that no record names. All records must be durable: the body of a request whose outcome is only in the
/// page cache may still be needed.
pub(super) fn remove_bodies<S: Storage>(storage: &S, needed: &HashSet<String>) -> Result<(), JournalError> {
    let names = storage.body_names().map_err(JournalError::io("list", storage.body_path("")))?;
    let ours = |name: &&String| {
        let stem = name.split('.').next().unwrap_or_default();
        stem.len() == 16 && stem.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    for name in names.iter().filter(ours).filter(|name| !needed.contains(*name)) {
        storage.remove_body(name).map_err(JournalError::io("remove", storage.body_path(name)))?;
    }
    Ok(())
}
