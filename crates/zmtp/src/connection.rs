//! One connection: greeting, handshake, messages, heartbeats.

use crate::command::{self, Command};
use crate::credentials::Credentials;
use crate::error::{Error, printable};
use crate::greeting::{self, GREETING_BYTES};
use crate::inbox::{Frames, Inbox, InboxLimits, Item};
use crate::limits::ROUTING_ID_BYTES_MAX;
use crate::liveness::LivenessTimer;
use crate::mechanism::{Mechanism, MechanismConfig, Step};
use crate::metadata::Metadata;
use crate::outbox::{Body, Outbox};
use crate::seal::FrameSeal;
use crate::socket_type::SocketType;
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When to ask a silent peer whether it is there, and when to give it up (RFC 37, PING and PONG).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// A PING goes out this often, but not while older bytes wait to be written. At least a millisecond.
    pub interval: Duration,
    /// The connection ends when nothing at all was heard for this long after a PING.
    pub timeout: Duration,
    /// What a PING tells the peer: how long our silence may last, rounded up to tenths of a second. Zero: as long as it
    /// likes. At most 65.5 seconds.
    pub ttl: Duration,
}

/// What both ends of a socket's connections have in common.
#[derive(Debug, Clone)]
pub struct Config {
    /// This side's socket type.
    pub socket_type: SocketType,
    /// This side's routing id; empty: the peer makes one up.
    pub routing_id: Bytes,
    /// Further properties for READY; names of applications begin with `X-`.
    pub metadata: Metadata,
    /// The security mechanism and role.
    pub mechanism: MechanismConfig,
    /// From the first byte to READY, however it trickles.
    pub handshake_timeout: Duration,
    /// Heartbeats, if this side sends them. PING is answered in any case.
    pub heartbeat: Option<Heartbeat>,
    /// What the peer may send.
    pub limits: InboxLimits,
}

impl Config {
    fn own_metadata(&self) -> Metadata {
        let mut metadata = Metadata::new().with("Socket-Type", self.socket_type.name());
        if self.socket_type.announces_identity() {
            metadata = metadata.with("Identity", self.routing_id.clone());
        }
        self.metadata.iter().fold(metadata, |metadata, (name, value)| metadata.with(name, value.clone()))
    }
}

/// What a peer sent that the specification does not define.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProtocolDeviations {
    /// Commands of other names.
    pub unknown_commands: u64,
    /// Frames with reserved bits set in their flags.
    pub reserved_bits: u64,
}

impl ProtocolDeviations {
    /// Whether there was none.
    pub fn is_empty(self) -> bool {
        self == ProtocolDeviations::default()
    }
}

/// Who is at the other end, once the handshake is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerProperties {
    /// Its socket type.
    pub socket_type: SocketType,
    /// Its routing id, often empty.
    pub routing_id: Bytes,
    /// All that it said of itself.
    pub metadata: Metadata,
    /// The ZMTP version that it announced.
    pub version: (u8, u8),
}

/// What happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer's credentials, to be answered with [`Connection::accept`] or [`Connection::refuse`].
    Authenticate(Credentials),
    /// The handshake is over.
    Ready(Box<PeerProperties>),
    /// A message; `continued`: its earlier frames ended in a streamed body.
    Message {
        /// Its frames, or those after the last streamed body.
        frames: Frames,
        /// Whether this is the rest of a message.
        continued: bool,
    },
    /// A frame over `stream_over_bytes` begins.
    BodyStart {
        /// The frames before it in the message, since the last streamed body.
        head: Frames,
        /// Its bytes.
        length: u64,
        /// Whether more frames follow it.
        more: bool,
    },
    /// Some of its bytes.
    BodyData(Bytes),
    /// That was all of it.
    BodyEnd {
        /// Whether more frames of the message follow.
        more: bool,
    },
}

/// `None` is never: far beyond what a clock can tell.
fn after(now: Instant, wait: Duration) -> Option<Instant> {
    now.checked_add(wait)
}

#[derive(Debug)]
enum Phase {
    Greeting,
    Handshake { version: (u8, u8) },
    Traffic,
}

