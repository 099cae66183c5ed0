//! The table of peers: slots are used again, names are not.

use crate::peer_id::PeerId;

struct Slot<T> {
    generation: u32,
    peer: Option<Box<T>>,
}

/// Slots that may be reserved at a time: peers that come and go must not make the table grow without end.
const RESERVED_MAX: usize = 64;

/// All peers of a hub, each with the hub's bookkeeping.
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Slots that become free with the next poll, unless they are reserved before.
    freed: Vec<u32>,
    reserved: Vec<PeerId>,
    count: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { slots: Vec::new(), free: Vec::new(), freed: Vec::new(), reserved: Vec::new(), count: 0 }
    }
}

impl<T> Table<T> {
    /// The name under which the next peer is to be inserted.
    pub(crate) fn next_id(&self) -> PeerId {
        match self.free.last() {
            Some(&slot) => {
                let generation = self.slots.get(slot as usize).map_or(0, |slot| slot.generation);
                PeerId { slot, generation }
            }
            None => PeerId { slot: self.slots.len() as u32, generation: 0 },
        }
    }

    pub(crate) fn insert(&mut self, id: PeerId, peer: T) {
        debug_assert_eq!(id, self.next_id());
        if self.free.pop().is_none() {
            self.slots.push(Slot { generation: 0, peer: None });
        }
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            slot.peer = Some(Box::new(peer));
            self.count += 1;
        }
    }

    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Box<T>> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.freed.push(id.slot);
        self.count -= 1;
        Some(peer)
    }

    /// Frees the slots of peers whose end was reported: the application had its chance to reserve them.
    pub(crate) fn release_freed(&mut self) {
        self.free.append(&mut self.freed);
    }

    /// Keeps the slot of a peer that is gone from being used again. False if that may have happened already, or too many are reserved.
    pub(crate) fn reserve_slot(&mut self, id: PeerId) -> bool {
        let was_last = |slot: &Slot<T>| slot.generation == id.generation.wrapping_add(1) && slot.peer.is_none();
        let freed = self.freed.iter().position(|slot| *slot == id.slot);
        match freed.filter(|_| self.slots.get(id.slot as usize).is_some_and(was_last)) {
            Some(freed) if self.reserved.len() < RESERVED_MAX => {
                self.freed.swap_remove(freed);
                self.reserved.push(id);
                true
            }
            _ => false,
        }
    }

    /// Lets a reserved slot be used again. Nothing happens if it isn't reserved.
    pub(crate) fn release_slot(&mut self, id: PeerId) {
        if let Some(index) = self.reserved.iter().position(|reserved| *reserved == id) {
            self.reserved.swap_remove(index);
            self.freed.push(id.slot);
        }
    }

    pub(crate) fn find(&self, id: PeerId) -> Option<&T> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.peer.as_deref().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn find_mut(&mut self, id: PeerId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.peer.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.peer.as_deref())
    }

    /// Peers from this slot on.
    pub(crate) fn iter_from(&self, slot: u32) -> impl Iterator<Item = &T> {
        self.slots.get(slot as usize..).unwrap_or_default().iter().filter_map(|slot| slot.peer.as_deref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.peer.as_deref_mut())
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}
