//! Files of a transfer at its destination, to notice that two of its names are one there: on a file system that ignores
//! case, or how letters with marks are composed.
//!
//! Such a file system finds under the second name what was installed under the first. So the identity of all that is
//! installed, or kept, is recorded with a hash of its path: 16 bytes an entry. Where each spelling has an inode of its own, as by sshfs, the
//! directories show it: a name that they don't have in this spelling is another's.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::destination::Destination;
use super::partial::root_error;
use crate::path::RelPath;
use crate::root::{Dir, FileKind, FileStat, RootError};
use crate::transfer::DiskError;

/// Entries of a directory that are looked through for the spelling of a name.
const ENTRIES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Installed {
    /// Keyed at random: a server can't choose paths that collide.
    hasher: RandomState,
    /// Hashes of paths, by hashes of device and inode.
    paths: Mutex<HashMap<u64, u64>>,
    spellings: Mutex<Spellings>,
}

/// Knowledge of how directories spell names.
#[derive(Debug, Default)]
struct Spellings {
    /// Hashes of directories that distinguish all spellings.
    exact: HashSet<u64>,
    /// Hashes of paths that others spell so.
    seen: HashSet<u64>,
}

impl Installed {
    /// Records what was just made under a path.
    pub(super) fn record(&self, made: &FileStat, local: &RelPath) {
        let (key, path) = (self.key(made), self.hasher.hash_one(local));
        self.lock().insert(key, path);
    }

    /// Records what is there under a path, and is kept or about to be replaced: `false` if it is there under another
    /// path.
    pub(super) fn claim(&self, there: &FileStat, local: &RelPath) -> bool {
        let (key, path) = (self.key(there), self.hasher.hash_one(local));
        *self.lock().entry(key).or_insert(path) == path
    }

    /// Whether what is there is recorded under another path.
    pub(super) fn is_of_another(&self, there: &FileStat, local: &RelPath) -> bool {
        let (key, path) = (self.key(there), self.hasher.hash_one(local));
        self.lock().get(&key).is_some_and(|recorded| *recorded != path)
    }

    /// Forgets what was replaced: another file may get its inode.
    pub(super) fn forget(&self, gone: &FileStat) {
        let key = self.key(gone);
        self.lock().remove(&key);
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
        *self.spellings() = Spellings::default();
    }

    fn spellings(&self) -> MutexGuard<'_, Spellings> {
        self.spellings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a directory has what is there under this name in this spelling, or under another one with the same inode.
    fn is_spelled(&self, dir: &Dir, parent: &RelPath, name: &[u8]) -> Result<bool, RootError> {
        let key = self.hasher.hash_one(parent);
        let of = |name: &[u8]| self.hasher.hash_one((key, name));
        let known = |spellings: &Spellings| spellings.exact.contains(&key) || spellings.seen.contains(&of(name));
        if known(&self.spellings()) {
            return Ok(true);
        }
        if dir.distinguishes_spellings(name) {
            // A name without letters says nothing of others.
            if name.iter().any(u8::is_ascii_alphabetic) {
                self.spellings().exact.insert(key);
            }
            return Ok(true);
        }
        let (entries, own) = (dir.entries(ENTRIES_MAX)?, dir.stat(name)?);
        self.spellings().seen.extend(entries.iter().map(|entry| of(&entry.name)));
        // One with the same inode is noticed by that.
        let is_own =
            |other: &[u8]| dir.stat(other).is_ok_and(|other| (other.device, other.inode) == (own.device, own.inode));
        if !known(&self.spellings()) && entries.iter().any(|entry| is_own(&entry.name)) {
            self.spellings().seen.insert(of(name));
        }
        Ok(known(&self.spellings()))
    }

