//! Peers that lie, stall or speak something else, one by one, each with the exact error.

mod harness;

use bytes::Bytes;
use harness::{End, at, command, config, frame, greeting, long_header, properties, ready};
use towpath_zmtp::{
    Config, Credentials, Error, Event, InboxLimits, MechanismConfig, ProtocolDeviations, SocketType, limits,
};

/// The result of these bytes at a ROUTER, fed at once. Fed byte by byte they must have the same result.
fn error_of(config: impl Fn() -> Config, bytes: &[u8]) -> Error {
    let mut end = End::new(config());
    let error = end.receive(bytes, at(0)).expect_err("this should have been refused");
    let mut slowly = End::new(config());
    let trickled = bytes.iter().find_map(|byte| slowly.receive(&[*byte], at(0)).err());
    assert_eq!(trickled.as_ref(), Some(&error), "byte by byte");
    error
}

fn router() -> Config {
    config(SocketType::Router)
}

fn plain_server() -> Config {
    Config { mechanism: MechanismConfig::PlainServer, ..router() }
}

fn plain_client() -> Config {
    let mechanism = MechanismConfig::PlainClient { user: "ada".into(), password: "pw".into() };
    Config { mechanism, ..config(SocketType::Dealer) }
}

fn after_greeting(bytes: &[u8]) -> Vec<u8> {
    [&greeting(b"NULL", 1)[..], bytes].concat()
}

fn after_plain_greeting(bytes: &[u8]) -> Vec<u8> {
    [&greeting(b"PLAIN", 1)[..], bytes].concat()
}

fn after_handshake(bytes: &[u8]) -> Vec<u8> {
    [harness::handshake(SocketType::Dealer), bytes.to_vec()].concat()
}

fn malformed(command: &'static str, why: &'static str) -> Error {
    Error::MalformedCommand { command, why }
}

#[test]
fn other_protocols_are_named_by_their_first_bytes() {
    assert_eq!(error_of(router, b"GET / HTTP/1.1\r\n"), Error::OtherProtocol { what: "a web client (HTTP)" });
    assert_eq!(error_of(router, b"\x16\x03\x01"), Error::OtherProtocol { what: "a TLS client" });
    assert_eq!(error_of(router, &[0xff; 64]), Error::Mechanism { ours: "NULL", theirs: "\\xff".repeat(20) });
}

