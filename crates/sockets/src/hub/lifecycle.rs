//! How peers come and go: accepted or connected, ready, ended.

use super::Hub;
use crate::event::Event;
use crate::net::transport::Address;
use crate::peer::{End, Origin, Peer, PeerId};
use crate::unsent::Unsent;
use bytes::{BufMut, BytesMut};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::Duration;
use towpath_zmtp::{Connection, ProtocolDeviations, SocketType};

/// How long accepting rests when the process or the machine is out of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Connections accepted before peers that are already here get their turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Hub {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let now = self.now;
            let Some(listening) = self.listeners.get_mut(index) else { return };
            if !listening.is_due(now) {
                return;
            }
            listening.rest_until = None;
            match listening.listener.accept() {
                Ok(Some((fd, address))) => self.take_in(fd, address),
                Ok(None) => listening.pending = false,
                Err(error) if matches!(error.kind(), std::io::ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    let until = now + ACCEPT_REST;
                    listening.rest_until = Some(until);
                    listening.pending = false;
                    self.next_timer = Some(self.next_timer.map_or(until, |at| at.min(until)));
                    let of_files = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
                    let hint =
                        if of_files.contains(&error.raw_os_error()) { "; raise the limit of open files?" } else { "" };
                    tracing::warn!(%error, "accepting connections rests for a moment{hint}");
                }
            }
        }
    }

    fn take_in(&mut self, fd: OwnedFd, address: Address) {
        let from_there = address.ip().map_or(0, |ip| self.per_address.get(&ip).copied().unwrap_or(0));
        if self.peers.len() >= self.options.max_peers || from_there >= self.options.max_peers_per_address {
            tracing::warn!(%address, peers = self.peers.len(), from_there, "a connection is refused: too many");
            return;
        }
        if self.handshakes >= self.options.max_handshakes {
            let unready = self.peers.iter().filter(|peer| !peer.is_ready() && peer.origin == Origin::Accepted);
            if let Some(oldest) = unready.min_by_key(|peer| peer.connected_at).map(|peer| peer.id) {
                self.end(oldest, End::new("too many handshakes are under way, and this was the oldest"));
            }
        }
        if let Err(reason) = self.add_peer(fd, &address, Origin::Accepted, false) {
            tracing::warn!(%address, reason, "a connection is given up");
        }
    }

    /// Takes a connection in, or says why it can't.
    pub(crate) fn add_peer(
        &mut self,
        fd: OwnedFd,
        address: &Address,
        origin: Origin,
        connecting: bool,
    ) -> Result<PeerId, String> {
        crate::net::transport::tune(&fd, address, &self.options.congestion);
        let id = self.peers.next_id();
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id.token()), watched_for())
            .map_err(|errno| format!("the connection can't be watched: {}", std::io::Error::from(errno)))?;
        if let (Origin::Accepted, Some(ip)) = (origin, address.ip()) {
            *self.per_address.entry(ip).or_default() += 1;
        }
        self.handshakes += 1;
        let connection = Connection::new(self.config.clone(), self.now);
        let deadline = connection.deadline();
        self.next_timer = self.next_timer.into_iter().chain(deadline).min();
        let mut peer = Peer::new(id, fd, address.clone(), origin, connection, self.now);
        peer.connecting = connecting;
        self.peers.insert(peer);
        Ok(id)
    }

    /// Removes a peer, whatever state it is in.
    pub(crate) fn end(&mut self, id: PeerId, end: End) {
        let Some(mut peer) = self.peers.remove(id) else { return };
        self.forget_begun(&peer);
        self.queued_bytes -= peer.queued_bytes;
        if peer.starved {
            self.starved.retain(|waiting| *waiting != id);
        }
        if peer.warming {
            self.warmer.forget(id);
        }
        peer.hand_over(&self.pool, &mut self.events);
        if peer.writable && !peer.connecting {
            // What is left to say (an ERROR command) leaves now or never.
            let _ = peer.write(&mut self.scratch, &mut self.events);
        }
        if let (Origin::Accepted, Some(ip)) = (peer.origin, peer.address.ip())
            && let Some(count) = self.per_address.get_mut(&ip)
        {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&ip);
            }
        }
        let deviations = peer.connection.deviations();
        if !deviations.is_empty() {
            let ProtocolDeviations { unknown_commands, reserved_bits } = deviations;
            tracing::info!(address = %peer.address, unknown_commands, reserved_bits, "a peer sent what ZMTP does not define");
        }
        if peer.is_ready() {
            if let Some(lost) = &mut self.lost {
                *lost += Unsent::of(peer.connection.outbox_ref());
            }
            if self.routing.get(&peer.routing_id) == Some(&id) {
                self.routing.remove(&peer.routing_id);
            }
            if end.misbehaved {
                tracing::warn!(peer = %id, address = %peer.address, reason = %end.reason, "a connection is ended over what its peer sent");
            }
            self.events.push_back(Event::Gone { peer: id, reason: end.reason });
        } else {
            self.handshakes = self.handshakes.saturating_sub(1);
            let (address, reason) = (&peer.address, &end.reason);
            if end.misbehaved {
                tracing::warn!(%address, %reason, "a bad handshake is refused");
            } else if peer.origin == Origin::Accepted {
                tracing::info!(%address, %reason, "a handshake failed");
            } else {
                tracing::debug!(%address, %reason, "a handshake failed");
            }
            let address = peer.address.to_string();
            if let Some(attempt) = peer.attempt.take() {
                // Its descriptor may be the last that there is.
                drop(peer);
                return self.attempt_failed(attempt, address, end);
            }
            let (reason, refused) = (end.reason, end.refused);
            self.events.push_back(Event::Failed { address, reason, connecting: false, refused });
        }
        if let Origin::Connector(index) = peer.origin {
            if let (Some(ready_at), Some(connector)) = (peer.ready_at, self.connectors.get_mut(index)) {
                let lasted = self.now.saturating_duration_since(ready_at);
                connector.ended_after(lasted, self.options.stable_after);
            }
            self.connect_later(index);
        }
    }

    pub(super) fn on_ready(&mut self, id: PeerId) {
        self.handshakes = self.handshakes.saturating_sub(1);
        let Some(peer) = self.peers.find_mut(id) else { return };
        peer.ready_at = Some(self.now);
        peer.attempt = None;
        let own = peer.properties.as_ref().map(|properties| properties.routing_id.clone()).unwrap_or_default();
        let is_taken = !self.options.routing_ids_are_unique && self.routing.contains_key(&own);
        let routing_id = if own.is_empty() || is_taken {
            let mut made_up = BytesMut::with_capacity(5);
            made_up.put_u8(0);
            made_up.put_u32(self.next_routing_id);
            self.next_routing_id = self.next_routing_id.wrapping_add(1);
            made_up.freeze()
        } else {
            own
        };
        peer.routing_id = routing_id.clone();
        tracing::debug!(peer = %id, address = %peer.address, "ready");
        let address = peer.address.to_string();
        if let Some(former) = self.routing.insert(routing_id, id)
            && former != id
            && self.options.socket_type == SocketType::Router
        {
            tracing::info!(former = %former, newcomer = %id, %address, "a routing id is handed over to a new connection");
            self.disconnect(former, "a new connection took over its routing id");
        }
    }
}

