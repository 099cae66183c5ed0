//! Two hubs in one thread, driven until something is true. Every wait has a deadline.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod socket;

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_sockets::{Endpoint, Event, Hub, HubOptions, Message, PeerId, SocketType};

const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Pair {
    pub server: Hub,
    pub client: Hub,
    pub endpoint: Endpoint,
    pub at_server: PeerId,
    pub at_client: PeerId,
}

pub fn options(socket_type: SocketType) -> HubOptions {
    HubOptions::new(socket_type)
}

pub fn anywhere() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

/// Polls every hub until one of them has an event that `pick` takes.
pub fn until<T>(hubs: &mut [&mut Hub], mut pick: impl FnMut(usize, Event) -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        for (index, hub) in hubs.iter_mut().enumerate() {
            hub.poll(Some(Duration::from_millis(1))).unwrap();
            while let Some(event) = hub.next_event() {
                if let Some(picked) = pick(index, event) {
                    return picked;
                }
            }
        }
    }
    panic!("no such event within {TIMEOUT:?}");
}

pub fn ready(hubs: &mut [&mut Hub]) -> Vec<PeerId> {
    let mut found = vec![None; hubs.len()];
    until(hubs, |index, event| {
        if let Event::Ready { peer } = event {
            found[index] = Some(peer);
        }
        found.iter().all(Option::is_some).then_some(())
    });
    found.into_iter().flatten().collect()
}

pub fn pair_at(endpoint: &Endpoint, server: HubOptions, client: HubOptions) -> Pair {
    let mut server = Hub::new(server).unwrap();
    let mut client = Hub::new(client).unwrap();
    let endpoint = server.bind(endpoint).unwrap();
    client.connect(&endpoint).unwrap();
    let peers = ready(&mut [&mut server, &mut client]);
    Pair { server, client, endpoint, at_server: peers[0], at_client: peers[1] }
}

pub fn pair(server: HubOptions, client: HubOptions) -> Pair {
    pair_at(&anywhere(), server, client)
}

pub fn text(text: &str) -> Message {
    Message::new().with(text.as_bytes().to_vec())
}

/// A TCP connection that has sent nothing.
pub fn raw_connection(endpoint: &Endpoint) -> TcpStream {
    let Endpoint::Tcp { host, port } = endpoint else { panic!("not tcp") };
    let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// A ZMTP 3.1 NULL handshake of a DEALER, as raw bytes.
pub fn raw_greeting() -> Vec<u8> {
    let mut greeting = vec![0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = 1;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

pub fn raw_ready() -> Vec<u8> {
    let body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00";
    [&[4, body.len() as u8], &body[..]].concat()
}

pub fn file_of(bytes: &[u8]) -> Arc<std::fs::File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

pub fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}
