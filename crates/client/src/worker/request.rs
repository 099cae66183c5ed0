//! A request in the hands of a worker.

use super::connection::BrokerConnection;
use super::session::Arrival;
use crate::connection::driver::Shared;
use crate::connection::encoder::{self, UnsendableBody};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_requests::body::Body;
use towpath_requests::numbered::{RequestId, Status, Token};

/// Reason of a request that was dropped without a reply.
const DROPPED: &str = "the worker dropped the request without a reply";

/// Reason of a request whose reply can't be sent.
pub(super) fn unfit(why: UnsendableBody) -> Body {
    let why = format!("the worker's reply: {why}");
    tracing::error!(why, "a reply can't be sent");
    Body::from(why)
}

/// Whether a request is still wanted.
#[derive(Debug, Default)]
pub(super) struct Cancellation {
    cancelled: AtomicBool,
    notify: Notify,
}

impl Cancellation {
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub async fn cancelled(&self) {
        loop {
            let notified = self.notify.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

/// The reply isn't wanted any more: the request was cancelled, has expired, or has its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply isn't wanted any more")]
pub struct NotWanted;

/// The end of a request without a reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The request fails, for this reason.
    #[error("{0}")]
    Failed(String),
    /// The request can't be done now, for this reason. The broker dispatches it again after a while, as often as it has attempts. At a stock
    /// broker it fails.
    #[error("not now: {0}")]
    TryLater(String),
    /// This worker can't begin it, for this reason, through no fault of the request: the broker gives it to another worker, which costs no
    /// attempt, and lets this one rest, longer each time. At a stock broker it fails.
    #[error("given back: {0}")]
    GiveBack(String),
}

/// Obligation to reply. Dropped without a reply, it fails the request.
pub(super) struct Answer {
    link: Arc<Shared<BrokerConnection>>,
    token: Token,
    cancellation: Arc<Cancellation>,
    next_part: u32,
    pending: bool,
}

impl Answer {
    fn give(&mut self, status: Status, part: Option<u32>, body: &Body) -> Result<(), NotWanted> {
        let mut state = self.link.lock();
        self.pending = part.is_some();
        let wanted = state.reply(self.token, status, part, body);
        self.link.wake(state);
        if wanted { Ok(()) } else { Err(NotWanted) }
    }

    fn give_back(&mut self, reason: &str) -> Result<(), NotWanted> {
        let mut state = self.link.lock();
        self.pending = false;
        let wanted = state.give_back(self.token, reason);
        self.link.wake(state);
        if wanted { Ok(()) } else { Err(NotWanted) }
    }

    pub fn end(mut self, outcome: Result<Body, WorkError>) -> Result<(), NotWanted> {
        match outcome {
            Ok(body) => match encoder::check(&body) {
                Ok(()) => self.give(Status::OK, None, &body),
                Err(why) => self.give(Status::FAILED, None, &unfit(why)),
            },
            Err(WorkError::Failed(reason)) => self.give(Status::FAILED, None, &Body::from(reason)),
            Err(WorkError::TryLater(reason)) => self.give(Status::UNAVAILABLE, None, &Body::from(reason)),
            Err(WorkError::GiveBack(reason)) => self.give_back(&reason),
        }
    }

    pub fn cancellation(&self) -> &Arc<Cancellation> {
        &self.cancellation
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.pending {
            let _ = self.give(Status::FAILED, None, &Body::from(DROPPED));
        }
    }
}

/// A request to work on. Dropped without a reply, it fails.
pub struct Request {
    body: Body,
    attempt: u16,
    id: Option<RequestId>,
    expires: Option<Instant>,
    answer: Answer,
}

impl Request {
    pub(super) fn new(
        link: Arc<Shared<BrokerConnection>>,
        arrival: Arrival,
        cancellation: Arc<Cancellation>,
    ) -> Request {
        let Arrival { token, attempt, id, ttl_ms, body } = arrival;
        let expires = (ttl_ms > 0).then(|| Instant::now() + Duration::from_millis(u64::from(ttl_ms)));
        Request {
            body,
            attempt,
            id,
            expires,
            answer: Answer { link, token, cancellation, next_part: 0, pending: true },
        }
    }

    /// Body of the request.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Attempt, from 1. Over 1, an earlier worker may have died over it or executed it.
    pub fn attempt(&self) -> u16 {
        self.attempt
    }

    /// Id of the request, the same for all its attempts. `None` at a stock broker.
    pub fn id(&self) -> Option<RequestId> {
        self.id
    }

    /// Deadline. `None`: no limit.
    pub fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// Whether the reply isn't wanted any more.
    pub fn is_cancelled(&self) -> bool {
        self.answer.cancellation.is_cancelled()
    }

    /// Waits until the reply isn't wanted any more.
    pub async fn cancelled(&self) {
        self.answer.cancellation.cancelled().await;
    }

    /// Sends a part of the reply; a final one must follow. Waits while too many bytes are queued for the connection.
    /// MDP/0.1 has no parts: they become frames of the reply. A part that can't be sent fails the request.
    pub async fn part(&mut self, body: impl Into<Body>) -> Result<(), NotWanted> {
        let body = body.into();
        if let Err(why) = encoder::check(&body) {
            self.answer.give(Status::FAILED, None, &unfit(why))?;
            return Err(NotWanted);
        }
        loop {
            let space = {
                let state = self.answer.link.lock();
                if !state.is_full() {
                    break;
                }
                Arc::clone(&state.space)
            };
            let notified = space.notified();
            if self.answer.link.lock().is_full() {
                notified.await;
            }
        }
        let part = self.answer.next_part;
        self.answer.next_part += 1;
        let pending = self.answer.pending;
        let outcome = self.answer.give(Status::OK, Some(part), &body);
        self.answer.pending = pending;
        outcome
    }

    /// Sends the reply, or its final part. One that can't be sent, such as several frames of over
    /// [`BODY_BYTES_MAX`](towpath_requests::limits::BODY_BYTES_MAX), fails the request.
    pub fn reply(self, body: impl Into<Body>) -> Result<(), NotWanted> {
        self.answer.end(Ok(body.into()))
    }

    /// Fails the request. A stock broker has no failures: the reason is the reply.
    pub fn fail(self, reason: impl Into<String>) -> Result<(), NotWanted> {
        self.answer.end(Err(WorkError::Failed(reason.into())))
    }

    /// Asks for another attempt later ([`WorkError::TryLater`]).
    pub fn try_later(self, reason: impl Into<String>) -> Result<(), NotWanted> {
        self.answer.end(Err(WorkError::TryLater(reason.into())))
    }

    /// Gives the request back ([`WorkError::GiveBack`]). One that has been sent parts of its reply fails.
    pub fn give_back(self, reason: impl Into<String>) -> Result<(), NotWanted> {
        self.answer.end(Err(WorkError::GiveBack(reason.into())))
    }

    /// Whether the broker takes the request back: a stock one doesn't.
    pub fn may_be_given_back(&self) -> bool {
        self.id.is_some()
    }

    /// Drops the request silently, since the connection closes.
    pub(super) fn abandon(mut self) {
        self.answer.pending = false;
    }

    /// Separates the obligation to reply from the request, which can still send parts.
    pub(super) fn split(self) -> (Request, Answer) {
        let mut request = self;
        let answer = Answer {
            link: Arc::clone(&request.answer.link),
            token: request.answer.token,
            cancellation: Arc::clone(&request.answer.cancellation),
            next_part: 0,
            pending: true,
        };
        request.answer.pending = false;
        (request, answer)
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("attempt", &self.attempt).field("body", &self.body).finish()
    }
}
