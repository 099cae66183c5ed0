//! Recordings of libzmq (see `golden/README.md`): we understand them, and send the same bytes ourselves.

#![allow(clippy::unwrap_used, reason = "a recording that can't be read fails the test")]

mod harness;

use bytes::Bytes;
use harness::{End, Part, at, config, curve, messages};
use std::path::Path;
use towpath_zmtp::{Command, Config, Credentials, Error, Event, Header, MechanismConfig, SocketType};

/// A part of a recording: its label, such as `message 0 5`, and its bytes.
struct Recorded {
    label: String,
    bytes: Vec<u8>,
}

impl Recorded {
    fn is_message(&self) -> bool {
        self.label.starts_with("message")
    }

    /// The frames' lengths of a message.
    fn lengths(&self) -> Vec<usize> {
        self.label.split(' ').skip(1).map(|length| length.parse().unwrap()).collect()
    }
}

fn recording(name: &str) -> Vec<Recorded> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut parts: Vec<Recorded> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(label) = line.strip_prefix("= ") {
            parts.push(Recorded { label: label.to_owned(), bytes: Vec::new() });
            continue;
        }
        let bytes = &mut parts.last_mut().expect("bytes before any label").bytes;
        for run in line.split(' ') {
            let (byte, count) = run.split_once('*').unwrap_or((run, "1"));
            let byte = u8::from_str_radix(byte, 16).unwrap();
            bytes.extend(std::iter::repeat_n(byte, count.parse().unwrap()));
        }
    }
    assert!(parts[0].label.starts_with("greeting 3.1"), "{name}");
    assert_eq!(parts[0].bytes.len(), 64);
    parts
}

/// Feeds a recording in pieces; a PLAIN server welcomes the user on the way.
fn receive(config: &Config, parts: &[Recorded], piece: usize) -> (End, Result<(), Error>) {
    let mut end = End::new(config.clone());
    for part in parts {
        for bytes in part.bytes.chunks(piece) {
            if let Err(error) = end.receive(bytes, at(0)) {
                return (end, Err(error));
            }
            if matches!(end.events.last(), Some(Event::Authenticate(_))) {
                end.connection.accept();
            }
        }
    }
    (end, Ok(()))
}

/// Understands a recording whole, byte by byte and in pieces between; returns the events.
fn understand(config: Config, name: &str) -> Vec<Event> {
    understand_as(|| config.clone(), name)
}

fn understand_as(config: impl Fn() -> Config, name: &str) -> Vec<Event> {
    let parts = recording(name);
    let lengths: Vec<Vec<usize>> = parts.iter().filter(|part| part.is_message()).map(Recorded::lengths).collect();
    let mut events = Vec::new();
    for piece in [usize::MAX, 1, 3, 1000] {
        let (end, outcome) = receive(&config(), &parts, piece);
        assert_eq!(outcome, Ok(()), "{name} in pieces of {piece}");
        assert!(end.input.is_empty());
        assert!(end.connection.deviations().is_empty());
        let received: Vec<Vec<usize>> =
            messages(&end.events).iter().map(|frames| frames.iter().map(Bytes::len).collect()).collect();
        assert_eq!(received, lengths, "{name} in pieces of {piece}");
        events = end.events;
    }
    events
}

fn peer_of(events: &[Event]) -> (SocketType, Option<Bytes>) {
    let ready = events.iter().find_map(|event| match event {
        Event::Ready(peer) => Some(peer),
        _ => None,
    });
    let ready = ready.expect("the handshake is over");
    assert_eq!(ready.version, (3, 1));
    (ready.socket_type, ready.metadata.find("Identity").cloned())
}

fn with(mechanism: MechanismConfig, socket_type: SocketType) -> Config {
    Config { mechanism, ..config(socket_type) }
}

fn ada() -> MechanismConfig {
    MechanismConfig::PlainClient { user: "ada".into(), password: "lovelace".into() }
}

