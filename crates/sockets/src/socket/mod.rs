//! The easy interface: send and receive a message, as in any ZeroMQ library, on tokio.
//!
//! A task drives the [`Hub`]; callers share it behind a lock that is never held while anything is waited for but the name that
//! [`Socket::bind`] is given. Both directions are bounded in bytes: [`Socket::send`] waits while every queue is full, and what isn't
//! received is left in the kernel, so that TCP holds the sender back. Nothing is dropped, and [`Socket::close`] says what could not
//! be sent.

mod linger;
mod state;

use crate::error::SocketError;
use crate::hub::Hub;
use crate::message::Message;
use crate::net::endpoint::Endpoint;
use crate::options::HubOptions;
use crate::peer::PeerInfo;
use crate::peer_id::PeerId;
use crate::unsent::Unsent;
use linger::Last;
use rustix::fd::{AsFd, OwnedFd};
use state::State;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use towpath_zmtp::{Frames, Queued};

/// How long a socket that is dropped waits for what is still to be sent.
const LINGER: Duration = Duration::from_secs(30);

/// A message that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// From whom: the address for [`Socket::send_to`].
    pub peer: PeerId,
    /// Its frames; for REQ and REP without the envelope.
    pub frames: Frames,
}

/// A REQ, REP, DEALER or ROUTER socket on tokio.
///
/// A program that must know that what it sent has left calls [`Socket::close`] at its end. A socket that is dropped instead hands the
/// kernel what that takes at once, sends the rest for up to 30 seconds while its runtime lives, and closes. The end of the runtime,
/// such as that of `main`, is the end of the socket, with what waits; and that of the process is so in any case. What isn't sent is
/// told by a warning in the log.
pub struct Socket {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    received: Notify,
    room: Notify,
    hung_up: Notify,
    /// What wasn't sent, once it is closed.
    closed: watch::Sender<Option<Unsent>>,
}

impl Socket {
    /// A socket, driven by a task on the current tokio runtime. Every message comes whole, so `stream_over_bytes` is left out
    /// of account; in the server's role of PLAIN all users are refused, since nobody can be asked (a [`Hub`] can).
    ///
    /// # Errors
    /// [`SocketError::Option`] for options that can't work; outside of a runtime, or if the system has no event queue for it.
    ///
    /// # Panics
    /// If the runtime does no I/O.
    pub fn new(mut options: HubOptions) -> Result<Socket, SocketError> {
        let runtime = Handle::try_current().map_err(|_| SocketError::NoRuntime)?;
        let socket_type = options.socket_type;
        // A streamed body would have nowhere to go here, and nothing may be dropped in silence.
        options.stream_over_bytes = None;
        let hub = Hub::new(options)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(hub.as_fd(), 0)?;
        #[expect(deprecated, reason = "its successor is unsafe; an OwnedFd keeps what that one asks for")]
        let fd = AsyncFd::new(fd)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(hub, socket_type)),
            received: Notify::new(),
            room: Notify::new(),
            hung_up: Notify::new(),
            closed: watch::Sender::new(None),
        });
        runtime.spawn(drive(Driver(shared.clone()), fd));
        Ok(Socket { shared })
    }

    /// Listens; gives the endpoint with the real port. A host's name is looked up meanwhile, which blocks: give an address where that
    /// matters.
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
    /// What has been taken waits in a peer's queue, and goes with it if the peer does: a DEALER that must know asks for an answer.
    /// [`Socket::close`] waits until it has left. A REP whose peer is gone gets [`SocketError::PeerGone`], and may take the next request.
    ///
    /// A message has at least one frame, which may be empty; of none it is refused with [`SocketError::NoFrames`].
    ///
    /// Cancel-safe: a message whose future is dropped early was not sent, and a reply is still owed.
    pub async fn send(&self, mut message: Message) -> Result<(), SocketError> {
        let owed = self.shared.lock().owed;
        loop {
            let room = self.shared.room.notified();
            // Bound first: a guard in the match would still be held in its arms.
            let outcome = self.shared.lock().send(message, owed)?;
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
            let outcome = self.shared.lock().send_to(peer, message)?;
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

    /// The next message, from whichever peer; for a REQ the reply to its request. If the peer that was asked goes without one, that is
    /// [`SocketError::PeerGone`], once, and the REQ may send again. A peer that stays and says nothing is waited for without end.
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

    /// All peers that are ready.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.shared.with_hub(|hub| hub.peers().filter_map(|peer| hub.peer(peer)).collect()).unwrap_or_default()
    }

    /// Why the last attempt to connect came to nothing, or the last connection that there was has ended, for people; `None` if there
    /// was nothing of that. It stays when there is another connection: [`Socket::peers`] tells of those.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// What waits for a peer.
    pub fn queued(&self, peer: PeerId) -> Queued {
        self.shared.with_hub(|hub| hub.queued(peer)).unwrap_or_default()
    }

    /// Removes what waits for a peer and has not begun to leave.
    pub fn clear_queue(&self, peer: PeerId) -> Queued {
        self.shared.with_hub(|hub| hub.clear_queue(peer)).unwrap_or_default()
    }

    /// Takes nothing more to send, waits until all that was taken has left or `linger` is over, and closes. [`Duration::MAX`] waits
    /// without end, which a peer that never reads makes it; zero gives the kernel what that takes at once.
    ///
    /// Gives what could not be sent: it waited still, or its peer went meanwhile. What has left is with the kernel, and on its way: who
    /// must know that it came asks for an answer. Messages that came in are still received, and [`SocketError::Closed`] follows them.
    ///
    /// A socket is closed once: called again, this waits for the same end, or the earlier of both, and gives the same. If its future
    /// is dropped, the socket is closed all the same.
    pub async fn close(&self, linger: Duration) -> Unsent {
        let mut closed = self.shared.closed.subscribe();
        // What no clock counts to never comes.
        self.shared.lock().close(Instant::now().checked_add(linger));
        // Who waits to send learns that it is too late.
        self.shared.room.notify_waiters();
        self.shared.wake();
        let unsent = closed.wait_for(Option::is_some).await;
        unsent.ok().and_then(|unsent| *unsent).unwrap_or_default()
    }

    /// Ends the connection of a peer, with a reason that it is told.
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
        // The runtime may end before the task has another turn.
        if let Some(hub) = &mut self.shared.lock().hub {
            hub.flush();
        }
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

/// The task's hold on the socket, which is closed when it ends: also by an error, and with its runtime.
struct Driver(Arc<Shared>);

impl Drop for Driver {
    fn drop(&mut self) {
        let hub = self.0.lock().hub.take();
        let unsent = hub.map(|hub| Last::of(hub).end()).unwrap_or_default();
        self.0.closed.send_replace(Some(unsent));
        self.0.received.notify_waiters();
        self.0.room.notify_waiters();
    }
}

async fn drive(driver: Driver, fd: AsyncFd<OwnedFd>) {
    let shared = &driver.0;
    loop {
        let (outcome, is_over, deadline) = {
            let mut state = shared.lock();
            (state.poll(shared), state.is_over(), state.deadline())
        };
        match outcome {
            Ok(_) if is_over => return,
            Ok(true) => {
                tokio::task::yield_now().await;
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the socket's driver ends");
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
    let (hub, left) = {
        let mut state = shared.lock();
        (state.hub.take(), state.left(LINGER))
    };
    if let Some(last) = hub.map(Last::of) {
        // On a thread that the end of the runtime waits for.
        let _ = tokio::task::spawn_blocking(move || last.linger(left)).await;
    }
}
