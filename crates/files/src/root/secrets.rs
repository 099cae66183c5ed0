//! Files that are never served, wherever they are found: keys, passwords, rules and the like.

use super::FileStat;
use rustix::fs::stat;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

/// How long what was found is taken for true.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Files of a directory of secrets that are looked at.
const FILES_MAX: usize = 1000;

/// Files and directories that aren't to be served, known by device and inode. They may be replaced.
#[derive(Debug, Default)]
pub struct Secrets {
    paths: Vec<PathBuf>,
    /// Device and inode, and where that was, sorted.
    known: RwLock<Vec<((u64, u64), PathBuf)>>,
    looked: Mutex<Option<Instant>>,
}

impl Secrets {
    /// Files at these paths, and directly in them.
    pub fn new(paths: Vec<PathBuf>) -> Secrets {
        let secrets = Secrets { paths, ..Secrets::default() };
        secrets.look();
        secrets
    }

    /// The first of some paths that leads below a directory, or to this file. What isn't there yet is where it will be made.
    pub fn first_below<'a>(paths: impl IntoIterator<Item = &'a Path>, root: &Path) -> Option<&'a Path> {
        let root = root.canonicalize().ok()?;
        paths.into_iter().find(|path| place(path).is_some_and(|place| place.starts_with(&root)))
    }

    /// Whether it is one of them. Blocks on the disk of the secret if it seems so: one that was replaced since the last look has left its inode
    /// to whatever was made next.
    pub fn has(&self, stat: &FileStat) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let file = (stat.device, stat.inode);
        let found = known.binary_search_by_key(&file, |(known, _)| *known).ok();
        found.and_then(|index| known.get(index)).is_some_and(|(_, path)| identity(path) == Some(file))
    }

    /// Whether [`Secrets::refresh`] has nothing to do. Doesn't block.
    pub fn is_fresh(&self) -> bool {
        let is_recent = |looked: Option<Instant>| looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY);
        // Another thread is looking.
        self.paths.is_empty() || self.looked.try_lock().is_ok_and(|looked| is_recent(*looked))
    }

    /// Looks again which files they are, unless that was just done. Blocks, except while another thread looks: its disk may hang.
    pub fn refresh(&self) {
        if !self.is_fresh() {
            self.look();
        }
    }

    /// Looks which files they are.
    pub fn look(&self) {
        let mut looked = match self.looked.try_lock() {
            Ok(looked) => looked,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut found = Vec::new();
        for path in &self.paths {
            let inside = std::fs::read_dir(path).into_iter().flatten().take(FILES_MAX).flatten();
            let paths = inside.map(|entry| entry.path()).chain([path.clone()]);
            found.extend(paths.filter_map(|path| Some((identity(&path)?, path))));
        }
        found.sort_unstable();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = found;
        *looked = Some(Instant::now());
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let stat = FileStat::from(stat(path).ok()?);
    Some((stat.device, stat.inode))
}

/// The target of a path, as far as it exists.
fn place(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let mut missing = Vec::new();
    for above in path.ancestors() {
        if let Ok(there) = above.canonicalize() {
            return Some(missing.iter().rev().fold(there, |place, name| place.join(name)));
        }
        missing.push(above.file_name()?.to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn secrets_are_found_through_links_and_where_they_will_be() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir_all(at("served/sub")).unwrap();
        for file in ["served/key", "outside"] {
            std::fs::write(at(file), "").unwrap();
        }
        symlink("served/key", at("link")).unwrap();
        symlink("served", at("also")).unwrap();
        let first = |path: &Path| Secrets::first_below([path], &at("served")).is_some();
        for inside in ["served/key", "link", "also/key", "served/sub/new/state", "also/../served/x", "served"] {
            assert!(first(&at(inside)), "{inside}");
        }
        for outside in ["outside", "served2", "new/x"] {
            assert!(!first(&at(outside)), "{outside}");
        }
        assert!(Secrets::first_below([&*at("served/key")], &at("served/key")).is_some());
        assert!(Secrets::first_below([&*at("served/key")], &at("outside")).is_none());
    }

    #[test]
    fn secrets_are_known_by_what_they_are() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let stat = |name: &str| FileStat::from(rustix::fs::stat(at(name)).unwrap());
        std::fs::create_dir(at("state")).unwrap();
        for file in ["key", "state/log", "other"] {
            std::fs::write(at(file), "").unwrap();
        }
        std::fs::hard_link(at("key"), at("again")).unwrap();
        let secrets = Secrets::new(vec![at("key"), at("state"), at("missing")]);
        for secret in ["key", "again", "state", "state/log"] {
            assert!(secrets.has(&stat(secret)), "{secret}");
        }
        assert!(!secrets.has(&stat("other")) && secrets.is_fresh());
        // Not looked at since: what it was may be another file by now.
        let removed = stat("state/log");
        std::fs::remove_file(at("state/log")).unwrap();
        assert!(!secrets.has(&removed));
        std::fs::rename(at("other"), at("key")).unwrap();
        secrets.look();
        assert!(secrets.has(&stat("key")));
    }
}
