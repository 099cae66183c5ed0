//! Reasons for the end of a connection.

use crate::keys::PublicKey;
use thiserror::Error;

/// Begins the reason in an ERROR for a peer that an operator has blocked. It is final, as 400 is for a wrong login.
pub const BLOCKED: &str = "blocked by the operator";

/// The reason why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The first bytes are those of another protocol.
    #[error("{what} answers there, not a ZeroMQ socket")]
    OtherProtocol {
        /// Name of the offending thing, with an article.
        what: &'static str,
    },
    /// The first bytes are not a ZMTP greeting.
    #[error("not a ZMTP 3 greeting: byte {at} is {found:#04x}; the peer speaks ZMTP 1.0 or another protocol")]
    NotZmtp {
        /// Which byte of the greeting.
        at: usize,
        /// Its value.
        found: u8,
    },
    /// A ZMTP 1 or 2 peer.
    #[error("the peer speaks ZMTP {major}.x; this side needs 3.0 or later (libzmq 4.0 or later)")]
    OldVersion {
        /// Its major version, 1 or 2.
        major: u8,
    },
    /// The two sides are set up for different security mechanisms.
    #[error("the peer wants mechanism {theirs:?}, this side is set up for {ours}")]
    Mechanism {
        /// This side's.
        ours: &'static str,
        /// The peer's, escaped.
        theirs: String,
    },
    /// The peer closed the connection in the middle of its greeting, as libzmq does when it is set up for another mechanism.
    #[error("the peer closed the connection at our greeting: most likely it isn't set up for {ours}")]
    ClosedAtGreeting {
        /// This side's mechanism.
        ours: &'static str,
    },
    /// The peer closed the connection without a byte of its greeting: a check of the port, or libzmq, if it read the other greeting first.
    #[error("the peer closed the connection without a greeting: a check of the port, or it isn't set up for {ours}")]
    ClosedWithoutGreeting {
        /// This side's mechanism.
        ours: &'static str,
    },
    /// The peer saw another version in this side's greeting than was sent.
    #[error("the greeting was changed on its way: the peer saw another version of ZMTP in it than we sent")]
    GreetingChanged,
    /// A command that breaks the grammar.
    #[error("malformed {command} command: {why}")]
    MalformedCommand {
        /// Its name, or "unnamed".
        command: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// A command that the handshake doesn't allow now.
    #[error("unexpected {found:?} in the handshake: {wanted} was expected")]
    UnexpectedInHandshake {
        /// The name of what came, escaped and cut.
        found: String,
        /// The command that was expected.
        wanted: &'static str,
    },
    /// A frame that announces more bytes than the limit.
    #[error("a frame of {announced} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// The length on the wire.
        announced: u64,
        /// Our limit.
        limit: u64,
    },
    /// A message whose frames exceed the limit together.
    #[error("a message of over {limit} bytes; raise the limit, or send smaller messages")]
    MessageTooLarge {
        /// Our limit.
        limit: u64,
    },
    /// A message of more frames than the limit.
    #[error("a message of over {limit} frames")]
    TooManyFrames {
        /// Our limit.
        limit: usize,
    },
    /// A sealed frame that isn't the next one of the peer's: it was changed, another one is missing, or it has another key.
    #[error(
        "what came is not the next frame that the peer sealed: one was changed, left out, repeated or delayed on the way, or has another key"
    )]
    SealBroken,
    /// A frame with flags outside of its seal.
    #[error("a frame is not sealed, though the mechanism seals all of them")]
    NotSealed,
    /// Socket types that do not go together (RFC 23).
    #[error("a {theirs} socket cannot talk to this {ours} socket")]
    IncompatibleSockets {
        /// This side's type.
        ours: &'static str,
        /// The peer's, escaped.
        theirs: String,
    },
    /// The peer ended the connection with an ERROR command.
    #[error("the peer refused: {reason}")]
    RefusedByPeer {
        /// Its reason, escaped.
        reason: String,
    },
    /// This side refused the peer's credentials, and sent it an ERROR.
    #[error("authentication refused with status {status}")]
    AuthenticationRefused {
        /// The status sent, as in ZAP (RFC 27): 400.
        status: &'static str,
    },
    /// CURVE: a HELLO that none of this side's keys opens.
    #[error("its HELLO is for a server with another key; this one's is shown by `tow key show FILE`")]
    HelloForAnotherKey,
    /// CURVE: the peer closed the connection in answer to HELLO, as libzmq's servers do that have another key.
    #[error("the peer closed the connection after our HELLO: most likely it doesn't have the key {server}")]
    ClosedAfterHello {
        /// The key that the server should have.
        server: PublicKey,
    },
    /// CURVE: the peer answered HELLO with an ERROR. Anyone on the path can do that.
    #[error("the peer refused our HELLO (unverified): most likely it doesn't have the key {server}")]
    HelloRefused {
        /// The key that the server should have.
        server: PublicKey,
    },
    /// CURVE: WELCOME can't be opened.
    #[error("what answers there doesn't have the key {server}")]
    ServerKeyNotProven {
        /// The key that the server should have.
        server: PublicKey,
    },
    /// CURVE: the peer answered INITIATE with a status. Anyone on the path can do that.
    #[error("the peer says {reason:?} (unverified): most likely it doesn't know our key {client}")]
    ClientKeyRefused {
        /// This side's public key.
        client: PublicKey,
        /// The status, or nothing.
        reason: String,
    },
    /// CURVE: a server's key with which secrets would be no secrets.
    #[error("the server's key {key} is unfit: it is a point of low order")]
    UnfitKey {
        /// The key.
        key: PublicKey,
    },
    /// The source of randomness failed.
    #[error("no random bytes from the system")]
    NoRandomness,
    /// The handshake took too long.
    #[error("the handshake did not finish in time: a peer that says nothing is busy, or no ZeroMQ program")]
    HandshakeTimeout,
    /// Nothing was received after a PING.
    #[error("no answer to a PING within the heartbeat timeout")]
    HeartbeatTimeout,
    /// Nothing was received within the TTL of the peer's own PING.
    #[error("nothing received within the TTL of the peer's PING")]
    TtlExpired,
    /// A peer that is known to read took nothing of its backlog, and sent nothing.
    #[error("the peer took nothing of its backlog and sent nothing for too long")]
    Stalled,
}

