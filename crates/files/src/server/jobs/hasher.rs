//! Hashing in slices, so that a large file doesn't keep small ones waiting.
//!
//! The state of a cancelled hash is kept for a while: a file that takes longer than clients wait is hashed in the end all the same.

use crate::digest::{Digest, DigestCache, Digested, FileHasher, FileKey, FileVersion, HashError, ReadAt, wall_clock};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes hashed in a slice: some hundredths of a second, unless the disk is slow.
pub(crate) const SLICE_BYTES: u64 = 64 << 20;
/// Bytes from which on the state of a cancelled hash is kept.
const KEPT_FROM_BYTES: u64 = 16 << 20;
/// Cancelled hashes that are kept.
const KEPT_MAX: usize = 64;
/// Their memory, in bytes: that of a file of 1 TiB may take half of it.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Memory of the leaves of files that were hashed just after a change, in bytes: of 256 files of 1 GiB.
const FRESH_BYTES_MAX: usize = 8 << 20;

/// The digest cache, and hashes that were cancelled half-way.
#[derive(Debug)]
pub(crate) struct Hasher {
    pub(crate) cache: DigestCache,
    /// Oldest first.
    cancelled: Mutex<VecDeque<FileHasher>>,
    /// Digests that the cache doesn't take, since the file may change again without a change of its times. Oldest first.
    fresh: Mutex<VecDeque<(FileKey, Arc<Digested>)>>,
}

impl Hasher {
    pub(crate) fn new(cache: DigestCache) -> Hasher {
        Hasher { cache, cancelled: Mutex::default(), fresh: Mutex::default() }
    }

