//! Cache of digests of small files. Hashing a tree's files again for each client would be a third of the cost of preparing them.

use super::{Digest, FileKey, FileVersion, may_be_remembered};
use crate::root::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Files in each half: as many as fit a hash table without growing. Both halves take about 6 MiB.
const HALF_FILES_MAX: usize = 28_672;

/// Cache of digests of files of one leaf, in memory, in two generations: entries not used while a half fills up are dropped. A stricter LRU
/// would cost more than hashing.
#[derive(Debug, Default)]
pub(super) struct SmallDigests {
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<FileKey, Digest>,
    old: HashMap<FileKey, Digest>,
}

impl SmallDigests {
    /// Digest of an unchanged file.
    pub(super) fn lookup(&self, key: FileKey) -> Option<Digest> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = halves.young.get(&key) {
            return Some(*known);
        }
        let known = halves.old.remove(&key)?;
        halves.insert(key, known);
        Some(known)
    }

    /// Inserts the digest of a file that was the same before and after hashing, unless it had changed too shortly before `hashing_began` (see
    /// [`super::SETTLED_AFTER_SECONDS`]).
    pub(super) fn remember(&self, version: FileVersion, digest: Digest, hashing_began: Timestamp) {
        if may_be_remembered(version, hashing_began) {
            self.halves.lock().unwrap_or_else(PoisonError::into_inner).insert(version.key, digest);
        }
    }
}

impl Halves {
    fn insert(&mut self, key: FileKey, digest: Digest) {
        if self.young.len() >= HALF_FILES_MAX {
            // The memory of the one that goes is used again.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::SETTLED_AFTER_SECONDS;
    use crate::root::{FileKind, FileStat};

    fn stat(inode: u64) -> FileStat {
        let time = Timestamp { seconds: 1000, nanoseconds: 500 };
        FileStat {
            kind: FileKind::File,
            device: 1,
            inode,
            size: 10,
            modified: time,
            changed: time,
            mode: 0o644,
            owner: 0,
            links: 1,
            allocated: 4096,
        }
    }

    #[test]
    fn only_settled_and_unchanged_files_hit() {
        let digests = SmallDigests::default();
        let (changed, digest) = (stat(1).changed, Digest::of(b"small"));
        let settled = Timestamp { seconds: changed.seconds + SETTLED_AFTER_SECONDS, ..changed };
        digests.remember((&stat(1)).into(), digest, Timestamp { nanoseconds: settled.nanoseconds - 1, ..settled });
        assert_eq!(digests.lookup((&stat(1)).into()), None);
        digests.remember((&stat(1)).into(), digest, settled);
        assert_eq!(digests.lookup((&stat(1)).into()), Some(digest));
        for change in [
            |stat: &mut FileStat| stat.device += 1,
            |stat: &mut FileStat| stat.inode += 1,
            |stat: &mut FileStat| stat.size += 1,
            |stat: &mut FileStat| stat.modified.nanoseconds += 1,
            |stat: &mut FileStat| stat.changed.nanoseconds += 1,
        ] {
            let mut other = stat(1);
            change(&mut other);
            assert_eq!(digests.lookup((&other).into()), None);
        }
    }

    #[test]
    fn used_entries_stay_and_memory_is_bounded() {
        let digests = SmallDigests::default();
        let (digest, later) = (Digest::of(b"small"), Timestamp { seconds: 5000, nanoseconds: 0 });
        let files = 4 * HALF_FILES_MAX as u64;
        for inode in 0..files {
            digests.remember((&stat(inode)).into(), digest, later);
            assert_eq!(digests.lookup((&stat(0)).into()), Some(digest), "{inode}");
        }
        let halves = digests.halves.lock().unwrap();
        assert!(halves.young.len() <= HALF_FILES_MAX && halves.old.len() <= HALF_FILES_MAX);
        // What the comment on the size promises: buckets of a table that never grew beyond this.
        let bytes = |half: &HashMap<FileKey, Digest>| half.capacity() * 8 / 7 * (size_of::<(FileKey, Digest)>() + 1);
        assert!(bytes(&halves.young) + bytes(&halves.old) <= 6 << 20);
        drop(halves);
        assert_eq!(digests.lookup((&stat(files - 1)).into()), Some(digest));
        assert_eq!(digests.lookup((&stat(1)).into()), None);
    }
}
