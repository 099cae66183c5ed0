//! Limits the memory held by messages that are not complete, and decides which peers may go on with theirs.
//!
//! A message needs memory while it arrives, and a peer that is cut off for lack of it loses what it sent without notice. So from half of the
//! limit on, a larger message goes on only if the rest of its frame fits, which is reserved for it: its peer has a read permit. The other peers
//! wait in order, their bytes in the kernel's buffers and then at the sender. As long as messages end, the queue moves and nobody is cut off.
//!
//! Nobody is trusted to end. A permit lasts a while when others wait; then the next peer gets one, and the first keeps what it has. If the
//! queue stalls, as nothing ends and hardly anything arrives, the limit rises, up to the memory that there is for this. Then one peer goes on
//! over budget. If that doesn't help, peers that are silent in the middle of a message are disconnected, or else the largest.
//!
//! An application that is short of memory defers the larger messages of peers from which it could only get more of the same.

use crate::hub::member::Member;
use crate::options::HubOptions;
use crate::peer_id::PeerId;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_zmtp::limits::FRAME_OVERHEAD_BYTES;

/// Messages up to this size, as far as they are known, are not deferred and hardly ever queued.
pub(super) const SMALL_BYTES: usize = 4 * 1024;
/// Bytes that these may take beyond the limit.
const SMALL_BYTES_MAX: usize = 8 << 20;
/// Minimum bytes to read, and the cost of frames that may come with them: empty ones take two bytes each.
pub(super) const READ_BYTES: usize = 512;
const READ_COST_BYTES: usize = READ_BYTES + READ_BYTES / 2 * FRAME_OVERHEAD_BYTES;
/// Duration of a permit while others wait.
const PERMIT_TIME: Duration = Duration::from_secs(1);
/// The limit rises after a stall of this length. The head of the queue isn't overtaken after as long.
const RAISE_AFTER: Duration = Duration::from_millis(100);
/// Peers are disconnected after a stall of this length at the highest limit: those first that have been silent for as long.
pub(super) const CUT_AFTER: Duration = Duration::from_millis(500);

/// Bytes a second at which those that have permits make progress: a slow machine or network is no stall.
const PROGRESS_RATE: f64 = 8e6;

/// Whether a peer may go on with its message.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum ReadPermit {
    /// No permit is needed while there is enough memory.
    #[default]
    Open,
    /// The application defers the message.
    Deferred,
    /// In the queue; `is_called`: the application allowed this message to begin.
    Queued { is_called: bool },
    /// Bytes are reserved until then.
    Granted { reserved: usize, until: Instant },
    /// Goes on although nothing could be reserved.
    OverBudget,
}

impl ReadPermit {
    pub(crate) fn allows_reading(self) -> bool {
        !matches!(self, ReadPermit::Deferred | ReadPermit::Queued { .. })
    }
}

/// The head of the queue, and for how long nothing was seen to end or to make progress since it became that, or since the limit rose.
#[derive(Copy, Clone, Debug)]
pub(super) struct QueueHead {
    peer: PeerId,
    since: Instant,
    looked_at: Instant,
    stalled: Duration,
}

/// Which messages of more than 4 KiB may begin, from peers whose messages the application may defer ([`crate::Hub::set_deferrable`]).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum LargeMessages {
    /// All.
    #[default]
    Allow,
    /// One more when the former has begun: that of the peer that has waited longest. To be said again for the next.
    AllowOne,
    /// None.
    Defer,
}

/// A message that is not complete.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct PartialMessage {
    /// Memory that it takes.
    pub(super) bytes: usize,
    /// Bytes that its current frame lacks.
    pub(super) wanted: usize,
    /// Complete messages before it.
    pub(super) count: u64,
    /// More of it may have arrived.
    pub(super) is_readable: bool,
    /// Reading isn't paused, and its current frame isn't streamed.
    pub(super) is_read: bool,
    pub(super) deferrable: bool,
}

