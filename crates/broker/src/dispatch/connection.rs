//! Connections, and what waits for each.

use super::progress::{LastRead, Progress};
use crate::access::Access;
use crate::core::{Millis, Peer};
use crate::transport::Transport;
use std::cmp::Reverse;
use std::collections::VecDeque;
use towpath_requests::assembler::{Assembler, BodySink};
use towpath_requests::majordomo::Dialect;
use towpath_requests::numbered::{BatchLimit, Block};
use towpath_sockets::{Address, Message, PeerId};

/// Granularity of idle times, in milliseconds: peers are equally idle within it.
const IDLE_GRAIN: Millis = 1_000;

/// Protocol and role of a peer, detected from its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerProtocol {
    /// Nothing has been received yet.
    Nothing,
    /// Numbered requests.
    NumberedClient,
    /// Numbered requests, from the other side.
    NumberedWorker,
    /// A stock client.
    StockClient(Dialect),
    /// A stock worker.
    StockWorker(Dialect),
}

impl PeerProtocol {
    /// Its name, for people.
    pub(super) fn name(self) -> Option<String> {
        match self {
            PeerProtocol::Nothing => None,
            PeerProtocol::NumberedClient | PeerProtocol::NumberedWorker => Some("numbered".to_owned()),
            PeerProtocol::StockClient(dialect) | PeerProtocol::StockWorker(dialect) => Some(dialect.to_string()),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection<W: BodySink> {
    pub id: PeerId,
    /// Its address, for logs.
    pub address: Option<Address>,
    /// Its identity and permissions.
    pub access: Access,
    pub protocol: PeerProtocol,
    /// Records on their way to it.
    pub block: Block,
    /// In the list of connections to flush.
    pub is_dirty: bool,
    /// Messages that the transport had no space for.
    pub pending: VecDeque<Message>,
    pub pending_bytes: usize,
    /// The same, as [`Connections`] has counted it.
    counted_pending_bytes: usize,
    /// Replies to a stock client that wait for others.
    pub batch: Vec<Message>,
    /// A worker that is sent the ids of requests.
    pub wants_ids: bool,
    /// The core knows that nothing more fits.
    pub is_blocked: bool,
    /// Parts of replies are among what waits: there may be any number of them.
    pub gets_parts: bool,
    /// When it took something of what waits, or began to be blocked.
    pub last_read: LastRead,
    /// The same as it is seen where too much waits for all.
    progress: Progress,
    /// The core wants no more from it.
    pub is_paused: bool,
    /// No more is read from it while it is blocked, because it goes on asking.
    pub asks_too_much: bool,
    /// The parts that it has sent of its current reply.
    pub parts: u32,
    /// The message that is coming in, and those that wait for the disk.
    pub assembler: Assembler<W>,
    /// Its bytes in memory, as [`Connections`] has counted them.
    held_bytes: usize,
    /// Closed its side while reading was paused: nothing sent to it will be read.
    pub has_hung_up: bool,
    /// Closed its side, and is sent the replies that it waits for.
    pub is_half_closed: bool,
    /// Closed, and kept until its last messages have been processed.
    pub is_gone: bool,
}

impl<W: BodySink> Connection<W> {
    fn new(id: PeerId, address: Option<Address>, access: Access) -> Connection<W> {
        Connection {
            id,
            address,
            access,
            protocol: PeerProtocol::Nothing,
            block: Block::default(),
            is_dirty: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
            counted_pending_bytes: 0,
            batch: Vec::new(),
            wants_ids: false,
            is_blocked: false,
            gets_parts: false,
            last_read: LastRead::default(),
            progress: Progress::default(),
            is_paused: false,
            asks_too_much: false,
            parts: 0,
            assembler: Assembler::default(),
            held_bytes: 0,
            has_hung_up: false,
            is_half_closed: false,
            is_gone: false,
        }
    }

    /// The backlog of this peer, if it has one.
    fn look(&mut self, now: Millis, transport: &impl Transport) -> Option<Backlog> {
        let queued = transport.queued(self.id);
        let bytes = queued.memory_bytes + self.pending_bytes;
        // Where the disk is slow, it isn't the peer.
        let waiting = if transport.is_prefetching(self.id) { 0 } else { bytes };
        let idle_ms = self.progress.look(now, transport.bytes_out(self.id), waiting);
        let is_one = queued.messages + self.pending.len() <= 1;
        (bytes > 0).then_some(Backlog { id: self.id, bytes, is_one, idle_ms })
    }
}

/// Backlog of a peer.
#[derive(Debug)]
pub(super) struct Backlog {
    pub id: PeerId,
    /// Bytes of memory, in the hub and beside it.
    pub bytes: usize,
    /// At most one message, so a peer that gets it can't be called slow yet.
    pub is_one: bool,
    /// Milliseconds for which it has hardly read.
    pub idle_ms: Millis,
}

/// All connections, by their slot.
#[derive(Debug)]
pub(super) struct Connections<W: BodySink> {
    slots: Vec<Option<Box<Connection<W>>>>,
    /// Those with something to be flushed.
    pub dirty: Vec<Peer>,
    /// How long blocks become.
    pub limit: BatchLimit,
    /// Bytes of messages of all connections that can't be processed yet.
    held_bytes: usize,
    /// Bytes queued for all connections beside the transport's queues.
    pending_bytes: usize,
}

impl<W: BodySink> Default for Connections<W> {
    fn default() -> Connections<W> {
        Connections {
            slots: Vec::new(),
            dirty: Vec::new(),
            limit: BatchLimit::default(),
            held_bytes: 0,
            pending_bytes: 0,
        }
    }
}

impl<W: BodySink> Connections<W> {
    pub fn insert(&mut self, id: PeerId, address: Option<Address>, access: Access) {
        let slot = id.slot() as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Box::new(Connection::new(id, address, access)));
    }

    /// Forgets a connection, unless another one has its slot by now.
    pub fn remove(&mut self, id: PeerId) -> Option<Box<Connection<W>>> {
        let slot = self.slots.get_mut(id.slot() as usize)?;
        let connection = slot.take_if(|connection| connection.id == id)?;
        self.held_bytes -= connection.held_bytes;
        self.pending_bytes -= connection.counted_pending_bytes;
        Some(connection)
    }

    /// Updates the count of a connection's unprocessed bytes, and returns the sum of all.
    pub fn recount(&mut self, id: PeerId) -> usize {
        if let Some(connection) = self.of(id) {
            let counted = connection.assembler.bytes();
            let before = std::mem::replace(&mut connection.held_bytes, counted);
            self.held_bytes = self.held_bytes - before + counted;
        }
        self.held_bytes
    }

    /// Whether anything waits for any of them.
    pub fn has_pending(&self) -> bool {
        let mut connections = self.slots.iter().flatten();
        connections.any(|connection| !connection.pending.is_empty() || !connection.batch.is_empty())
    }

    /// Counts what a connection has waiting beside what the hub holds.
    pub fn recount_pending(&mut self, id: PeerId) {
        if let Some(connection) = self.of(id) {
            let counted = connection.pending_bytes;
            let before = std::mem::replace(&mut connection.counted_pending_bytes, counted);
            self.pending_bytes = self.pending_bytes - before + counted;
        }
    }

    /// Bytes that wait for all of them, beside what the hub holds.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Peers with a backlog: first by how long they have hardly read and by size, then by their last read.
    pub fn backlogs(&mut self, now: Millis, idle_ms: Millis, transport: &impl Transport) -> Vec<Backlog> {
        let connections = self.slots.iter_mut().flatten().filter(|connection| !connection.is_gone);
        let mut backlogs: Vec<_> = connections.filter_map(|connection| connection.look(now, transport)).collect();
        backlogs.sort_unstable_by_key(|backlog| Reverse((backlog.idle_ms.min(idle_ms) / IDLE_GRAIN, backlog.bytes)));
        backlogs
    }

    /// The one that holds the most.
    pub fn largest(&self) -> Option<PeerId> {
        let connections = self.slots.iter().flatten();
        connections.max_by_key(|connection| connection.held_bytes).map(|connection| connection.id)
    }

    /// Whether a peer has a batch of replies.
    pub fn has_batch(&self, peer: Peer) -> bool {
        let connection = self.slots.get(peer as usize).and_then(Option::as_deref);
        connection.is_some_and(|connection| !connection.batch.is_empty())
    }

    /// The protocol of a connection that is there.
    pub fn protocol_of(&self, id: PeerId) -> Option<PeerProtocol> {
        let connection = self.slots.get(id.slot() as usize)?.as_deref()?;
        (connection.id == id && !connection.is_gone).then_some(connection.protocol)
    }

    /// The ids of all.
    pub fn ids(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.slots.iter().flatten().filter(|connection| !connection.is_gone).map(|connection| connection.id)
    }

    /// Forgets all of them, and gives their ids.
    pub fn take_all(&mut self) -> Vec<PeerId> {
        std::mem::take(self).slots.into_iter().flatten().map(|connection| connection.id).collect()
    }

    /// The id of a peer.
    pub fn id_of(&self, peer: Peer) -> Option<PeerId> {
        self.slots.get(peer as usize)?.as_deref().map(|connection| connection.id)
    }

    #[inline]
    pub fn find(&mut self, peer: Peer) -> Option<&mut Connection<W>> {
        self.slots.get_mut(peer as usize)?.as_deref_mut()
    }

    /// The connection of that name, not a later one in its slot.
    #[inline]
    pub fn of(&mut self, id: PeerId) -> Option<&mut Connection<W>> {
        self.find(id.slot()).filter(|connection| connection.id == id)
    }

    /// The block for records to a connection, which will be flushed.
    #[inline]
    pub fn block(&mut self, peer: Peer) -> Option<&mut Block> {
        let connection = self.slots.get_mut(peer as usize)?.as_deref_mut()?;
        if !connection.is_dirty {
            connection.is_dirty = true;
            connection.block.set_limit(self.limit);
            self.dirty.push(peer);
        }
        Some(&mut connection.block)
    }
}
