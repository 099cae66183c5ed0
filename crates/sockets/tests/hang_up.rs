//! Peers that say their last words and close at once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use towpath_sockets::{Endpoint, Event, Hub, HubOptions, SocketType};

/// The greeting and the READY of a DEALER over NULL.
fn handshake() -> Vec<u8> {
    let mut octets = vec![0; 64];
    octets[0] = 0xff;
    octets[9] = 0x7f;
    octets[10] = 3;
    octets[11] = 1;
    octets[12..16].copy_from_slice(b"NULL");
    octets.extend_from_slice(b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER");
    octets
}

/// Turns the hub until `wanted` finds its event.
fn turn_until(hub: &mut Hub, wanted: impl Fn(&Event) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        hub.turn(Some(Duration::from_millis(50))).expect("turn");
        while let Some(event) = hub.next_event() {
            if wanted(&event) {
                return;
            }
        }
    }
    panic!("the event did not come");
}

#[test]
fn a_close_that_comes_with_the_last_message_is_seen() {
    let mut hub = Hub::new(HubOptions::new(SocketType::Router)).expect("a hub");
    let Endpoint::Tcp { port, .. } = hub.bind(&"tcp://127.0.0.1:0".parse().expect("an endpoint")).expect("bind") else {
        panic!("not tcp");
    };
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    client.write_all(&handshake()).expect("write");
    turn_until(&mut hub, |event| matches!(event, Event::Ready { .. }));
    // All that the hub says is read, so that closing leaves nothing unread and the kernel sends no reset.
    hub.turn(Some(Duration::ZERO)).expect("turn");
    let mut theirs = [0; 4096];
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("set a timeout");
    while client.read(&mut theirs).is_ok_and(|octets| octets > 0) {}

    // The message and the end are both there before the hub looks: one edge tells of both.
    client.write_all(b"\x00\x05hello").expect("write");
    client.shutdown(Shutdown::Both).expect("shutdown");
    turn_until(&mut hub, |event| matches!(event, Event::Gone { .. }));
    assert_eq!(hub.peers().count(), 0);
}