/// The state machine of one connection. `F` is where outside bodies come from, such as a range of a file.
#[derive(Debug)]
pub struct Connection<F> {
    config: Arc<Config>,
    mechanism: Box<dyn Mechanism>,
    phase: Phase,
    inbox: Inbox,
    outbox: Outbox<F>,
    handshake_deadline: Option<Instant>,
    last_heard: Instant,
    next_ping: Option<Instant>,
    /// Since a PING was sent that nothing came after.
    pong: Option<LivenessTimer>,
    peer_ttl: Option<Duration>,
    /// Only for a peer that reads as long as it lives.
    stall: Option<LivenessTimer>,
    /// Bytes written when that was last looked at.
    stall_written: u64,
    reading: bool,
    unknown_commands: u64,
}

impl<F> Connection<F> {
    /// A connection that has just been made. Its greeting waits in the outbox.
    pub fn new(config: Arc<Config>, now: Instant) -> Connection<F> {
        let mechanism = config.mechanism.begin();
        let mut outbox = Outbox::default();
        outbox.push_command(Bytes::copy_from_slice(&greeting::encode(mechanism.name(), mechanism.as_server())));
        Connection {
            inbox: Inbox::new(config.limits),
            mechanism,
            phase: Phase::Greeting,
            outbox,
            handshake_deadline: after(now, config.handshake_timeout),
            last_heard: now,
            next_ping: None,
            pong: None,
            peer_ttl: None,
            stall: None,
            stall_written: 0,
            reading: true,
            unknown_commands: 0,
            config,
        }
    }

    /// Takes what it can use off the front of `input` and says what it meant; `None`: more bytes are needed.
    ///
    /// After an error the connection is over: what the outbox still holds (an ERROR for the peer) may be sent.
    pub fn input(&mut self, input: &mut BytesMut, now: Instant) -> Result<Option<Event>, Error> {
        loop {
            match self.phase {
                Phase::Greeting => {
                    let Some(version) = greeting::decode(input, self.mechanism.name())? else { return Ok(None) };
                    let _ = input.split_to(GREETING_BYTES);
                    self.phase = Phase::Handshake { version };
                    if let Some(frame) = self.mechanism.start(&self.config.own_metadata()) {
                        self.outbox.push_command(frame);
                    }
                }
                Phase::Handshake { version } => {
                    let Some(body) = self.inbox.next_handshake_command(input)? else { return Ok(None) };
                    let step = self.mechanism.command(body, &self.config.own_metadata())?;
                    if let Some(event) = self.step(step, version, now)? {
                        return Ok(Some(event));
                    }
                }
                Phase::Traffic => {
                    let Some(item) = self.inbox.next(input)? else { return Ok(None) };
                    match item {
                        Item::Command(body) => self.command(body)?,
                        Item::Message { frames, continued } => return Ok(Some(Event::Message { frames, continued })),
                        Item::BodyStart { head, length, more } => {
                            return Ok(Some(Event::BodyStart { head, length, more }));
                        }
                        Item::BodyData(data) => return Ok(Some(Event::BodyData(data))),
                        Item::BodyEnd { more } => return Ok(Some(Event::BodyEnd { more })),
                    }
                }
            }
        }
    }

    fn step(&mut self, step: Step, version: (u8, u8), now: Instant) -> Result<Option<Event>, Error> {
        match step {
            Step::Wait => Ok(None),
            Step::Send(frame) => {
                self.outbox.push_command(frame);
                Ok(None)
            }
            Step::Authenticate(credentials) => Ok(Some(Event::Authenticate(credentials))),
            Step::Done { send, metadata } => {
                let properties = self.check(metadata, version).inspect_err(|error| {
                    self.outbox.push_command(command::error(&error.to_string()));
                })?;
                if let Some(frame) = send {
                    self.outbox.push_command(frame);
                }
                self.phase = Phase::Traffic;
                if let Some(FrameSeal { overhead, sealer, opener }) = self.mechanism.frame_seal() {
                    self.outbox.seal_with(overhead, sealer);
                    self.inbox.open_with(overhead, opener);
                }
                self.outbox.open();
                // ZMTP 3.0 has no PING.
                if version >= (3, 1) {
                    self.next_ping = self.config.heartbeat.and_then(|heartbeat| after(now, heartbeat.interval));
                }
                Ok(Some(Event::Ready(Box::new(properties))))
            }
        }
    }

