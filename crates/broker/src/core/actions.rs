//! Actions: what the driver has to do.
//!
//! The two actions of the hot path refer to a body by its slot instead of cloning it: the driver writes it to a peer's block from
//! there. A clone would cost more than the rest of the action, since it changes a reference count atomically, twice.

use super::requests::State;
use super::{Core, Peer};
use bytes::Bytes;
use std::sync::Arc;
use towpath_requests::body::Body;
use towpath_requests::numbered::{ClientId, Status, Token};

/// Frames in front of a stock client's request. They are returned with its reply.
pub type StockEnvelope = Option<Arc<[Bytes]>>;

/// A thing for the driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send WELCOME to a numbered client.
    Welcome {
        /// The connection.
        peer: Peer,
    },
    /// Send a numbered client an outcome, or a part of a reply.
    Reply {
        /// The connection.
        peer: Peer,
        /// The request's number.
        number: u64,
        /// Its status.
        status: Status,
        /// The index of a part; `None`: the outcome.
        part: Option<u32>,
        /// The reply or the reason.
        body: Body,
    },
    /// Acknowledge requests of a numbered client: they are on the disk.
    Accepted {
        /// The connection.
        peer: Peer,
        /// The first number.
        first: u64,
        /// The count of consecutive numbers.
        count: u32,
    },
    /// Refuse a numbered client's request.
    Refused {
        /// The connection.
        peer: Peer,
        /// The request's number.
        number: u64,
        /// Why.
        status: Status,
        /// When to try again, in milliseconds; 0: never.
        retry_ms: u32,
        /// Why, for people.
        reason: &'static str,
    },
    /// Send a reply to a stock client.
    StockReply {
        /// The connection.
        peer: Peer,
        /// The request's envelope.
        envelope: StockEnvelope,
        /// The service that the client asked for.
        service: Bytes,
        /// Its status.
        status: Status,
        /// Whether more parts follow.
        partial: bool,
        /// The reply or the reason.
        body: Body,
    },
    /// Send a request to a worker.
    Dispatch {
        /// The connection.
        peer: Peer,
        /// The token that the reply must have.
        token: Token,
        /// The attempt, from 1.
        attempt: u16,
        /// Milliseconds until it expires; 0: never.
        ttl_ms: u32,
        /// The request.
        body: Body,
    },
    /// Cancel a request at its worker: the reply isn't needed any more.
    CancelWork {
        /// The connection.
        peer: Peer,
        /// The token of the request.
        token: Token,
    },
    /// Answer a request for a built-in service, by [`Core::built_in_reply`].
    BuiltIn {
        /// The token for the answer.
        token: Token,
        /// The service: `mmi.*` or `titanic.*`.
        service: Bytes,
        /// The request.
        body: Body,
    },
    /// Send a stock worker a heartbeat.
    Heartbeat {
        /// The connection.
        peer: Peer,
    },
    /// Announce to a worker that the broker is stopping.
    Leave {
        /// The connection.
        peer: Peer,
    },
    /// Stop or resume reading from a stock client.
    Pause {
        /// The connection.
        peer: Peer,
        /// Whether to stop.
        paused: bool,
    },
    /// Log that a request was given up: its attempts are used up, each by a worker that went or asked for a retry.
    GaveUp {
        /// The client; `None`: a stock client.
        client: Option<ClientId>,
        /// Its number there.
        number: u64,
        /// Its service.
        service: Bytes,
        /// The number of attempts.
        attempts: u16,
        /// Why the last one failed.
        why: Bytes,
        /// The dead-letter queue that keeps it. `None`: it isn't journalled, or the queue is full.
        kept_for: Option<Bytes>,
    },
    /// Log that a worker's reply was discarded, because it didn't fit into the memory.
    ReplyLost {
        /// The client.
        client: Option<ClientId>,
        /// Its number there.
        number: u64,
        /// Its service.
        service: Bytes,
        /// Bytes of memory that the reply needed.
        bytes: usize,
    },
    /// End a client's connection when its output is sent: the broker is stopping. The core has already forgotten the connection.
    CloseAfterFlush {
        /// The connection.
        peer: Peer,
        /// Why, for people.
        reason: &'static str,
    },
    /// End a connection at once. The core has already forgotten it.
    Disconnect {
        /// The connection.
        peer: Peer,
        /// Why, for people.
        reason: &'static str,
    },
}

