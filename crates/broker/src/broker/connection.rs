//! What the driver knows of each connection.

use super::streams::{Arrived, Incoming};
use crate::core::{Millis, Peer};
use crate::mdp::Dialect;
use crate::wire::{Block, Extent};
use std::cmp::Reverse;
use std::collections::VecDeque;
use towpath_sockets::{Hub, Message, PeerId};

/// What waits for all connections is added up no more often than this, in milliseconds.
const LOOK_GRAIN: Millis = 10;

/// What a peer turned out to be, by its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    /// It has said nothing yet.
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

/// When a peer last read of what it was sent. What the system has taken for it tells: the hub says only now and then that it has room,
/// when half of its queue is gone, which may be one large message.
#[derive(Debug, Default)]
pub(super) struct Reading {
    octets: u64,
    at: Millis,
}

impl Reading {
    /// So many octets have been taken by now.
    pub fn note(&mut self, now: Millis, octets: u64) {
        *self = Reading { octets, at: now };
    }

    /// Whether none were for so long, as `octets` tells, which is only asked for if it matters.
    pub fn has_stalled(&mut self, now: Millis, most: Millis, octets: impl FnOnce() -> u64) -> bool {
        if now.saturating_sub(self.at) < most {
            return false;
        }
        let before = self.octets;
        let octets = octets();
        if octets != before {
            self.note(now, octets);
        }
        octets == before
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: PeerId,
    pub speaks: Speaks,
    /// Records on their way to it.
    pub block: Block,
    /// It is among those to be flushed.
    pub is_dirty: bool,
    /// What the hub had no room for.
    pub pending: VecDeque<Message>,
    pub pending_bytes: usize,
    /// The same, as [`Connections`] has counted it.
    counted_pending_bytes: usize,
    /// Replies to a stock client that wait for others.
    pub gathered: Vec<Message>,
    /// The core was told that nothing more fits.
    pub is_blocked: bool,
    /// Parts of replies are among what waits: there may be any number of them.
    pub gets_parts: bool,
    /// When it took something of what waits, or began to be blocked.
    pub reading: Reading,
    /// The core wants no more from it.
    pub is_paused: bool,
    /// It is a stock client in the middle of a large body, for which there is no room on the disk yet.
    pub awaits_room: bool,
    /// No more is read from it while it is blocked, because it goes on asking.
    pub asks_too_much: bool,
    /// The parts that it has sent of the reply under way.
    pub parts: u32,
    /// A message with a streamed body that is under way.
    pub incoming: Option<Incoming>,
    /// A message whose body is still on its way to the disk, and what has come behind it: all is taken in its order.
    pub behind: VecDeque<Arrived>,
    pub behind_bytes: usize,
    /// What it holds of messages that can't be taken yet, as [`Connections`] has counted it.
    held_bytes: usize,
    /// No more is read from it until that has become less.
    pub is_far_behind: bool,
    /// It has closed its side while it wasn't read: nothing that it is sent will be read.
    pub has_hung_up: bool,
    /// It has ended, and is here until that has been taken.
    pub is_gone: bool,
}

impl Connection {
    fn new(id: PeerId) -> Connection {
        Connection {
            id,
            speaks: Speaks::Nothing,
            block: Block::default(),
            is_dirty: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
            counted_pending_bytes: 0,
            gathered: Vec::new(),
            is_blocked: false,
            gets_parts: false,
            reading: Reading::default(),
            is_paused: false,
            awaits_room: false,
            asks_too_much: false,
            parts: 0,
            incoming: None,
            behind: VecDeque::new(),
            behind_bytes: 0,
            held_bytes: 0,
            is_far_behind: false,
            has_hung_up: false,
            is_gone: false,
        }
    }
}

/// All connections, by their slot.
#[derive(Debug, Default)]
pub(super) struct Connections {
    slots: Vec<Option<Box<Connection>>>,
    /// Those with something to be flushed.
    pub dirty: Vec<Peer>,
    /// How long blocks become.
    pub extent: Extent,
    /// What all hold of messages that can't be taken yet.
    held_bytes: usize,
    /// What waits for all, beside what the hub holds.
    pending_bytes: usize,
    /// When it is next looked at what waits for all.
    next_look: Millis,
}

impl Connections {
    pub fn insert(&mut self, id: PeerId) {
        let slot = id.slot() as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Box::new(Connection::new(id)));
    }