    fn key(&self, stat: &FileStat) -> u64 {
        self.hasher.hash_one((stat.device, stat.inode))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Destination {
    /// Claims what has a name in a directory, to keep or to replace it: an error if it is there under another path of
    /// this transfer.
    pub(super) fn claim(&self, dir: &Dir, name: &[u8], there: &FileStat, local: &RelPath) -> Result<(), DiskError> {
        if !self.is_spelled(dir, name, local).map_err(|error| root_error("cannot read its directory", &error))? {
            return Err(self.one_name(local));
        }
        if self.installed.claim(there, local) || is_another_link(dir, name, there) {
            return Ok(());
        }
        Err(self.one_name(local))
    }

    /// The same of all names of a path.
    fn is_spelled(&self, dir: &Dir, name: &[u8], local: &RelPath) -> Result<bool, RootError> {
        let parent = local.parent().unwrap_or_default();
        if !self.installed.is_spelled(dir, &parent, name)? {
            return Ok(false);
        }
        for (parent, name) in std::iter::successors(Some(parent), RelPath::parent).filter_map(|path| {
            let (parent, name) = path.split()?;
            Some((parent, name.to_vec()))
        }) {
            if let Some(dir) = self.existing_dir(&parent)?
                && !self.installed.is_spelled(&dir, &parent, &name)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The error that a path is the same as another one here.
    pub(super) fn one_name(&self, local: &RelPath) -> DiskError {
        let stored = self.as_stored(local).filter(|stored| stored != local);
        let other = stored.map_or_else(|| "another path of this transfer".to_owned(), |stored| stored.to_string());
        let message = format!(
            "{local} and {other} are one name at the destination, whose file system ignores case or the composition \
             of letters"
        );
        DiskError { full: false, message }
    }

    /// A path as the directories spell it. `None` if it can't be found out.
    fn as_stored(&self, path: &RelPath) -> Option<RelPath> {
        let mut stored = RelPath::root();
        for name in path.names() {
            let dir = self.existing_dir(&stored).ok()??;
            let own = dir.stat(name).ok()?;
            let entries = dir.entries(ENTRIES_MAX).ok()?;
            let is_own = |other: &[u8]| {
                dir.stat(other).is_ok_and(|other| (other.device, other.inode) == (own.device, own.inode))
            };
            let folded = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
            let exact = entries.iter().find(|entry| *entry.name == *name);
            let spelled = exact.or_else(|| {
                // Where spellings have inodes of their own, the name has to do.
                let is_alike = |other: &[u8]| is_own(other) || folded(other) == folded(name);
                entries.iter().find(|entry| is_alike(&entry.name))
            })?;
            stored = stored.join(&spelled.name).ok()?;
        }
        Some(stored)
    }
}

/// Whether a file has several names, of which this is one by itself.
fn is_another_link(dir: &Dir, name: &[u8], there: &FileStat) -> bool {
    let has_several = there.kind == FileKind::File && there.links > 1;
    has_several && dir.entries(ENTRIES_MAX).is_ok_and(|entries| entries.iter().any(|entry| *entry.name == *name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Timestamp;
    use proptest::prelude::*;

    fn stat(inode: u64) -> FileStat {
        let time = Timestamp::default();
        FileStat {
            kind: FileKind::File,
            device: 1,
            inode,
            size: 0,
            modified: time,
            changed: time,
            mode: 0o644,
            owner: 0,
            links: 1,
            allocated: 0,
        }
    }

    proptest! {
        /// On a file system that ignores case, each path that differs from an earlier one only by that is noticed, and no other.
        #[test]
        fn paths_that_are_one_name_are_noticed(names in proptest::collection::vec("[aAbB]{1,3}", 1..20)) {
            let installed = Installed::default();
            let mut disk: HashMap<String, (u64, String)> = HashMap::new();
            for (inode, name) in (1..).zip(&names) {
                let local: RelPath = name.parse().unwrap();
                match disk.get(&name.to_lowercase()).cloned() {
                    None => installed.record(&stat(inode), &local),
                    Some((there, first)) => {
                        prop_assert_eq!(installed.claim(&stat(there), &local), first == *name);
                        prop_assert_eq!(installed.is_of_another(&stat(there), &local), first != *name);
                        if first != *name {
                            continue;
                        }
                        // Replaced by a new version, and its inode is free for another file.
                        installed.record(&stat(inode), &local);
                        installed.forget(&stat(there));
                        prop_assert!(installed.claim(&stat(there), &"elsewhere".parse().unwrap()));
                        installed.forget(&stat(there));
                    }
                }
                disk.insert(name.to_lowercase(), (inode, name.clone()));
            }
        }
    }
}