#[test]
fn all_socket_types_are_understood() {
    use SocketType::{Dealer, Rep, Req, Router};
    let empty = Some(Bytes::new());
    for (ours, name, peer) in [
        (Router, "dealer_null.txt", (Dealer, empty.clone())),
        (Router, "dealer_identity_probe.txt", (Dealer, Some("towpath-7".into()))),
        (Dealer, "router_null.txt", (Router, empty.clone())),
        (Router, "req_null.txt", (Req, empty.clone())),
        (Router, "req_correlate.txt", (Req, empty)),
        (Dealer, "rep_null.txt", (Rep, None)),
    ] {
        assert_eq!(peer_of(&understand(config(ours), name)), peer, "{name}");
    }
}

#[test]
fn heartbeats_are_understood() {
    understand(config(SocketType::Router), "heartbeat_pong.txt");
    understand(config(SocketType::Router), "heartbeat_ping.txt");
    // The recorded PING asks for traffic within three seconds, and is answered.
    let (mut end, _) = receive(&config(SocketType::Router), &recording("heartbeat_ping.txt"), 1);
    assert_eq!(end.connection.deadline(), Some(at(3000)));
    assert!(end.write_all().ends_with(&harness::command(b"PONG", b"")));
}

#[test]
fn both_roles_of_plain_are_understood() {
    let events = understand(with(MechanismConfig::PlainServer, SocketType::Router), "plain_client.txt");
    assert!(
        matches!(&events[0], Event::Authenticate(Credentials::Plain { user, password }) if user == "ada" && **password == *b"lovelace")
    );
    assert_eq!(peer_of(&events).0, SocketType::Dealer);
    let events = understand(with(ada(), SocketType::Dealer), "plain_server.txt");
    assert_eq!(peer_of(&events).0, SocketType::Router);
}

/// The recordings were made with these keys and this randomness.
#[test]
fn both_roles_of_curve_are_understood() {
    let events = understand_as(|| with(curve::server(), SocketType::Router), "curve_client.txt");
    let key = curve::client_key().public_key();
    assert_eq!(events[0], Event::Authenticate(Credentials::Curve { key }));
    assert_eq!(peer_of(&events).0, SocketType::Dealer);
    let events = understand_as(|| with(curve::client(), SocketType::Dealer), "curve_server.txt");
    assert_eq!(peer_of(&events).0, SocketType::Router);
}

#[test]
fn our_curve_is_what_libzmq_took() {
    let named = Config { routing_id: "peer".into(), ..with(curve::client(), SocketType::Dealer) };
    for (config, theirs, ours) in [
        (with(curve::server(), SocketType::Router), "curve_client.txt", "curve_client_peer.txt"),
        (named, "curve_server.txt", "curve_server_peer.txt"),
    ] {
        let (mut end, outcome) = receive(&config, &recording(theirs), usize::MAX);
        assert_eq!(outcome, Ok(()));
        end.send(&[Part::Inside("hello".into())]);
        let recorded = recording(ours).iter().flat_map(|part| part.bytes.iter().copied()).collect::<Vec<u8>>();
        assert_eq!(end.write_all()[64..], recorded[64..]);
    }
}

/// Both sides with the second cipher, as another implementation speaks it with the same keys and randomness.
#[test]
fn our_second_cipher_is_the_one_of_another_implementation() {
    for (config, theirs, ours) in [
        (with(curve::server_with(true), SocketType::Router), "curve_aes_client.txt", "curve_aes_server.txt"),
        (with(curve::client_with(true), SocketType::Dealer), "curve_aes_server.txt", "curve_aes_client.txt"),
    ] {
        let (theirs, ours) = (recording(theirs), recording(ours));
        let (mut end, outcome) = receive(&config, &theirs, usize::MAX);
        assert_eq!(outcome, Ok(()));
        assert_eq!(end.connection.cipher(), Some("AES-256-GCM"));
        let texts = |part: &Recorded| part.lengths().into_iter().map(|length| vec![b'a'; length].into()).collect();
        let expected: Vec<Vec<Bytes>> = theirs.iter().filter(|part| part.is_message()).map(texts).collect();
        assert_eq!(messages(&end.events), expected);
        for part in ours.iter().filter(|part| part.is_message()) {
            end.send(&texts(part).into_iter().map(Part::Inside).collect::<Vec<_>>());
        }
        let recorded = ours.iter().flat_map(|part| part.bytes.iter().copied()).collect::<Vec<u8>>();
        assert_eq!(end.write_all()[64..], recorded[64..]);
    }
}

