//! Keeping a cache within its size.
//!
//! The directory is the only record: it is read every few minutes, as other processes may share it, and whenever it may be full.

use super::store::Directory;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// The directory is read again after this time, in case others put something there.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// Most pieces, so that reading the directory stays a matter of seconds.
const PIECES_MAX: usize = 500_000;
/// Parts of the size, in percent: beyond the first, pieces are removed until they are within the second.
const FULL_PERCENT: u64 = 95;
const LEFT_PERCENT: u64 = 90;

/// The thread that evicts.
#[derive(Debug)]
pub(super) struct Evictor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: Arc<Directory>,
    bytes_max: u64,
    /// Bytes of all pieces when last counted, and of those added since.
    bytes: AtomicU64,
    evicted: AtomicU64,
    is_due: Mutex<Due>,
    wake: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    look: bool,
    /// Whatever the size is: the disk is full.
    hurry: bool,
    end: bool,
}

impl Evictor {
    pub(super) fn start(directory: Arc<Directory>, bytes_max: u64) -> std::io::Result<Evictor> {
        let shared = Arc::new(Shared {
            directory,
            bytes_max,
            bytes: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            is_due: Mutex::new(Due { look: true, ..Due::default() }),
            wake: Condvar::new(),
        });
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new().name("tow-evict".to_owned()).spawn(move || run(&weak))?;
        Ok(Evictor(shared))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.0.bytes_max
    }

    pub(super) fn evicted(&self) -> u64 {
        self.0.evicted.load(Ordering::Relaxed)
    }

    /// A piece was added.
    pub(super) fn added(&self, bytes: u64) {
        let before = self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > percent(self.0.bytes_max, FULL_PERCENT) {
            self.0.wake(|due| due.look = true);
        }
    }

    /// The disk is full.
    pub(super) fn hurry(&self) {
        self.0.wake(|due| due.hurry = true);
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.0.wake(|due| due.end = true);
    }
}

impl Shared {
    fn wake(&self, change: impl FnOnce(&mut Due)) {
        change(&mut self.is_due.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    fn wait(&self) -> Due {
        let due = self.is_due.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(due, LOOK_EVERY, |due| *due == Due::default());
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Reads the directory, and removes what wasn't used for longest if it is too much.
    fn look(&self, is_full: bool) {
        let mut pieces = self.pieces();
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
        let within = bytes <= percent(self.bytes_max, FULL_PERCENT) && pieces.len() <= PIECES_MAX;
        if within && !is_full {
            return;
        }
        let most = percent(bytes.min(self.bytes_max), LEFT_PERCENT);
        let count_max = pieces.len().min(PIECES_MAX) / 10 * 9 + 1;
        pieces.sort_unstable_by_key(|piece| piece.used);
        let (mut left, mut count, mut failed) = (bytes, pieces.len(), None);
        for piece in pieces {
            if left <= most && (count <= count_max || within) {
                break;
            }
            match std::fs::remove_file(&piece.path) {
                Ok(()) => {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                // Another process was faster.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    failed = Some((piece.path, error));
                    continue;
                }
            }
            left -= piece.bytes;
            count -= 1;
        }
        self.bytes.fetch_sub((bytes - left).min(self.bytes.load(Ordering::Relaxed)), Ordering::Relaxed);
        tracing::debug!(bytes, left, "evicted pieces from the cache");
        if let Some((path, error)) = failed {
            tracing::warn!(path = %path.display(), %error, "cannot remove a piece from the cache");
        }
    }

    fn pieces(&self) -> Vec<Found> {
        let mut pieces = Vec::new();
        for shelf in self.directory.shelves() {
            let entries = match std::fs::read_dir(&shelf) {
                Ok(entries) => entries,
                Err(error) => {
                    tracing::warn!(path = %shelf.display(), %error, "cannot read a directory of the cache");
                    continue;
                }
            };
            for entry in entries.flatten() {
                // What was removed meanwhile has none.
                let Ok(there) = entry.metadata() else { continue };
                let used = there.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                pieces.push(Found { used, bytes: there.len(), path: entry.path() });
            }
        }
        pieces
    }
}

struct Found {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

fn percent(of: u64, percent: u64) -> u64 {
    of / 100 * percent
}

fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let due = shared.wait();
        if due.end {
            return;
        }
        shared.look(due.hurry);
    }
}
