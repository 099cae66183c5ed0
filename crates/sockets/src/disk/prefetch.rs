//! Reads file ranges into the page cache on other threads, while the hub serves other peers.

use crate::disk::page_cache;
use crate::message::{OpenFile, wait_for};
use crate::peer_id::PeerId;
use crate::waker::Waker;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_blocking::{BlockingPool, PoolLimits};

/// A disk does best with a few readers. Asking which disk a file is on may block, so all files are one group.
const LIMITS: PoolLimits = PoolLimits { name: "tow-disk", threads_max: 4, hung_max: 12, per_group_max: 16 };
const GROUP: u64 = 0;

/// A file range that isn't in the page cache.
#[derive(Debug)]
pub(crate) struct UncachedRange {
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Prefetches for one hub, one range at a time for each peer.
pub(crate) struct Prefetcher {
    pool: BlockingPool,
    waker: Waker,
    sender: Sender<PeerId>,
    done: Receiver<PeerId>,
}

impl Prefetcher {
    pub(crate) fn new(waker: Waker) -> Prefetcher {
        let (sender, done) = channel();
        Prefetcher { pool: BlockingPool::new(LIMITS), waker, sender, done }
    }

    /// Starts to read a range. The hub is woken when [`Prefetcher::next_done`] gives its peer.
    pub(crate) fn start(&self, peer: PeerId, range: UncachedRange) {
        let report = Report { peer, sender: self.sender.clone(), waker: self.waker.clone() };
        // Without a thread the range is sent uncached, and the hub waits for the disk.
        let _ = self.pool.submit(GROUP, peer.token(), move || {
            wait_for(&*range.file, range.offset.saturating_add(range.length));
            // If it can't be read, sending it fails in the same way, and reports that.
            let _ = page_cache::prefetch(&*range.file, range.offset, range.length);
            // Before the peer goes on: this may be the last owner of the file.
            drop(range);
            drop(report);
        });
    }

    /// The next peer whose range has been read, as far as possible.
    pub(crate) fn next_done(&self) -> Option<PeerId> {
        self.done.try_recv().ok()
    }

    /// Cancels the range of a peer that is gone.
    pub(crate) fn cancel(&self, peer: PeerId) {
        self.pool.cancel(peer.token(), None, Some(GROUP));
    }
}

/// Reports when dropped that a range has been read, or never will be.
struct Report {
    peer: PeerId,
    sender: Sender<PeerId>,
    waker: Waker,
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = self.sender.send(self.peer);
        self.waker.wake();
    }
}
