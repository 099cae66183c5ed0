//! One connected peer: its socket, its connection's state machine, and how far reading and writing have got.

pub(crate) mod beginning;
pub(crate) mod buffers;
pub(crate) mod opening;
pub(crate) mod read;
mod read_body;
pub(crate) mod sealing;
pub(crate) mod table;
pub(crate) mod write;

use crate::message::FileRange;
use crate::net::address::Address;
use crate::net::tenant::Tenant;
use crate::peer_id::PeerId;
use beginning::Beginning;
use bytes::Bytes;
use read::ReadState;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use towpath_zmtp::{Connection, Opened, PeerProperties, Principal, ProtocolDeviations, Queued, Refusal, SocketType};
use write::WriteState;

/// Facts and counters of a peer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its name in this hub.
    pub id: PeerId,
    /// Its routing id: its own, or a generated one (0, then four bytes).
    pub routing_id: Bytes,
    /// Its network address.
    pub address: Address,
    /// Endpoint of the server that relayed the connection, if one did.
    pub through: Option<Arc<str>>,
    /// Its socket type.
    pub socket_type: SocketType,
    /// The security mechanism.
    pub mechanism: &'static str,
    /// Its identity, as far as the mechanism establishes one.
    pub principal: Principal,
    /// The properties that it announced.
    pub metadata: towpath_zmtp::Metadata,
    /// Its ZMTP version.
    pub version: (u8, u8),
    /// Bytes received, framing included.
    pub bytes_in: u64,
    /// Bytes sent, framing included.
    pub bytes_out: u64,
    /// Bytes of these that sendfile(2) moved.
    pub sendfile_bytes: u64,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Tolerated violations of ZMTP. A later version may define what is one today.
    pub deviations: ProtocolDeviations,
    /// Its send queue.
    pub queued: Queued,
    /// When the connection was made.
    pub connected_at: Instant,
    /// When bytes last came from it.
    pub last_received: Instant,
    /// Since when a PING is unanswered, and nothing else has come either.
    pub unanswered_since: Option<Instant>,
}

impl Tenant {
    /// The tenant of a peer.
    pub fn of(peer: &PeerInfo) -> Tenant {
        Tenant::of_identity(&peer.principal, &peer.address)
    }

    pub(crate) fn of_identity(principal: &Principal, address: &Address) -> Tenant {
        match principal {
            Principal::User(user) => Tenant::User(user.clone()),
            // Keys without a name are not known to this side: anybody can make as many as they like.
            Principal::Key { name, .. } if !name.is_empty() => Tenant::User(name.clone()),
            _ => Tenant::of_address(address),
        }
    }
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) reason: String,
    /// The peer broke the protocol, rather than left or was slow.
    pub(crate) misbehaved: bool,
    /// The point on which the two sides will never agree.
    pub(crate) refused: Option<Refusal>,
    /// The peer has closed its side, behind all that it had to say.
    pub(crate) is_end_of_input: bool,
    /// Whether the two sides probably won't agree, which is final if it happens repeatedly.
    pub(crate) suspected: bool,
    /// Whether the peer's bytes may have been changed on their way.
    pub(crate) tampered: bool,
    /// Whether the peer is kept out by the gate.
    pub(crate) blocked: bool,
}

impl End {
    pub(crate) fn new(reason: impl Into<String>) -> End {
        End {
            reason: reason.into(),
            misbehaved: false,
            refused: None,
            is_end_of_input: false,
            suspected: false,
            tampered: false,
            blocked: false,
        }
    }

    pub(crate) fn file_became_short() -> End {
        End::new("the file became shorter while it was sent; the peer was promised more")
    }

    pub(crate) fn misbehaviour(reason: &str) -> End {
        End { misbehaved: true, ..End::new(reason) }
    }

    pub(crate) fn closed() -> End {
        End { is_end_of_input: true, ..End::new("the peer closed the connection") }
    }

