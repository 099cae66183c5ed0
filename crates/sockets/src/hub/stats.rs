//! Facts and sums of connections, and the last ones that have ended.

use super::Hub;
use super::blocked::log_attempts;
use super::connect::Origin;
use super::member::Member;
use crate::handle::Page;
use crate::net::address::Address;
use crate::net::tenant::Tenant;
use crate::peer::{End, Peer, PeerInfo};
use crate::peer_id::PeerId;
use crate::relay::{Relay, RelayStats};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_tcpinfo::{TcpInfo, tcp_info};
use towpath_zmtp::Principal;

/// Ended connections that are remembered.
const GONE_MAX: usize = 1000;

/// The same of those that ended before they were ready: a port scanner must not push out all others.
const FAILED_MAX: usize = 100;

/// Limits of [`HubStats::slow_rounds`].
pub const SLOW_ROUNDS: [Duration; 4] =
    [Duration::from_millis(2), Duration::from_millis(20), Duration::from_millis(200), Duration::from_secs(2)];

/// An accepted connection that has ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GonePeer {
    /// Its name while it was connected; `None` if the connection wasn't accepted.
    pub id: Option<PeerId>,
    /// Its network address.
    pub address: Address,
    /// Its identity, as far as the mechanism established one.
    pub principal: Principal,
    /// Whether its handshake had been over.
    pub was_ready: bool,
    /// When the connection was made.
    pub connected_at: Instant,
    /// When it ended.
    pub ended_at: Instant,
    /// Bytes received, framing included.
    pub bytes_in: u64,
    /// Bytes sent, framing included.
    pub bytes_out: u64,
    /// Endpoint of the server that relayed the connection, if one did.
    pub through: Option<Arc<str>>,
    /// The reason, for people.
    pub reason: String,
    /// How many connections it stands for: more than one if a blocked peer has tried again and again.
    pub attempts: u64,
}

/// Bytes and messages moved, framing included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes of these that sendfile(2) moved.
    pub sendfile_bytes: u64,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
}

impl Traffic {
    fn of(peer: &Peer) -> Traffic {
        let outbox = peer.connection.outbox_ref();
        Traffic {
            bytes_in: peer.read.bytes_in,
            bytes_out: outbox.bytes_written(),
            sendfile_bytes: peer.write.sendfile_bytes,
            messages_in: peer.read.messages_in,
            messages_out: outbox.messages_staged(),
        }
    }

    /// Adds what a peer has moved since the last call.
    #[inline]
    pub(super) fn count(&mut self, member: &mut Member) {
        let now = Traffic::of(&member.peer);
        let before = std::mem::replace(&mut member.counted, now);
        self.bytes_in += now.bytes_in - before.bytes_in;
        self.bytes_out += now.bytes_out - before.bytes_out;
        self.sendfile_bytes += now.sendfile_bytes - before.sendfile_bytes;
        self.messages_in += now.messages_in - before.messages_in;
        self.messages_out += now.messages_out - before.messages_out;
    }
}

/// Sums of a hub. Those of events are since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubStats {
    /// Connected peers.
    pub peers: usize,
    /// Connections in their handshake.
    pub handshakes: usize,
    /// Bytes of memory queued for all peers.
    pub queued_bytes: usize,
    /// Bytes and messages of all connections, also of those that have ended.
    pub traffic: Traffic,
    /// Ends of connections.
    pub ends: Ends,
    /// Connections that are relayed to another server, which aren't in the other sums.
    pub relay: RelayStats,
    /// Rounds, from one wait to the next, that took longer than each of [`SLOW_ROUNDS`]: all peers waited so long.
    pub slow_rounds: [u64; SLOW_ROUNDS.len()],
}

/// Accepted connections that have ended, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ends {
    /// Closed by the peer.
    pub closed: u64,
    /// The peer broke the protocol.
    pub protocol: u64,
    /// Disconnected by this side, or failed.
    pub other: u64,
    /// Ended before they were ready, for any other reason.
    pub handshake: u64,
    /// The peer is blocked ([`Gate`](crate::Gate)). Also counts what wasn't accepted for that.
    pub blocked: u64,
}

