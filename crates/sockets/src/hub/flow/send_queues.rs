//! What waits to leave for the peers, and how much of it there may be.

use crate::error::SendError;
use crate::hub::{Hub, schedule};
use crate::message::{Frame, Message};
use crate::options::HubOptions;
use crate::peer::{Peer, PeerId};
use smallvec::SmallVec;
use towpath_zmtp::{Body, Queued};

/// One queue may have this part of what is left for all: however many are full, there is something left for who comes later.
const SHARE: usize = 8;

/// And so many bytes even if nothing is: a peer whose messages are small has many of them on their way then.
const QUEUE_BYTES_MIN: usize = 16 * 1024;

impl Hub {
    /// Appends a message to a peer's queue. It leaves at the next turn. A full queue gives the message back; a message larger
    /// than the whole queue is taken when the queue is empty. A message of no frames is nothing: nothing leaves.
    pub fn send(&mut self, peer: PeerId, message: Message) -> Result<(), SendError> {
        let bound = bound(&self.options, self.queued_bytes);
        let Some(target) = self.peers.find_mut(peer).filter(|target| target.is_ready()) else {
            return Err(SendError::Gone(message));
        };
        if target.connection.outbox_ref().queued().memory_bytes >= bound {
            target.was_full = true;
            return Err(SendError::Full(message));
        }
        let bodies = message.frames.into_iter().map(Frame::into_body).collect::<SmallVec<[Body<_>; 4]>>();
        target.connection.send(bodies, message.tag);
        recount(&mut self.queued_bytes, target);
        schedule(&mut self.runnable, target);
        Ok(())
    }

    /// Whether a message would be taken now. If not, [`Event::Writable`](crate::Event::Writable) tells when.
    pub fn is_writable(&mut self, peer: PeerId) -> bool {
        let bound = bound(&self.options, self.queued_bytes);
        self.peers.find_mut(peer).is_some_and(|peer| {
            peer.was_full = peer.connection.outbox_ref().queued().memory_bytes >= bound;
            peer.is_ready() && !peer.was_full
        })
    }

    /// What waits for a peer.
    pub fn queued(&self, peer: PeerId) -> Queued {
        self.peers.find(peer).map(|peer| peer.connection.outbox_ref().queued()).unwrap_or_default()
    }

    /// Bytes of memory that wait for all peers.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Bytes that the system has taken for a peer, with all framing.
    pub fn bytes_out(&self, peer: PeerId) -> u64 {
        self.peers.find(peer).map_or(0, |peer| peer.connection.outbox_ref().bytes_written())
    }

    /// Bytes from which on a queue is full now: of [`HubOptions::send_queue_bytes`], what [`HubOptions::queued_bytes_max`] leaves.
    pub fn queue_limit(&self) -> usize {
        bound(&self.options, self.queued_bytes)
    }

    /// Whether what is next for a peer is being read from a disk: that nothing leaves for it isn't the peer's doing.
    pub fn is_prefetching(&self, peer: PeerId) -> bool {
        self.peers.find(peer).is_some_and(|peer| peer.warming)
    }

    /// Removes messages with this tag that wait for a peer and have not begun to leave; gives their number. Their file ranges
    /// get no [`Event::FileSent`](crate::Event::FileSent).
    pub fn remove_queued(&mut self, peer: PeerId, tag: u64) -> usize {
        self.remove(peer, |peer| peer.connection.outbox().remove_queued(tag))
    }

    /// Removes all messages that wait for a peer and have not begun to leave; gives what was removed.
    pub fn clear_queue(&mut self, peer: PeerId) -> Queued {
        self.remove(peer, |peer| peer.connection.outbox().clear())
    }

    fn remove<T: Default>(&mut self, peer: PeerId, remove: impl FnOnce(&mut Peer) -> T) -> T {
        let Some(target) = self.peers.find_mut(peer) else { return T::default() };
        let removed = remove(target);
        recount(&mut self.queued_bytes, target);
        // Whoever waits for room hears of it in the next turn: a peer that reads nothing would give no other cause to look.
        if target.was_full {
            schedule(&mut self.runnable, target);
        }
        removed
    }
}

/// Bytes from which on a queue is full, while so many are in all of them.
#[inline]
pub(in crate::hub) fn bound(options: &HubOptions, queued_bytes: usize) -> usize {
    let share = options.queued_bytes_max.saturating_sub(queued_bytes) / SHARE;
    share.max(QUEUE_BYTES_MIN).min(options.send_queue_bytes)
}

/// Keeps the sum over all peers true after one of them had something to do.
#[inline]
pub(in crate::hub) fn recount(sum: &mut usize, peer: &mut Peer) {
    let queued = peer.connection.outbox_ref().queued().memory_bytes;
    *sum = *sum - peer.queued_bytes + queued;
    peer.queued_bytes = queued;
}