impl PartialMessage {
    pub(super) fn new(member: &Member) -> PartialMessage {
        let peer = &member.peer;
        PartialMessage {
            bytes: peer.reassembly_bytes(),
            wanted: peer.connection.wanted(),
            count: peer.read.messages_in,
            is_readable: peer.read.is_readable,
            is_read: !member.is_paused() && peer.connection.body_remaining() == 0,
            deferrable: member.flow.deferrable,
        }
    }

    fn is_small(self) -> bool {
        self.bytes.saturating_add(self.wanted) <= SMALL_BYTES
    }

    /// Bytes to read next: the rest of the frame, so that the next message doesn't begin in its place.
    fn next_bytes(self) -> usize {
        self.wanted.max(READ_BYTES)
    }

    /// Memory that these may take.
    fn needed_bytes(self) -> usize {
        self.wanted.saturating_add(FRAME_OVERHEAD_BYTES).max(READ_COST_BYTES)
    }
}

/// The memory that incomplete messages of all peers may take.
#[derive(Debug)]
pub(in crate::hub) struct ReassemblyBudget {
    bytes: usize,
    /// Current limit, between these, besides one message over budget.
    pub(super) limit: usize,
    limit_min: usize,
    limit_max: usize,
    /// Bytes reserved by permits.
    reserved: usize,
    /// Peers with permits, the oldest first; some are complete since.
    granted: VecDeque<(PeerId, Instant)>,
    /// The peer that goes on over budget, and what its message takes.
    over_budget: Option<(PeerId, usize)>,
    pub(super) queue: VecDeque<PeerId>,
    /// The queue may move.
    pub(super) may_move: bool,
    pub(super) head: Option<QueueHead>,
    pub(super) large: LargeMessages,
    /// Peers whose messages are deferred.
    pub(super) deferred: VecDeque<PeerId>,
    /// The last of these that was allowed to begin.
    pub(super) called: Option<PeerId>,
}

impl ReassemblyBudget {
    pub(in crate::hub) fn new(options: &HubOptions) -> ReassemblyBudget {
        // No memory has more.
        const MOST: usize = usize::MAX / 8;
        let limit = options.reassembly_bytes_max.min(MOST);
        ReassemblyBudget {
            bytes: 0,
            limit,
            limit_min: limit,
            limit_max: options.reassembly_bytes_most().clamp(limit, MOST),
            reserved: 0,
            granted: VecDeque::new(),
            over_budget: None,
            queue: VecDeque::new(),
            may_move: false,
            head: None,
            large: LargeMessages::Allow,
            deferred: VecDeque::new(),
            called: None,
        }
    }

    pub(in crate::hub) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everyone may read.
    pub(super) fn is_ample(&self) -> bool {
        self.bytes <= self.limit / 2
    }

    /// Bytes that each may read while everyone may.
    pub(super) fn ample_bytes(&self) -> usize {
        self.limit.saturating_sub(self.bytes).max(SMALL_BYTES)
    }

    /// Whether a message may go on without a permit.
    pub(super) fn needs_no_permit(&self, message: PartialMessage) -> bool {
        self.is_ample() && !self.may_defer(message)
    }

    fn may_defer(&self, message: PartialMessage) -> bool {
        message.deferrable && self.large != LargeMessages::Allow
    }

    pub(super) fn defers(&self, message: PartialMessage) -> bool {
        self.may_defer(message) && !message.is_small()
    }

    fn fits(&self, bytes: usize) -> bool {
        let over_budget = self.over_budget.map_or(0, |(_, bytes)| bytes);
        (self.bytes - over_budget).saturating_add(self.reserved).saturating_add(bytes) <= self.limit
    }