    pub(crate) fn system(doing: &str, errno: rustix::io::Errno) -> End {
        End::new(format!("{doing}: {}", std::io::Error::from(errno)))
    }
}

impl From<towpath_zmtp::Error> for End {
    fn from(error: towpath_zmtp::Error) -> End {
        let (misbehaved, refused) = (error.is_peer_misbehaviour(), error.refusal());
        let (suspected, tampered) = (error.is_suspected_refusal(), error.is_tampering());
        End { misbehaved, refused, suspected, tampered, ..End::new(error.to_string()) }
    }
}

/// A peer without the hub's bookkeeping.
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) fd: OwnedFd,
    pub(crate) address: Address,
    /// Endpoint of the server that relayed it.
    pub(crate) through: Option<Arc<str>>,
    pub(crate) beginning: Beginning,
    pub(crate) connection: Connection<FileRange>,
    /// Known when the handshake is over.
    pub(crate) properties: Option<Box<PeerProperties>>,
    pub(crate) routing_id: Bytes,
    pub(crate) principal: Principal,
    pub(crate) connected_at: Instant,
    pub(crate) read: ReadState,
    pub(crate) write: WriteState,
}

impl Peer {
    pub(crate) fn new(
        id: PeerId,
        fd: OwnedFd,
        address: Address,
        connection: Connection<FileRange>,
        now: Instant,
    ) -> Peer {
        Peer {
            id,
            fd,
            address,
            through: None,
            beginning: Beginning::Over,
            connection,
            properties: None,
            routing_id: Bytes::new(),
            principal: Principal::Anonymous,
            connected_at: now,
            read: ReadState::default(),
            write: WriteState::default(),
        }
    }

    /// Goes on with a frame that was opened.
    pub(crate) fn opened(&mut self, opened: Opened) {
        self.connection.opened(opened);
        self.read.is_withheld = true;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.properties.is_some()
    }

    /// Whether reading, or going on with what was read, may bring something now.
    pub(crate) fn can_read(&self) -> bool {
        self.read.is_possible() && !self.connection.is_waiting() && self.beginning != Beginning::Header
    }

    /// Bytes of memory held for messages that are not complete.
    pub(crate) fn reassembly_bytes(&self) -> usize {
        self.read.input.len() + self.connection.reassembly_bytes()
    }

    /// Whether the next frame to send is being read from a disk, or sealed.
    pub(crate) fn is_being_prepared(&self) -> bool {
        self.write.is_prefetching() || self.connection.outbox_ref().awaits_seal()
    }

    /// Bytes that its system has taken since the last call.
    pub(crate) fn newly_taken_bytes(&mut self) -> u64 {
        let untaken = towpath_outq::untaken_bytes(&self.fd).unwrap_or(0);
        let taken = self.connection.outbox_ref().bytes_written().saturating_sub(untaken);
        taken.saturating_sub(std::mem::replace(&mut self.write.taken_bytes, taken))
    }

    /// Bytes of memory in the send queue.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.connection.outbox_ref().queued().memory_bytes
    }

    pub(crate) fn info(&self, mechanism: &'static str) -> Option<PeerInfo> {
        let properties = self.properties.as_ref()?;
        let outbox = self.connection.outbox_ref();
        Some(PeerInfo {
            id: self.id,
            routing_id: self.routing_id.clone(),
            address: self.address.clone(),
            through: self.through.clone(),
            socket_type: properties.socket_type,
            mechanism,
            principal: self.principal.clone(),
            metadata: properties.metadata.clone(),
            version: properties.version,
            bytes_in: self.read.bytes_in,
            bytes_out: outbox.bytes_written(),
            sendfile_bytes: self.write.sendfile_bytes,
            messages_in: self.read.messages_in,
            messages_out: outbox.messages_staged(),
            deviations: self.connection.deviations(),
            queued: outbox.queued(),
            connected_at: self.connected_at,
            last_received: self.connection.last_received(),
            unanswered_since: self.connection.unanswered_since(),
        })
    }
}
