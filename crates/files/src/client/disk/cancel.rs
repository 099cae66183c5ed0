//! Hashing what may be larger than anybody waits for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether the transfer is over, so that nobody takes what hashing comes to. It is looked at before each piece that is hashed: files,
/// holes, and the leaves that a server announces, may be of any size.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancelled {
    is_over: Arc<AtomicBool>,
    pieces_read: Arc<AtomicU64>,
}

impl Cancelled {
    pub(super) fn set(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// An error once it is over.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_over.load(Ordering::Relaxed) { Err(io::Error::other("given up")) } else { Ok(()) }
    }

    /// The same, after a piece of a file that is here was read: as long as there are more of them, the disk doesn't hang. (Holes that a
    /// server announces don't count. They cost it nothing, and this side years.)
    pub(super) fn check_behind_a_piece(&self) -> io::Result<()> {
        self.pieces_read.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    /// How many pieces that were.
    pub(super) fn pieces_read(&self) -> u64 {
        self.pieces_read.load(Ordering::Relaxed)
    }
}
