//! The transport of a node: what the hub does, on simulated links.

use super::wire::{Outgoing, Wire};
use crate::history::Event as Happened;
use crate::link::{Frames, LANE_BYTES, LinkId, Net, Packet};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;
use towpath_broker::Transport;
use towpath_broker::core::Millis;
use towpath_sockets::{
    Address, Authenticator, Credentials, Event, Frame, LargeMessages, Message, PeerId, Principal, Queued, SendError,
    Tenant,
};

/// Bytes of a message that a peer may be kept from beginning.
const LARGE_BYTES: usize = 1_000;

/// A change to the net.
#[derive(Debug)]
pub enum Effect {
    Send(LinkId, Frames),
    Close(LinkId),
    Pause(LinkId, bool),
}

#[derive(Debug)]
struct Peer {
    id: PeerId,
    link: LinkId,
    wire: Wire,
    /// Bytes and messages that it has not read yet.
    queued: Queued,
    sent_bytes: u64,
    was_full: bool,
    is_paused: bool,
    /// Its end waits behind what isn't read, and was reported.
    has_hung_up: bool,
    is_deferrable: bool,
    is_deferred: bool,
}

/// A place for a peer, and how often it was given.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    peer: Option<Peer>,
}

#[derive(Debug)]
pub struct SimTransport {
    pub now: Millis,
    wire: Wire,
    events: VecDeque<Event>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Free from the next poll on, unless they are reserved until then.
    freed: Vec<u32>,
    reserved: Vec<PeerId>,
    by_link: BTreeMap<LinkId, PeerId>,
    large: LargeMessages,
    queue_limit: usize,
    names: u64,
    pub effects: Vec<Effect>,
    /// Events for the history.
    pub happened: Vec<Happened>,
}

impl SimTransport {
    pub fn new(wire: Wire, queue_limit: usize) -> SimTransport {
        SimTransport {
            now: 0,
            wire,
            events: VecDeque::new(),
            slots: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            reserved: Vec::new(),
            by_link: BTreeMap::new(),
            large: LargeMessages::Allow,
            queue_limit,
            names: 0,
            effects: Vec::new(),
            happened: Vec::new(),
        }
    }

    /// The term of leadership that begins with the next connection.
    pub fn set_term(&mut self, term: u64) {
        self.wire.set_term(term);
    }

    fn find(&self, id: PeerId) -> Option<&Peer> {
        self.slots.get(id.slot() as usize)?.peer.as_ref().filter(|peer| peer.id == id)
    }

