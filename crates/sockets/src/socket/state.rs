//! State that callers of a socket share with the task that drives it.

use super::{Received, Shared};
use crate::error::{SendError, SocketError};
use crate::event::Event;
use crate::hub::Hub;
use crate::message::{Frame, Message};
use crate::peer_id::PeerId;
use bytes::Bytes;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};
use towpath_zmtp::{Frames, SocketType};

/// Bytes of messages waiting for the caller from which on a peer that brings another one isn't read any more. Others still are.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The same for all peers, present and new: each could leave a message and go.
const RECEIVED_BYTES_OF_ALL_MAX: usize = 4 * RECEIVED_BYTES_MAX;

/// The envelope of a REQ.
static DELIMITER: [Bytes; 1] = [Bytes::new()];

pub(super) struct State {
    /// None when the socket is closed.
    pub(super) hub: Option<Hub>,
    closing: Option<Closing>,
    /// The socket was dropped.
    pub(super) hung_up: bool,
    socket_type: SocketType,
    peers: VecDeque<PeerId>,
    received: VecDeque<Received>,
    received_bytes: usize,
    paused: HashSet<PeerId>,
    order: Order,
    /// The reason of the last failure to connect, or of the last end of a connection.
    pub(super) failure: Option<String>,
    /// Requests that a REP has received: a reply belongs to the one that was the last when it was given.
    pub(super) request_number: u64,
}

/// A socket that takes no more messages and sends what is queued, until then; `None`: without limit.
struct Closing {
    until: Option<Instant>,
}

/// The order of sending and receiving at a REQ or REP socket.
enum Order {
    Idle,
    /// REQ: a request is out; only this peer's answer counts.
    AwaitReply(PeerId),
    /// REQ: that peer went without an answer, which has not been reported yet.
    Lost(PeerId),
    /// REP: a request was received; the reply goes to this peer, behind this envelope.
    MustReply(PeerId, Frames),
}

impl State {
    pub(super) fn new(hub: Hub, socket_type: SocketType) -> State {
        State {
            hub: Some(hub),
            closing: None,
            hung_up: false,
            socket_type,
            peers: VecDeque::new(),
            received: VecDeque::new(),
            received_bytes: 0,
            paused: HashSet::new(),
            order: Order::Idle,
            failure: None,
            request_number: 0,
        }
    }

    /// Sends to the peer that the socket type chooses; gives the message back if queues are full. `request_number` numbers the request of a reply.
    pub(super) fn send(&mut self, message: Message, request_number: u64) -> Result<Option<Message>, SocketError> {
        self.may_send(&message)?;
        match (self.socket_type, &self.order) {
            (SocketType::Router, _) => Err(SocketError::OutOfTurn("a ROUTER sends to a peer: use send_to")),
            (SocketType::Dealer, _) => self.send_to_any(message),
            (SocketType::Req, Order::AwaitReply(_)) => {
                Err(SocketError::OutOfTurn("a REQ waits for the reply to its request first"))
            }
            (SocketType::Req, _) => {
                let back = self.send_to_any(with_envelope(&DELIMITER, message))?;
                Ok(back.map(|back| without_envelope(&DELIMITER, back)))
            }
            (SocketType::Rep, _) if request_number != self.request_number => {
                Err(SocketError::OutOfTurn("the request has had its reply, and another one is in"))
            }
            (SocketType::Rep, _) => self.reply(message),
        }
    }

    /// Sends to that peer; gives the message back if its queue is full.
    pub(super) fn send_to(&mut self, peer: PeerId, message: Message) -> Result<Option<Message>, SocketError> {
        self.may_send(&message)?;
        let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
        match hub.send(peer, message) {
            Ok(()) => Ok(None),
            Err(SendError::Full(back)) => Ok(Some(back)),
            Err(SendError::Gone(_)) => Err(SocketError::PeerGone(peer)),
        }
    }