    /// Bytes that a peer may read now. If none, it is queued or deferred.
    pub(super) fn allowance(&mut self, id: PeerId, permit: &mut ReadPermit, message: PartialMessage) -> usize {
        match permit {
            ReadPermit::Granted { .. } | ReadPermit::OverBudget => message.next_bytes(),
            ReadPermit::Open if self.needs_no_permit(message) => self.ample_bytes(),
            // Small messages would be the last to fill it.
            ReadPermit::Open if message.is_small() && self.bytes <= self.limit_max.saturating_add(SMALL_BYTES_MAX) => {
                if self.fits(self.limit / 4) {
                    SMALL_BYTES
                } else {
                    READ_BYTES
                }
            }
            ReadPermit::Open if self.defers(message) => {
                *permit = ReadPermit::Deferred;
                self.deferred.push_back(id);
                0
            }
            ReadPermit::Open => {
                *permit = ReadPermit::Queued { is_called: false };
                self.queue.push_back(id);
                self.may_move = true;
                0
            }
            ReadPermit::Queued { .. } | ReadPermit::Deferred => 0,
        }
    }

    /// Accounts for the change of a peer's message, from what was counted before to what it is now.
    pub(super) fn update(&mut self, id: PeerId, permit: &mut ReadPermit, before: PartialMessage, now: PartialMessage) {
        self.bytes = self.bytes - before.bytes + now.bytes;
        let is_complete = now.count != before.count || (now.bytes == 0 && !now.is_readable);
        let is_over = is_complete || !now.is_read || self.needs_no_permit(now);
        if let (ReadPermit::Granted { .. } | ReadPermit::OverBudget, Some(head)) = (&permit, &mut self.head) {
            let arrived = Duration::from_secs_f64(now.bytes.saturating_sub(before.bytes) as f64 / PROGRESS_RATE);
            head.stalled = if is_complete { Duration::ZERO } else { head.stalled.saturating_sub(arrived) };
        }
        match permit {
            ReadPermit::Granted { reserved, .. } => {
                self.reserved -= std::mem::take(reserved);
                if is_over {
                    self.open(permit);
                } else if self.fits(now.needed_bytes()) {
                    *reserved = now.needed_bytes();
                    self.reserved += now.needed_bytes();
                } else {
                    // Its next frame is larger.
                    *permit = ReadPermit::Queued { is_called: true };
                    self.queue.push_front(id);
                }
                self.may_move = true;
            }
            ReadPermit::OverBudget if is_over => {
                self.over_budget = None;
                self.open(permit);
            }
            ReadPermit::OverBudget => self.over_budget = Some((id, now.bytes)),
            ReadPermit::Open | ReadPermit::Queued { .. } | ReadPermit::Deferred => {
                self.may_move |= now.bytes < before.bytes;
            }
        }
    }

    fn open(&mut self, permit: &mut ReadPermit) {
        *permit = ReadPermit::Open;
        self.may_move = true;
    }

    /// Releases what a peer that is gone took.
    pub(super) fn release(&mut self, permit: ReadPermit, bytes: usize) {
        self.bytes -= bytes;
        self.may_move = true;
        match permit {
            ReadPermit::Granted { reserved, .. } => self.reserved -= reserved,
            ReadPermit::OverBudget => self.over_budget = None,
            // Its entry in the queue is found to be nobody's.
            ReadPermit::Queued { .. } | ReadPermit::Deferred | ReadPermit::Open => {}
        }
    }

    /// Lowers the limit again when hardly anything is needed.
    pub(super) fn lower_limit(&mut self) {
        if self.limit > self.limit_min && self.bytes.saturating_add(self.reserved) <= self.limit / 8 {
            self.limit = (self.limit / 2).max(self.limit_min);
        }
    }

