//! What the driver is to do, before it is done: the two things of which there are millions are without their bodies.
//!
//! A body that is kept here is written to a peer's block from here. To clone it for the way would cost more than that: each clone
//! waits until the processor has written what it was about to, and so does the end of each.

use super::requests::State;
use super::{Action, Core, Peer};
use towpath_requests::body::Body;
use towpath_requests::numbered::{Status, Token};

/// Reference to the body of a request or its outcome.
#[derive(Debug, Clone, Copy)]
pub struct BodyRef {
    slot: u32,
    generation: u32,
}

/// An [`Action`], or what will be one.
#[derive(Debug)]
pub enum QueuedAction {
    /// Give a request to a worker of numbered requests, if [`Core::body_for_worker`] still has it.
    Dispatch {
        /// Which connection.
        peer: Peer,
        /// What its reply must bring back.
        token: Token,
        /// From 1.
        attempt: u16,
        /// What is left of its time; 0: there is no limit.
        ttl_ms: u32,
        /// The request.
        body_ref: BodyRef,
    },
    /// Tell a numbered client an outcome, if [`Core::body_for_client`] still has it.
    Reply {
        /// Which connection.
        peer: Peer,
        /// The request's number.
        number: u64,
        /// How it ended.
        status: Status,
        /// The request.
        body_ref: BodyRef,
    },
    /// Anything else.
    Other(Action),
}

/// What is to be done, in its order.
#[derive(Debug, Default)]
pub(super) struct ActionQueue(Vec<QueuedAction>);

impl ActionQueue {
    pub fn push(&mut self, action: Action) {
        self.0.push(QueuedAction::Other(action));
    }
}

impl Core {
    /// Takes what is to be done, in order, if `tasks` is empty: the two change places.
    #[inline]
    pub fn take_queued_actions(&mut self, tasks: &mut Vec<QueuedAction>) {
        if tasks.is_empty() {
            std::mem::swap(tasks, &mut self.actions.0);
        }
    }

    /// Moves what is to be done to the end of `actions`, in order, with all bodies.
    pub fn take_actions(&mut self, actions: &mut Vec<Action>) {
        let tasks = std::mem::take(&mut self.actions.0);
        actions.extend(tasks.into_iter().filter_map(|task| match task {
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

    /// The request, unless it has been taken from the worker since: the worker is told so too, and needn't ever have it.
    #[inline]
    pub fn body_for_worker(&self, body_ref: BodyRef, attempt: u16) -> Option<&Body> {
        let request = self.requests.find(body_ref.slot, body_ref.generation)?;
        (request.attempt == attempt && matches!(request.state, State::Held(..))).then_some(&request.body)
    }

    /// The outcome, unless the client has said since that it doesn't want it.
    #[inline]
    pub fn body_for_client(&self, body_ref: BodyRef) -> Option<&Body> {
        let request = self.requests.find(body_ref.slot, body_ref.generation)?;
        (request.state == State::Settled).then_some(&request.body)
    }

    /// Has a request given to a worker of numbered requests.
    #[inline]
    pub(super) fn queue_dispatch(&mut self, peer: Peer, token: Token, slot: u32, attempt: u16, ttl_ms: u32) {
        let body_ref = self.body_ref(slot);
        self.actions.0.push(QueuedAction::Dispatch { peer, token, attempt, ttl_ms, body_ref });
    }

    /// Has a numbered client told an outcome.
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