/// A disagreement that lasts, as far as can be known: a retry is useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The credentials, or the mechanism that carries them.
    Login,
    /// The peer speaks another protocol or version, or is another kind of socket.
    Peer,
}

impl Error {
    /// The point on which the two sides will never agree; `None` if a retry may help.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Error::Mechanism { .. } => Some(Refusal::Login),
            // ZAP's status (RFC 27) for wrong credentials; 300 and 500 may be temporary.
            Error::RefusedByPeer { reason } if reason == "400" || reason.starts_with(BLOCKED) => Some(Refusal::Login),
            Error::HelloRefused { .. }
            | Error::ClientKeyRefused { .. }
            | Error::ServerKeyNotProven { .. }
            | Error::UnfitKey { .. } => Some(Refusal::Login),
            Error::IncompatibleSockets { .. }
            | Error::OldVersion { .. }
            | Error::NotZmtp { .. }
            | Error::OtherProtocol { .. } => Some(Refusal::Peer),
            _ => None,
        }
    }

    /// Whether the two sides probably never agree: certain enough when it happens several times.
    pub fn is_suspected_refusal(&self) -> bool {
        matches!(self, Error::ClosedAfterHello { .. } | Error::ClosedAtGreeting { .. })
    }

    /// Whether somebody on the path may have changed what the peer sent.
    pub fn is_tampering(&self) -> bool {
        matches!(self, Error::SealBroken | Error::NotSealed | Error::GreetingChanged)
    }

    /// Whether the peer broke the protocol, rather than being slow, absent or set up differently.
    pub fn is_peer_misbehaviour(&self) -> bool {
        matches!(
            self,
            Error::NotZmtp { .. }
                | Error::OtherProtocol { .. }
                | Error::MalformedCommand { .. }
                | Error::UnexpectedInHandshake { .. }
                | Error::FrameTooLarge { .. }
                | Error::MessageTooLarge { .. }
                | Error::TooManyFrames { .. }
                | Error::SealBroken
                | Error::NotSealed
        )
    }
}

/// Text from the wire, escaped for a log line and cut at 128 bytes.
pub(crate) fn printable(text: &[u8]) -> String {
    text.iter().take(128).flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect()
}