    /// Forgets a connection, unless another one has its slot by now.
    pub fn remove(&mut self, id: PeerId) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(id.slot() as usize)?;
        let connection = slot.take_if(|connection| connection.id == id)?;
        self.held_bytes -= connection.held_bytes;
        self.pending_bytes -= connection.counted_pending_bytes;
        Some(connection)
    }

    /// Counts what a connection holds of messages that can't be taken yet, and tells what all of them do.
    pub fn recount(&mut self, id: PeerId) -> usize {
        if let Some(connection) = self.of(id) {
            let counted = connection.behind_bytes + connection.incoming.as_ref().map_or(0, Incoming::bytes);
            let before = std::mem::replace(&mut connection.held_bytes, counted);
            self.held_bytes = self.held_bytes - before + counted;
        }
        self.held_bytes
    }

    /// Whether anything waits for any of them.
    pub fn has_pending(&self) -> bool {
        let mut connections = self.slots.iter().flatten();
        connections.any(|connection| !connection.pending.is_empty() || !connection.gathered.is_empty())
    }

    /// Counts what a connection has waiting beside what the hub holds.
    pub fn recount_pending(&mut self, id: PeerId) {
        if let Some(connection) = self.of(id) {
            let counted = connection.pending_bytes;
            let before = std::mem::replace(&mut connection.counted_pending_bytes, counted);
            self.pending_bytes = self.pending_bytes - before + counted;
        }
    }

    /// Octets that wait for all of them, beside what the hub holds.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Those for which the most of what only they are to have waits, so many that no more than these octets are left when they are
    /// gone. One message is beside it, however large it is: to have no other peer is all that could be done about it. It looks now and
    /// then.
    pub fn furthest_behind(&mut self, now: Millis, most: usize, hub: &Hub) -> Vec<PeerId> {
        if now < self.next_look {
            return Vec::new();
        }
        self.next_look = now + LOOK_GRAIN;
        let connections = self.slots.iter().flatten().filter(|connection| !connection.is_gone);
        let mut behind: Vec<_> = connections
            .filter(|connection| connection.gets_parts || matches!(connection.speaks, Speaks::StockClient(_)))
            .map(|connection| {
                let queued = hub.queued(connection.id);
                let is_one = queued.messages + connection.pending.len() <= 1;
                (queued.memory_bytes + connection.pending_bytes, is_one, connection.id)
            })
            .collect();
        behind.sort_unstable_by_key(|(bytes, ..)| Reverse(*bytes));
        let mut total: usize = behind.iter().map(|(bytes, ..)| bytes).sum();
        let is_too_much = |&(bytes, is_one, id): &(usize, bool, PeerId)| {
            let others = total - bytes;
            let goes = if is_one { others > most } else { total > most };
            total = others;
            goes.then_some(id)
        };
        behind.iter().map_while(is_too_much).collect()
    }

    /// The one that holds the most.
    pub fn largest(&self) -> Option<PeerId> {
        let connections = self.slots.iter().flatten();
        connections.max_by_key(|connection| connection.held_bytes).map(|connection| connection.id)
    }

    #[inline]
    pub fn find(&mut self, peer: Peer) -> Option<&mut Connection> {
        self.slots.get_mut(peer as usize)?.as_deref_mut()
    }

    /// The connection of that name, not a later one in its slot.
    #[inline]
    pub fn of(&mut self, id: PeerId) -> Option<&mut Connection> {
        self.find(id.slot()).filter(|connection| connection.id == id)
    }

    /// The block for records to a connection, which will be flushed.
    #[inline]
    pub fn block(&mut self, peer: Peer) -> Option<&mut Block> {
        let connection = self.slots.get_mut(peer as usize)?.as_deref_mut()?;
        if !connection.is_dirty {
            connection.is_dirty = true;
            connection.block.set_extent(self.extent);
            self.dirty.push(peer);
        }
        Some(&mut connection.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_slowly_has_not_stalled() {
        let mut reading = Reading::default();
        reading.note(1_000, 500);
        assert!(!reading.has_stalled(5_999, 5_000, || panic!("asked for nothing")));
        // A little now and then, of a message that takes a minute.
        for second in (6..60).step_by(5) {
            assert!(!reading.has_stalled(second * 1_000, 5_000, || 500 + second));
        }
        let last = 56;
        assert!(!reading.has_stalled(last * 1_000 + 4_999, 5_000, || panic!("asked for nothing")));
        assert!(reading.has_stalled(last * 1_000 + 5_000, 5_000, || 500 + last));
    }
}