    /// Hashes the next slice of a file. None: call this again with the same `progress`, which is None at first. Blocks.
    pub(crate) fn slice(
        &self,
        file: &impl ReadAt,
        version: impl Into<FileVersion>,
        progress: &mut Option<FileHasher>,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<Arc<Digested>>, HashError> {
        let version = version.into();
        if let Some(known) = self.cache.lookup(version.key) {
            return Ok(Some(known));
        }
        if let Some(known) = file.known()? {
            self.cache.remember(version, Arc::clone(&known), wall_clock());
            return Ok(Some(known));
        }
        let mut hasher = self.farthest(&version.key, progress.take()).unwrap_or_else(|| FileHasher::new(version));
        match hasher.advance(file, SLICE_BYTES, is_cancelled) {
            Ok(true) => {
                let began = hasher.began();
                let digested = Arc::new(hasher.finish(file)?);
                if !self.cache.remember(version, Arc::clone(&digested), began) {
                    self.keep_fresh(version.key, Arc::clone(&digested));
                }
                Ok(Some(digested))
            }
            Ok(false) => {
                *progress = Some(hasher);
                Ok(None)
            }
            Err(error) => {
                if matches!(error, HashError::GivenUp) {
                    self.keep(hasher);
                }
                Err(error)
            }
        }
    }

    /// The leaves of a file, if it was hashed not long ago and had this digest then. They merge to it, so they are right whatever became of the
    /// file.
    pub(crate) fn leaves(&self, file: impl Into<FileKey>, digest: Digest) -> Option<Arc<Digested>> {
        let key = file.into();
        let cached = self.cache.lookup(key).filter(|known| known.digest == digest);
        let fresh = || {
            let fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
            let found = fresh.iter().rev().find(|(of, known)| *of == key && known.digest == digest);
            found.map(|(_, known)| Arc::clone(known))
        };
        cached.or_else(fresh)
    }

    /// Keeps the leaves of a file that has just changed: many clients are about to ask for them.
    fn keep_fresh(&self, key: FileKey, digested: Arc<Digested>) {
        let bytes = |digested: &Digested| size_of_val(&*digested.leaves);
        if digested.leaves.len() < 2 || bytes(&digested) > FRESH_BYTES_MAX {
            return;
        }
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.retain(|(of, _)| *of != key);
        fresh.push_back((key, digested));
        let mut all: usize = fresh.iter().map(|(_, digested)| bytes(digested)).sum();
        while all > FRESH_BYTES_MAX {
            let Some((_, oldest)) = fresh.pop_front() else { return };
            all -= bytes(&oldest);
        }
    }

    /// Keeps the state of a cancelled hash, for the next request for the same version of the file.
    pub(crate) fn keep(&self, hasher: FileHasher) {
        if hasher.hashed_bytes() < KEPT_FROM_BYTES || !hasher.is_of_settled_file() {
            return;
        }
        // Another one of the same file may have come farther.
        let Some(hasher) = self.farthest(&hasher.key(), Some(hasher)) else { return };
        let mut cancelled = self.lock();
        cancelled.push_back(hasher);
        let mut bytes: usize = cancelled.iter().map(FileHasher::memory_bytes).sum();
        while cancelled.len() > KEPT_MAX || bytes > KEPT_BYTES_MAX {
            let Some(oldest) = cancelled.pop_front() else { return };
            bytes -= oldest.memory_bytes();
        }
    }

    /// The one that has come farther: of those kept for a file, and one in progress.
    fn farthest(&self, key: &FileKey, going_on: Option<FileHasher>) -> Option<FileHasher> {
        let mut cancelled = self.lock();
        let at = cancelled.iter().position(|hasher| hasher.key() == *key);
        let kept = at.and_then(|at| cancelled.remove(at));
        kept.into_iter().chain(going_on).max_by_key(FileHasher::hashed_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<FileHasher>> {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::FileStat;
    use std::cell::Cell;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    /// A file with holes, that was last changed long enough ago that a later change shows.
    fn settled(size: u64) -> (File, FileStat) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
        let mut stat = FileStat::try_from(&file).unwrap();
        // The time of the last change of the inode can't be set.
        stat.changed = stat.modified;
        (file, stat)
    }

    #[test]
    fn a_cancelled_hash_goes_on_where_it_was() {
        let hashing = Hasher::new(DigestCache::new(1 << 20));
        let size = 3 * KEPT_FROM_BYTES;
        let (file, stat) = settled(size);
        // The number of polls shows how much is hashed.
        let asked = Cell::new(0);
        let until = |most| {
            asked.set(0);
            let asked = &asked;
            move || {
                asked.set(asked.get() + 1);
                asked.get() > most
            }
        };
        let hash = |given_up: &dyn Fn() -> bool| hashing.slice(&file, &stat, &mut None, given_up);
        let whole = {
            let mut alone = FileHasher::new(&stat);
            alone.advance(&file, u64::MAX, until(u64::MAX)).unwrap();
            asked.get()
        };
        for _ in 0..2 {
            assert!(matches!(hash(&until(whole * 2 / 5)), Err(HashError::GivenUp)));
        }
        // A hash that has come less far doesn't replace it.
        let mut short = FileHasher::new(&stat);
        short.advance(&file, KEPT_FROM_BYTES, || false).unwrap();
        hashing.keep(short);
        let kept: Vec<_> = hashing.lock().iter().map(|kept| kept.hashed_bytes() / KEPT_FROM_BYTES).collect();
        assert_eq!(kept, [2]);
        // The file has changed since it was opened, so there is no digest, but the end is reached.
        let _ = hash(&until(u64::MAX));
        assert_eq!(asked.get(), whole - 2 * (whole * 2 / 5));
        assert!(hashing.lock().is_empty());
    }

    #[test]
    fn kept_hashes_are_bounded_and_of_settled_files() {
        let hashing = Hasher::new(DigestCache::new(1 << 20));
        let (file, stat) = settled(2 * KEPT_FROM_BYTES);
        let begun = |inode, changed_seconds, bytes| {
            let mut stat = stat;
            stat.inode = inode;
            stat.changed.seconds += changed_seconds;
            let mut hasher = FileHasher::new(&stat);
            hasher.advance(&file, bytes, || false).unwrap();
            hasher
        };
        hashing.keep(begun(0, 0, 1));
        hashing.keep(begun(0, 1000, KEPT_FROM_BYTES));
        assert!(hashing.lock().is_empty());
        for inode in 0..KEPT_MAX as u64 + 2 {
            hashing.keep(begun(inode, 0, KEPT_FROM_BYTES));
        }
        let kept: Vec<_> = hashing.lock().iter().map(FileHasher::key).collect();
        let expected: Vec<_> = (2..KEPT_MAX as u64 + 2).map(|inode| begun(inode, 0, 1).key()).collect();
        assert_eq!(kept, expected);
    }
}
