//! Errors of a socket. The end of a connection is reported by [`crate::Event::Gone`] and [`crate::Event::Failed`].

use crate::message::Message;
use crate::peer_id::PeerId;
use std::io;
use thiserror::Error;

/// An error of the socket as a whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A malformed endpoint.
    #[error("endpoint {endpoint:?}: {why}")]
    Endpoint {
        /// The endpoint as given.
        endpoint: String,
        /// The reason.
        why: String,
    },
    /// An empty list of endpoints.
    #[error("no endpoint is given")]
    NoEndpoint,
    /// A server would listen for other machines without knowing who connects ([`crate::check_openness`]).
    #[error(
        "{endpoint} is for other machines too, and nothing says who may connect: set a mechanism, or that it is open to all"
    )]
    Open {
        /// The endpoint.
        endpoint: String,
    },
    /// Listening failed.
    #[error("cannot listen on {endpoint}: {source}{}", who_has(endpoint, source))]
    Bind {
        /// The endpoint.
        endpoint: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A resource of the system isn't available: epoll, random numbers.
    #[error("cannot create socket: {0}")]
    System(#[from] io::Error),
    /// An option with a value that can't work.
    #[error("option {option}: {why}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The values that it may have.
        why: String,
    },
    /// A message without frames, which ZMTP doesn't have.
    #[error("a message has at least one frame")]
    NoFrames,
    /// A socket was made outside of a tokio runtime.
    #[error("there is no tokio runtime here to drive the socket")]
    NoRuntime,
    /// The peer of a message is gone.
    #[error("peer {0} is gone")]
    PeerGone(PeerId),
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
    /// A REQ or REP socket was used in the wrong order.
    #[error("out of turn: {0}")]
    OutOfTurn(&'static str),
}

/// A command that shows which process listens at an address.
fn who_has(endpoint: &str, source: &io::Error) -> &'static str {
    match endpoint.split_once("://") {
        Some(("tcp", _)) if source.kind() == io::ErrorKind::AddrInUse => "; ss -ltnp shows which process listens there",
        Some(("ipc", _)) if source.kind() == io::ErrorKind::AddrInUse => "; ss -lxp shows which process listens there",
        _ => "",
    }
}

impl From<rustix::io::Errno> for SocketError {
    fn from(errno: rustix::io::Errno) -> Self {
        SocketError::System(errno.into())
    }
}

/// The reason why a message was not taken. The message is returned.
#[derive(Debug, Error)]
pub enum SendError {
    /// The peer's send queue is full; [`crate::Event::Writable`] reports when it isn't any more.
    #[error("the peer's queue is full")]
    Full(Message),
    /// The peer is gone.
    #[error("the peer is gone")]
    Gone(Message),
}
