//! File system operations of the journal, as a trait: tests use a disk that fails and forgets.

use super::file_lock::Lock;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, fallocate, fstat, linkat, openat, renameat, renameat_with,
    stat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use towpath_buffers::PageBuffer;
use towpath_spool::SpooledBody;

/// The directory of bodies.
pub(super) const BODIES_NAME: &str = "bodies";

/// Bytes of a body copied at a time.
const COPY_BYTES: usize = 256 << 10;

/// A directory of segments and one of bodies.
pub(super) trait Storage: Send + 'static {
    type File: StorageFile;

    /// Whether the directory still has the path under which the next start would look for it.
    fn is_in_place(&self) -> io::Result<bool>;

    /// Names of all segments, including unfinished ones.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Opens a file for reading, and for writing unless the storage is read-only.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Creates an empty file, or truncates an existing one.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Renames, unless the new name is taken.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
    /// Path for messages.
    fn path(&self, name: &str) -> PathBuf;

    fn body_names(&self) -> io::Result<Vec<String>>;
    /// Names a body and syncs it. `copy`: into a fresh file.
    fn keep_body(&self, name: &str, body: &SpooledBody, copy: bool) -> io::Result<()>;
    fn sync_bodies(&self) -> io::Result<()>;
    fn open_body(&self, name: &str) -> io::Result<File>;
    fn remove_body(&self, name: &str) -> io::Result<()>;
    fn body_path(&self, name: &str) -> PathBuf;
}

/// A segment's file.
pub(super) trait StorageFile: Send {
    fn length(&self) -> io::Result<u64>;
    fn set_length(&self, length: u64) -> io::Result<()>;
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Sets the length, with disk space allocated.
    fn allocate(&self, length: u64) -> io::Result<()>;
    /// Waits until the content is on the disk.
    fn sync(&self) -> io::Result<()>;

    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills `bytes` as far as the file goes. Returns the number of bytes read.
    fn read_full_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// A directory, identified by descriptor: another one under the same name is never touched.
#[derive(Debug)]
pub(super) struct DirStorage {
    path: PathBuf,
    dir: Lock,
    writable: bool,
}

impl DirStorage {
    /// Below `dir`, which was opened at `path`.
    pub(super) fn new(path: &Path, dir: Lock, writable: bool) -> DirStorage {
        DirStorage { path: path.to_owned(), dir, writable }
    }

    /// Opens an existing file.
    fn open_at(&self, name: &str, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&*self.dir, name, flags, Mode::empty())?.into())
    }

    fn open_bodies(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&*self.dir, BODIES_NAME, flags, Mode::empty())?.into())
    }

    fn copy_body(&self, body: &SpooledBody, to: &str) -> io::Result<()> {
        use towpath_requests::LargeBody;
        // Not over the old one: it may be the file that is copied.
        let fresh = Path::new(to).with_extension("tmp");
        let file = new_file(&self.dir, &fresh)?;
        let mut bytes = PageBuffer::zeroed(COPY_BYTES);
        let (mut done, length) = (0, body.length());
        while done < length {
            let most = bytes.len().min(usize::try_from(length - done).unwrap_or(usize::MAX));
            let read = FileExt::read_at(body.file(), &mut bytes[..most], done)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            FileExt::write_all_at(&file, &bytes[..read], done)?;
            done += read as u64;
        }
        file.sync_data()?;
        Ok(renameat(&*self.dir, &fresh, &*self.dir, to)?)
    }
}

/// Path of a body from the journal's directory.
fn below_bodies(name: &str) -> String {
    format!("{BODIES_NAME}/{name}")
}

fn names_in(dir: &File) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        // Our names are UTF-8.
        names.extend(entry?.file_name().to_str().map(str::to_owned));
    }
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}

fn new_file(dir: &File, name: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

impl Storage for DirStorage {
    type File = File;

    fn is_in_place(&self) -> io::Result<bool> {
        let opened = fstat(&*self.dir)?;
        match stat(&self.path) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        names_in(&self.dir)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        self.open_at(name, if self.writable { OFlags::RDWR } else { OFlags::RDONLY })
    }

    fn create(&self, name: &str) -> io::Result<File> {
        new_file(&self.dir, Path::new(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&*self.dir, from, &*self.dir, to)?)
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        match renameat_with(&*self.dir, from, &*self.dir, to, RenameFlags::NOREPLACE) {
            // Not supported by every file system or sandbox. Only the process that holds the locks writes here anyway.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => self.rename(from, to),
            renamed => Ok(renamed?),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&*self.dir, name, AtFlags::empty())?)
    }

    fn sync(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        // No slash at the end for the directory itself.
        if name.is_empty() { self.path.clone() } else { self.path.join(name) }
    }

    fn body_names(&self) -> io::Result<Vec<String>> {
        names_in(&self.open_bodies()?)
    }

    fn keep_body(&self, name: &str, body: &SpooledBody, copy: bool) -> io::Result<()> {
        let to = below_bodies(name);
        if copy {
            return self.copy_body(body, &to);
        }
        // AT_EMPTY_PATH needs a capability before Linux 6.10; the name in /proc needs none.
        let path = format!("/proc/self/fd/{}", body.file().as_raw_fd());
        match linkat(rustix::fs::CWD, path, &*self.dir, &to, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => body.sync(),
            // Left by an earlier attempt, or by a request that never became durable: ids are not reused otherwise.
            Err(Errno::EXIST) => self.copy_body(body, &to),
            // Another file system, one without links, or a file that was removed.
            Err(Errno::XDEV | Errno::PERM | Errno::NOENT | Errno::OPNOTSUPP | Errno::MLINK) => {
                self.copy_body(body, &to)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync_bodies(&self) -> io::Result<()> {
        self.open_bodies()?.sync_all()
    }

    fn open_body(&self, name: &str) -> io::Result<File> {
        self.open_at(&below_bodies(name), OFlags::RDONLY)
    }

    fn remove_body(&self, name: &str) -> io::Result<()> {
        self.remove(&below_bodies(name))
    }

    fn body_path(&self, name: &str) -> PathBuf {
        self.path.join(BODIES_NAME).join(name)
    }
}

impl StorageFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(()),
            // Not supported by every file system or sandbox. The space isn't reserved then.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => self.set_len(length),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()?;
        // An unnamed file is gone with this process, however well it was synced.
        match self.metadata()?.nlink() {
            0 => Err(io::Error::other("it has been removed")),
            _ => Ok(()),
        }
    }
}

/// Whether the disk is full. Then earlier content is intact.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
