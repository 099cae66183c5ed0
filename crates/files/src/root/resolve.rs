//! Opening a path below a directory descriptor without ever leaving it.

use super::local::is_local;
use super::stat::Place;
use super::{FileStat, Links, RootError};
use crate::path::RelPath;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlink};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;

/// Attempts of openat2, which fails with EAGAIN when a rename or mount anywhere raced with it.
const RACE_ATTEMPTS_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct Resolver {
    dir: Arc<OwnedFd>,
    links: Links,
    has_openat2: bool,
}

impl Resolver {
    /// `path` itself is trusted.
    pub(super) fn at(path: &Path, links: Links) -> Result<Resolver, RootError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR => RootError::NotADirectory,
            errno => errno.into(),
        })?;
        let mut resolver = Resolver { dir: Arc::new(dir), links, has_openat2: true };
        // Missing: ENOSYS. Forbidden by a sandbox: EPERM, which later would be taken for one of a file.
        resolver.has_openat2 = !matches!(
            resolver.open_with_openat2(b".", OFlags::PATH | OFlags::DIRECTORY, resolver.resolve()),
            Err(Errno::NOSYS | Errno::PERM)
        );
        Ok(resolver)
    }

    #[cfg(test)]
    pub(super) fn forget_openat2(&mut self) {
        self.has_openat2 = false;
    }

    /// The same through no link.
    pub(super) fn without_links(&self) -> Resolver {
        Resolver { dir: Arc::clone(&self.dir), links: Links::Never, has_openat2: self.has_openat2 }
    }

    /// The path below the directory of what a path leads to. The kernel says where that is now, so another one may be there a moment later.
    pub(super) fn real_path(&self, path: &RelPath) -> Result<RelPath, RootError> {
        if path.is_root() {
            return Ok(RelPath::root());
        }
        let found = self.open(path, OFlags::PATH)?;
        // Its place would have another name.
        if fstat(&found)?.st_nlink == 0 {
            return Err(RootError::NotFound);
        }
        let (top, there) = (place_in_system(&self.dir)?, place_in_system(&found)?);
        let below = if top == b"/" { there.get(1..) } else { there.strip_prefix(&top[..]) };
        match below {
            Some(b"") => Ok(RelPath::root()),
            Some(below) if top == b"/" => Ok(RelPath::new(below)?),
            Some([b'/', below @ ..]) => Ok(RelPath::new(below)?),
            _ => Err(RootError::Outside),
        }
    }

    /// The path of the directory in this process's name space.
    pub(super) fn own_path(&self) -> Result<Vec<u8>, Errno> {
        place_in_system(&self.dir)
    }

    /// Opens a path; the directory itself for the empty one.
    pub(super) fn open(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        if !self.has_openat2 {
            return self.walk(path, flags);
        }
        let bytes = if path.is_root() { b"." } else { path.as_bytes() };
        self.open_with_openat2(bytes, flags, self.resolve())
    }

    /// Opens a path that crosses no mount; EXDEV if it does. Without openat2 mounts aren't noticed.
    pub(super) fn open_unmounted(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        if !self.has_openat2 || path.is_root() {
            return self.open(path, flags);
        }
        self.open_with_openat2(path.as_bytes(), flags, self.resolve() | ResolveFlags::NO_XDEV)
    }

    /// Its handling of links.
    pub(super) fn links(&self) -> Links {
        self.links
    }

    /// Opens a path by the names in the kernel's cache alone. EAGAIN if they aren't there. Doesn't block.
    pub(super) fn open_in_cache(&self, bytes: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if !self.has_openat2 {
            return Err(Errno::AGAIN);
        }
        let resolve = self.resolve() | ResolveFlags::CACHED;
        openat2(&self.dir, bytes, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Metadata of the directory, and whether its file system is local.
    pub(super) fn own_stat(&self) -> Result<(FileStat, bool), RootError> {
        Ok((fstat(&self.dir)?.into(), is_local(&self.dir)))
    }

    /// Place of the longest prefix of a path that is in the kernel's cache. Doesn't block. `None` if none is, or if the kernel can't say.
    pub(super) fn cached_place(&self, path: &RelPath) -> Option<Place> {
        let bytes = path.as_bytes();
        if !self.has_openat2 || path.is_root() {
            return None;
        }
        let place = |bytes: &[u8]| self.cached(bytes);
        // If a name isn't cached, nothing below it is: few names of a long path are tried.
        place(bytes).or_else(|| {
            let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let ends: Vec<&[u8]> = ends.filter_map(|(at, _)| bytes.get(..at)).collect();
            let known = ends.partition_point(|beginning| place(beginning).is_some());
            place(ends.get(known.checked_sub(1)?)?)
        })
    }

    /// Place of a path if all of its names are in the kernel's cache.
    pub(super) fn cached(&self, bytes: &[u8]) -> Option<Place> {
        Place::known(self.open_in_cache(bytes, OFlags::PATH).ok()?)
    }

    /// Place of a trusted path from anywhere, whose links are followed, if all of its names are in the kernel's cache.
    pub(super) fn cached_anywhere(&self, path: &Path) -> Option<Place> {
        if !self.has_openat2 {
            return None;
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Place::known(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?)
    }

    /// Place of the directory itself.
    pub(super) fn own_place(&self) -> Option<Place> {
        Place::known(&self.dir)
    }

    /// Opens a path without blocking, if all of its names are in the kernel's cache and it crosses no mount. EAGAIN if they aren't, or if the
    /// kernel can't say; EXDEV if it crosses one.
    pub(super) fn open_cached(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        if !self.has_openat2 || path.is_root() {
            return Err(Errno::AGAIN);
        }
        let resolve = self.resolve() | ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
        match openat2(&self.dir, path.as_bytes(), flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Kernels before 5.12 don't know the flag.
            Err(Errno::INVAL | Errno::INTR) => Err(Errno::AGAIN),
            other => other,
        }
    }

    fn resolve(&self) -> ResolveFlags {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match self.links {
            Links::Beneath => beneath,
            Links::Never => beneath | ResolveFlags::NO_SYMLINKS,
        }
    }

    fn open_with_openat2(&self, bytes: &[u8], flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let mut last = Errno::AGAIN;
        for _ in 0..RACE_ATTEMPTS_MAX {
            match openat2(&self.dir, bytes, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
                other => return other,
            }
        }
        Err(last)
    }

    /// Opens a path name by name. A valid path has no `..`, so only a link could lead outside, and links are not followed.
    fn walk(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut dir: Option<OwnedFd> = None;
        let mut names = path.names().peekable();
        while let Some(name) = names.next() {
            let from = dir.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
            if names.peek().is_none() {
                return openat(from, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            }
            let next = openat(from, name, step, Mode::empty())?;
            dir = Some(next);
        }
        openat(&self.dir, ".", flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// The path of an open file in this process's name space.
fn place_in_system(file: impl AsFd) -> Result<Vec<u8>, Errno> {
    Ok(readlink(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), Vec::new())?.into_bytes())
}
