//! What the journal needs of a file system, as a trait: tests put a disk behind it that fails and forgets.

use crate::spool::SpooledBody;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, linkat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory of segments, and one of bodies.
pub(super) trait Storage: Send + 'static {
    type File: StorageFile;

    /// The names of all segments and of what was to become one.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Opens what is there, for reading and, unless the storage is only to be read, writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Makes an empty file, or makes one that is there empty.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names, new ones and those removed, durable.
    fn sync(&self) -> io::Result<()>;
    /// For messages: where a file is.
    fn path(&self, name: &str) -> PathBuf;

    fn body_names(&self) -> io::Result<Vec<String>>;
    /// Gives a body its name and syncs it. With `copy`, a fresh file of the same octets.
    fn keep_body(&self, name: &str, body: &SpooledBody, copy: bool) -> io::Result<()>;
    fn sync_bodies(&self) -> io::Result<()>;
    fn open_body(&self, name: &str) -> io::Result<File>;
    fn remove_body(&self, name: &str) -> io::Result<()>;
    fn body_path(&self, name: &str) -> PathBuf;
}

/// A segment.
pub(super) trait StorageFile: Send {
    fn length(&self) -> io::Result<u64>;
    fn set_length(&self, length: u64) -> io::Result<()>;
    fn read_at(&self, octets: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, octets: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes the file this long, with room for all of it.
    fn allocate(&self, length: u64) -> io::Result<()>;
    /// Waits until its octets are on the disk.
    fn sync(&self) -> io::Result<()>;

    fn write_all_at(&self, mut octets: &[u8], mut offset: u64) -> io::Result<()> {
        while !octets.is_empty() {
            match self.write_at(octets, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    octets = octets.get(written..).unwrap_or_default();
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills `octets`, or as much of them as there is in the file. Tells how much.
    fn read_full_at(&self, octets: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = octets.get_mut(done..).filter(|rest| !rest.is_empty()) {
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

/// A real directory.
#[derive(Debug)]
pub(super) struct DirStorage {
    dir: PathBuf,
    bodies: PathBuf,
    writable: bool,
}

impl DirStorage {
    /// Below `dir`, which is there.
    pub(super) fn new(dir: &Path, writable: bool) -> DirStorage {
        DirStorage { dir: dir.to_owned(), bodies: dir.join("bodies"), writable }
    }
}

fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        // Names of ours are ASCII.
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

fn new_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn copy_body(body: &SpooledBody, to: &Path) -> io::Result<File> {
    use crate::LargeBody;
    // Not over the old one: it may be the very file that is copied.
    let fresh = to.with_extension("tmp");
    let file = new_file(&fresh)?;
    let mut octets = vec![0; 1 << 20];
    let (mut done, length) = (0, body.length());
    while done < length {
        let most = octets.len().min(usize::try_from(length - done).unwrap_or(usize::MAX));
        let read = FileExt::read_at(&**body.file(), &mut octets[..most], done)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        FileExt::write_all_at(&file, &octets[..read], done)?;
        done += read as u64;
    }
    file.sync_data()?;
    std::fs::rename(&fresh, to)?;
    Ok(file)
}

impl Storage for DirStorage {
    type File = File;

    fn names(&self) -> io::Result<Vec<String>> {
        names_in(&self.dir)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let access = if self.writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.dir.join(name), flags, Mode::empty())?.into())
    }

    fn create(&self, name: &str) -> io::Result<File> {
        new_file(&self.dir.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn body_names(&self) -> io::Result<Vec<String>> {
        names_in(&self.bodies)
    }

    fn keep_body(&self, name: &str, body: &SpooledBody, copy: bool) -> io::Result<()> {
        let to = self.bodies.join(name);
        if copy {
            return copy_body(body, &to).map(drop);
        }
        let linked = match body.path() {
            Some(path) => linkat(rustix::fs::CWD, path, rustix::fs::CWD, &to, AtFlags::empty()),
            None => {
                // AT_EMPTY_PATH takes a capability before Linux 6.10; what /proc names needs none.
                let path = format!("/proc/self/fd/{}", body.file().as_raw_fd());
                linkat(rustix::fs::CWD, path, rustix::fs::CWD, &to, AtFlags::SYMLINK_FOLLOW)
            }
        };
        match linked {
            Ok(()) => body.sync(),
            // Tried before, or of a request that never became durable: ids are not used again, but for those.
            Err(Errno::EXIST) => copy_body(body, &to).map(drop),
            // Another file system, one without links, or a file that was removed.
            Err(Errno::XDEV | Errno::PERM | Errno::NOENT | Errno::OPNOTSUPP | Errno::MLINK) => {
                copy_body(body, &to).map(drop)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync_bodies(&self) -> io::Result<()> {
        File::open(&self.bodies)?.sync_all()
    }

    fn open_body(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.bodies.join(name), flags, Mode::empty())?.into())
    }

    fn remove_body(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.bodies.join(name))
    }

    fn body_path(&self, name: &str) -> PathBuf {
        self.bodies.join(name)
    }
}

impl StorageFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn read_at(&self, octets: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, octets, offset)
    }

    fn write_at(&self, octets: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, octets, offset)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(()),
            // Not every file system can. Then the room isn't reserved.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.set_len(length),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()?;
        // A file without a name is gone with this process, however well it was synced.
        match self.metadata()?.nlink() {
            0 => Err(io::Error::other("it has been removed")),
            _ => Ok(()),
        }
    }
}