    fn find_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.slots.get_mut(id.slot() as usize)?.peer.as_mut().filter(|peer| peer.id == id)
    }

    fn peers_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.slots.iter_mut().filter_map(|slot| slot.peer.as_mut())
    }

    pub fn links(&self) -> Vec<LinkId> {
        self.by_link.keys().copied().collect()
    }

    /// A poll begins: what peers have read meanwhile makes space, and free slots may be given again.
    pub fn begin_poll(&mut self, net: &Net, now: Millis) {
        self.free.append(&mut self.freed);
        let mut events = Vec::new();
        for peer in self.peers_mut() {
            let link = net.links.get(&peer.link);
            let down = link.filter(|link| link.end_open).map(|link| &link.down);
            peer.queued.memory_bytes = down.map_or(0, |down| down.bytes);
            peer.queued.messages = down.map_or(0, |down| down.len());
            if peer.was_full && peer.queued.memory_bytes <= LANE_BYTES / 2 {
                peer.was_full = false;
                events.push(Event::Writable { peer: peer.id });
            }
            let is_over = link.and_then(|link| link.up.close_due()).is_some_and(|at| at <= now);
            if (peer.is_paused || peer.is_deferred) && is_over && !peer.has_hung_up {
                peer.has_hung_up = true;
                events.push(Event::HungUp { peer: peer.id });
            }
        }
        self.events.extend(events);
    }

    /// Whether a peer that was full has space by now.
    pub fn has_events(&self, net: &Net) -> bool {
        let mut full = self.slots.iter().filter_map(|slot| slot.peer.as_ref()).filter(|peer| peer.was_full);
        full.any(|peer| {
            let link = net.links.get(&peer.link).filter(|link| link.end_open);
            link.is_none_or(|link| link.down.bytes <= LANE_BYTES / 2)
        })
    }

    /// Whether the next packet of a link has to wait.
    pub fn defers(&mut self, link: LinkId, next: &Packet) -> bool {
        let defer = self.large == LargeMessages::Defer;
        let Some(&id) = self.by_link.get(&link) else { return false };
        let Some(peer) = self.find_mut(id) else { return false };
        let is_large = matches!(next, Packet::Frames(_)) && next.bytes() > LARGE_BYTES;
        peer.is_deferred = defer && peer.is_deferrable && is_large;
        if is_large && peer.is_deferrable && self.large == LargeMessages::AllowOne {
            self.large = LargeMessages::Defer;
        }
        self.find(id).is_some_and(|peer| peer.is_deferred)
    }

    /// Takes what has come over a link.
    pub fn receive(&mut self, link: LinkId, packet: Packet) {
        let Packet::Open = packet else {
            let Some(&id) = self.by_link.get(&link) else { return };
            return self.receive_from(id, packet);
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        let id = PeerId::new(slot, place.generation);
        place.peer = Some(Peer {
            id,
            link,
            wire: self.wire.clone(),
            queued: Queued::default(),
            sent_bytes: 0,
            was_full: false,
            is_paused: false,
            has_hung_up: false,
            is_deferrable: true,
            is_deferred: false,
        });
        self.by_link.insert(link, id);
        self.events.push_back(Event::Ready { peer: id });
    }

    fn receive_from(&mut self, id: PeerId, packet: Packet) {
        let now = self.now;
        let peer = id;
        let SimTransport { slots, happened, events, .. } = &mut *self;
        let Some(target) = slots[id.slot() as usize].peer.as_mut() else { return };
        target.wire.incoming(now, id, &packet, happened);
        match packet {
            Packet::Open => {}
            Packet::Frames(frames) => {
                events.push_back(Event::Message { peer, frames: frames.into_iter().collect(), continued: false });
            }
            Packet::Rest(frames) => {
                events.push_back(Event::Message { peer, frames: frames.into_iter().collect(), continued: true });
            }
            Packet::BodyStart { head, length, more } => {
                events.push_back(Event::BodyStart { peer, head: head.into_iter().collect(), length, more });
            }
            Packet::BodyData(data) => events.push_back(Event::BodyData { peer, data }),
            Packet::BodyEnd { more } => events.push_back(Event::BodyEnd { peer, more }),
            Packet::Close => self.remove(id, "closed".to_owned()),
        }
    }

    fn remove(&mut self, id: PeerId, reason: String) {
        let slot = &mut self.slots[id.slot() as usize];
        let Some(peer) = slot.peer.take_if(|peer| peer.id == id) else { return };
        slot.generation += 1;
        self.freed.push(id.slot());
        self.by_link.remove(&peer.link);
        self.events.push_back(Event::Gone { peer: id, reason });
    }
}

impl Transport for SimTransport {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn random(&mut self) -> io::Result<[u8; 16]> {
        self.names += 1;
        Ok(u128::from(self.names).to_be_bytes())
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn send(&mut self, id: PeerId, message: Message) -> Result<(), SendError> {
        let now = self.now;
        let SimTransport { slots, happened, effects, .. } = self;
        let slot = slots.get_mut(id.slot() as usize);
        let Some(peer) = slot.and_then(|slot| slot.peer.as_mut()).filter(|peer| peer.id == id) else {
            return Err(SendError::Gone(message));
        };
        if peer.queued.memory_bytes >= LANE_BYTES {
            peer.was_full = true;
            return Err(SendError::Full(message));
        }
        let frames: Frames = message
            .frames
            .into_iter()
            .map(|frame| match frame {
                Frame::Bytes(bytes) => bytes,
                Frame::File(_) => panic!("bodies are in memory here"),
            })
            .collect();
        let Outgoing { messages } = peer.wire.outgoing(now, id, frames, happened);
        for frames in messages {
            let bytes = frames.iter().map(Bytes::len).sum::<usize>();
            peer.queued.memory_bytes += bytes;
            peer.queued.messages += 1;
            peer.sent_bytes += bytes as u64;
            effects.push(Effect::Send(peer.link, frames));
        }
        Ok(())
    }

