//! The easy interface: send and receive a message, as in any ZeroMQ library, on tokio.
//!
//! A task drives the [`Hub`]; callers share it behind a lock that is never held while anything is waited for. Both directions
//! are bounded in bytes: [`Socket::send`] waits while every queue is full, and what isn't received is left in the kernel, so
//! that TCP holds the sender back. Nothing is dropped.

use crate::endpoint::Endpoint;
use crate::error::{SendError, SocketError};
use crate::event::Event;
use crate::hub::Hub;
use crate::message::Message;
use crate::options::HubOptions;
use crate::peer::{PeerId, PeerInfo};
use bytes::Bytes;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use towpath_zmtp::{Frames, Queued, SocketType};

/// Messages received and not yet taken, in octets, before reading pauses.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long closing waits for what is still to be sent.
const LINGER: Duration = Duration::from_secs(30);

/// A message that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// From whom: the address for [`Socket::send_to`].
    pub peer: PeerId,
    /// Its frames; for REQ and REP without the envelope.
    pub frames: Frames,
}

/// A REQ, REP, DEALER or ROUTER socket on tokio. Dropping it sends what waits, for up to 30 seconds, and closes.
pub struct Socket {
    shared: Arc<Shared>,
    socket_type: SocketType,
}

struct Shared {
    state: Mutex<State>,
    received: Notify,
    room: Notify,
    hung_up: Notify,
}

struct State {
    hub: Option<Hub>,
    peers: VecDeque<PeerId>,
    received: VecDeque<Received>,
    received_bytes: usize,
    paused: HashSet<PeerId>,
    turn: Turn,
    failed: bool,
}

/// Whose turn it is at a REQ or REP socket.
enum Turn {
    Idle,
    /// REQ: a request is out; only this peer's answer counts.
    AwaitReply(PeerId),
    /// REQ: that peer is gone. Its answer may have come before.
    Deserted(PeerId),
    /// REP: a request is in; the answer goes there, behind this envelope.
    OweReply(PeerId, Frames),
}

impl Socket {
    /// A socket, driven by a task on the current tokio runtime. Every message comes whole, so `stream_over_bytes` is left out
    /// of account; in the server's role of PLAIN all users are refused, since nobody can be asked (a [`Hub`] can).
    pub fn new(mut options: HubOptions) -> Result<Socket, SocketError> {
        let socket_type = options.socket_type;
        // A streamed body would have nowhere to go here, and nothing may be dropped in silence.
        options.stream_over_bytes = None;
        let hub = Hub::new(options)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(hub.as_fd(), 0)?;
        #[expect(deprecated, reason = "its successor is unsafe; an OwnedFd keeps what that one asks for")]
        let fd = AsyncFd::new(fd)?;
        let state = State {
            hub: Some(hub),
            peers: VecDeque::new(),
            received: VecDeque::new(),
            received_bytes: 0,
            paused: HashSet::new(),
            turn: Turn::Idle,
            failed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            received: Notify::new(),
            room: Notify::new(),
            hung_up: Notify::new(),
        });
        tokio::spawn(drive(shared.clone(), fd));
        Ok(Socket { shared, socket_type })
    }

    /// Listens; gives the endpoint with the real port.
    pub fn bind(&self, endpoint: &Endpoint) -> Result<Endpoint, SocketError> {
        self.shared.with_hub(|hub| hub.bind(endpoint))?
    }

    /// Connects, again and again.
    pub fn connect(&self, endpoint: &Endpoint) -> Result<(), SocketError> {
        self.shared.with_hub(|hub| hub.connect(endpoint))?
    }

    /// Sends a message: DEALER to the next peer that has room, REQ likewise with the envelope that it needs, REP to
    /// whom it owes a reply. Waits until there is room. A ROUTER uses [`Socket::send_to`].
    ///
    /// Cancel-safe: a message whose future is dropped early was not sent.
    pub async fn send(&self, message: Message) -> Result<(), SocketError> {
        let mut message = match self.socket_type {
            SocketType::Router => return Err(SocketError::OutOfTurn("a ROUTER sends to a peer: use send_to")),
            SocketType::Dealer => message,
            SocketType::Req => with_envelope(&[Bytes::new()], message),
            SocketType::Rep => match &self.shared.lock().turn {
                Turn::OweReply(_, envelope) => with_envelope(envelope, message),
                _ => return Err(SocketError::OutOfTurn("a REP replies to a request that it has received")),
            },
        };
        loop {
            let room = self.shared.room.notified();
            // Bound first: a guard in the match would still be held in its arms.
            let outcome = self.shared.lock().send(message, self.socket_type)?;
            match outcome {
                None => {
                    self.shared.wake();
                    return Ok(());
                }
                Some(back) => message = back,
            }
            room.await;
        }
    }

    /// Sends a message to one peer; waits until there is room. A peer that is gone is an error, never silence.
    pub async fn send_to(&self, peer: PeerId, mut message: Message) -> Result<(), SocketError> {
        loop {
            let room = self.shared.room.notified();
            match self.shared.with_hub(|hub| hub.send(peer, message))? {
                Ok(()) => {
                    self.shared.wake();
                    return Ok(());
                }
                Err(SendError::Full(back)) => message = back,
                Err(SendError::Gone(_)) => return Err(SocketError::PeerGone(peer)),
            }
            room.await;
        }
    }

    /// The next message, from whichever peer. To a REQ it is an error if the peer that it asked has gone without a reply; it may ask
    /// again then. Cancel-safe.
    pub async fn recv(&self) -> Result<Received, SocketError> {
        loop {
            let arrived = self.shared.received.notified();
            let received = self.shared.lock().take_received(self.socket_type)?;
            if let Some(received) = received {
                self.shared.wake();
                return Ok(received);
            }
            arrived.await;
        }
    }

    /// All peers that are ready.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.shared.with_hub(|hub| hub.peers().filter_map(|peer| hub.peer(peer)).collect()).unwrap_or_default()
    }

    /// What waits for a peer.
    pub fn queued(&self, peer: PeerId) -> Queued {
        self.shared.with_hub(|hub| hub.queued(peer)).unwrap_or_default()
    }

    /// Removes what waits for a peer and has not begun to leave.
    pub fn clear_queue(&self, peer: PeerId) -> Queued {
        self.shared.with_hub(|hub| hub.clear_queue(peer)).unwrap_or_default()
    }

    /// Ends the connection of a peer, with a reason that it is told.
    pub fn disconnect(&self, peer: PeerId, reason: &str) {
        let _ = self.shared.with_hub(|hub| hub.disconnect(peer, reason));
        self.shared.wake();
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.shared.hung_up.notify_one();
    }
}

