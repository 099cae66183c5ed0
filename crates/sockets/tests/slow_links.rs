//! Peers behind a slow link: megabytes for them are still in this system's hands when their liveness is in doubt.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Endpoint, Event, Heartbeat, Hub, Message, PeerId, SocketType};

const LINK_BYTES_PER_SECOND: f64 = 300_000.0;

const INTERVAL: Duration = Duration::from_millis(100);

/// Within which a PONG has to come. More than that long, each of these peers has nothing to say.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A peer that never says anything, and takes what comes as fast as its link lets it.
struct Silent<S> {
    stream: S,
    bytes_per_second: f64,
    taken: usize,
}

impl<S: Read> Silent<S> {
    /// Takes what has come since, up to `most` in all.
    fn read(&mut self, since: Instant, most: usize) {
        let lets = (since.elapsed().as_secs_f64() * self.bytes_per_second) as usize;
        let mut bytes = vec![0; lets.min(most).saturating_sub(self.taken)];
        match self.stream.read(&mut bytes) {
            Ok(bytes) => self.taken += bytes,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// Sends one message of this many bytes to such a peer, which takes this many of them: what it has taken when it is given up, and
/// why.
fn given_up(length: usize, takes: usize, detect_stalls: bool) -> (usize, String) {
    let (mut hub, endpoint) = beating(&anywhere());
    let mut stream = raw_connection(&endpoint);
    stream.write_all(&[raw_greeting(), raw_ready()].concat()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let silent = Silent { stream, bytes_per_second: LINK_BYTES_PER_SECOND, taken: 0 };
    let peer = ready(&mut [&mut hub])[0];
    if detect_stalls {
        hub.detect_stalls(peer);
    }
    given_up_after(hub, peer, silent, length, takes)
}

fn beating(endpoint: &Endpoint) -> (Hub, Endpoint) {
    let heartbeat = Heartbeat { interval: INTERVAL, timeout: TIMEOUT, ttl: Duration::ZERO };
    let mut options = options(SocketType::Router);
    (options.heartbeat, options.send_queue_bytes) = (Some(heartbeat), 64 << 20);
    let mut hub = Hub::new(options).unwrap();
    let endpoint = hub.bind(endpoint).unwrap();
    (hub, endpoint)
}

fn given_up_after(
    mut hub: Hub,
    peer: PeerId,
    mut silent: Silent<impl Read>,
    length: usize,
    takes: usize,
) -> (usize, String) {
    hub.send(peer, Message::new().with(vec![1; length])).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        // In one thread, so that a machine that is slow is slow for both.
        silent.read(begin, takes);
        hub.poll(Some(Duration::from_millis(1))).unwrap();
        while let Some(event) = hub.next_event() {
            if let Event::Gone { reason, .. } = event {
                return (silent.taken, reason);
            }
        }
    }
    panic!("a peer that takes nothing and says nothing is never given up");
}

#[test]
fn peer_with_a_ping_behind_a_large_message_is_cut_only_without_progress() {
    // All of it is in the system's hands at once.
    let (taken, reason) = given_up(1_200_000, 900_000, false);
    assert_eq!(taken, 900_000, "{reason}");
    assert!(reason.contains("PING"), "{reason}");
}

#[test]
fn slow_peer_over_ipc_is_cut_only_without_progress() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (mut hub, _) = beating(&Endpoint::Ipc(path.clone()));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(&[raw_greeting(), raw_ready()].concat()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let peer = ready(&mut [&mut hub])[0];
    // What it takes keeps it busy for longer than the timeout.
    let silent = Silent { stream, bytes_per_second: 100_000.0, taken: 0 };
    let (taken, reason) = given_up_after(hub, peer, silent, 180_000, 160_000);
    assert_eq!(taken, 160_000, "{reason}");
    assert!(reason.contains("PING"), "{reason}");
}

#[test]
fn peer_with_a_backlog_is_cut_only_without_progress() {
    let (taken, reason) = given_up(16_000_000, 1_200_000, true);
    assert_eq!(taken, 1_200_000, "{reason}");
    assert!(reason.contains("took nothing"), "{reason}");
}
