//! Versions of files that the origin had not long ago.

use lru::LruCache;
use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_files::client::KnownFile;
use towpath_files::path::RelPath;

/// Time for which a version is not asked for again.
pub(super) const FRESH_TIME: Duration = Duration::from_secs(5);
/// Files whose versions are remembered.
const FILES_MAX: NonZeroUsize = NonZeroUsize::new(32 << 10).unwrap();
/// Files that took too long.
const SLOW_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Memory of the values of their leaves, in bytes: of 2 TiB.
const LEAVES_BYTES_MAX: u64 = 64 << 20;

/// Versions of files, by their path.
#[derive(Debug)]
pub(super) struct KnownFiles(Mutex<Files>);

#[derive(Debug)]
struct Files {
    files: LruCache<RelPath, (KnownFile, Instant)>,
    leaves_bytes: u64,
    /// Files that weren't known in time, and until when they aren't asked for again.
    slow: LruCache<RelPath, Instant>,
}

impl KnownFiles {
    pub(super) fn new() -> KnownFiles {
        KnownFiles(Mutex::new(Files {
            files: LruCache::new(FILES_MAX),
            leaves_bytes: 0,
            slow: LruCache::new(SLOW_MAX),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A version that was there a moment ago.
    pub(super) fn fresh(&self, path: &RelPath) -> Option<KnownFile> {
        self.lock().files.get(path).filter(|(_, since)| since.elapsed() < FRESH_TIME).map(|(file, _)| file.clone())
    }

    /// The last version that was there.
    pub(super) fn last(&self, path: &RelPath) -> Option<KnownFile> {
        self.lock().files.get(path).map(|(file, _)| file.clone())
    }

    /// Remembers the present version. If it is the last one still, that keeps the values of its leaves.
    pub(super) fn remember(&self, file: KnownFile) -> KnownFile {
        let mut state = self.lock();
        let last = state.files.peek(file.path()).map(|(last, _)| last).filter(|last| last.is_same(&file));
        let file = last.cloned().unwrap_or(file);
        state.leaves_bytes += file.leaves_bytes();
        if let Some((_, (old, _))) = state.files.push(file.path().clone(), (file.clone(), Instant::now())) {
            state.leaves_bytes -= old.leaves_bytes();
        }
        while state.leaves_bytes > LEAVES_BYTES_MAX
            && let Some((_, (old, _))) = state.files.pop_lru()
        {
            state.leaves_bytes -= old.leaves_bytes();
        }
        file
    }

    /// Notes a file that isn't to be asked for again for a while: others wait for the same answer.
    pub(super) fn note_slow(&self, path: RelPath, time: Duration) {
        self.lock().slow.put(path, Instant::now() + time);
    }

    pub(super) fn is_slow(&self, path: &RelPath) -> bool {
        self.lock().slow.get(path).is_some_and(|until| Instant::now() < *until)
    }

    pub(super) fn forget(&self, path: &RelPath) {
        let mut state = self.lock();
        if let Some((old, _)) = state.files.pop(path) {
            state.leaves_bytes -= old.leaves_bytes();
        }
    }
}

/// Each question is asked once at a time: callers with the same one wait for its answer.
#[derive(Debug)]
pub(super) struct Questions<K>(Mutex<HashMap<K, Arc<Mutex<()>>>>);

impl<K: Hash + Eq + Clone> Questions<K> {
    pub(super) fn new() -> Questions<K> {
        Questions(Mutex::default())
    }

    /// Calls `ask` once nobody else asks this.
    pub(super) fn alone<T>(&self, question: &K, ask: impl FnOnce() -> T) -> T {
        let open = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(open().entry(question.clone()).or_default());
        let answer = {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            ask()
        };
        // Nobody else has it but the map.
        let mut open = open();
        if Arc::strong_count(&turn) == 2 {
            open.remove(question);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_question_is_asked_once_at_a_time() {
        let (questions, asking, answered) = (Questions::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        questions.alone(&"a", || {
                            assert_eq!(asking.fetch_add(1, Ordering::SeqCst), 0);
                            asking.fetch_sub(1, Ordering::SeqCst);
                            answered.fetch_add(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(answered.into_inner(), 800);
        assert!(questions.0.into_inner().unwrap().is_empty());
    }
}