#[test]
fn zmtp_1_and_2_are_refused_by_name() {
    // libzmq 2.x: an empty identity in a short frame; one of 300 bytes in the long form.
    assert_eq!(error_of(router, &[1, 0]), Error::NotZmtp { at: 0, found: 1 });
    assert_eq!(error_of(router, &[0xff, 0, 0, 0, 0, 0, 0, 1, 0x2d, 0, 9]), Error::NotZmtp { at: 9, found: 0 });
    // libzmq 3.x sends ten bytes, reads that we speak 3.x, and says revision 1, which is ZMTP 2.0.
    assert_eq!(error_of(router, b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\0\0"), Error::OldVersion { major: 2 });
    assert_eq!(error_of(router, b"\xff\0\0\0\0\0\0\0\x01\x7f\0"), Error::OldVersion { major: 1 });
}

#[test]
fn other_minor_versions_are_accepted() {
    for (major, minor) in [(3, 0), (3, 1), (3, 9), (4, 0), (255, 255)] {
        let mut bytes = harness::handshake(SocketType::Dealer);
        bytes[10..12].copy_from_slice(&[major, minor]);
        bytes[1..9].copy_from_slice(b"anything");
        bytes[32] = 1; // as-server means nothing: libzmq's servers send 0
        let mut end = End::new(router());
        end.receive(&bytes, at(0)).unwrap();
        assert!(matches!(&end.events[..], [Event::Ready(peer)] if peer.version == (major, minor)));
    }
}

#[test]
fn error_names_both_mechanisms() {
    let theirs = |theirs: &str| Error::Mechanism { ours: "NULL", theirs: theirs.into() };
    assert_eq!(error_of(router, &greeting(b"CURVE", 1)), theirs("CURVE"));
    assert_eq!(error_of(router, &greeting(b"", 1)), theirs(""));
    assert_eq!(error_of(router, &greeting(b"NULL\0x", 1)), theirs("NULL"));
    assert_eq!(error_of(router, &greeting(b"\x1b[2Jwhatever", 1)), theirs("\\x1b[2Jwhatever"));
    let plain = Error::Mechanism { ours: "PLAIN", theirs: "NULL".into() };
    assert_eq!(error_of(plain_server, &greeting(b"NULL", 1)), plain);
}

#[test]
fn a_message_in_the_handshake_is_refused_by_its_header() {
    let wanted = Error::UnexpectedInHandshake { found: "a message".into(), wanted: "a command" };
    // The header alone is enough: nothing that it promises is waited for or held.
    for header in [&frame(0, b"")[..], &[0, 200], &long_header(1, 60 << 20), &long_header(0, u64::MAX)] {
        assert_eq!(error_of(router, &after_greeting(header)), wanted);
        assert_eq!(error_of(plain_server, &after_plain_greeting(header)), wanted);
    }
}

#[test]
fn lengths_near_2_to_the_64_are_refused() {
    for length in [1 << 63, u64::MAX, u64::MAX - 8, (1 << 63) - 1, limits::MESSAGE_BYTES_DEFAULT + 1] {
        let limit = limits::MESSAGE_BYTES_DEFAULT;
        let announced = length;
        let error = error_of(router, &after_handshake(&long_header(0, length)));
        assert_eq!(error, Error::FrameTooLarge { announced, limit });
        let error = error_of(router, &after_handshake(&long_header(4, length)));
        assert_eq!(error, Error::FrameTooLarge { announced, limit: limits::COMMAND_BYTES_MAX });
        let error = error_of(router, &after_greeting(&long_header(4, length)));
        assert_eq!(error, Error::FrameTooLarge { announced, limit: limits::HANDSHAKE_COMMAND_BYTES_MAX });
    }
}

#[test]
fn frames_are_limited_even_without_configured_limits() {
    let unlimited = |stream_over_bytes| {
        move || Config {
            limits: InboxLimits {
                message_bytes_max: u64::MAX,
                frames_max: usize::MAX,
                stream_over_bytes,
                streamed_frame_bytes_max: u64::MAX,
            },
            ..router()
        }
    };
    for length in [1 << 63, u64::MAX] {
        let wanted = Error::FrameTooLarge { announced: length, limit: limits::FRAME_BYTES_MAX };
        assert_eq!(error_of(unlimited(None), &after_handshake(&long_header(0, length))), wanted);
        assert_eq!(error_of(unlimited(Some(0)), &after_handshake(&long_header(0, length))), wanted);
    }
    let mut end = End::ready(unlimited(None)(), SocketType::Dealer);
    end.receive(&[frame(1, b"x"), long_header(0, (1 << 63) - 1)].concat(), at(0)).unwrap();
    assert!(end.events.is_empty(), "it waits, and holds what came");
    assert!(end.input.len() <= 9 && end.input.capacity() < 1024);
}

#[test]
fn headers_alone_allocate_nothing() {
    let mut end = End::ready(router(), SocketType::Dealer);
    end.receive(&long_header(0, limits::MESSAGE_BYTES_DEFAULT), at(0)).unwrap();
    assert!(end.events.is_empty());
    assert!(end.input.capacity() < 1024);
}

#[test]
fn messages_are_limited_in_frames_and_bytes() {
    let small =
        || Config { limits: InboxLimits { message_bytes_max: 1000, frames_max: 5, ..Default::default() }, ..router() };
    let endless = after_handshake(&frame(1, b"").repeat(6));
    assert_eq!(error_of(small, &endless), Error::TooManyFrames { limit: 5 });
    let just_right = [frame(1, b"").repeat(4), frame(0, b"")].concat();
    let mut end = End::ready(small(), SocketType::Dealer);
    end.receive(&just_right.repeat(3), at(0)).unwrap();
    assert_eq!(end.events.len(), 3, "the count begins anew with each message");

    let adding_up = after_handshake(&[frame(1, &[1; 600]), frame(1, &[1; 400]), frame(0, &[1; 1])].concat());
    assert_eq!(error_of(small, &adding_up), Error::MessageTooLarge { limit: 1000 });
    let at_once = after_handshake(&long_header(0, 1001));
    assert_eq!(error_of(small, &at_once), Error::FrameTooLarge { announced: 1001, limit: 1000 });
}

#[test]
fn streamed_frames_are_limited() {
    let limits =
        InboxLimits { frames_max: 3, stream_over_bytes: Some(10), streamed_frame_bytes_max: 100, ..Default::default() };
    let streaming = || Config { limits, ..router() };
    let error = error_of(streaming, &after_handshake(&long_header(0, 101)));
    assert_eq!(error, Error::FrameTooLarge { announced: 101, limit: 100 });
    let endless = after_handshake(&frame(1, &[7; 11]).repeat(4));
    assert_eq!(error_of(streaming, &endless), Error::TooManyFrames { limit: 3 });
}

#[test]
fn errors_name_malformed_commands() {
    let body = "its name is empty or longer than the frame";
    for (bytes, error) in [
        (frame(4, b""), malformed("unnamed", "an empty frame")),
        (frame(4, b"\0"), malformed("unnamed", body)),
        (frame(4, b"\x05REA"), malformed("unnamed", body)),
        (frame(4, b"\xffREADY"), malformed("unnamed", body)),
        (command(b"ERROR", b""), malformed("ERROR", "it is cut off")),
        (command(b"ERROR", b"\x09short"), malformed("ERROR", "a string is longer than the command")),
    ] {
        assert_eq!(error_of(router, &after_greeting(&bytes)), error);
        assert_eq!(error_of(router, &after_handshake(&bytes)), error);
    }
    for bytes in [command(b"PING", b""), command(b"PING", b"\0")] {
        assert_eq!(error_of(router, &after_handshake(&bytes)), malformed("PING", "its TTL is cut off"));
    }
}

#[test]
fn errors_name_malformed_metadata() {
    let name = "a property's name is empty or longer than the command";
    let value = "a property's value is longer than the command";
    for (data, why) in [
        (&b"\0"[..], name),
        (b"\0\0\0\0\0", name),
        (b"\x0bSocket", name),
        (b"\x0bSocket-Type", "a property's length is cut off"),
        (b"\x0bSocket-Type\0\0\0", "a property's length is cut off"),
        (b"\x0bSocket-Type\0\0\0\x06DEAL", value),
        (b"\x0bSocket-Type\xff\xff\xff\xffDEALER", value),
        (b"\x02a\n\0\0\0\0", "a property's name has bytes that are not printable"),
    ] {
        assert_eq!(error_of(router, &after_greeting(&command(b"READY", data))), malformed("READY", why), "{data:?}");
    }
    let many = properties(&[(b"X-A", b"")]).repeat(limits::METADATA_PROPERTIES_MAX + 1);
    assert_eq!(error_of(router, &after_greeting(&command(b"READY", &many))), malformed("READY", "over 64 properties"));
}

#[test]
fn socket_type_is_required_and_must_be_compatible() {
    let error = |of: &[(&[u8], &[u8])]| error_of(router, &after_greeting(&ready(of)));
    assert_eq!(error(&[]), malformed("READY", "no Socket-Type"));
    for theirs in ["ROUTE", "dealer", "SUB", "REP", "", "DEALER\0"] {
        let printable = theirs.replace('\0', "\\x00");
        let wanted = Error::IncompatibleSockets { ours: "ROUTER", theirs: printable };
        assert_eq!(error(&[(b"Socket-Type", theirs.as_bytes())]), wanted);
    }
    let with_identity = |identity: &[u8]| error(&[(b"Socket-Type", b"DEALER"), (b"Identity", identity)]);
    assert_eq!(with_identity(&[1; 256]), malformed("READY", "an Identity of over 255 bytes"));
    let reserved = malformed("READY", "an Identity that begins with 0, which is for ids that a ROUTER makes up");
    assert_eq!(with_identity(b"\0\0\0\0\x01"), reserved);
    assert_eq!(with_identity(b"\0"), reserved);

    for identity in [&b""[..], b"x", &[0xff; 255]] {
        let mut end = End::new(router());
        // Any case of the names is understood.
        end.receive(&after_greeting(&ready(&[(b"SOCKET-type", b"REQ"), (b"identity", identity)])), at(0)).unwrap();
        assert!(matches!(&end.events[..], [Event::Ready(peer)] if peer.routing_id == identity));
    }
}

#[test]
fn every_pair_of_socket_types_is_as_rfc_28_says() {
    use SocketType::{Dealer, Rep, Req, Router};
    let legal = [(Req, Rep), (Req, Router), (Rep, Dealer), (Dealer, Dealer), (Dealer, Router), (Router, Router)];
    for ours in [Req, Rep, Dealer, Router] {
        for theirs in [Req, Rep, Dealer, Router] {
            let fits = legal.contains(&(ours, theirs)) || legal.contains(&(theirs, ours));
            let mut end = End::new(config(ours));
            let outcome = end.receive(&harness::handshake(theirs), at(0));
            assert_eq!(outcome.is_ok(), fits, "{ours} with {theirs}");
            // A peer that doesn't fit receives ERROR.
            let wire = end.write_all();
            let sent_error = wire.windows(6).any(|bytes| bytes == b"\x05ERROR");
            assert_eq!(sent_error, !fits, "{ours} with {theirs}");
        }
    }
}

#[test]
fn handshake_commands_must_come_in_order() {
    let unexpected = |found: &str, wanted| Error::UnexpectedInHandshake { found: found.into(), wanted };
    for name in ["HELLO", "PING", "PONG", "SUBSCRIBE", "WELCOME"] {
        let data: &[u8] = match name {
            "HELLO" => b"\0\0",
            "PING" => b"\0\0",
            _ => b"",
        };
        let bytes = after_greeting(&command(name.as_bytes(), data));
        assert_eq!(error_of(router, &bytes), unexpected(name, "READY"));
    }
    let metadata = properties(&[(b"Socket-Type", b"DEALER")]);
    let early = after_plain_greeting(&command(b"INITIATE", &metadata));
    assert_eq!(error_of(plain_server, &early), unexpected("INITIATE", "HELLO"));
    let ready_first = after_plain_greeting(&command(b"READY", &metadata));
    assert_eq!(error_of(plain_server, &ready_first), unexpected("READY", "HELLO"));
    assert_eq!(error_of(plain_client, &ready_first), unexpected("READY", "WELCOME"));
    let twice = after_plain_greeting(&command(b"WELCOME", b"").repeat(2));
    assert_eq!(error_of(plain_client, &twice), unexpected("WELCOME", "READY"));
    // Two clients, or two servers that both wait, never get anywhere.
    let hello = after_plain_greeting(&command(b"HELLO", b"\x01a\x01b"));
    assert_eq!(error_of(plain_client, &hello), unexpected("HELLO", "WELCOME"));

    // Credentials are asked about once; nothing more is taken before the answer.
    let mut end = End::new(plain_server());
    end.receive(&hello, at(0)).unwrap();
    assert!(
        matches!(&end.events[..], [Event::Authenticate(Credentials::Plain { user, password })] if user == "a" && **password == *b"b")
    );
    end.receive(&command(b"HELLO", b"\x01a\x01c"), at(0)).unwrap();
    assert!(end.connection.is_waiting() && end.events.len() == 1);
    end.connection.accept();
    assert_eq!(end.receive(b"", at(0)), Err(unexpected("HELLO", "INITIATE")));
}

#[test]
fn plain_client_that_does_not_wait_for_welcome_gets_the_verdict_first() {
    let metadata = properties(&[(b"Socket-Type", b"DEALER")]);
    let hasty = [command(b"HELLO", b"\x01a\x01b"), command(b"INITIATE", &metadata), frame(0, b"hello")].concat();
    for accepted in [false, true] {
        let mut end = End::new(plain_server());
        end.receive(&after_plain_greeting(&hasty), at(0)).unwrap();
        assert!(matches!(end.events[..], [Event::Authenticate(_)]), "{:?}", end.events);
        if accepted {
            end.connection.accept();
            end.receive(b"", at(0)).unwrap();
            assert!(matches!(&end.events[1..], [Event::Ready(_), Event::Message { .. }]), "{:?}", end.events);
        } else {
            end.connection.refuse();
            assert!(end.write_all().ends_with(&command(b"ERROR", b"\x03400")), "it receives no ERROR");
        }
    }
}

#[test]
fn errors_name_malformed_plain_commands() {
    for (data, why) in [
        (&b""[..], "it is cut off"),
        (b"\x01", "a string is longer than the command"),
        (b"\x01a", "it is cut off"),
        (b"\x01a\x05pass", "a string is longer than the command"),
        (b"\x01a\x01bc", "bytes after the password"),
    ] {
        let bytes = after_plain_greeting(&command(b"HELLO", data));
        assert_eq!(error_of(plain_server, &bytes), malformed("HELLO", why));
    }
    let bytes = after_plain_greeting(&command(b"WELCOME", b"x"));
    assert_eq!(error_of(plain_client, &bytes), malformed("WELCOME", "it has a body"));

    let mut end = End::new(plain_server());
    end.receive(&after_plain_greeting(&command(b"HELLO", b"\x01a\x01b")), at(0)).unwrap();
    end.connection.accept();
    let error = end.receive(&command(b"INITIATE", &properties(&[(b"Identity", b"a")])), at(0)).unwrap_err();
    assert_eq!(error, malformed("INITIATE", "no Socket-Type"));
    let wire = end.write_all();
    assert!(!wire.windows(6).any(|bytes| bytes == b"\x05READY"), "who doesn't fit learns nothing of this side");
}

#[test]
fn refused_user_learns_the_status() {
    let mut end = End::new(plain_server());
    end.receive(&after_plain_greeting(&command(b"HELLO", b"\x01a\x01b")), at(0)).unwrap();
    end.write_all();
    assert_eq!(end.connection.refuse(), Error::AuthenticationRefused { status: "400" });
    assert_eq!(end.write_all(), command(b"ERROR", b"\x03400"));
    assert!(!end.connection.is_ready());
}

#[test]
fn a_refusal_is_understood_in_both_spellings() {
    let refused = |reason: &str| Error::RefusedByPeer { reason: reason.into() };
    // As RFC 24 has it, and as libzmq 4.3 spells it.
    for bytes in [command(b"ERROR", b"\x03400"), frame(4, b"^RROR\x03400")] {
        assert_eq!(error_of(plain_client, &after_plain_greeting(&bytes)), refused("400"));
        let welcomed = [command(b"WELCOME", b""), bytes].concat();
        assert_eq!(error_of(plain_client, &after_plain_greeting(&welcomed)), refused("400"));
    }
    assert_eq!(error_of(router, &after_greeting(&command(b"ERROR", b"\x04no\x1b!"))), refused("no\\x1b!"));
    // Bytes after the reason are space for growth.
    assert_eq!(error_of(router, &after_handshake(&command(b"ERROR", b"\x00more"))), refused(""));
    // A name of 94 bytes that is really there is no ERROR.
    let long = [&b"RROR\x03400"[..], &[b'x'; 86]].concat();
    let error = error_of(router, &after_greeting(&command(&long, b"")));
    assert!(matches!(error, Error::UnexpectedInHandshake { wanted: "READY", .. }), "{error}");
}

#[test]
fn reserved_bits_and_unknown_commands_are_counted_once_and_ignored() {
    let mut config = router();
    config.limits.stream_over_bytes = Some(100);
    let mut end = End::ready(config, SocketType::Dealer);
    let bytes = [
        frame(0xf9, b"a"),
        frame(0x88, &[7; 300]),
        command(b"UNKNOWN", b"whatever"),
        frame(0xfc, b"\x07UNKNOWN"),
        frame(0x05, b"\x04PONG"), // a command isn't part of a message
        frame(0, b"b"),
    ]
    .concat();
    for byte in bytes {
        end.receive(&[byte], at(0)).unwrap();
    }
    assert_eq!(end.connection.deviations(), ProtocolDeviations { unknown_commands: 2, reserved_bits: 4 });
    let messages = harness::messages(&end.events);
    assert_eq!(messages, [vec![Bytes::from_static(b"a"), Bytes::from(vec![7; 300])], vec![Bytes::from_static(b"b")]]);
}

#[test]
fn first_messages_of_probes_are_ordinary_messages() {
    let mut end = End::ready(router(), SocketType::Dealer);
    end.receive(&[frame(0, b""), frame(1, b""), frame(0, b"hello")].concat(), at(0)).unwrap();
    assert_eq!(harness::messages(&end.events), [vec![Bytes::new()], vec![Bytes::new(), "hello".into()]]);
}

#[test]
fn long_forms_of_short_lengths_are_accepted() {
    let mut end = End::ready(router(), SocketType::Dealer);
    end.receive(&[&long_header(1, 0)[..], &long_header(0, 3), b"abc"].concat(), at(0)).unwrap();
    assert_eq!(harness::messages(&end.events), [vec![Bytes::new(), "abc".into()]]);
}

#[test]
fn endless_pings_without_reading_take_no_memory() {
    let mut end = End::ready(router(), SocketType::Dealer);
    end.receive(&command(b"PING", b"\0\0context").repeat(1000), at(0)).unwrap();
    let outbox = end.connection.outbox_ref();
    assert_eq!(outbox.replies_waiting(), limits::REPLIES_WAITING_MAX);
    assert!(outbox.queued().memory_bytes < 1024);
    // The rest stays where it is, and is answered when there is space.
    assert!(end.connection.is_waiting() && !end.input.is_empty());
    let mut wire = Vec::new();
    while end.connection.is_waiting() {
        wire.extend(end.write_all());
        end.receive(b"", at(0)).unwrap();
    }
    wire.extend(end.write_all());
    assert!(wire == command(b"PONG", b"context").repeat(1000) && end.input.is_empty());
}

#[test]
fn a_password_does_not_show_in_debug_output() {
    let config = plain_client();
    assert!(!format!("{config:?}").contains("pw"));
    assert!(!format!("{:?}", End::new(config).connection).contains("pw"));
    // Nor one that a client has shown.
    let shown =
        Event::Authenticate(Credentials::Plain { user: "ada".into(), password: bytes::Bytes::from("pw").into() });
    assert!(!format!("{shown:?}").contains("pw"));
}

/// Our own faults, absence and settings are not misbehaviour.
#[test]
fn misbehaviour_differs_from_failure() {
    for (error, misbehaviour) in [
        (error_of(router, b"GET "), true),
        (error_of(router, &after_handshake(&long_header(0, u64::MAX))), true),
        (error_of(router, &after_handshake(&frame(4, b""))), true),
        (error_of(router, &greeting(b"CURVE", 1)), false),
        (error_of(router, &harness::handshake(SocketType::Rep)), false),
        (error_of(router, &after_greeting(&command(b"ERROR", b"\x02no"))), false),
        (Error::HandshakeTimeout, false),
        (Error::HeartbeatTimeout, false),
        (Error::TtlExpired, false),
    ] {
        assert_eq!(error.is_peer_misbehaviour(), misbehaviour, "{error}");
    }
}
