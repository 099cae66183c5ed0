//! Backlogs: what peers have not read yet, and how those that don't read are limited.

use super::Dispatch;
use super::connection::{Backlog, Connection};
use super::encode::set_reading;
use crate::core::{MemoryPressure, Millis, Peer};
use crate::store::Store;
use crate::transport::Transport;
use towpath_requests::assembler::BodySink;
use towpath_sockets::{LargeMessages, Message, PeerId, SendError};

/// Bytes of memory that may wait for one peer beside the transport's queue, or as many as a client may have outstanding if that is
/// more, where it reads nothing. Only replies to requests of stock clients that workers have already, and parts, can come to that:
/// outcomes and requests wait in the core, and a peer that is answered at once isn't read any more.
const PENDING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Milliseconds after which a peer with a larger backlog is disconnected if it has read nothing. One that reads, however slowly, may
/// have as much as there is space for. Reading is seen as bytes that the system takes, on loopback a mebibyte and a half now and then.
const STALLED_MAX_MS: Millis = 20_000;

/// Milliseconds between two sums of all backlogs, at least.
const CHECK_INTERVAL_MS: Millis = 10;

/// Milliseconds between two large messages that may begin under the pressure of backlogs.
const BEGIN_INTERVAL_MS: Millis = 100;

/// Limits the backlogs of all peers together.
#[derive(Debug, Default)]
pub(super) struct SlowConsumerMonitor {
    next_check: Millis,
    /// When another large message may begin in spite of the backlog.
    next_begin: Millis,
    /// The backlogs were over the limit at the last check.
    was_over: bool,
}

impl SlowConsumerMonitor {
    /// Which large messages may begin.
    fn large_messages(&mut self, now: Millis, pressure: MemoryPressure) -> LargeMessages {
        let large = match pressure {
            MemoryPressure::Low => LargeMessages::Allow,
            MemoryPressure::High => LargeMessages::AllowOne,
            MemoryPressure::Backlog if now >= self.next_begin => LargeMessages::AllowOne,
            MemoryPressure::Backlog | MemoryPressure::Full => LargeMessages::Defer,
        };
        if large != LargeMessages::Defer {
            self.next_begin = now + BEGIN_INTERVAL_MS;
        }
        large
    }

    /// Whether the backlogs, which come to `bytes`, are to be looked at one by one: above half of the memory, now and then.
    fn is_due(&mut self, now: Millis, bytes: usize, memory_bytes: usize) -> bool {
        if bytes <= 2 * (memory_bytes / 4) {
            self.was_over = false;
            return false;
        }
        let is_due = now >= self.next_check;
        if is_due {
            self.next_check = now + CHECK_INTERVAL_MS;
        }
        is_due
    }

    /// Peers to disconnect: above half of the memory the idle ones; above three quarters also the one that has read least
    /// lately or has the largest backlog, if that is so for the second time in a row, which gives a peer that reads at once
    /// time to do so.
    fn excess(&mut self, backlogs: Vec<Backlog>, memory_bytes: usize) -> Vec<PeerId> {
        let quarter = memory_bytes / 4;
        let (some, most) = (2 * quarter, 3 * quarter);
        let mut total = backlogs.iter().map(|backlog| backlog.bytes).sum::<usize>();
        let mut excess = Vec::new();
        for Backlog { id, bytes, is_one, idle_ms } in backlogs {
            let is_idle = idle_ms >= STALLED_MAX_MS;
            // A single message doesn't count, however large it is: the peer gets it as long as no other has much.
            let counted = if is_one { total - bytes } else { total };
            if counted > if is_idle { some } else { most } && (is_idle || self.was_over) {
                total -= bytes;
                excess.push(id);
            }
        }
        self.was_over = total > most;
        excess
    }
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Reports to the core that a peer takes no more, and disconnects the peer if its own backlog is too large.
    pub(super) fn block(&mut self, peer: Peer) {
        let now = self.now();
        let Some(connection) = self.connections.find(peer) else { return };
        let most = PENDING_BYTES_MAX.max(self.core.settings().client_bytes_max);
        if !std::mem::replace(&mut connection.is_blocked, true) {
            connection.last_read.note(now, self.transport.bytes_out(connection.id));
            self.core.peer_blocked(now, peer, true);
        }
        let Some(connection) = self.connections.find(peer) else { return };
        let id = connection.id;
        self.connections.recount_pending(id);
        let Some(connection) = self.connections.of(id) else { return };
        let transport = &self.transport;
        let last_read = &mut connection.last_read;
        let mut has_stalled = || {
            if transport.is_prefetching(id) {
                // This side is slow, not the peer.
                last_read.note(now, transport.bytes_out(id));
            }
            last_read.has_stalled(now, STALLED_MAX_MS, || transport.bytes_out(id))
        };
        // Replies are as many as it has asked for; parts have no end.
        if connection.pending_bytes > most && (connection.gets_parts || has_stalled()) {
            self.reject(id, "it doesn't read what it is sent, and too much waits for it");
        }
    }

