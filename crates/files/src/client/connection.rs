//! The client's end of the wire: one DEALER, connected again whenever the connection is lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use towpath_sockets::{
    Endpoint, Event, Heartbeat, Hub, HubOptions, MechanismConfig, Message, PeerId, SendError, SocketError, SocketType,
    Waker,
};

use super::assembler::{Assembler, Inbound};
use super::get::GetError;
use crate::limits::{CHUNK_BYTES_MAX, DATA_ENTRIES_MAX};
use crate::protocol::WireError;
use crate::protocol::control::Request;

/// Bodies over this are streamed; a data header has to stay below it.
const STREAM_OVER_BYTES: u64 = 64 << 10;
/// Messages taken whole: headers, and bodies that are not streamed.
const MESSAGE_BYTES_MAX: u64 = (DATA_ENTRIES_MAX as u64 + 2) * STREAM_OVER_BYTES;
/// How long what was sent last may take to leave.
const LINGER: Duration = Duration::from_millis(300);

/// Where a server is, and how to talk to it.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The server.
    pub endpoint: Endpoint,
    /// Security mechanism; NULL unless told otherwise.
    pub mechanism: MechanismConfig,
    /// How long to try for the first connection.
    pub connect_timeout: Duration,
    /// How long nothing may happen, a lost connection included, before giving up.
    pub idle_timeout: Duration,
    /// PING to the server.
    pub heartbeat: Option<Heartbeat>,
}

impl ConnectOptions {
    /// The defaults for a server.
    pub fn new(endpoint: Endpoint) -> Self {
        let seconds = Duration::from_secs;
        let heartbeat = Heartbeat { interval: seconds(5), timeout: seconds(20), ttl: seconds(30) };
        Self {
            endpoint,
            mechanism: MechanismConfig::Null,
            connect_timeout: seconds(5),
            idle_timeout: seconds(60),
            heartbeat: Some(heartbeat),
        }
    }

    pub(super) fn refused(&self, reason: String) -> GetError {
        GetError::Refused { endpoint: self.endpoint.to_string(), reason }
    }
}

/// Ends a [`super::get()`] or [`super::list()`] early, from any thread.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Cancel>);

#[derive(Debug, Default)]
struct Cancel {
    cancelled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl CancelHandle {
    /// A handle that was not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends whatever has this handle, now or when it begins.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        if let Some(waker) = &*self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    /// Whether it was used.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    fn wakes(&self, waker: Waker) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }
}

/// What happened on the connection.
#[derive(Debug)]
pub(super) enum Happened {
    /// There is a connection.
    Up,
    /// It is gone.
    Down { reason: String },
    /// It could not be made; it will be tried again.
    Failed { reason: String },
    /// Nor will it ever be made, as the two sides are set up.
    Refused { reason: String },
    /// The server sent something.
    Inbound(Inbound),
    /// Bytes of something that isn't whole yet: over a slow link a message may take minutes.
    Arriving,
    /// The server sent something that is not of the protocol. The connection was closed.
    Broken(WireError),
}

/// The connection.
pub(super) struct Connection {
    hub: Hub,
    server: Option<PeerId>,
    assembler: Assembler,
    /// Bytes of a message that isn't whole, at the last look.
    reassembly_bytes: usize,
    happened: VecDeque<Happened>,
    /// Requests that the hub's queue had no room for.
    unsent: VecDeque<Message>,
}

impl Connection {
    pub(super) fn open(options: &ConnectOptions, cancel: &CancelHandle) -> Result<Self, SocketError> {
        let mut hub = Hub::new(HubOptions {
            mechanism: options.mechanism.clone(),
            heartbeat: options.heartbeat,
            handshake_timeout: options.connect_timeout,
            stream_over_bytes: Some(STREAM_OVER_BYTES),
            max_frame_bytes: CHUNK_BYTES_MAX,
            max_message_bytes: MESSAGE_BYTES_MAX,
            max_frames: DATA_ENTRIES_MAX + 1,
            // Connections that bring nothing are counted, and given up; those that bring little before they break still get on.
            stable_after: Duration::ZERO,
            ..HubOptions::new(SocketType::Dealer)
        })?;
        cancel.wakes(hub.waker());
        hub.connect(&options.endpoint)?;
        let (assembler, happened, unsent) = (Assembler::default(), VecDeque::new(), VecDeque::new());
        Ok(Self { hub, server: None, assembler, reassembly_bytes: 0, happened, unsent })
    }

