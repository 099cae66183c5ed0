//! How pieces of files get into memory.

use super::Failure;
use super::open_file::OpenFile;
use towpath_sockets::page_cache::{self, Residency};

/// The page cache, or in tests something that can be held up.
pub(super) trait Storage: Send + Sync + 'static {
    /// Whether a piece is resident. Called on the event thread: must not block.
    fn probe(&self, source: &OpenFile, offset: u64, length: u64) -> Residency;
    /// Makes it resident. Called in the pool, in a lane with a queue for each device.
    fn warm(&self, source: &OpenFile, offset: u64, length: u64) -> Result<(), Failure>;
}

/// The page cache of the kernel.
#[derive(Copy, Clone, Debug)]
pub(super) struct PageCache;

impl Storage for PageCache {
    fn probe(&self, source: &OpenFile, offset: u64, length: u64) -> Residency {
        page_cache::probe(&*source.file, offset, length)
    }

    fn warm(&self, source: &OpenFile, offset: u64, length: u64) -> Result<(), Failure> {
        page_cache::prefetch(&*source.file, offset, length).map_err(|error| Failure::io(&error))
    }
}
