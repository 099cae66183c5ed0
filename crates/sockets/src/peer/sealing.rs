//! Sealing large frames on other threads: the hub serves other peers meanwhile, and no disk keeps it waiting.

use crate::message::{FileRange, IfShort, wait_for};
use crate::net::tenant::Tenant;
use crate::peer::End;
use crate::peer_id::PeerId;
use crate::waker::Waker;
use bytes::Bytes;
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_blocking::{BlockingPool, PoolLimits};
use towpath_quota::{FairQueue, Permit, Quota};
use towpath_zmtp::{SealJob, Sealed};

/// Sealing is work for processors, and reading for disks. Asking which disk a file is on may block, so all files are one group.
const LIMITS: PoolLimits = PoolLimits { name: "tow-seal", threads_max: 4, hung_max: 12, per_group_max: 16 };
const GROUP: u64 = 0;

/// Memory of frames that are being sealed, or sealed and not written yet, for all peers of a hub.
const MEMORY_BYTES: u64 = 24 * 1024 * 1024;

/// Buffers kept for the next frames, and the size up to which one is kept.
const SPARE_BUFFERS: usize = 8;
const SPARE_BUFFER_BYTES_MAX: usize = 1024 * 1024 + 4096;

/// How long peers may wait for memory while none is released.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A peer that holds sealed frames, and takes fewer bytes than this in that time, gives way. A slow link is no reason.
pub(crate) const TAKEN_BYTES_MIN: u64 = 16 * 1024;

/// A frame to be sealed.
#[derive(Debug)]
pub(crate) struct SealRequest {
    pub(crate) job: SealJob,
    pub(crate) body: PlainBody,
}

/// The body of such a frame.
#[derive(Debug)]
pub(crate) enum PlainBody {
    Bytes(Bytes),
    File(FileRange),
}

/// A sealed frame.
#[derive(Debug)]
pub(crate) struct SealedFrame {
    pub(crate) sealed: Sealed,
    /// The file was shorter, and the frame ends in zeros.
    pub(crate) is_short: bool,
}

/// Seals frames for one hub, one at a time for each peer.
pub(crate) struct SealPool {
    pool: BlockingPool,
    waker: Waker,
    sender: Sender<(PeerId, Result<SealedFrame, End>)>,
    done: Receiver<(PeerId, Result<SealedFrame, End>)>,
    memory: Arc<Quota>,
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Requests that wait for memory.
    waiting: FairQueue<Tenant, PeerId, SealRequest>,
    /// Since when the one whose turn it is has waited.
    stuck_since: Option<Instant>,
}

impl SealPool {
    pub(crate) fn new(waker: Waker) -> SealPool {
        let (sender, done) = channel();
        SealPool {
            pool: BlockingPool::new(LIMITS),
            waker,
            sender,
            done,
            memory: Quota::new(MEMORY_BYTES),
            spare: Arc::default(),
            waiting: FairQueue::default(),
            stuck_since: None,
        }
    }

    /// Queues a frame. The hub is woken when [`SealPool::next_done`] gives it.
    pub(crate) fn push(&mut self, tenant: &Tenant, peer: PeerId, request: SealRequest) {
        self.waiting.push(tenant, peer, request);
    }

    /// Starts as many frames as memory allows.
    pub(crate) fn start(&mut self, now: Instant) {
        while let Some((peer, bytes)) = self.next_waiting() {
            let permit = self.memory.try_acquire(bytes);
            // One frame may be larger than the budget.
            let permit = permit.or_else(|| (self.memory.used() == 0).then(|| self.memory.acquire(bytes)));
            let Some(permit) = permit else {
                self.stuck_since.get_or_insert(now);
                return;
            };
            self.stuck_since = None;
            if let Some(request) = self.waiting.pop(peer) {
                self.submit(peer, request, permit);
            }
        }
        self.stuck_since = None;
    }

