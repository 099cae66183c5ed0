//! Paths that could not be read, so that their content isn't known.

use super::dirty::Dirty;
use crate::path::RelPath;
use std::collections::{BTreeMap, HashSet};

/// Paths that could not be read when they were last looked at.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// And whether each is a directory.
    paths: BTreeMap<RelPath, bool>,
    is_changed: bool,
}

impl Unread {
    /// Adds a path. Whether it is new.
    pub(super) fn add(&mut self, path: &RelPath, is_dir: bool) -> bool {
        let is_new = self.paths.insert(path.clone(), is_dir) != Some(is_dir);
        self.is_changed |= is_new;
        is_new
    }

    pub(super) fn has_file(&self, path: &RelPath) -> bool {
        self.paths.get(path) == Some(&false)
    }

    pub(super) fn has_dirs(&self) -> bool {
        self.paths.values().any(|is_dir| *is_dir)
    }

    /// Removes a path that was read, or isn't there.
    pub(super) fn remove(&mut self, path: &RelPath) {
        self.is_changed |= self.paths.remove(path).is_some();
    }

    /// Removes a path and everything below it.
    pub(super) fn remove_below(&mut self, path: &RelPath) {
        let below: Vec<_> = self.below(path).map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|path| self.remove(path));
    }

    /// Removes what is below a path that is no directory.
    pub(super) fn is_no_dir(&mut self, path: &RelPath) {
        let gone = self.below(path).filter(|(below, is_dir)| *below != path || **is_dir);
        let gone: Vec<_> = gone.map(|(path, _)| path.clone()).collect();
        gone.iter().for_each(|path| self.remove(path));
    }

    /// A directory has these names and no other.
    pub(super) fn keep(&mut self, dir: &RelPath, names: &[Box<[u8]>]) {
        if self.paths.is_empty() {
            return;
        }
        let names: HashSet<_> = names.iter().map(|name| &**name).collect();
        let depth = dir.names().count();
        let is_there = |path: &RelPath| path.names().nth(depth).is_none_or(|name| names.contains(name));
        let gone: Vec<_> = self.below(dir).map(|(path, _)| path).filter(|path| !is_there(path)).cloned().collect();
        gone.iter().for_each(|path| self.remove(path));
    }

    fn below(&self, path: &RelPath) -> impl Iterator<Item = (&RelPath, &bool)> {
        // What is below a path sorts behind it, but not right behind it.
        let near = self.paths.range(path.clone()..);
        let near = near.take_while(|(other, _)| other.as_bytes().starts_with(path.as_bytes()));
        near.filter(|(other, _)| other.below(path).is_some())
    }

    /// Directories that are to be read because something happened to one, so that it or what is below it may be readable now.
    pub(super) fn to_read(&self, path: &RelPath) -> Vec<RelPath> {
        let dir = |(path, is_dir): (&RelPath, &bool)| if *is_dir { Some(path.clone()) } else { path.parent() };
        self.below(path).filter_map(dir).collect()
    }

    /// Asks for another look at all of it: not every change that makes something readable comes with an event.
    pub(super) fn look_again(&self, dirty: &mut Dirty) {
        for (path, is_dir) in &self.paths {
            match path.split() {
                Some((parent, name)) if !is_dir => dirty.name(&parent, name),
                _ => dirty.dir(path),
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Takes all paths, and whether each is a directory, if they have changed since the last call.
    pub(super) fn take_changed(&mut self) -> Option<BTreeMap<RelPath, bool>> {
        std::mem::take(&mut self.is_changed).then(|| self.paths.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_forgotten_and_what_is_near_stays() {
        let path = |text: &str| text.parse::<RelPath>().unwrap();
        let mut unread = Unread::default();
        for (text, is_dir) in [("a", true), ("a.b", false), ("a/b/c", true), ("a/f", false), ("b", false)] {
            assert!(unread.add(&path(text), is_dir) && !unread.add(&path(text), is_dir));
        }
        assert_eq!(unread.to_read(&path("a")), [path("a"), path("a/b/c"), path("a")]);
        assert_eq!(unread.take_changed().map(|all| all.len()), Some(5));
        assert!(unread.take_changed().is_none());
        unread.keep(&path("a"), &[b"b".as_slice().into()]);
        assert_eq!(unread.to_read(&RelPath::root()).len(), 4, "a/f is gone");
        unread.keep(&RelPath::root(), &[b"a.b".as_slice().into()]);
        assert_eq!(unread.take_changed().unwrap().into_keys().collect::<Vec<_>>(), [path("a.b")]);
        unread.remove_below(&RelPath::root());
        assert!(unread.is_empty());
    }
}
