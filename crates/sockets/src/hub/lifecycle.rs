//! Peers come and go: accepted or connected, ready, ended.

use super::Hub;
use super::connect::{Attempt, Origin};
use super::member::Member;
use crate::event::Event;
use crate::net::address::Address;
use crate::net::tenant::Tenant;
use crate::peer::beginning::Beginning;
use crate::peer::{End, Peer};
use crate::peer_id::PeerId;
use crate::unsent::Unsent;
use bytes::{BufMut, Bytes, BytesMut};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::time::Duration;
use towpath_zmtp::{Connection, Principal, ProtocolDeviations, Refusal, SocketType};

/// Pause in accepting when the process or the machine is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that may end by tampering within that time before this side gives up for a while.
const TAMPERED_MAX: usize = 3;
const TAMPERED_WITHIN: Duration = Duration::from_secs(60);

/// Connections accepted in one poll before existing peers get their turn.
const ACCEPTS_PER_POLL: usize = 64;

impl Hub {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_POLL {
            let now = self.now;
            let Some(listening) = self.listeners.get_mut(index) else { return };
            if !listening.is_due(now) {
                return;
            }
            listening.rest_until = None;
            match listening.listener.accept() {
                Ok(Some((fd, address))) => self.on_accepted(fd, address),
                Ok(None) => listening.pending = false,
                Err(error) if matches!(error.kind(), std::io::ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    let until = now + ACCEPT_PAUSE;
                    listening.rest_until = Some(until);
                    listening.pending = false;
                    self.next_timer = Some(self.next_timer.map_or(until, |at| at.min(until)));
                    let out_of_files = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
                    let hint = if out_of_files.contains(&error.raw_os_error()) {
                        "; raise the limit of open files"
                    } else {
                        ""
                    };
                    tracing::warn!(%error, "cannot accept a connection, trying again in 100 ms{hint}");
                }
            }
        }
    }

    /// Takes in an accepted connection, or relays it.
    fn on_accepted(&mut self, fd: OwnedFd, address: Address) {
        if self.is_address_blocked(&address) {
            return;
        }
        match self.relay.as_ref().filter(|_| self.is_relaying) {
            Some(relay) => relay.relay(fd, address),
            None => self.take_in(fd, address),
        }
    }

    /// Takes in a connection that isn't relayed, within the limits.
    pub(super) fn take_in(&mut self, fd: OwnedFd, address: Address) {
        let from_address = self.per_address.get(&Tenant::of_address(&address)).copied().unwrap_or(0);
        if self.peers.len() >= self.options.max_peers || from_address >= self.options.max_peers_per_address {
            tracing::warn!(%address, peers = self.peers.len(), from_address, "connection refused: too many connections");
            return;
        }
        if self.handshakes >= self.options.max_handshakes {
            let is_unready = |member: &&Member| !member.peer.is_ready() && member.origin == Origin::Accepted;
            let oldest = self.peers.iter().filter(is_unready).min_by_key(|member| member.peer.connected_at);
            if let Some(oldest) = oldest.map(|member| member.peer.id) {
                self.end(oldest, End::new("too many handshakes in progress, and this was the oldest"));
            }
        }
        if let Err(reason) = self.add_peer(fd, &address, Origin::Accepted, false) {
            tracing::warn!(%address, reason, "connection dropped");
        }
    }

    /// Adds a connection; the error is the reason why it can't.
    pub(super) fn add_peer(
        &mut self,
        fd: OwnedFd,
        address: &Address,
        origin: Origin,
        is_connecting: bool,
    ) -> Result<PeerId, String> {
        crate::net::transport::tune(&fd, address, &self.options.congestion);
        let id = self.peers.next_id();
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id.token()), watched_for())
            .map_err(|errno| format!("cannot watch the connection: {}", std::io::Error::from(errno)))?;
        if origin == Origin::Accepted && *address != Address::Inproc {
            *self.per_address.entry(Tenant::of_address(address)).or_default() += 1;
        }
        self.handshakes += 1;
        let mut connection = Connection::new(self.config.clone(), self.now);
        connection.open_large_elsewhere();
        let deadline = connection.deadline();
        self.next_timer = self.next_timer.into_iter().chain(deadline).min();
        let mut peer = Peer::new(id, fd, address.clone(), connection, self.now);
        if origin == Origin::Accepted {
            peer.beginning = Beginning::Unknown;
        }
        self.peers.insert(id, Member::new(peer, origin, is_connecting));
        Ok(id)
    }

    /// A peer has closed its side. True if it can still be sent to, and the application says when it ends.
    pub(super) fn half_close(&mut self, id: PeerId) -> bool {
        let Some(Member { peer, .. }) = self.peers.find_mut(id).filter(|_| self.options.keep_half_closed) else {
            return false;
        };
        let is_in_message = peer.reassembly_bytes() > 0 || peer.connection.body_remaining() > 0;
        if !peer.is_ready() || peer.read.has_failed || is_in_message {
            return false;
        }
        peer.read.has_ended = true;
        peer.read.is_readable = false;
        peer.connection.set_reading(false, self.now);
        // If it has closed both sides, its system resets the connection when something comes.
        peer.connection.ping_soon(self.now);
        self.next_timer = self.next_timer.into_iter().chain(peer.connection.deadline()).min();
        self.events.push_back(Event::HalfClosed { peer: id });
        true
    }

    /// Removes a peer in whatever state it is.
    pub(super) fn end(&mut self, id: PeerId, end: End) {
        let Some(mut member) = self.peers.remove(id) else { return };
        self.release(&member);
        let peer = &mut member.peer;
        peer.deliver_partial(&self.pool, &mut self.events);
        if peer.write.is_writable && !member.is_connecting {
            // What is left to say (an ERROR command) leaves now or never.
            let _ = peer.write_queued(&mut self.scratch, &mut self.events);
            // Nothing was written if a frame was only taken to be sealed.
            if peer.write.to_seal.take().is_some() {
                let _ = peer.write_queued(&mut self.scratch, &mut self.events);
            }
        }
        self.remember_gone(&mut member, &end);
        let peer = &mut member.peer;
        let deviations = peer.connection.deviations();
        if !deviations.is_empty() {
            let ProtocolDeviations { unknown_commands, reserved_bits } = deviations;
            tracing::info!(address = %peer.address, unknown_commands, reserved_bits, "the peer deviated from ZMTP");
        }
        let (origin, ready_at, mut refused) = (member.origin, member.ready_at, end.refused);
        if peer.is_ready() {
            let is_tampering = end.tampered && matches!(origin, Origin::Connector(_));
            self.end_ready(peer, end);
            if is_tampering && self.is_tampered_again() {
                refused = Some(Refusal::Peer);
                let reason = "what comes from there was changed on its way, again and again".to_owned();
                let address = peer.address.to_string();
                self.events.push_back(Event::Failed { address, reason, connecting: true, refused });
            }
        } else if let Some(attempt) = self.end_handshake(*member, end) {
            // Its connector goes on with the next address.
            let (attempt, address, end) = attempt;
            return self.attempt_failed(attempt, address, end);
        }
        if let Origin::Connector(index) = origin {
            if let (Some(ready_at), Some(connector)) = (ready_at, self.connectors.get_mut(index)) {
                let lasted = self.now.saturating_duration_since(ready_at);
                connector.ended_after(lasted, self.options.stable_after);
            }
            self.connect_later(index, refused);
        }
    }

    /// Whether connections have ended by tampering that many times that somebody on the path must be doing it.
    fn is_tampered_again(&mut self) -> bool {
        let now = self.now;
        self.tampered.retain(|at| now.saturating_duration_since(*at) < TAMPERED_WITHIN);
        self.tampered.push_back(now);
        self.tampered.len() >= TAMPERED_MAX
    }

    /// Releases what a disconnected peer took from budgets, queues and counts.
    fn release(&mut self, member: &Member) {
        let peer = &member.peer;
        self.reassembly.forget(member);
        self.send_budget.forget(member);
        if peer.read.awaits_buffer {
            self.awaiting_buffer.retain(|waiting| *waiting != peer.id);
        }
        if peer.write.is_prefetching() {
            self.prefetcher.cancel(peer.id);
        }
        if peer.connection.outbox_ref().awaits_seal() {
            self.sealing.cancel(peer.id);
        }
        if member.origin == Origin::Accepted {
            self.count_less(&Tenant::of_address(&peer.address));
        }
        if !peer.is_ready() {
            self.handshakes = self.handshakes.saturating_sub(1);
            self.slow_logins.cancel(peer.id);
            self.handshake_turns.cancel(peer.id);
        }
    }

    /// An accepted connection of a tenant is gone, or is another one's.
    pub(super) fn count_less(&mut self, tenant: &Tenant) {
        if let Entry::Occupied(mut count) = self.per_address.entry(tenant.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Reports the end of a peer that was ready.
    fn end_ready(&mut self, peer: &Peer, end: End) {
        if let Some(lost) = &mut self.lost {
            *lost += Unsent::in_outbox(peer.connection.outbox_ref());
        }
        if self.routing.get(&peer.routing_id) == Some(&peer.id) {
            self.routing.remove(&peer.routing_id);
        }
        if end.misbehaved {
            tracing::warn!(peer = %peer.id, address = %peer.address, reason = %end.reason, "connection ended: the peer broke the protocol");
        }
        self.events.push_back(Event::Gone { peer: peer.id, reason: end.reason });
    }

    /// Reports the end of a handshake, unless it belongs to an attempt that may go on: then it is returned.
    fn end_handshake(&mut self, member: Member, end: End) -> Option<(Box<Attempt>, String, End)> {
        let (address, reason) = (&member.peer.address, &end.reason);
        let who = Some(&member.peer.principal).filter(|principal| **principal != Principal::Anonymous);
        let who = who.map(tracing::field::display);
        if end.blocked {
            // Logged, unless there were too many.
        } else if end.misbehaved {
            tracing::warn!(%address, %reason, "handshake refused: the peer broke the protocol");
        } else if member.origin == Origin::Accepted {
            tracing::info!(%address, who, %reason, "handshake failed");
        } else {
            tracing::debug!(%address, %reason, "handshake failed");
        }
        let address = address.to_string();
        match member.attempt {
            // The rest of the member is dropped before: its descriptor may be the last that there is.
            Some(attempt) => Some((attempt, address, end)),
            None => {
                let (reason, refused) = (end.reason, end.refused);
                self.events.push_back(Event::Failed { address, reason, connecting: false, refused });
                None
            }
        }
    }

    /// Gives a peer its routing id when its handshake is over.
    pub(super) fn on_ready(&mut self, id: PeerId) {
        self.handshakes = self.handshakes.saturating_sub(1);
        let Some(member) = self.peers.find_mut(id) else { return };
        member.ready_at = Some(self.now);
        member.attempt = None;
        let peer = &mut member.peer;
        // It may have become ready by a decision, without anything read.
        self.next_timer = self.next_timer.into_iter().chain(peer.connection.deadline()).min();
        self.suspected = 0;
        let own = peer.properties.as_ref().map(|properties| properties.routing_id.clone()).unwrap_or_default();
        let principal = peer.principal.clone();
        let former = self.routing.get(&own).and_then(|former| self.peers.find(*former));
        // One of another identity can't take it over.
        let is_taken =
            former.is_some_and(|former| !self.options.routing_ids_are_unique || former.peer.principal != principal);
        let routing_id = if own.is_empty() || is_taken { generated_routing_id(&mut self.next_routing_id) } else { own };
        let Some(member) = self.peers.find_mut(id) else { return };
        let peer = &mut member.peer;
        peer.routing_id = routing_id.clone();
        tracing::debug!(peer = %id, address = %peer.address, cipher = peer.connection.cipher(), "peer ready");
        let address = peer.address.to_string();
        if let Some(former) = self.routing.insert(routing_id, id)
            && former != id
            && self.options.socket_type == SocketType::Router
        {
            tracing::info!(%former, new = %id, %address, "a routing id moves to a new connection");
            self.disconnect(former, "a new connection took over its routing id");
        }
    }
}

/// The next routing id for a peer without one: 0, then four bytes.
fn generated_routing_id(next: &mut u32) -> Bytes {
    let mut id = BytesMut::with_capacity(5);
    id.put_u8(0);
    id.put_u32(*next);
    *next = next.wrapping_add(1);
    id.freeze()
}

/// The readiness to watch a peer's socket for. Urgent data (PRI) exists neither in ZMTP nor in ZeroMQ, and reading would stop before it.
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
    fn polls_sleep_while_accepting_pauses() {
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
        assert!(begin.elapsed() >= wait, "a poll of {:?}", begin.elapsed());
        hub.listeners[0].rest_until = Some(Instant::now());
        assert_eq!(hub.peers.len(), 0);
        hub.poll(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(hub.peers.len(), 1);
    }

    #[test]
    fn a_connection_that_cannot_be_watched_fails_and_is_tried_again() {
        let mut server = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let endpoint = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        // A descriptor that isn't epoll's refuses all others, as epoll does when the machine is out of watches.
        let no_epoll = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let epoll = std::mem::replace(&mut client.epoll, no_epoll);
        client.connect_once(&endpoint);
        client.connect(&endpoint).unwrap();
        for _ in 0..2 {
            let event = client.next_event();
            let Some(Event::Failed { reason, connecting: true, .. }) = event else { panic!("{event:?}") };
            assert!(reason.contains("cannot watch"), "{reason}");
        }
        client.epoll = epoll;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !client.peers.iter().any(|member| member.peer.is_ready()) {
            assert!(Instant::now() < deadline, "it did not connect again");
            server.poll(Some(Duration::from_millis(1))).unwrap();
            client.poll(Some(Duration::from_millis(1))).unwrap();
        }
    }
}
