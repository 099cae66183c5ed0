//! An open file that may be let go of anywhere.
//!
//! Closing a file of a network file system, or of FUSE, may ask the other side, and wait for as long as that one pleases.
//! Whoever lets go of it last may be the event thread, so such files are closed in a lane of their own.

use std::fs::File;
use std::sync::LazyLock;
use towpath_blocking::{BlockingPool, DropOffload, PoolLimits};

const CLOSE_LANE: PoolLimits = PoolLimits { name: "tow-close", threads_max: 2, hung_max: 14, per_group_max: 2 };
static CLOSING: LazyLock<BlockingPool> = LazyLock::new(|| BlockingPool::new(CLOSE_LANE));

/// An open file, closed elsewhere if closing it may block.
pub(super) type DeferredClose = DropOffload<File>;

/// `far`: the device of a file that isn't on a local file system.
pub(super) fn handle(file: File, far: Option<u64>) -> DeferredClose {
    match far {
        Some(device) => DropOffload::new(file, &CLOSING, device),
        None => DropOffload::inline(file),
    }
}
