//! More incomplete messages than fit into the budget: who waits, that nothing is lost, and how much memory it takes.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use proptest::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Endpoint, Event, Hub, LargeMessages, PeerId, SocketType};

const BEGUN_MAX: usize = 200_000;
const MESSAGE_MAX: usize = 150_000;
/// Maximum memory with slow peers: twice the size of one message, besides small ones.
const MOST: usize = 2 * (MESSAGE_MAX + FRAMES_MAX * 64 + 2 * 65_536) + 30_000;
const FRAMES_MAX: usize = 100;

fn server() -> (Hub, Endpoint) {
    let mut server = Hub::new(options(SocketType::Router).with(|options| {
        options.max_message_bytes = MESSAGE_MAX as u64;
        options.max_frames = FRAMES_MAX;
        options.reassembly_bytes_max = BEGUN_MAX;
    }))
    .unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    (server, endpoint)
}

fn frame(length: usize, more: bool) -> Vec<u8> {
    let mut frame = vec![2 | u8::from(more)];
    frame.extend((length as u64).to_be_bytes());
    frame.resize(frame.len() + length, 7);
    frame
}

/// A peer that says what it is to say, as fast as it is taken.
struct Raw {
    stream: TcpStream,
    peer: PeerId,
    unsent: VecDeque<u8>,
}

