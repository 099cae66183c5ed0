//! Cache of digests: a file is hashed once, not for every client.

use super::small::SmallDigests;
use super::store::Store;
use super::{Digest, FileKey, FileVersion, Leaf, LeafSize, may_be_remembered};
use crate::root::Timestamp;
use lru::LruCache;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Age of a file's last change from which on its digest is cached, in seconds before hashing began.
///
/// File systems' clocks tick every 4 to 10 ms, some every 2 s. A second change within a tick leaves size and times as they are, so a file
/// hashed within the tick of its last change may have other content under the same key.
pub const SETTLED_AFTER_SECONDS: i64 = 2;

/// The digest of a file and the leaves that it merges from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digested {
    /// Digest of the whole file.
    pub digest: Digest,
    /// Division into leaves.
    pub leaf_size: LeafSize,
    /// At least one; a file of one leaf has the digest itself here.
    pub leaves: Box<[Leaf]>,
}

/// Cache of digests within a memory budget; the least recently used are dropped first.
#[derive(Debug)]
pub struct DigestCache {
    bytes_max: usize,
    state: Mutex<State>,
    /// Has a lock of its own, so that lookups don't wait for the disk. Locked before the state.
    store: Mutex<Option<Store>>,
    /// Kept apart: many small files don't evict large ones, which cost more to hash.
    small: SmallDigests,
}

#[derive(Debug)]
struct State {
    entries: LruCache<FileKey, Arc<Digested>>,
    bytes: usize,
}

/// Approximate memory of an entry beside its leaves, in bytes: digest, key and the map's node.
const ENTRY_BYTES: usize = 256;

impl DigestCache {
    /// An empty cache of about this much memory.
    pub fn new(bytes_max: usize) -> DigestCache {
        DigestCache {
            bytes_max,
            state: Mutex::new(State::new()),
            store: Mutex::default(),
            small: SmallDigests::default(),
        }
    }

    /// A cache that persists in a file, which is made if it doesn't exist. Blocks.
    ///
    /// Fails if the file can't be read or written, is something else, or is in use by another process. The file grows to about twice the
    /// memory, then it is rewritten.
    pub fn with_file(bytes_max: usize, path: &Path) -> io::Result<DigestCache> {
        let mut state = State::new();
        let store = Store::open(path, |key, digested| state.insert(key, Arc::new(digested), bytes_max))?;
        let (state, store, small) = (Mutex::new(state), Mutex::new(store), SmallDigests::default());
        Ok(DigestCache { bytes_max, state, store, small })
    }

    /// Digest of an unchanged file.
    pub fn lookup(&self, file: impl Into<FileKey>) -> Option<Arc<Digested>> {
        self.lock().entries.get(&file.into()).cloned()
    }

    /// Inserts the digest of a file that was the same before and after hashing, unless it had changed too shortly before `hashing_began` (see
    /// [`SETTLED_AFTER_SECONDS`]) or is larger than the cache. Returns whether it was inserted. Blocks if the cache persists.
    pub fn remember(&self, file: impl Into<FileVersion>, value: Arc<Digested>, hashing_began: Timestamp) -> bool {
        let version = file.into();
        if !may_be_remembered(version, hashing_began) || entry_bytes(&value) > self.bytes_max {
            return false;
        }
        let key = version.key;
        self.lock().insert(key, Arc::clone(&value), self.bytes_max);
        self.save(&key, &value);
        true
    }

    /// Digest of an unchanged small file, of one leaf.
    pub fn lookup_small(&self, file: impl Into<FileKey>) -> Option<Digest> {
        self.small.lookup(file.into())
    }

    /// Inserts the digest of a small file as [`DigestCache::remember`] does, in memory only.
    pub fn remember_small(&self, file: impl Into<FileVersion>, digest: Digest, hashing_began: Timestamp) {
        self.small.remember(file.into(), digest, hashing_began);
    }

