//! Send queues of the peers, and how large they may be.

use crate::error::SendError;
use crate::hub::Hub;
use crate::hub::member::Member;
use crate::message::{Frame, Message};
use crate::options::HubOptions;
use crate::peer_id::PeerId;
use towpath_zmtp::Queued;

/// Part of the remaining budget that one queue may have: however many are full, something is left for the next one.
const SHARE: usize = 8;

/// Bytes that a queue may have even if nothing remains: many small messages can be on their way to a peer then.
const QUEUE_BYTES_MIN: usize = 16 * 1024;

/// Bytes of memory in all send queues, and the limit on each that follows from it.
#[derive(Debug)]
pub(in crate::hub) struct SendBudget {
    bytes: usize,
    bytes_max: usize,
    queue_bytes_max: usize,
}

impl SendBudget {
    pub(in crate::hub) fn new(options: &HubOptions) -> SendBudget {
        SendBudget { bytes: 0, bytes_max: options.queued_bytes_max, queue_bytes_max: options.send_queue_bytes }
    }

    /// Bytes from which on a queue is full now.
    #[inline]
    pub(in crate::hub) fn limit(&self) -> usize {
        let share = self.bytes_max.saturating_sub(self.bytes) / SHARE;
        share.max(QUEUE_BYTES_MIN).min(self.queue_bytes_max)
    }

    /// Accounts for the change of one queue.
    #[inline]
    pub(in crate::hub) fn update(&mut self, member: &mut Member) {
        let queued = member.peer.queued_bytes();
        self.bytes = self.bytes - member.flow.queued_bytes + queued;
        member.flow.queued_bytes = queued;
    }

    /// Forgets the queue of a peer that is gone.
    pub(in crate::hub) fn forget(&mut self, member: &Member) {
        self.bytes -= member.flow.queued_bytes;
    }
}

impl Hub {
    /// Appends a message to a peer's queue. It leaves with the next poll. A full queue returns the message; a message larger than the whole
    /// queue is taken when the queue is empty. A message without frames is dropped.
    pub fn send(&mut self, peer: PeerId, message: Message) -> Result<(), SendError> {
        let limit = self.send_budget.limit();
        let Some(target) = self.peers.find_mut(peer).filter(|target| target.peer.is_ready()) else {
            return Err(SendError::Gone(message));
        };
        if target.peer.queued_bytes() >= limit {
            target.flow.was_full = true;
            return Err(SendError::Full(message));
        }
        target.peer.connection.send(message.frames.into_iter().map(Frame::into_body), message.tag);
        self.send_budget.update(target);
        target.schedule(&mut self.ready);
        Ok(())
    }

    /// Whether a message would be taken now. If not, [`Event::Writable`](crate::Event::Writable) reports when.
    pub fn is_writable(&mut self, peer: PeerId) -> bool {
        let limit = self.send_budget.limit();
        self.peers.find_mut(peer).is_some_and(|target| {
            target.flow.was_full = target.peer.queued_bytes() >= limit;
            target.peer.is_ready() && !target.flow.was_full
        })
    }

    /// The send queue of a peer.
    pub fn queued(&self, peer: PeerId) -> Queued {
        self.peers.find(peer).map(|target| target.peer.connection.outbox_ref().queued()).unwrap_or_default()
    }

    /// Whether a range of a file that a peer is sent next is being read from a disk.
    pub fn awaits_disk(&self, peer: PeerId) -> bool {
        self.peers.find(peer).is_some_and(|target| target.peer.write.is_prefetching())
    }

    /// Bytes of memory in all send queues.
    pub fn queued_bytes(&self) -> usize {
        self.send_budget.bytes
    }

    /// Bytes that the system has taken for a peer, framing included.
    pub fn bytes_out(&self, peer: PeerId) -> u64 {
        self.peers.find(peer).map_or(0, |target| target.peer.connection.outbox_ref().bytes_written())
    }

    /// Bytes from which on a queue is full now: at most [`HubOptions::send_queue_bytes`], less when [`HubOptions::queued_bytes_max`] is
    /// nearly used up.
    pub fn queue_limit(&self) -> usize {
        self.send_budget.limit()
    }

    /// Whether the next frame for a peer is being read from a disk or sealed, so that it isn't the peer's fault that nothing leaves.
    pub fn is_prefetching(&self, peer: PeerId) -> bool {
        self.peers.find(peer).is_some_and(|target| target.peer.is_being_prepared())
    }

    /// Removes queued messages with this tag that have not begun to leave, and gives their number. Their file ranges get no
    /// [`Event::FileSent`](crate::Event::FileSent).
    pub fn remove_queued(&mut self, peer: PeerId, tag: u64) -> usize {
        self.change_queue(peer, |target| target.peer.connection.outbox().remove_queued(tag))
    }

    /// Removes all queued messages that have not begun to leave, and gives what was removed.
    pub fn clear_queue(&mut self, peer: PeerId) -> Queued {
        self.change_queue(peer, |target| target.peer.connection.outbox().clear())
    }

    fn change_queue<T: Default>(&mut self, peer: PeerId, change: impl FnOnce(&mut Member) -> T) -> T {
        let Some(target) = self.peers.find_mut(peer) else { return T::default() };
        let removed = change(target);
        self.send_budget.update(target);
        // The next poll reports that the queue is writable: a peer that reads nothing gives no other cause to look.
        if target.flow.was_full {
            target.schedule(&mut self.ready);
        }
        removed
    }
}
