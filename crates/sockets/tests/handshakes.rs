//! Handshakes that cost a server more than their clients.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use rustix::net::{AddressFamily, SocketType as Kind};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Endpoint, Event, Hub, MechanismConfig, SecretKey, SocketType, system_random};

/// A connection from an address of this machine that has sent a HELLO which no key opens.
fn garbage_from(host: u8, port: u16) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, Kind::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let mut stream = TcpStream::from(socket);
    let mut greeting = raw_greeting();
    greeting[12..17].copy_from_slice(b"CURVE");
    let mut hello = b"\x05HELLO\x01\x00".to_vec();
    hello.resize(80, 0);
    hello.resize(200, 7);
    stream.write_all(&[&greeting[..], &[4, 200], &hello].concat()).unwrap();
    stream
}

#[test]
fn addresses_take_turns_for_handshakes() {
    const FLOOD: usize = 300;
    let key = SecretKey::generate(&system_random()).unwrap();
    let mut server_options = options(SocketType::Router);
    server_options.mechanism =
        MechanismConfig::CurveServer { keys: Arc::from([key]), random: system_random(), aes: true };
    let mut server = Hub::new(server_options).unwrap();
    let Endpoint::Tcp { port, .. } = server.bind(&anywhere()).unwrap() else { panic!("not tcp") };
    let _flood: Vec<TcpStream> = (0..FLOOD).map(|_| garbage_from(2, port)).collect();
    let _other = garbage_from(3, port);
    let (mut before, deadline) = (0, Instant::now() + Duration::from_secs(20));
    loop {
        assert!(Instant::now() < deadline, "the other address is not answered");
        server.poll(Some(Duration::from_millis(10))).unwrap();
        while let Some(event) = server.next_event() {
            let Event::Failed { address, reason, .. } = event else { panic!("{event:?}") };
            assert!(reason.contains("another key"), "{reason}");
            if address.contains("127.0.0.3") {
                // It came last.
                assert!(before < FLOOD, "all others were answered first");
                return;
            }
            before += 1;
        }
    }
}
