//! One connection: greeting, handshake, messages, heartbeats.

use crate::command::{self, Command};
use crate::config::{Config, GREETING_PROPERTY};
use crate::deviations::ProtocolDeviations;
use crate::error::{Error, printable};
use crate::event::{Event, PeerProperties};
use crate::greeting::{self, GREETING_BYTES};
use crate::inbox::{Inbox, Item};
use crate::limits::{REPLIES_WAITING_MAX, ROUTING_ID_BYTES_MAX, UNOPENED_BYTES_MIN};
use crate::liveness::LivenessTimer;
use crate::mechanism::{Mechanism, Step};
use crate::metadata::Metadata;
use crate::outbox::{Body, Outbox};
use crate::seal::{OpenJob, Opened};
use crate::socket_type::SocketType;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Status for refused credentials (RFC 27). libzmq's clients report it; a sentence they would not.
const REFUSED: &str = "400";

/// A time in the future; `None`: beyond what a clock can represent, so never.
fn after(now: Instant, wait: Duration) -> Option<Instant> {
    now.checked_add(wait)
}

#[derive(Debug)]
enum Phase {
    Greeting { begun: bool },
    Handshake { version: (u8, u8) },
    Traffic,
}

/// The state machine of one connection. `F` is the source of external bodies, such as a file range.
#[derive(Debug)]
pub struct Connection<F> {
    config: Arc<Config>,
    mechanism: Box<dyn Mechanism>,
    phase: Phase,
    inbox: Inbox,
    outbox: Outbox<F>,
    handshake_deadline: Option<Instant>,
    last_received: Instant,
    /// Bytes received since the peer last showed that it lives.
    unopened_bytes: usize,
    next_ping: Option<Instant>,
    /// Time without an answer after which the peer is given up.
    pong_timeout: Duration,
    /// Runs since a PING was sent and nothing received after it.
    pong: Option<LivenessTimer>,
    peer_ttl: Option<Duration>,
    /// Runs for peers that are known to read as long as they live.
    stall: Option<LivenessTimer>,
    /// Bytes written at the last check of `stall`.
    stall_written: u64,
    reading: bool,
    unknown_commands: u64,
    verdict: Verdict,
    cipher: Option<&'static str>,
}

/// The decision about a peer's credentials.
#[derive(Debug)]
enum Verdict {
    NotAsked,
    /// Asked for with [`Event::Authenticate`]. What the peer sends meanwhile waits.
    Awaited,
    /// The mechanism's next step after a yes.
    Accepted(Step),
}

impl<F> Connection<F> {
    /// A new connection, with its greeting in the outbox.
    pub fn new(config: Arc<Config>, now: Instant) -> Connection<F> {
        let mechanism = config.mechanism.begin();
        let mut outbox = Outbox::default();
        outbox.push_command(Bytes::copy_from_slice(&greeting::encode(mechanism.name(), mechanism.as_server())));
        Connection {
            inbox: Inbox::new(config.limits),
            mechanism,
            phase: Phase::Greeting { begun: false },
            outbox,
            handshake_deadline: after(now, config.handshake_timeout),
            last_received: now,
            unopened_bytes: 0,
            next_ping: None,
            pong_timeout: config.heartbeat.map_or(Duration::ZERO, |heartbeat| heartbeat.timeout),
            pong: None,
            peer_ttl: None,
            stall: None,
            stall_written: 0,
            reading: true,
            unknown_commands: 0,
            verdict: Verdict::NotAsked,
            cipher: None,
            config,
        }
    }

