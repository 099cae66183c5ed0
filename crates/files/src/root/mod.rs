//! A directory, or one file, that nothing done here can lead out of.
//!
//! A [`Root`] holds a directory descriptor and opens everything by it with openat2(2) and `RESOLVE_BENEATH`, so that neither a
//! path nor a symbolic link that was swapped in while nobody looked leads outside. Where the kernel or a sandbox has no
//! openat2, it walks name by name with `O_NOFOLLOW`: just as safe, but it then follows no symbolic link at all.
//!
//! All calls here may block on a slow disk, but for [`Root::open_cached_file`], [`Root::mounted_below`] and [`Root::is_known_to_be_at`].

mod dir;
mod local;
mod resolve;
mod stat;

pub use dir::{Dir, DirEntry, set_mode, set_modified};
pub use stat::{FileKind, FileStat, Timestamp};

use crate::path::{PathError, RelPath};
use resolve::Resolver;
use rustix::fs::OFlags;
use rustix::io::Errno;
use stat::Place;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A pipe or device is not waited for.
const READING: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Why an operation below a root failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// Nothing of this name, or a name on the way is no directory.
    #[error("not found")]
    NotFound,
    /// It would lead out of the root, or through a link where none is followed.
    #[error("leads out of the root")]
    Outside,
    /// This process lacks the permission.
    #[error("permission denied")]
    Denied,
    /// A directory or special file where a regular file is needed.
    #[error("not a regular file")]
    NotAFile,
    /// A regular or special file where a directory is needed.
    #[error("not a directory")]
    NotADirectory,
    /// Something of this name is there already.
    #[error("exists already")]
    Exists,
    /// Not a path or name that can be below a root.
    #[error(transparent)]
    Path(#[from] PathError),
    /// More than the limit that the caller gave.
    #[error("more than {0} names in a directory and those above it")]
    TooMany(usize),
    /// Anything else that the system reported.
    #[error("{0}")]
    Io(#[source] std::io::Error),
}

impl From<Errno> for RootError {
    fn from(errno: Errno) -> RootError {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => RootError::NotFound,
            Errno::XDEV | Errno::LOOP => RootError::Outside,
            Errno::ACCESS | Errno::PERM => RootError::Denied,
            Errno::EXIST => RootError::Exists,
            Errno::ISDIR | Errno::NXIO | Errno::NODEV => RootError::NotAFile,
            _ => RootError::Io(errno.into()),
        }
    }
}

/// Whether symbolic links below a root are followed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed as long as they stay below the root: for serving.
    Beneath,
    /// Never followed, wherever they point: for receiving, where what lies below the root comes from a stranger.
    Never,
}

/// What is served, or where to something is received. See the [module](self).
#[derive(Debug)]
pub struct Root {
    resolver: Resolver,
    /// The device of the directory, and its number there.
    device: u64,
    inode: u64,
    /// Whether its file system is a local one.
    is_local: bool,
    /// If the kernel tells.
    place: Option<Place>,
    only: Option<OnlyFile>,
}

/// A root that is one file: nothing else in its directory can be reached.
#[derive(Debug)]
struct OnlyFile {
    /// The name under which it was given, and is known to clients.
    shown: RelPath,
    /// The name in the directory that the resolver holds: another one if the file was given by a symbolic link.
    actual: RelPath,
}

impl Root {
    /// A root that is a directory.
    pub fn directory(path: impl AsRef<Path>, links: Links) -> Result<Root, RootError> {
        Root::at(path.as_ref(), links, None)
    }

    /// A root for serving: a directory, or one file.
    ///
    /// The path given here is trusted: symbolic links in it are followed, once, now. [`Root::is_at`] tells whether they still lead here.
    pub fn serve(path: impl AsRef<Path>) -> Result<Root, RootError> {
        let path = path.as_ref();
        let actual = path.canonicalize().map_err(from_std)?;
        if actual.is_dir() {
            return Root::directory(&actual, Links::Beneath);
        }
        if !actual.is_file() {
            return Err(RootError::NotAFile);
        }
        let parent = actual.parent().ok_or(RootError::NotFound)?;
        let name = |path: &Path| -> Result<RelPath, RootError> {
            Ok(RelPath::new(path.file_name().ok_or(RootError::NotAFile)?.as_bytes())?)
        };
        let only = OnlyFile { shown: name(path)?, actual: name(&actual)? };
        Root::at(parent, Links::Beneath, Some(only))
    }

    fn at(path: &Path, links: Links, only: Option<OnlyFile>) -> Result<Root, RootError> {
        let resolver = Resolver::at(path, links)?;
        let (FileStat { device, inode, .. }, is_local) = resolver.own_stat()?;
        let place = resolver.own_place();
        Ok(Root { resolver, device, inode, is_local, place, only })
    }

    /// The same root without openat2, as on kernels and in sandboxes that lack it.
    #[cfg(test)]
    fn without_openat2(mut self) -> Root {
        self.resolver.forget_openat2();
        self
    }

    /// Whether a path that [`Root::serve`] was given still leads here. An error if it leads nowhere.
    pub fn is_at(&self, path: &Path) -> Result<bool, RootError> {
        let there = FileStat::from(rustix::fs::stat(path)?);
        let here = match &self.only {
            None => (self.device, self.inode),
            // A file that another one was renamed to is found here as well. A link that took its place is not followed by this.
            Some(_) => match self.stat(&RelPath::root()) {
                Ok(stat) => (stat.device, stat.inode),
                Err(RootError::NotFound) => return Ok(false),
                Err(error) => return Err(error),
            },
        };
        Ok((there.device, there.inode) == here)
    }

