//! What the callers of an easy socket share with the task that drives it, and whose turn it is.

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

/// Messages received and not yet taken, in bytes, before whoever brings another one isn't read any more. Others are still heard.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The same, before nobody is read any more: neither who is there nor who comes. Each could leave a message here and go.
const RECEIVED_BYTES_OF_ALL_MAX: usize = 4 * RECEIVED_BYTES_MAX;

/// What a REQ puts before its request.
static DELIMITER: [Bytes; 1] = [Bytes::new()];

pub(super) struct State {
    /// None when the socket is closed.
    pub(super) hub: Option<Hub>,
    closing: Option<Closing>,
    socket_type: SocketType,
    peers: VecDeque<PeerId>,
    received: VecDeque<Received>,
    received_bytes: usize,
    paused: HashSet<PeerId>,
    turn: Turn,
    /// What went wrong last with a connection.
    pub(super) failure: Option<String>,
    /// How many turns were a REP's to reply: a reply is to the request that was in when it was given.
    pub(super) owed: u64,
}

/// A socket that takes no more, and sends what waits, until then; `None`: without end.
struct Closing {
    until: Option<Instant>,
}

/// Whose turn it is at a REQ or REP socket.
enum Turn {
    Idle,
    /// REQ: a request is out; only this peer's answer counts.
    AwaitReply(PeerId),
    /// REQ: that peer went without an answer, and nobody has been told yet.
    Lost(PeerId),
    /// REP: a request is in; the answer goes there, behind this envelope.
    OweReply(PeerId, Frames),
}

impl State {
    pub(super) fn new(hub: Hub, socket_type: SocketType) -> State {
        State {
            hub: Some(hub),
            closing: None,
            socket_type,
            peers: VecDeque::new(),
            received: VecDeque::new(),
            received_bytes: 0,
            paused: HashSet::new(),
            turn: Turn::Idle,
            failure: None,
            owed: 0,
        }
    }

    /// Sends to whom the kind of socket sends to now; gives the message back if there is no room. A reply is to the request of the
    /// turn of that number.
    pub(super) fn send(&mut self, message: Message, owed: u64) -> Result<Option<Message>, SocketError> {
        self.may_send(&message)?;
        match (self.socket_type, &self.turn) {
            (SocketType::Router, _) => Err(SocketError::OutOfTurn("a ROUTER sends to a peer: use send_to")),
            (SocketType::Dealer, _) => self.send_to_any(message),
            (SocketType::Req, Turn::AwaitReply(_)) => {
                Err(SocketError::OutOfTurn("a REQ waits for the reply to its request first"))
            }
            (SocketType::Req, _) => {
                let back = self.send_to_any(with_envelope(&DELIMITER, message))?;
                Ok(back.map(|back| without_envelope(&DELIMITER, back)))
            }
            (SocketType::Rep, _) if owed != self.owed => {
                Err(SocketError::OutOfTurn("the request has had its reply, and another one is in"))
            }
            (SocketType::Rep, _) => self.reply(message),
        }
    }

    /// Sends to that peer; gives the message back if there is no room.
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

    /// Takes no more, and ends when all is sent, or then. If it was to end anyway, it does at the earlier time.
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

    /// Whether it is to be closed now: all is sent, or it had its time.
    pub(super) fn is_over(&self) -> bool {
        let is_late = |closing: &Closing| closing.until.is_some_and(|until| until <= Instant::now());
        let has_output = || self.hub.as_ref().is_some_and(Hub::has_output);
        self.closing.as_ref().is_some_and(|closing| is_late(closing) || !has_output())
    }

    /// How long it may go on sending: so long at most, or what is left of the time to close it.
    pub(super) fn left(&self, most: Duration) -> Duration {
        let until = self.closing.as_ref().and_then(|closing| closing.until);
        until.map_or(most, |until| until.saturating_duration_since(Instant::now()).min(most))
    }

