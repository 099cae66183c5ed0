//! Randomness, which comes from outside: this crate asks no system for anything.

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::sync::Arc;

type Fill = dyn Fn(&mut [u8]) -> io::Result<()> + Send + Sync;

/// A source of random bytes for keys and nonces. They must be unpredictable, and never the same twice. Clones share the source.
#[derive(Clone)]
pub struct Random(Arc<Fill>);

impl Random {
    /// A source that fills buffers by a function.
    pub fn new(fill: impl Fn(&mut [u8]) -> io::Result<()> + Send + Sync + 'static) -> Random {
        Random(Arc::new(fill))
    }

    /// Fills a buffer.
    pub fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        (self.0)(bytes)
    }
}

impl Debug for Random {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}
