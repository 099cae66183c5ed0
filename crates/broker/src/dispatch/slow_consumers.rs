//! What peers have not read yet, and what becomes of those that don't.

use super::Dispatch;
use super::connection::{Backlog, Connection};
use super::encode::set_reading;
use crate::core::{MemoryPressure, Millis, Peer};
use crate::store::Store;
use crate::transport::Transport;
use towpath_requests::assembler::BodySink;
use towpath_sockets::{LargeMessages, Message, PeerId, SendError};

/// Bytes of memory that may wait for one peer beside what the hub holds, or as many as a client may have outstanding if that is
/// more, where it reads nothing. Only replies to requests of stock clients that workers have already, and parts, can come to that:
/// outcomes and requests wait in the core, and whoever is answered at once isn't read any more.
const PENDING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A peer for which more waits is disconnected if it has read nothing for so long. One that reads, however slowly, may have as much
/// as there is room for. What is seen is what the system takes for it, and on loopback that is a mebibyte and a half now and then.
const STALLED_MAX_MS: Millis = 20_000;

/// What waits for all is added up no more often than this, in milliseconds.
const LOOK_GRAIN: Millis = 10;

/// Where very much waits for peers, larger messages of those that are held back for it begin no more often than this, in milliseconds.
const BEGIN_GRAIN: Millis = 100;

/// Looking at what waits for all peers, now and then.
#[derive(Debug, Default)]
pub(super) struct SlowConsumerMonitor {
    next: Millis,
    /// When another large message may begin although so much waits.
    next_begin: Millis,
    /// It was more than there is room for when it was last looked at.
    is_over: bool,
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Tells the core that a peer takes no more, and what of that follows.
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
                // It is this side that is slow.
                last_read.note(now, transport.bytes_out(id));
            }
            last_read.has_stalled(now, STALLED_MAX_MS, || transport.bytes_out(id))
        };
        // Replies are as many as it has asked for; parts have no end.
        if connection.pending_bytes > most && (connection.gets_parts || has_stalled()) {
            self.reject(id, "it doesn't read what it is sent, and too much waits for it");
        }
    }

    /// Has those wait with large messages who can't act on a refusal, as long as there is little room.
    pub(super) fn hold_back(&mut self, now: Millis) {
        let large = match self.core.memory_pressure(self.transport.queued_bytes() + self.connections.pending_bytes()) {
            MemoryPressure::Low => LargeMessages::Allow,
            MemoryPressure::High => LargeMessages::AllowOne,
            MemoryPressure::Backlog if now >= self.slow_consumers.next_begin => LargeMessages::AllowOne,
            MemoryPressure::Backlog | MemoryPressure::Full => LargeMessages::Defer,
        };
        if large != LargeMessages::Defer {
            self.slow_consumers.next_begin = now + BEGIN_GRAIN;
        }
        self.transport.set_large_messages(large);
    }

    /// Sends peers away where more waits for all of them than there is room for: from half of all memory on those that hardly read, and
    /// where it comes to three quarters, whoever has read the least lately or has the most. It looks now and then.
    pub(super) fn bound_waiting(&mut self) {
        let quarter = self.core.settings().bytes_max / 4;
        let (some, most) = (2 * quarter, 3 * quarter);
        if self.transport.queued_bytes() + self.connections.pending_bytes() <= some {
            self.slow_consumers.is_over = false;
            return;
        }
        let now = self.now();
        if now < self.slow_consumers.next {
            return;
        }
        self.slow_consumers.next = now + LOOK_GRAIN;
        // What came in this turn was offered to nobody yet.
        self.transport.flush();
        let backlogs = self.connections.backlogs(now, STALLED_MAX_MS, &self.transport);
        let mut total = backlogs.iter().map(|backlog| backlog.bytes).sum::<usize>();
        // Whoever reads at once has had time to when it is so for a second time.
        let was_over = self.slow_consumers.is_over;
        for Backlog { id, bytes, is_one, idle_ms } in backlogs {
            let is_idle = idle_ms >= STALLED_MAX_MS;
            // One message is beside it, however large it is: that nobody else has one is all that could be done about it.
            let counted = if is_one { total - bytes } else { total };
            if counted > if is_idle { some } else { most } && (is_idle || was_over) {
                total -= bytes;
                let why = "it reads too slowly what it is sent, and more waits for all peers than there is room for";
                self.reject(id, why);
            }
        }
        self.slow_consumers.is_over = total > most;
    }

    /// A peer takes more again.
    pub(super) fn on_room(&mut self, id: PeerId) {
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
        if std::mem::take(&mut connection.is_blocked) {
            (connection.asks_too_much, connection.gets_parts) = (false, false);
            set_reading(&mut self.transport, connection);
            self.core.peer_blocked(now, id.slot(), false);
            self.act();
        }
    }
}

/// Whether the peer takes no more for now.
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
    fn parts_that_were_read_are_not_held_against_who_has_much_to_read() {
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
        // What a worker gets is to nobody, so its tokens are taken from the core.
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

    /// A stock client that reads only when it is turned, and has so many requests with the worker.
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
    fn one_reply_may_have_more_than_may_wait_for_all_and_two_may_not() {
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
