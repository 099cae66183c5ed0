//! Who has pushed what: a client that may not read a path learns only of what it pushed there.

use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::FileStat;
use std::collections::HashMap;

/// Paths of which it is known.
const PATHS_MAX: usize = 4096;

/// Files that tenants have pushed, by path. The oldest is forgotten if there are many: its content is sent again.
#[derive(Debug, Default)]
pub(super) struct Known {
    begun: HashMap<RelPath, (u64, Digest)>,
    whole: HashMap<RelPath, (u64, Placed)>,
}

/// A file as it was put.
#[derive(Copy, Clone, Debug)]
pub(super) enum Placed {
    File(FileStat),
    /// In a store.
    Stored(Digest),
}

impl Known {
    /// A tenant sends all of this for a path, or goes on with that.
    pub(super) fn begin(&mut self, path: &RelPath, tenant: u64, digest: Digest) {
        make_space(&mut self.begun);
        self.begun.insert(path.clone(), (tenant, digest));
    }

    /// A tenant's file has its name.
    pub(super) fn put(&mut self, path: &RelPath, tenant: u64, file: Placed) {
        make_space(&mut self.whole);
        self.begun.remove(path);
        self.whole.insert(path.clone(), (tenant, file));
    }

    /// Whether an incomplete file for a path, announced with this digest, is a tenant's.
    pub(super) fn has_begun(&self, path: &RelPath, tenant: u64, digest: Digest) -> bool {
        self.begun.get(path) == Some(&(tenant, digest))
    }

    /// Whether the file at a path is as a tenant has put it there.
    pub(super) fn has_put(&self, path: &RelPath, tenant: u64, there: &Placed) -> bool {
        self.whole.get(path).is_some_and(|(by, put)| *by == tenant && put.is_same(there))
    }
}

impl Placed {
    fn is_same(&self, other: &Placed) -> bool {
        match (self, other) {
            (Placed::File(put), Placed::File(there)) => put.same_content(there),
            (Placed::Stored(put), Placed::Stored(there)) => put == there,
            _ => false,
        }
    }
}

fn make_space<V>(map: &mut HashMap<RelPath, V>) {
    if map.len() >= PATHS_MAX {
        map.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_put_is_known_and_only_as_it_was_left() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let stat = || Placed::File(FileStat::try_from(temp.as_file()).unwrap());
        let (path, digest) = (RelPath::new("a").unwrap(), Digest::of(b"a"));
        let mut known = Known::default();
        known.begin(&path, 1, digest);
        assert!(known.has_begun(&path, 1, digest) && !known.has_put(&path, 1, &stat()));
        assert!(!known.has_begun(&path, 2, digest) && !known.has_begun(&path, 1, Digest::of(b"b")));
        known.put(&path, 1, stat());
        assert!(
            known.has_put(&path, 1, &stat()) && !known.has_put(&path, 2, &stat()) && !known.has_begun(&path, 1, digest)
        );
        std::fs::write(temp.path(), "other").unwrap();
        assert!(!known.has_put(&path, 1, &stat()));
        known.put(&path, 1, Placed::Stored(digest));
        assert!(known.has_put(&path, 1, &Placed::Stored(digest)) && !known.has_put(&path, 1, &stat()));
    }
}
