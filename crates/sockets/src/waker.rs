//! Ends a hub's wait from another thread.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// Wakes the [`crate::Hub`] that it came from. Cheap to clone; may be used from any thread, as often as one likes.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker { event: Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?) })
    }

    /// Makes the hub's current or next turn return.
    pub fn wake(&self) {
        // It fails only if 2^64 - 2 wake-ups are pending, which is awake enough.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count[..]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
