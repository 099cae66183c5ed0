//! A mechanism that seals frames, on real sockets: messages, file bodies and heartbeats.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;
#[path = "../../zmtp/tests/harness/toy_seal.rs"]
mod toy_seal;

use bytes::{Bytes, BytesMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{
    Endpoint, Event, FileRange, Heartbeat, Hub, HubOptions, MechanismConfig, Message, Metadata, PeerId, SocketType,
};
use towpath_zmtp::{Error, FrameFlags, FrameNumber, FrameSeal, Mechanism, Opener, Sealer, Step};

fn sealed(socket_type: SocketType) -> HubOptions {
    options(socket_type).with(|options| options.mechanism = toy_seal::toy_seal())
}

/// Sends a message to the client, and gives its frames as they arrive there, and what became of tagged file ranges.
fn delivered(pair: &mut Pair, message: Message) -> (Vec<Bytes>, Vec<(u64, bool)>) {
    pair.server.send(pair.at_server, message).unwrap();
    let (mut frames, mut body, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    until(&mut [&mut pair.server, &mut pair.client], |_, event| {
        let mut is_whole = false;
        match event {
            Event::FileSent { tag, whole, .. } => sent.push((tag, whole)),
            Event::BodyStart { head, .. } => frames.extend(head),
            Event::BodyData { data, .. } => {
                assert!(data.len() <= 512 * 1024);
                body.extend_from_slice(&data);
            }
            Event::BodyEnd { more, .. } => {
                frames.push(std::mem::take(&mut body).into());
                is_whole = !more;
            }
            Event::Message { frames: rest, .. } => {
                frames.extend(rest);
                is_whole = true;
            }
            Event::Gone { reason, .. } => panic!("{reason}"),
            _ => {}
        }
        is_whole.then_some(())
    });
    // The sender may get the event of the last range after the receiver has it.
    while let Some(event) = pair.server.next_event() {
        if let Event::FileSent { tag, whole, .. } = event {
            sent.push((tag, whole));
        }
    }
    (frames, sent)
}

#[test]
fn file_bodies_are_read_sealed_and_streamed() {
    let bytes = noise(3_000_000);
    let file = file_of(&bytes);
    for stream_over_bytes in [None, Some(1_000)] {
        let client = sealed(SocketType::Dealer).with(|options| options.stream_over_bytes = stream_over_bytes);
        let mut pair = pair(sealed(SocketType::Router), client);
        let message = Message::new()
            .with(&b"head"[..])
            .with(FileRange::new(file.clone(), 1, 2_000_000).tagged(7))
            .with(FileRange::new(file.clone(), 0, 0).tagged(8))
            .with(bytes[..100_000].to_vec())
            .with(FileRange::new(file.clone(), 5, 50).tagged(9).assume_cached());
        let (frames, sent) = delivered(&mut pair, message);
        assert_eq!(frames[0], "head");
        assert!(frames[1] == bytes[1..2_000_001] && frames[2].is_empty());
        assert!(frames[3] == bytes[..100_000] && frames[4] == bytes[5..55] && frames.len() == 5);
        assert!(sent.starts_with(&[(7, true), (8, true)]), "{sent:?}");
        assert_eq!(pair.server.peer(pair.at_server).unwrap().sendfile_bytes, 0);
    }
}

#[test]
fn short_files_are_padded_with_zeros_or_end_the_connection() {
    let file = file_of(&[1; 1_000]);
    let mut pair = pair(sealed(SocketType::Router), sealed(SocketType::Dealer));
    let message = Message::new().with(FileRange::new(file.clone(), 0, 2_000).tagged(3)).with(&b"end"[..]);
    let (frames, sent) = delivered(&mut pair, message);
    assert_eq!(sent, [(3, false)]);
    assert_eq!(frames, [Bytes::from([[1; 1_000], [0; 1_000]].concat()), "end".into()]);
    let message = Message::new().with(FileRange::new(file, 0, 2_000).close_if_short());
    pair.server.send(pair.at_server, message).unwrap();
    let reason = until(&mut [&mut pair.server, &mut pair.client], |hub, event| match event {
        Event::Gone { reason, .. } if hub == 0 => Some(reason),
        _ => None,
    });
    assert!(reason.contains("shorter"), "{reason}");
}

#[test]
fn pieces_over_the_limit_for_sealed_frames_end_the_connection() {
    let file = file_of(b"");
    let mut pair = pair(sealed(SocketType::Router), sealed(SocketType::Dealer));
    pair.server.send(pair.at_server, Message::new().with(FileRange::new(file, 0, (16 << 20) + 1))).unwrap();
    let reason = until(&mut [&mut pair.server, &mut pair.client], |hub, event| match event {
        Event::Gone { reason, .. } if hub == 0 => Some(reason),
        _ => None,
    });
    assert!(reason.contains("16 MiB"), "{reason}");
}

/// The toy mechanism with another way to seal.
#[derive(Debug)]
struct Changed {
    inner: Box<dyn Mechanism>,
    change: fn(FrameSeal) -> FrameSeal,
}

impl Mechanism for Changed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn start(&mut self, metadata: &Metadata) -> Result<Option<Bytes>, Error> {
        self.inner.start(metadata)
    }

    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Error> {
        self.inner.command(body, metadata)
    }

    fn frame_seal(&mut self) -> Option<FrameSeal> {
        self.inner.frame_seal().map(self.change)
    }
}

/// Large frames are sealed and opened only while nobody holds [`GATE`].
fn gated() -> Box<dyn Mechanism> {
    let change = |seal: FrameSeal| FrameSeal {
        sealer: Arc::new(Gated(seal.sealer)),
        opener: Box::new(Gated(seal.opener)),
        ..seal
    };
    Box::new(Changed { inner: toy_seal::toy_seal().begin(), change })
}

/// There are few numbers for frames.
/// Numbers of each direction, from 0 on; the last one is kept back.
const FEW_NUMBERS: u64 = 100;

fn few_numbers() -> Box<dyn Mechanism> {
    let change = |seal| FrameSeal { last_number: FEW_NUMBERS, ..seal };
    Box::new(Changed { inner: toy_seal::toy_seal().begin(), change })
}

static GATE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
struct Gated<T>(T);

impl Sealer for Gated<Arc<dyn Sealer>> {
    fn seal(&self, number: FrameNumber, flags: FrameFlags, frame: &mut [u8]) {
        let _held = (frame.len() > 100_000).then(|| GATE.lock().unwrap());
        self.0.seal(number, flags, frame);
    }
}

impl Opener for Gated<Box<dyn Opener>> {
    fn open(&mut self, sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error> {
        let _held = (sealed.len() > 100_000).then(|| GATE.lock().unwrap());
        self.0.open(sealed)
    }
}

#[test]
fn a_connection_ends_before_its_numbers_do() {
    let few = MechanismConfig::Custom { name: "TOY", begin: Arc::new(few_numbers) };
    // Large ones are sealed elsewhere.
    for length in [10, 20_000] {
        let server = options(SocketType::Router).with(|options| options.mechanism = few.clone());
        let mut pair = pair(server, sealed(SocketType::Dealer));
        let mut arrived = 0;
        let reason = loop {
            pair.server.send(pair.at_server, Message::new().with(vec![7; length])).unwrap();
            let end = until(&mut [&mut pair.server, &mut pair.client], |hub, event| match event {
                Event::Message { .. } => Some(None),
                Event::Gone { reason, .. } if hub == 0 => Some(Some(reason)),
                _ => None,
            });
            match end {
                None => arrived += 1,
                Some(reason) => break reason,
            }
        };
        assert!(reason.contains("as much as may be encrypted"), "{reason}");
        assert_eq!(arrived, FEW_NUMBERS);
    }
}

#[test]
fn no_peer_waits_for_what_is_opened_for_another() {
    let gated = MechanismConfig::Custom { name: "TOY", begin: Arc::new(gated) };
    let server = options(SocketType::Router).with(|options| options.mechanism = gated);
    let mut pair = pair(server, sealed(SocketType::Dealer));
    let mut other = Hub::new(sealed(SocketType::Dealer)).unwrap();
    other.connect(&pair.endpoint).unwrap();
    let there = until(&mut [&mut pair.server, &mut other], |hub, event| match event {
        Event::Ready { peer } if hub == 1 => Some(peer),
        _ => None,
    });
    let held = GATE.lock().unwrap();
    let large = noise(200_000);
    pair.client.send(pair.at_client, Message::new().with(large.clone())).unwrap();
    pair.client.send(pair.at_client, text("behind")).unwrap();
    let message = |_, event| match event {
        Event::Message { frames, .. } => Some(frames),
        Event::Gone { reason, .. } => panic!("{reason}"),
        _ => None,
    };
    // More than the large one needs to arrive.
    while pair.server.peer(pair.at_server).unwrap().bytes_in < 200_000 {
        pair.client.poll(Some(Duration::from_millis(1))).unwrap();
        pair.server.poll(Some(Duration::from_millis(1))).unwrap();
    }
    for number in 0..20 {
        other.send(there, text(&number.to_string())).unwrap();
        let got = until(&mut [&mut pair.server, &mut pair.client, &mut other], message);
        assert_eq!(&got[0][..], number.to_string().as_bytes());
    }
    drop(held);
    let hubs = &mut [&mut pair.server, &mut pair.client];
    assert!(until(hubs, message)[0] == large);
    assert_eq!(&until(hubs, message)[0][..], b"behind");
}

#[test]
fn no_peer_waits_for_what_is_sealed_for_another() {
    let gated = MechanismConfig::Custom { name: "TOY", begin: Arc::new(gated) };
    let server = options(SocketType::Router).with(|options| options.mechanism = gated);
    let mut pair = pair(server, sealed(SocketType::Dealer));
    let mut other = Hub::new(sealed(SocketType::Dealer)).unwrap();
    other.connect(&pair.endpoint).unwrap();
    let there = until(&mut [&mut pair.server, &mut other], |hub, event| match event {
        Event::Ready { peer } if hub == 0 => Some(peer),
        _ => None,
    });
    let held = GATE.lock().unwrap();
    let large = noise(200_000);
    pair.server.send(pair.at_server, Message::new().with(large.clone())).unwrap();
    for number in 0..20 {
        pair.server.send(there, text(&number.to_string())).unwrap();
        let got = until(&mut [&mut pair.server, &mut pair.client, &mut other], |hub, event| match event {
            Event::Message { frames, .. } => Some((hub, frames)),
            Event::Gone { reason, .. } => panic!("{reason}"),
            _ => None,
        });
        assert_eq!((got.0, &got.1[0][..]), (2, number.to_string().as_bytes()));
    }
    drop(held);
    let got = until(&mut [&mut pair.server, &mut pair.client], |_, event| match event {
        Event::Message { frames, .. } => Some(frames),
        _ => None,
    });
    assert!(got[0] == large);
}

/// A server, and clients of which the first two wait for a frame each that doesn't fit into the memory for sealed frames with the
/// other's: the first one's holds it. With the clients' names at the server.
fn waiting_for_memory(endpoint: &Endpoint) -> (Hub, [Hub; 2], [PeerId; 2]) {
    let mut server = Hub::new(sealed(SocketType::Router)).unwrap();
    let endpoint = server.bind(endpoint).unwrap();
    let mut clients = [(); 2].map(|()| Hub::new(sealed(SocketType::Dealer)).unwrap());
    let peers = clients.each_mut().map(|client| {
        client.connect(&endpoint).unwrap();
        until(&mut [&mut server, client], |hub, event| match event {
            Event::Ready { peer } if hub == 0 => Some(peer),
            _ => None,
        })
    });
    // 16 MiB, and what sealing adds.
    let file = file_of(&vec![7; 16 << 20]);
    for peer in peers {
        server.send(peer, Message::new().with(FileRange::new(file.clone(), 0, 16 << 20))).unwrap();
    }
    (server, clients, peers)
}

#[test]
fn peers_that_take_nothing_give_way_to_those_that_do() {
    let (mut server, [_idle, mut other], [idle, _]) = waiting_for_memory(&anywhere());
    let mut gone = Vec::new();
    let got = until(&mut [&mut server, &mut other], |hub, event| match event {
        Event::Message { frames, .. } if hub == 1 => Some(frames[0].len()),
        Event::Gone { peer, .. } if hub == 0 => {
            gone.push(peer);
            None
        }
        _ => None,
    });
    assert_eq!((got, &gone[..]), (16 << 20, &[idle][..]));
}

#[test]
fn slow_peers_need_not_give_way_nor_those_that_hold_nothing() {
    let (mut server, [mut slow, mut other], _) = waiting_for_memory(&"inproc://slow".parse().unwrap());
    // Takes nothing, but small messages take no memory for sealed frames.
    let mut idle = Hub::new(sealed(SocketType::Dealer)).unwrap();
    idle.connect(&"inproc://slow".parse().unwrap()).unwrap();
    let unread = until(&mut [&mut server, &mut idle], |hub, event| match event {
        Event::Ready { peer } if hub == 0 => Some(peer),
        _ => None,
    });
    for _ in 0..1_000 {
        server.send(unread, Message::new().with(vec![1; 10_000])).unwrap();
    }
    let (mut paused, mut received) = (Instant::now(), 0);
    let deadline = Instant::now() + Duration::from_secs(40);
    while received < 2 {
        assert!(Instant::now() < deadline, "not everyone has got the file");
        // Some 5 MB a second.
        if paused.elapsed() > Duration::from_millis(40) {
            slow.poll(Some(Duration::ZERO)).unwrap();
            paused = Instant::now();
        }
        other.poll(Some(Duration::ZERO)).unwrap();
        server.poll(Some(Duration::from_millis(1))).unwrap();
        let gone = std::iter::from_fn(|| server.next_event()).find(|event| matches!(event, Event::Gone { .. }));
        assert!(gone.is_none(), "{gone:?}");
        for client in [&mut slow, &mut other] {
            let events = std::iter::from_fn(|| client.next_event());
            received += events.filter(|event| matches!(event, Event::Message { .. })).count();
        }
    }
}

#[test]
fn tenants_take_turns_for_memory_however_many_connections_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Hub::new(sealed(SocketType::Router)).unwrap();
    let tcp = server.bind(&anywhere()).unwrap();
    let ipc = server.bind(&Endpoint::Ipc(folder.path().join("socket"))).unwrap();
    let mut clients = [(); 3].map(|()| Hub::new(sealed(SocketType::Dealer)).unwrap());
    let file = file_of(&vec![7; 16 << 20]);
    let peers = [&tcp, &tcp, &ipc].into_iter().zip(&mut clients).map(|(endpoint, client)| {
        client.connect(endpoint).unwrap();
        until(&mut [&mut server, client], |hub, event| match event {
            Event::Ready { peer } if hub == 0 => Some(peer),
            _ => None,
        })
    });
    for (peer, tag) in peers.collect::<Vec<_>>().into_iter().zip(1..) {
        server.send(peer, Message::new().with(FileRange::new(file.clone(), 0, 16 << 20).tagged(tag))).unwrap();
    }
    let [first, second, other] = &mut clients;
    let mut order = Vec::new();
    // As they leave: each client opens its own on a thread of its own.
    until(&mut [&mut server, first, second, other], |_, event| {
        if let Event::FileSent { tag, .. } = event {
            order.push(tag);
        }
        (order.len() == 3).then_some(())
    });
    // One frame at a time has space.
    assert_eq!(order, [1, 3, 2]);
}

#[test]
fn heartbeats_keep_a_sealed_connection() {
    let beat = Duration::from_millis(20);
    let heartbeat = Some(Heartbeat { interval: beat, timeout: beat * 10, ttl: beat * 10 });
    let server = sealed(SocketType::Router).with(|options| options.heartbeat = heartbeat);
    let mut pair = pair(server, sealed(SocketType::Dealer).with(|options| options.heartbeat = heartbeat));
    let begin = Instant::now();
    let idle = pair.server.peer(pair.at_server).unwrap().bytes_in;
    while begin.elapsed() < beat * 30 {
        for hub in [&mut pair.server, &mut pair.client] {
            hub.poll(Some(Duration::from_millis(1))).unwrap();
            assert!(!matches!(hub.next_event(), Some(Event::Gone { .. })));
        }
    }
    assert!(pair.server.peer(pair.at_server).unwrap().bytes_in > idle, "PINGs and PONGs come");
    assert_eq!(delivered(&mut pair, text("still here")).0, ["still here"]);
}
