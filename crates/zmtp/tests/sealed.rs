//! A mechanism that seals frames: nothing leaves unsealed, nothing is delivered that was not authentic.

mod harness;

use bytes::Bytes;
use harness::toy_seal::{OVERHEAD, toy_seal};
use harness::{End, Part, at, command, config, converse, frame, heartbeat, long_header, messages};
use towpath_zmtp::limits::{OPEN_INLINE_MAX, SEALED_FRAME_BYTES_MAX};
use towpath_zmtp::{Config, Error, Header, Outbox, SealJob, SocketType, Transmit};

fn sealed(socket_type: SocketType) -> Config {
    Config { mechanism: toy_seal(), ..config(socket_type) }
}

/// A client and a server behind their handshake.
fn pair(server: Config) -> (End, End) {
    let (mut client, mut server) = (End::new(sealed(SocketType::Dealer)), End::new(server));
    converse(&mut client, &mut server, &[usize::MAX], at(0)).expect("the handshake is right");
    assert!(client.connection.is_ready() && server.connection.is_ready());
    (client, server)
}

#[test]
fn no_plaintext_is_written() {
    let (mut client, mut server) = pair(sealed(SocketType::Router));
    let secret = Bytes::from(b"attack at dawn, ".repeat(2_000));
    for part in [Part::Inside(secret.slice(..40)), Part::Inside(secret.clone()), Part::Outside(secret.clone())] {
        client.send(&[part.clone(), Part::Inside("end".into())]);
        let wire = client.write_all();
        assert!(!wire.windows(8).any(|window| window == b"k at daw"));
        assert_eq!(wire.len(), part.bytes().len() + 3 + 2 * OVERHEAD + if part.bytes().len() > 200 { 11 } else { 4 });
        server.receive(&wire, at(1)).unwrap();
        assert_eq!(messages(&std::mem::take(&mut server.events)), [[part.bytes().clone(), "end".into()]]);
    }
}

#[test]
fn heartbeats_are_sealed() {
    let config = Config { heartbeat: heartbeat(100, 50, 0), ..sealed(SocketType::Router) };
    let (mut client, mut server) = pair(config);
    server.connection.on_timeout(at(100)).unwrap();
    let ping = server.write_all();
    assert!(!ping.windows(4).any(|window| window == b"PING"), "{ping:?}");
    client.receive(&ping, at(101)).unwrap();
    let pong = client.write_all();
    assert!(pong.len() > OVERHEAD && pong[0] == 0, "a command that looks like any other frame: {pong:?}");
    server.receive(&pong, at(102)).unwrap();
    server.connection.on_timeout(at(151)).unwrap();
}

#[test]
fn few_bytes_of_a_frame_that_never_ends_are_no_sign_of_life() {
    for (bytes, outcome) in [(40, Err(Error::HeartbeatTimeout)), (5_000, Ok(()))] {
        let config = Config { heartbeat: heartbeat(1_000, 500, 0), ..sealed(SocketType::Router) };
        let (_, mut server) = pair(config);
        // Its length was changed on the way: what the peer says from then on is a part of it.
        server.receive(&long_header(0, 1 << 20), at(900)).unwrap();
        server.connection.on_timeout(at(1_000)).unwrap();
        server.receive(&vec![0; bytes], at(1_400)).unwrap();
        assert_eq!(server.connection.on_timeout(at(1_600)), outcome);
    }
}

#[test]
fn a_reason_for_the_end_is_sealed_and_understood() {
    let (mut client, mut server) = pair(sealed(SocketType::Router));
    server.connection.send_error("enough");
    let wire = server.write_all();
    assert_eq!(client.receive(&wire, at(1)), Err(Error::RefusedByPeer { reason: "enough".into() }));
}

#[test]
fn changed_frames_end_the_connection_before_anything_of_them_is_delivered() {
    let mut config = sealed(SocketType::Router);
    config.limits.stream_over_bytes = Some(100);
    for at_byte in [9, 20, 5_000] {
        let (mut client, mut server) = pair(config.clone());
        server.events.clear();
        client.send(&[Part::Outside(vec![7; 10_000].into())]);
        let mut wire = client.write_all();
        wire[at_byte] ^= 1;
        assert_eq!(server.receive(&wire, at(1)), Err(Error::SealBroken));
        assert!(server.events.is_empty(), "{:?}", server.events);
    }
}