    /// Raises the limit if the queue has stalled. True if it stalls for too long at the highest limit.
    pub(super) fn is_stuck(&mut self, now: Instant) -> bool {
        let first = self.queue.front().copied();
        let Some(head) = self.head.as_mut().filter(|head| first == Some(head.peer)) else {
            self.head = first.map(|peer| QueueHead { peer, since: now, looked_at: now, stalled: Duration::ZERO });
            return false;
        };
        // It may have moved while nobody looked.
        head.stalled += now.saturating_duration_since(head.looked_at).min(2 * RAISE_AFTER);
        head.looked_at = now;
        if self.limit < self.limit_max && head.stalled >= RAISE_AFTER {
            self.limit = self.limit.saturating_mul(2).max(self.limit_max / 16).min(self.limit_max);
            head.stalled = Duration::ZERO;
            self.may_move = true;
        }
        self.limit == self.limit_max && head.stalled >= CUT_AFTER
    }

    /// Whether a peer has been the head of the queue for so long that nobody may overtake it.
    pub(super) fn has_priority(&self, id: PeerId, now: Instant) -> bool {
        self.head.is_some_and(|head| head.peer == id && now.saturating_duration_since(head.since) >= RAISE_AFTER)
    }

    /// Whether the queue may move, or a permit has expired.
    pub(in crate::hub) fn is_due(&self, now: Instant) -> bool {
        !self.queue.is_empty() && (self.may_move || self.deadline().is_some_and(|at| at <= now))
    }

    /// When the next permit expires or the queue is to be looked at, if anyone waits.
    pub(in crate::hub) fn deadline(&self) -> Option<Instant> {
        let expires = self.granted.front().map(|(_, until)| *until);
        let look = self.head.map(|head| head.looked_at + RAISE_AFTER);
        expires.into_iter().chain(look).min().filter(|_| !self.queue.is_empty())
    }

    /// The next peer whose permit has expired.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<PeerId> {
        let (id, _) = *self.granted.front().filter(|(_, until)| *until <= now)?;
        self.granted.pop_front();
        Some(id)
    }

    /// Ends a permit that has expired.
    pub(super) fn revoke(&mut self, permit: &mut ReadPermit, now: Instant) {
        if let ReadPermit::Granted { reserved, until } = *permit
            && until <= now
        {
            self.reserved -= reserved;
            self.open(permit);
        }
    }

    /// Grants a permit to a queued peer; false if it has to wait on.
    pub(super) fn grant(&mut self, id: PeerId, permit: &mut ReadPermit, message: PartialMessage, now: Instant) -> bool {
        if self.needs_no_permit(message) || !message.is_read {
            *permit = ReadPermit::Open;
        } else if self.fits(message.needed_bytes()) {
            let until = now + PERMIT_TIME;
            *permit = ReadPermit::Granted { reserved: message.needed_bytes(), until };
            self.reserved += message.needed_bytes();
            self.granted.push_back((id, until));
        } else if self.limit == self.limit_max && self.over_budget.is_none() {
            *permit = ReadPermit::OverBudget;
            self.over_budget = Some((id, message.bytes));
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_zmtp::SocketType;

    /// Whether the queue is stuck after two seconds in which a peer over budget sent this many bytes each 100 ms.
    fn is_stuck_at(bytes: usize) -> bool {
        let mut budget = ReassemblyBudget::new(&HubOptions::new(SocketType::Router));
        let waiting = PeerId { slot: 0, generation: 0 };
        let slow = PeerId { slot: 1, generation: 0 };
        let (mut now, mut permit) = (Instant::now(), ReadPermit::OverBudget);
        (budget.limit, budget.limit_max) = (1 << 20, 1 << 20);
        budget.queue.push_back(waiting);
        let wanted = 1 << 30;
        let mut message =
            PartialMessage { bytes: 8 << 20, wanted, count: 0, is_readable: true, is_read: true, deferrable: false };
        budget.bytes = message.bytes;
        (0..20).any(|_| {
            now += RAISE_AFTER;
            let before = message;
            message.bytes += bytes;
            budget.update(slow, &mut permit, before, message);
            budget.is_stuck(now)
        })
    }

    #[test]
    fn a_slow_message_that_makes_progress_is_no_stall() {
        assert!(is_stuck_at(0));
        assert!(is_stuck_at(100_000));
        assert!(!is_stuck_at(900_000));
    }
}
