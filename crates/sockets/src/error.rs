//! What can go wrong on this side. A connection's own end is told by [`crate::Event::Gone`] and [`crate::Event::Failed`].

use crate::message::Message;
use crate::peer_id::PeerId;
use std::io;
use thiserror::Error;

/// An error of the socket as a whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// An endpoint that can't be read.
    #[error("endpoint {endpoint:?}: {why}")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// An empty list of endpoints: there is nothing to connect to, or to listen on.
    #[error("no endpoint is given")]
    NoEndpoint,
    /// Listening failed.
    #[error("cannot listen on {endpoint}: {source}")]
    Bind {
        /// Where.
        endpoint: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The system doesn't give what a socket needs, or takes it back: an event queue, random numbers for a name.
    #[error("the system doesn't give what a socket needs: {0}")]
    System(#[from] io::Error),
    /// An option whose value can't work, or which would do something else than it says.
    #[error("option {option}: {why}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Which values it may have.
        why: String,
    },
    /// A message of no frames: ZMTP has none, so that nothing would leave.
    #[error("a message has at least one frame")]
    NoFrames,
    /// Only a tokio runtime can drive this, and there is none here.
    #[error("outside of a tokio runtime")]
    NoRuntime,
    /// The peer that a message was for is gone.
    #[error("peer {0} is gone")]
    PeerGone(PeerId),
    /// The socket's driver has ended.
    #[error("the socket is closed")]
    Closed,
    /// A REQ or REP socket was used out of turn.
    #[error("out of turn: {0}")]
    OutOfTurn(&'static str),
}

impl From<rustix::io::Errno> for SocketError {
    fn from(errno: rustix::io::Errno) -> Self {
        SocketError::System(errno.into())
    }
}

/// Why a message was not taken. It comes back, nothing is dropped.
#[derive(Debug, Error)]
pub enum SendError {
    /// The peer's queue is at its bound in bytes; [`crate::Event::Writable`] tells when there is room again.
    #[error("the peer's queue is full")]
    Full(Message),
    /// There is no such peer (any more).
    #[error("the peer is gone")]
    Gone(Message),
}