fn with_envelope(envelope: &[Bytes], message: Message) -> Message {
    let tag = message.tag;
    let envelope = envelope.iter().cloned().map(crate::message::Frame::Bytes);
    envelope.chain(message.frames).collect::<Message>().tagged(tag)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_hub<T>(&self, action: impl FnOnce(&mut Hub) -> T) -> Result<T, SocketError> {
        let mut state = self.lock();
        let hub = state.hub.as_mut().ok_or(SocketError::Closed)?;
        let result = action(hub);
        hub.waker().wake();
        Ok(result)
    }

    fn wake(&self) {
        if let Some(hub) = &self.lock().hub {
            hub.waker().wake();
        }
    }
}

impl State {
    /// Sends if it is this side's turn; gives the message back if there is no room.
    fn send(&mut self, message: Message, socket_type: SocketType) -> Result<Option<Message>, SocketError> {
        match (socket_type, &self.turn) {
            (SocketType::Req, Turn::AwaitReply(_)) => {
                Err(SocketError::OutOfTurn("a REQ waits for the reply to its request first"))
            }
            (SocketType::Rep, Turn::OweReply(peer, _)) => {
                let peer = *peer;
                let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
                let outcome = match hub.send(peer, message) {
                    // The turn is kept until then: whoever gives up waiting may reply again.
                    Err(SendError::Full(back)) => return Ok(Some(back)),
                    Err(SendError::Gone(_)) => Err(SocketError::PeerGone(peer)),
                    Ok(()) => Ok(None),
                };
                self.turn = Turn::Idle;
                outcome
            }
            (SocketType::Rep, _) => Err(SocketError::OutOfTurn("this request has its reply")),
            _ => self.send_to_any(message, socket_type),
        }
    }

    /// Sends to the next peer with room; gives the message back if there is none.
    fn send_to_any(&mut self, mut message: Message, socket_type: SocketType) -> Result<Option<Message>, SocketError> {
        let hub = self.hub.as_mut().ok_or(SocketError::Closed)?;
        for _ in 0..self.peers.len() {
            let Some(peer) = self.peers.pop_front() else { break };
            self.peers.push_back(peer);
            match hub.send(peer, message) {
                Ok(()) => {
                    if socket_type == SocketType::Req {
                        self.turn = Turn::AwaitReply(peer);
                    }
                    return Ok(None);
                }
                Err(SendError::Full(back) | SendError::Gone(back)) => message = back,
            }
        }
        Ok(Some(message))
    }

