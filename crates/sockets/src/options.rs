//! How a socket behaves.

use bytes::Bytes;
use std::time::Duration;
use towpath_zmtp::{Config, Heartbeat, InboxLimits, MechanismConfig, Metadata, SocketType};

/// A connection that lasts for so long after its handshake works, whatever is said on it.
pub const STABLE_AFTER: Duration = Duration::from_millis(100);

/// Which TCP congestion control sending sockets use.
///
/// On loopback, sendfile under the widespread default `bbr` costs about four times the CPU of `cubic`; over real distance the
/// system's default may well be right. So [`Congestion::Auto`] changes nothing but local connections; `congestion.rs` says when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Congestion {
    /// `cubic` (or else `reno`) for peers on this machine, the system's default for all others.
    #[default]
    Auto,
    /// The system's default for all.
    System,
    /// This one for all, such as `cubic`. A name that the kernel doesn't have is logged once and ignored.
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

/// Waiting between attempts to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second attempt. Not zero, with which a machine where nobody listens would be asked without end.
    pub first: Duration,
    /// It doubles up to this, which isn't zero either, with some jitter so that many clients don't come back in step.
    pub most: Duration,
}

/// All options of a socket. Whatever makes one of them says so by [`crate::SocketError::Option`] where a value can't work.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The pattern.
    pub socket_type: SocketType,
    /// This side's routing id, 1 to 255 bytes that don't begin with 0; or empty: the peer makes one up.
    pub routing_id: Bytes,
    /// Of two peers with the same routing id a ROUTER ends the older connection. Otherwise both stay, and the newcomer gets a
    /// routing id that was made up: for who doesn't address peers by it.
    pub routing_ids_are_unique: bool,
    /// Properties for READY, names beginning with `X-`.
    pub metadata: Metadata,
    /// Security mechanism and role. What PLAIN shows has up to 255 bytes.
    pub mechanism: MechanismConfig,
    /// PING to peers that announce ZMTP 3.1. The timeout isn't zero.
    pub heartbeat: Option<Heartbeat>,
    /// One deadline from connecting to READY. Of a name with several addresses, one that does not answer gets only its share. Not zero.
    pub handshake_timeout: Duration,
    /// Bound of each peer's queue, in bytes of memory (file ranges count 64 each). At least 1: one message at a time.
    pub send_queue_bytes: usize,
    /// What all queues are to have together, in the same bytes. Where an eighth of what is left of that is less than
    /// `send_queue_bytes`, it is the bound of each queue, so that many peers which don't read leave room for one that does; but 16 KiB
    /// is, whatever the others have. A queue that is below its bound takes one more message, however large it is.
    pub queued_bytes_max: usize,
    /// Instead of sleeping, look again for so long, where waits have been as short lately. It shortens a round trip by what it takes
    /// to wake up, at the cost of a processor's time. Zero: never.
    pub busy_poll: Duration,
    /// Bytes read from one peer before it is the turn of the next one, and of the application. What the application does about a
    /// peer's messages, such as [`crate::Hub::pause_reading`], comes after at most so many bytes of them. At least 1.
    pub read_budget_bytes: usize,
    /// Bytes of a message that is taken whole.
    pub max_message_bytes: u64,
    /// Frames of a message. At least 1.
    pub max_frames: usize,
    /// Bytes of messages that have begun and aren't whole, over all peers. From half of that on, a peer is read on if what its frame
    /// lacks fits into the rest. The others wait in line, and lose nothing. Where the line stands still for more than a moment there is more
    /// room, up to this or what one message may take, whichever is more; then one goes on without. If it stands still for half a second
    /// all the same, a peer is disconnected: first those that have sent nothing lately, and of these the one with the most. As many
    /// bytes as the half are read in one turn, of all peers together.
    pub reassembly_bytes_max: usize,
    /// Frames over this are streamed ([`crate::Event::BodyStart`]).
    pub stream_over_bytes: Option<u64>,
    /// Bytes of a streamed frame.
    pub max_frame_bytes: u64,
    /// Bytes of all buffers for streamed bodies, over all peers: the memory that slow consumers can tie up. At least 1 where bodies are
    /// streamed; there is one buffer in any case.
    pub body_buffer_bytes: usize,
    /// Connections in all.
    pub max_peers: usize,
    /// Connections from one IP address.
    pub max_peers_per_address: usize,
    /// Connections whose handshake is not over; one more ends the oldest of them.
    pub max_handshakes: usize,
    /// TCP congestion control.
    pub congestion: Congestion,
    /// Between attempts to connect.
    pub reconnect: Backoff,
    /// A connection that was ready for so long worked, and after it the waits of `reconnect` begin anew. One that its peer ends right
    /// after the handshake, again and again, is as little use as none, and tried as seldom.
    pub stable_after: Duration,
}

impl HubOptions {
    /// The defaults for a pattern.
    pub fn new(socket_type: SocketType) -> HubOptions {
        HubOptions {
            socket_type,
            routing_id: Bytes::new(),
            routing_ids_are_unique: true,
            metadata: Metadata::new(),
            mechanism: MechanismConfig::Null,
            heartbeat: None,
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
            max_peers_per_address: 8_192,
            max_handshakes: 2_048,
            congestion: Congestion::Auto,
            reconnect: Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) },
            stable_after: STABLE_AFTER,
        }
    }

    /// What messages that aren't whole may come to where peers are slow: as much as one may take.
    pub(crate) fn reassembly_bytes_most(&self) -> usize {
        self.reassembly_bytes_max.max(self.one_message_bytes())
    }

    /// What they never come to in the way of [`HubOptions::reassembly_bytes_max`].
    pub(crate) fn reassembly_limit(&self) -> usize {
        self.reassembly_bytes_most().saturating_add(self.one_message_bytes().saturating_mul(2))
    }

    /// What one peer never comes to.
    fn one_message_bytes(&self) -> usize {
        let frames = self.max_frames.saturating_mul(towpath_zmtp::limits::FRAME_OVERHEAD_BYTES);
        let message = usize::try_from(self.max_message_bytes).unwrap_or(usize::MAX);
        // Two of what is read ahead: a command or a header may be cut anywhere.
        message.saturating_add(frames).saturating_add(2 * crate::peer::read::READ_AHEAD_BYTES_MAX)
    }

    /// Bytes that all peers together bring in a turn.
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