    fn may_send(&self, message: &Message) -> Result<(), SocketError> {
        match self.closing {
            Some(_) => Err(SocketError::Closed),
            None if message.frames.is_empty() => Err(SocketError::NoFrames),
            None => Ok(()),
        }
    }

    /// Takes no more messages, and ends when all are sent, or then: the earliest time given counts.
    pub(super) fn close(&mut self, until: Option<Instant>) {
        match (&mut self.closing, &mut self.hub) {
            (Some(closing), _) => closing.until = closing.until.into_iter().chain(until).min(),
            (None, Some(hub)) => {
                hub.count_lost();
                self.closing = Some(Closing { until });
            }
            (None, None) => {}
        }
    }

    /// Whether to close now: everything is sent, or the time is over.
    pub(super) fn is_over(&self) -> bool {
        let is_late = |closing: &Closing| closing.until.is_some_and(|until| until <= Instant::now());
        let has_output = || self.hub.as_ref().is_some_and(Hub::has_output);
        self.closing.as_ref().is_some_and(|closing| is_late(closing) || !has_output())
    }

    /// Time left for sending: `most`, or what is left of the time to close.
    pub(super) fn left(&self, most: Duration) -> Duration {
        let until = self.closing.as_ref().and_then(|closing| closing.until);
        until.map_or(most, |until| until.saturating_duration_since(Instant::now()).min(most))
    }

