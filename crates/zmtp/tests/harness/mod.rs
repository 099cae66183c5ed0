//! Two connections and a link between them, in memory and in virtual time: nothing here waits or looks at a clock but once.

#![allow(dead_code, reason = "every test file uses some of it")]

#[cfg(feature = "aes")]
pub mod curve;
pub mod toy_seal;

use bytes::{Bytes, BytesMut};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use towpath_zmtp::{Body, Config, Connection, Error, Event, Heartbeat, SocketType, Transmit};

/// Where virtual time begins.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A moment of virtual time.
pub fn at(milliseconds: u64) -> Instant {
    *BEGINNING + Duration::from_millis(milliseconds)
}

/// A socket's settings: NULL, no heartbeats, ten seconds for the handshake, default limits.
pub fn config(socket_type: SocketType) -> Config {
    Config::new(socket_type)
}

/// A heartbeat of this many milliseconds each.
pub fn heartbeat(interval: u64, timeout: u64, ttl: u64) -> Option<Heartbeat> {
    let [interval, timeout, ttl] = [interval, timeout, ttl].map(Duration::from_millis);
    Some(Heartbeat { interval, timeout, ttl })
}

/// One end: a connection, input that it hasn't used, and its events.
#[derive(Debug)]
pub struct End {
    pub connection: Connection<Bytes>,
    pub input: BytesMut,
    pub events: Vec<Event>,
}

impl End {
    pub fn new(config: Config) -> End {
        End { connection: Connection::new(Arc::new(config), at(0)), input: BytesMut::new(), events: Vec::new() }
    }

    /// An end whose handshake with a plain NULL peer of that type is over, with nothing left to write or report.
    pub fn ready(config: Config, peer: SocketType) -> End {
        let mut end = End::new(config);
        end.receive(&handshake(peer), at(0)).expect("the handshake is right");
        assert!(end.connection.is_ready());
        end.write_all();
        end.events.clear();
        end
    }

    /// Bytes come in; what they mean is appended to `events`.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), Error> {
        if !bytes.is_empty() {
            self.connection.on_received(bytes.len(), now);
        }
        self.input.extend_from_slice(bytes);
        loop {
            while let Some(event) = self.connection.input(&mut self.input, now)? {
                self.events.push(event);
            }
            let Some(job) = self.connection.open_job() else { return Ok(()) };
            self.connection.opened(job.open());
        }
    }

    /// Writes up to `most` bytes as a driver would, the pieces of outside bodies too.
    pub fn write(&mut self, most: usize) -> Vec<u8> {
        let mut wire = Vec::new();
        loop {
            let left = most - wire.len();
            let outbox = self.connection.outbox();
            match outbox.transmit() {
                Transmit::Idle => {
                    if !self.seal_one() {
                        return wire;
                    }
                }
                Transmit::External { remaining: 0, .. } => {
                    assert!(outbox.advance_external(0).is_some(), "an empty body gives its source back");
                }
                _ if left == 0 => return wire,
                Transmit::Bytes { slices, .. } => {
                    let now = left.min(slices[0].len() + slices[1].len());
                    wire.extend(slices.into_iter().flatten().take(now));
                    outbox.advance(now);
                }
                Transmit::External { source, position, remaining } => {
                    let now = remaining.min(left as u64);
                    wire.extend_from_slice(&source[position as usize..(position + now) as usize]);
                    let back = outbox.advance_external(now);
                    assert_eq!(back.is_some(), now == remaining, "the source comes back with the last byte");
                }
            }
        }
    }

    /// Seals the next frame that has to be sealed by the driver.
    pub fn seal_one(&mut self) -> bool {
        let outbox = self.connection.outbox();
        let Some((job, body)) = outbox.seal_job() else { return false };
        let (Body::Bytes(bytes) | Body::External { source: bytes, .. }) = body;
        let mut buffer = vec![0; job.body_at()];
        buffer.extend_from_slice(bytes);
        outbox.sealed(job.seal(buffer));
        true
    }

    pub fn write_all(&mut self) -> Vec<u8> {
        self.write(usize::MAX)
    }

    pub fn send(&mut self, message: &[Part]) {
        self.connection.send(message.iter().map(Part::body), 0);
    }
}

