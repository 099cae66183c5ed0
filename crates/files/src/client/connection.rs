//! The client's connection: one DEALER, which reconnects whenever the connection is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_blocking::CancelToken;
use towpath_sockets::{
    Endpoint, Event, Heartbeat, Hub, HubOptions, MechanismConfig, Message, Metadata, PeerId, Refusal, SendError,
    SocketError, SocketType, Waker,
};

use crate::limits::{CHUNK_BYTES_MAX, DATA_ENTRIES_MAX};
use crate::protocol::assembler::{Assembler, Inbound};
use crate::protocol::control::Request;
use crate::protocol::{PROPERTY, PROPERTY_VALUE, REQUESTS_PROPERTY, WireError};
use crate::relay::Via;
use crate::transfer::tcp::{BufferWatch, log_buffer};

/// Largest body that is taken whole, in bytes; larger ones are streamed. A data header must be smaller.
const STREAM_OVER_BYTES: u64 = 64 << 10;
/// Largest message but for streamed bodies, in bytes.
const MESSAGE_BYTES_MAX: u64 = (DATA_ENTRIES_MAX as u64 + 2) * STREAM_OVER_BYTES;
/// Time without a first connection after which that is reported.
const REPORTED_AFTER: Duration = Duration::from_secs(1);
/// Time between two looks at the round-trip time.
const MEASURED_EVERY: Duration = Duration::from_millis(50);
/// Time for the last messages to leave.
const LINGER: Duration = Duration::from_millis(300);

/// A server, and how to talk to it.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The server.
    pub endpoint: Endpoint,
    /// Security mechanism; NULL by default.
    pub mechanism: MechanismConfig,
    /// How long to try for the first connection.
    pub connect_timeout: Duration,
    /// How long nothing may happen, a lost connection included, before the operation fails.
    pub idle_timeout: Duration,
    /// Heartbeats to the server.
    pub heartbeat: Option<Heartbeat>,
    /// Called with the reason, once, if there is no first connection after a second.
    pub on_wait: Option<fn(&Endpoint, &str)>,
    /// The server that passes on what this client gets. Each connection fails whose server has its files from that one, or through too many.
    pub via: Option<Arc<Via>>,
    /// Ends everything that the client does, from another thread.
    pub cancel: CancelToken,
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
            on_wait: None,
            via: None,
            cancel: CancelToken::new(),
        }
    }
}

/// An event of the connection.
#[derive(Debug)]
pub(super) enum ConnectionEvent {
    /// Connected.
    Connected,
    /// The connection is lost.
    Lost { reason: String },
    /// A connection could not be made; it is tried again.
    Failed { reason: String },
    /// The server refuses this client, and will again.
    Refused { reason: String, refusal: Refusal },
    /// The server sent something.
    Inbound(Inbound),
    /// A range of a file has left.
    FileSent { tag: u64, whole: bool },
    /// Bytes of an incomplete message arrived. Over a slow link a message may take minutes.
    Arriving,
    /// The server broke the protocol. The connection was closed.
    ProtocolError(WireError),
}

/// A connection to one server.
pub(super) struct Connection {
    hub: Hub,
    server: Option<PeerId>,
    assembler: Assembler,
    /// Bytes of an incomplete message when it was last looked at.
    reassembly_bytes: usize,
    events: VecDeque<ConnectionEvent>,
    /// Requests for which the send queue had no space.
    unsent: VecDeque<Message>,
    wait: Option<Wait>,
    measured_at: Instant,
    buffers: BufferWatch,
}

/// The wait for the first connection, until it is reported.
struct Wait {
    began: Instant,
    endpoint: Endpoint,
    reason: String,
    on_wait: fn(&Endpoint, &str),
}

impl Connection {
    pub(super) fn open(options: &ConnectOptions, cancel: &CancelToken) -> Result<Self, SocketError> {
        let mut hub = HubOptions::new(SocketType::Dealer);
        hub.metadata = Metadata::new().with(PROPERTY, PROPERTY_VALUE);
        hub.mechanism = options.mechanism.clone();
        hub.heartbeat = options.heartbeat;
        hub.handshake_timeout = options.connect_timeout;
        hub.stream_over_bytes = Some(STREAM_OVER_BYTES);
        hub.max_frame_bytes = CHUNK_BYTES_MAX;
        hub.max_message_bytes = MESSAGE_BYTES_MAX;
        hub.max_frames = DATA_ENTRIES_MAX + 1;
        // The transfer counts connections without progress; those that bring little before they break still help.
        hub.stable_after = Duration::ZERO;
        let mut hub = Hub::new(hub)?;
        hub.connect(&options.endpoint)?;
        let (assembler, events, unsent) = (Assembler::default(), VecDeque::new(), VecDeque::new());
        let wait = options.on_wait.map(|on_wait| {
            let reason = "no answer yet".to_owned();
            Wait { began: Instant::now(), endpoint: options.endpoint.clone(), reason, on_wait }
        });
        let measured_at = Instant::now();
        let (server, reassembly_bytes, buffers) = (None, 0, BufferWatch::default());
        let connection = Self { hub, server, assembler, reassembly_bytes, events, unsent, wait, measured_at, buffers };
        connection.wake_on(cancel);
        Ok(connection)
    }

