//! Paths that may have changed since they were last looked at.

use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Names of a directory, beyond which all of it is looked at.
const NAMES_MAX: usize = 1024;
/// Directories, beyond which the whole tree is.
const DIRS_MAX: usize = 4096;

/// Paths to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    /// The whole tree.
    pub(super) is_everything: bool,
    /// File systems may have been mounted below it, or unmounted.
    pub(super) are_mounts: bool,
    pub(super) dirs: BTreeMap<RelPath, Names>,
}

/// Names in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Names {
    These(BTreeSet<Box<[u8]>>),
    All,
}

impl Dirty {
    pub(super) fn is_empty(&self) -> bool {
        !self.is_everything && !self.are_mounts && self.dirs.is_empty()
    }

    /// Marks a name in a directory.
    pub(super) fn name(&mut self, dir: &RelPath, name: &[u8]) {
        if let Some(names) = self.names(dir)
            && let Names::These(these) = names
        {
            these.insert(name.into());
            if these.len() > NAMES_MAX {
                *names = Names::All;
            }
        }
    }

    /// Marks a directory.
    pub(super) fn dir(&mut self, dir: &RelPath) {
        if let Some(names) = self.names(dir) {
            *names = Names::All;
        }
    }

    /// Marks everything.
    pub(super) fn everything(&mut self) {
        *self = Dirty { is_everything: true, are_mounts: true, dirs: BTreeMap::new() };
    }

    /// Adds what came later.
    pub(super) fn add(&mut self, more: Dirty) {
        if more.is_everything {
            return self.everything();
        }
        self.are_mounts |= more.are_mounts;
        for (dir, names) in more.dirs {
            match names {
                Names::All => self.dir(&dir),
                Names::These(names) => names.iter().for_each(|name| self.name(&dir, name)),
            }
        }
    }

    fn names(&mut self, dir: &RelPath) -> Option<&mut Names> {
        if self.is_everything {
            return None;
        }
        if !self.dirs.contains_key(dir) && self.dirs.len() >= DIRS_MAX {
            self.everything();
            return None;
        }
        Some(self.dirs.entry(dir.clone()).or_insert_with(|| Names::These(BTreeSet::new())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_become_a_directory_and_many_directories_everything() {
        let mut dirty = Dirty::default();
        let dir: RelPath = "d".parse().unwrap();
        for index in 0..=NAMES_MAX {
            assert!(!matches!(dirty.dirs.get(&dir), Some(Names::All)));
            dirty.name(&dir, index.to_string().as_bytes());
        }
        assert_eq!(dirty.dirs.get(&dir), Some(&Names::All));
        for index in 1..=DIRS_MAX {
            assert!(!dirty.is_everything);
            dirty.name(&index.to_string().parse().unwrap(), b"x");
        }
        assert!(dirty.is_everything && dirty.dirs.is_empty());
        dirty.dir(&dir);
        assert!(dirty.dirs.is_empty());
    }
}
