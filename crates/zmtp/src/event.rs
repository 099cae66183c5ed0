//! Events of a connection.

use crate::credentials::Credentials;
use crate::inbox::Frames;
use crate::metadata::Metadata;
use crate::socket_type::SocketType;
use bytes::Bytes;

/// A peer's properties, known when the handshake is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerProperties {
    /// Its socket type.
    pub socket_type: SocketType,
    /// Its routing id, often empty.
    pub routing_id: Bytes,
    /// The properties that it announced.
    pub metadata: Metadata,
    /// The ZMTP version that it announced.
    pub version: (u8, u8),
}

/// An event of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer's credentials, to be answered with [`crate::Connection::accept`] or [`crate::Connection::refuse`].
    Authenticate(Credentials),
    /// The handshake is over.
    Ready(Box<PeerProperties>),
    /// A whole message, or its rest behind a streamed body.
    Message {
        /// Its frames; if `continued`, those after the last streamed body.
        frames: Frames,
        /// Whether this is the rest of a message.
        continued: bool,
    },
    /// A streamed frame begins: one over `stream_over_bytes`.
    BodyStart {
        /// The whole frames before it in the message, since the last streamed body.
        head: Frames,
        /// Its bytes.
        length: u64,
        /// Whether more frames follow it.
        more: bool,
    },
    /// Bytes of a streamed frame.
    BodyData(Bytes),
    /// The end of a streamed frame.
    BodyEnd {
        /// Whether more frames of the message follow.
        more: bool,
    },
}
