//! What a hub does about messages that have begun: who is read on, who waits, who is sent away. What there is of them is counted by
//! `Begun`.

use super::reassembly::{Begun, LargeMessages, PATIENCE, Passage, READ_BYTES, SMALL_BYTES, Underway};
use crate::event::Event;
use crate::hub::{Hub, schedule};
use crate::peer::{Peer, PeerId};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Instant;

impl Hub {
    /// Bytes that a peer may read now of messages that are taken whole.
    #[inline]
    pub(in crate::hub) fn may_read(begun: &mut Begun, peer: &mut Peer) -> usize {
        if begun.is_open() && begun.large == LargeMessages::Allow {
            return begun.left();
        }
        if !peer.wants_to_read() {
            return usize::MAX;
        }
        if !peer.is_ready() {
            // The handshake has limits of its own; what comes behind it in the same turn hasn't.
            return READ_BYTES;
        }
        let body = peer.connection.body_remaining();
        if body > 0 {
            return usize::try_from(body).unwrap_or(usize::MAX).max(READ_BYTES);
        }
        let message = Underway::of(peer);
        begun.may_read(peer.id, &mut peer.passage, message)
    }

    /// Says whether larger messages of a peer wait when the application wants none ([`Hub::set_large_messages`]). Those of new peers do.
    pub fn set_deferrable(&mut self, peer: PeerId, yields: bool) {
        if let Some(peer) = self.peers.find_mut(peer).filter(|peer| peer.yields != yields) {
            peer.yields = yields;
            if peer.passage == Passage::Held {
                peer.passage = Passage::Open;
                schedule(&mut self.runnable, peer);
            }
        }
    }

    /// Back-pressure for all peers that yield, until something else is said: messages of more than 4 KiB that aren't streamed don't begin,
    /// and what has begun of them isn't read on. [`Event::HungUp`] tells of peers that end meanwhile.
    pub fn set_large_messages(&mut self, large: LargeMessages) {
        self.now = Instant::now();
        self.begun.large = large;
        match large {
            LargeMessages::Allow => while self.call_next() {},
            LargeMessages::AllowOne => {
                let called = self.begun.called.and_then(|id| self.peers.find(id)).map(|peer| peer.passage);
                if !matches!(called, Some(Passage::Waits { is_called: true })) {
                    self.call_next();
                }
            }
            LargeMessages::Defer => {}
        }
        self.let_pass();
    }

    /// Puts in line whose message has been held back longest, if there is one.
    fn call_next(&mut self) -> bool {
        while let Some(id) = self.begun.held.pop_front() {
            if let Some(peer) = self.peers.find_mut(id).filter(|peer| peer.passage == Passage::Held) {
                peer.passage = Passage::Waits { is_called: true };
                self.begun.called = Some(id);
                self.begun.line.push_back(id);
                self.begun.is_freed = true;
                return true;
            }
        }
        false
    }

    /// Whether a message of this peer waits until the application wants it.
    pub fn is_deferred(&self, peer: PeerId) -> bool {
        self.peers.find(peer).is_some_and(|peer| peer.passage == Passage::Held)
    }

    /// Keeps the sum over all peers true after one of them had its turn, before which so many messages of it had come whole.
    #[inline]
    pub(in crate::hub) fn count_begun(begun: &mut Begun, peer: &mut Peer, count: u64) {
        let bytes = peer.begun_bytes();
        if bytes == peer.reassembly_bytes && peer.passage == Passage::Open {
            return;
        }
        let message = Underway { bytes, ..Underway::of(peer) };
        let before = Underway { bytes: peer.reassembly_bytes, count, ..message };
        begun.recount(peer.id, &mut peer.passage, before, message);
        peer.reassembly_bytes = bytes;
    }

    /// A peer is gone.
    pub(in crate::hub) fn forget_begun(&mut self, peer: &Peer) {
        self.begun.forget(peer.passage, peer.reassembly_bytes);
        if peer.passage == Passage::Held {
            self.begun.held.retain(|id| *id != peer.id);
        }
    }

