//! An open directory below a root: operations on single names in it. None of them follows a symbolic link.

use super::{FileKind, FileStat, RootError, Timestamp, local};
use crate::path::check_name;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, accessat, chmod, fchmod, fcntl_setfl,
    fstat, futimens, linkat, mkdirat, openat, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::{Errno, pread};
use std::fs::File;
use std::time::{Duration, Instant};

/// Attempts to find out how fine the times of a file system are: this thread may be interrupted.
const PROBES: usize = 5;
/// Changes that are made, in less than a tick of a kernel's clock.
const CHANGES_IN_A_TICK: usize = 4;
const TICK_MIN: Duration = Duration::from_millis(1);

/// An open directory below a [`Root`](super::Root).
///
/// Names are single names, checked here. Operations stay in this directory even if it is renamed or replaced by a link meanwhile.
#[derive(Debug)]
pub struct Dir(OwnedFd);

/// Inode of the root of an ext2, ext3 or ext4 file system.
const EXT4_ROOT_INODE: u64 = 2;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// Its name.
    pub name: Box<[u8]>,
}

impl Dir {
    pub(super) fn new(descriptor: OwnedFd) -> Dir {
        Dir(descriptor)
    }

    /// The same directory, opened once more.
    pub fn try_clone(&self) -> Result<Dir, RootError> {
        Ok(Dir(self.0.try_clone().map_err(RootError::Io)?))
    }

    /// Metadata of this directory.
    pub fn own_stat(&self) -> Result<FileStat, RootError> {
        Ok(fstat(&self.0)?.into())
    }

    /// Whether the kernel reports all changes in it.
    pub fn has_events(&self) -> bool {
        local::is_local(&self.0)
    }

    /// Whether a name in it is that of the directory that ext4 makes in the root of each of its file systems for what it finds when it repairs
    /// one. Only root may read it.
    pub fn is_lost_and_found(&self, name: &[u8]) -> bool {
        name == b"lost+found" && self.own_stat().is_ok_and(|stat| stat.inode == EXT4_ROOT_INODE)
    }

