//! An open file that may be let go of anywhere.
//!
//! Closing a file of a network file system, or of FUSE, may ask the other side, and wait for as long as that one pleases.
//! Whoever lets go of it last may be the event thread, so such files are closed in a lane of their own.

use rustix::fd::{AsFd, BorrowedFd};
use std::fs::File;
use std::sync::OnceLock;
use towpath_lanes::{Lane, LaneLimits};

const CLOSE_LANE: LaneLimits = LaneLimits { name: "tow-close", threads_max: 2, hanging_max: 14, per_group_max: 2 };
static CLOSING: OnceLock<Lane> = OnceLock::new();

/// An open file, closed elsewhere if closing it may block.
#[derive(Debug)]
pub(super) struct Handle {
    /// Until it is dropped.
    file: Option<File>,
    /// The device of a file that isn't on a local file system.
    far: Option<u64>,
}

impl Handle {
    pub(super) fn new(file: File, far: Option<u64>) -> Handle {
        Handle { file: Some(file), far }
    }
}

impl std::ops::Deref for Handle {
    type Target = File;

    #[allow(clippy::expect_used)]
    fn deref(&self) -> &File {
        self.file.as_ref().expect("only dropping takes it")
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let (Some(file), Some(device)) = (self.file.take(), self.far) {
            // Without a thread it is closed here.
            let _ = CLOSING.get_or_init(|| Lane::new(CLOSE_LANE)).submit(device, 0, move || drop(file));
        }
    }
}
