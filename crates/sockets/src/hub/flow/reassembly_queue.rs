//! The reassembly budget applied to peers: which one reads how much, which one waits, which one is disconnected.

use super::reassembly::{
    CUT_AFTER, LargeMessages, PartialMessage, READ_BYTES, ReadPermit, ReassemblyBudget, SMALL_BYTES,
};
use crate::event::Event;
use crate::hub::member::Member;
use crate::peer::table::Table;
use crate::peer_id::PeerId;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Instant;

impl ReassemblyBudget {
    /// Bytes of whole messages that a peer may read now.
    #[inline]
    pub(in crate::hub) fn read_allowance(&mut self, member: &mut Member) -> usize {
        if self.is_ample() && self.large == LargeMessages::Allow {
            return self.ample_bytes();
        }
        if !member.wants_to_read() {
            return usize::MAX;
        }
        if !member.peer.is_ready() {
            // The handshake has limits of its own; what comes behind it in the same poll hasn't.
            return READ_BYTES;
        }
        let body = member.peer.connection.body_remaining();
        if body > 0 {
            return usize::try_from(body).unwrap_or(usize::MAX).max(READ_BYTES);
        }
        let message = PartialMessage::new(member);
        self.allowance(member.peer.id, &mut member.flow.permit, message)
    }

    /// Accounts for a peer that was read. `count`: complete messages before that.
    #[inline]
    pub(in crate::hub) fn account(&mut self, member: &mut Member, count: u64) {
        let bytes = member.peer.reassembly_bytes();
        if bytes == member.flow.reassembly_bytes && member.flow.permit == ReadPermit::Open {
            return;
        }
        let now = PartialMessage::new(member);
        let before = PartialMessage { bytes: member.flow.reassembly_bytes, count, ..now };
        self.update(member.peer.id, &mut member.flow.permit, before, now);
        member.flow.reassembly_bytes = bytes;
    }

    /// Forgets a peer that is gone.
    pub(in crate::hub) fn forget(&mut self, member: &Member) {
        self.release(member.flow.permit, member.flow.reassembly_bytes);
        if member.flow.permit == ReadPermit::Deferred {
            self.deferred.retain(|id| *id != member.peer.id);
        }
    }

    /// Sets which larger messages may begin, and queues deferred ones accordingly.
    pub(in crate::hub) fn set_large(&mut self, large: LargeMessages, peers: &mut Table<Member>) {
        self.large = large;
        match large {
            LargeMessages::Allow => while self.call_next(peers) {},
            LargeMessages::AllowOne => {
                let called = self.called.and_then(|id| peers.find(id)).map(|member| member.flow.permit);
                if !matches!(called, Some(ReadPermit::Queued { is_called: true })) {
                    self.call_next(peers);
                }
            }
            LargeMessages::Defer => {}
        }
    }

    /// Queues the message that has been deferred longest, if there is one.
    fn call_next(&mut self, peers: &mut Table<Member>) -> bool {
        while let Some(id) = self.deferred.pop_front() {
            if let Some(member) = peers.find_mut(id).filter(|member| member.flow.permit == ReadPermit::Deferred) {
                member.flow.permit = ReadPermit::Queued { is_called: true };
                self.called = Some(id);
                self.queue.push_back(id);
                self.may_move = true;
                return true;
            }
        }
        false
    }

    /// Lets queued peers go on for which there is memory now. True if the queue has stalled for too long.
    pub(in crate::hub) fn move_queue(
        &mut self,
        peers: &mut Table<Member>,
        ready: &mut VecDeque<PeerId>,
        events: &mut VecDeque<Event>,
        now: Instant,
    ) -> bool {
        self.lower_limit();
        if !self.is_due(now) {
            return false;
        }
        while let Some(id) = self.next_expired(now) {
            if let Some(member) = peers.find_mut(id) {
                self.revoke(&mut member.flow.permit, now);
                member.schedule(ready);
            }
        }
        self.may_move = false;
        let (mut waiting, mut deferred) = (VecDeque::new(), VecDeque::new());
        let mut must_wait = false;
        for id in std::mem::take(&mut self.queue) {
            let Some(member) = peers.find_mut(id) else { continue };
            let ReadPermit::Queued { is_called } = member.flow.permit else { continue };
            let message = PartialMessage::new(member);
            let may_begin = is_called && self.large == LargeMessages::AllowOne;
            if self.defers(message) && !may_begin {
                member.flow.permit = ReadPermit::Deferred;
                deferred.push_back(id);
                member.report_hang_up(events);
            } else if !must_wait && self.grant(id, &mut member.flow.permit, message, now) {
                member.schedule(ready);
            } else {
                must_wait |= waiting.is_empty() && self.has_priority(id, now);
                waiting.push_back(id);
            }
        }
        self.queue = waiting;
        // They have waited longer than those that were deferred at once.
        deferred.append(&mut self.deferred);
        self.deferred = deferred;
        self.is_stuck(now)
    }

    /// Peers to disconnect because the queue has stalled for too long: those that have stopped in the middle of a message, the largest first,
    /// until a quarter of the limit is free. None: all are only slow.
    pub(in crate::hub) fn stalled(&mut self, peers: &Table<Member>, now: Instant) -> Vec<PeerId> {
        self.head = None;
        let is_silent = |member: &&Member| {
            let silence = now.saturating_duration_since(member.peer.connection.last_received());
            let has_stopped = !member.peer.read.is_readable && !member.is_paused() && silence >= CUT_AFTER;
            has_stopped && member.flow.reassembly_bytes > SMALL_BYTES
        };
        let silent = peers.iter().filter(is_silent).map(|member| (member.flow.reassembly_bytes, member.peer.id));
        let mut silent: Vec<_> = silent.collect();
        silent.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let (mut freed, enough) = (0, self.limit / 4);
        let take = |(bytes, id): (usize, PeerId)| {
            let is_needed = freed < enough;
            freed += bytes;
            is_needed.then_some(id)
        };
        silent.into_iter().map_while(take).collect()
    }
}
