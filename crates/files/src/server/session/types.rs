//! What goes into and comes out of a session.

use crate::digest::Digest;
use crate::protocol::ErrorCode;
use crate::protocol::control::{
    Confirm, FetchRequest, FileAnswer, FileMetadata, LeavesReply, LeavesRequest, ListRequest, WirePath,
};
use crate::server::Failure;
use crate::server::chunks::Layout;
use bytes::Bytes;
use std::sync::Arc;

/// Frames before a message that are repeated before each reply to it.
pub(in crate::server) type Envelope = Vec<Bytes>;

/// A request of one session, never used again: what comes too late for a request that is over finds nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::server) struct Ticket(pub(in crate::server) u64);

/// The piece of a file that is loaded, and then sent, under this number. Never 0, never used again.
pub(in crate::server) type Slot = u64;

/// What has to be done outside of the session. `F` is an open file.
#[derive(Debug)]
pub(in crate::server) enum Job<F> {
    /// Look at files of a fetch from this index on, as many as make a batch; read the small ones, leave as many of the others open.
    Prepare { ticket: Ticket, request: Arc<FetchRequest>, from: usize, open_max: usize },
    /// Find the digest of a file.
    Hash { ticket: Ticket, n: u32, file: F },
    /// Find out where a file has data and where holes, from an offset on.
    Look { ticket: Ticket, n: u32, file: F, from: u64 },
    /// Make a piece ready to be sent.
    Load { ticket: Ticket, slot: Slot, file: F, offset: u64, length: u64, how: LoadHow },
    /// Begin a listing and make its first page.
    List { ticket: Ticket, request: ListRequest },
    /// Make the next page.
    ListMore { ticket: Ticket },
    /// Find leaves.
    Leaves { ticket: Ticket, request: LeavesRequest },
    /// Open a file for the plain dialect; None is the only file that there is.
    Open { ticket: Ticket, path: Option<Bytes> },
    /// Nothing of this request is wanted any more; take back its data that the socket hasn't begun to send, and tell
    /// [`Session::taken_back`](super::Session::taken_back) how many messages that were.
    Release { ticket: Ticket, take_back: bool },
    /// Tell the operator.
    Tell(News),
}

/// What an operator wants to know.
#[derive(Debug)]
pub(in crate::server) enum News {
    /// The client has files whole.
    Confirmed(Confirm),
    /// What was sent of a file was declared void.
    Void { path: WirePath, failure: Failure },
    /// Files of a fetch can't be had: how many at once, and of one of them why.
    Refused { count: usize, path: WirePath, failure: Failure },
}

/// A file of a fetch, looked at.
#[derive(Debug)]
pub(in crate::server) enum Prepared<F> {
    /// The answer is all: it is the same, or an error.
    Answer(FileAnswer),
    /// A small file, read whole between two looks at its times.
    Small { metadata: FileMetadata, body: Bytes, packed: Option<Bytes> },
    /// One to be sent in pieces.
    Large { metadata: FileMetadata, file: F, layout: Layout, unless: Option<Digest> },
}

/// How a piece is made ready.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum LoadHow {
    /// Brought into memory as one piece, whatever version of the file it is now.
    AsItIs,
    /// Brought into memory, if the file still is the version that is being sent.
    Unchanged,
    /// That, and compressed.
    Compressed,
    /// As [`LoadHow::Unchanged`]: what is left of a piece of which only the beginning could be copied.
    Rest,
}

/// A piece, ready to be sent.
#[derive(Debug)]
pub(in crate::server) enum Loaded {
    /// From the file itself.
    InPlace,
    /// Compressed, smaller than it was.
    Packed(Bytes),
    /// From memory, as the file can't be left to the page cache: all of the piece or, where there is little memory and the piece
    /// isn't of the plain dialect, its beginning.
    Copied(Bytes),
}

/// A page of a listing: the JSON of the reply.
#[derive(Debug)]
pub(in crate::server) struct Page {
    pub(in crate::server) json: Bytes,
    pub(in crate::server) more: bool,
}

/// Leaves, and the frame that holds them.
#[derive(Debug)]
pub(in crate::server) struct LeavesAnswer {
    pub(in crate::server) reply: LeavesReply,
    pub(in crate::server) attachment: Bytes,
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
