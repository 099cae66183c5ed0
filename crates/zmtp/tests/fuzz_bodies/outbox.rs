//! A driver and an application that do anything with an outbox: the bytes are their script.

use super::harness::{End, command, config, messages};
use bytes::Bytes;
use towpath_zmtp::{Body, Header, Outbox, Queued, SocketType, Transmit};

const TAGS: usize = 4;

/// Sizes of bodies around which something changes.
const SIZES: [usize; 8] = [0, 1, 255, 256, 8 * 1024, 8 * 1024 + 1, 70_000, 33];

pub fn run(data: &[u8]) {
    let mut script = data.iter().copied();
    let mut play = Play::default();
    while let Some(step) = script.next() {
        play.step(step, &mut script);
    }
    play.finish();
}

#[derive(Default)]
struct Play {
    outbox: Outbox<Bytes>,
    /// Each message pushed: its tag and frames. The first frame of each is its number.
    pushed: Vec<(usize, Vec<Bytes>)>,
    removed: usize,
    removed_of_tag: [usize; TAGS],
    commands: u64,
    replies: u64,
    wire: Vec<u8>,
}

impl Play {
    fn step(&mut self, step: u8, script: &mut impl Iterator<Item = u8>) {
        let mut operand = || script.next().unwrap_or(0);
        match step % 8 {
            0 => {
                let number = self.pushed.len() as u32;
                let mut frames = vec![Bytes::copy_from_slice(&number.to_be_bytes())];
                let mut bodies = vec![Body::Bytes(frames[0].clone())];
                for _ in 0..(step >> 3) % 4 {
                    let shape = operand();
                    let bytes = Bytes::from(vec![shape; SIZES[usize::from(shape) % SIZES.len()]]);
                    let length = bytes.len() as u64;
                    let outside = shape & 0x80 != 0;
                    frames.push(bytes.clone());
                    bodies.push(if outside { Body::External { source: bytes, length } } else { Body::Bytes(bytes) });
                }
                let tag = usize::from(step >> 5) % TAGS;
                self.outbox.push_message(bodies, tag as u64);
                self.pushed.push((tag, frames));
            }
            1 => {
                self.outbox.push_command(command(b"COMMAND", b"").into());
                self.commands += 1;
            }
            2 => {
                self.outbox.push_reply(command(b"PONG", b"").into());
                self.replies += 1;
            }
            3 | 4 => self.write(usize::from(operand()) * if step % 8 == 3 { 1 } else { 257 }),
            5 => {
                let tag = usize::from(step >> 3) % TAGS;
                let removed = self.outbox.remove_queued(tag as u64);
                self.removed += removed;
                self.removed_of_tag[tag] += removed;
            }
            6 => {
                let before = self.outbox.queued();
                let removed = self.outbox.clear();
                let after = self.outbox.queued();
                assert_eq!(before.messages, after.messages + removed.messages);
                assert_eq!(before.memory_bytes, after.memory_bytes + removed.memory_bytes);
                assert_eq!(before.external_bytes, after.external_bytes + removed.external_bytes);
                assert!(after.messages <= 1, "only a message that has begun is left");
                self.removed += removed.messages;
            }
            _ => self.outbox.open(),
        }
        assert_eq!(self.outbox.is_idle(), self.outbox.queued() == Queued::default() && !self.outbox.has_output());
    }

    /// Writes up to `most` bytes as a driver would.
    fn write(&mut self, most: usize) {
        let mut left = most;
        loop {
            match self.outbox.transmit() {
                Transmit::Idle => return,
                Transmit::Bytes { slices, .. } => {
                    let bytes = slices.concat();
                    assert!(!bytes.is_empty());
                    let now = bytes.len().min(left);
                    self.wire.extend_from_slice(&bytes[..now]);
                    self.outbox.advance(now);
                    left -= now;
                }
                Transmit::External { source, position, remaining } => {
                    let now = remaining.min(left as u64);
                    self.wire.extend_from_slice(&source[position as usize..(position + now) as usize]);
                    assert_eq!(self.outbox.advance_external(now).is_some(), now == remaining);
                    left -= now as usize;
                }
            }
            if left == 0 {
                return;
            }
        }
    }

    fn finish(mut self) {
        self.outbox.open();
        while self.outbox.has_output() {
            self.write(usize::MAX);
        }
        assert!(self.outbox.is_idle());
        assert_eq!(self.outbox.queued(), Queued::default());
        assert!(self.outbox.clear() == Queued::default() && self.outbox.remove_queued(0) == 0);

        let (mut commands, mut replies) = (0, 0);
        let mut rest = &self.wire[..];
        while let Some((header, size)) = Header::decode(rest) {
            let (frame, later) = rest.split_at(size + header.length as usize);
            if header.command {
                commands += u64::from(frame[size..].starts_with(b"\x07COMMAND"));
                replies += u64::from(frame[size..].starts_with(b"\x04PONG"));
            }
            rest = later;
        }
        assert!(rest.is_empty());
        assert_eq!(commands, self.commands);
        assert_eq!(replies, self.replies);

        let mut peer = End::ready(config(SocketType::Router), SocketType::Dealer);
        peer.receive(&self.wire, super::harness::at(0)).expect("what an outbox writes is right");
        let arrived = messages(&peer.events);
        assert_eq!(arrived.len() + self.removed, self.pushed.len());
        assert_eq!(self.outbox.messages_staged(), arrived.len() as u64);
        let mut arrived_of_tag = [0; TAGS];
        let mut last = None;
        for message in arrived {
            let number = u32::from_be_bytes(message[0][..].try_into().expect("the number of a message"));
            assert!(last < Some(number), "messages keep their order");
            last = Some(number);
            let (tag, frames) = &self.pushed[number as usize];
            assert!(message == *frames, "message {number} was changed on its way");
            arrived_of_tag[*tag] += 1;
        }
        for (tag, arrived) in arrived_of_tag.into_iter().enumerate() {
            let pushed = self.pushed.iter().filter(|(of, _)| *of == tag).count();
            assert!(arrived + self.removed_of_tag[tag] <= pushed, "taken back and sent");
        }
    }
}