    /// The peer whose turn it is, and the memory that its request takes.
    fn next_waiting(&self) -> Option<(PeerId, u64)> {
        let (peer, request) = self.waiting.firsts().next()?;
        Some((peer, request.job.frame_bytes() as u64))
    }

    fn submit(&self, peer: PeerId, request: SealRequest, permit: Permit) {
        let report = Report { peer, outcome: None, sender: self.sender.clone(), waker: self.waker.clone() };
        let spare = Arc::clone(&self.spare);
        // Without a thread the job is dropped, and reports that.
        let _ = self.pool.submit(GROUP, peer.token(), move || {
            let mut report = report;
            report.outcome = Some(seal(request, permit, spare));
            drop(report);
        });
    }

    /// The next frame that has been sealed, or why it could not be.
    pub(crate) fn next_done(&self) -> Option<(PeerId, Result<SealedFrame, End>)> {
        self.done.try_recv().ok()
    }

    /// Drops the frame of a peer that is gone.
    pub(crate) fn cancel(&mut self, peer: PeerId) {
        self.waiting.remove(peer);
        self.pool.cancel(peer.token(), None, Some(GROUP));
    }

    /// When peers will have waited too long for memory that others hold.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.stuck_since.and_then(|since| since.checked_add(STUCK_AFTER))
    }

    /// Whether they have. Then the wait starts again.
    pub(crate) fn take_stuck(&mut self, now: Instant) -> bool {
        let is_stuck = self.deadline().is_some_and(|deadline| deadline <= now);
        if is_stuck {
            self.stuck_since = Some(now);
        }
        is_stuck
    }
}

fn seal(request: SealRequest, permit: Permit, spare: Arc<Mutex<Vec<Vec<u8>>>>) -> Result<SealedFrame, End> {
    let SealRequest { job, body } = request;
    let bytes = spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
    let mut buffer = SealBuffer { bytes, spare, _permit: permit };
    buffer.bytes.resize(job.frame_bytes(), 0);
    let text = &mut buffer.bytes[job.body_at()..];
    let is_short = match &body {
        PlainBody::Bytes(bytes) => {
            text.copy_from_slice(bytes);
            false
        }
        PlainBody::File(range) => {
            wait_for(&*range.file, range.offset + text.len() as u64);
            let is_short = read_whole(range, text)?;
            if is_short && range.if_short == IfShort::Close {
                return Err(End::file_became_short());
            }
            is_short
        }
    };
    Ok(SealedFrame { sealed: job.seal(buffer), is_short })
}

/// Reads a whole range. If the file is shorter, the rest is zeros and the result is true.
fn read_whole(range: &FileRange, bytes: &mut [u8]) -> Result<bool, End> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&range.file, &mut bytes[filled..], range.offset + filled as u64) {
            Ok(0) | Err(Errno::IO) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(End::system("reading the file failed", errno)),
        }
    }
    // The buffer may have had a frame of another peer.
    bytes[filled..].fill(0);
    Ok(filled < bytes.len())
}

/// A buffer that is counted while it lives, and kept for another frame after that.
struct SealBuffer {
    bytes: Vec<u8>,
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
    _permit: Permit,
}

impl AsRef<[u8]> for SealBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for SealBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for SealBuffer {
    fn drop(&mut self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_BUFFERS && self.bytes.capacity() <= SPARE_BUFFER_BYTES_MAX {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Reports the outcome when dropped, in any case.
struct Report {
    peer: PeerId,
    outcome: Option<Result<SealedFrame, End>>,
    sender: Sender<(PeerId, Result<SealedFrame, End>)>,
    waker: Waker,
}

impl Drop for Report {
    fn drop(&mut self) {
        let none = || Err(End::new("a frame could not be sealed: no thread for it could be started"));
        let _ = self.sender.send((self.peer, self.outcome.take().unwrap_or_else(none)));
        self.waker.wake();
    }
}
