//! Whatever is sent, however it is cut on the way, and however it is taken: it arrives identical and in order.

mod harness;

use bytes::Bytes;
use harness::toy_seal::toy_seal;
use harness::{End, Part, at, command, config, converse, frame, messages};
use proptest::prelude::*;
use towpath_zmtp::limits::DEDICATED_BUFFER_BYTES;
use towpath_zmtp::{Event, MechanismConfig, ProtocolDeviations, SocketType};

/// Sizes at which the wire or this library does something else, and any others.
fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => prop::sample::select(vec![
            0, 1, 2, 9, 254, 255, 256, 257, 8 * 1024 - 1, 8 * 1024, 8 * 1024 + 1, 64 * 1024 - 9, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1,
        ]),
        2 => 0_usize..600,
        1 => 0_usize..100_000,
    ]
}

fn parts() -> impl Strategy<Value = Part> {
    (sizes(), any::<u8>(), any::<bool>()).prop_map(|(size, seed, outside)| {
        let bytes: Bytes = (0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        if outside { Part::Outside(bytes) } else { Part::Inside(bytes) }
    })
}

fn traffic() -> impl Strategy<Value = Vec<Vec<Part>>> {
    prop::collection::vec(prop::collection::vec(parts(), 1..6), 0..8)
}

/// Sizes of the pieces in which bytes travel: often tiny, so that every header is cut somewhere.
fn pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1_usize..12, 1_usize..3000, 60_000_usize..200_000], 1..20)
        .prop_filter("some must be large, or a case takes long", |pieces| pieces.iter().any(|piece| *piece > 2000))
}

fn bytes(sent: &[Vec<Part>]) -> Vec<Vec<Bytes>> {
    sent.iter().map(|message| message.iter().map(|part| part.bytes().clone()).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn messages_arrive_identical_and_in_order(
        there in traffic(),
        back in traffic(),
        pieces in pieces(),
        stream_over in prop::option::of(prop::sample::select(vec![0_u64, 1, 255, 256, 8192, 65_535])),
        mechanism in 0..3,
    ) {
        let plain = mechanism == 1;
        let mut server = config(SocketType::Router);
        let mut client = config(SocketType::Dealer);
        server.limits.stream_over_bytes = stream_over;
        if plain {
            server.mechanism = MechanismConfig::PlainServer;
            client.mechanism = MechanismConfig::PlainClient { user: "ada".into(), password: "pw".into() };
        } else if mechanism == 2 {
            server.mechanism = toy_seal();
            client.mechanism = toy_seal();
        }
        let (mut server, mut client) = (End::new(server), End::new(client));
        // Half of it waits for the handshake, the rest comes when it is over.
        let (early, late) = there.split_at(there.len() / 2);
        early.iter().for_each(|message| client.send(message));
        converse(&mut client, &mut server, &pieces, at(0)).unwrap();
        if plain {
            prop_assert!(matches!(&server.events[..], [Event::Authenticate(_)]), "{:?}", server.events);
            prop_assert!(!client.connection.is_ready());
            server.connection.accept();
            converse(&mut client, &mut server, &pieces, at(1)).unwrap();
        }
        prop_assert!(client.connection.is_ready() && server.connection.is_ready());
        late.iter().for_each(|message| client.send(message));
        back.iter().for_each(|message| server.send(message));
        converse(&mut client, &mut server, &pieces, at(2)).unwrap();

        prop_assert_eq!(messages(&server.events), bytes(&there));
        prop_assert_eq!(messages(&client.events), bytes(&back));
        for end in [&mut server, &mut client] {
            prop_assert!(end.input.is_empty());
            prop_assert!(end.connection.outbox().is_idle());
            prop_assert_eq!(end.connection.outbox().queued(), Default::default());
            prop_assert_eq!(end.connection.deviations(), ProtocolDeviations::default());
        }
        prop_assert_eq!(client.connection.outbox().messages_staged(), there.len() as u64);
    }

    #[test]
    fn commands_between_frames_change_no_message(
        sent in prop::collection::vec(prop::collection::vec(sizes(), 1..5), 1..4),
        strangers in prop::collection::vec((1_usize..40, any::<bool>()), 1..30),
        stream_over in prop::option::of(Just(256_u64)),
        pieces in pieces(),
    ) {
        let mut wire = Vec::new();
        let mut expected = Vec::new();
        let mut strangers_in = strangers.iter().cycle();
        let (mut unknown, mut pings) = (0, 0);
        for message in &sent {
            let frames: Vec<Bytes> = message.iter().map(|size| Bytes::from(vec![b'm'; *size])).collect();
            for (index, body) in frames.iter().enumerate() {
                let (size, ping) = strangers_in.next().unwrap();
                if *ping {
                    wire.extend(command(b"PING", &vec![0; 2 + size % 17]));
                    pings += 1;
                } else {
                    wire.extend(command(b"SUBSCRIBE", &vec![7; *size]));
                    unknown += 1;
                }
                wire.extend(frame(u8::from(index + 1 < frames.len()), body));
            }
            expected.push(frames);
        }
        let mut config = config(SocketType::Router);
        config.limits.stream_over_bytes = stream_over;
        let mut end = End::ready(config, SocketType::Dealer);
        let mut rest = &wire[..];
        let mut answers = Vec::new();
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*piece));
            end.receive(now, at(0)).unwrap();
            while end.connection.is_waiting() {
                answers.extend(end.write_all());
                end.receive(b"", at(0)).unwrap();
            }
            answers.extend(end.write_all());
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(messages(&end.events), expected);
        prop_assert_eq!(end.connection.deviations(), ProtocolDeviations { unknown_commands: unknown, reserved_bits: 0 });
        let pongs = answers.windows(5).filter(|bytes| *bytes == b"\x04PONG").count();
        prop_assert_eq!(pongs, pings);
    }
}

