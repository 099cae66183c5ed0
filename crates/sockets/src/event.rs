//! What a socket reports.

use crate::peer_id::PeerId;
use bytes::Bytes;
use towpath_zmtp::{Credentials, Frames};

/// No more peers are read in a poll once this many events wait for the application.
pub(crate) const EVENTS_MAX: usize = 16 * 1024;

/// An event of a [`crate::Hub`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer's handshake is over; messages may flow.
    Ready {
        /// Which peer.
        peer: PeerId,
    },
    /// A peer's credentials, to be answered with [`crate::Hub::authenticate`].
    Authenticate {
        /// The peer.
        peer: PeerId,
        /// Its credentials.
        credentials: Credentials,
    },
    /// A message.
    Message {
        /// From whom.
        peer: PeerId,
        /// Its frames; or, if `continued`, those after the last streamed body of a message.
        frames: Frames,
        /// Whether this is the rest of a message that had a streamed body.
        continued: bool,
    },
    /// A frame over `stream_over_bytes` begins.
    BodyStart {
        /// From whom.
        peer: PeerId,
        /// The whole frames before it in this message (since the last streamed body).
        head: Frames,
        /// Its bytes.
        length: u64,
        /// Whether more frames of the message will follow it.
        more: bool,
    },
    /// Bytes of it, at most [`towpath_buffers::buffer_bytes`]. Drop them when done: they hold a buffer of a bounded pool, and reading waits for one.
    BodyData {
        /// From whom.
        peer: PeerId,
        /// The bytes.
        data: Bytes,
    },
    /// The streamed frame is over.
    BodyEnd {
        /// From whom.
        peer: PeerId,
        /// Whether more frames of the message follow.
        more: bool,
    },
    /// The peer's queue has room again, after it was full.
    Writable {
        /// Which peer.
        peer: PeerId,
    },
    /// A [`crate::FileRange`] with a tag has left for the kernel.
    FileSent {
        /// To whom.
        peer: PeerId,
        /// The range's tag.
        tag: u64,
        /// Whether the file had all that was promised; otherwise the frame ended in zeros.
        whole: bool,
    },
    /// A peer that isn't read from ([`crate::Hub::pause_reading`], [`crate::Hub::set_large_messages`]) has closed its side, or the connection has failed. What came
    /// before its end is still there to be read, and [`Event::Gone`] follows it; who doesn't want that any more calls
    /// [`crate::Hub::disconnect`]. Nothing that is sent will be read: ZMTP peers don't close one direction alone. An end behind
    /// more bytes than the kernel has room for doesn't come here; something that is sent, such as a PING, finds out then.
    HungUp {
        /// Which peer.
        peer: PeerId,
    },
    /// A peer that had been [`Event::Ready`] is gone.
    Gone {
        /// Which peer.
        peer: PeerId,
        /// Why, for people.
        reason: String,
    },
    /// A connection ended before it was ready.
    Failed {
        /// The peer's address, or the endpoint that this side connects to.
        address: String,
        /// Why, for people: at each address, if the endpoint's name has several.
        reason: String,
        /// Whether this side was connecting (it goes on trying, with backoff, unless it was to connect
        /// once).
        connecting: bool,
        /// Whether the two sides are set up so that they never agree, as with a wrong password.
        refused: bool,
    },
}

impl Event {
    /// The sender, if this event brings a part of a message.
    pub fn message_peer(&self) -> Option<PeerId> {
        match self {
            Event::Message { peer, .. }
            | Event::BodyStart { peer, .. }
            | Event::BodyData { peer, .. }
            | Event::BodyEnd { peer, .. } => Some(*peer),
            _ => None,
        }
    }
}