/// The last connections that have ended.
#[derive(Debug, Default)]
pub(super) struct GonePeers {
    ready: VecDeque<GonePeer>,
    failed: VecDeque<GonePeer>,
    /// Refused for a block, an entry for each address or identity.
    blocked: VecDeque<GonePeer>,
    ends: Ends,
}

impl GonePeers {
    fn add(&mut self, gone: GonePeer, end: &End) {
        let counter = match gone.was_ready {
            true if end.blocked => &mut self.ends.blocked,
            false => &mut self.ends.handshake,
            true if end.is_end_of_input => &mut self.ends.closed,
            true if end.misbehaved => &mut self.ends.protocol,
            true => &mut self.ends.other,
        };
        *counter += 1;
        let (list, most) = if gone.was_ready { (&mut self.ready, GONE_MAX) } else { (&mut self.failed, FAILED_MAX) };
        if list.len() >= most {
            list.pop_front();
        }
        list.push_back(gone);
    }

    /// Adds an attempt of a blocked peer to those before it, if there were any. Returns how many there have been.
    pub(super) fn add_blocked(&mut self, mut gone: GonePeer) -> u64 {
        self.ends.blocked += 1;
        let tenant = |gone: &GonePeer| Tenant::of_identity(&gone.principal, &gone.address);
        let same = self.blocked.iter().position(|before| tenant(before) == tenant(&gone));
        let before = match same {
            Some(index) => self.blocked.remove(index),
            None if self.blocked.len() >= FAILED_MAX => {
                self.blocked.pop_front();
                None
            }
            None => None,
        };
        gone.attempts = before.map_or(0, |before| before.attempts) + 1;
        let attempts = gone.attempts;
        self.blocked.push_back(gone);
        attempts
    }
}

impl Hub {
    /// Facts and counters of a ready peer.
    pub fn peer(&self, peer: PeerId) -> Option<PeerInfo> {
        self.peers.find(peer)?.peer.info(self.config.mechanism.name())
    }

    /// The state of a peer's connection as the kernel knows it, and the bytes that the peer's system hasn't acknowledged: a system call for
    /// each. `None` if it isn't TCP.
    pub fn tcp_info(&self, peer: PeerId) -> Option<(TcpInfo, u64)> {
        let fd = &self.peers.find(peer)?.peer.fd;
        Some((tcp_info(fd)?, towpath_outq::untaken_bytes(fd).unwrap_or(0)))
    }

    /// Sends a peer a PING soon, if nothing waits to be sent: [`PeerInfo::unanswered_since`] then shows whether it lives.
    pub fn ping_soon(&mut self, peer: PeerId) {
        if let Some(member) = self.peers.find_mut(peer) {
            member.peer.connection.ping_soon(self.now);
            self.next_timer = self.next_timer.into_iter().chain([self.now]).min();
        }
    }

