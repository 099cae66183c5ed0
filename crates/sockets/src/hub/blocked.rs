//! Peers that are kept out: [`Gate`](crate::Gate).

use super::Hub;
use super::connect::Origin;
use super::member::Member;
use super::stats::GonePeer;
use crate::auth::Gate;
use crate::net::address::Address;
use crate::peer::End;
use crate::peer_id::PeerId;
use towpath_zmtp::{BLOCKED, Principal};

impl Hub {
    /// Keeps peers out from now on, whatever their credentials.
    pub fn set_gate(&mut self, gate: Option<Gate>) {
        self.gate = gate;
    }

    /// Ends the connections of accepted peers that the gate keeps out now, and returns how many were ready. Each is sent the
    /// reason if possible, and [`Event::Gone`](crate::Event::Gone) follows for those that were ready.
    pub fn end_blocked(&mut self) -> usize {
        let Some(gate) = self.gate.clone() else { return 0 };
        let accepted = self.peers.iter().filter(|member| member.origin == Origin::Accepted);
        let blocked = accepted.filter_map(|Member { peer, .. }| {
            let reason = gate.keeps_out(&peer.principal, &peer.address, false)?;
            Some((peer.id, peer.is_ready(), reason))
        });
        let blocked: Vec<_> = blocked.collect();
        for (id, is_ready, reason) in &blocked {
            if let Some(Member { peer, .. }) = self.peers.find(*id).filter(|_| *is_ready) {
                tracing::info!(address = %peer.address, who = %peer.principal, reason, "disconnected: blocked by the operator");
            }
            self.end_blocked_peer(*id, reason);
        }
        blocked.iter().filter(|(_, is_ready, _)| *is_ready).count()
    }

    /// Whether an address is kept out. If so, that is counted.
    pub(super) fn is_address_blocked(&mut self, address: &Address) -> bool {
        let Some(gate) = &self.gate else { return false };
        let Some(reason) = gate.keeps_out(&Principal::Anonymous, address, true) else { return false };
        let gone = GonePeer {
            id: None,
            address: address.clone(),
            principal: Principal::Anonymous,
            was_ready: false,
            connected_at: self.now,
            ended_at: self.now,
            bytes_in: 0,
            bytes_out: 0,
            through: None,
            reason: blocked_because(&reason),
            attempts: 1,
        };
        log_attempts(&gone, self.gone.add_blocked(gone.clone()));
        true
    }

    /// Ends the handshake of a peer that is kept out under this identity, and returns whether that is so.
    pub(super) fn refuse_blocked(&mut self, id: PeerId, principal: &Principal) -> bool {
        let Some((gate, member)) = self.gate.as_ref().zip(self.peers.find_mut(id)) else { return false };
        if member.origin != Origin::Accepted {
            return false;
        }
        let Some(reason) = gate.keeps_out(principal, &member.peer.address, true) else { return false };
        member.peer.principal = principal.clone();
        if let Some(authenticator) = &self.authenticator {
            authenticator.note_refusal(principal, &member.peer.address);
        }
        self.end_blocked_peer(id, &reason);
        true
    }

    pub(super) fn end_blocked_peer(&mut self, id: PeerId, reason: &str) {
        let Some(Member { peer, .. }) = self.peers.find_mut(id) else { return };
        if peer.is_ready() {
            peer.connection.outbox().clear();
        }
        peer.connection.send_error(&blocked_because(reason));
        self.end(id, End { blocked: true, ..End::new(blocked_because(reason)) });
    }
}

/// The reason as peers receive it.
fn blocked_because(reason: &str) -> String {
    if reason.is_empty() { BLOCKED.to_owned() } else { format!("{BLOCKED}: {reason}") }
}

/// Logs the first attempts of a blocked peer, and fewer and fewer later: it may try ten times a second for ever.
pub(super) fn log_attempts(gone: &GonePeer, attempts: u64) {
    if attempts.is_power_of_two() {
        let who = Some(&gone.principal).filter(|principal| **principal != Principal::Anonymous);
        let who = who.map(tracing::field::display);
        tracing::info!(address = %gone.address, who, reason = gone.reason, attempts, "connection refused");
    }
}
