//! CURVE between two connections, with everything that can happen to its bytes on the way.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod harness;

use bytes::Bytes;
use harness::curve::{client, client_key, client_of, client_with, counting, key, server, server_key, server_with};
use harness::{End, Part, at, command, config, converse, frame, heartbeat, messages};
use proptest::prelude::*;
use std::sync::Arc;
use towpath_zmtp::{Config, Credentials, Error, Event, MechanismConfig, SocketType};

fn with(mechanism: MechanismConfig, socket_type: SocketType) -> Config {
    Config { mechanism, ..config(socket_type) }
}

fn ends() -> (End, End) {
    ends_with(false)
}

fn ends_with(aes: bool) -> (End, End) {
    let client = End::new(with(client_with(aes), SocketType::Dealer));
    (client, End::new(with(server_with(aes), SocketType::Router)))
}

/// The bytes of each step of a handshake, by turns from client and server; the server's verdict comes with the answer to INITIATE.
struct Handshake {
    client: End,
    server: End,
}

impl Handshake {
    fn new() -> Handshake {
        Handshake::with(false)
    }

    fn with(aes: bool) -> Handshake {
        let (client, server) = ends_with(aes);
        Handshake { client, server }
    }

    fn client_writes(&mut self) -> Vec<u8> {
        self.client.write_all()
    }

    fn receive_at_server(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.server.receive(bytes, at(0))?;
        if let Some(Event::Authenticate(_)) = self.server.events.last() {
            self.server.connection.accept();
            self.server.receive(b"", at(0))?;
        }
        Ok(())
    }

    /// The bytes of client and server up to READY: greeting, then two commands each.
    fn go_on(&mut self) -> Result<[Vec<u8>; 2], Error> {
        let there = self.client_writes();
        self.receive_at_server(&there)?;
        let back = self.server.write_all();
        self.client.receive(&back, at(0))?;
        Ok([there, back])
    }
}

/// A client and a server behind their handshake.
fn pair_of(mut client: End, mut server: End) -> (End, End) {
    converse(&mut client, &mut server, &[usize::MAX], at(0)).unwrap();
    let asked = Event::Authenticate(Credentials::Curve { key: client_key().public_key() });
    assert_eq!(server.events, [asked]);
    server.connection.accept();
    server.receive(b"", at(0)).unwrap();
    converse(&mut client, &mut server, &[usize::MAX], at(0)).unwrap();
    assert!(client.connection.is_ready() && server.connection.is_ready());
    (client, server)
}

fn pair() -> (End, End) {
    let (client, server) = ends();
    pair_of(client, server)
}

#[test]
fn messages_cross_and_no_plaintext_is_written() {
    for aes in [false, true] {
        messages_cross(aes);
    }
}

fn messages_cross(aes: bool) {
    let (client, server) = ends_with(aes);
    let (mut client, mut server) = pair_of(client, server);
    let cipher = Some(if aes { "AES-256-GCM" } else { "XSalsa20-Poly1305" });
    assert_eq!((client.connection.cipher(), server.connection.cipher()), (cipher, cipher));
    let secret = Bytes::from(b"attack at dawn, ".repeat(5_000));
    for length in [0, 1, 221, 222, 223, 8_192, 8_193, 70_000] {
        let parts =
            [Part::Inside(secret.slice(..length)), Part::Outside(secret.slice(..length)), Part::Inside("end".into())];
        client.send(&parts);
        server.send(&parts);
        for from_client in [true, false] {
            let (from, to) = if from_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let wire = from.write_all();
            assert!(!wire.windows(8).any(|window| window == b"k at daw"));
            to.receive(&wire, at(1)).unwrap();
            let whole: Vec<Bytes> = parts.iter().map(|part| part.bytes().clone()).collect();
            assert_eq!(messages(&std::mem::take(&mut to.events)), [whole]);
        }
    }
}

#[test]
fn metadata_is_exchanged_and_hidden() {
    let mut handshake = Handshake::with(true);
    let mut wire = Vec::new();
    for _ in 0..3 {
        wire.extend(handshake.go_on().unwrap().concat());
    }
    for text in [&b"DEALER"[..], b"ROUTER", b"Socket-Type", b"Cipher", b"AES"] {
        assert!(!wire.windows(text.len()).any(|window| window == text));
    }
    for (end, peer) in [(&handshake.client, SocketType::Router), (&handshake.server, SocketType::Dealer)] {
        assert!(matches!(end.events.last(), Some(Event::Ready(properties)) if properties.socket_type == peer));
    }
}

