//! What goes into and comes out of a session.

use crate::protocol::ErrorCode;
use crate::protocol::control::{Confirm, WirePath};
use crate::server::Failure;
use crate::server::jobs::Job;
use bytes::Bytes;

/// Frames before a message that are repeated before each reply to it.
pub(in crate::server) type Envelope = Vec<Bytes>;

/// A request of one session, never used again: what comes too late for a request that is over finds nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::server) struct Ticket(pub(in crate::server) u64);

/// The piece of a file that is loaded, and then sent, under this number. Never 0, never used again.
pub(in crate::server) type Slot = u64;

/// An action that the session wants done. `F` is an open file.
#[derive(Debug)]
pub(in crate::server) enum Action<F> {
    /// Start a job, and tell [`Session::finish`](super::Session::finish) its answer.
    Start(Ticket, Job<F>),
    /// Nothing of this request is wanted any more; take back its data that the socket hasn't begun to send, and tell
    /// [`Session::taken_back`](super::Session::taken_back) how many messages that were.
    Release { ticket: Ticket, take_back: bool },
    /// Log something for the operator.
    Log(LogEvent),
}

/// An event for the operator.
#[derive(Debug)]
pub(in crate::server) enum LogEvent {
    /// The client has files whole.
    Confirmed(Confirm),
    /// A file was declared void after some of it was sent.
    Void { path: WirePath, failure: Failure },
    /// Files of a fetch can't be had: how many at once, and the first one's failure.
    Refused { count: usize, path: WirePath, failure: Failure },
}

/// A message to the client.
#[derive(Debug)]
pub(in crate::server) struct Outgoing<F> {
    /// For data, the request by which it can be taken back.
    pub(in crate::server) ticket: Option<Ticket>,
    pub(in crate::server) parts: Vec<Part<F>>,
}

/// A frame of a message.
#[derive(Debug)]
pub(in crate::server) enum Part<F> {
    /// Bytes.
    Bytes(Bytes),
    /// A piece of a file. [`Session::sent`](super::Session::sent) wants to know when it has left.
    File { file: F, offset: u64, length: u64, slot: Slot, if_short: IfShort },
}

/// What to do if a file turns out to be shorter than the frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum IfShort {
    /// Fill up with zeros: it will be declared void.
    Pad,
    /// Close the connection: the dialect has no other way to say so.
    Close,
}

impl Failure {
    pub(in crate::server) fn new(code: ErrorCode, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}
