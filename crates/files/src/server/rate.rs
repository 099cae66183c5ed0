//! Limits what a server sends to all clients together.

use crate::limits::CHUNK_BYTES_MIN;
use crate::transfer::pacing::{Pacer, piece_bytes};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_sockets::PeerId;

/// The rate, and who waits for it.
#[derive(Debug)]
pub(super) struct Rate {
    pacer: Pacer,
    /// In the order of their turns. Some may have nothing to send by then.
    waiting: VecDeque<PeerId>,
    /// Whose turn it is.
    turn: Option<PeerId>,
}

impl Rate {
    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Rate {
        Rate { pacer: Pacer::new(bytes_per_second, CHUNK_BYTES_MIN, now), waiting: VecDeque::new(), turn: None }
    }

    /// Whether a client may be sent a message now. If not, it waits for its turn.
    pub(super) fn may_send(&mut self, peer: PeerId, now: Instant) -> bool {
        if self.pacer.next() <= now && (self.waiting.is_empty() || self.turn == Some(peer)) {
            return true;
        }
        if !self.waiting.contains(&peer) {
            self.waiting.push_back(peer);
        }
        false
    }

    /// Whether a client waits for its turn.
    pub(super) fn is_waiting(&self, peer: PeerId) -> bool {
        self.waiting.contains(&peer)
    }

    /// Counts a message to a client, and ends its turn.
    pub(super) fn sent(&mut self, bytes: u64, now: Instant) {
        self.turn = None;
        self.pacer.spend(bytes, now);
    }

    /// Forgets a client that is gone.
    pub(super) fn gone(&mut self, peer: PeerId) {
        self.waiting.retain(|waiting| *waiting != peer);
    }

    /// The next client, if something may be sent now: it has its turn.
    pub(super) fn next_turn(&mut self, now: Instant) -> Option<PeerId> {
        self.turn = if self.pacer.next() <= now { self.waiting.pop_front() } else { None };
        self.turn
    }

    /// Time until the next turn, if anybody waits.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        self.waiting.front().map(|_| self.pacer.next().saturating_duration_since(now))
    }
}

/// Largest piece of a file at a rate, so that one client's doesn't hold up the others for long.
pub(super) fn chunk_bytes(bytes_per_second: Option<u64>, wanted: u64) -> u64 {
    piece_bytes(bytes_per_second, wanted, CHUNK_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_at_the_rate() {
        let mut now = Instant::now();
        let begin = now;
        let mut rate = Rate::new(1_000_000, now);
        let peers = [1, 2, 3].map(|slot| PeerId::new(slot, 0));
        let mut sent = [0; 3];
        // The first one always has something to send first, and the third one ends amid the others.
        while now - begin < Duration::from_secs(10) {
            for (index, peer) in peers.into_iter().enumerate() {
                let is_gone = index == 2 && now - begin > Duration::from_secs(5);
                while !is_gone && rate.may_send(peer, now) {
                    rate.sent(50_000, now);
                    sent[index] += 50_000;
                }
            }
            now += rate.wait(now).expect("they wait");
            while let Some(peer) = rate.next_turn(now) {
                let index = peers.iter().position(|of| *of == peer).expect("one of them");
                if index != 2 || now - begin <= Duration::from_secs(5) {
                    assert!(rate.may_send(peer, now));
                    rate.sent(50_000, now);
                    sent[index] += 50_000;
                    assert!(!rate.may_send(peer, now), "others wait");
                }
            }
        }
        let all: u64 = sent.iter().sum();
        assert!((9_900_000..=10_500_000).contains(&all), "{sent:?}");
        assert!(sent[0].abs_diff(sent[1]) <= 100_000 && sent[2] < sent[1], "{sent:?}");
        peers.into_iter().for_each(|peer| rate.gone(peer));
        assert!(rate.waiting.is_empty());
    }
}