    /// Defers large messages of clients that can't act on a refusal, as long as memory is short.
    pub(super) fn defer_large_messages(&mut self, now: Millis) {
        let pressure = self.core.memory_pressure(self.transport.queued_bytes() + self.connections.pending_bytes());
        self.transport.set_large_messages(self.slow_consumers.large_messages(now, pressure));
    }

    /// Disconnects slow consumers where all backlogs together take too much memory.
    pub(super) fn disconnect_slow_consumers(&mut self) {
        let (now, memory_bytes) = (self.now(), self.core.settings().bytes_max);
        let bytes = self.transport.queued_bytes() + self.connections.pending_bytes();
        if !self.slow_consumers.is_due(now, bytes, memory_bytes) {
            return;
        }
        // Messages of this round haven't been offered to any peer yet.
        self.transport.flush();
        let backlogs = self.connections.backlogs(now, STALLED_MAX_MS, &self.transport);
        for id in self.slow_consumers.excess(backlogs, memory_bytes) {
            self.reject(
                id,
                "it reads too slowly what it is sent, and more waits for all peers than there is space for",
            );
        }
    }

    /// Sends a peer that takes more again what waits for it.
    pub(super) fn on_writable(&mut self, id: PeerId) {
        let now = self.now();
        let Some(connection) = self.connections.of(id) else { return };
        connection.last_read.note(now, self.transport.bytes_out(id));
        let mut is_full = false;
        while let Some(message) = connection.pending.pop_front() {
            let bytes = message.memory_bytes();
            match self.transport.send(id, message) {
                Ok(()) => connection.pending_bytes -= bytes,
                Err(SendError::Full(message)) => {
                    connection.pending.push_front(message);
                    is_full = true;
                    break;
                }
                Err(SendError::Gone(_)) => return,
            }
        }
        self.connections.recount_pending(id);
        let Some(connection) = self.connections.of(id).filter(|_| !is_full) else { return };
        if connection.is_half_closed {
            self.half_closed.push(id);
        }
        if std::mem::take(&mut connection.is_blocked) {
            (connection.asks_too_much, connection.gets_parts) = (false, false);
            set_reading(&mut self.transport, connection);
            self.core.peer_blocked(now, id.slot(), false);
            self.act();
        }
    }
}

