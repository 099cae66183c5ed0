//! What is dropped on a thread of a lane.

use crate::BlockingPool;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;

/// Something of which the last owner may be a thread that must not wait, though dropping it may block: closing a file of a network
/// file system may ask the other side, and that of the last descriptor of a file without a name gives back what it had on the disk.
/// Dropped, it is handed to a lane, which drops it.
#[derive(Debug)]
pub struct DropOffload<T: Send + 'static> {
    /// Until it is dropped.
    value: Option<T>,
    /// Where, and for which group of it. `None`: it is dropped like anything else.
    lane: Option<(&'static LazyLock<BlockingPool>, u64)>,
}

impl<T: Send + 'static> DropOffload<T> {
    /// To be dropped in that lane, for that group (such as a device).
    pub fn new(value: T, lane: &'static LazyLock<BlockingPool>, group: u64) -> Self {
        DropOffload { value: Some(value), lane: Some((lane, group)) }
    }

    /// To be dropped where its last owner does it.
    pub fn inline(value: T) -> Self {
        DropOffload { value: Some(value), lane: None }
    }
}

impl<T: Send + 'static> Deref for DropOffload<T> {
    type Target = T;

    #[allow(clippy::expect_used)]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("only dropping takes it")
    }
}

impl<T: AsFd + Send + 'static> AsFd for DropOffload<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Send + 'static> Drop for DropOffload<T> {
    fn drop(&mut self) {
        if let (Some(value), Some((lane, group))) = (self.value.take(), self.lane) {
            // Without a thread it is dropped here.
            let _ = lane.submit(group, 0, move || drop(value));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::PoolLimits;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    static LANE: LazyLock<BlockingPool> = LazyLock::new(|| {
        BlockingPool::new(PoolLimits { name: "drops", threads_max: 1, hung_max: 0, per_group_max: 1 })
    });

    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn all_is_dropped_and_not_here_but_what_may_be() {
        let (sender, dropped) = channel();
        let next = || dropped.recv_timeout(Duration::from_secs(60)).unwrap();
        for _ in 0..100 {
            drop(DropOffload::new(Tells(sender.clone()), &LANE, 0));
        }
        for _ in 0..100 {
            assert_ne!(next(), thread::current().id());
        }
        drop(DropOffload::inline(Tells(sender)));
        assert_eq!(next(), thread::current().id());
    }
}
