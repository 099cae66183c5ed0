//! Brings large bodies into memory where the broker itself needs their bytes: the disk must keep nobody else waiting.

use bytes::Bytes;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_blocking::{BlockingPool, PoolLimits};
use towpath_requests::body::Body;
use towpath_requests::limits::BODY_BYTES_MAX;
use towpath_requests::numbered::Token;
use towpath_sockets::Waker;

/// Each holds a body in memory.
const LIMITS: PoolLimits = PoolLimits { name: "broker-read", threads_max: 1, hung_max: 1, per_group_max: 2 };

/// Bodies that are on their way at a time. Each has a file open.
const READING_MAX: usize = 256;

/// The token of a request for a body, and the body's bytes.
type Answer = (Token, io::Result<Bytes>);

/// The thread that reads large bodies, and those that it is reading.
#[derive(Debug)]
pub(super) struct BodyLoader {
    pool: BlockingPool,
    waker: Waker,
    in_progress: usize,
    done: Sender<Answer>,
    read: Receiver<Answer>,
}

impl BodyLoader {
    pub fn new(waker: Waker) -> BodyLoader {
        let (done, read) = channel();
        BodyLoader { pool: BlockingPool::new(LIMITS), waker, in_progress: 0, done, read }
    }

    /// Has a body read, unless too many are. Clients take turns. The hub is woken when [`BodyLoader::next`] gives the answer.
    pub fn begin(&mut self, client: u64, token: Token, body: Body) -> bool {
        if self.in_progress == READING_MAX {
            return false;
        }
        self.in_progress += 1;
        let bytes = Err(io::Error::other("no thread can be had for it"));
        let mut notifier =
            Notifier { answer: Some((token, bytes)), done: self.done.clone(), waker: self.waker.clone() };
        // Without a thread the answer says so.
        let _ = self.pool.submit(0, client, move || {
            let bytes = body.to_vec_limited(BODY_BYTES_MAX).map(Bytes::from);
            drop(body);
            notifier.notify(bytes);
        });
        true
    }

    /// The next body that has been read.
    pub fn next(&mut self) -> Option<Answer> {
        let answer = self.read.try_recv().ok()?;
        self.in_progress -= 1;
        Some(answer)
    }
}

/// Delivers the answer, also if the thread panics.
struct Notifier {
    answer: Option<Answer>,
    done: Sender<Answer>,
    waker: Waker,
}

impl Notifier {
    fn notify(&mut self, bytes: io::Result<Bytes>) {
        if let Some(answer) = &mut self.answer {
            answer.1 = bytes;
        }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let _ = self.done.send(answer);
            self.waker.wake();
        }
    }
}