    /// Decodes the next event from the front of `input`; `None`: more bytes are needed, or [`Connection::is_waiting`].
    ///
    /// After an error the connection is over. The outbox may still hold an ERROR for the peer, to be sent before closing.
    pub fn input(&mut self, input: &mut BytesMut, now: Instant) -> Result<Option<Event>, Error> {
        while !self.is_waiting() {
            match self.phase {
                Phase::Greeting { .. } => {
                    self.phase = Phase::Greeting { begun: !input.is_empty() };
                    let Some(version) = greeting::decode(input, self.mechanism.name())? else { return Ok(None) };
                    let _ = input.split_to(GREETING_BYTES);
                    self.phase = Phase::Handshake { version };
                    let metadata = self.config.own_metadata(&*self.mechanism, version);
                    if let Some(frame) = self.mechanism.start(&metadata)? {
                        self.outbox.push_command(frame);
                    }
                }
                Phase::Handshake { version } => {
                    if let Verdict::Accepted(step) = std::mem::replace(&mut self.verdict, Verdict::NotAsked)
                        && let Some(event) = self.step(step, version, now)?
                    {
                        return Ok(Some(event));
                    }
                    let Some(body) = self.inbox.next_handshake_command(input)? else { return Ok(None) };
                    let metadata = self.config.own_metadata(&*self.mechanism, version);
                    let step = self.mechanism.command(body, &metadata)?;
                    if let Some(event) = self.step(step, version, now)? {
                        return Ok(Some(event));
                    }
                }
                Phase::Traffic => {
                    let item = self.inbox.next(input)?;
                    if self.inbox.take_has_opened_frame() {
                        self.on_life(now);
                    }
                    let Some(item) = item else { return Ok(None) };
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
        Ok(None)
    }

    /// Whether nothing is decoded for now, whatever has come: the decision on the peer's credentials is due, a frame is being opened
    /// ([`Connection::open_job`]), or [`REPLIES_WAITING_MAX`] answers to its commands wait to be written. The driver doesn't read on meanwhile, and calls
    /// [`Connection::input`] again afterwards.
    pub fn is_waiting(&self) -> bool {
        matches!(self.verdict, Verdict::Awaited)
            || self.inbox.is_opening()
            || self.outbox.replies_waiting() >= REPLIES_WAITING_MAX
    }

    fn step(&mut self, step: Step, version: (u8, u8), now: Instant) -> Result<Option<Event>, Error> {
        match step {
            Step::Wait => Ok(None),
            Step::Send(frame) => {
                self.outbox.push_command(frame);
                Ok(None)
            }
            Step::Authenticate(credentials) => {
                self.verdict = Verdict::Awaited;
                Ok(Some(Event::Authenticate(credentials)))
            }
            Step::Refuse(error) => {
                self.outbox.push_command(command::error(REFUSED));
                Err(error)
            }
            Step::Done { send, metadata } => {
                let properties = self.check(metadata, version).inspect_err(|error| {
                    self.outbox.push_command(command::error(&error.to_string()));
                })?;
                if let Some(frame) = send {
                    self.outbox.push_command(frame);
                }
                self.phase = Phase::Traffic;
                if let Some(seal) = self.mechanism.frame_seal() {
                    self.cipher = Some(seal.cipher);
                    let numbers = seal.first_number..=seal.last_number;
                    self.outbox.seal_with(seal.overhead, numbers, seal.sealed_here_bytes_max, seal.sealer);
                    self.inbox.open_with(seal.overhead, seal.opener, seal.opened_here_bytes_max);
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
        if metadata.find(GREETING_PROPERTY).is_some_and(|seen| **seen != [greeting::VERSION.0, greeting::VERSION.1]) {
            return Err(Error::GreetingChanged);
        }
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

    /// Accepts the credentials of [`Event::Authenticate`]. [`Connection::input`] then goes on, with what the peer has sent meanwhile.
    pub fn accept(&mut self) {
        if matches!(self.verdict, Verdict::Awaited) {
            let step = match self.mechanism.accept() {
                Step::Send(frame) => {
                    self.outbox.push_command(frame);
                    Step::Wait
                }
                step => step,
            };
            self.verdict = Verdict::Accepted(step);
        }
    }

    /// Refuses the credentials of [`Event::Authenticate`]. The outbox then holds an ERROR for the peer, to be sent before closing.
    pub fn refuse(&mut self) -> Error {
        self.outbox.push_command(command::error(REFUSED));
        Error::AuthenticationRefused { status: REFUSED }
    }

    /// Queues an ERROR: the reason why the connection is about to be closed.
    pub fn send_error(&mut self, reason: &str) {
        if !matches!(self.phase, Phase::Greeting { .. }) {
            self.outbox.push_command(command::error(reason));
        }
    }

    /// Lets this peer leave a PING unanswered for at least this long, from the next one on.
    pub fn extend_pong_timeout(&mut self, to: Duration) {
        self.pong_timeout = self.pong_timeout.max(to);
    }

    /// Has a PING sent with the next [`Connection::on_timeout`], if this peer is sent any.
    pub fn ping_soon(&mut self, now: Instant) {
        self.next_ping = self.next_ping.map(|_| now);
    }

    /// Since when a PING is unanswered, and nothing else has come either.
    pub fn unanswered_since(&self) -> Option<Instant> {
        self.pong.as_ref().map(LivenessTimer::since)
    }

    /// Bytes came from the peer, including those that the driver took past [`Connection::input`].
    ///
    /// Where frames are sealed, few bytes are no sign of life before a frame was opened: a length that was changed on the way makes all that follows
    /// a part of one frame, PINGs and PONGs too.
    #[inline]
    pub fn on_received(&mut self, bytes: usize, now: Instant) {
        self.unopened_bytes = self.unopened_bytes.saturating_add(bytes);
        if self.cipher.is_none() || self.unopened_bytes >= UNOPENED_BYTES_MIN {
            self.on_life(now);
        }
    }

    /// The peer lives, or its silence wasn't its fault.
    #[inline]
    pub fn on_life(&mut self, now: Instant) {
        self.unopened_bytes = 0;
        self.last_received = now;
        self.pong = None;
    }

    /// Sets whether the driver reads from this peer. While it doesn't, silence isn't the peer's fault.
    pub fn set_reading(&mut self, reading: bool, now: Instant) {
        if reading && !self.reading {
            self.on_life(now);
        }
        self.reading = reading;
    }

    /// Gives the peer up if it takes nothing of its backlog and says nothing for twice the heartbeat's interval and timeout: for peers that are
    /// known to read as long as they live. Nothing else shows that such a peer has died, since no PING goes behind a backlog.
    pub fn detect_stalls(&mut self, now: Instant) {
        let most = self.config.heartbeat.map(|heartbeat| heartbeat.interval.saturating_add(heartbeat.timeout));
        self.stall = most.map(|most| LivenessTimer::new(most.saturating_mul(2), u64::MAX, now));
    }

    /// Notes a delay of this side, such as by a slow disk, which isn't the peer's fault.
    pub fn on_local_delay(&mut self, now: Instant) {
        if let Some(stall) = &mut self.stall {
            stall.restart(now);
        }
    }

    /// Whether the peer may soon be given up, and [`Connection::on_unacked_bytes`] could show that it still reads. To be called before
    /// [`Connection::on_timeout`].
    pub fn wants_unacked_bytes(&self, now: Instant) -> bool {
        let waiting = [&self.pong, &self.stall];
        self.reading && waiting.into_iter().flatten().any(|timer| timer.wants_delivered(now))
    }

    /// Reports how many of the bytes written the peer's system has not acknowledged. A peer that makes progress lives, however late its answer
    /// comes from behind them.
    pub fn on_unacked_bytes(&mut self, bytes: u64, now: Instant) {
        let taken = self.outbox.bytes_written().saturating_sub(bytes);
        for timer in [&mut self.pong, &mut self.stall].into_iter().flatten() {
            timer.on_delivered(taken, now);
        }
    }

    /// Leaves sealed frames that take long to open ([`crate::FrameSeal::opened_here_bytes_max`]) to [`Connection::open_job`].
    pub fn open_large_elsewhere(&mut self) {
        self.inbox.open_large_elsewhere();
    }

    /// A frame that the driver is to open, such as on another thread, and to return with [`Connection::opened`]. Nothing behind it is decoded
    /// meanwhile.
    pub fn open_job(&mut self) -> Option<OpenJob> {
        self.inbox.open_job()
    }

    /// Takes the frame of [`Connection::open_job`] back. [`Connection::input`] then goes on.
    pub fn opened(&mut self, opened: Opened) {
        self.inbox.opened(opened);
    }

    /// Bytes left of the streamed body. The driver may take them straight from the socket, and reports them with
    /// [`Connection::body_advance`]; [`Connection::input`] then gives the [`Event::BodyEnd`]. 0 for sealed frames.
    pub fn body_remaining(&self) -> u64 {
        self.inbox.body_remaining()
    }

    /// Reports bytes of the streamed body that the driver took itself.
    pub fn body_advance(&mut self, bytes: u64) {
        self.inbox.body_advance(bytes);
    }

    /// Whether [`Connection::input`] has something to do without further bytes.
    pub fn event_is_due(&self) -> bool {
        self.inbox.body_end_is_due() || self.inbox.has_opened() || matches!(self.verdict, Verdict::Accepted(_))
    }

    /// Why the peer has closed the connection, as far as the handshake shows.
    pub fn closed(&self) -> Option<Error> {
        match self.phase {
            Phase::Greeting { begun: true } => Some(Error::ClosedAtGreeting { ours: self.mechanism.name() }),
            Phase::Greeting { begun: false } => Some(Error::ClosedWithoutGreeting { ours: self.mechanism.name() }),
            Phase::Handshake { .. } => self.mechanism.closed(),
            _ => None,
        }
    }

    /// Bytes that the current frame lacks, as far as its header is known: a hint for the driver's buffer, within the limits.
    pub fn wanted(&self) -> usize {
        self.inbox.wanted()
    }

    /// Bytes that the current frame lacks, if it is read into a dedicated buffer, which has space for them and would have to grow for more
    /// ([`crate::limits::DEDICATED_BUFFER_BYTES`]).
    pub fn dedicated_space(&self) -> Option<usize> {
        self.inbox.dedicated_space()
    }

    /// Memory of frames held until their message is complete, besides the driver's own buffer. [`InboxLimits`](crate::InboxLimits) bounds it for one message;
    /// the driver bounds it for all connections.
    pub fn reassembly_bytes(&self) -> usize {
        self.inbox.held_bytes()
    }

    /// Whether the handshake is over.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Traffic)
    }

    /// The cipher of all frames; `None`: they travel as they are, or the handshake isn't over.
    pub fn cipher(&self) -> Option<&'static str> {
        self.cipher
    }

    /// Appends a message to the send queue.
    pub fn send(&mut self, frames: impl IntoIterator<Item = Body<F>>, tag: u64) {
        self.outbox.push_message(frames, tag);
    }

    /// The send queue.
    pub fn outbox(&mut self) -> &mut Outbox<F> {
        &mut self.outbox
    }

    /// The send queue, read-only.
    pub fn outbox_ref(&self) -> &Outbox<F> {
        &self.outbox
    }

    /// When bytes last came from the peer that show that it lives.
    pub fn last_received(&self) -> Instant {
        self.last_received
    }

    /// Deviations from the specification that were tolerated.
    pub fn deviations(&self) -> ProtocolDeviations {
        ProtocolDeviations { unknown_commands: self.unknown_commands, reserved_bits: self.inbox.reserved_bits_seen() }
    }

    /// When to call [`Connection::on_timeout`] next.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.is_ready() {
            return self.handshake_deadline;
        }
        let ttl = self.peer_ttl.filter(|_| self.reading).and_then(|ttl| after(self.last_received, ttl));
        let pong = self.pong.as_ref().filter(|_| self.reading).and_then(LivenessTimer::deadline);
        [self.next_ping, pong, ttl].into_iter().flatten().min()
    }

    /// Queues a PING if one is due, and checks whether the peer must be given up.
    pub fn on_timeout(&mut self, now: Instant) -> Result<(), Error> {
        if !self.is_ready() {
            let late = self.handshake_deadline.is_some_and(|deadline| now >= deadline);
            return if late { Err(Error::HandshakeTimeout) } else { Ok(()) };
        }
        if self.reading && self.pong.as_mut().is_some_and(|pong| pong.is_expired(now)) {
            return Err(Error::HeartbeatTimeout);
        }
        let silence = now.saturating_duration_since(self.last_received);
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
                stall.restart(self.last_received);
                if stall.is_expired(now) {
                    return Err(Error::Stalled);
                }
            }
            // A PING behind a backlog would measure how fast the peer reads, not whether it lives.
            if is_idle {
                // Rounded up: a short TTL must not become 0, which means never.
                let ttl_deciseconds = u16::try_from(heartbeat.ttl.as_millis().div_ceil(100)).unwrap_or(u16::MAX);
                self.outbox.push_command(command::ping(ttl_deciseconds));
                let written = self.outbox.bytes_written();
                let timeout = self.pong_timeout;
                self.pong.get_or_insert_with(|| LivenessTimer::new(timeout, written, now));
            }
        }
        Ok(())
    }
}
