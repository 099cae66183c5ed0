use super::*;

/// Writes everything out, `step` bytes at a time, as a driver would.
fn drain(outbox: &mut Outbox<&'static [u8]>, step: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    loop {
        match outbox.transmit() {
            Transmit::Idle => return wire,
            Transmit::Bytes { slices, .. } => {
                let all = slices.concat();
                let now = step.min(all.len());
                wire.extend_from_slice(&all[..now]);
                outbox.advance(now);
            }
            Transmit::External { source, position, remaining } => {
                let now = (step as u64).min(remaining);
                wire.extend_from_slice(&source[position as usize..(position + now) as usize]);
                outbox.advance_external(now);
            }
        }
    }
}

#[test]
fn an_external_body_follows_its_header_and_waits_for_nothing_else() {
    let file: &'static [u8] = b"from a file";
    for step in [1, 3, 1000] {
        let mut outbox = Outbox::default();
        outbox.open();
        let frames = [
            Body::Bytes(Bytes::from_static(b"head")),
            Body::External { source: file, length: 11 },
            Body::Bytes(Bytes::from(vec![b'x'; 9000])),
        ];
        outbox.push_message(frames, 0);
        assert_eq!((outbox.queued().messages, outbox.messages_unwritten()), (1, 1));
        assert_eq!(outbox.queued().external_bytes, 11);
        let wire = drain(&mut outbox, step);
        assert_eq!(outbox.messages_unwritten(), 0);
        let mut expected = b"\x01\x04head\x01\x0bfrom a file\x02\x00\x00\x00\x00\x00\x00\x23\x28".to_vec();
        expected.extend_from_slice(&[b'x'; 9000]);
        assert_eq!(wire, expected);
        assert!(outbox.is_idle());
        assert_eq!(outbox.queued(), Queued::default());
    }
}

#[test]
fn a_command_goes_between_the_frames_of_a_message() {
    let mut outbox: Outbox<&'static [u8]> = Outbox::default();
    outbox.open();
    let frames = [Body::External { source: &b"ab"[..], length: 2 }, Body::Bytes(Bytes::from_static(b"c"))];
    outbox.push_message(frames, 0);
    let Transmit::Bytes { slices, more_follows: true } = outbox.transmit() else { panic!("a header was due") };
    let header = slices[0].len();
    outbox.advance(header);
    outbox.push_command(Bytes::from_static(b"\x04\x05\x04PONG"));
    outbox.advance_external(2);
    assert_eq!(drain(&mut outbox, 100), b"\x04\x05\x04PONG\x00\x01c");
}

#[test]
fn message_counts_as_unwritten_until_its_last_byte() {
    let mut outbox: Outbox<&'static [u8]> = Outbox::default();
    outbox.open();
    let bytes = |length: usize| Body::Bytes(Bytes::from(vec![b'x'; length]));
    for frames in [vec![bytes(1)], vec![bytes(2), bytes(9000)], vec![bytes(3), bytes(4)]] {
        outbox.push_message(frames, 0);
    }
    let mut seen = vec![outbox.messages_unwritten()];
    while let Transmit::Bytes { .. } = outbox.transmit() {
        outbox.advance(1);
        seen.push(outbox.messages_unwritten());
    }
    // The first two are written together.
    seen.dedup();
    assert_eq!(seen, [3, 1, 0]);
    outbox.push_command(Bytes::from_static(b"\x04\x05\x04PONG"));
    outbox.transmit();
    assert_eq!(outbox.messages_unwritten(), 0, "a command is no message");
}

#[test]
fn only_queued_messages_are_removed() {
    let mut outbox: Outbox<&'static [u8]> = Outbox::default();
    outbox.open();
    for tag in [7, 7, 8, 7] {
        let frames = [Body::External { source: &b"ab"[..], length: 2 }, Body::Bytes(Bytes::from_static(b"c"))];
        outbox.push_message(frames, tag);
    }
    let Transmit::Bytes { slices, .. } = outbox.transmit() else { panic!("a header was due") };
    let header = slices[0].len();
    outbox.advance(header);
    assert_eq!(outbox.remove_queued(7), 2);
    outbox.advance_external(2);
    assert_eq!(drain(&mut outbox, 100), b"\x00\x01c\x01\x02ab\x00\x01c");
    assert_eq!(outbox.queued(), Queued::default());
}
