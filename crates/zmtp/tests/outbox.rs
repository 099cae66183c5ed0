//! The queue of one peer, seen from its driver.

mod harness;

use bytes::Bytes;
use harness::{End, Part, command, config, frame};
use towpath_zmtp::{Body, Outbox, Queued, SocketType, Transmit};

fn outside(length: u64) -> Body<&'static str> {
    Body::External { source: "file", length }
}

fn push(outbox: &mut Outbox<&'static str>, frames: impl IntoIterator<Item = Body<&'static str>>, tag: u64) {
    outbox.push_message(frames, tag);
}

/// Writes what is in memory and gives its length and whether more was said to follow.
fn write_bytes(outbox: &mut Outbox<&'static str>) -> (usize, bool) {
    let Transmit::Bytes { slices: [first, second], more_follows } = outbox.transmit() else {
        panic!("bytes were due");
    };
    let bytes = first.len() + second.len();
    outbox.advance(bytes);
    (bytes, more_follows)
}

#[test]
fn queued_messages_do_not_delay_the_handshake() {
    let mut end = End::new(config(SocketType::Dealer));
    end.send(&[Part::Inside("early".into())]);
    let outbox = end.connection.outbox();
    assert!(outbox.has_output());
    let Transmit::Bytes { slices, more_follows } = outbox.transmit() else { panic!("a greeting was due") };
    assert_eq!(slices[0].len() + slices[1].len(), 64);
    assert!(!more_follows, "nothing may follow before the peer's greeting");
    outbox.advance(64);
    assert!(!outbox.has_output() && !outbox.is_idle(), "the message waits");
    assert!(matches!(outbox.transmit(), Transmit::Idle));
}

#[test]
fn more_follows_only_if_more_is_staged() {
    let mut outbox = Outbox::default();
    outbox.open();
    push(&mut outbox, [outside(0)], 0);
    assert_eq!(write_bytes(&mut outbox), (2, false), "the empty file behind this header has no bytes");
    assert!(matches!(outbox.transmit(), Transmit::External { remaining: 0, .. }));
    assert_eq!(outbox.advance_external(0), Some("file"));
    assert!(outbox.is_idle());

    push(&mut outbox, [outside(1)], 0);
    assert_eq!(write_bytes(&mut outbox), (2, true));
    assert_eq!(outbox.advance_external(1), Some("file"));

    push(&mut outbox, [Body::Bytes(vec![0; 9000].into()), Body::Bytes(Bytes::new())], 0);
    assert_eq!(write_bytes(&mut outbox), (9009, true));
    assert_eq!(write_bytes(&mut outbox), (2, false));
    assert!(outbox.is_idle());
}

#[test]
fn a_reply_is_output_and_goes_between_frames() {
    let mut outbox = Outbox::default();
    outbox.open();
    push(&mut outbox, [outside(5), Body::Bytes("tail".into())], 0);
    write_bytes(&mut outbox);
    let pong = Bytes::from(command(b"PONG", b""));
    outbox.push_reply(pong.clone());
    outbox.advance_external(5);
    let Transmit::Bytes { slices: [first, _], .. } = outbox.transmit() else { panic!("bytes were due") };
    assert_eq!(first, [&pong[..], &frame(0, b"tail")].concat());
    let bytes = first.len();
    outbox.advance(bytes);
    assert!(!outbox.has_output());
    outbox.push_reply(pong);
    assert!(outbox.has_output() && !outbox.is_idle());
}

#[test]
fn sums_of_outside_bodies_may_pass_2_to_the_64() {
    let mut outbox = Outbox::default();
    outbox.open();
    let huge = (1 << 63) - 1;
    for tag in 0..5 {
        push(&mut outbox, [outside(huge)], tag);
    }
    assert_eq!(outbox.queued().external_bytes, u64::MAX);
    for tag in 1..4 {
        assert_eq!(outbox.remove_queued(tag), 1);
    }
    assert_eq!(outbox.queued().external_bytes, 2 * huge);
    write_bytes(&mut outbox);
    assert_eq!(outbox.queued().external_bytes, 2 * huge);
    outbox.advance_external(7);
    assert_eq!(outbox.queued().external_bytes, 2 * huge - 7);
    assert_eq!(outbox.clear(), Queued { messages: 1, memory_bytes: 64, external_bytes: huge });
    assert_eq!(outbox.queued(), Queued { messages: 0, memory_bytes: 0, external_bytes: huge - 7 });
}

#[test]
fn begun_message_is_finished() {
    let mut outbox = Outbox::default();
    outbox.open();
    for tag in [1, 1, 2] {
        push(&mut outbox, [outside(10), outside(20), Body::Bytes("end".into())], tag);
    }
    write_bytes(&mut outbox);
    assert_eq!(outbox.clear().messages, 2);
    assert_eq!(outbox.remove_queued(1), 0);
    assert_eq!(outbox.queued().messages, 1);
    assert_eq!(outbox.queued().external_bytes, 30);
    outbox.advance_external(10);
    assert_eq!(write_bytes(&mut outbox), (2, true));
    outbox.advance_external(20);
    assert_eq!(write_bytes(&mut outbox), (5, false));
    assert_eq!(outbox.queued(), Queued::default());
    assert_eq!(outbox.messages_staged(), 1);
}

#[test]
fn message_without_frames_is_ignored() {
    let mut outbox: Outbox<&'static str> = Outbox::default();
    outbox.open();
    push(&mut outbox, [], 0);
    assert!(outbox.is_idle());
    assert_eq!(outbox.advance_external(3), None);
    assert_eq!(outbox.queued(), Queued::default());
}

#[test]
fn small_messages_leave_in_large_writes() {
    let mut outbox = Outbox::default();
    outbox.open();
    let messages = 100_000;
    for _ in 0..messages {
        push(&mut outbox, [Body::Bytes("0123456789".into())], 0);
    }
    let (mut writes, mut bytes) = (0, 0);
    while outbox.has_output() {
        writes += 1;
        bytes += write_bytes(&mut outbox).0;
    }
    assert_eq!(bytes, messages * 12);
    assert!(writes <= bytes / (64 * 1024) + 1, "{writes} writes");
}