    /// When it wants a turn though nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let closing = self.closing.as_ref().and_then(|closing| closing.until);
        self.hub.as_ref().and_then(Hub::deadline).into_iter().chain(closing).min()
    }

    /// To the next peer with room.
    fn send_to_any(&mut self, mut message: Message) -> Result<Option<Message>, SocketError> {
        let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
        for _ in 0..self.peers.len() {
            let Some(peer) = self.peers.pop_front() else { break };
            self.peers.push_back(peer);
            match hub.send(peer, message) {
                Ok(()) => {
                    if self.socket_type == SocketType::Req {
                        self.turn = Turn::AwaitReply(peer);
                        // What has come until now answers no request, and may be of the peer that is asked now.
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

    /// The reply is owed until it is taken: whoever gives up waiting for room may try again.
    fn reply(&mut self, message: Message) -> Result<Option<Message>, SocketError> {
        let Turn::OweReply(peer, envelope) = &self.turn else {
            return Err(SocketError::OutOfTurn("a REP replies to a request that it has received"));
        };
        let peer = *peer;
        let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
        let sent = match hub.send(peer, with_envelope(envelope, message)) {
            Ok(()) => Ok(None),
            Err(SendError::Full(back)) => return Ok(Some(without_envelope(envelope, back))),
            Err(SendError::Gone(_)) => Err(SocketError::PeerGone(peer)),
        };
        self.turn = Turn::Idle;
        sent
    }

    /// The next message that is for the caller, if there is one.
    pub(super) fn take_received(&mut self) -> Result<Option<Received>, SocketError> {
        match (self.socket_type, &self.turn) {
            (SocketType::Req, Turn::Idle) => return Err(SocketError::OutOfTurn("a REQ sends a request first")),
            (SocketType::Req, &Turn::Lost(peer)) => {
                self.turn = Turn::Idle;
                return Err(SocketError::PeerGone(peer));
            }
            (SocketType::Rep, Turn::OweReply(..)) => {
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
                        tracing::debug!(peer = %received.peer, "a message that answers no request is left out");
                        continue;
                    }
                    received.frames.remove(0);
                    self.turn = Turn::Idle;
                }
                SocketType::Rep => {
                    let delimiter = received.frames.iter().position(Bytes::is_empty);
                    // There is no reply to a request of no frames but one that is no message.
                    let Some(delimiter) = delimiter.filter(|at| at + 1 < received.frames.len()) else {
                        tracing::debug!(peer = %received.peer, "a request without an envelope, or with nothing in it, is left out");
                        continue;
                    };
                    let body = received.frames.drain(delimiter + 1..).collect();
                    let envelope = std::mem::replace(&mut received.frames, body);
                    self.turn = Turn::OweReply(received.peer, envelope);
                    self.owed += 1;
                }
                SocketType::Dealer | SocketType::Router => {}
            }
            return Ok(Some(received));
        }
        if self.hub.is_none() { Err(SocketError::Closed) } else { Ok(None) }
    }

    /// Whether it is the reply to the request that is out.
    fn is_awaited(&self, received: &Received) -> bool {
        matches!(self.turn, Turn::AwaitReply(peer) if peer == received.peer)
            && received.frames.first().is_some_and(Bytes::is_empty)
            && received.frames.len() > 1
    }

    /// Whether peers are held back for whom there is room again.
    fn may_read_on(&self) -> bool {
        !self.paused.is_empty() && self.received_bytes < RECEIVED_BYTES_MAX / 2
    }

    /// Reads no more from a peer, or from all, if too much waits for the caller.
    fn hold_back(&mut self, latest: PeerId) {
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

    /// One turn of the hub; says whether it wants another at once.
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
                    self.hold_back(peer);
                }
                shared.room.notify_waiters();
            }
            Event::Gone { peer, reason } => {
                tracing::debug!(%peer, reason, "gone");
                self.failure = Some(reason);
                self.peers.retain(|known| *known != peer);
                self.paused.remove(&peer);
                // An answer that came before its end still counts.
                if matches!(self.turn, Turn::AwaitReply(asked) if asked == peer)
                    && !self.received.iter().any(|received| self.is_awaited(received))
                {
                    self.turn = Turn::Lost(peer);
                }
                // Whoever waits for room at this peer, or for its answer, must learn that there is none to come.
                shared.room.notify_waiters();
                shared.received.notify_waiters();
            }
            Event::Writable { .. } => shared.room.notify_waiters(),
            Event::Message { peer, frames, .. } => {
                self.received_bytes += cost(&frames);
                self.received.push_back(Received { peer, frames });
                self.hold_back(peer);
                shared.received.notify_waiters();
            }
            Event::Authenticate { peer, .. } => {
                if let Some(hub) = &mut self.hub {
                    hub.authenticate(peer, false);
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
    fn what_those_leave_who_are_gone_counts_and_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        // Not over tcp, for which the kernel's buffers may be as large as it likes.
        let endpoint = hub.bind(&Endpoint::Ipc(folder.path().join("socket"))).unwrap();
        let shared = Shared {
            state: Mutex::new(State::new(hub, SocketType::Router)),
            received: Notify::new(),
            room: Notify::new(),
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
                    // Each brings one message, and goes when it has left; then comes another one.
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
