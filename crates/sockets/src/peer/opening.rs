//! Opening large sealed frames on other threads: the hub serves other peers meanwhile.

use crate::peer_id::PeerId;
use crate::waker::Waker;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_blocking::{BlockingPool, PoolLimits};
use towpath_zmtp::{OpenJob, Opened};

const LIMITS: PoolLimits = PoolLimits { name: "tow-open", threads_max: 4, hung_max: 0, per_group_max: 4 };
const GROUP: u64 = 0;

/// Opens frames for one hub, one at a time for each peer. Their memory is counted with their peers' incomplete messages.
pub(crate) struct OpenPool {
    pool: BlockingPool,
    waker: Waker,
    sender: Sender<(PeerId, Option<Opened>)>,
    done: Receiver<(PeerId, Option<Opened>)>,
}

impl OpenPool {
    pub(crate) fn new(waker: Waker) -> OpenPool {
        let (sender, done) = channel();
        OpenPool { pool: BlockingPool::new(LIMITS), waker, sender, done }
    }

    /// Opens a frame. The hub is woken when [`OpenPool::next_done`] gives it.
    pub(crate) fn start(&self, peer: PeerId, job: OpenJob) {
        let report = Report { peer, opened: None, sender: self.sender.clone(), waker: self.waker.clone() };
        // Without a thread the job is dropped, and reports that.
        let _ = self.pool.submit(GROUP, peer.token(), move || {
            let mut report = report;
            report.opened = Some(job.open());
            drop(report);
        });
    }

    /// The next frame; `None`: no thread for it could be started.
    pub(crate) fn next_done(&self) -> Option<(PeerId, Option<Opened>)> {
        self.done.try_recv().ok()
    }
}

/// Reports the outcome when dropped, in any case.
struct Report {
    peer: PeerId,
    opened: Option<Opened>,
    sender: Sender<(PeerId, Option<Opened>)>,
    waker: Waker,
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = self.sender.send((self.peer, self.opened.take()));
        self.waker.wake();
    }
}