#[test]
fn repeated_frames_end_the_connection() {
    let (mut client, mut server) = pair(sealed(SocketType::Router));
    client.send(&[Part::Inside("once".into())]);
    let wire = client.write_all();
    server.receive(&wire, at(1)).unwrap();
    assert_eq!(server.receive(&wire, at(1)), Err(Error::SealBroken));
}

#[test]
fn plain_frames_end_the_connection() {
    for wire in [command(b"PING", b"\0\0"), frame(1, b"first of two")] {
        let (_, mut server) = pair(sealed(SocketType::Router));
        assert_eq!(server.receive(&wire, at(1)), Err(Error::NotSealed));
    }
    let (_, mut server) = pair(sealed(SocketType::Router));
    assert_eq!(server.receive(&frame(0, b"a message"), at(1)), Err(Error::SealBroken));
}

/// The bytes that leave without sealing anything elsewhere.
fn write_gathered(outbox: &mut Outbox<Bytes>) -> Vec<u8> {
    let mut wire = Vec::new();
    while let Transmit::Bytes { slices, .. } = outbox.transmit() {
        let bytes = slices.concat();
        outbox.advance(bytes.len());
        wire.extend(bytes);
    }
    wire
}

/// The numbers of the frames in `wire`.
fn numbers(mut wire: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some((header, size)) = Header::decode(wire) {
        let (frame, rest) = wire[size..].split_at(header.length as usize);
        numbers.push(u64::from_be_bytes(frame[8..16].try_into().expect("eight bytes")));
        wire = rest;
    }
    numbers
}

fn sealed_with(job: SealJob, body: u8) -> towpath_zmtp::Sealed {
    let mut buffer = vec![body; job.frame_bytes()];
    buffer[..job.body_at()].fill(0);
    job.seal(buffer)
}

#[test]
fn commands_leave_before_a_frame_until_it_is_sealed_and_then_behind_it() {
    let (mut client, mut server) = pair(sealed(SocketType::Router));
    client.send(&[Part::Inside(vec![1; 50_000].into()), Part::Outside("end".into())]);
    let outbox = client.connection.outbox();
    let (job, _) = outbox.seal_job().unwrap();
    assert!(outbox.seal_job().is_none(), "one at a time");
    assert!(outbox.has_output() && !outbox.may_progress() && outbox.awaits_seal());
    outbox.push_command(command(b"PONG", b"").into());
    assert!(outbox.may_progress());
    let mut wire = write_gathered(outbox);
    assert_eq!(numbers(&wire), [0]);
    let sealed = sealed_with(job, 1);
    // It has its number: what is said now comes behind it, and before the next frame.
    outbox.push_command(command(b"PONG", b"").into());
    assert!(outbox.has_output() && !outbox.may_progress());
    assert!(write_gathered(outbox).is_empty());
    outbox.sealed(sealed);
    outbox.stage();
    outbox.push_command(command(b"PONG", b"").into());
    outbox.stage();
    assert!(client.seal_one());
    wire.extend(client.write_all());
    assert_eq!(numbers(&wire), [0, 1, 2, 3, 4]);
    assert_eq!(
        wire[wire.len() - 2 - OVERHEAD - 3..][..2],
        [0, (OVERHEAD + 3) as u8],
        "the rest of the message is last"
    );
    server.receive(&wire, at(1)).unwrap();
    let whole = [Bytes::from(vec![1; 50_000]), "end".into()];
    assert!(messages(&std::mem::take(&mut server.events)) == [whole]);
}

#[test]
fn a_message_that_is_being_sealed_is_not_taken_back() {
    for clears in [false, true] {
        let (mut client, mut server) = pair(sealed(SocketType::Router));
        for message in [["first", "end"], ["other", "end"]] {
            client.send(&message.map(|text| Part::Outside(text.into())));
        }
        let outbox = client.connection.outbox();
        let (job, _) = outbox.seal_job().unwrap();
        match clears {
            true => assert_eq!(outbox.clear().messages, 1),
            false => assert_eq!(outbox.remove_queued(0), 1),
        }
        assert!(outbox.awaits_seal() && outbox.queued().messages == 1);
        assert!(outbox.sealed(sealed_with(job, b'1')).is_some() && outbox.may_progress());
        let wire = client.write_all();
        assert_eq!(numbers(&wire), [0, 1]);
        server.receive(&wire, at(1)).unwrap();
        assert_eq!(messages(&std::mem::take(&mut server.events)), [["11111", "end"]]);
    }
}

