//! Bringing pieces of files into the page cache.

use super::Failure;
use super::open_file::OpenFile;
use towpath_sockets::page_cache::{self, Residency};

/// The page cache; in tests, one that can be blocked.
pub(super) trait Storage: Send + Sync + 'static {
    /// Whether a piece is cached. Called on the event thread: must not block.
    fn probe(&self, source: &OpenFile, offset: u64, length: u64) -> Residency;
    /// Reads a piece into the cache. Called in the pool.
    fn prefetch(&self, source: &OpenFile, offset: u64, length: u64) -> Result<(), Failure>;
}

/// The page cache of the kernel.
#[derive(Copy, Clone, Debug)]
pub(super) struct PageCache;

impl Storage for PageCache {
    fn probe(&self, source: &OpenFile, offset: u64, length: u64) -> Residency {
        source.descriptor().map_or(Residency::Uncached, |file| page_cache::probe(file, offset, length))
    }

    fn prefetch(&self, source: &OpenFile, offset: u64, length: u64) -> Result<(), Failure> {
        let Some(file) = source.descriptor() else { return Ok(()) };
        page_cache::prefetch(file, offset, length).map_err(|error| Failure::io(&error))
    }
}