/// What a peer's socket is watched for. Urgent data (PRI) is what neither ZMTP nor ZeroMQ has: reading would stop short of it.
fn watched_for() -> epoll::EventFlags {
    use epoll::EventFlags;
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI | EventFlags::ET
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::endpoint::Endpoint;
    use crate::options::HubOptions;
    use std::net::TcpStream;
    use std::time::Instant;

    #[test]
    fn a_turn_waits_while_accepting_rests_whoever_comes() {
        let mut hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let Endpoint::Tcp { host, port } = hub.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap() else {
            panic!("not tcp")
        };
        hub.listeners[0].rest_until = Some(Instant::now() + Duration::from_secs(3600));
        let _client = TcpStream::connect((host.as_str(), port)).unwrap();
        while !hub.listeners[0].pending {
            hub.poll(Some(Duration::from_secs(10))).unwrap();
        }
        assert!(!hub.is_busy());
        let (begin, wait) = (Instant::now(), Duration::from_millis(20));
        hub.poll(Some(wait)).unwrap();
        assert!(begin.elapsed() >= wait, "a turn of {:?}", begin.elapsed());
        hub.listeners[0].rest_until = Some(Instant::now());
        assert_eq!(hub.peers.len(), 0);
        hub.poll(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(hub.peers.len(), 1);
    }

    #[test]
    fn a_connection_that_cannot_be_watched_is_one_that_failed_and_is_tried_again() {
        let mut server = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let endpoint = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        // What isn't an event queue refuses all descriptors, as one does when the machine has no room for more.
        let no_queue = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let queue = std::mem::replace(&mut client.epoll, no_queue);
        client.connect_once(&endpoint);
        client.connect(&endpoint).unwrap();
        for _ in 0..2 {
            let event = client.next_event();
            let Some(Event::Failed { reason, connecting: true, .. }) = event else { panic!("{event:?}") };
            assert!(reason.contains("watched"), "{reason}");
        }
        client.epoll = queue;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !client.peers.iter().any(Peer::is_ready) {
            assert!(Instant::now() < deadline, "nobody connects again");
            server.poll(Some(Duration::from_millis(1))).unwrap();
            client.poll(Some(Duration::from_millis(1))).unwrap();
        }
    }
}