#[test]
fn bytes_taken_past_the_decoder_count() {
    let mut config = config(SocketType::Router);
    config.limits.stream_over_bytes = Some(1000);
    let mut end = End::ready(config, SocketType::Dealer);
    let mut wire = frame(1, b"head");
    wire.extend(frame(1, &[b'b'; 5000]));
    let cut = wire.len() - 4000;
    end.receive(&wire[..cut], at(0)).unwrap();
    assert_eq!(end.connection.body_remaining(), 4000);
    assert!(!end.connection.event_is_due());
    end.connection.body_advance(4000);
    assert!(end.connection.event_is_due());
    end.receive(&frame(0, b"tail"), at(0)).unwrap();
    assert!(
        matches!(
            &end.events[..],
            [
                Event::BodyStart { length: 5000, more: true, .. },
                Event::BodyData(data),
                Event::BodyEnd { more: true },
                Event::Message { frames, continued: true },
            ] if data.len() == 1000 && frames.len() == 1
        ),
        "{:?}",
        end.events
    );
    assert!(!end.connection.event_is_due());
}

/// A frame that trickles must cost work in proportion to its bytes: each step may look at the header only. 8 MiB in 16-byte
/// pieces would take hours if every piece looked at all that is there.
#[test]
fn slow_frame_takes_no_more_memory_than_its_bytes() {
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    let wire = frame(0, &vec![b't'; 8 << 20]);
    for piece in wire.chunks(16) {
        end.receive(piece, at(0)).unwrap();
    }
    assert_eq!(messages(&end.events)[0][0].len(), 8 << 20);
}

#[test]
fn wanted_is_what_the_frame_lacks() {
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    let wire = frame(0, &[b'w'; 1000]);
    end.receive(&wire[..5], at(0)).unwrap();
    assert_eq!(end.connection.wanted(), 0, "the header is not whole yet");
    end.receive(&wire[5..109], at(0)).unwrap();
    assert_eq!(end.connection.wanted(), 900);
    end.receive(&wire[109..], at(0)).unwrap();
    assert_eq!(end.connection.wanted(), 0);
}

/// Anyone who keeps a frame keeps alive what it is a slice of: for a large one, that is little more than itself; and what waits for the rest
/// of a message, or of a frame, keeps nothing of what was read before it.
#[test]
fn large_frames_have_dedicated_buffers() {
    const READ: usize = 64 * 1024;
    let kept = |frame: Bytes| frame.try_into_mut().map_or(usize::MAX, |buffer| buffer.capacity());
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    let junk = frame(0, &[b'j'; 1_000_000]);
    for length in [DEDICATED_BUFFER_BYTES, DEDICATED_BUFFER_BYTES + 1, 300_000, 3_000_000] {
        for behind in [0, 1, 8, 40_000] {
            let large = frame(1, &vec![b'l'; length]);
            let wire =
                [&junk[..], &frame(1, b"before"), &large, &frame(1, b"after"), &frame(0, &vec![b'e'; behind + 1])];
            let wire = wire.concat();
            let (now, later) = wire.split_at(wire.len() - behind - 1);
            let mut now = now;
            while !now.is_empty() {
                let (piece, rest) =
                    now.split_at(end.connection.dedicated_space().unwrap_or(READ).min(READ).min(now.len()));
                end.receive(piece, at(0)).unwrap();
                now = rest;
            }
            assert!(end.input.capacity() <= 4 * READ, "{} bytes", end.input.capacity());
            end.receive(later, at(0)).unwrap();
            let Some(Event::Message { frames, .. }) = end.events.pop() else { panic!("no message") };
            end.events.clear();
            let mut frames = frames.into_iter();
            assert_eq!(kept(frames.next().unwrap()), "before".len());
            let capacity = kept(frames.next().unwrap());
            let most = if length <= 1024 * 1024 { length } else { 2 * length };
            assert!((length..=most).contains(&capacity), "{capacity} bytes for {length}");
            assert_eq!(kept(frames.next().unwrap()), "after".len());
        }
    }
    // All at once: a copy.
    end.receive(&[frame(1, b"x"), frame(0, &[b'l'; 70_000])].concat(), at(0)).unwrap();
    let Some(Event::Message { mut frames, .. }) = end.events.pop() else { panic!("no message") };
    assert_eq!(kept(frames.pop().unwrap()), 70_000);
}
