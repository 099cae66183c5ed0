//! Brings large bodies into memory where the broker itself needs their octets: the disk must keep nobody else waiting.

use crate::body::LargeBody;
use crate::spool::SpooledBody;
use crate::wire::Token;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_lanes::{Lane, LaneLimits};
use towpath_sockets::Waker;
use towpath_sockets::page_cache::{Residency, probe, warm};

const LIMITS: LaneLimits = LaneLimits { name: "broker-read", threads_max: 1, hanging_max: 7, per_group_max: 8 };

/// Octets that are asked for at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Bodies that are on their way at a time. Each has a file open.
const READING_MAX: usize = 256;

/// What a client has asked the broker itself, to be answered with this body when it is in memory.
pub(super) struct Question {
    pub token: Token,
    pub body: Arc<SpooledBody>,
}

/// What is being read.
pub(super) struct Reading {
    lane: Lane,
    waker: Waker,
    under_way: usize,
    done: Sender<Question>,
    read: Receiver<Question>,
}

impl Reading {
    pub fn new(waker: Waker) -> Reading {
        let (done, read) = channel();
        Reading { lane: Lane::new(LIMITS), waker, under_way: 0, done, read }
    }

    /// Has a body read, unless too many are: then the question comes back. The hub is woken when [`Reading::next`] gives it.
    pub fn begin(&mut self, question: Question) -> Result<(), Question> {
        if self.under_way == READING_MAX {
            return Err(question);
        }
        self.under_way += 1;
        let mut answers = Answers { question: Some(question), done: self.done.clone(), waker: self.waker.clone() };
        // Without a thread the question is here again at once, and who answers it waits for the disk.
        let _ = self.lane.submit(0, 0, move || answers.read());
        Ok(())
    }

    /// A question whose body has been read, as far as it can be.
    pub fn next(&mut self) -> Option<Question> {
        let question = self.read.try_recv().ok()?;
        self.under_way -= 1;
        Some(question)
    }
}

/// Whether its octets are in memory.
pub(super) fn is_in_memory(body: &SpooledBody) -> bool {
    body.stays_in_memory() || probe(body, 0, body.length()) == Residency::Resident
}

/// Gives the question back, whatever happens.
struct Answers {
    question: Option<Question>,
    done: Sender<Question>,
    waker: Waker,
}

impl Answers {
    fn read(&mut self) {
        let Some(Question { body, .. }) = &self.question else { return };
        let length = body.length();
        // Where it can't be read, whoever needs the octets meets the same, and tells.
        let _ = (0..length)
            .step_by(PIECE_BYTES as usize)
            .try_for_each(|at| warm(&**body, at, PIECE_BYTES.min(length - at)));
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if let Some(question) = self.question.take() {
            let _ = self.done.send(question);
            self.waker.wake();
        }
    }
}
