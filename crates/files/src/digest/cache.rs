//! Digests remembered, so that a file is hashed once and not for every client.

use super::{Digest, Leaf, LeafSize};
use crate::root::{FileStat, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A digest isn't remembered if the file was changed less than this before hashing began.
///
/// A file system's clock ticks: 4 to 10 ms apart on most, 2 s at worst. Within one tick, a second change leaves no trace in size and
/// times if the size stays the same. What was hashed in the tick of its last change may therefore be different now, though
/// everything that it would be recognized by is the same.
pub const SETTLED_AFTER_SECONDS: i64 = 2;

/// What a digest is remembered by. If one of these differs, the content may.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: Timestamp,
    changed: Timestamp,
}

impl From<&FileStat> for FileKey {
    fn from(stat: &FileStat) -> FileKey {
        FileKey {
            device: stat.device,
            inode: stat.inode,
            size: stat.size,
            modified: stat.modified,
            changed: stat.changed,
        }
    }
}

/// The digest of a file and the leaves that it merges from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digested {
    /// Of the whole file.
    pub digest: Digest,
    /// How the file is divided.
    pub leaf_size: LeafSize,
    /// At least one; a file of one leaf has the digest itself here.
    pub leaves: Box<[Leaf]>,
}

/// Remembers digests in memory, as many as fit; those not used for longest are forgotten first.
#[derive(Debug)]
pub struct DigestCache {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<FileKey, Entry>,
    /// Keys by when they were last used.
    order: BTreeMap<u64, FileKey>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    value: Arc<Digested>,
    used: u64,
}

/// What an entry takes beside its leaves: both maps' nodes, roughly.
const ENTRY_BYTES: usize = 256;

impl DigestCache {
    /// Takes up to about this much memory.
    pub fn new(bytes_max: usize) -> DigestCache {
        DigestCache { bytes_max, state: Mutex::default() }
    }

    /// The digest of a file that is (still) this.
    pub fn lookup(&self, stat: &FileStat) -> Option<Arc<Digested>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let key = FileKey::from(stat);
        let entry = state.entries.get_mut(&key)?;
        state.order.remove(&entry.used);
        state.uses += 1;
        entry.used = state.uses;
        state.order.insert(state.uses, key);
        Some(Arc::clone(&entry.value))
    }

    /// Remembers the digest of a file that was this both before and after it was hashed, unless it had changed too shortly
    /// before `hashing_began` (see [`SETTLED_AFTER_SECONDS`]) or is larger than the cache. Tells whether it did.
    pub fn remember(&self, stat: &FileStat, value: Arc<Digested>, hashing_began: Timestamp) -> bool {
        let settled = stat.changed.seconds.saturating_add(SETTLED_AFTER_SECONDS);
        let bytes = entry_bytes(&value);
        if (hashing_began.seconds, hashing_began.nanoseconds) < (settled, stat.changed.nanoseconds)
            || bytes > self.bytes_max
        {
            return false;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let key = FileKey::from(stat);
        state.uses += 1;
        let used = state.uses;
        if let Some(old) = state.entries.insert(key, Entry { value, used }) {
            state.order.remove(&old.used);
            state.bytes -= entry_bytes(&old.value);
        }
        state.order.insert(used, key);
        state.bytes += bytes;
        while state.bytes > self.bytes_max {
            let Some((_, oldest)) = state.order.pop_first() else { break };
            if let Some(forgotten) = state.entries.remove(&oldest) {
                state.bytes -= entry_bytes(&forgotten.value);
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry_bytes(value: &Digested) -> usize {
    ENTRY_BYTES + size_of_val(&*value.leaves)
}

/// The time now, as files have it.
pub fn wall_clock() -> Timestamp {
    // A clock before 1970 makes everything look as if it had just changed: nothing is remembered, nothing is wrong.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::FileKind;

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
            allocated: 4096,
        }
    }

    fn digested(octet: u8, leaves: usize) -> Arc<Digested> {
        let leaf_size = LeafSize::for_file(10);
        Arc::new(Digested { digest: Digest([octet; 32]), leaf_size, leaves: vec![[octet; 32]; leaves].into() })
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
    fn what_changed_just_before_is_not_remembered() {
        let cache = DigestCache::new(1 << 20);
        let changed = stat(1).changed;
        let soon = Timestamp { seconds: changed.seconds + SETTLED_AFTER_SECONDS, nanoseconds: changed.nanoseconds - 1 };
        assert!(!cache.remember(&stat(1), digested(7, 1), soon));
        assert_eq!(cache.lookup(&stat(1)), None);
        let settled = Timestamp { nanoseconds: changed.nanoseconds, ..soon };
        assert!(cache.remember(&stat(1), digested(7, 1), settled));
    }

    #[test]
    fn memory_is_bounded_and_the_least_used_go_first() {
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
}
