//! File ranges and the page cache.

pub mod page_cache;
pub(crate) mod prefetch;
