//! The simple interface: send and receive messages, as in any ZeroMQ library, on tokio.
//!
//! A task drives the [`Hub`]. Callers share it behind a lock, which isn't held while anything is waited for, except for the look-up of the name in
//! [`Socket::bind`]. Both directions are bounded in bytes: [`Socket::send`] waits while all queues are full, and what isn't received stays in
//! the kernel, so that TCP holds the sender back. Nothing is dropped, and [`Socket::close`] counts what could not be sent.

mod linger;
mod state;

use crate::error::SocketError;
use crate::hub::Hub;
use crate::message::Message;
use crate::net::endpoint::Endpoint;
use crate::on_tokio::{HubReady, Turn};
use crate::options::HubOptions;
use crate::peer::PeerInfo;
use crate::peer_id::PeerId;
use crate::unsent::Unsent;
use linger::LingerGuard;
use state::State;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use towpath_zmtp::{Frames, Queued};

/// Time for which a dropped socket still sends what is queued.
const LINGER: Duration = Duration::from_secs(30);

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The sender: the peer for [`Socket::send_to`].
    pub peer: PeerId,
    /// Its frames; without the envelope for REQ and REP.
    pub frames: Frames,
}

/// A REQ, REP, DEALER or ROUTER socket on tokio.
///
/// A program that must know that its messages have left calls [`Socket::close`] at its end. A dropped socket sends at once what the kernel takes,
/// and the rest for up to 30 seconds while its runtime lives. The end of the runtime, such as at the end of `main`, ends the socket with what
/// is queued. Unsent messages are counted in a warning in the log.
pub struct Socket {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    received: Notify,
    writable: Notify,
    hung_up: Notify,
    /// Unsent messages, when it is closed.
    closed: watch::Sender<Option<Unsent>>,
}

