//! Wakes a hub from another thread.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// Wakes the [`crate::Hub`] that it came from, from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker { event: Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?) })
    }

    /// Makes the hub's current or next poll return.
    pub fn wake(&self) {
        // Fails only with 2^64 - 2 wake-ups pending.
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