#[test]
fn misspelt_refusal_of_libzmq_is_understood() {
    let config = with(ada(), SocketType::Dealer);
    for piece in [usize::MAX, 1] {
        let (_, outcome) = receive(&config, &recording("plain_server_refuses.txt"), piece);
        assert_eq!(outcome, Err(Error::RefusedByPeer { reason: "400".into() }));
    }
}

/// Feeds the other side's recording and sends the messages of ours: the bytes must be those that libzmq sent.
fn speak(config: Config, ours: &str, theirs: &str) {
    let ours = recording(ours);
    let (mut end, outcome) = receive(&config, &recording(theirs), usize::MAX);
    assert_eq!(outcome, Ok(()));
    for message in ours.iter().filter(|part| part.is_message()) {
        end.send(&frames_of(&message.bytes));
    }
    let wire = end.write_all();
    let recorded = ours.iter().flat_map(|part| part.bytes.iter().copied()).collect::<Vec<u8>>();
    let (greeting, rest) = wire.split_at(64);
    let (their_greeting, their_rest) = recorded.split_at(64);
    assert_eq!(rest, their_rest);
    // The padding and as-server mean nothing: libzmq's servers say 0, ours say what they are.
    assert_eq!(greeting[0], their_greeting[0]);
    assert_eq!(greeting[9..32], their_greeting[9..32]);
    assert_eq!(greeting[33..], [0; 31]);
}

/// The frames of a recorded message.
fn frames_of(mut bytes: &[u8]) -> Vec<Part> {
    let mut frames = Vec::new();
    while let Some((header, size)) = Header::decode(bytes) {
        let (frame, rest) = bytes[size..].split_at(header.length as usize);
        frames.push(Part::Inside(Bytes::copy_from_slice(frame)));
        bytes = rest;
    }
    frames
}

#[test]
fn our_bytes_are_those_of_libzmq() {
    use SocketType::{Dealer, Rep, Req, Router};
    speak(config(Dealer), "dealer_null.txt", "router_null.txt");
    speak(config(Router), "router_null.txt", "dealer_null.txt");
    speak(config(Req), "req_null.txt", "rep_null.txt");
    speak(config(Rep), "rep_null.txt", "req_null.txt");
    speak(with(ada(), Dealer), "plain_client.txt", "plain_server.txt");
    speak(with(MechanismConfig::PlainServer, Router), "plain_server.txt", "plain_client.txt");
    let named = Config { routing_id: "towpath-7".into(), ..config(Dealer) };
    speak(named, "dealer_identity_probe.txt", "router_null.txt");
}

#[test]
fn our_pings_and_pongs_are_those_of_libzmq() {
    let recorded = |name: &str, nth: usize| recording(name)[nth].bytes.clone();
    let mut end = End::ready(
        Config { heartbeat: harness::heartbeat(100, 100, 3000), ..config(SocketType::Dealer) },
        SocketType::Router,
    );
    end.connection.on_timeout(at(100)).unwrap();
    assert_eq!(end.write_all(), recorded("heartbeat_ping.txt", 2));
    for (nth, context) in [(2, &b""[..]), (3, b"tick"), (4, b"0123456789abcdef")] {
        end.receive(&harness::command(b"PING", &[b"\0\0", context].concat()), at(100)).unwrap();
        assert_eq!(end.write_all(), recorded("heartbeat_pong.txt", nth));
    }
}

#[test]
fn all_recordings_are_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    let this_file = include_str!("golden.rs");
    let unread: Vec<&String> = names.iter().filter(|name| !this_file.contains(name.as_str())).collect();
    assert!(unread.is_empty() && !names.is_empty(), "{unread:?} should have a test here");
    for name in &names {
        for part in recording(name).iter().filter(|part| part.label.starts_with("command")) {
            let (header, size) = Header::decode(&part.bytes).unwrap();
            assert!(header.command && header.length as usize == part.bytes.len() - size);
            // Its commands have PLAIN's names, and other contents.
            if name.starts_with("curve") {
                continue;
            }
            let decoded = Command::decode(Bytes::copy_from_slice(&part.bytes[size..]));
            assert_eq!(decoded.is_err(), part.label.contains("malformed"), "{name}: {}", part.label);
        }
    }
}
