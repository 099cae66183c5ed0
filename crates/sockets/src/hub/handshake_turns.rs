//! Turns of handshakes that cost a server more than their clients, as CURVE's do: in each poll their time is limited, and goes to
//! tenants in turn. A flood of them delays neither peers that are ready nor, for long, the handshakes of others.

use super::member::Member;
use crate::net::tenant::Tenant;
use crate::peer::beginning::Beginning;
use crate::peer_id::PeerId;
use std::time::{Duration, Instant};
use towpath_quota::FairQueue;
use towpath_zmtp::MechanismConfig;

/// Time for handshakes in one poll. One that has begun takes its 0.3 ms at most.
const TIME_IN_POLL: Duration = Duration::from_millis(1);

/// Peers whose handshakes wait for their turn.
#[derive(Debug)]
pub(super) struct HandshakeTurns {
    is_costly: bool,
    waiting: FairQueue<Tenant, PeerId, ()>,
    until: Option<Instant>,
}

impl HandshakeTurns {
    pub(super) fn new(mechanism: &MechanismConfig) -> HandshakeTurns {
        let is_costly = matches!(mechanism, MechanismConfig::CurveServer { .. });
        HandshakeTurns { is_costly, waiting: FairQueue::default(), until: None }
    }

    /// Whether a peer has to wait for its turn. Then it is queued.
    pub(super) fn defers(&mut self, member: &Member) -> bool {
        // What says who the peer is comes first, and costs nothing.
        let is_known = member.peer.beginning == Beginning::Over;
        let waits = self.is_costly && is_known && !member.peer.is_ready() && member.wants_to_read();
        if waits && !self.waiting.contains(member.peer.id) {
            self.waiting.push(&Tenant::of_address(&member.peer.address), member.peer.id, ());
        }
        waits
    }

    /// The peer whose turn it is, as long as there is time in this poll.
    pub(super) fn next(&mut self) -> Option<PeerId> {
        if self.waiting.is_empty() {
            self.until = None;
            return None;
        }
        let now = Instant::now();
        if now >= *self.until.get_or_insert(now + TIME_IN_POLL) {
            self.until = None;
            return None;
        }
        self.waiting.pop_next().map(|(peer, ())| peer)
    }

    /// Whether a peer waits for its turn.
    pub(super) fn are_due(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Forgets a peer that is gone.
    pub(super) fn cancel(&mut self, peer: PeerId) {
        self.waiting.remove(peer);
    }
}
