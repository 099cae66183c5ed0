//! State of a client's connection to a broker.

use crate::connection::PeerProtocol;
use bytes::Bytes;
use std::time::Instant;
use towpath_requests::majordomo;
use towpath_requests::message::has_whole_body;
use towpath_requests::numbered::{CLIENT_HEADER, ToClient};
use towpath_sockets::PeerId;

/// State of the connection.
pub(super) enum Connection {
    /// No attempt before this time.
    Resting(Instant),
    Connecting,
    Ready(PeerId, PeerProtocol),
    /// Ready and gone within one turn; the reason follows.
    Gone(PeerId),
}

impl Connection {
    /// Whether the next frame is the whole body of a reply.
    pub fn has_whole_reply(&self, head: &[Bytes]) -> bool {
        match self {
            Connection::Ready(_, PeerProtocol::Numbered) => {
                has_whole_body(head, CLIENT_HEADER, |block| ToClient::announces_list(block))
            }
            Connection::Ready(_, PeerProtocol::Stock(_)) => head.len() == majordomo::Dialect::CLIENT_HEAD_FRAMES,
            Connection::Resting(_) | Connection::Connecting | Connection::Gone(_) => false,
        }
    }
}