    /// All ready peers.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.iter().filter(|member| member.peer.is_ready()).map(|member| member.peer.id)
    }

    /// Ready peers from this slot on, by slot.
    pub fn peers_from(&self, slot: u32) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.iter_from(slot).filter(|member| member.peer.is_ready()).map(|member| member.peer.id)
    }

    /// Counts an end, and remembers it.
    pub(super) fn remember_gone(&mut self, member: &mut Member, end: &End) {
        self.traffic.count(member);
        if member.origin != Origin::Accepted {
            return;
        }
        let (peer, traffic) = (&member.peer, member.counted);
        let gone = GonePeer {
            id: Some(peer.id),
            address: peer.address.clone(),
            principal: peer.principal.clone(),
            was_ready: peer.is_ready(),
            connected_at: peer.connected_at,
            ended_at: self.now,
            bytes_in: traffic.bytes_in,
            bytes_out: traffic.bytes_out,
            through: peer.through.clone(),
            reason: end.reason.clone(),
            attempts: 1,
        };
        match end.blocked && !gone.was_ready {
            true => log_attempts(&gone, self.gone.add_blocked(gone.clone())),
            false => self.gone.add(gone, end),
        }
    }

    /// The last accepted connections that have ended, the latest first: 1,000 that had been ready, and 100 others; and 100 peers that were refused
    /// for a block.
    pub fn gone(&self) -> Vec<&GonePeer> {
        let mut gone: Vec<_> =
            self.gone.ready.iter().chain(&self.gone.failed).chain(&self.gone.blocked).rev().collect();
        gone.sort_by_key(|gone| Reverse(gone.ended_at));
        gone
    }

    /// A page of [`Hub::gone`].
    pub fn gone_from(&self, from: u32) -> Page<GonePeer> {
        let gone = self.gone().into_iter().enumerate().skip(from as usize);
        Page::of(gone.map(|(number, gone)| (number as u32, Some(gone.clone()))))
    }

    /// Sums of all connections.
    pub fn stats(&self) -> HubStats {
        HubStats {
            peers: self.peers.len().saturating_sub(self.handshakes),
            handshakes: self.handshakes,
            queued_bytes: self.queued_bytes(),
            traffic: self.traffic,
            ends: self.gone.ends,
            relay: self.relay.as_ref().map(Relay::stats).unwrap_or_default(),
            slow_rounds: self.slow_rounds,
        }
    }

    /// Notes that a round is over, if it took long.
    pub(super) fn count_round(&mut self) {
        let Some(took) = self.woken_at.map(|woken| woken.elapsed()) else { return };
        for (count, limit) in self.slow_rounds.iter_mut().zip(SLOW_ROUNDS) {
            *count += u64::from(took > limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::options::HubOptions;
    use towpath_zmtp::SocketType;

    /// Polls both sides until the condition holds.
    fn until(server: &mut Hub, client: &mut Hub, what: &str, mut holds: impl FnMut(&mut Hub) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !holds(server) {
            assert!(Instant::now() < deadline, "{what}");
            server.poll(Some(Duration::from_millis(1))).unwrap();
            client.poll(Some(Duration::ZERO)).unwrap();
            while client.next_event().is_some() {}
        }
    }

    #[test]
    fn rounds_that_take_long_are_counted() {
        let mut hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        std::thread::sleep(SLOW_ROUNDS[0] * 2);
        hub.poll(Some(SLOW_ROUNDS[1] * 2)).unwrap();
        assert_eq!(hub.stats().slow_rounds, [0; 4], "neither what is before the first wait nor a wait is a round");
        std::thread::sleep(SLOW_ROUNDS[1] * 2);
        hub.poll(Some(Duration::ZERO)).unwrap();
        assert_eq!(hub.stats().slow_rounds[..2], [1, 1]);
    }

    #[test]
    fn ended_connections_are_remembered_with_the_reason_and_bounded() {
        let mut server = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let endpoint = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        client.connect_once(&endpoint);
        let mut id = None;
        until(&mut server, &mut client, "ready", |server| {
            while let Some(event) = server.next_event() {
                if let Event::Ready { peer } = event {
                    id = Some(peer);
                }
            }
            id.is_some()
        });
        let id = id.unwrap();
        assert_eq!((server.stats().peers, server.stats().handshakes), (1, 0));
        assert_eq!(server.peers_from(0).collect::<Vec<_>>(), [id]);
        assert_eq!(server.peers_from(id.slot() + 1).count(), 0);
        server.disconnect(id, "for a test");
        let gone = server.gone();
        assert_eq!((gone.len(), gone[0].id, gone[0].was_ready), (1, Some(id), true));
        assert!(gone[0].reason.contains("for a test") && gone[0].bytes_in > 0, "{gone:?}");
        assert_eq!((server.stats().ends.other, server.stats().peers), (1, 0));
        assert!(server.stats().traffic.bytes_in >= gone[0].bytes_in);

        // Connections that say nothing, more than are remembered.
        for _ in 0..FAILED_MAX + 5 {
            let Some(crate::Endpoint::Tcp { host, port }) = Some(endpoint.clone()) else { unreachable!() };
            drop(std::net::TcpStream::connect((host.as_str(), port)).unwrap());
        }
        let all = FAILED_MAX as u64 + 5;
        until(&mut server, &mut client, "all have failed", |server| server.stats().ends.handshake == all);
        let gone = server.gone();
        assert_eq!(gone.len(), FAILED_MAX + 1);
        assert!(!gone[0].was_ready && gone.iter().any(|gone| gone.id == Some(id)));
        assert!(gone.windows(2).all(|two| two[0].ended_at >= two[1].ended_at));
    }
}
