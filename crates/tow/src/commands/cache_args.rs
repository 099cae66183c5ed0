//! Options of a cache of pieces on the local disk.

use crate::cli::exit::Failure;
use crate::cli::units::size;
use std::path::PathBuf;
use towpath_cache::{Cache, Version};
use towpath_files::root::make_private_dir;
use towpath_files::server::source::CacheStats;

/// Options of a cache.
#[derive(clap::Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Keep pieces of what a bucket or another server has in this directory on a local disk; each is fetched once.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Size of the cache; what wasn't used for longest goes first.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "cache", default_value = "10G")]
    cache_size: u64,
}

impl CacheArgs {
    /// Whether there is to be one.
    pub fn is_given(&self) -> bool {
        self.cache.is_some()
    }

    /// Opens the cache, if there is to be one.
    pub fn open<V: Version>(&self) -> Result<Option<Cache<V>>, Failure> {
        let Some(directory) = self.cache.as_deref() else { return Ok(None) };
        make_private_dir(directory)
            .map_err(|error| format!("cannot use {} as a cache: {error}", directory.display()))
            .and_then(|()| Cache::open(directory, self.cache_size))
            .map(Some)
            .map_err(Failure::failed)
    }
}

/// Figures of a cache, as a server shows them.
pub fn cache_stats<V: Version>(cache: &Cache<V>) -> CacheStats {
    let of = cache.figures();
    CacheStats {
        bytes: of.bytes,
        bytes_max: of.bytes_max,
        hits: of.hits,
        fetched: of.fetched,
        fetched_bytes: of.fetched_bytes,
        evicted: of.evicted,
        bypassed: of.bypassed,
        is_broken: of.is_broken,
    }
}
