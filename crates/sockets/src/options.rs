//! Options of a socket.

use bytes::Bytes;
use std::time::Duration;
use towpath_zmtp::{Config, Heartbeat, InboxLimits, MechanismConfig, Metadata, SocketType};

/// A connection that lasts this long after its handshake is stable.
pub const STABLE_AFTER: Duration = Duration::from_millis(100);

/// Maximum bytes read ahead from a peer, and the size of the hub's scratch buffer.
pub(crate) const READ_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// TCP congestion control of sending sockets.
///
/// On loopback, sendfile under the widespread default `bbr` costs about four times the CPU of `cubic`. Over real distances the system's default
/// may well be right, so [`Congestion::Auto`] changes local connections only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Congestion {
    /// `cubic` (or else `reno`) for peers on this machine, the system's default for all others.
    #[default]
    Auto,
    /// The system's default for all.
    System,
    /// This one for all, such as `cubic`. A name that the kernel doesn't know is logged once and ignored.
    Named(String),
}

impl std::str::FromStr for Congestion {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Congestion, Self::Err> {
        Ok(match text {
            "auto" => Congestion::Auto,
            "system" => Congestion::System,
            name => Congestion::Named(name.to_owned()),
        })
    }
}

/// Pause between attempts to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second attempt. Not zero, which would retry without end where nobody listens.
    pub first: Duration,
    /// Maximum, up to which it doubles, with jitter so that many clients don't come back in step. Not zero.
    pub most: Duration,
}

/// All options of a socket. A value that can't work is refused with [`crate::SocketError::Option`] when the socket is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HubOptions {
    /// The socket type.
    pub socket_type: SocketType,
    /// This side's routing id: up to 255 bytes that don't begin with 0. Empty: the peer generates one.
    pub routing_id: Bytes,
    /// Whether a ROUTER disconnects the older of two peers with the same routing id. Otherwise both stay, and the newer one gets a generated
    /// routing id: for applications that don't address peers by it.
    pub routing_ids_are_unique: bool,
    /// Properties for READY, names beginning with `X-`.
    pub metadata: Metadata,
    /// Security mechanism and role. PLAIN's user and password have up to 255 bytes each.
    pub mechanism: MechanismConfig,
    /// PINGs to peers that announce ZMTP 3.1. The timeout isn't zero.
    pub heartbeat: Option<Heartbeat>,
    /// Whether a peer that has closed its side alone is sent what it still waits for ([`crate::Event::HalfClosed`]).
    pub keep_half_closed: bool,
    /// Timeout from connecting to READY. An address that doesn't answer gets its share of it, if the name has others. Not zero.
    pub handshake_timeout: Duration,
    /// Maximum bytes of memory in each peer's send queue (file ranges count 64 each). At least 1: one message at a time.
    pub send_queue_bytes: usize,
    /// Budget for all send queues together, in the same bytes. Each queue's limit is at most an eighth of what is left, so that many peers
    /// that don't read leave something for one that does, but at least 16 KiB. A queue below its limit takes one more message of any size.
    pub queued_bytes_max: usize,
    /// Time to poll again before sleeping, while recent waits were as short. Saves the time to wake up in each round trip, and costs
    /// processor time. Zero: never.
    pub busy_poll: Duration,
    /// Maximum bytes read from a peer in one poll. The application can react to a peer's messages, for example with
    /// [`crate::Hub::pause_reading`], after at most this many bytes. At least 1.
    pub read_budget_bytes: usize,
    /// Maximum bytes of a message that is delivered whole.
    pub max_message_bytes: u64,
    /// Maximum frames of a message. At least 1.
    pub max_frames: usize,
    /// Budget for incomplete messages of all peers. From half of it on, a peer is read if the rest of its frame fits. Others wait in order
    /// and lose nothing. If their queue stalls, the budget rises up to this or the size of one message, whichever is larger; then one
    /// peer goes on over budget. If it stalls for half a second more, peers are disconnected: those that are silent in the middle of a message,
    /// the largest first, or else the largest. One poll reads at most half of this from all peers together.
    pub reassembly_bytes_max: usize,
    /// Frames of more bytes are streamed ([`crate::Event::BodyStart`]); `None`: none are.
    pub stream_over_bytes: Option<u64>,
    /// Maximum bytes of a streamed frame.
    pub max_frame_bytes: u64,
    /// Maximum bytes of all buffers for streamed bodies, over all peers: the memory that slow consumers can tie up. At least 1 if bodies are
    /// streamed; there is one buffer in any case.
    pub body_buffer_bytes: usize,
    /// Maximum connections.
    pub max_peers: usize,
    /// Maximum accepted connections from one IPv4 address, IPv6 network (/64), or user of this machine over ipc. inproc isn't limited.
    pub max_peers_per_address: usize,
    /// Maximum connections whose handshake isn't over; one more ends the oldest of them.
    pub max_handshakes: usize,
    /// TCP congestion control.
    pub congestion: Congestion,
    /// Pause between attempts to connect.
    pub reconnect: Backoff,
    /// A connection that was ready for this long was stable, and the pauses of `reconnect` start again after it. A peer that ends each one right
    /// after the handshake is retried as seldom as one that can't be reached.
    pub stable_after: Duration,
}