    /// Lets those go on for whom there is room by now.
    pub(in crate::hub) fn let_pass(&mut self) {
        self.begun.relax();
        if !self.begun.is_due(self.now) {
            return;
        }
        let now = self.now;
        while let Some(id) = self.begun.had_its_time(now) {
            if let Some(peer) = self.peers.find_mut(id) {
                self.begun.take_place(&mut peer.passage, now);
                schedule(&mut self.runnable, peer);
            }
        }
        self.begun.is_freed = false;
        let (mut stays, mut held) = (VecDeque::new(), VecDeque::new());
        let mut has_next = false;
        for id in std::mem::take(&mut self.begun.line) {
            let Some(peer) = self.peers.find_mut(id) else { continue };
            let Passage::Waits { is_called } = peer.passage else { continue };
            let message = Underway::of(peer);
            let may_begin = is_called && self.begun.large == LargeMessages::AllowOne;
            if self.begun.holds(message) && !may_begin {
                peer.passage = Passage::Held;
                held.push_back(id);
                if peer.hung_up && !std::mem::replace(&mut peer.told_of_end, true) {
                    self.events.push_back(Event::HungUp { peer: id });
                }
            } else if !has_next && self.begun.admit(id, &mut peer.passage, message, now) {
                schedule(&mut self.runnable, peer);
            } else {
                has_next |= stays.is_empty() && self.begun.is_next(id, now);
                stays.push_back(id);
            }
        }
        self.begun.line = stays;
        // They have waited longer than those that were held back at once.
        held.append(&mut self.begun.held);
        self.begun.held = held;
        // Who has said nothing may have done so that the kernel hasn't told of yet.
        if self.begun.is_stuck(now) && !self.more_ready {
            self.begun.standing = None;
            self.end_stalled();
        }
        self.next_timer = self.next_timer.into_iter().chain(self.begun.deadline()).min();
    }

    /// When somebody's place in front of those that wait is over.
    pub(in crate::hub) fn begun_deadline(&self) -> Option<Instant> {
        self.begun.deadline()
    }

    /// Ends those that have stopped in the middle of a message, the largest first, until a quarter of the room is free. If there are none,
    /// they are only slow: then whoever has the most.
    fn end_stalled(&mut self) {
        let now = self.now;
        let is_silent = |peer: &&Peer| {
            let silence = now.saturating_duration_since(peer.connection.last_heard());
            peer.reassembly_bytes > SMALL_BYTES && !peer.readable && !peer.is_stopped() && silence >= PATIENCE
        };
        let silent = self.peers.iter().filter(is_silent).map(|peer| (Reverse(peer.reassembly_bytes), peer.id));
        let mut silent: Vec<_> = silent.collect();
        silent.sort_unstable_by_key(|(bytes, _)| *bytes);
        let (mut freed, enough) = (0, self.begun.room / 4);
        for (Reverse(bytes), id) in silent {
            if freed >= enough {
                return;
            }
            freed += bytes;
            self.give_up_begun(id, "it has stopped in the middle of a message, and others wait for the room");
        }
        if freed == 0 {
            self.end_largest();
        }
    }

    /// Ends the peer that has the most of what isn't whole yet: there is no room for it and for what others want to say.
    pub(in crate::hub) fn end_largest(&mut self) {
        if let Some(largest) = self.peers.iter().max_by_key(|peer| peer.reassembly_bytes).map(|peer| peer.id) {
            self.give_up_begun(
                largest,
                "too much memory is in messages that have not ended, others wait, and this one is the largest",
            );
        }
    }

    fn give_up_begun(&mut self, id: PeerId, why: &str) {
        if let Some(peer) = self.peers.find(id) {
            let bytes = peer.reassembly_bytes;
            tracing::warn!(peer = %id, address = %peer.address, bytes, "a message that has not ended is given up: {why}");
        }
        self.disconnect(id, why);
    }
}
