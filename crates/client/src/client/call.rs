//! Pending calls, and replies in parts.

use super::Client;
use super::SubmitError;
use super::session::Delivery;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// A worker's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Number of the request.
    pub number: u64,
    /// Body of the reply.
    pub body: Body,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request ended without a reply: at the worker, at the broker, or by this client's clock.
    #[error("{}", .status.describe(.reason))]
    Ended {
        /// Status of the outcome.
        status: Status,
        /// Reason for people.
        reason: String,
    },
    /// The request was never submitted.
    #[error(transparent)]
    NotMade(#[from] SubmitError),
}

impl CallError {
    fn ended(status: Status, body: &Body) -> CallError {
        let mut frames = body.frames().into_iter().flatten().map(String::from_utf8_lossy);
        let first = frames.next().unwrap_or_default();
        // A built-in service may say more behind a code.
        let is_code = first == status.0.to_string();
        let reason = frames.next().filter(|_| is_code).unwrap_or(first).into_owned();
        CallError::Ended { status, reason }
    }

    /// Status of the outcome, if the request was submitted.
    pub fn status(&self) -> Option<Status> {
        match self {
            CallError::Ended { status, .. } => Some(*status),
            CallError::NotMade(_) => None,
        }
    }
}

/// Slot of a call at its client until it is over.
struct Place {
    client: Client,
    number: u64,
    place: u32,
    over: bool,
}

impl Place {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Delivery> {
        let mut state = self.client.shared().lock();
        let Some(delivery) = state.inbox.take(self.place) else {
            state.inbox.wait(self.place, context.waker());
            return Poll::Pending;
        };
        if delivery.part.is_none() {
            self.over = true;
            state.inbox.remove_call(self.place);
        }
        if state.wants_resume() {
            self.client.shared().wake(state);
        }
        Poll::Ready(delivery)
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("number", &self.number).field("over", &self.over).finish_non_exhaustive()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.over {
            let mut state = self.client.shared().lock();
            state.cancel(self.number);
            state.inbox.remove_call(self.place);
            self.client.shared().wake(state);
        }
    }
}

/// A pending call: a future of its outcome. Dropping it cancels the request.
#[derive(Debug)]
pub struct Call(Place);

impl Call {
    pub(super) fn new(client: Client, number: u64, place: u32) -> Call {
        Call(Place { client, number, place, over: false })
    }
}

impl Future for Call {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|Delivery { number, status, body, .. }| {
            if status.is_ok() { Ok(Reply { number, body }) } else { Err(CallError::ended(status, &body)) }
        })
    }
}

/// An item of a reply in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamItem {
    /// A part. If the request is executed again, parts start over at 0 and earlier ones are void.
    Part {
        /// Part number, from 0.
        number: u32,
        /// Body of the part.
        body: Body,
    },
    /// The final part.
    Final(Reply),
}

/// A reply in parts. Dropping it cancels the request.
#[derive(Debug)]
pub struct Stream(Place);

impl Stream {
    pub(super) fn new(client: Client, number: u64, place: u32) -> Stream {
        Stream(Place { client, number, place, over: false })
    }

    /// Number of the request.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The next part, or the final one. `None` after that, or after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<StreamItem, CallError>> {
        if self.0.over {
            return None;
        }
        let Delivery { number, status, part, body, .. } = std::future::poll_fn(|context| self.0.poll(context)).await;
        Some(match part {
            Some(number) => Ok(StreamItem::Part { number, body }),
            None if status.is_ok() => Ok(StreamItem::Final(Reply { number, body })),
            None => Err(CallError::ended(status, &body)),
        })
    }
}