/// Reference to the body of a request or its outcome.
#[derive(Debug, Clone, Copy)]
pub struct BodyRef {
    slot: u32,
    generation: u32,
}

/// An [`Action`] as the driver takes it.
#[derive(Debug)]
pub enum QueuedAction {
    /// [`Action::Dispatch`] to a worker with credit, unless [`Core::body_for_worker`] returns `None`.
    Dispatch {
        /// The connection.
        peer: Peer,
        /// The token that the reply must have.
        token: Token,
        /// The attempt, from 1.
        attempt: u16,
        /// Milliseconds until it expires; 0: never.
        ttl_ms: u32,
        /// The request.
        body_ref: BodyRef,
    },
    /// [`Action::Reply`] with an outcome, unless [`Core::body_for_client`] returns `None`.
    Reply {
        /// The connection.
        peer: Peer,
        /// The request's number.
        number: u64,
        /// Its status.
        status: Status,
        /// The request.
        body_ref: BodyRef,
    },
    /// Any other action.
    Other(Action),
}

/// Actions that the driver hasn't taken yet, in order.
#[derive(Debug, Default)]
pub(super) struct ActionQueue(Vec<QueuedAction>);

impl ActionQueue {
    pub fn push(&mut self, action: Action) {
        self.0.push(QueuedAction::Other(action));
    }
}

impl Core {
    /// Takes the queued actions, in order, if `actions` is empty: the two vectors change places.
    #[inline]
    pub fn take_queued_actions(&mut self, actions: &mut Vec<QueuedAction>) {
        if actions.is_empty() {
            std::mem::swap(actions, &mut self.actions.0);
        }
    }

    /// Moves the queued actions to the end of `actions`, in order, with clones of their bodies.
    pub fn take_actions(&mut self, actions: &mut Vec<Action>) {
        let queued = std::mem::take(&mut self.actions.0);
        actions.extend(queued.into_iter().filter_map(|action| match action {
            QueuedAction::Dispatch { peer, token, attempt, ttl_ms, body_ref } => {
                let body = self.body_for_worker(body_ref, attempt)?.clone();
                Some(Action::Dispatch { peer, token, attempt, ttl_ms, body })
            }
            QueuedAction::Reply { peer, number, status, body_ref } => {
                let body = self.body_for_client(body_ref)?.clone();
                Some(Action::Reply { peer, number, status, part: None, body })
            }
            QueuedAction::Other(action) => Some(action),
        }));
    }

    /// The body of a dispatched request. `None`: it was taken from the worker since, whose cancellation is queued too.
    #[inline]
    pub fn body_for_worker(&self, body_ref: BodyRef, attempt: u16) -> Option<&Body> {
        let request = self.requests.find(body_ref.slot, body_ref.generation)?;
        (request.attempt == attempt && matches!(request.state, State::Held(..))).then_some(&request.body)
    }

    /// The body of an outcome. `None`: the client has confirmed it since.
    #[inline]
    pub fn body_for_client(&self, body_ref: BodyRef) -> Option<&Body> {
        let request = self.requests.find(body_ref.slot, body_ref.generation)?;
        (request.state == State::Settled).then_some(&request.body)
    }

    #[inline]
    pub(super) fn queue_dispatch(&mut self, peer: Peer, token: Token, slot: u32, attempt: u16, ttl_ms: u32) {
        let body_ref = self.body_ref(slot);
        self.actions.0.push(QueuedAction::Dispatch { peer, token, attempt, ttl_ms, body_ref });
    }

    #[inline]
    pub(super) fn queue_reply(&mut self, peer: Peer, slot: u32) {
        let body_ref = self.body_ref(slot);
        let request = self.requests.at(slot);
        let (number, status) = (request.number, request.status);
        self.actions.0.push(QueuedAction::Reply { peer, number, status, body_ref });
    }

    fn body_ref(&self, slot: u32) -> BodyRef {
        BodyRef { slot, generation: self.requests.at(slot).generation }
    }
}