    /// Metadata of an entry; links are not followed.
    pub fn stat(&self, name: &[u8]) -> Result<FileStat, RootError> {
        check_name(name)?;
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?.into())
    }

    /// Metadata of an entry as by [`Dir::stat`]; None if there is none.
    pub fn existing(&self, name: &[u8]) -> Result<Option<FileStat>, RootError> {
        match self.stat(name) {
            Ok(stat) => Ok(Some(stat)),
            Err(RootError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names in it without `.` and `..`, sorted by bytes. Fails if there are more than `entries_max`.
    pub fn entries(&self, entries_max: usize) -> Result<Vec<DirEntry>, RootError> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            // Opened without read permission, for its names only.
            let entry = entry.map_err(|errno| if errno == Errno::BADF { Errno::ACCESS } else { errno })?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if entries.len() >= entries_max {
                return Err(RootError::TooMany(entries_max));
            }
            entries.push(DirEntry { name: name.into() });
        }
        entries.sort_unstable();
        Ok(entries)
    }

    /// Whether what has a name has it in this spelling. A file system that ignores case, say, finds it by others too.
    pub fn is_spelled(&self, name: &[u8]) -> Result<bool, RootError> {
        Ok(self.distinguishes_spellings(name) || self.lists(name)?)
    }

    /// Whether it is known that nothing is found by another spelling than its own, as far as this name shows.
    pub fn distinguishes_spellings(&self, name: &[u8]) -> bool {
        let swapped: Vec<u8> =
            name.iter().map(|byte| byte ^ if byte.is_ascii_alphabetic() { 0x20 } else { 0 }).collect();
        match swapped == name {
            true => name.is_ascii(),
            false => matches!(self.existing(&swapped), Ok(None)),
        }
    }

    /// Whether a name is in its list, with this spelling. Takes longer the more there are.
    pub fn lists(&self, name: &[u8]) -> Result<bool, RootError> {
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry.map_err(|errno| if errno == Errno::BADF { Errno::ACCESS } else { errno })?;
            if entry.file_name().to_bytes() == name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens a directory in it.
    pub fn open_dir(&self, name: &[u8]) -> Result<Dir, RootError> {
        check_name(name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.0, name, flags, Mode::empty()) {
            Ok(descriptor) => Ok(Dir(descriptor)),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(RootError::NotADirectory),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a directory in it, which is made if need be.
    pub(super) fn create_dir_below(&self, name: &[u8], mode: u32) -> Result<Dir, RootError> {
        match self.open_dir(name) {
            Err(RootError::NotFound) => {}
            other => return other,
        }
        match self.create_dir(name, mode) {
            // Another one may have made it meanwhile.
            Ok(()) | Err(RootError::Exists) => self.open_dir(name),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory in it, with this mode less the process's umask.
    pub fn create_dir(&self, name: &[u8], mode: u32) -> Result<(), RootError> {
        check_name(name)?;
        Ok(mkdirat(&self.0, name, Mode::from_raw_mode(mode))?)
    }

    /// Opens a regular file for reading. Never waits for the other end of a pipe.
    pub fn open_file(&self, name: &[u8]) -> Result<(File, FileStat), RootError> {
        check_name(name)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        regular(openat(&self.0, name, flags, Mode::empty())?)
    }

    /// Makes a file and opens it for reading and writing. Fails with [`RootError::Exists`] if the name is taken, also by a dangling link.
    pub fn create_file(&self, name: &[u8], mode: u32) -> Result<File, RootError> {
        check_name(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Makes a file without a name, for [`Dir::link_unnamed`]; `None` if the file system can't. It vanishes with its descriptor unless it
    /// is linked, also when the process is killed.
    pub fn create_unnamed(&self, mode: u32) -> Result<Option<File>, RootError> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match openat(&self.0, c".", flags, Mode::from_raw_mode(mode)) {
            Ok(descriptor) => Ok(Some(descriptor.into())),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Names a file of [`Dir::create_unnamed`]. Fails with [`RootError::Exists`] if the name is taken.
    pub fn link_unnamed(&self, file: &File, name: &[u8]) -> Result<(), RootError> {
        check_name(name)?;
        match linkat(file, c"", &self.0, name, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10 this took a capability; what /proc names needs none.
            Err(Errno::NOENT | Errno::PERM) => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                Ok(linkat(rustix::fs::CWD, path, &self.0, name, AtFlags::SYMLINK_FOLLOW)?)
            }
            linked => Ok(linked?),
        }
    }

    /// Opens an existing regular file for reading and writing.
    pub fn open_writable(&self, name: &[u8]) -> Result<(File, FileStat), RootError> {
        check_name(name)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        regular(openat(&self.0, name, flags, Mode::empty())?)
    }

    /// Renames an entry, also between directories. A file that has the new name is replaced.
    pub fn rename(&self, name: &[u8], to_dir: &Dir, to: &[u8]) -> Result<(), RootError> {
        check_name(name)?;
        check_name(to)?;
        Ok(renameat(&self.0, name, &to_dir.0, to)?)
    }

    /// Gives an entry another name, also in another directory. Of a link, the link itself gets it.
    pub fn link(&self, name: &[u8], to_dir: &Dir, to: &[u8]) -> Result<(), RootError> {
        check_name(name)?;
        check_name(to)?;
        Ok(linkat(&self.0, name, &to_dir.0, to, AtFlags::empty())?)
    }

    /// Renames an entry to a free name in this directory: `false` if the name is taken, or the file system can't find that out in the same
    /// step.
    pub fn rename_to_free(&self, name: &[u8], to: &[u8]) -> Result<bool, RootError> {
        check_name(name)?;
        check_name(to)?;
        match renameat_with(&self.0, name, &self.0, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a symbolic link in it.
    pub fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), RootError> {
        check_name(name)?;
        Ok(symlinkat(target, &self.0, name)?)
    }

    /// Target of a link, as stored.
    pub fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, RootError> {
        check_name(name)?;
        Ok(readlinkat(&self.0, name, Vec::new())?.into_bytes())
    }

    /// Removes a file or a link, never a directory.
    pub fn remove_file(&self, name: &[u8]) -> Result<(), RootError> {
        check_name(name)?;
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &[u8]) -> Result<(), RootError> {
        check_name(name)?;
        Ok(unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Sets the permission bits of this directory.
    pub fn set_own_mode(&self, mode: u32) -> Result<(), RootError> {
        Ok(fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    /// Sets the permission bits of an entry that can't be opened, never of a link's target.
    pub fn set_entry_mode(&self, name: &[u8], mode: u32) -> Result<(), RootError> {
        check_name(name)?;
        let entry = openat(&self.0, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if FileStat::from(fstat(&entry)?).kind == FileKind::Link {
            return Err(RootError::Outside);
        }
        // fchmod takes no such descriptor.
        Ok(chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), Mode::from_raw_mode(mode))?)
    }

    /// Sets the time of last modification of this directory.
    pub fn set_own_modified(&self, time: Timestamp) -> Result<(), RootError> {
        Ok(futimens(&self.0, &modified_only(time))?)
    }

    /// Sets the time of last modification of an entry; of a link itself.
    pub fn set_entry_modified(&self, name: &[u8], time: Timestamp) -> Result<(), RootError> {
        check_name(name)?;
        Ok(utimensat(&self.0, name, &modified_only(time), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Fails if this process certainly can't make files in it. Success promises nothing.
    pub fn check_writable(&self) -> Result<(), RootError> {
        match accessat(&self.0, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(errno.into()),
            _ => Ok(()),
        }
    }

    /// Free space of its file system for this process, in bytes.
    pub fn free_bytes(&self) -> Result<u64, RootError> {
        let file_system = rustix::fs::fstatvfs(&self.0)?;
        // A file system that doesn't count its blocks, as some in user space: a write will show it.
        if file_system.f_blocks == 0 {
            return Ok(u64::MAX);
        }
        Ok(file_system.f_bavail.saturating_mul(file_system.f_frsize))
    }

    /// User id that the files of this process have here: another one on FAT and on shares whose files all belong to one user, or where root
    /// is nobody. Makes a file to find out if the directory is another user's, under this name if it can't be done without one.
    pub fn own_user(&self, name: &[u8]) -> u32 {
        let user = rustix::process::geteuid().as_raw();
        if self.own_stat().is_ok_and(|stat| stat.owner == user) {
            return user;
        }
        self.owner_of_new_files(name).unwrap_or(user)
    }

    fn owner_of_new_files(&self, name: &[u8]) -> Result<u32, RootError> {
        if let Some(file) = self.create_unnamed(0o600)? {
            return Ok(FileStat::try_from(&file)?.owner);
        }
        let file = self.create_file(name, 0o600)?;
        let stat = FileStat::try_from(&file);
        self.remove_file(name)?;
        Ok(stat?.owner)
    }

    /// Whether each change of a file on its file system gets a time of its own, as long as somebody looks at the time between them. False if
    /// unknown, and where times come from a clock that ticks some hundred times a second, as with Linux before 6.13.
    pub fn distinguishes_changes(&self) -> bool {
        (0..PROBES).any(|_| self.probe_times().unwrap_or(false))
    }

    fn probe_times(&self) -> Result<bool, RootError> {
        let Some(file) = self.create_unnamed(0o600)? else { return Ok(false) };
        let (begun, mut last) = (Instant::now(), FileStat::try_from(&file)?.changed);
        for _ in 0..CHANGES_IN_A_TICK {
            set_mode(&file, 0o600)?;
            let now = FileStat::try_from(&file)?.changed;
            if now <= std::mem::replace(&mut last, now) {
                return Ok(false);
            }
        }
        Ok(begun.elapsed() < TICK_MIN)
    }

    /// Whether its file system copies on write. False if unknown.
    pub fn copies_on_write(&self) -> bool {
        local::copies_on_write(&self.0)
    }

    /// Makes creations, renames and removals in it durable.
    pub fn sync(&self) -> Result<(), RootError> {
        Ok(rustix::fs::fsync(&self.0)?)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sets the permission bits of an open file.
pub fn set_mode(file: &File, mode: u32) -> Result<(), RootError> {
    Ok(fchmod(file, Mode::from_raw_mode(mode))?)
}

/// Sets the time of last modification of an open file.
pub fn set_modified(file: &File, time: Timestamp) -> Result<(), RootError> {
    Ok(futimens(file, &modified_only(time))?)
}

fn modified_only(time: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    }
}

/// Checks that an open file is a regular one, and clears O_NONBLOCK, with which some file systems give EAGAIN when read.
pub(super) fn regular(descriptor: OwnedFd) -> Result<(File, FileStat), RootError> {
    let stat = regular_stat(&descriptor)?;
    fcntl_setfl(&descriptor, OFlags::empty())?;
    Ok((descriptor.into(), stat))
}

/// As [`regular`]; a file of size 0 must be empty.
pub(super) fn regular_with_size(descriptor: OwnedFd) -> Result<(File, FileStat), RootError> {
    // With O_NONBLOCK, as some files of /proc wait for content.
    if regular_stat(&descriptor)?.size == 0 && !matches!(pread(&descriptor, &mut [0], 0), Ok(0)) {
        return Err(RootError::SizeUnknown);
    }
    regular(descriptor)
}

fn regular_stat(descriptor: &OwnedFd) -> Result<FileStat, RootError> {
    let stat = FileStat::from(fstat(descriptor)?);
    if stat.kind == FileKind::File { Ok(stat) } else { Err(RootError::NotAFile) }
}
