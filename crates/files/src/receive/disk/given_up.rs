//! Hashing what may be larger than anybody waits for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the transfer is over, so that nobody takes what hashing comes to. It is looked at before each piece that is hashed: files,
/// holes, and the leaves that a server announces, may be of any size.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// An error once it is over.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other("given up")) } else { Ok(()) }
    }
}
