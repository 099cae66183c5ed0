//! Cancels hashing, which may take longer than anybody waits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_blocking::CancelToken;

/// Set when the transfer is over and nobody needs what is being hashed. Checked before each piece that is hashed:
/// files, holes, and the leaves that a server announces, may be of any size.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancelled {
    token: CancelToken,
    pieces_read: Arc<AtomicU64>,
}

impl Cancelled {
    pub(super) fn set(&self) {
        self.token.cancel();
    }

    /// An error once it is set.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.token.is_cancelled() { Err(io::Error::other("cancelled")) } else { Ok(()) }
    }

    /// Counts a piece of an existing file that was read, and checks: as long as there are more of them, the disk
    /// doesn't hang. Holes that a server announces don't count: they cost it nothing, and this side years.
    pub(super) fn count_piece(&self) -> io::Result<()> {
        self.pieces_read.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    /// Pieces that were counted.
    pub(super) fn pieces_read(&self) -> u64 {
        self.pieces_read.load(Ordering::Relaxed)
    }
}
