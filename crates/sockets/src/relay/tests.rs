//! Relays between real sockets.
#![allow(clippy::unwrap_used)]

use super::header::{FIXED_BYTES, HEADER_BYTES_MAX, Header};
use super::{RelayKey, RelayTo};
use crate::{Endpoint, Event, Hub, HubOptions, PeerInfo, SocketType, Tenant};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const THROUGH: &str = "tcp://standby:5555";

fn key() -> RelayKey {
    RelayKey::new([7; 32])
}

fn hub(change: impl FnOnce(&mut HubOptions)) -> (Hub, SocketAddr) {
    let mut hub = Hub::new(HubOptions::new(SocketType::Router).with(change)).unwrap();
    let endpoint = hub.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    let Endpoint::Tcp { port, .. } = endpoint else { panic!("not tcp") };
    (hub, SocketAddr::from(([127, 0, 0, 1], port)))
}

fn to(address: SocketAddr) -> RelayTo {
    let endpoint = format!("tcp://{address}").parse().unwrap();
    RelayTo { endpoint, key: key(), through: THROUGH.to_owned() }
}

/// A hub that relays to an address.
fn standby(address: SocketAddr) -> (Hub, SocketAddr) {
    let (mut hub, own) = hub(|_| ());
    hub.relay_to(to(address)).unwrap();
    (hub, own)
}

/// Polls the hubs until the condition holds, and gives all events of the first one.
#[track_caller]
fn until(hubs: &mut [&mut Hub], what: &str, mut holds: impl FnMut(&mut [&mut Hub]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds(hubs) {
        assert!(Instant::now() < deadline, "{what}");
        for hub in &mut *hubs {
            hub.poll(Some(Duration::from_millis(1))).unwrap();
        }
    }
}

/// Polls until the first hub reports the end of a handshake, with its reason.
#[track_caller]
fn failure(hubs: &mut [&mut Hub]) -> String {
    let mut reason = None;
    until(hubs, "a handshake fails", |hubs| {
        while let Some(event) = hubs[0].next_event() {
            if let Event::Failed { reason: why, .. } = event {
                reason = Some(why);
            }
        }
        reason.is_some()
    });
    reason.unwrap()
}

fn only_peer(hub: &Hub) -> Option<PeerInfo> {
    hub.peers().next().and_then(|peer| hub.peer(peer))
}

/// Reads a header.
fn header_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut header = vec![0; FIXED_BYTES];
    stream.read_exact(&mut header).unwrap();
    let length = Header::length(header.first_chunk().unwrap()).unwrap();
    header.resize(length, 0);
    stream.read_exact(&mut header[FIXED_BYTES..]).unwrap();
    header
}

/// A relayed connection: both ends, and the header.
fn relayed(standby: &mut Hub, address: SocketAddr, leader: &TcpListener) -> (TcpStream, TcpStream, Header) {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"x").unwrap();
    leader.set_nonblocking(true).unwrap();
    let mut accepted = None;
    until(&mut [standby], "it is relayed", |_| {
        accepted = leader.accept().ok();
        accepted.is_some()
    });
    let (mut server, _) = accepted.unwrap();
    server.set_nonblocking(false).unwrap();
    let header = Header::decode(&header_of(&mut server), &key()).unwrap();
    let mut first = [0];
    server.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"x");
    (client, server, header)
}

#[test]
fn bytes_pass_unchanged_and_each_side_ends_by_itself() {
    let leader = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut standby, address) = standby(leader.local_addr().unwrap());
    let (mut client, mut server, header) = relayed(&mut standby, address, &leader);
    assert_eq!(header.addresses, Some((client.local_addr().unwrap(), address)));
    assert_eq!(header.through, THROUGH);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 / 3) as u8).collect();
    let sending = {
        let (mut client, bytes) = (client.try_clone().unwrap(), bytes.clone());
        std::thread::spawn(move || {
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        })
    };
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert!(received == bytes);
    // The other direction goes on.
    let sending = std::thread::spawn(move || server.write_all(&bytes).map(|()| bytes));
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == sending.join().unwrap().unwrap());
    until(&mut [&mut standby], "its place is free", |hubs| hubs[0].stats().relay.connections == 0);
    let stats = standby.stats().relay;
    assert_eq!((stats.relayed, stats.failed, stats.bytes_in, stats.bytes_out), (1, 0, 3_000_001, 3_000_000));
}

