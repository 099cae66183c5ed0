//! Bytes from a peer: the first says how this side is set up, the second how the rest is cut on its way.

use super::harness::{at, command, config, greeting, heartbeat, properties};
use bytes::BytesMut;
use std::sync::Arc;
use towpath_zmtp::{
    Config, Connection, Error, Event, GREETING_BYTES, Header, InboxLimits, MechanismConfig, SocketType, Transmit,
    limits,
};

const DEALER: u8 = 1;
const STREAMS: u8 = 2;
const SMALL_LIMITS: u8 = 4;
const GREETED: u8 = 8;
const READY: u8 = 16;
const UNWELCOME: u8 = 32;

pub fn run(mechanism: &MechanismConfig, data: &[u8]) {
    let [knobs, cut, input @ ..] = data else { return };
    let on = |knob| knobs & knob != 0;
    let mut config = config(if on(DEALER) { SocketType::Dealer } else { SocketType::Router });
    config.mechanism = mechanism.clone();
    config.heartbeat = heartbeat(1000, 700, 300);
    config.limits = InboxLimits {
        message_bytes_max: if on(SMALL_LIMITS) { 300 } else { 1 << 20 },
        frames_max: if on(SMALL_LIMITS) { 4 } else { 1000 },
        stream_over_bytes: on(STREAMS).then_some(if on(SMALL_LIMITS) { 3 } else { 255 }),
        streamed_frame_bytes_max: if on(SMALL_LIMITS) { 1000 } else { u64::MAX },
    };
    let is_curve = mechanism.name() == "CURVE";
    let input = if is_curve && on(READY) {
        super::curve::conversation(mechanism, config.socket_type, input)
    } else {
        [preface(mechanism, *knobs), input.to_vec()].concat()
    };

    // However the bytes are cut, they mean the same.
    let whole = Received::new(&config, on(UNWELCOME)).receive_all(std::iter::once(&input[..]), false);
    let cut = Received::new(&config, on(UNWELCOME)).receive_all(pieces(&input, *cut), true);
    assert_eq!(whole.events, cut.events);
    assert_eq!(whole.error, cut.error);
    assert_eq!(whole.connection.deviations(), cut.connection.deviations());
    if whole.error.is_none() {
        assert_eq!(whole.input, cut.input);
    }
    whole.check(&config, input.len());
    cut.check(&config, input.len());
}

/// Gets the fuzzer past the greeting, or past the whole handshake.
fn preface(mechanism: &MechanismConfig, knobs: u8) -> Vec<u8> {
    let knobs = if mechanism.name() == "CURVE" { knobs & !READY } else { knobs };
    let mut input = Vec::new();
    if knobs & (GREETED | READY) != 0 {
        input.extend(greeting(mechanism.name().as_bytes(), knobs >> 7));
    }
    if knobs & READY != 0 {
        let metadata = properties(&[(b"Socket-Type", b"ROUTER"), (b"Identity", b"")]);
        match mechanism {
            MechanismConfig::Null => input.extend(command(b"READY", &metadata)),
            MechanismConfig::PlainClient { .. } => {
                input.extend(command(b"WELCOME", b""));
                input.extend(command(b"READY", &metadata));
            }
            MechanismConfig::PlainServer => {
                input.extend(command(b"HELLO", b"\x03ada\x02pw"));
                input.extend(command(b"INITIATE", &metadata));
            }
            other => panic!("what gets a fuzzer past {other:?} isn't known"),
        }
    }
    input
}

/// Pieces of 1 to 16 bytes, at random but always the same for a seed; by turns a large one.
fn pieces(input: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut rest = input;
    std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let length = if state & 0x700 == 0 { 5000 } else { 1 + (state & 0xf) as usize };
        let (piece, later) = rest.split_at(rest.len().min(length));
        rest = later;
        (!piece.is_empty()).then_some(piece)
    })
}