    /// The same so far as it can be told by what the kernel has in memory: no disk is waited for. False where it can't.
    pub fn is_known_to_be_at(&self, path: &Path) -> bool {
        let here = match &self.only {
            None => self.place,
            Some(only) => self.resolver.cached(only.actual.as_bytes()),
        };
        here.is_some() && here == self.resolver.cached_anywhere(path)
    }

    /// The name of the file, if this root is one file.
    pub fn only_file(&self) -> Option<&RelPath> {
        self.only.as_ref().map(|only| &only.shown)
    }

    /// The path as the resolver knows it: for a root that is one file, which is there by its name too, no other is found.
    fn actual<'a>(&'a self, path: &'a RelPath) -> Result<&'a RelPath, RootError> {
        match &self.only {
            None => Ok(path),
            Some(only) if path.is_root() || only.shown == *path => Ok(&only.actual),
            Some(_) => Err(RootError::NotFound),
        }
    }

    /// Opens a directory, the root itself for the empty path. Of a root that is one file, there is none to open.
    pub fn open_dir(&self, path: &RelPath) -> Result<Dir, RootError> {
        if self.only.is_some() {
            return Err(RootError::NotFound);
        }
        self.any_dir(path)
    }

    fn any_dir(&self, path: &RelPath) -> Result<Dir, RootError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match self.resolver.open(path, flags) {
            Ok(descriptor) => Ok(Dir::new(descriptor)),
            // To be listed a directory must be readable; for what is in it, permission to search is enough.
            Err(Errno::ACCESS) => Ok(Dir::new(self.resolver.open(path, OFlags::PATH | OFlags::DIRECTORY)?)),
            Err(Errno::NOTDIR) => Err(RootError::NotADirectory),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a regular file for reading, following links as this root does. Never waits for the other end of a pipe.
    pub fn open_file(&self, path: &RelPath) -> Result<(File, FileStat), RootError> {
        let path = self.actual(path)?;
        if path.is_root() {
            return Err(RootError::NotAFile);
        }
        dir::regular(self.resolver.open(path, READING)?)
    }

    /// The same if nothing that is mounted below the root is on the way; `None` if something is, or if it leads out of the root.
    /// Without openat2 nobody can tell.
    pub fn open_unmounted_file(&self, path: &RelPath) -> Result<Option<(File, FileStat)>, RootError> {
        let path = self.actual(path)?;
        match self.resolver.open_unmounted(path, READING) {
            Ok(descriptor) => dir::regular(descriptor).map(Some),
            Err(Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The device of a file system that is mounted below the root, if a path leads there. It is told by what the kernel has in memory,
    /// so no disk is waited for: of a path that isn't known to the end, by the names that are. Where a mount is, they always are.
    pub fn mounted_below(&self, path: &RelPath) -> Option<u64> {
        let own = self.place?;
        let place = self.resolver.cached_place(self.actual(path).ok()?)?;
        // What is mounted twice, or bound to another folder, hangs together.
        (place.mount != own.mount && place.device != own.device).then_some(place.device)
    }

    /// The same as [`Root::open_file`] if it is known not to block: the names on the way are in memory, and the file is on the file system of the root,
    /// which is a local one. `None` where it may.
    pub fn open_cached_file(&self, path: &RelPath) -> Result<Option<(File, FileStat)>, RootError> {
        let path = self.actual(path)?;
        if !self.is_local {
            return Ok(None);
        }
        match self.resolver.open_cached(path, READING) {
            Ok(descriptor) => dir::regular(descriptor).map(Some),
            // Out of the root, or to what is mounted below it: opening it the other way tells.
            Err(Errno::AGAIN | Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether a file opened here is on a local file system, which asks nobody for what is in memory.
    pub fn is_local(&self, file: &File, stat: &FileStat) -> bool {
        (self.is_local && self.device == stat.device) || local::is_local(file)
    }

    /// What an entry is, a link not followed. Of the root itself: that of the directory, or of the one file.
    pub fn stat(&self, path: &RelPath) -> Result<FileStat, RootError> {
        let path = self.actual(path)?;
        if path.is_root() {
            return self.any_dir(path)?.own_stat();
        }
        let (parent, name) = path.split().ok_or(RootError::NotFound)?;
        self.any_dir(&parent)?.stat(name)
    }

    /// Where a link points to, as it is stored.
    pub fn read_link(&self, path: &RelPath) -> Result<Vec<u8>, RootError> {
        let (parent, name) = self.actual(path)?.split().ok_or(RootError::NotFound)?;
        self.any_dir(&parent)?.read_link(name)
    }

    /// Makes a directory and those above it, as far as they are missing, with this mode (less the process's umask), and
    /// opens it.
    pub fn create_dirs(&self, path: &RelPath, mode: u32) -> Result<Dir, RootError> {
        match self.open_dir(path) {
            Err(RootError::NotFound) => {}
            other => return other,
        }
        let (parent, name) = path.split().ok_or(RootError::NotFound)?;
        let mut dir = self.open_dir(&RelPath::root())?;
        for above in parent.names() {
            dir = dir.create_dir_below(above, mode)?;
        }
        dir.create_dir_below(name, mode)
    }
}

fn from_std(error: std::io::Error) -> RootError {
    match Errno::from_io_error(&error) {
        Some(errno) => errno.into(),
        None => RootError::Io(error),
    }
}

#[cfg(test)]
mod tests;