    /// Has [`Connection::poll`] end when something is cancelled.
    pub(super) fn wake_on(&self, cancel: &CancelToken) {
        let waker = self.hub.waker();
        cancel.on_cancel(move || waker.wake());
    }

    /// Wakes [`Connection::poll`] from another thread.
    pub(super) fn waker(&self) -> Waker {
        self.hub.waker()
    }

    /// Sends a request, which leaves with the next [`Connection::poll`]. Without a connection it is dropped, as it
    /// would be if the connection were lost a moment later.
    pub(super) fn send(&mut self, request: &Request) {
        self.send_message(request.to_frames().into_iter().collect());
    }

    /// The round-trip time of a TCP connection, as the kernel knows it; from time to time.
    pub(super) fn round_trip(&mut self, now: Instant) -> Option<Duration> {
        let server = self.server.filter(|_| now >= self.measured_at + MEASURED_EVERY)?;
        self.measured_at = now;
        self.hub.tcp_info(server).map(|(tcp, _)| tcp.round_trip)
    }

    /// Logs, once, that a TCP buffer limits what is sent.
    pub(super) fn watch_buffers(&mut self, now: Instant) {
        let Some(server) = self.server.filter(|_| self.buffers.is_due(now)) else { return };
        if let Some(tcp) = self.hub.tcp_info(server)
            && let Some(buffer) = self.buffers.look(tcp, now)
        {
            log_buffer(buffer, true, tcp.0.round_trip);
        }
    }

    /// Whether a range of a file that is sent next is being read from this side's disk.
    pub(super) fn awaits_disk(&self) -> bool {
        self.server.is_some_and(|server| self.hub.awaits_disk(server))
    }

    /// Sends a message as [`Connection::send`] does.
    pub(super) fn send_message(&mut self, message: Message) {
        self.unsent.push_back(message);
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

    /// Sends and receives; waits at most `timeout` for something to happen.
    pub(super) fn poll(&mut self, timeout: Duration) -> Result<(), SocketError> {
        let Some(wait) = &self.wait else { return self.hub.poll(Some(timeout)) };
        self.hub.poll(Some(timeout.min(REPORTED_AFTER.saturating_sub(wait.began.elapsed()))))?;
        if let Some(wait) = self.wait.take_if(|wait| wait.began.elapsed() >= REPORTED_AFTER) {
            (wait.on_wait)(&wait.endpoint, &wait.reason);
        }
        Ok(())
    }

    /// The next event.
    pub(super) fn next(&mut self) -> Option<ConnectionEvent> {
        while self.events.is_empty() {
            let Some(event) = self.hub.next_event() else {
                return self.is_arriving().then_some(ConnectionEvent::Arriving);
            };
            self.take_event(event);
        }
        self.events.pop_front()
    }

    /// Whether an incomplete message has grown. Heartbeats don't count.
    fn is_arriving(&mut self) -> bool {
        let unfinished = self.server.and_then(|server| self.hub.reassembly_bytes(server)).unwrap_or(0);
        unfinished > std::mem::replace(&mut self.reassembly_bytes, unfinished)
    }

    /// Sends what is queued, and closes.
    pub(super) fn close(self) {
        if let Err(error) = self.hub.close(LINGER) {
            tracing::debug!(%error, "closing");
        }
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Ready { peer } => {
                self.wait = None;
                if self.hub.peer(peer).is_some_and(|info| info.metadata.find(REQUESTS_PROPERTY).is_some()) {
                    let reason = "this is a broker (tow broker); files come from tow serve".to_owned();
                    self.hub.disconnect(peer, &reason);
                    return self.events.push_back(ConnectionEvent::Refused { reason, refusal: Refusal::Peer });
                }
                self.server = Some(peer);
                self.buffers = BufferWatch::default();
                self.assembler = Assembler::default();
                self.events.push_back(ConnectionEvent::Connected);
            }
            Event::Gone { peer, reason } if self.server == Some(peer) => self.down(ConnectionEvent::Lost { reason }),
            Event::Failed { reason, refused: Some(refusal), .. } => {
                self.wait = None;
                self.events.push_back(ConnectionEvent::Refused { reason, refusal });
            }
            Event::Failed { reason, .. } => {
                if let Some(wait) = &mut self.wait {
                    wait.reason.clone_from(&reason);
                }
                self.events.push_back(ConnectionEvent::Failed { reason });
            }
            Event::Writable { .. } => self.send_unsent(),
            Event::FileSent { peer, tag, whole } if self.server == Some(peer) => {
                self.events.push_back(ConnectionEvent::FileSent { tag, whole });
            }
            Event::Message { peer, .. }
            | Event::BodyStart { peer, .. }
            | Event::BodyData { peer, .. }
            | Event::BodyEnd { peer, .. }
                if self.server == Some(peer) =>
            {
                let mut inbound = Vec::new();
                let result = self.assemble(event, &mut inbound);
                if inbound.is_empty() {
                    self.events.push_back(ConnectionEvent::Arriving);
                }
                self.events.extend(inbound.into_iter().map(ConnectionEvent::Inbound));
                if let Err(error) = result {
                    self.hub.disconnect(peer, &error.to_string());
                    self.down(ConnectionEvent::ProtocolError(error));
                }
            }
            _ => {}
        }
    }

    fn down(&mut self, event: ConnectionEvent) {
        self.server = None;
        self.unsent.clear();
        self.events.push_back(event);
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
