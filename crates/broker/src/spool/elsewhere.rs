//! Files of bodies are closed on another thread.
//!
//! Closing the last descriptor of a file without a name gives back what it had on the disk, which takes 0.1 to 0.2 s a GiB, or for ever
//! where the disk hangs. Who drops a body last is often the thread that has all peers.

use std::ops::Deref;
use std::sync::OnceLock;
use towpath_lanes::{Lane, LaneLimits};

/// Which disk a file is on can't be asked without waiting for it, so all are one group.
const LIMITS: LaneLimits = LaneLimits { name: "spool-close", threads_max: 1, hanging_max: 7, per_group_max: 8 };
static CLOSING: OnceLock<Lane> = OnceLock::new();

/// What is dropped on another thread.
#[derive(Debug)]
pub(super) struct Elsewhere<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Elsewhere<T> {
    pub fn new(value: T) -> Self {
        Elsewhere(Some(value))
    }
}

impl<T: Send + 'static> Deref for Elsewhere<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only dropping takes it")
    }
}

impl<T: Send + 'static> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            // Without a thread it is dropped here.
            let _ = CLOSING.get_or_init(|| Lane::new(LIMITS)).submit(0, 0, move || drop(value));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn all_is_dropped_and_not_here() {
        let (sender, dropped) = channel();
        for _ in 0..100 {
            drop(Elsewhere::new(Tells(sender.clone())));
        }
        for _ in 0..100 {
            assert_ne!(dropped.recv_timeout(Duration::from_secs(60)).unwrap(), thread::current().id());
        }
    }
}