    fn check(&self, metadata: Metadata, version: (u8, u8)) -> Result<PeerProperties, Error> {
        let ours = self.config.socket_type;
        let malformed = |why| Error::MalformedCommand { command: self.mechanism.metadata_command(), why };
        let name = metadata.find("Socket-Type").ok_or_else(|| malformed("no Socket-Type"))?;
        let socket_type = SocketType::from_name(name)
            .filter(|theirs| ours.may_talk_to(*theirs))
            .ok_or_else(|| Error::IncompatibleSockets { ours: ours.name(), theirs: printable(name) })?;
        let routing_id = metadata.find("Identity").cloned().unwrap_or_default();
        if routing_id.len() > ROUTING_ID_BYTES_MAX {
            return Err(malformed("an Identity of over 255 bytes"));
        }
        if routing_id.first() == Some(&0) {
            return Err(malformed("an Identity that begins with 0, which is for ids that a ROUTER makes up"));
        }
        Ok(PeerProperties { socket_type, routing_id, metadata, version })
    }

    fn command(&mut self, body: Bytes) -> Result<(), Error> {
        match Command::decode(body)? {
            Command::Ping { ttl_deciseconds, context } => {
                self.peer_ttl = (ttl_deciseconds > 0).then(|| Duration::from_millis(u64::from(ttl_deciseconds) * 100));
                self.outbox.push_reply(command::pong(&context));
            }
            Command::Error { reason } => return Err(Error::RefusedByPeer { reason }),
            Command::Pong => {}
            _ => self.unknown_commands += 1,
        }
        Ok(())
    }

    /// The user of [`Event::Authenticate`] is welcome.
    pub fn accept(&mut self) {
        if let Step::Send(frame) = self.mechanism.accept() {
            self.outbox.push_command(frame);
        }
    }

    /// The user of [`Event::Authenticate`] is not welcome. The ERROR for the peer waits in the outbox; then close.
    pub fn refuse(&mut self) -> Error {
        let status = "400";
        self.outbox.push_command(command::error(status));
        Error::AuthenticationRefused { status }
    }

    /// Tells the peer why the connection is about to be closed.
    pub fn send_error(&mut self, reason: &str) {
        if !matches!(self.phase, Phase::Greeting) {
            self.outbox.push_command(command::error(reason));
        }
    }

    /// Bytes came from the peer, also such as the driver took past [`Connection::input`].
    #[inline]
    pub fn on_received(&mut self, now: Instant) {
        self.last_heard = now;
        self.pong = None;
    }

    /// Tells whether the driver reads from this peer at all: while it doesn't, silence is not the peer's.
    pub fn set_reading(&mut self, reading: bool, now: Instant) {
        if reading && !self.reading {
            self.on_received(now);
        }
        self.reading = reading;
    }

    /// From now on the peer is one that reads as long as it lives. No PING goes behind what waits for it: so if none of that gets to it
    /// and it says nothing either, for twice the heartbeat's interval and timeout, it is given up. Without heartbeats it never is.
    pub fn detect_stalls(&mut self, now: Instant) {
        let most = self.config.heartbeat.map(|heartbeat| heartbeat.interval.saturating_add(heartbeat.timeout));
        self.stall = most.map(|most| LivenessTimer::new(most.saturating_mul(2), u64::MAX, now));
    }

    /// What is to be sent comes from somewhere that is slow: that nothing leaves isn't the peer's doing.
    pub fn on_local_delay(&mut self, now: Instant) {
        if let Some(stall) = &mut self.stall {
            stall.restart(now);
        }
    }

    /// Whether the peer might soon be given up, and [`Connection::on_unacked_bytes`] could tell that it reads nevertheless. To be asked
    /// before [`Connection::on_timeout`].
    pub fn wants_unacked_bytes(&self, now: Instant) -> bool {
        let waiting = [&self.pong, &self.stall];
        self.reading && waiting.into_iter().flatten().any(|timer| timer.wants_delivered(now))
    }

    /// So many of the bytes that the driver has written are still here, in the system's hands: the peer's hasn't taken them. A peer to
    /// which they go is there, however late its answer comes from behind them.
    pub fn on_unacked_bytes(&mut self, bytes: u64, now: Instant) {
        let taken = self.outbox.bytes_written().saturating_sub(bytes);
        for timer in [&mut self.pong, &mut self.stall].into_iter().flatten() {
            timer.on_delivered(taken, now);
        }
    }

    /// Bytes left of the body that is being streamed. The driver may take them straight from the socket, and says so with
    /// [`Connection::body_advance`]; [`Connection::input`] then gives the [`Event::BodyEnd`].
    pub fn body_remaining(&self) -> u64 {
        self.inbox.body_remaining()
    }

