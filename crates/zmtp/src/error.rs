//! Why a connection ended.

use thiserror::Error;

/// Why a connection cannot go on. Every message names what was wrong and, where there is something to do, what.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
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
    /// A command that breaks the grammar.
    #[error("malformed {command} command: {why}")]
    MalformedCommand {
        /// Its name, or "unnamed".
        command: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another command than the handshake needs now.
    #[error("unexpected {found:?} in the handshake, where {wanted} was due")]
    UnexpectedInHandshake {
        /// What came, escaped and cut.
        found: String,
        /// What was due.
        wanted: &'static str,
    },
    /// A frame announces more than we take.
    #[error("a frame of {announced} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// The length on the wire.
        announced: u64,
        /// Our limit.
        limit: u64,
    },
    /// The frames of one message add up to more than we take.
    #[error("a message of over {limit} bytes; raise the limit, or send it in smaller ones")]
    MessageTooLarge {
        /// Our limit.
        limit: u64,
    },
    /// A message that never ends.
    #[error("a message of over {limit} frames")]
    TooManyFrames {
        /// Our limit.
        limit: usize,
    },
    /// A sealed frame that was changed, repeated or sealed with another key.
    #[error("a sealed frame cannot be opened: it was changed on its way, or sealed with another key")]
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
    /// We refused the peer's credentials, and told it.
    #[error("authentication refused with status {status}")]
    AuthenticationRefused {
        /// The status that went out, as ZAP (RFC 27) has them: 400.
        status: &'static str,
    },
    /// The handshake took too long, however busily bytes trickled in.
    #[error("the handshake did not finish in time")]
    HandshakeTimeout,
    /// Nothing was heard although we asked with PING.
    #[error("no answer to a PING in time")]
    HeartbeatTimeout,
    /// Nothing was heard for as long as the peer's own PING promised.
    #[error("nothing heard within the TTL of the peer's PING")]
    TtlExpired,
    /// A peer that reads as long as it lives took nothing of what waits for it, and said nothing.
    #[error("took nothing of what waits for it, and said nothing, for too long")]
    Stalled,
}

impl Error {
    /// Whether the two sides are set up so that they never agree, as far as can be told: trying again brings nothing.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Mechanism { .. } | Error::IncompatibleSockets { .. } | Error::OldVersion { .. } => true,
            // What ZAP (RFC 27) says of credentials that are wrong; 300 and 500 may pass.
            Error::RefusedByPeer { reason } => reason == "400",
            _ => false,
        }
    }

    /// Whether the peer broke the protocol, rather than being slow, absent or set up differently.
    pub fn is_peer_misbehaviour(&self) -> bool {
        matches!(
            self,
            Error::NotZmtp { .. }
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

/// Text from the wire made fit for a log line: escaped, and cut at 128 bytes.
pub(crate) fn printable(text: &[u8]) -> String {
    text.iter().take(128).flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect()
}