impl Raw {
    fn new(server: &mut Hub, endpoint: &Endpoint) -> Raw {
        let mut stream = raw_connection(endpoint);
        stream.write_all(&[raw_greeting(), raw_ready()].concat()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let peer = until(&mut [server], |_, event| match event {
            Event::Ready { peer } => Some(peer),
            _ => None,
        });
        Raw { stream, peer, unsent: VecDeque::new() }
    }

    /// Sends up to this many bytes of what it has to say.
    fn send(&mut self, most: usize) {
        let bytes = self.unsent.as_slices().0;
        match self.stream.write(&bytes[..bytes.len().min(most)]) {
            // It was disconnected.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// A turn; gives the peers of which a message came whole.
fn poll(server: &mut Hub) -> Vec<PeerId> {
    server.poll(Some(Duration::from_millis(1))).unwrap();
    let mut whole = Vec::new();
    while let Some(event) = server.next_event() {
        match event {
            Event::Message { peer, .. } => whole.push(peer),
            event => panic!("{event:?}"),
        }
    }
    whole
}

fn begun(server: &Hub) -> usize {
    server.peers().filter_map(|peer| server.reassembly_bytes(peer)).sum()
}

fn within<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < end);
        if let Some(done) = done() {
            return done;
        }
    }
}

/// The frames of a message, none of which makes it too long.
fn message() -> impl Strategy<Value = Vec<usize>> {
    let sizes = prop_oneof![1usize..200, 3_000usize..5_000, 20_000usize..45_000];
    prop_oneof![prop::collection::vec(sizes, 1..4), (100_000usize..140_000).prop_map(|length| vec![length])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn all_that_is_sent_arrives_and_takes_no_more_memory_than_there_is(
        peers in prop::collection::vec(prop::collection::vec(message(), 1..6), 1..40),
        pieces in prop::collection::vec(1usize..60_000, 1..50),
        pauses in any::<u64>(),
    ) {
        let (mut server, endpoint) = server();
        let mut raws: Vec<Raw> = peers.iter().map(|_| Raw::new(&mut server, &endpoint)).collect();
        let mut due = HashMap::new();
        for (raw, messages) in raws.iter_mut().zip(&peers) {
            due.insert(raw.peer, messages.len());
            for message in messages {
                for (at, length) in message.iter().enumerate() {
                    raw.unsent.extend(frame(*length, at + 1 < message.len()));
                }
            }
        }
        let mut pieces = pieces.iter().cycle();
        let mut paused = None;
        for round in 0u64.. {
            for raw in raws.iter_mut().filter(|raw| !raw.unsent.is_empty()) {
                raw.send(*pieces.next().unwrap());
            }
            for peer in poll(&mut server) {
                *due.get_mut(&peer).unwrap() -= 1;
            }
            prop_assert!(begun(&server) <= MOST, "{}", begun(&server));
            if due.values().all(|due| *due == 0) {
                break;
            }
            prop_assert!(round < 20_000, "{due:?}");
            // Now and then the application pauses a peer, whatever that peer is in the middle of.
            if let Some(peer) = paused.take() {
                server.pause_reading(peer, false);
            }
            if pauses >> (round % 64) & 1 == 1 {
                let peer = raws[round as usize % raws.len()].peer;
                server.pause_reading(peer, true);
                paused = Some(peer);
            }
        }
        prop_assert_eq!(begun(&server), 0);
    }
}

#[test]
fn peers_that_stop_in_mid_message_are_cut_only_when_others_wait() {
    let (mut server, endpoint) = server();
    let mut stalled: Vec<Raw> = (0..30).map(|_| Raw::new(&mut server, &endpoint)).collect();
    let whole = frame(MESSAGE_MAX - 1_000, false);
    for raw in &mut stalled {
        raw.unsent.extend(&whole[..whole.len() / 3]);
    }
    let mut honest: Vec<Raw> = (0..3).map(|_| Raw::new(&mut server, &endpoint)).collect();
    for raw in &mut honest {
        raw.unsent.extend(frame(100, false));
        raw.unsent.extend(frame(140_000, false));
    }
    // Those who came first take more than half of the budget, and one goes on without: the others wait.
    within(|| {
        stalled.iter_mut().for_each(|raw| raw.send(usize::MAX));
        assert!(poll(&mut server).is_empty());
        (begun(&server) >= 4 * (whole.len() / 3)).then_some(())
    });
    let (mut received, mut gone) = (Vec::new(), HashSet::new());
    let began = Instant::now();
    within(|| {
        stalled.iter_mut().chain(&mut honest).for_each(|raw| raw.send(usize::MAX));
        server.poll(Some(Duration::from_millis(1))).unwrap();
        while let Some(event) = server.next_event() {
            match event {
                Event::Message { peer, .. } => received.push(peer),
                Event::Gone { peer, reason } => {
                    assert!(reason.contains("others wait"), "{reason}");
                    assert!(gone.insert(peer) && began.elapsed() >= Duration::from_millis(500));
                }
                event => panic!("{event:?}"),
            }
        }
        assert!(begun(&server) <= MOST);
        (received.len() == 2 * honest.len()).then_some(())
    });
    assert!(!gone.is_empty() && honest.iter().all(|raw| !gone.contains(&raw.peer)));
    // The peers left may still finish.
    stalled.retain(|raw| !gone.contains(&raw.peer));
    assert!(!stalled.is_empty());
    for raw in &mut stalled {
        raw.unsent.extend(&whole[whole.len() / 3..]);
    }
    let mut received = HashSet::new();
    within(|| {
        stalled.iter_mut().for_each(|raw| raw.send(usize::MAX));
        received.extend(poll(&mut server));
        (received.len() == stalled.len()).then_some(())
    });
}

#[test]
fn deferred_messages_begin_one_by_one_while_small_ones_pass() {
    let (mut server, endpoint) = server();
    let mut raws: Vec<Raw> = (0..4).map(|_| Raw::new(&mut server, &endpoint)).collect();
    // From this one it would take whatever comes.
    server.set_deferrable(raws[3].peer, false);
    server.set_large_messages(LargeMessages::Defer);
    for raw in &mut raws {
        raw.unsent.extend(frame(100, false));
        raw.unsent.extend(frame(10_000, false));
    }
    let peers: Vec<PeerId> = raws.iter().map(|raw| raw.peer).collect();
    let mut received = Vec::new();
    let mut receive = |server: &mut Hub, count: usize| {
        within(|| {
            raws.iter_mut().filter(|raw| !raw.unsent.is_empty()).for_each(|raw| raw.send(usize::MAX));
            received.extend(poll(server));
            (received.len() >= count).then_some(())
        });
        // A turn after the last one that had something to say finds nothing more.
        received.extend(poll(server));
        received.len()
    };
    assert_eq!(receive(&mut server, 5), 5);
    assert_eq!((0..4).filter(|&at| server.is_deferred(peers[at])).count(), 3);
    server.set_large_messages(LargeMessages::AllowOne);
    assert_eq!(receive(&mut server, 6), 6);
    server.set_large_messages(LargeMessages::Defer);
    assert_eq!(receive(&mut server, 6), 6);
    // One of those that wait goes, which nobody would read of.
    let gone = (0..4).find(|&at| server.is_deferred(raws[at].peer)).unwrap();
    let peer = raws[gone].peer;
    drop(raws.remove(gone));
    until(&mut [&mut server], |_, event| match event {
        Event::HungUp { peer: which } => {
            assert_eq!(which, peer);
            Some(())
        }
        event => panic!("{event:?}"),
    });
    server.disconnect(peer, "it has closed the connection");
    until(&mut [&mut server], |_, event| matches!(event, Event::Gone { .. }).then_some(()));
    server.set_large_messages(LargeMessages::Allow);
    let mut last = Vec::new();
    within(|| {
        last.extend(poll(&mut server));
        (last.len() == 1).then_some(())
    });
    assert!(poll(&mut server).is_empty());
}