    /// What another thread wakes [`Connection::turn`] with.
    pub(super) fn waker(&self) -> Waker {
        self.hub.waker()
    }

    /// Sends a request; it leaves with the next turn. Lost if there is no connection, as it would be if it went a moment later.
    pub(super) fn send(&mut self, request: &Request) {
        self.unsent.push_back(request.to_frames().into_iter().collect());
        self.send_unsent();
    }

    fn send_unsent(&mut self) {
        while let Some(message) = self.unsent.pop_front() {
            let Some(server) = self.server else { continue };
            if let Err(SendError::Full(message)) = self.hub.send(server, message) {
                self.unsent.push_front(message);
                return;
            }
        }
    }

    /// Sends and receives, waiting at most so long for something to happen.
    pub(super) fn turn(&mut self, timeout: Duration) -> Result<(), SocketError> {
        self.hub.poll(Some(timeout))
    }

    /// The next thing that happened.
    pub(super) fn next(&mut self) -> Option<Happened> {
        while self.happened.is_empty() {
            let Some(event) = self.hub.next_event() else { return self.is_arriving().then_some(Happened::Arriving) };
            self.take_event(event);
        }
        self.happened.pop_front()
    }

    /// Whether there is more of a message than there was. What is no message, such as a PING, doesn't count.
    fn is_arriving(&mut self) -> bool {
        let unfinished = self.server.and_then(|server| self.hub.reassembly_bytes(server)).unwrap_or(0);
        unfinished > std::mem::replace(&mut self.reassembly_bytes, unfinished)
    }

    /// Sends what waits, and ends.
    pub(super) fn close(self) {
        if let Err(error) = self.hub.close(LINGER) {
            tracing::debug!(%error, "closing");
        }
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Ready { peer } => {
                self.server = Some(peer);
                self.assembler = Assembler::default();
                self.happened.push_back(Happened::Up);
            }
            Event::Gone { peer, reason } if self.server == Some(peer) => self.down(Happened::Down { reason }),
            Event::Failed { reason, refused: true, .. } => self.happened.push_back(Happened::Refused { reason }),
            Event::Failed { reason, .. } => self.happened.push_back(Happened::Failed { reason }),
            Event::Writable { .. } => self.send_unsent(),
            Event::Message { peer, .. }
            | Event::BodyStart { peer, .. }
            | Event::BodyData { peer, .. }
            | Event::BodyEnd { peer, .. }
                if self.server == Some(peer) =>
            {
                let mut inbound = Vec::new();
                let result = self.assemble(event, &mut inbound);
                if inbound.is_empty() {
                    self.happened.push_back(Happened::Arriving);
                }
                self.happened.extend(inbound.into_iter().map(Happened::Inbound));
                if let Err(error) = result {
                    self.hub.disconnect(peer, &error.to_string());
                    self.down(Happened::Broken(error));
                }
            }
            _ => {}
        }
    }

    fn down(&mut self, happened: Happened) {
        self.server = None;
        self.unsent.clear();
        self.happened.push_back(happened);
    }

    fn assemble(&mut self, event: Event, out: &mut Vec<Inbound>) -> Result<(), WireError> {
        match event {
            Event::Message { frames, .. } => {
                frames.into_iter().try_for_each(|frame| self.assembler.whole_frame(frame, out))?;
                self.assembler.message_end(out)
            }
            Event::BodyStart { head, length, .. } => {
                head.into_iter().try_for_each(|frame| self.assembler.whole_frame(frame, out))?;
                self.assembler.frame_start(length, out)
            }
            Event::BodyData { data, .. } => self.assembler.frame_data(data, out),
            Event::BodyEnd { more, .. } => {
                self.assembler.frame_end(out)?;
                if more { Ok(()) } else { self.assembler.message_end(out) }
            }
            _ => Ok(()),
        }
    }
}
