//! A peer together with the hub's bookkeeping for it.

use super::connect::{Attempt, Origin};
use super::flow::{FlowState, reassembly::ReadPermit};
use super::stats::Traffic;
use crate::event::Event;
use crate::peer::Peer;
use crate::peer_id::PeerId;
use std::collections::VecDeque;
use std::time::Instant;

pub(super) struct Member {
    pub(super) peer: Peer,
    pub(super) origin: Origin,
    /// The attempt to connect that it belongs to, until it is ready.
    pub(super) attempt: Option<Box<Attempt>>,
    /// connect(2) is in progress.
    pub(super) is_connecting: bool,
    /// When connect(2) is given up, because there is another address to try.
    pub(super) connect_deadline: Option<Instant>,
    /// When to send it the refusal of its login.
    pub(super) refuse_at: Option<Instant>,
    /// When the handshake was over.
    pub(super) ready_at: Option<Instant>,
    /// The connection ends when everything queued has left.
    pub(super) ends_when_sent: bool,
    /// In the hub's ready queue.
    pub(super) is_scheduled: bool,
    pub(super) flow: FlowState,
    /// Its bytes and messages that the hub has counted.
    pub(super) counted: Traffic,
}

impl Member {
    pub(super) fn new(peer: Peer, origin: Origin, is_connecting: bool) -> Member {
        Member {
            peer,
            origin,
            attempt: None,
            is_connecting,
            connect_deadline: None,
            refuse_at: None,
            ready_at: None,
            ends_when_sent: false,
            is_scheduled: false,
            flow: FlowState::default(),
            counted: Traffic::default(),
        }
    }

    pub(super) fn wants_to_read(&self) -> bool {
        self.peer.can_read() && !self.is_paused() && !self.is_connecting && self.flow.permit.allows_reading()
    }

    /// Whether the application wants no more, except for the rest of a message that is over budget.
    pub(super) fn is_paused(&self) -> bool {
        self.flow.paused && self.flow.permit != ReadPermit::OverBudget
    }

    pub(super) fn wants_to_write(&self) -> bool {
        self.peer.write.is_possible() && !self.is_connecting && self.peer.connection.outbox_ref().may_progress()
    }

    /// Reports once that the peer has hung up, though nothing is read.
    pub(super) fn report_hang_up(&mut self, events: &mut VecDeque<Event>) {
        if self.peer.read.hung_up && !std::mem::replace(&mut self.flow.hang_up_reported, true) {
            events.push_back(Event::HungUp { peer: self.peer.id });
        }
    }

    /// Appends the peer to the ready queue, unless it is in it.
    pub(super) fn schedule(&mut self, ready: &mut VecDeque<PeerId>) {
        if !self.is_scheduled {
            self.is_scheduled = true;
            ready.push_back(self.peer.id);
        }
    }
}