/// A frame to send: bytes, or a body from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Inside(Bytes),
    Outside(Bytes),
}

impl Part {
    pub fn bytes(&self) -> &Bytes {
        match self {
            Part::Inside(bytes) | Part::Outside(bytes) => bytes,
        }
    }

    pub fn body(&self) -> Body<Bytes> {
        match self {
            Part::Inside(bytes) => Body::Bytes(bytes.clone()),
            Part::Outside(bytes) => Body::External { source: bytes.clone(), length: bytes.len() as u64 },
        }
    }
}

/// The greeting and READY of a NULL peer, as libzmq sends them.
pub fn handshake(peer: SocketType) -> Vec<u8> {
    let mut bytes = greeting(b"NULL", 1).to_vec();
    bytes.extend(ready(&[(b"Socket-Type", peer.name().as_bytes()), (b"Identity", b"")]));
    bytes
}

/// A greeting of version 3.`minor`.
pub fn greeting(mechanism: &[u8], minor: u8) -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[8] = 1;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = minor;
    greeting[12..12 + mechanism.len()].copy_from_slice(mechanism);
    greeting
}

/// A frame, in the short form where it can be.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut wire = match u8::try_from(body.len()) {
        Ok(short) => vec![flags, short],
        Err(_) => [&[flags | 2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    wire.extend_from_slice(body);
    wire
}

/// A header in the long form that promises `length` bytes.
pub fn long_header(flags: u8, length: u64) -> Vec<u8> {
    [&[flags | 2][..], &length.to_be_bytes()].concat()
}

/// A command frame.
pub fn command(name: &[u8], data: &[u8]) -> Vec<u8> {
    frame(4, &[&[name.len() as u8][..], name, data].concat())
}

/// Properties as they are in READY and INITIATE.
pub fn properties(properties: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (name, value) in properties {
        wire.push(name.len() as u8);
        wire.extend_from_slice(name);
        wire.extend_from_slice(&(value.len() as u32).to_be_bytes());
        wire.extend_from_slice(value);
    }
    wire
}

pub fn ready(of: &[(&[u8], &[u8])]) -> Vec<u8> {
    command(b"READY", &properties(of))
}

/// Puts messages together from events, streamed bodies too.
pub fn messages(events: &[Event]) -> Vec<Vec<Bytes>> {
    let mut whole = Vec::new();
    let mut frames: Vec<Bytes> = Vec::new();
    let mut body: Option<(BytesMut, u64)> = None;
    for event in events {
        match event {
            Event::Authenticate(_) | Event::Ready(_) => {}
            Event::Message { frames: rest, continued } => {
                assert_eq!(*continued, !frames.is_empty(), "'continued' stands for earlier streamed bodies");
                frames.extend(rest.iter().cloned());
                whole.push(std::mem::take(&mut frames));
            }
            Event::BodyStart { head, length, .. } => {
                assert!(body.is_none(), "a body begins within a body");
                frames.extend(head.iter().cloned());
                body = Some((BytesMut::new(), *length));
            }
            Event::BodyData(data) => {
                assert!(!data.is_empty(), "an event without bytes");
                body.as_mut().expect("data of no body").0.extend_from_slice(data);
            }
            Event::BodyEnd { more } => {
                let (bytes, length) = body.take().expect("the end of no body");
                assert_eq!(bytes.len() as u64, length, "a body's length is a promise");
                frames.push(bytes.freeze());
                if !more {
                    whole.push(std::mem::take(&mut frames));
                }
            }
        }
    }
    whole
}

/// Moves bytes between two ends until neither has any, in pieces of the given sizes by turns.
pub fn converse(one: &mut End, other: &mut End, pieces: &[usize], now: Instant) -> Result<(), Error> {
    let mut pieces = pieces.iter().copied().cycle();
    loop {
        let there = one.write(pieces.next().unwrap_or(usize::MAX));
        other.receive(&there, now)?;
        let back = other.write(pieces.next().unwrap_or(usize::MAX));
        one.receive(&back, now)?;
        if there.is_empty() && back.is_empty() {
            return Ok(());
        }
    }
}