/// Sends a message, or puts it into the backlog. True if the peer takes no more for now.
#[inline]
pub(super) fn push<W: BodySink>(
    transport: &mut impl Transport,
    connection: &mut Connection<W>,
    message: Message,
) -> bool {
    if connection.pending.is_empty() {
        match transport.send(connection.id, message) {
            // Its end is on its way to us, and with it what becomes of the requests.
            Ok(()) | Err(SendError::Gone(_)) => return false,
            Err(SendError::Full(message)) => {
                connection.pending_bytes += message.memory_bytes();
                connection.pending.push_back(message);
            }
        }
    } else {
        connection.pending_bytes += message.memory_bytes();
        connection.pending.push_back(message);
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::Kind;
    use crate::server::{Broker, BrokerOptions};
    use bytes::Bytes;
    use std::time::{Duration, Instant};
    use towpath_requests::body::Body;
    use towpath_requests::numbered::Status;
    use towpath_sockets::{Event, Frame, Hub, HubOptions, SocketType};

    /// A worker that is nowhere but in the core.
    const WORKER: Peer = 1000;

    /// Replies of a mebibyte each, and more of them than may wait for a peer that doesn't read.
    const REPLIES: usize = (PENDING_BYTES_MAX >> 20) + 20;

    #[test]
    fn parts_that_were_read_are_no_backlog() {
        let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        options.settings.client_bytes_max = PENDING_BYTES_MAX;
        let mut broker = Broker::bind(options).unwrap();
        broker.dispatch.core.worker_ready(0, WORKER, Kind::Numbered, b"work", REPLIES as u32 + 1);
        let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        client.connect_once(&broker.endpoints()[0].clone());
        let (start, mut asked, mut got) = (Instant::now(), 0, 0);
        let mut turn = |broker: &mut Broker| {
            broker.turn().unwrap();
            client.poll(Some(Duration::ZERO)).unwrap();
            while let Some(event) = client.next_event() {
                match event {
                    Event::Ready { peer } => {
                        for _ in 0..=REPLIES {
                            let frames = [&b"MDPC02"[..], &[1], b"work", b"x"].map(Bytes::from_static);
                            client.send(peer, frames.into_iter().map(Frame::Bytes).collect()).unwrap();
                            asked += 1;
                        }
                    }
                    Event::Message { .. } => got += 1,
                    _ => {}
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{asked} requests, {got} parts");
            (asked, got)
        };
        let held = |broker: &Broker| broker.dispatch.core.workers().next().unwrap().held;
        // The worker's messages are lost, so its tokens are taken from the core.
        let mut tokens = Vec::new();
        while held(&broker) <= REPLIES {
            turn(&mut broker);
        }
        tokens.extend(broker.dispatch.core.tokens_of_all());
        broker.dispatch.core.worker_reply(0, WORKER, &tokens[0], Status::OK, Some(0), Body::from("part"));
        broker.dispatch.act();
        while turn(&mut broker).1 == 0 {}
        let large = Body::from(Bytes::from(vec![7; 1 << 20]));
        for token in &tokens[1..] {
            broker.dispatch.core.worker_reply(0, WORKER, token, Status::OK, None, large.clone());
        }
        broker.dispatch.act();
        let connection = broker.dispatch.connections.find(0).expect("it was disconnected, and had no time to read");
        assert!(connection.pending_bytes > PENDING_BYTES_MAX);
    }

    /// A stock client that reads only when it is polled, with `count` requests at the worker.
    fn asked(broker: &mut Broker, count: usize) -> Hub {
        broker.dispatch.core.worker_ready(0, WORKER, Kind::Numbered, b"work", count as u32);
        let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        client.connect_once(&broker.endpoints()[0].clone());
        let start = Instant::now();
        while broker.dispatch.core.workers().next().unwrap().held < count {
            assert!(start.elapsed() < Duration::from_secs(60), "it didn't ask");
            broker.turn().unwrap();
            client.poll(Some(Duration::ZERO)).unwrap();
            while let Some(event) = client.next_event() {
                let Event::Ready { peer } = event else { continue };
                for _ in 0..count {
                    let frames = [&b""[..], b"MDPC01", b"work", b"x"].map(Bytes::from_static);
                    client.send(peer, frames.into_iter().map(Frame::Bytes).collect()).unwrap();
                }
            }
        }
        client
    }

    #[test]
    fn slow_consumer_is_disconnected_unless_its_backlog_is_one_message() {
        for count in [1, 2] {
            let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
            (options.settings.bytes_max, options.settings.client_bytes_max) = (8 << 20, 4 << 20);
            let mut broker = Broker::bind(options).unwrap();
            let mut client = asked(&mut broker, count);
            let frames: Vec<_> = (0..20).map(|_| Bytes::from(vec![7; 1 << 20])).collect();
            for token in broker.dispatch.core.tokens_of_all() {
                let body = Body::of_frames(frames.clone());
                broker.dispatch.core.worker_reply(0, WORKER, &token, Status::OK, None, body);
            }
            let start = Instant::now();
            let got = loop {
                broker.turn().unwrap();
                if count > 1 && broker.dispatch.connections.find(0).is_some() {
                    // It doesn't read.
                    assert!(start.elapsed() < Duration::from_secs(60), "it may have both");
                    continue;
                }
                client.poll(Some(Duration::ZERO)).unwrap();
                match client.next_event() {
                    Some(Event::Message { frames, .. }) => break Some(frames.len()),
                    Some(Event::Gone { .. }) => break None,
                    _ => assert!(start.elapsed() < Duration::from_secs(60), "nothing came"),
                }
            };
            assert_eq!(got, (count == 1).then_some(23));
        }
    }
}