    /// When to poll even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let closing = self.closing.as_ref().and_then(|closing| closing.until);
        self.hub.as_ref().and_then(Hub::deadline).into_iter().chain(closing).min()
    }

    /// Sends to the next peer whose queue isn't full.
    fn send_to_any(&mut self, mut message: Message) -> Result<Option<Message>, SocketError> {
        let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
        for _ in 0..self.peers.len() {
            let Some(peer) = self.peers.pop_front() else { break };
            self.peers.push_back(peer);
            match hub.send(peer, message) {
                Ok(()) => {
                    if self.socket_type == SocketType::Req {
                        self.order = Order::AwaitReply(peer);
                        // Messages received until now answer no request, and may come from the peer that is asked now.
                        self.received.clear();
                        self.received_bytes = 0;
                    }
                    return Ok(None);
                }
                Err(SendError::Full(back) | SendError::Gone(back)) => message = back,
            }
        }
        Ok(Some(message))
    }

    /// Replies. The reply is due until it is taken: a caller that gives up waiting may try again.
    fn reply(&mut self, message: Message) -> Result<Option<Message>, SocketError> {
        let Order::MustReply(peer, envelope) = &self.order else {
            return Err(SocketError::OutOfTurn("a REP replies to a request that it has received"));
        };
        let peer = *peer;
        let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
        let sent = match hub.send(peer, with_envelope(envelope, message)) {
            Ok(()) => Ok(None),
            Err(SendError::Full(back)) => return Ok(Some(without_envelope(envelope, back))),
            Err(SendError::Gone(_)) => Err(SocketError::PeerGone(peer)),
        };
        self.order = Order::Idle;
        sent
    }

    /// The next message for the caller, if there is one.
    pub(super) fn take_received(&mut self) -> Result<Option<Received>, SocketError> {
        match (self.socket_type, &self.order) {
            (SocketType::Req, Order::Idle) => return Err(SocketError::OutOfTurn("a REQ sends a request first")),
            (SocketType::Req, &Order::Lost(peer)) => {
                self.order = Order::Idle;
                return Err(SocketError::PeerGone(peer));
            }
            (SocketType::Rep, Order::MustReply(..)) => {
                return Err(SocketError::OutOfTurn("a REP replies before it takes the next request"));
            }
            _ => {}
        }
        while let Some(mut received) = self.received.pop_front() {
            self.received_bytes = self.received_bytes.saturating_sub(cost(&received.frames));
            if self.may_read_on()
                && let Some(hub) = &self.hub
            {
                hub.waker().wake();
            }
            match self.socket_type {
                SocketType::Req => {
                    if !self.is_awaited(&received) {
                        tracing::debug!(peer = %received.peer, "message dropped: it answers no request");
                        continue;
                    }
                    received.frames.remove(0);
                    self.order = Order::Idle;
                }
                SocketType::Rep => {
                    let delimiter = received.frames.iter().position(Bytes::is_empty);
                    // A request without frames behind its envelope is no message.
                    let Some(delimiter) = delimiter.filter(|at| at + 1 < received.frames.len()) else {
                        tracing::debug!(peer = %received.peer, "request dropped: no envelope, or nothing behind it");
                        continue;
                    };
                    let body = received.frames.drain(delimiter + 1..).collect();
                    let envelope = std::mem::replace(&mut received.frames, body);
                    self.order = Order::MustReply(received.peer, envelope);
                    self.request_number += 1;
                }
                SocketType::Dealer | SocketType::Router => {}
            }
            return Ok(Some(received));
        }
        if self.hub.is_none() { Err(SocketError::Closed) } else { Ok(None) }
    }

    /// Whether it is the reply to the pending request.
    fn is_awaited(&self, received: &Received) -> bool {
        matches!(self.order, Order::AwaitReply(peer) if peer == received.peer)
            && received.frames.first().is_some_and(Bytes::is_empty)
            && received.frames.len() > 1
    }

    /// Whether paused peers may be read again.
    fn may_read_on(&self) -> bool {
        !self.paused.is_empty() && self.received_bytes < RECEIVED_BYTES_MAX / 2
    }

    /// Pauses reading from a peer, or from all, if too much waits for the caller.
    fn pause_peers(&mut self, latest: PeerId) {
        let all = self.peers.make_contiguous();
        let held_back = match self.received_bytes {
            RECEIVED_BYTES_OF_ALL_MAX.. => all,
            RECEIVED_BYTES_MAX.. => &mut [latest],
            _ => return,
        };
        let Some(hub) = &mut self.hub else { return };
        for &mut peer in held_back {
            if self.paused.insert(peer) {
                hub.pause_reading(peer, true);
            }
        }
    }

    /// Polls the hub once; true if it should be polled again at once.
    pub(super) fn poll(&mut self, shared: &Shared) -> Result<bool, SocketError> {
        let may_read_on = self.may_read_on();
        let Some(hub) = self.hub.as_mut() else { return Ok(false) };
        if may_read_on {
            for peer in self.paused.drain() {
                hub.pause_reading(peer, false);
            }
        }
        hub.poll(Some(Duration::ZERO))?;
        while let Some(event) = self.hub.as_mut().and_then(Hub::next_event) {
            self.take_in(event, shared);
        }
        Ok(self.hub.as_ref().is_some_and(Hub::is_busy))
    }

    fn take_in(&mut self, event: Event, shared: &Shared) {
        match event {
            Event::Ready { peer } => {
                self.peers.push_back(peer);
                if self.received_bytes >= RECEIVED_BYTES_OF_ALL_MAX {
                    self.pause_peers(peer);
                }
                shared.writable.notify_waiters();
            }
            Event::Gone { peer, reason } => {
                tracing::debug!(%peer, reason, "gone");
                self.failure = Some(reason);
                self.peers.retain(|known| *known != peer);
                self.paused.remove(&peer);
                // An answer that came before its end still counts.
                if matches!(self.order, Order::AwaitReply(asked) if asked == peer)
                    && !self.received.iter().any(|received| self.is_awaited(received))
                {
                    self.order = Order::Lost(peer);
                }
                // Callers that wait for this peer must learn that nothing is to come.
                shared.writable.notify_waiters();
                shared.received.notify_waiters();
            }
            Event::Writable { .. } => shared.writable.notify_waiters(),
            Event::Message { peer, frames, .. } => {
                self.received_bytes += cost(&frames);
                self.received.push_back(Received { peer, frames });
                self.pause_peers(peer);
                shared.received.notify_waiters();
            }
            Event::Authenticate { peer, .. } => {
                if let Some(hub) = &mut self.hub {
                    hub.authenticate(peer, None);
                }
            }
            Event::HalfClosed { peer } => {
                if let Some(hub) = &mut self.hub {
                    hub.end_half_closed(peer, false);
                }
            }
            // Its messages are still wanted, and come before its end.
            Event::HungUp { .. } | Event::FileSent { .. } => {}
            Event::Failed { address, reason, .. } => {
                tracing::debug!(address, reason, "no connection");
                self.failure = Some(format!("{address}: {reason}"));
            }
            Event::BodyStart { .. } | Event::BodyData { .. } | Event::BodyEnd { .. } => {}
        }
    }
}

