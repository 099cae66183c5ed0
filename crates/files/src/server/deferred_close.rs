//! Open files that may be dropped anywhere.
//!
//! Closing a file of a network file system or FUSE may block for any time, and the event thread may hold its last reference. So such files
//! are closed by threads of their own.

use std::fs::File;
use std::sync::LazyLock;
use towpath_blocking::{BlockingPool, DropOffload, PoolLimits};

const CLOSE_LANE: PoolLimits = PoolLimits { name: "tow-close", threads_max: 2, hung_max: 14, per_group_max: 2 };
static CLOSING: LazyLock<BlockingPool> = LazyLock::new(|| BlockingPool::new(CLOSE_LANE));

/// An open file, closed on another thread if closing may block.
pub(super) type DeferredClose = DropOffload<File>;

/// `far`: device of a file that isn't on a local file system.
pub(super) fn handle(file: File, far: Option<u64>) -> DeferredClose {
    match far {
        Some(device) => DropOffload::new(file, &CLOSING, device),
        None => DropOffload::inline(file),
    }
}