#[test]
fn peer_that_does_not_read_stops_nobody() {
    let leader = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut standby, address) = standby(leader.local_addr().unwrap());
    let (_deaf, mut to_deaf, _) = relayed(&mut standby, address, &leader);
    to_deaf.set_nonblocking(true).unwrap();
    // Until all buffers between the two are full, for a while.
    let bytes = vec![0; 1 << 20];
    let (mut sent, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        if let Ok(more) = to_deaf.write(&bytes) {
            (sent, since) = (sent + more, Instant::now());
        }
        assert!(sent < 1 << 30, "it isn't held up");
        std::thread::yield_now();
    }
    let (mut client, mut server, _) = relayed(&mut standby, address, &leader);
    server.write_all(b"hello").unwrap();
    let mut received = [0; 5];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
}

#[test]
fn leader_sees_the_real_peer() {
    let (mut leader, at) = hub(|_| ());
    leader.take_relayed(Some(key()));
    let (mut standby, address) = standby(at);
    let mut clients: Vec<Hub> = (0..2).map(|_| Hub::new(HubOptions::new(SocketType::Dealer)).unwrap()).collect();
    for client in &mut clients {
        client.connect_once(&format!("tcp://{address}").parse().unwrap());
    }
    let [one, two] = &mut clients[..] else { unreachable!() };
    until(&mut [&mut leader, &mut standby, one, two], "both are ready", |hubs| hubs[0].peers().count() == 2);
    let info = only_peer(&leader).unwrap();
    assert_eq!(info.through.as_deref(), Some(THROUGH));
    assert!(info.address.to_string().starts_with("127.0.0.1:") && standby.stats().relay.connections == 2);
    // When the leader changes, all end.
    standby.end_relayed();
    until(&mut [&mut leader, &mut standby], "they end", |hubs| hubs[0].peers().count() == 0);
    assert_eq!(leader.gone().iter().filter(|gone| gone.through.as_deref() == Some(THROUGH)).count(), 2);
}

#[test]
fn connections_are_limited_by_their_real_address() {
    let (mut leader, at) = hub(|options| options.max_peers_per_address = 2);
    leader.take_relayed(Some(key()));
    let (mut standby, address) = standby(at);
    let from = |host| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        let mut client = TcpStream::from(socket);
        client.write_all(&[0xff; 20]).unwrap();
        client
    };
    let known = |hub: &Hub, host| hub.per_address.get(&Tenant::Ipv4([127, 0, 0, host].into())).copied();
    let mut clients = Vec::new();
    for count in 1..=2 {
        clients.push(from(2));
        until(&mut [&mut leader, &mut standby], "it is known", |hubs| known(hubs[0], 2) == Some(count));
    }
    clients.push(from(2));
    let reason = failure(&mut [&mut leader, &mut standby]);
    assert!(reason.contains("too many connections from its address"), "{reason}");
    assert_eq!(leader.gone()[0].address.to_string(), clients[2].local_addr().unwrap().to_string());
    clients.push(from(3));
    until(&mut [&mut leader, &mut standby], "another one is taken", |hubs| known(hubs[0], 3) == Some(1));
    assert_eq!((known(&leader, 1), known(&leader, 2)), (None, Some(2)));
}

#[test]
fn peer_over_ipc_has_the_address_of_the_standby() {
    let (mut leader, at) = hub(|_| ());
    leader.take_relayed(Some(key()));
    let (mut standby, _) = standby(at);
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Ipc(folder.path().join("socket"));
    standby.bind(&endpoint).unwrap();
    let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
    client.connect_once(&endpoint);
    until(&mut [&mut leader, &mut standby, &mut client], "it is ready", |hubs| hubs[0].peers().count() == 1);
    let info = only_peer(&leader).unwrap();
    assert!(info.through.is_some() && info.address.to_string().starts_with("127.0.0.1:"), "{}", info.address);
}