fn with_envelope(envelope: &[Bytes], message: Message) -> Message {
    let tag = message.tag;
    let envelope = envelope.iter().cloned().map(Frame::Bytes);
    envelope.chain(message.frames).collect::<Message>().tagged(tag)
}

fn without_envelope(envelope: &[Bytes], mut message: Message) -> Message {
    message.frames.drain(..envelope.len());
    message
}

fn cost(frames: &Frames) -> usize {
    frames.iter().map(|frame| frame.len() + towpath_zmtp::limits::FRAME_OVERHEAD_BYTES).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::net::endpoint::Endpoint;
    use crate::options::HubOptions;
    use std::sync::Mutex;
    use tokio::sync::{Notify, watch};

    const LARGE_BYTES: usize = 4 << 20;

    #[test]
    fn messages_of_peers_that_are_gone_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        // Not over tcp, where the kernel's buffers may be of any size.
        let endpoint = hub.bind(&Endpoint::Ipc(folder.path().join("socket"))).unwrap();
        let shared = Shared {
            state: Mutex::new(State::new(hub, SocketType::Router)),
            received: Notify::new(),
            writable: Notify::new(),
            hung_up: Notify::new(),
            closed: watch::Sender::new(None),
        };
        let mut state = shared.lock();
        let mut clients = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        clients.connect_once(&endpoint);
        let (mut sending, mut left, mut taken, mut idle) = (None, 0, 0, 0);
        let most = RECEIVED_BYTES_OF_ALL_MAX + LARGE_BYTES;
        while taken < 3 * RECEIVED_BYTES_OF_ALL_MAX / LARGE_BYTES {
            state.poll(&shared).unwrap();
            assert!(state.received_bytes <= most, "{} bytes", state.received_bytes);
            clients.poll(Some(Duration::ZERO)).unwrap();
            idle += 1;
            if let Some(peer) = sending.take_if(|_| !clients.has_output()) {
                clients.disconnect(peer, "done");
            }
            while let Some(event) = clients.next_event() {
                idle = 0;
                match event {
                    // Each brings one message and goes when it has left; then another one comes.
                    Event::Ready { peer } => {
                        let body = Bytes::from(vec![7; LARGE_BYTES]);
                        assert!(clients.send(peer, Message::new().with(body)).is_ok());
                        sending = Some(peer);
                    }
                    Event::Gone { .. } => {
                        left += 1;
                        assert!(left <= 100, "they left {left} messages, and {taken} were taken");
                        clients.connect_once(&endpoint);
                    }
                    _ => {}
                }
            }
            // They can't bring any more.
            if idle > 1_000 {
                assert!(state.received_bytes >= RECEIVED_BYTES_OF_ALL_MAX, "{} bytes", state.received_bytes);
                while state.received_bytes >= RECEIVED_BYTES_MAX / 2 {
                    assert_eq!(state.take_received().unwrap().unwrap().frames[0].len(), LARGE_BYTES);
                    taken += 1;
                }
                idle = 0;
            }
        }
        assert!(left >= taken);
    }
}
