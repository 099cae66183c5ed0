//! The thread that brings large bodies into memory, where the broker itself needs their octets: the disk must keep nobody else waiting.

use crate::body::{Body, LargeBody};
use crate::spool::SpooledBody;
use crate::wire::Token;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_sockets::Waker;
use towpath_sockets::page_cache::{Residency, probe, warm};

/// Octets that are asked for at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// What a client has asked the broker itself, to be answered when a body is in memory.
pub(super) struct Question {
    pub token: Token,
    pub service: Bytes,
    pub body: Body,
}

/// The thread, once there was something to read.
pub(super) struct Reading {
    waker: Waker,
    jobs: Option<Sender<(Arc<SpooledBody>, Question)>>,
    done: Sender<Question>,
    read: Receiver<Question>,
}

impl Reading {
    pub fn new(waker: Waker) -> Reading {
        let (done, read) = channel();
        Reading { waker, jobs: None, done, read }
    }

    /// Has a body read. The hub is woken when [`Reading::next`] gives the question. Those of a client are as many as it may have
    /// outstanding.
    pub fn begin(&mut self, body: Arc<SpooledBody>, question: Question) -> io::Result<()> {
        if self.jobs.is_none() {
            let (jobs, to_do) = channel();
            let (done, waker) = (self.done.clone(), self.waker.clone());
            std::thread::Builder::new().name("read".to_owned()).spawn(move || read(&to_do, &done, &waker))?;
            self.jobs = Some(jobs);
        }
        let job = (body, question);
        self.jobs.as_ref().map_or(Ok(()), |jobs| jobs.send(job)).map_err(|_| io::Error::other("the thread has ended"))
    }

    /// A question whose body has been read, as far as it can be.
    pub fn next(&mut self) -> Option<Question> {
        self.read.try_recv().ok()
    }
}

/// Whether its octets are in memory.
pub(super) fn is_in_memory(body: &SpooledBody) -> bool {
    probe(body, 0, body.length()) == Residency::Resident
}

/// Reads until nobody can ask any more.
fn read(jobs: &Receiver<(Arc<SpooledBody>, Question)>, done: &Sender<Question>, waker: &Waker) {
    for (body, question) in jobs {
        let length = body.length();
        // Where it can't be read, whoever needs the octets meets the same, and tells.
        let _ =
            (0..length).step_by(PIECE_BYTES as usize).try_for_each(|at| warm(&*body, at, PIECE_BYTES.min(length - at)));
        drop(body);
        if done.send(question).is_err() {
            return;
        }
        waker.wake();
    }
}
