//! Types that go into and come out of a session.

use crate::protocol::ErrorCode;
use crate::protocol::control::{Confirm, FetchesFor, Holder, HoldersRequest, WirePath};
use crate::server::Failure;
use crate::server::jobs::Job;
use crate::server::stats::RequestKind;
use bytes::Bytes;

/// Frames before a request, which are repeated before each reply to it.
pub(in crate::server) type Envelope = Vec<Bytes>;

/// Number of a request within its session. Never reused, so late answers to a request that is over are ignored.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::server) struct Ticket(pub(in crate::server) u64);

/// Number of a piece of a file that is loaded and sent. Never 0, never reused.
pub(in crate::server) type Slot = u64;

/// An action that the session wants done. `F` is an open file.
#[derive(Debug)]
pub(in crate::server) enum Action<F> {
    /// Start a job, and pass its answer to [`Session::finish`](super::Session::finish).
    Start(Ticket, Job<F>),
    /// Release all that the request holds. With `take_back`, also take its data back that the socket hasn't begun to send, and pass
    /// the number of messages to [`Session::taken_back`](super::Session::taken_back).
    Release { ticket: Ticket, take_back: bool },
    /// Log something for the operator.
    Log(LogEvent),
    /// Note what holders have.
    Have(Vec<Holder>),
    /// This connection fetches for a follower.
    FetchesFor(FetchesFor),
    /// Answer who has what, by [`Session::reply`](super::Session::reply).
    Holders(Envelope, HoldersRequest),
    /// Introduce this server, by [`Session::reply`](super::Session::reply).
    Hello(Envelope),
}

/// An event for the operator.
#[derive(Debug)]
pub(in crate::server) enum LogEvent {
    /// The client has received files completely.
    Confirmed(Confirm),
    /// A file was declared void after some of it was sent.
    Void { path: WirePath, failure: Failure },
    /// A request was refused, or some files of it: their number, and the first one's failure.
    Refused { what: RequestKind, count: usize, path: WirePath, failure: Failure },
    /// The client has pushed a file.
    Pushed,
    /// A request for files has ended. The first one's path, their number, and bytes of bodies that the socket was given.
    Ended { ticket: Ticket, path: WirePath, files: usize, bytes: u64, ending: Ending },
}

/// End of a request for files.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum Ending {
    /// All was sent that can be had.
    Done,
    /// By the client.
    Cancelled,
    /// With the connection.
    Lost,
}

/// A message to the client.
#[derive(Debug)]
pub(in crate::server) struct Outgoing<F> {
    /// Request of a data message, by which it can be taken back.
    pub(in crate::server) ticket: Option<Ticket>,
    pub(in crate::server) parts: Vec<Part<F>>,
}

impl<F> Outgoing<F> {
    /// Bytes of its frames.
    pub(in crate::server) fn bytes(&self) -> u64 {
        let of_part = |part: &Part<F>| match part {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::File { length, .. } => *length,
        };
        self.parts.iter().map(of_part).sum()
    }
}

/// A frame of a message.
#[derive(Debug)]
pub(in crate::server) enum Part<F> {
    /// Bytes.
    Bytes(Bytes),
    /// A piece of a file. [`Session::sent`](super::Session::sent) wants to know when it has left.
    File { file: F, offset: u64, length: u64, slot: Slot, if_short: IfShort },
}

/// Handling of a file that turns out to be shorter than its frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum IfShort {
    /// Pad with zeros; the file will be declared void.
    Pad,
    /// Close the connection, as the plain dialect has no other way.
    Close,
}

impl Failure {
    pub(in crate::server) fn new(code: ErrorCode, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}