#[test]
fn bad_headers_are_refused() {
    let encode = |nonce, key: &RelayKey| {
        let addresses = Some(([192, 0, 2, 1], 1).into()).map(|address: SocketAddr| (address, address));
        Header { addresses, through: THROUGH.to_owned(), nonce: [nonce; 16] }.encode(key)
    };
    let good = encode(1, &key());
    let mut long = good.clone();
    long[14..16].copy_from_slice(&((HEADER_BYTES_MAX - FIXED_BYTES + 1) as u16).to_be_bytes());
    let (mut leader, address) = hub(|options| options.handshake_timeout = Duration::from_millis(300));
    let mut said = |bytes: &[u8], key: Option<RelayKey>| {
        leader.take_relayed(key);
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(bytes).unwrap();
        let reason = failure(&mut [&mut leader]);
        drop(client);
        reason
    };
    assert!(said(&good, None).contains("only the broker that leads a cell takes them"));
    assert!(said(&encode(2, &RelayKey::new([8; 32])), Some(key())).contains("authenticator is wrong"));
    assert!(said(&long, Some(key())).contains("too long"));
    assert!(said(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", Some(key())).contains("as one of version 2"));
    // As long as its beginning says, it is waited for, under the deadline of all handshakes.
    assert!(said(&good[..40], Some(key())).contains("did not finish in time"));
    // The first time it is taken, and what follows isn't a greeting.
    let followed = [&good[..], &[b'G'; 20]].concat();
    assert!(said(&followed, Some(key())).contains("greeting"));
    assert!(said(&good, Some(key())).contains("sent before"));
}

#[test]
fn relays_do_not_run_in_circles() {
    let ((mut one, at_one), (mut two, at_two)) = (hub(|_| ()), hub(|_| ()));
    one.relay_to(to(at_two)).unwrap();
    two.relay_to(to(at_one)).unwrap();
    let mut client = TcpStream::connect(at_one).unwrap();
    client.write_all(&[0xff; 10]).unwrap();
    let reason = failure(&mut [&mut two, &mut one]);
    assert!(reason.contains("only the broker that leads"), "{reason}");
    until(&mut [&mut one, &mut two], "it ends", |hubs| hubs[0].stats().relay.connections == 0);
    assert_eq!((one.stats().relay.relayed, two.stats().relay.relayed), (1, 0));
}

#[test]
fn connection_that_cannot_be_relayed_is_a_peer_here() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for to in [format!("tcp://{closed}"), "tcp://0.0.0.0:5555".to_owned(), "inproc://x".to_owned()] {
        let (mut standby, address) = hub(|_| ());
        let to = RelayTo { endpoint: to.parse().unwrap(), key: key(), through: String::new() };
        standby.relay_to(to).unwrap();
        let mut client = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        client.connect_once(&format!("tcp://{address}").parse().unwrap());
        until(&mut [&mut standby, &mut client], "it is ready", |hubs| hubs[0].peers().count() == 1);
        let stats = standby.stats().relay;
        assert_eq!((stats.connections, stats.relayed, stats.failed), (0, 0, 1));
        assert_eq!(only_peer(&standby).unwrap().through, None);
    }
}

#[test]
fn relayed_connections_are_limited() {
    let leader = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut standby, address) = hub(|options| options.max_peers_per_address = 1);
    standby.relay_to(to(leader.local_addr().unwrap())).unwrap();
    let (_client, _server, _) = relayed(&mut standby, address, &leader);
    let mut second = TcpStream::connect(address).unwrap();
    second.set_nonblocking(true).unwrap();
    let is_closed = |stream: &mut TcpStream| match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    until(&mut [&mut standby], "it is refused", |_| is_closed(&mut second));
}