    /// Appends to the file, if there is one. After an error the cache goes on in memory.
    fn save(&self, key: &FileKey, value: &Digested) {
        let mut guard = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = &mut *guard else { return };
        let saved = if store.length() < (self.bytes_max as u64).saturating_mul(2) {
            store.append(key, value)
        } else {
            // Most of it is of files that are no more, or was forgotten: only what is in memory is kept.
            let kept = self.lock().all();
            store.clear().and_then(|()| kept.iter().try_for_each(|(key, value)| store.append(key, value)))
        };
        if let Err(error) = saved {
            tracing::warn!(%error, "cannot write the file of digests: from now on they are kept in memory only");
            *guard = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> State {
        // Bounded in bytes, not in entries.
        State { entries: LruCache::unbounded(), bytes: 0 }
    }

    fn insert(&mut self, key: FileKey, value: Arc<Digested>, bytes_max: usize) {
        self.bytes += entry_bytes(&value);
        if let Some(old) = self.entries.put(key, value) {
            self.bytes -= entry_bytes(&old);
        }
        while self.bytes > bytes_max {
            let Some((_, forgotten)) = self.entries.pop_lru() else { break };
            self.bytes -= entry_bytes(&forgotten);
        }
    }

    /// All entries, the least recently used first.
    fn all(&self) -> Vec<(FileKey, Arc<Digested>)> {
        self.entries.iter().rev().map(|(key, value)| (*key, Arc::clone(value))).collect()
    }
}

fn entry_bytes(value: &Digested) -> usize {
    ENTRY_BYTES + size_of_val(&*value.leaves)
}

/// The current time, in the form of file times.
pub fn wall_clock() -> Timestamp {
    // A clock before 1970 makes everything look as if it had just changed: nothing is remembered, nothing is wrong.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    #[cfg(test)]
    let since = since + SHIFT.get();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds: since.subsec_nanos() }
}

#[cfg(test)]
thread_local! {
    /// How far the clock of a test is ahead.
    pub(crate) static SHIFT: std::cell::Cell<std::time::Duration> = const { std::cell::Cell::new(std::time::Duration::ZERO) };
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn digested(byte: u8, leaves: usize) -> Arc<Digested> {
        let leaf_size = LeafSize::for_file(10);
        Arc::new(Digested { digest: Digest([byte; 32]), leaf_size, leaves: vec![[byte; 32]; leaves].into() })
    }

    const LATER: Timestamp = Timestamp { seconds: 5000, nanoseconds: 0 };

    #[test]
    fn any_change_of_the_file_misses() {
        let cache = DigestCache::new(1 << 20);
        assert!(cache.remember(&stat(1), digested(7, 1), LATER));
        assert_eq!(cache.lookup(&stat(1)), Some(digested(7, 1)));
        for change in [
            |stat: &mut FileStat| stat.device += 1,
            |stat: &mut FileStat| stat.inode += 1,
            |stat: &mut FileStat| stat.size += 1,
            |stat: &mut FileStat| stat.modified.nanoseconds += 1,
            |stat: &mut FileStat| stat.changed.nanoseconds += 1,
        ] {
            let mut other = stat(1);
            change(&mut other);
            assert_eq!(cache.lookup(&other), None);
        }
    }

    #[test]
    fn files_changed_just_before_hashing_are_not_cached() {
        let cache = DigestCache::new(1 << 20);
        let changed = stat(1).changed;
        let soon = Timestamp { seconds: changed.seconds + SETTLED_AFTER_SECONDS, nanoseconds: changed.nanoseconds - 1 };
        assert!(!cache.remember(&stat(1), digested(7, 1), soon));
        assert_eq!(cache.lookup(&stat(1)), None);
        let settled = Timestamp { nanoseconds: changed.nanoseconds, ..soon };
        assert!(cache.remember(&stat(1), digested(7, 1), settled));
    }

    #[test]
    fn memory_is_bounded_and_the_least_recently_used_are_dropped() {
        let each = entry_bytes(&digested(0, 100));
        let cache = DigestCache::new(each * 3);
        for inode in 1..=3 {
            cache.remember(&stat(inode), digested(0, 100), LATER);
        }
        assert!(cache.lookup(&stat(1)).is_some());
        cache.remember(&stat(4), digested(0, 100), LATER);
        assert!(cache.lookup(&stat(2)).is_none());
        for inode in [1, 3, 4] {
            assert!(cache.lookup(&stat(inode)).is_some(), "{inode}");
        }
        cache.remember(&stat(4), digested(1, 100), LATER);
        assert_eq!(cache.lock().bytes, each * 3);
        assert!(!cache.remember(&stat(5), digested(0, 1000), LATER));
    }
    #[test]
    fn a_persistent_cache_survives_restarts_and_truncation() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("digests");
        let value = |byte| {
            let leaf_size = LeafSize::announced(1024, 10).unwrap();
            Arc::new(Digested { digest: Digest([byte; 32]), leaf_size, leaves: [[byte; 32]].into() })
        };
        let cache = DigestCache::with_file(1 << 20, &path).unwrap();
        let second = DigestCache::with_file(1 << 20, &path).unwrap_err();
        assert!(second.to_string().starts_with("another server has it"), "{second}");
        for inode in 1..=3 {
            cache.remember(&stat(inode), value(inode as u8), LATER);
        }
        cache.remember(&stat(1), value(9), LATER);
        drop(cache);
        let whole = std::fs::read(&path).unwrap();
        let record = (whole.len() - 8) / 4;
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let cache = DigestCache::with_file(1 << 20, &path).unwrap();
            let known = length.saturating_sub(8) / record;
            for inode in 1..=3 {
                let expected = if inode == 1 && known == 4 { 9 } else { inode as u8 };
                let is_known = inode as usize <= known;
                assert_eq!(cache.lookup(&stat(inode)), is_known.then(|| value(expected)), "{length}");
            }
            // Truncated bytes are overwritten by the next record.
            cache.remember(&stat(7), value(7), LATER);
            drop(cache);
            assert!(DigestCache::with_file(1 << 20, &path).unwrap().lookup(&stat(7)).is_some());
        }
        let mut spoiled = whole.clone();
        spoiled[8 + record + 20] ^= 1;
        std::fs::write(&path, &spoiled).unwrap();
        let cache = DigestCache::with_file(1 << 20, &path).unwrap();
        assert_eq!((cache.lookup(&stat(1)), cache.lookup(&stat(2))), (Some(value(1)), None));
        drop(cache);
        for other in [&b"something else"[..], b"short"] {
            std::fs::write(&path, other).unwrap();
            assert!(DigestCache::with_file(1 << 20, &path).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), other);
        }
    }

    #[test]
    fn the_file_is_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("digests");
        let bytes_max = 20 * entry_bytes(&digested(0, 1));
        let cache = DigestCache::with_file(bytes_max, &path).unwrap();
        for inode in 1..2000 {
            assert!(cache.remember(&stat(inode), digested(1, 1), LATER));
            assert!(std::fs::metadata(&path).unwrap().len() <= 2 * bytes_max as u64 + 200);
        }
        drop(cache);
        assert!(DigestCache::with_file(bytes_max, &path).unwrap().lookup(&stat(1999)).is_some());
    }
}
