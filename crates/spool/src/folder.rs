//! The directory of a spool, held open: whatever its path leads to later, only this directory is used.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, mkdir, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use tempfile::TempDir;

/// Prefix of names where the file system has no unnamed files.
pub(super) const PREFIX: &str = "spool-";

/// Permission bits of anybody but the owner.
const OTHERS: u32 = 0o077;

#[derive(Debug)]
pub(super) struct Folder {
    directory: OwnedFd,
    path: PathBuf,
    /// Removed with the last file.
    _temporary: Option<TempDir>,
}

impl Folder {
    /// A directory named by an operator, made if needed. The path may have links.
    pub(super) fn named(path: &Path) -> io::Result<Folder> {
        make_dir(path)?;
        let directory = open(path, OFlags::empty())?;
        Ok(Folder { directory, path: path.to_owned(), _temporary: None })
    }

    /// This user's directory below the system's for temporary files. There another user may have been first, with a directory, a file or a link:
    /// then one with a random name.
    pub(super) fn by_default() -> io::Result<Folder> {
        static SAID: Once = Once::new();
        let path = default_spool_folder();
        let system = std::env::temp_dir();
        // If it can't be made, what follows says why.
        let _ = make_dir(&system);
        let reason = match open_own(&path) {
            Ok(directory) => return Ok(Folder { directory, path, _temporary: None }),
            Err(reason) => reason,
        };
        let only_ours = std::fs::Permissions::from_mode(0o700);
        let temporary = tempfile::Builder::new().prefix("towpath-").permissions(only_ours).tempdir_in(system)?;
        let directory = open_own(temporary.path())?;
        let instead = temporary.path().to_owned();
        SAID.call_once(|| {
            let (path, instead) = (path.display(), instead.display());
            tracing::warn!(%reason, %instead, "not using {path} for large bodies: remove it, or set --spool");
        });
        Ok(Folder { directory, path: instead, _temporary: Some(temporary) })
    }

    /// Its path when it was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes files that killed processes of this user left behind.
    pub(super) fn remove_left_over(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_bytes().starts_with(PREFIX.as_bytes()) {
                self.remove_if_left_over(entry.file_name());
            }
        }
        Ok(())
    }

    fn remove_if_left_over(&self, name: &CStr) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&self.directory, name, flags, Mode::empty()) else { return };
        let is_ours = fstat(&file).is_ok_and(|file| {
            file.st_uid == rustix::process::geteuid().as_raw()
                && FileType::from_raw_mode(file.st_mode) == FileType::RegularFile
        });
        if is_ours && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            self.remove(name);
        }
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: impl rustix::path::Arg) {
        let _ = unlinkat(&self.directory, name, AtFlags::empty());
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn open(path: &Path, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory that only this user can use, made if needed.
fn open_own(path: &Path) -> io::Result<OwnedFd> {
    match mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let directory = open(path, OFlags::NOFOLLOW)?;
    let found = fstat(&directory)?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to the user {}", found.st_uid)));
    }
    if found.st_mode & OTHERS != 0 {
        return Err(io::Error::other(format!("others may use it (mode {:o})", found.st_mode & 0o7777)));
    }
    Ok(directory)
}

/// This user's directory below the system's for temporary files.
pub fn default_spool_folder() -> PathBuf {
    std::env::temp_dir().join(format!("towpath-{}", rustix::process::geteuid().as_raw()))
}

/// Makes a directory and its parents, accessible for this user only.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| match error.kind() {
        // Something else has the name; that it exists isn't the problem.
        io::ErrorKind::AlreadyExists => Errno::NOTDIR.into(),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_directory_of_this_user_alone_is_taken_in_a_shared_one() {
        let shared = tempfile::tempdir().unwrap();
        let path = shared.path().join("own");
        assert!(open_own(&path).is_ok(), "it is made");
        assert!(open_own(&path).is_ok(), "it is there");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(open_own(&path).unwrap_err().to_string().contains("777"));
        std::fs::remove_dir(&path).unwrap();
        let elsewhere = shared.path().join("elsewhere");
        std::fs::DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(open_own(&path).is_err(), "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(open_own(&path).is_err(), "a file");
    }

    #[test]
    fn only_files_of_killed_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["spool-1-0", "other", "precious"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        symlink("precious", dir.path().join("spool-2-0")).unwrap();
        Folder::named(dir.path()).unwrap().remove_left_over().unwrap();
        let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["other", "precious", "spool-2-0"]);
    }
}
