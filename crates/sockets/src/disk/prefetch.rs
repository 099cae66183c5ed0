//! Reads into memory what a peer is to be sent next, while the hub serves the others.

use crate::disk::page_cache;
use crate::message::OpenFile;
use crate::peer::PeerId;
use crate::waker::Waker;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_blocking::{BlockingPool, PoolLimits};

/// A disk does best with a few readers. Which disk a file is on can't be asked without waiting for it, so all are one group.
const LIMITS: PoolLimits = PoolLimits { name: "tow-disk", threads_max: 4, hung_max: 12, per_group_max: 16 };
const GROUP: u64 = 0;

/// A piece of a file that isn't in memory.
#[derive(Debug)]
pub(crate) struct ColdPiece {
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Reads for one hub, a piece at a time for each peer.
pub(crate) struct Warmer {
    lane: BlockingPool,
    waker: Waker,
    sender: Sender<PeerId>,
    read: Receiver<PeerId>,
}

impl Warmer {
    pub(crate) fn new(waker: Waker) -> Warmer {
        let (sender, read) = channel();
        Warmer { lane: BlockingPool::new(LIMITS), waker, sender, read }
    }

    /// Has a piece read. The hub is woken when [`Warmer::next`] gives its peer.
    pub(crate) fn begin(&self, peer: PeerId, piece: ColdPiece) {
        let told = Told { peer, sender: self.sender.clone(), waker: self.waker.clone() };
        // Without a thread it is sent as it is, and whoever sends it waits for the disk.
        let _ = self.lane.submit(GROUP, peer.token(), move || {
            // Where it can't be read, sending it meets the same, and tells.
            let _ = page_cache::prefetch(&*piece.file, piece.offset, piece.length);
            // Before the peer goes on: it may be the last who holds the file.
            drop(piece);
            drop(told);
        });
    }

    /// A peer whose piece has been read, as far as it can be.
    pub(crate) fn next(&self) -> Option<PeerId> {
        self.read.try_recv().ok()
    }

    /// What a peer that is gone was to be sent needn't be read.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.lane.cancel(peer.token(), None, Some(GROUP));
    }
}

/// Tells that a piece has been read, or never will be.
struct Told {
    peer: PeerId,
    sender: Sender<PeerId>,
    waker: Waker,
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.sender.send(self.peer);
        self.waker.wake();
    }
}
