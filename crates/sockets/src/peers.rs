//! The table of peers: slots that are used again, with names that aren't.

use crate::peer::{Peer, PeerId};

#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Box<Peer>>,
}

/// All peers of a hub.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    count: usize,
}

impl Peers {
    /// The name that the next peer gets from [`Peers::insert`].
    pub(crate) fn next_id(&self) -> PeerId {
        match self.free.last() {
            Some(&slot) => {
                let generation = self.slots.get(slot as usize).map_or(0, |slot| slot.generation);
                PeerId { slot, generation }
            }
            None => PeerId { slot: self.slots.len() as u32, generation: 0 },
        }
    }

    pub(crate) fn insert(&mut self, peer: Peer) {
        debug_assert_eq!(peer.id, self.next_id());
        let id = peer.id;
        if self.free.pop().is_none() {
            self.slots.push(Slot::default());
        }
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            slot.peer = Some(Box::new(peer));
            self.count += 1;
        }
    }

    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Box<Peer>> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.count -= 1;
        Some(peer)
    }

    pub(crate) fn find(&self, id: PeerId) -> Option<&Peer> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.peer.as_deref().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn find_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.peer.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.slots.iter().filter_map(|slot| slot.peer.as_deref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.slots.iter_mut().filter_map(|slot| slot.peer.as_deref_mut())
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}