#[test]
fn a_server_with_another_key_refuses_and_the_client_says_so() {
    let wrong = key(b'W').public_key();
    let mut client = End::new(with(client_of(wrong), SocketType::Dealer));
    let mut server = End::new(with(harness::curve::server(), SocketType::Router));
    server.receive(&client.write_all(), at(0)).unwrap();
    client.receive(&server.write_all(), at(0)).unwrap();
    let hello = client.write_all();
    assert_eq!(client.connection.closed(), Some(Error::ClosedAfterHello { server: wrong }));
    assert_eq!(server.receive(&hello, at(0)), Err(Error::HelloForAnotherKey));
    let wire = server.write_all();
    assert_eq!(wire, command(b"ERROR", b"\x03400"));
    assert_eq!(client.receive(&wire, at(0)), Err(Error::HelloRefused { server: wrong }));
}

#[test]
fn a_client_that_is_not_admitted_is_refused() {
    let (mut client, mut server) = ends();
    converse(&mut client, &mut server, &[usize::MAX], at(0)).unwrap();
    assert_eq!(server.connection.refuse(), Error::AuthenticationRefused { status: "400" });
    let refused = Error::ClientKeyRefused { client: client_key().public_key(), reason: "400".into() };
    assert_eq!(client.receive(&server.write_all(), at(0)), Err(refused));
    assert!(!server.connection.is_ready() && !client.connection.is_ready());
}

#[test]
fn nothing_is_said_of_this_side_before_the_verdict_and_the_rest_waits_for_it() {
    let (mut client, mut server) = ends();
    converse(&mut client, &mut server, &[usize::MAX], at(0)).unwrap();
    assert!(server.connection.outbox_ref().is_idle() && server.connection.deadline().is_some());
    // A peer in a hurry: bytes behind its INITIATE are kept, and not looked at.
    server.receive(&frame(0, b"not even sealed"), at(0)).unwrap();
    server.connection.accept();
    assert!(server.connection.event_is_due());
    assert_eq!(server.receive(b"", at(0)), Err(Error::NotSealed));
}

#[test]
fn keys_can_be_changed_one_after_the_other() {
    for byte in [b'S', b'O'] {
        let keys = Arc::from([key(b'O'), server_key()]);
        let mechanism = MechanismConfig::CurveServer { keys, random: counting(0), aes: false };
        let server = End::new(with(mechanism, SocketType::Router));
        let client = End::new(with(client_of(key(byte).public_key()), SocketType::Dealer));
        pair_of(client, server);
    }
}

#[test]
fn heartbeats_are_inside() {
    let client = End::new(with(client(), SocketType::Dealer));
    let server = End::new(Config { heartbeat: heartbeat(100, 50, 0), ..with(server(), SocketType::Router) });
    let (mut client, mut server) = pair_of(client, server);
    server.connection.on_timeout(at(100)).unwrap();
    let ping = server.write_all();
    // Flags 0, and a name that every frame has.
    assert_eq!(ping[..2], [0, (33 + 7) as u8]);
    assert!(ping[2..].starts_with(b"\x07MESSAGE"));
    client.receive(&ping, at(101)).unwrap();
    server.receive(&client.write_all(), at(102)).unwrap();
    server.connection.on_timeout(at(151)).unwrap();
    // A PING outside would be anybody's.
    for wire in [command(b"PING", b"\0\0"), command(b"ERROR", b"\x02no"), frame(1, b"x"), frame(8, b"x")] {
        let (mut client, _) = pair();
        assert_eq!(client.receive(&wire, at(103)), Err(Error::NotSealed));
    }
}

#[test]
fn every_changed_byte_ends_the_connection() {
    for aes in [false, true] {
        change_every_byte(aes);
    }
}

