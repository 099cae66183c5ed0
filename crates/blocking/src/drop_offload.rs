//! Values that are dropped on a thread of a pool.

use crate::BlockingPool;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;

/// A value that a pool drops, because dropping may block and the last owner may be a thread that must not: closing a file may ask the server of a
/// network file system, or free the disk space of an unlinked file.
#[derive(Debug)]
pub struct DropOffload<T: Send + 'static> {
    /// `None` only while dropping.
    value: Option<T>,
    /// The pool, and the group in it. `None`: dropped by the last owner.
    pool: Option<(&'static LazyLock<BlockingPool>, u64)>,
}

impl<T: Send + 'static> DropOffload<T> {
    /// To be dropped by a pool, as a job of that group (such as a device).
    pub fn new(value: T, pool: &'static LazyLock<BlockingPool>, group: u64) -> Self {
        DropOffload { value: Some(value), pool: Some((pool, group)) }
    }

    /// To be dropped by the last owner itself.
    pub fn inline(value: T) -> Self {
        DropOffload { value: Some(value), pool: None }
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
        if let (Some(value), Some((pool, group))) = (self.value.take(), self.pool) {
            // Without a thread it is dropped here.
            let _ = pool.submit(group, 0, move || drop(value));
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

    static POOL: LazyLock<BlockingPool> = LazyLock::new(|| {
        BlockingPool::new(PoolLimits { name: "drops", threads_max: 1, hung_max: 0, per_group_max: 1 })
    });

    struct ReportsDrop(Sender<ThreadId>);

    impl Drop for ReportsDrop {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn values_are_dropped_by_the_pool_unless_inline() {
        let (sender, dropped) = channel();
        let next = || dropped.recv_timeout(Duration::from_secs(60)).unwrap();
        for _ in 0..100 {
            drop(DropOffload::new(ReportsDrop(sender.clone()), &POOL, 0));
        }
        for _ in 0..100 {
            assert_ne!(next(), thread::current().id());
        }
        drop(DropOffload::inline(ReportsDrop(sender)));
        assert_eq!(next(), thread::current().id());
    }
}