    fn take_received(&mut self, socket_type: SocketType) -> Result<Option<Received>, SocketError> {
        if self.failed {
            return Err(SocketError::Closed);
        }
        match (socket_type, &self.turn) {
            (SocketType::Req, Turn::Idle) => return Err(SocketError::OutOfTurn("a REQ sends a request first")),
            (SocketType::Rep, Turn::OweReply(..)) => {
                return Err(SocketError::OutOfTurn("a REP replies before it takes the next request"));
            }
            _ => {}
        }
        while let Some(mut received) = self.received.pop_front() {
            self.received_bytes = self.received_bytes.saturating_sub(cost(&received.frames));
            match socket_type {
                SocketType::Req => {
                    let asked = match self.turn {
                        Turn::AwaitReply(peer) | Turn::Deserted(peer) => Some(peer),
                        Turn::Idle | Turn::OweReply(..) => None,
                    };
                    let expected = asked == Some(received.peer);
                    if !expected || received.frames.first().is_none_or(|frame| !frame.is_empty()) {
                        tracing::debug!(peer = %received.peer, "a message that answers no request is left out");
                        continue;
                    }
                    received.frames.remove(0);
                    self.turn = Turn::Idle;
                }
                SocketType::Rep => {
                    let Some(delimiter) = received.frames.iter().position(Bytes::is_empty) else {
                        tracing::debug!(peer = %received.peer, "a request without an envelope is left out");
                        continue;
                    };
                    let body = received.frames.drain(delimiter + 1..).collect();
                    let envelope = std::mem::replace(&mut received.frames, body);
                    self.turn = Turn::OweReply(received.peer, envelope);
                }
                SocketType::Dealer | SocketType::Router => {}
            }
            return Ok(Some(received));
        }
        if let Turn::Deserted(peer) = self.turn {
            self.turn = Turn::Idle;
            return Err(SocketError::PeerGone(peer));
        }
        Ok(None)
    }

    /// One turn of the hub; says whether it wants another at once.
    fn turn(&mut self, shared: &Shared) -> Result<bool, SocketError> {
        let Some(hub) = self.hub.as_mut() else { return Ok(false) };
        if self.received_bytes < RECEIVED_BYTES_MAX / 2 {
            for peer in self.paused.drain() {
                hub.pause_reading(peer, false);
            }
        }
        hub.turn(Some(Duration::ZERO))?;
        while let Some(event) = hub.next_event() {
            match event {
                Event::Ready { peer } => {
                    self.peers.push_back(peer);
                    shared.room.notify_waiters();
                }
                Event::Gone { peer, reason } => {
                    tracing::debug!(%peer, reason, "gone");
                    self.peers.retain(|known| *known != peer);
                    self.paused.remove(&peer);
                    if matches!(self.turn, Turn::AwaitReply(asked) if asked == peer) {
                        self.turn = Turn::Deserted(peer);
                    }
                    // Whoever waits for room at this peer must learn that there is none to come.
                    shared.room.notify_waiters();
                    shared.received.notify_waiters();
                }
                Event::Room { .. } => shared.room.notify_waiters(),
                Event::Message { peer, frames, .. } => {
                    self.received_bytes += cost(&frames);
                    self.received.push_back(Received { peer, frames });
                    if self.received_bytes >= RECEIVED_BYTES_MAX && self.paused.insert(peer) {
                        hub.pause_reading(peer, true);
                    }
                    shared.received.notify_waiters();
                }
                Event::Authenticate { peer, .. } => hub.admit(peer, false),
                // Its messages are still wanted, and come before its end.
                Event::HungUp { .. } | Event::Failed { .. } | Event::FileSent { .. } => {}
                Event::BodyStart { .. } | Event::BodyData { .. } | Event::BodyPiped { .. } | Event::BodyEnd { .. } => {}
            }
        }
        Ok(hub.is_busy())
    }
}

fn cost(frames: &Frames) -> usize {
    frames.iter().map(|frame| frame.len() + towpath_zmtp::limits::FRAME_OVERHEAD_BYTES).sum()
}

async fn drive(shared: Arc<Shared>, fd: AsyncFd<OwnedFd>) {
    loop {
        let outcome = shared.lock().turn(&shared);
        let deadline = shared.lock().hub.as_ref().and_then(Hub::deadline);
        match outcome {
            Ok(true) => {
                tokio::task::yield_now().await;
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the socket's driver ends");
                shared.lock().failed = true;
                shared.received.notify_waiters();
                shared.room.notify_waiters();
                return;
            }
        }
        let timer = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = fd.readable() => match ready {
                // The turn above takes all that there is, so an edge that comes from here on is a new one.
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return,
            },
            () = timer => {}
            () = shared.hung_up.notified() => break,
        }
    }
    let hub = shared.lock().hub.take();
    if let Some(hub) = hub {
        let _ = tokio::task::spawn_blocking(move || hub.close(LINGER)).await;
    }
}