fn change_every_byte(aes: bool) {
    // The padding of HELLO means nothing. Behind the header, the name and the version:
    let padding = 2 + 6 + 2..2 + 6 + 2 + 72;
    let steps = {
        let mut handshake = Handshake::with(aes);
        let [hello_greeting, greeting] = handshake.go_on().unwrap();
        let [hello, welcome] = handshake.go_on().unwrap();
        let [initiate, ready] = handshake.go_on().unwrap();
        assert!(handshake.client.connection.is_ready());
        let client = [hello_greeting, hello, initiate].map(|wire| wire.len());
        (client, [greeting, welcome, ready].map(|wire| wire.len()))
    };
    let (client, server) = steps;
    for (step, length) in client.into_iter().enumerate().skip(1) {
        for at_byte in 0..length {
            // The first byte has the flags of the frame, which are everybody's.
            if at_byte == 0 || (step == 1 && padding.contains(&at_byte)) {
                continue;
            }
            let mut handshake = Handshake::with(aes);
            (0..step).for_each(|_| _ = handshake.go_on().unwrap());
            let mut wire = handshake.client_writes();
            wire[at_byte] ^= 1;
            let outcome = handshake.receive_at_server(&wire);
            // A longer frame is waited for.
            assert!(outcome.is_err() || !handshake.server.connection.is_ready(), "step {step}, byte {at_byte}");
            assert!(handshake.server.events.is_empty(), "{:?}", handshake.server.events);
        }
    }
    for (step, length) in server.into_iter().enumerate().skip(1) {
        for at_byte in 1..length {
            let mut handshake = Handshake::with(aes);
            (0..step).for_each(|_| _ = handshake.go_on().unwrap());
            let wire = handshake.client_writes();
            handshake.receive_at_server(&wire).unwrap();
            let mut wire = handshake.server.write_all();
            wire[at_byte] ^= 1;
            let outcome = handshake.client.receive(&wire, at(0));
            assert!(outcome.is_err() || !handshake.client.connection.is_ready(), "step {step}, byte {at_byte}");
            assert!(handshake.client.events.is_empty());
        }
    }
}

#[test]
fn an_impostor_is_named() {
    let mut handshake = Handshake::new();
    handshake.go_on().unwrap();
    let hello = handshake.client_writes();
    handshake.receive_at_server(&hello).unwrap();
    let mut welcome = handshake.server.write_all();
    *welcome.last_mut().unwrap() ^= 1;
    let expected = Error::ServerKeyNotProven { server: server_key().public_key() };
    assert_eq!(handshake.client.receive(&welcome, at(0)), Err(expected));
}

#[test]
fn secrets_stay_out_of_debug_output() {
    let (client, server) = pair();
    let shown = format!("{client:?}{server:?}{:?}{:?}", harness::curve::client(), harness::curve::server());
    for secret in [server_key(), client_key()] {
        assert!(!shown.contains(&secret.to_z85()[..]));
    }
    // As a list of bytes.
    for byte in ["83, 83, 83", "67, 67, 67", "0, 1, 2, 3", "100, 101, 102"] {
        assert!(!shown.contains(byte), "{byte}");
    }
}

#[test]
fn without_randomness_there_is_no_handshake() {
    let none = towpath_zmtp::Random::new(|_| Err(std::io::ErrorKind::Unsupported.into()));
    let mechanism =
        MechanismConfig::CurveClient { key: client_key(), server: server_key().public_key(), random: none, aes: false };
    let (mut client, mut server) = (End::new(with(mechanism, SocketType::Dealer)), ends().1);
    server.receive(&client.write_all(), at(0)).unwrap();
    assert_eq!(client.receive(&server.write_all(), at(0)), Err(Error::NoRandomness));
}

#[test]
fn peers_without_curve_are_recognised() {
    let null = harness::handshake(SocketType::Dealer);
    let (mut client, mut server) = ends();
    let expected = Error::Mechanism { ours: "CURVE", theirs: "NULL".into() };
    assert_eq!(client.receive(&null, at(0)), Err(expected.clone()));
    assert_eq!(server.receive(&null, at(0)), Err(expected));
}

proptest! {
    #[test]
    fn whatever_is_sent_arrives_however_it_is_cut(
        sent in proptest::collection::vec((proptest::collection::vec((0..20_000_usize, any::<bool>()), 1..5), any::<bool>()), 1..8),
        pieces in proptest::collection::vec(1..5_000_usize, 1..5),
        streams in any::<bool>(),
        aes in any::<bool>(),
    ) {
        let mut server_config = with(server(), SocketType::Router);
        server_config.limits.stream_over_bytes = streams.then_some(1_000);
        server_config.mechanism = server_with(aes);
        let (mut client, mut server) = pair_of(ends_with(aes).0, End::new(server_config));
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        client.events.clear();
        server.events.clear();
        for (number, (frames, is_reply)) in sent.iter().enumerate() {
            let parts: Vec<Part> = frames.iter().map(|(length, outside)| {
                let bytes = Bytes::from(vec![number as u8; *length]);
                if *outside { Part::Outside(bytes) } else { Part::Inside(bytes) }
            }).collect();
            let whole: Vec<Bytes> = parts.iter().map(|part| part.bytes().clone()).collect();
            if *is_reply { server.send(&parts); to_client.push(whole) } else { client.send(&parts); to_server.push(whole) }
        }
        converse(&mut client, &mut server, &pieces, at(1)).unwrap();
        prop_assert_eq!(messages(&server.events), to_server);
        prop_assert_eq!(messages(&client.events), to_client);
    }
}
