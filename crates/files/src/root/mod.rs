//! A directory or one file, with operations that never leave it.
//!
//! A [`Root`] holds a directory descriptor and opens everything below it with openat2(2) and `RESOLVE_BENEATH`: neither a path nor a
//! symbolic link leads outside, even one that is swapped in at the wrong moment. Without openat2 it walks name by name with `O_NOFOLLOW`:
//! just as safe, but no symbolic link is followed.
//!
//! All calls may block on a slow disk, except [`Root::open_cached_file`], [`Root::mounted_below`] and [`Root::is_known_to_be_at`].

mod dir;
mod local;
mod own;
mod resolve;
mod secrets;
mod spelling;
mod stat;

pub use dir::{Dir, DirEntry, set_mode, set_modified};
pub use local::is_local;
pub use own::{check_own_dir, make_private_dir};
pub use secrets::Secrets;
pub use stat::{FileKind, FileStat, Timestamp};

use crate::path::{PathError, RelPath, VERSIONS_NAME};
use resolve::Resolver;
use rustix::fs::OFlags;
use rustix::io::Errno;
use stat::Place;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// A pipe or device is not waited for.
const READING: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Why an operation below a root failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// No such file, or a name on the path is no directory.
    #[error("not found")]
    NotFound,
    /// The path leads out of the root, or through a link where none is followed.
    #[error("leads out of the root")]
    Outside,
    /// This process lacks the permission.
    #[error("permission denied")]
    Denied,
    /// The server's rules don't allow it to this client.
    #[error("not allowed to this client by the server's rules")]
    NotAllowed,
    /// A directory or special file where a regular file is needed.
    #[error("not a regular file")]
    NotAFile,
    /// Its content isn't what its size says, which pseudo and FUSE file systems make up as it is read.
    #[error("its size isn't known beforehand, as in /proc and /sys: copy it to a file, and serve that")]
    SizeUnknown,
    /// A regular or special file where a directory is needed.
    #[error("not a directory")]
    NotADirectory,
    /// The name is taken.
    #[error("exists already")]
    Exists,
    /// Not a path or name that can be below a root.
    #[error(transparent)]
    Path(#[from] PathError),
    /// More entries than the caller's limit.
    #[error("more than {0} names in a directory and those above it")]
    TooMany(usize),
    /// The file isn't the version any more that was opened.
    #[error("the file was replaced while it was read")]
    Changed,
    /// The source takes no request now, which says nothing about the path.
    #[error("{0}")]
    Busy(String),
    /// Any other error of the system.
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

/// Handling of symbolic links below a root.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed as long as they stay below the root: for serving.
    Beneath,
    /// Never followed, wherever they point: for receiving, where what lies below the root comes from a stranger.
    Never,
}

/// A directory or file that is served, or a directory that files are received into. See the [module](self).
#[derive(Debug)]
pub struct Root {
    resolver: Resolver,
    /// Device and inode of the directory.
    device: u64,
    inode: u64,
    /// Whether its file system is a local one.
    is_local: bool,
    /// The mount, if the kernel reports it.
    place: Option<Place>,
    only: Option<OnlyFile>,
    /// The root of versions.
    versions: Option<Arc<Root>>,
    /// Files that aren't served.
    secrets: Arc<Secrets>,
}

/// The file of a root that is one file: nothing else in its directory can be reached.
#[derive(Clone, Debug)]
struct OnlyFile {
    /// Name that clients know it by.
    shown: RelPath,
    /// Name in the resolver's directory: another one if the file was given by a symbolic link.
    actual: RelPath,
}

impl Root {
    /// A root that is a directory.
    pub fn directory(path: impl AsRef<Path>, links: Links) -> Result<Root, RootError> {
        Root::at(path.as_ref(), links, None)
    }