    fn flush(&mut self) {}

    fn has_output(&self) -> bool {
        false
    }

    fn authenticate(&mut self, _: Option<&Authenticator>, _: PeerId, _: Credentials) {}

    fn disconnect(&mut self, id: PeerId, reason: &str) {
        let Some(peer) = self.find(id) else { return };
        let link = peer.link;
        peer.wire.clone().forget_replies(&mut self.happened);
        self.effects.push(Effect::Close(link));
        self.remove(id, reason.to_owned());
    }

    fn reserve_slot(&mut self, gone: PeerId) -> bool {
        const RESERVED_MAX: usize = 64;
        let freed = self.freed.iter().position(|slot| *slot == gone.slot());
        match freed {
            Some(freed) if self.reserved.len() < RESERVED_MAX && self.wire.reserves_slots() => {
                self.freed.swap_remove(freed);
                self.reserved.push(gone);
                true
            }
            _ => false,
        }
    }

    fn release_slot(&mut self, gone: PeerId) {
        if let Some(at) = self.reserved.iter().position(|reserved| *reserved == gone) {
            self.reserved.swap_remove(at);
            self.freed.push(gone.slot());
        }
    }

    fn pause_reading(&mut self, id: PeerId, paused: bool) {
        if let Some(peer) = self.find_mut(id).filter(|peer| peer.is_paused != paused) {
            peer.is_paused = paused;
            let (link, has_hung_up) = (peer.link, peer.has_hung_up);
            self.effects.push(Effect::Pause(link, paused));
            if paused && has_hung_up {
                self.events.push_back(Event::HungUp { peer: id });
            }
        }
    }

    fn set_deferrable(&mut self, id: PeerId, deferrable: bool) {
        if let Some(peer) = self.find_mut(id) {
            peer.is_deferrable = deferrable;
        }
    }

    fn set_large_messages(&mut self, large: LargeMessages) {
        self.large = large;
    }

    fn is_deferred(&self, id: PeerId) -> bool {
        self.find(id).is_some_and(|peer| peer.is_deferred)
    }

    fn detect_stalls(&mut self, _: PeerId) {}

    fn extend_pong_timeout(&mut self, _: PeerId, _: Duration) {}

    fn end_half_closed(&mut self, _: PeerId, _: bool) {}

    fn set_read_budget_bytes(&mut self, _: usize) {}

    fn queued(&self, id: PeerId) -> Queued {
        self.find(id).map(|peer| peer.queued).unwrap_or_default()
    }

    fn queued_bytes(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.peer.as_ref()).map(|peer| peer.queued.memory_bytes).sum()
    }

    fn queue_limit(&self) -> usize {
        self.queue_limit
    }

    fn bytes_out(&self, id: PeerId) -> u64 {
        self.find(id).map_or(0, |peer| peer.sent_bytes - peer.queued.memory_bytes.min(peer.sent_bytes as usize) as u64)
    }

    fn is_prefetching(&self, _: PeerId) -> bool {
        false
    }

    fn has_property(&self, _: PeerId, _: &str) -> bool {
        false
    }

    fn address(&self, _: PeerId) -> Option<Address> {
        None
    }

    fn principal(&self, _: PeerId) -> Principal {
        Principal::Anonymous
    }

    /// One of three, another one for each connection.
    fn tenant(&self, id: PeerId) -> Option<Tenant> {
        self.find(id).map(|peer| Tenant::Ipc(Some(peer.link as u32 % 3)))
    }
}
