//! Frames of all sizes, streamed and whole, in one stream of bytes: the read-ahead behind a body belongs to the next frame.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use proptest::prelude::*;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Endpoint, Event, FileRange, Hub, HubOptions, Message, SocketType};

/// Frames over this are streamed.
const STREAM_OVER_BYTES: u64 = 1000;

fn streaming(socket_type: SocketType) -> HubOptions {
    options(socket_type).with(|options| options.stream_over_bytes = Some(STREAM_OVER_BYTES))
}

/// All frames that came, put together, and which of them were streamed.
#[derive(Debug, Default)]
struct Arrived {
    frames: Vec<Vec<u8>>,
    streamed: Vec<usize>,
    lengths: Vec<u64>,
    current: Vec<u8>,
}

impl Arrived {
    fn take(&mut self, event: Event) {
        match event {
            Event::Message { frames, .. } => self.frames.extend(frames.iter().map(|frame| frame.to_vec())),
            Event::BodyStart { head, length, .. } => {
                self.frames.extend(head.iter().map(|frame| frame.to_vec()));
                self.lengths.push(length);
                self.streamed.push(self.frames.len());
            }
            Event::BodyData { data, .. } => self.current.extend_from_slice(&data),
            Event::BodyEnd { .. } => self.frames.push(std::mem::take(&mut self.current)),
            _ => {}
        }
    }

    /// They are what was sent, and those over the limit were streamed.
    fn check(&self, sent: &[Vec<u8>]) {
        let sizes = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&self.frames), sizes(sent));
        assert!(self.frames == sent);
        let large = |(index, frame): (usize, &Vec<u8>)| (frame.len() as u64 > STREAM_OVER_BYTES).then_some(index);
        assert_eq!(self.streamed, sent.iter().enumerate().filter_map(large).collect::<Vec<_>>());
        assert_eq!(self.lengths, self.streamed.iter().map(|&index| sent[index].len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn frames_of_all_sizes_arrive_in_order() {
    let bytes = noise(3_000_000);
    let file = file_of(&bytes);
    let folder = tempfile::tempdir().unwrap();
    for endpoint in [anywhere(), "inproc://streams".parse().unwrap(), Endpoint::Ipc(folder.path().join("socket"))] {
        let mut pair = pair_at(&endpoint, options(SocketType::Router), streaming(SocketType::Dealer));
        // Short frames between long ones, whole messages between streamed ones, bodies from files and from memory.
        let sizes = [1_048_576, 200_000, 5000, 10, 2_000_001, 512, 1001, 524_288, 100_000];
        let mut sent = Vec::new();
        for (index, &size) in sizes.iter().enumerate() {
            let head = vec![b'h'; index * 90];
            let message = Message::new().with(head.clone());
            let message = match index % 2 {
                0 => message.with(FileRange::new(file.clone(), index as u64, size as u64)),
                _ => message.with(bytes[index..index + size].to_vec()),
            };
            pair.server.send(pair.at_server, message).unwrap();
            sent.extend([head, bytes[index..index + size].to_vec()]);
        }
        let mut arrived = Arrived::default();
        until(&mut [&mut pair.server, &mut pair.client], |_, event| {
            arrived.take(event);
            (arrived.frames.len() >= sent.len()).then_some(())
        });
        arrived.check(&sent);
    }
}

/// A frame as it is on the wire.
fn on_the_wire(body: &[u8], more: bool) -> Vec<u8> {
    let mut wire = vec![u8::from(more) | 2];
    wire.extend_from_slice(&(body.len() as u64).to_be_bytes());
    wire.extend_from_slice(body);
    wire
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn however_the_bytes_are_cut(
        sizes in proptest::collection::vec(prop_oneof![0..1200usize, 1000..9000usize, 520_000..530_000usize], 1..8),
        cuts in proptest::collection::vec(prop_oneof![1..600usize, 400..70_000usize, 500_000..700_000usize], 1..12),
    ) {
        let bytes = noise(600_000);
        let sent: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(index, &size)| bytes[index..index + size].to_vec()).collect();
        // Two frames a message, and the last one may be alone.
        let is_last = |index: usize| index % 2 == 1 || index + 1 == sent.len();
        let mut wire = [raw_greeting(), raw_ready()].concat();
        wire.extend(sent.iter().enumerate().flat_map(|(index, frame)| on_the_wire(frame, !is_last(index))));
        let mut hub = Hub::new(streaming(SocketType::Router)).unwrap();
        let Endpoint::Tcp { host, port } = hub.bind(&anywhere()).unwrap() else { unreachable!("tcp was asked for") };
        let mut client = TcpStream::connect((host, port)).unwrap();
        client.set_nodelay(true).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut arrived = Arrived::default();
        let (mut left, mut cuts) = (&wire[..], cuts.iter().cycle());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !left.is_empty() {
            prop_assert!(Instant::now() < deadline, "the hub doesn't read");
            let now = &left[..left.len().min(*cuts.next().unwrap())];
            // Not all of it, if the hub has to read first.
            match client.write(now) {
                Ok(bytes) => left = &left[bytes..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            hub.poll(Some(Duration::ZERO)).unwrap();
            while let Some(event) = hub.next_event() {
                arrived.take(event);
            }
        }
        if arrived.frames.len() < sent.len() {
            until(&mut [&mut hub], |_, event| {
                arrived.take(event);
                (arrived.frames.len() >= sent.len()).then_some(())
            });
        }
        arrived.check(&sent);
    }
}