    /// The driver took so many bytes of the streamed body itself.
    pub fn body_advance(&mut self, bytes: u64) {
        self.inbox.body_advance(bytes);
    }

    /// Whether [`Connection::input`] has an event to give without further bytes.
    pub fn event_is_due(&self) -> bool {
        self.inbox.body_end_is_due()
    }

    /// Bytes that are missing until the frame under way is whole: a hint for the driver's buffer, within the limits.
    pub fn wanted(&self) -> usize {
        self.inbox.wanted()
    }

    /// Bytes that the frame under way lacks, if it is being read into a buffer of its own: that has room for them, and would have to
    /// grow for more ([`crate::limits::DEDICATED_BUFFER_BYTES`]).
    pub fn dedicated_space(&self) -> Option<usize> {
        self.inbox.dedicated_space()
    }

    /// Memory that the frames cost which are held here until their message is whole, beside the driver's own buffer: one message is
    /// bounded by [`InboxLimits`], all peers together by whoever drives their connections.
    pub fn reassembly_bytes(&self) -> usize {
        self.inbox.held_bytes()
    }

    /// Whether the handshake is over.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Traffic)
    }

    /// Appends a message to what waits for the peer.
    pub fn send<const N: usize>(&mut self, frames: SmallVec<[Body<F>; N]>, tag: u64)
    where
        [Body<F>; N]: smallvec::Array<Item = Body<F>>,
    {
        self.outbox.push_message(frames, tag);
    }

    /// What waits to be sent.
    pub fn outbox(&mut self) -> &mut Outbox<F> {
        &mut self.outbox
    }

    /// What waits to be sent, to look at.
    pub fn outbox_ref(&self) -> &Outbox<F> {
        &self.outbox
    }

    /// When bytes last came from the peer.
    pub fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// What the peer sent that the specification does not define: it is skipped, since a later version may.
    pub fn deviations(&self) -> ProtocolDeviations {
        ProtocolDeviations { unknown_commands: self.unknown_commands, reserved_bits: self.inbox.reserved_bits_seen() }
    }

    /// When [`Connection::on_timeout`] wants to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.is_ready() {
            return self.handshake_deadline;
        }
        let ttl = self.peer_ttl.filter(|_| self.reading).and_then(|ttl| after(self.last_heard, ttl));
        let pong = self.pong.as_ref().filter(|_| self.reading).and_then(LivenessTimer::deadline);
        [self.next_ping, pong, ttl].into_iter().flatten().min()
    }

    /// Sends a PING if one is due, and finds out whether the peer must be given up.
    pub fn on_timeout(&mut self, now: Instant) -> Result<(), Error> {
        if !self.is_ready() {
            let late = self.handshake_deadline.is_some_and(|deadline| now >= deadline);
            return if late { Err(Error::HandshakeTimeout) } else { Ok(()) };
        }
        if self.reading && self.pong.as_mut().is_some_and(|pong| pong.is_expired(now)) {
            return Err(Error::HeartbeatTimeout);
        }
        let silence = now.saturating_duration_since(self.last_heard);
        if self.reading && self.peer_ttl.is_some_and(|ttl| silence >= ttl) {
            return Err(Error::TtlExpired);
        }
        if let (Some(heartbeat), Some(due)) = (self.config.heartbeat, self.next_ping)
            && now >= due
        {
            self.next_ping = after(now, heartbeat.interval.max(Duration::from_millis(1)));
            let is_idle = self.outbox.is_idle();
            if let Some(stall) = &mut self.stall {
                let written = self.outbox.bytes_written();
                if is_idle || !self.reading || written != self.stall_written {
                    stall.restart(now);
                }
                self.stall_written = written;
                stall.restart(self.last_heard);
                if stall.is_expired(now) {
                    return Err(Error::Stalled);
                }
            }
            // A PING behind what the peer is slow to read would measure its patience, not its life.
            if is_idle {
                // Rounded up: a short TTL must not become 0, which means for ever.
                let ttl_deciseconds = u16::try_from(heartbeat.ttl.as_millis().div_ceil(100)).unwrap_or(u16::MAX);
                self.outbox.push_command(command::ping(ttl_deciseconds));
                let written = self.outbox.bytes_written();
                self.pong.get_or_insert_with(|| LivenessTimer::new(heartbeat.timeout, written, now));
            }
        }
        Ok(())
    }
}
