//! One peer: its socket, its connection's state machine, and what an operator may see of it.

pub(crate) mod buffers;
pub(crate) mod read;
mod read_body;
pub(crate) mod table;
mod write;

use crate::disk::prefetch::ColdPiece;
use crate::hub::Passage;
use crate::hub::connect::Attempt;
use crate::message::FileRange;
use crate::net::transport::Address;
use crate::peer::read_body::Partial;
use bytes::{Bytes, BytesMut};
use rustix::fd::OwnedFd;
use std::fmt;
use std::time::Instant;
use towpath_zmtp::{Connection, PeerProperties, Principal, ProtocolDeviations, Queued, SocketType};

/// Names a peer of one [`crate::Hub`] as long as it is connected; never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl PeerId {
    /// The peer of a slot, for transports other than a hub.
    pub const fn new(slot: u32, generation: u32) -> PeerId {
        PeerId { slot, generation }
    }

    /// A small number for tables: no two peers have the same at a time, but it is used again when a peer is gone.
    pub fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn token(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.slot)
    }

    pub(crate) fn from_token(token: u64) -> PeerId {
        PeerId { slot: token as u32, generation: (token >> 32) as u32 }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// What is known of a peer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its name here.
    pub id: PeerId,
    /// Its routing id: its own, or one that was made up (0, then four bytes).
    pub routing_id: Bytes,
    /// Where it really is.
    pub address: Address,
    /// Its socket type.
    pub socket_type: SocketType,
    /// The security mechanism.
    pub mechanism: &'static str,
    /// Its identity, as far as the mechanism establishes one.
    pub principal: Principal,
    /// All that it said of itself.
    pub metadata: towpath_zmtp::Metadata,
    /// Its ZMTP version.
    pub version: (u8, u8),
    /// Bytes received, with all framing.
    pub bytes_in: u64,
    /// Bytes sent, with all framing.
    pub bytes_out: u64,
    /// Of these, bytes that sendfile(2) moved.
    pub sendfile_bytes: u64,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// What it sent that ZMTP does not define: it may be of a later version, or not quite right.
    pub deviations: ProtocolDeviations,
    /// What waits for it.
    pub queued: Queued,
    /// When the connection was made.
    pub connected_at: Instant,
    /// When bytes last came from it.
    pub last_heard: Instant,
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) reason: String,
    /// The peer broke the protocol (rather than left, or was slow).
    pub(crate) misbehaved: bool,
    /// The two sides will never agree.
    pub(crate) refused: bool,
}

impl End {
    pub(crate) fn new(reason: impl Into<String>) -> End {
        End { reason: reason.into(), misbehaved: false, refused: false }
    }

    pub(crate) fn misbehaviour(reason: &str) -> End {
        End { misbehaved: true, ..End::new(reason) }
    }

    pub(crate) fn system(doing: &str, errno: rustix::io::Errno) -> End {
        End::new(format!("{doing}: {}", std::io::Error::from(errno)))
    }
}

impl From<towpath_zmtp::Error> for End {
    fn from(error: towpath_zmtp::Error) -> End {
        End { misbehaved: error.is_peer_misbehaviour(), refused: error.is_refusal(), reason: error.to_string() }
    }
}

/// Which endpoint a peer came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Accepted,
    Connector(usize),
    /// Connected by this side, without a connector that would try again.
    Once,
}

pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) fd: OwnedFd,
    pub(crate) address: Address,
    pub(crate) origin: Origin,
    /// What it is tried for, until it is ready.
    pub(crate) attempt: Option<Box<Attempt>>,
    pub(crate) connection: Connection<FileRange>,
    pub(crate) properties: Option<Box<PeerProperties>>,
    pub(crate) routing_id: Bytes,
    pub(crate) principal: Principal,
    pub(crate) connected_at: Instant,
    /// When the handshake was done.
    pub(crate) ready_at: Option<Instant>,
    /// Bytes read that the state machine has not taken yet.
    pub(crate) input: BytesMut,
    /// What it has begun to say, as the hub has counted it.
    pub(crate) reassembly_bytes: usize,
    /// Whether it may go on with that.
    pub(crate) passage: Passage,
    /// It waits with larger messages when the application wants none.
    pub(crate) yields: bool,
    /// Bytes of memory that wait for it, as the hub has counted them.
    pub(crate) queued_bytes: usize,
    /// What bytes of a body are being read into.
    pub(crate) partial: Option<Partial>,
    /// How much to read ahead of a header; see `read.rs`.
    pub(crate) read_ahead: usize,
    /// connect(2) is under way.
    pub(crate) connecting: bool,
    /// When that is given up, as there is another address to try.
    pub(crate) connecting_until: Option<Instant>,
    pub(crate) readable: bool,
    /// The peer has closed its side, or the connection has failed: the end is there to be read behind what came before.
    pub(crate) hung_up: bool,
    /// The application was told of that while a message is held back.
    pub(crate) told_of_end: bool,
    pub(crate) writable: bool,
    /// In the hub's list of peers with something to do.
    pub(crate) scheduled: bool,
    /// The application doesn't want more for now.
    pub(crate) paused: bool,
    /// Waits for a buffer of the pool, in the hub's queue.
    pub(crate) starved: bool,
    /// A send was refused since the last `Room`.
    pub(crate) was_full: bool,
    /// The file of the frame under way was too short: the rest is zeros.
    pub(crate) padding: bool,
    /// How much of the file range under way is known to be in memory.
    pub(crate) resident_to: u64,
    /// The piece behind that isn't: what the hub is to have read.
    pub(crate) cold: Option<ColdPiece>,
    /// It is being read: nothing leaves before it is here.
    pub(crate) warming: bool,
    /// This kind of file or socket can't be sent by the kernel.
    pub(crate) copies: bool,
    pub(crate) bytes_in: u64,
    pub(crate) sendfile_bytes: u64,
    pub(crate) messages_in: u64,
}

impl Peer {
    pub(crate) fn new(
        id: PeerId,
        fd: OwnedFd,
        address: Address,
        origin: Origin,
        connection: Connection<FileRange>,
        now: Instant,
    ) -> Peer {
        Peer {
            id,
            fd,
            address,
            origin,
            attempt: None,
            connection,
            properties: None,
            routing_id: Bytes::new(),
            principal: Principal::Anonymous,
            connected_at: now,
            ready_at: None,
            input: BytesMut::new(),
            reassembly_bytes: 0,
            passage: Passage::default(),
            yields: true,
            queued_bytes: 0,
            partial: None,
            read_ahead: crate::peer::read::READ_AHEAD_BYTES_MAX,
            connecting: false,
            connecting_until: None,
            readable: false,
            hung_up: false,
            told_of_end: false,
            writable: false,
            scheduled: false,
            paused: false,
            starved: false,
            was_full: false,
            padding: false,
            resident_to: 0,
            cold: None,
            warming: false,
            copies: false,
            bytes_in: 0,
            sendfile_bytes: 0,
            messages_in: 0,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.properties.is_some()
    }

    pub(crate) fn wants_to_read(&self) -> bool {
        self.readable && !self.is_stopped() && !self.starved && !self.connecting && self.passage.is_clear()
    }

    /// The application doesn't want more, and it isn't in the middle of a message for which there is no room but to its end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.paused && self.passage != Passage::Beyond
    }

    /// Memory that it costs to hold what isn't whole yet.
    pub(crate) fn begun_bytes(&self) -> usize {
        self.input.len() + self.connection.reassembly_bytes()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        self.writable && !self.connecting && !self.warming && self.connection.outbox_ref().has_output()
    }

    pub(crate) fn info(&self, mechanism: &'static str) -> Option<PeerInfo> {
        let properties = self.properties.as_ref()?;
        Some(PeerInfo {
            id: self.id,
            routing_id: self.routing_id.clone(),
            address: self.address.clone(),
            socket_type: properties.socket_type,
            mechanism,
            principal: self.principal.clone(),
            metadata: properties.metadata.clone(),
            version: properties.version,
            bytes_in: self.bytes_in,
            bytes_out: self.connection.outbox_ref().bytes_written(),
            sendfile_bytes: self.sendfile_bytes,
            messages_in: self.messages_in,
            messages_out: self.connection.outbox_ref().messages_staged(),
            deviations: self.connection.deviations(),
            queued: self.connection.outbox_ref().queued(),
            connected_at: self.connected_at,
            last_heard: self.connection.last_heard(),
        })
    }
}
