//! Events of a hub.

use crate::peer_id::PeerId;
use bytes::Bytes;
use towpath_zmtp::{Credentials, Frames, Refusal};

/// No more peers are read in a poll once this many events wait for the application.
pub(crate) const EVENTS_MAX: usize = 16 * 1024;

/// An event of a [`crate::Hub`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer's handshake is over; messages may be sent.
    Ready {
        /// The peer.
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
        /// The sender.
        peer: PeerId,
        /// Its frames; or, if `continued`, those after the last streamed body of a message.
        frames: Frames,
        /// Whether this is the rest of a message that had a streamed body.
        continued: bool,
    },
    /// A streamed frame begins: one over `stream_over_bytes`.
    BodyStart {
        /// The sender.
        peer: PeerId,
        /// The whole frames before it in this message, since the last streamed body.
        head: Frames,
        /// Bytes of its body.
        length: u64,
        /// Whether more frames of the message will follow it.
        more: bool,
    },
    /// Bytes of a streamed frame, at most [`towpath_buffers::buffer_bytes`]. Drop them when done: they hold a buffer of a bounded pool, and reading waits for one.
    BodyData {
        /// The sender.
        peer: PeerId,
        /// The bytes.
        data: Bytes,
    },
    /// The end of a streamed frame.
    BodyEnd {
        /// The sender.
        peer: PeerId,
        /// Whether more frames of the message follow.
        more: bool,
    },
    /// The peer's send queue takes messages again, after it was full.
    Writable {
        /// The peer.
        peer: PeerId,
    },
    /// A [`crate::FileRange`] with a tag has left for the kernel.
    FileSent {
        /// The receiver.
        peer: PeerId,
        /// The range's tag.
        tag: u64,
        /// Whether the file had all the bytes promised; otherwise the frame ended in zeros.
        whole: bool,
    },
    /// A peer that isn't read ([`crate::Hub::pause_reading`], [`crate::Hub::set_large_messages`]) has closed its side, or its connection has
    /// failed. What came before can still be read, and [`Event::Gone`] follows it; [`crate::Hub::disconnect`] drops it. Nothing sent will be
    /// read: few peers close one direction alone. An end behind more bytes than the kernel holds isn't noticed here, but by
    /// sending something, such as a PING.
    HungUp {
        /// The peer.
        peer: PeerId,
    },
    /// The peer has closed its side, and everything before that has been delivered; it may still read
    /// ([`crate::HubOptions::keep_half_closed`]). The connection lasts until [`crate::Hub::end_half_closed`], or until it fails: soon, if the peer
    /// has closed both sides.
    HalfClosed {
        /// The peer.
        peer: PeerId,
    },
    /// A peer that had been [`Event::Ready`] is gone.
    Gone {
        /// The peer.
        peer: PeerId,
        /// The reason, for people.
        reason: String,
    },
    /// A connection ended before it was ready.
    Failed {
        /// The peer's address, or the endpoint that this side connects to.
        address: String,
        /// The reason, for people: at each address, if the endpoint's name has several.
        reason: String,
        /// Whether this side was connecting. It retries with backoff, unless it was to connect once.
        connecting: bool,
        /// The point on which the two sides will never agree, such as a password. Then the next attempt is a minute later.
        refused: Option<Refusal>,
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