#[test]
fn a_frame_that_could_not_be_sealed_leaves_no_gap() {
    let (mut client, mut server) = pair(sealed(SocketType::Router));
    client.send(&[Part::Outside("a file that cannot be read".into())]);
    let (job, _) = client.connection.outbox().seal_job().unwrap();
    drop(job);
    client.connection.send_error("the disk failed");
    let wire = write_gathered(client.connection.outbox());
    assert_eq!(server.receive(&wire, at(1)), Err(Error::RefusedByPeer { reason: "the disk failed".into() }));
}

#[test]
fn limits_are_those_of_plain_bytes() {
    let mut config = sealed(SocketType::Router);
    (config.limits.message_bytes_max, config.limits.frames_max) = (100_000, 2);
    let (mut client, mut server) = pair(config.clone());
    client.send(&[Part::Inside(vec![1; 60_000].into()), Part::Inside(vec![2; 40_000].into())]);
    server.receive(&client.write_all(), at(1)).unwrap();
    client.send(&[Part::Inside(vec![1; 60_000].into()), Part::Inside(vec![2; 40_001].into())]);
    assert_eq!(server.receive(&client.write_all(), at(1)), Err(Error::MessageTooLarge { limit: 100_000 }));
    let (mut client, mut server) = pair(config.clone());
    client.send(&[Part::Inside("1".into()), Part::Inside("2".into()), Part::Inside("3".into())]);
    assert_eq!(server.receive(&client.write_all(), at(1)), Err(Error::TooManyFrames { limit: 2 }));
    // A header alone is enough to refuse a frame, streamed ones too: they are opened whole.
    config.limits.stream_over_bytes = Some(1_000);
    let (_, mut server) = pair(config);
    let limit = SEALED_FRAME_BYTES_MAX + OVERHEAD as u64;
    let refused = Err(Error::FrameTooLarge { announced: limit + 1, limit });
    assert_eq!(server.receive(&long_header(0, limit + 1), at(1)), refused);
}

#[test]
fn large_frames_are_opened_elsewhere_and_nothing_overtakes_them() {
    for (streams, is_changed) in [(false, false), (true, false), (false, true)] {
        let mut config = sealed(SocketType::Router);
        config.limits.stream_over_bytes = streams.then_some(1_000);
        let (mut client, mut server) = pair(config);
        server.connection.open_large_elsewhere();
        let large = Bytes::from(vec![7; OPEN_INLINE_MAX + 1]);
        let sent = [vec!["before".into(), large.clone(), "end".into()], vec!["behind".into()]];
        for message in &sent {
            client.send(&message.iter().cloned().map(Part::Inside).collect::<Vec<_>>());
        }
        let mut wire = client.write_all();
        if is_changed {
            wire[1_000] ^= 1;
        }
        server.input.extend_from_slice(&wire);
        assert_eq!(server.connection.input(&mut server.input, at(1)), Ok(None));
        assert!(server.connection.is_waiting() && !server.connection.event_is_due());
        let job = server.connection.open_job().expect("a frame to open");
        // It is counted although nobody has it.
        assert!(server.connection.reassembly_bytes() > large.len());
        assert!(server.connection.open_job().is_none() && server.connection.is_waiting());
        assert_eq!(server.connection.input(&mut server.input, at(1)), Ok(None));
        server.connection.opened(job.open());
        assert!(server.connection.event_is_due() && !server.connection.is_waiting());
        let outcome = server.receive(b"", at(1));
        if is_changed {
            assert_eq!(outcome, Err(Error::SealBroken));
            assert!(messages(&server.events).is_empty());
        } else {
            assert_eq!(outcome, Ok(()));
            assert_eq!(messages(&server.events), sent);
            assert_eq!(server.connection.reassembly_bytes(), 0);
        }
    }
}
