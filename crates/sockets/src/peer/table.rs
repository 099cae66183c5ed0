//! The table of peers: slots that are used again, with names that aren't.

use crate::peer::{Peer, PeerId};

#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Box<Peer>>,
}

/// Places that are kept at a time, at most: who comes and goes must not have the table grow without end.
const KEPT_MAX: usize = 64;

/// All peers of a hub.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Free from the next turn on, unless they are kept until then.
    freed: Vec<u32>,
    kept: Vec<PeerId>,
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
        self.freed.push(id.slot);
        self.count -= 1;
        Some(peer)
    }

    /// Whoever was told who is gone has had the time to keep its place.
    pub(crate) fn release_freed(&mut self) {
        self.free.append(&mut self.freed);
    }

    /// Keeps the place of a peer that is gone from the next one. False if another one has or may have it, or too many are kept.
    pub(crate) fn reserve_slot(&mut self, id: PeerId) -> bool {
        let is_the_last = |slot: &Slot| slot.generation == id.generation.wrapping_add(1) && slot.peer.is_none();
        let freed = self.freed.iter().position(|slot| *slot == id.slot);
        match freed.filter(|_| self.slots.get(id.slot as usize).is_some_and(is_the_last)) {
            Some(freed) if self.kept.len() < KEPT_MAX => {
                self.freed.swap_remove(freed);
                self.kept.push(id);
                true
            }
            _ => false,
        }
    }

    /// The place of a peer that is gone may be given to another. Nothing happens if it wasn't kept.
    pub(crate) fn release_slot(&mut self, id: PeerId) {
        if let Some(kept) = self.kept.iter().position(|kept| *kept == id) {
            self.kept.swap_remove(kept);
            self.freed.push(id.slot);
        }
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
