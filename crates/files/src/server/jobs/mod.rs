//! What runs in the pool of threads, since it may block.

pub(super) mod extents;
pub(super) mod hash;
pub(super) mod list;
pub(super) mod load;
pub(super) mod pool;
pub(super) mod prepare;
