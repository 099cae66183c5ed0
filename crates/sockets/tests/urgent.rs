//! A peer that sends urgent data (MSG_OOB) is disconnected at once: reading would stop before it, and nothing more would come.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use support::*;
use towpath_sockets::{Endpoint, Event, Hub, SocketType};

/// The header of a frame with a body of a MiB.
const LARGE: [u8; 9] = [2, 0, 0, 0, 0, 0, 0x10, 0, 0];

/// A hub that streams large bodies, if it is to, and a raw connection to it.
fn hub_and_client(endpoint: &Endpoint, streams: bool) -> (Hub, File) {
    let hub = options(SocketType::Router).with(|options| options.stream_over_bytes = streams.then_some(64 * 1024));
    let mut hub = Hub::new(hub).unwrap();
    let client: OwnedFd = match hub.bind(endpoint).unwrap() {
        Endpoint::Tcp { host, port } => TcpStream::connect((host, port)).unwrap().into(),
        Endpoint::Ipc(path) => UnixStream::connect(path).unwrap().into(),
        Endpoint::Inproc(_) => unreachable!("not asked for"),
    };
    (hub, File::from(client))
}

/// Drives the hub until the peer is gone. What happened before, in a word each.
fn happened(hub: &mut Hub) -> Vec<&'static str> {
    let mut happened = Vec::new();
    let reason = until(&mut [hub], |_, event| {
        happened.push(match event {
            Event::Ready { .. } => "ready",
            Event::BodyStart { .. } => "start",
            Event::Gone { reason, .. } | Event::Failed { reason, .. } => return Some(reason),
            _ => "other",
        });
        None
    });
    assert!(reason.contains("urgent"), "{reason}");
    happened
}

#[test]
fn urgent_data_in_the_handshake_or_between_messages_ends_the_connection() {
    for said in [&b""[..], &raw_greeting(), &[raw_greeting(), raw_ready()].concat()] {
        let (mut hub, mut client) = hub_and_client(&anywhere(), false);
        client.write_all(said).unwrap();
        send(&client, b"!", SendFlags::OOB).unwrap();
        client.write_all(&raw_ready()).unwrap();
        happened(&mut hub);
    }
}

#[test]
fn urgent_data_in_a_body_ends_the_connection() {
    for streams in [false, true] {
        let (mut hub, mut client) = hub_and_client(&anywhere(), streams);
        client.write_all(&[&raw_greeting()[..], &raw_ready(), &LARGE, &[7; 100_000]].concat()).unwrap();
        let peer = until(&mut [&mut hub], |_, event| match event {
            Event::Ready { peer } => Some(peer),
            _ => None,
        });
        for _ in 0..20 {
            hub.poll(Some(Duration::from_millis(5))).unwrap();
        }
        let before = hub.peer(peer).unwrap().bytes_in;
        assert!(before > 100_000, "{before} bytes have been read");
        send(&client, b"!", SendFlags::OOB).unwrap();
        // Bytes behind it make no difference.
        client.write_all(&[7; 100_000]).unwrap();
        let happened = happened(&mut hub);
        assert_eq!(happened.contains(&"start"), streams, "{happened:?}");
    }
}

#[test]
fn urgent_data_on_a_unix_socket_ends_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (mut hub, mut client) = hub_and_client(&Endpoint::Ipc(folder.path().join("socket")), false);
    client.write_all(&raw_greeting()).unwrap();
    match send(client.as_fd(), b"!", SendFlags::OOB) {
        // Not every kernel has it there.
        Err(Errno::OPNOTSUPP) => return,
        sent => assert_eq!(sent, Ok(1)),
    }
    happened(&mut hub);
}