/// One connection and all that it reported, with neighbouring pieces of a body put together.
struct Received {
    connection: Connection<()>,
    input: BytesMut,
    events: Vec<Event>,
    error: Option<Error>,
    written: Vec<u8>,
    unwelcome: bool,
}

impl Received {
    fn new(config: &Config, unwelcome: bool) -> Received {
        Received {
            connection: Connection::new(Arc::new(config.clone()), at(0)),
            input: BytesMut::new(),
            events: Vec::new(),
            error: None,
            written: Vec::new(),
            unwelcome,
        }
    }

    fn receive_all<'a>(mut self, pieces: impl Iterator<Item = &'a [u8]>, writes: bool) -> Received {
        for piece in pieces {
            self.connection.on_received(piece.len(), at(0));
            self.input.extend_from_slice(piece);
            if let Err(error) = self.take_events() {
                self.error = Some(error);
                break;
            }
            if writes {
                self.write();
            }
        }
        self
    }

    fn take_events(&mut self) -> Result<(), Error> {
        loop {
            let Some(event) = self.connection.input(&mut self.input, at(0))? else {
                if !self.connection.is_waiting() {
                    return Ok(());
                }
                self.write();
                continue;
            };
            if matches!(event, Event::Authenticate(_)) {
                if self.unwelcome {
                    return Err(self.connection.refuse());
                }
                self.connection.accept();
            }
            match (self.events.last_mut(), event) {
                (Some(Event::BodyData(before)), Event::BodyData(data)) => {
                    *before = [&before[..], &data[..]].concat().into();
                }
                (_, event) => self.events.push(event),
            }
        }
    }

    fn write(&mut self) {
        // What it says is short enough to be sealed at once.
        while let Transmit::Bytes { slices, .. } = self.connection.outbox().transmit() {
            let input = slices.concat();
            self.connection.outbox().advance(input.len());
            self.written.extend(input);
        }
    }

    fn check(mut self, config: &Config, input: usize) {
        let limits = &config.limits;
        let is_sealed = config.mechanism.name() == "CURVE";
        // A sealed frame has 33 bytes more, and streamed ones are taken whole.
        let streamed = if is_sealed && limits.stream_over_bytes.is_some() {
            limits.streamed_frame_bytes_max.min(limits::SEALED_FRAME_BYTES_MAX)
        } else {
            0
        };
        let frame_bytes_max = limits.message_bytes_max.max(limits::COMMAND_BYTES_MAX).max(streamed) as usize + 33;
        if self.error.is_none() {
            assert!(self.input.len() < frame_bytes_max + 9, "more is held than any frame may have");
            assert!(self.connection.wanted() <= frame_bytes_max + 9);
        }
        let mut reported = 0;
        for event in &self.events {
            let frames = match event {
                Event::Message { frames, .. } | Event::BodyStart { head: frames, .. } => frames,
                Event::BodyData(data) => {
                    reported += data.len();
                    continue;
                }
                _ => continue,
            };
            let bytes: usize = frames.iter().map(|frame| frame.len()).sum();
            assert!(frames.len() <= limits.frames_max && bytes as u64 <= limits.message_bytes_max);
            reported += bytes;
        }
        assert!(reported <= input && self.events.len() <= input, "more was reported than was received");
        assert!(self.connection.outbox_ref().queued().memory_bytes <= 4096, "the peer decides what we hold for it");

        self.write();
        let mut commands = &self.written[GREETING_BYTES..];
        while let Some((header, size)) = Header::decode(commands) {
            assert!((header.command || is_sealed) && !header.more && !header.reserved_bits);
            commands = &commands[size + header.length as usize..];
        }
        assert!(commands.is_empty(), "what was written ends within a frame");

        // Time goes on; every call moves the deadline on or ends the connection.
        let mut now = at(0);
        for _ in 0..20 {
            let Some(deadline) = self.connection.deadline() else { break };
            assert!(deadline > now);
            now = deadline;
            self.write();
            if self.connection.on_timeout(now).is_err() {
                break;
            }
        }
    }
}
