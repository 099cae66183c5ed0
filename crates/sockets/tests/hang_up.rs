//! Peers that send their last message and close at once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use towpath_sockets::{Endpoint, Event, Hub, HubOptions, PeerId, SocketType};

/// The greeting and the READY of a DEALER over NULL.
fn handshake() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[11] = 1;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes.extend_from_slice(b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER");
    bytes
}

/// Turns the hub until `wanted` finds its event.
fn turn_until(hub: &mut Hub, wanted: impl Fn(&Event) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        hub.poll(Some(Duration::from_millis(50))).expect("turn");
        while let Some(event) = hub.next_event() {
            if wanted(&event) {
                return;
            }
        }
    }
    panic!("the event did not come");
}

/// A hub, and a client after its handshake that has read all that the hub said: closing it leaves nothing unread, so that the
/// kernel sends no reset.
fn hub_and_client(read_budget_bytes: usize) -> (Hub, TcpStream, PeerId) {
    let options = HubOptions::new(SocketType::Router).with(|options| options.read_budget_bytes = read_budget_bytes);
    let mut hub = Hub::new(options).expect("a hub");
    let Endpoint::Tcp { port, .. } = hub.bind(&"tcp://127.0.0.1:0".parse().expect("an endpoint")).expect("bind") else {
        panic!("not tcp");
    };
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    client.write_all(&handshake()).expect("write");
    turn_until(&mut hub, |event| matches!(event, Event::Ready { .. }));
    hub.poll(Some(Duration::ZERO)).expect("turn");
    let mut theirs = [0; 4096];
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("set a timeout");
    while client.read(&mut theirs).is_ok_and(|bytes| bytes > 0) {}
    let peer = hub.peers().next().expect("a peer");
    (hub, client, peer)
}

#[test]
fn close_behind_the_last_message_is_seen() {
    let (mut hub, mut client, _) = hub_and_client(1 << 20);
    // The message and the end are both there before the hub looks: one edge stands for both.
    client.write_all(b"\x00\x05hello").expect("write");
    client.shutdown(Shutdown::Both).expect("shutdown");
    turn_until(&mut hub, |event| matches!(event, Event::Gone { .. }));
    assert_eq!(hub.peers().count(), 0);
}

#[test]
fn hang_up_of_a_paused_peer_is_reported_and_its_messages_kept() {
    let (mut hub, mut client, peer) = hub_and_client(1 << 20);
    hub.pause_reading(peer, true);
    client.write_all(b"\x00\x05hello").expect("write");
    drop(client);
    turn_until(&mut hub, |event| matches!(event, Event::HungUp { peer: which } if *which == peer));
    assert_eq!(hub.peers().count(), 1);
    // The messages before it can still be read.
    hub.pause_reading(peer, false);
    turn_until(&mut hub, |event| matches!(event, Event::Message { frames, .. } if frames[0] == "hello"));
    turn_until(&mut hub, |event| matches!(event, Event::Gone { .. }));
}

#[test]
fn hang_up_before_pausing_is_reported() {
    let (mut hub, mut client, peer) = hub_and_client(4_096);
    // More than a turn reads.
    let message = [b"\x02\x00\x00\x00\x00\x00\x00\x04\x00".as_slice(), &[7; 1024]].concat();
    client.write_all(&message.repeat(40)).expect("write");
    drop(client);
    turn_until(&mut hub, |event| matches!(event, Event::Message { .. }));
    hub.pause_reading(peer, true);
    turn_until(&mut hub, |event| matches!(event, Event::HungUp { .. }));
    hub.disconnect(peer, "nobody wants the rest");
    turn_until(&mut hub, |event| matches!(event, Event::Gone { .. }));
}
