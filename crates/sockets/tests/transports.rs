//! The same messages over tcp, ipc and inproc.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use bytes::Bytes;
use support::*;
use towpath_sockets::{Address, Credentials, Endpoint, Event, Hub, MechanismConfig, Message, Principal, SocketType};

fn echo_over(endpoint: &str) -> Pair {
    let endpoint = endpoint.parse().unwrap();
    let mut pair = pair_at(&endpoint, options(SocketType::Router), options(SocketType::Dealer));
    let large = Bytes::from(vec![7; 3_000_000]);
    let message = Message::new().with(Bytes::new()).with(&b"small"[..]).with(large.clone());
    pair.client.send(pair.at_client, message).unwrap();
    let frames = until(&mut [&mut pair.server, &mut pair.client], |_, event| match event {
        Event::Message { frames, .. } => Some(frames),
        _ => None,
    });
    assert_eq!(&frames[..], [Bytes::new(), Bytes::from_static(b"small"), large]);
    pair.server.send(pair.at_server, frames.into_iter().collect::<Message>()).unwrap();
    let back = until(&mut [&mut pair.server, &mut pair.client], |_, event| match event {
        Event::Message { frames, .. } => Some(frames.len()),
        _ => None,
    });
    assert_eq!(back, 3);
    pair
}

#[test]
fn tcp_over_ipv4_and_ipv6() {
    let pair = echo_over("tcp://127.0.0.1:0");
    let info = pair.server.peer(pair.at_server).unwrap();
    assert!(matches!(info.address, Address::Tcp(address) if address.ip().is_loopback() && address.port() > 0));
    assert_eq!((info.messages_in, info.messages_out), (1, 1));
    assert!(info.bytes_in > 3_000_000 && info.bytes_out > 3_000_000);
    assert_eq!(info.version, (3, 1));
    assert_eq!(info.queued.messages, 0);
    echo_over("tcp://[::1]:0");
}

#[test]
fn ipc_address_names_the_peers_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let pair = echo_over(&format!("ipc://{}", path.display()));
    let Address::Ipc { pid, uid } = pair.server.peer(pair.at_server).unwrap().address else { panic!("not ipc") };
    assert_eq!(pid, Some(std::process::id() as i32));
    assert_eq!(uid, Some(rustix::process::getuid().as_raw()));
    drop(pair);
    assert!(!path.exists(), "the socket's name goes with the listener");
}

#[test]
fn ipc_reuses_only_abandoned_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let endpoint = format!("ipc://{}", path.display()).parse().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut first = Hub::new(options(SocketType::Router)).unwrap();
    first.bind(&endpoint).unwrap();
    let mut second = Hub::new(options(SocketType::Router)).unwrap();
    assert!(second.bind(&endpoint).is_err(), "somebody listens there");
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(second.bind(&format!("ipc://{}", file.display()).parse().unwrap()).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[test]
fn one_of_many_takes_over_an_abandoned_socket() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = folder.path().join(format!("socket-{round}"));
        let endpoint: Endpoint = format!("ipc://{}", path.display()).parse().unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let bind = || {
            let mut hub = Hub::new(options(SocketType::Router)).unwrap();
            hub.bind(&endpoint).is_ok().then_some(hub)
        };
        let bound: Vec<Hub> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(bound.len(), 1, "the others see that somebody listens");
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }
}

#[test]
fn inproc() {
    let pair = echo_over("inproc://transports");
    assert_eq!(pair.server.peer(pair.at_server).unwrap().address, Address::Inproc);
}

#[test]
fn all_addresses_of_a_name_are_tried() {
    let mut server = Hub::new(options(SocketType::Router)).unwrap();
    let Endpoint::Tcp { port, .. } = server.bind(&anywhere()).unwrap() else { panic!("not tcp") };
    let name: Endpoint = format!("tcp://localhost:{port}").parse().unwrap();
    for again in [false, true] {
        let mut client = Hub::new(options(SocketType::Dealer)).unwrap();
        if again {
            client.connect(&name).unwrap();
        } else {
            client.connect_once(&name);
        }
        let peers = ready(&mut [&mut server, &mut client]);
        assert!(client.peer(peers[1]).is_some_and(|peer| matches!(peer.address, Address::Tcp(_))));
    }
}

#[test]
fn client_reconnects_when_the_server_is_back() {
    let Pair { server, mut client, endpoint, .. } = pair(options(SocketType::Router), options(SocketType::Dealer));
    drop(server);
    until(&mut [&mut client], |_, event| matches!(event, Event::Gone { .. }).then_some(()));
    until(&mut [&mut client], |_, event| matches!(event, Event::Failed { connecting: true, .. }).then_some(()));
    let mut server = Hub::new(options(SocketType::Router)).unwrap();
    server.bind(&endpoint).unwrap();
    ready(&mut [&mut server, &mut client]);
}

#[test]
fn plain_users_connect_if_the_application_accepts_them() {
    for password in ["right", "wrong"] {
        let mut server_options = options(SocketType::Router);
        server_options.mechanism = MechanismConfig::PlainServer;
        let mut client_options = options(SocketType::Dealer);
        client_options.mechanism = MechanismConfig::PlainClient { user: "ann".into(), password: password.into() };
        let mut server = Hub::new(server_options).unwrap();
        let mut client = Hub::new(client_options).unwrap();
        let endpoint = server.bind(&anywhere()).unwrap();
        client.connect(&endpoint).unwrap();
        let asking = until(&mut [&mut server, &mut client], |_, event| match event {
            Event::Authenticate { peer, credentials } => Some((peer, credentials)),
            _ => None,
        });
        let shown = Credentials::Plain { user: "ann".into(), password: bytes::Bytes::from(password).into() };
        assert_eq!(asking.1, shown);
        server.authenticate(asking.0, (password == "right").then(|| shown.principal()));
        let outcome = until(&mut [&mut server, &mut client], |index, event| match (index, event) {
            (1, Event::Ready { .. }) => Some("in".to_owned()),
            (1, Event::Failed { reason, .. }) => Some(reason),
            _ => None,
        });
        match password {
            "right" => assert_eq!(outcome, "in"),
            _ => assert!(outcome.contains("400"), "{outcome}"),
        }
        if password == "right" {
            assert_eq!(server.peer(asking.0).unwrap().principal, Principal::User("ann".into()));
        }
    }
}