    /// A root for serving: a directory, or one file.
    ///
    /// The path is trusted: symbolic links in it are followed, once. [`Root::is_at`] checks whether they still lead here.
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
        let secrets = Arc::default();
        Ok(Root { resolver, device, inode, is_local, place, only, versions: None, secrets })
    }

    /// This root with a directory of versions, which is found as [`VERSIONS_NAME`].
    #[must_use]
    pub fn with_versions(self, versions: Option<Arc<Root>>) -> Root {
        Root { versions, ..self }
    }

    /// This root, where nothing of this is served: [`Root::is_secret`].
    #[must_use]
    pub fn with_secrets(self, secrets: Arc<Secrets>) -> Root {
        Root { secrets, ..self }
    }

    /// Whether something isn't to be served, wherever it is found.
    pub fn is_secret(&self, stat: &FileStat) -> bool {
        self.secrets.has(stat)
    }

    /// Whether it has a directory of versions.
    pub fn has_versions(&self) -> bool {
        self.versions.is_some()
    }

    /// Root and path of a path of a version.
    fn version(&self, path: &RelPath) -> Option<(&Root, RelPath)> {
        let versions = self.versions.as_deref()?;
        let rest = path.as_bytes().strip_prefix(VERSIONS_NAME)?;
        let rest = if rest.is_empty() { rest } else { rest.strip_prefix(b"/")? };
        Some((versions, RelPath::new(rest).ok()?))
    }

    /// This root without openat2, as on kernels and in sandboxes that lack it.
    #[cfg(test)]
    fn without_openat2(mut self) -> Root {
        self.resolver.forget_openat2();
        self
    }

    /// The same root, through no link: where one is, there is [`RootError::Outside`].
    pub fn without_links(&self) -> Root {
        let Root { device, inode, is_local, place, ref only, ref resolver, ref versions, ref secrets } = *self;
        let (resolver, only, versions) = (resolver.without_links(), only.clone(), versions.clone());
        Root { resolver, device, inode, is_local, place, only, versions, secrets: Arc::clone(secrets) }
    }

    /// The path through no link to what a path leads to, links followed as this root does. Needs /proc.
    pub fn real_path(&self, path: &RelPath) -> Result<RelPath, RootError> {
        // No link is followed there.
        if self.version(path).is_some() {
            return Ok(path.clone());
        }
        self.resolver.real_path(self.actual(path)?)
    }

    /// The path of the directory in this process's name space. Needs /proc.
    pub fn place_in_system(&self) -> Result<Vec<u8>, RootError> {
        Ok(self.resolver.own_path()?)
    }

    /// Whether the path given to [`Root::serve`] still leads here. Fails if it leads nowhere.
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

    /// Whether [`Root::is_at`] is true according to the kernel's cache alone. False if unknown. Doesn't block.
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

    /// The path as the resolver knows it. In a root that is one file, only that file is found, by its name or as the root.
    fn actual<'a>(&'a self, path: &'a RelPath) -> Result<&'a RelPath, RootError> {
        match &self.only {
            None => Ok(path),
            Some(only) if path.is_root() || only.shown == *path => Ok(&only.actual),
            Some(_) => Err(RootError::NotFound),
        }
    }

    /// Opens a directory; the root itself for the empty path. A root that is one file has none.
    pub fn open_dir(&self, path: &RelPath) -> Result<Dir, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.open_dir(&path);
        }
        if self.only.is_some() {
            return Err(RootError::NotFound);
        }
        self.any_dir(path)
    }

    /// Whether a path still leads to a directory that was opened below this root.
    pub fn leads_to(&self, path: &RelPath, dir: &Dir) -> Result<bool, RootError> {
        match self.open_dir(path) {
            Ok(there) => {
                let (there, own) = (there.own_stat()?, dir.own_stat()?);
                Ok((there.device, there.inode) == (own.device, own.inode))
            }
            Err(RootError::NotFound | RootError::NotADirectory | RootError::Outside) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Syncs all directories above a path, so that its name is durable.
    pub fn sync_above(&self, path: &RelPath) -> Result<(), RootError> {
        let mut above = std::iter::successors(path.parent(), RelPath::parent);
        above.try_for_each(|dir| self.open_dir(&dir)?.sync())
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

    /// Opens a regular file for reading, following links as this root does. Never waits for the other end of a pipe. Fails with
    /// [`RootError::SizeUnknown`] if the file says that it is empty and isn't.
    pub fn open_file(&self, path: &RelPath) -> Result<(File, FileStat), RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.open_file(&path);
        }
        let path = self.actual(path)?;
        if path.is_root() {
            return Err(RootError::NotAFile);
        }
        dir::regular_with_size(self.resolver.open(path, READING)?)
    }

    /// Opens a file as [`Root::open_file`] does, if its path crosses no mount; `None` if it does or leads out of the root. Without openat2 mounts
    /// aren't noticed.
    pub fn open_unmounted_file(&self, path: &RelPath) -> Result<Option<(File, FileStat)>, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.open_unmounted_file(&path);
        }
        let path = self.actual(path)?;
        match self.resolver.open_unmounted(path, READING) {
            Ok(descriptor) => dir::regular_with_size(descriptor).map(Some),
            Err(Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Device of the file system mounted below the root that a path leads to. Decided by the names that are in the kernel's cache, which mount
    /// points always are; doesn't block.
    pub fn mounted_below(&self, path: &RelPath) -> Option<u64> {
        if let Some((versions, path)) = self.version(path) {
            return versions.mounted_below(&path);
        }
        let own = self.place?;
        let place = self.resolver.cached_place(self.actual(path).ok()?)?;
        // Bind mounts of one device hang together.
        (place.mount != own.mount && place.device != own.device).then_some(place.device)
    }

    /// Opens a file without blocking: all names are in the kernel's cache, and the file is on the root's own, local file system. `None` if it
    /// might block.
    pub fn open_cached_file(&self, path: &RelPath) -> Result<Option<(File, FileStat)>, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.open_cached_file(&path);
        }
        let path = self.actual(path)?;
        if !self.is_local {
            return Ok(None);
        }
        match self.resolver.open_cached(path, READING) {
            Ok(descriptor) => dir::regular_with_size(descriptor).map(Some),
            // Out of the root, or to what is mounted below it: opening it the other way shows it.
            Err(Errno::AGAIN | Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the kernel reports all changes below it, as far as its own file system goes.
    pub fn has_events(&self) -> bool {
        self.is_local
    }

    /// Whether a file opened here is on a local file system, where cached data is read without blocking.
    pub fn is_local(&self, file: &File, stat: &FileStat) -> bool {
        (self.is_local && self.device == stat.device) || local::is_local(file)
    }

    /// Metadata of an entry, links not followed; for the empty path, of the directory or the one file.
    pub fn stat(&self, path: &RelPath) -> Result<FileStat, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.stat(&path);
        }
        let path = self.actual(path)?;
        if path.is_root() {
            return self.any_dir(path)?.own_stat();
        }
        let (parent, name) = path.split().ok_or(RootError::NotFound)?;
        self.any_dir(&parent)?.stat(name)
    }

    /// Metadata of what a path leads to, links followed as this root does.
    pub fn stat_followed(&self, path: &RelPath) -> Result<FileStat, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.stat_followed(&path);
        }
        Ok(rustix::fs::fstat(self.resolver.open(self.actual(path)?, OFlags::PATH)?)?.into())
    }

    /// Target of a link, as stored.
    pub fn read_link(&self, path: &RelPath) -> Result<Vec<u8>, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.read_link(&path);
        }
        let (parent, name) = self.actual(path)?.split().ok_or(RootError::NotFound)?;
        self.any_dir(&parent)?.read_link(name)
    }

    /// Makes a directory and its missing parents, with this mode less the process's umask, and opens it.
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