impl Socket {
    /// A socket, driven by a task on the current tokio runtime. Messages are delivered whole: `stream_over_bytes` is ignored. As a PLAIN server
    /// it refuses all users, since it has no way to ask about them; a [`Hub`] has.
    ///
    /// # Errors
    /// [`SocketError::Option`] for options that can't work, [`SocketError::NoRuntime`] outside of a runtime, [`SocketError::System`] if epoll isn't
    /// available.
    ///
    /// # Panics
    /// If the runtime has I/O disabled.
    pub fn new(mut options: HubOptions) -> Result<Socket, SocketError> {
        let socket_type = options.socket_type;
        // Streamed bodies could not be delivered here.
        options.stream_over_bytes = None;
        let hub = Hub::new(options)?;
        let ready = HubReady::new(&hub)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(hub, socket_type)),
            received: Notify::new(),
            writable: Notify::new(),
            hung_up: Notify::new(),
            closed: watch::Sender::new(None),
        });
        ready.runtime().spawn(drive(Driver(shared.clone()), ready));
        Ok(Socket { shared })
    }

    /// Listens, and gives the endpoint with the actual port. The look-up of a host name blocks: give an address where that matters.
    pub fn bind(&self, endpoint: &Endpoint) -> Result<Endpoint, SocketError> {
        self.shared.with_hub(|hub| hub.bind(endpoint))?
    }

    /// Connects, and reconnects whenever the connection is lost.
    pub fn connect(&self, endpoint: &Endpoint) -> Result<(), SocketError> {
        self.shared.with_hub(|hub| hub.connect(endpoint))?
    }

    /// Sends a message: DEALER to the next peer whose queue isn't full, REQ likewise with an envelope, REP to the peer of the last request. Waits
    /// until a queue isn't full. A ROUTER uses [`Socket::send_to`].
    ///
    /// A message taken is in a peer's queue, and lost if the peer goes: a DEALER that must know asks for an answer. [`Socket::close`] waits until
    /// queues are empty. A REP whose peer is gone gets [`SocketError::PeerGone`], and may receive the next request.
    ///
    /// A message has at least one frame, which may be empty; otherwise it is refused with [`SocketError::NoFrames`].
    ///
    /// Cancel-safe: if the future is dropped, the message was not sent, and a reply is still due.
    pub async fn send(&self, mut message: Message) -> Result<(), SocketError> {
        let request_number = self.shared.lock().request_number;
        loop {
            let writable = self.shared.writable.notified();
            // Bound first: a guard in the match would still be held in its arms.
            let outcome = self.shared.lock().send(message, request_number)?;
            match outcome {
                None => {
                    self.shared.wake();
                    return Ok(());
                }
                Some(back) => message = back,
            }
            writable.await;
        }
    }

    /// Sends a message to one peer; waits until its queue isn't full. A peer that is gone is an error.
    pub async fn send_to(&self, peer: PeerId, mut message: Message) -> Result<(), SocketError> {
        loop {
            let writable = self.shared.writable.notified();
            let outcome = self.shared.lock().send_to(peer, message)?;
            match outcome {
                None => {
                    self.shared.wake();
                    return Ok(());
                }
                Some(back) => message = back,
            }
            writable.await;
        }
    }

    /// The next message from any peer; for a REQ, the reply to its request. If the peer goes without a reply, that is [`SocketError::PeerGone`],
    /// once, and the REQ may send again. There is no timeout for a peer that stays and doesn't reply.
    ///
    /// Cancel-safe.
    pub async fn recv(&self) -> Result<Received, SocketError> {
        loop {
            let arrived = self.shared.received.notified();
            let received = self.shared.lock().take_received()?;
            if let Some(received) = received {
                return Ok(received);
            }
            arrived.await;
        }
    }

    /// All ready peers.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.shared.with_hub(|hub| hub.peers().filter_map(|peer| hub.peer(peer)).collect()).unwrap_or_default()
    }

    /// The reason, for people, why the last attempt to connect failed or the last connection ended. It stays when there is another connection;
    /// [`Socket::peers`] has those.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// The send queue of a peer.
    pub fn queued(&self, peer: PeerId) -> Queued {
        self.shared.with_hub(|hub| hub.queued(peer)).unwrap_or_default()
    }

    /// Removes queued messages of a peer that have not begun to leave.
    pub fn clear_queue(&self, peer: PeerId) -> Queued {
        self.shared.with_hub(|hub| hub.clear_queue(peer)).unwrap_or_default()
    }

    /// Takes no more messages, waits until all queues are empty or `linger` is over, and closes. [`Duration::MAX`] waits without limit, forever if
    /// a peer never reads; zero sends what the kernel takes at once.
    ///
    /// Counts what could not be sent: still queued, or lost with its peer. What has left is with the kernel and on its way; to know that it
    /// arrived, ask for an answer. Messages that came in can still be received, and [`SocketError::Closed`] follows them.
    ///
    /// A socket is closed once: called again, this waits for the same end, or the earlier one of both, and gives the same. Dropping the future
    /// doesn't stop closing.
    pub async fn close(&self, linger: Duration) -> Unsent {
        let mut closed = self.shared.closed.subscribe();
        // A time beyond what a clock can represent never comes.
        self.shared.lock().close(Instant::now().checked_add(linger));
        // Callers that wait to send learn that it is too late.
        self.shared.writable.notify_waiters();
        self.shared.wake();
        let unsent = closed.wait_for(Option::is_some).await;
        unsent.ok().and_then(|unsent| *unsent).unwrap_or_default()
    }

    /// Ends the connection of a peer, which is sent the reason.
    pub fn disconnect(&self, peer: PeerId, reason: &str) {
        let _ = self.shared.with_hub(|hub| hub.disconnect(peer, reason));
        self.shared.wake();
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("hub", &self.shared.lock().hub).finish_non_exhaustive()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.hung_up = true;
        // The runtime may end before the task runs again.
        if let Some(hub) = &mut state.hub {
            hub.flush();
        }
        drop(state);
        self.shared.hung_up.notify_one();
    }
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

/// The task's hold on the socket. The socket is closed when the task ends, be it by an error or with its runtime.
struct Driver(Arc<Shared>);

impl Drop for Driver {
    fn drop(&mut self) {
        let hub = self.0.lock().hub.take();
        let unsent = hub.map(|hub| LingerGuard::new(hub).end()).unwrap_or_default();
        self.0.closed.send_replace(Some(unsent));
        self.0.received.notify_waiters();
        self.0.writable.notify_waiters();
    }
}

async fn drive(driver: Driver, ready: HubReady) {
    let shared = &driver.0;
    let turn = || {
        let mut state = shared.lock();
        match state.poll(shared) {
            Ok(_) if state.hung_up || state.is_over() => Turn::Over,
            Ok(true) => Turn::Again,
            Ok(false) => Turn::Wait(state.deadline()),
            Err(error) => {
                tracing::error!(%error, "the socket is closed by an error");
                state.hung_up = false;
                Turn::Over
            }
        }
    };
    ready.drive(turn, &shared.hung_up).await;
    let (hub, left) = {
        let mut state = shared.lock();
        // Closed, or failed: what is left is counted.
        if !state.hung_up {
            return;
        }
        (state.hub.take(), state.left(LINGER))
    };
    if let Some(guard) = hub.map(LingerGuard::new) {
        // The end of the runtime waits for this thread.
        let _ = tokio::task::spawn_blocking(move || guard.linger(left)).await;
    }
}