impl HubOptions {
    /// Defaults for a socket type.
    pub fn new(socket_type: SocketType) -> HubOptions {
        HubOptions {
            socket_type,
            routing_id: Bytes::new(),
            routing_ids_are_unique: true,
            metadata: Metadata::new(),
            mechanism: MechanismConfig::Null,
            heartbeat: None,
            keep_half_closed: false,
            handshake_timeout: Duration::from_secs(10),
            send_queue_bytes: 16 * 1024 * 1024,
            queued_bytes_max: usize::MAX,
            busy_poll: Duration::ZERO,
            read_budget_bytes: 1024 * 1024,
            max_message_bytes: towpath_zmtp::limits::MESSAGE_BYTES_DEFAULT,
            max_frames: towpath_zmtp::limits::MESSAGE_FRAMES_DEFAULT,
            reassembly_bytes_max: 4 * towpath_zmtp::limits::MESSAGE_BYTES_DEFAULT as usize,
            stream_over_bytes: None,
            max_frame_bytes: towpath_zmtp::limits::STREAMED_FRAME_BYTES_DEFAULT,
            body_buffer_bytes: 8 * 1024 * 1024,
            max_peers: 16_384,
            max_peers_per_address: 1_024,
            max_handshakes: 2_048,
            congestion: Congestion::Auto,
            reconnect: Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) },
            stable_after: STABLE_AFTER,
        }
    }

    /// These options with a change.
    pub fn with(mut self, change: impl FnOnce(&mut HubOptions)) -> HubOptions {
        change(&mut self);
        self
    }

    /// The highest value of the reassembly budget.
    pub(crate) fn reassembly_bytes_most(&self) -> usize {
        self.reassembly_bytes_max.max(self.one_message_bytes())
    }

    /// Bytes of incomplete messages that are never exceeded in normal operation.
    pub(crate) fn reassembly_limit(&self) -> usize {
        self.reassembly_bytes_most().saturating_add(self.one_message_bytes().saturating_mul(2))
    }

    /// Maximum memory of one incomplete message.
    fn one_message_bytes(&self) -> usize {
        let frames = self.max_frames.saturating_mul(towpath_zmtp::limits::FRAME_OVERHEAD_BYTES);
        let message = usize::try_from(self.max_message_bytes).unwrap_or(usize::MAX);
        // Twice the read-ahead: a command or a header may be cut anywhere.
        message.saturating_add(frames).saturating_add(2 * READ_AHEAD_BYTES_MAX)
    }

    /// Maximum bytes read from all peers in one poll.
    pub(crate) fn arriving_max(&self) -> u64 {
        (self.reassembly_bytes_max / 2) as u64
    }

    pub(crate) fn connection_config(&self) -> Config {
        Config {
            socket_type: self.socket_type,
            routing_id: self.routing_id.clone(),
            metadata: self.metadata.clone(),
            mechanism: self.mechanism.clone(),
            handshake_timeout: self.handshake_timeout,
            heartbeat: self.heartbeat,
            limits: InboxLimits {
                message_bytes_max: self.max_message_bytes,
                frames_max: self.max_frames,
                stream_over_bytes: self.stream_over_bytes,
                streamed_frame_bytes_max: self.max_frame_bytes,
            },
        }
    }
}
