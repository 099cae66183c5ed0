//! Peers: facts, pauses, limits, routing ids, disconnecting. Hostile ones do no harm.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use bytes::Bytes;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{
    Endpoint, Event, Heartbeat, Hub, HubOptions, MechanismConfig, Message, ProtocolDeviations, SendError, SocketType,
};

fn bound(options: HubOptions) -> (Hub, Endpoint) {
    let mut hub = Hub::new(options).unwrap();
    let endpoint = hub.bind(&anywhere()).unwrap();
    (hub, endpoint)
}

fn failure(hub: &mut Hub) -> String {
    until(&mut [hub], |_, event| match event {
        Event::Failed { reason, connecting: false, .. } | Event::Gone { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn full_queue_returns_the_message_and_reports_when_writable() {
    let server = options(SocketType::Router).with(|options| options.send_queue_bytes = 100_000);
    let mut pair = pair(server, options(SocketType::Dealer));
    let mut sent = 0u32;
    let refused = loop {
        let message = Message::new().with(sent.to_be_bytes().to_vec()).with(vec![0; 10_000]);
        match pair.server.send(pair.at_server, message) {
            Ok(()) => sent += 1,
            Err(SendError::Full(back)) => break back,
            Err(SendError::Gone(_)) => panic!("gone"),
        }
        pair.server.poll(Some(Duration::ZERO)).unwrap();
    };
    assert_eq!(refused.length(), 10_004, "what was refused comes back whole");
    assert!(pair.server.queued(pair.at_server).memory_bytes < 120_000);
    let mut received = 0u32;
    let mut space = false;
    until(&mut [&mut pair.server, &mut pair.client], |_, event| {
        match event {
            Event::Message { frames, .. } => {
                assert_eq!(frames[0], Bytes::copy_from_slice(&received.to_be_bytes()), "none lost, in order");
                received += 1;
            }
            Event::Writable { .. } => space = true,
            _ => {}
        }
        (received == sent && space).then_some(())
    });
}

#[test]
fn pausing_reading_holds_the_sender_back() {
    let mut pair = pair(options(SocketType::Router), options(SocketType::Dealer));
    pair.server.pause_reading(pair.at_server, true);
    pair.client.send(pair.at_client, text("later")).unwrap();
    for _ in 0..20 {
        pair.client.poll(Some(Duration::from_millis(1))).unwrap();
        pair.server.poll(Some(Duration::from_millis(1))).unwrap();
        assert!(pair.server.next_event().is_none());
    }
    pair.server.pause_reading(pair.at_server, false);
    until(&mut [&mut pair.server], |_, event| matches!(event, Event::Message { .. }).then_some(()));
}

#[test]
fn disconnected_peer_learns_the_reason() {
    let mut pair = pair(options(SocketType::Router), options(SocketType::Dealer));
    pair.server.disconnect(pair.at_server, "maintenance at noon");
    let mut reasons = [None, None];
    until(&mut [&mut pair.server, &mut pair.client], |index, event| {
        if let Event::Gone { reason, .. } = event {
            reasons[index] = Some(reason);
        }
        reasons.iter().all(Option::is_some).then_some(())
    });
    for reason in reasons.into_iter().flatten() {
        assert!(reason.contains("maintenance at noon"), "{reason}");
    }
    assert!(pair.server.peer(pair.at_server).is_none());
    assert!(matches!(pair.server.send(pair.at_server, text("x")), Err(SendError::Gone(_))));
}

#[test]
fn newer_connection_takes_over_a_routing_id() {
    let client = || options(SocketType::Dealer).with(|options| options.routing_id = Bytes::from_static(b"ann"));
    let mut pair = pair(options(SocketType::Router), client());
    assert_eq!(pair.server.peer_of(b"ann"), Some(pair.at_server));
    let mut newcomer = Hub::new(client()).unwrap();
    newcomer.connect(&pair.endpoint).unwrap();
    let mut former_gone = false;
    let mut new_ready = false;
    until(&mut [&mut pair.server, &mut newcomer], |index, event| {
        match event {
            Event::Gone { peer, .. } if index == 0 => former_gone = peer == pair.at_server,
            Event::Ready { .. } if index == 1 => new_ready = true,
            _ => {}
        }
        (former_gone && new_ready).then_some(())
    });
    let now = pair.server.peer_of(b"ann").unwrap();
    assert_ne!(now, pair.at_server);
    pair.server.send(now, text("hello")).unwrap();
    until(&mut [&mut pair.server, &mut newcomer], |_, event| matches!(event, Event::Message { .. }).then_some(()));
}

#[test]
fn nobody_takes_over_the_routing_id_of_another_user() {
    let mut server =
        Hub::new(options(SocketType::Router).with(|options| options.mechanism = MechanismConfig::PlainServer)).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let mut at_server = Vec::new();
    let mut clients = Vec::new();
    for user in ["ann", "bob"] {
        let mechanism = MechanismConfig::PlainClient { user: user.into(), password: "1".into() };
        let routing_id = Bytes::from_static(b"the same");
        let mut client = Hub::new(options(SocketType::Dealer).with(|options| {
            options.routing_id = routing_id;
            options.mechanism = mechanism;
        }))
        .unwrap();
        client.connect(&endpoint).unwrap();
        let (mut id, mut is_ready) = (None, false);
        let deadline = Instant::now() + Duration::from_secs(20);
        while id.is_none() || !is_ready {
            assert!(Instant::now() < deadline, "{user} isn't connected");
            server.poll(Some(Duration::from_millis(1))).unwrap();
            client.poll(Some(Duration::from_millis(1))).unwrap();
            while let Some(event) = server.next_event() {
                match event {
                    Event::Authenticate { peer, credentials } => {
                        server.authenticate(peer, Some(credentials.principal()))
                    }
                    Event::Ready { peer } => id = Some(peer),
                    Event::Gone { peer, .. } => panic!("{peer} is gone"),
                    _ => {}
                }
            }
            is_ready |= std::iter::from_fn(|| client.next_event()).any(|event| matches!(event, Event::Ready { .. }));
        }
        at_server.extend(id);
        clients.push(client);
    }
    assert_eq!(server.peer_of(b"the same"), Some(at_server[0]));
    assert!(at_server.iter().all(|peer| server.peer(*peer).is_some()));
}

#[test]
fn silent_peer_is_disconnected_and_an_answering_one_is_not() {
    let heartbeat = Heartbeat {
        interval: Duration::from_millis(30),
        timeout: Duration::from_millis(120),
        ttl: Duration::from_millis(200),
    };
    let server = options(SocketType::Router).with(|options| options.heartbeat = Some(heartbeat));
    let mut pair = pair(server, options(SocketType::Dealer));
    let mut silent = raw_connection(&pair.endpoint);
    silent.write_all(&[raw_greeting(), raw_ready()].concat()).unwrap();
    let (peer, reason) = until(&mut [&mut pair.server, &mut pair.client], |index, event| match event {
        Event::Gone { peer, reason } if index == 0 => Some((peer, reason)),
        _ => None,
    });
    assert_ne!(peer, pair.at_server, "the peer that answers stays");
    assert!(reason.contains("PING"), "{reason}");
}

#[test]
fn peers_that_answered_while_the_process_was_stopped_stay() {
    let heartbeat =
        Heartbeat { interval: Duration::from_millis(30), timeout: Duration::from_millis(120), ttl: Duration::ZERO };
    let (mut server, endpoint) = bound(options(SocketType::Router).with(|options| options.heartbeat = Some(heartbeat)));
    // More than one wait takes the readiness of.
    let mut peers: Vec<_> = (0..400).map(|_| raw_connection(&endpoint)).collect();
    for peer in &mut peers {
        peer.set_nonblocking(true).unwrap();
        peer.write_all(&[raw_greeting(), raw_ready()].concat()).unwrap();
    }
    let has_ping = |peer: &TcpStream| {
        let mut said = [0; 512];
        peer.peek(&mut said).is_ok_and(|bytes| said[..bytes].windows(5).any(|name| name == b"\x04PING"))
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !peers.iter().all(has_ping) {
        assert!(Instant::now() < deadline, "not everyone gets a PING");
        for peer in peers.iter_mut().filter(|peer| has_ping(peer)) {
            peer.write_all(b"\x04\x05\x04PONG").unwrap();
        }
        server.poll(Some(Duration::from_millis(1))).unwrap();
    }
    for peer in &mut peers {
        peer.write_all(b"\x04\x05\x04PONG").unwrap();
    }
    let stopped = Instant::now();
    while stopped.elapsed() < 2 * (heartbeat.interval + heartbeat.timeout) {
        std::thread::yield_now();
    }
    server.poll(Some(Duration::ZERO)).unwrap();
    let gone = std::iter::from_fn(|| server.next_event()).find(|event| matches!(event, Event::Gone { .. }));
    assert!(gone.is_none(), "{gone:?}");
}

#[test]
fn garbage_is_named() {
    let (mut server, endpoint) = bound(options(SocketType::Router));
    let mut connection = raw_connection(&endpoint);
    connection.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(failure(&mut server).contains("a web client (HTTP)"));
    let mut rest = Vec::new();
    let _ = connection.read_to_end(&mut rest);

    let mut connection = raw_connection(&endpoint);
    let monster = [&[2u8][..], &(1u64 << 63).to_be_bytes()].concat();
    connection.write_all(&[raw_greeting(), raw_ready(), monster].concat()).unwrap();
    assert!(failure(&mut server).contains("9223372036854775808"));

    let mut connection = raw_connection(&endpoint);
    connection.write_all(&[raw_greeting(), raw_ready(), [1, 0].repeat(5000)].concat()).unwrap();
    assert!(failure(&mut server).contains("4096 frames"));
}

#[test]
fn protocol_deviations_are_skipped_and_counted() {
    let (mut server, endpoint) = bound(options(SocketType::Router));
    let mut connection = raw_connection(&endpoint);
    let (unknown, odd) = (b"\x04\x08\x07UNKNOWN", b"\xf8\x05hello");
    // A command isn't part of a message.
    let more = b"\x05\x05\x04PONG";
    connection.write_all(&[&raw_greeting()[..], &raw_ready(), unknown, more, odd, odd].concat()).unwrap();
    let mut messages = 0;
    let peer = until(&mut [&mut server], |_, event| match event {
        Event::Message { peer, .. } => {
            messages += 1;
            (messages == 2).then_some(peer)
        }
        _ => None,
    });
    assert_eq!(server.peer(peer).unwrap().deviations, ProtocolDeviations { unknown_commands: 1, reserved_bits: 3 });
}

#[test]
fn handshake_has_one_deadline() {
    let server = options(SocketType::Router).with(|options| options.handshake_timeout = Duration::from_millis(200));
    let (mut server, endpoint) = bound(server);
    let mut connection = raw_connection(&endpoint);
    let reason = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A byte now and then, for ever; the server ends it.
            for byte in raw_greeting().iter().cycle().take(10_000) {
                if connection.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let reason = failure(&mut server);
        drop(server);
        reason
    });
    assert!(reason.contains("in time"), "{reason}");
}

#[test]
fn connections_are_limited_by_address_and_the_oldest_handshake_ends() {
    let server = options(SocketType::Router).with(|options| {
        options.max_peers_per_address = 3;
        options.max_handshakes = 2;
    });
    let (mut server, endpoint) = bound(server);
    let first = raw_connection(&endpoint);
    let _second = raw_connection(&endpoint);
    let mut third = raw_connection(&endpoint);
    assert!(failure(&mut server).contains("oldest"));
    third.write_all(&[raw_greeting(), raw_ready()].concat()).unwrap();
    until(&mut [&mut server], |_, event| matches!(event, Event::Ready { .. }).then_some(()));
    drop(first);
    let _fourth = raw_connection(&endpoint);
    let mut fifth = raw_connection(&endpoint);
    // The fifth is one too many from this address: it is closed at once.
    std::thread::scope(|scope| {
        let closed = scope.spawn(move || {
            let mut bytes = Vec::new();
            let _ = fifth.read_to_end(&mut bytes);
            bytes
        });
        while !closed.is_finished() {
            server.poll(Some(Duration::from_millis(5))).unwrap();
            while server.next_event().is_some() {}
        }
        assert!(closed.join().unwrap().len() <= 64);
    });
}

#[test]
fn incompatible_socket_types_are_refused_by_name() {
    let (mut server, endpoint) = bound(options(SocketType::Router));
    let mut connection = raw_connection(&endpoint);
    let ready = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH".to_vec();
    connection.write_all(&[raw_greeting(), ready].concat()).unwrap();
    let reason = failure(&mut server);
    assert!(reason.contains("PUSH") && reason.contains("ROUTER"), "{reason}");
}

#[test]
fn connect_once_makes_one_attempt() {
    let (mut server, endpoint) = bound(options(SocketType::Router));
    let mut client = Hub::new(options(SocketType::Dealer)).unwrap();
    let nobody: Endpoint = "ipc:///nowhere/at/all".parse().unwrap();
    client.connect_once(&nobody);
    until(&mut [&mut client], |_, event| matches!(event, Event::Failed { connecting: true, .. }).then_some(()));

    client.connect_once(&endpoint);
    let peers = ready(&mut [&mut server, &mut client]);
    server.disconnect(peers[0], "go away");
    until(&mut [&mut server, &mut client], |index, event| {
        (index == 1 && matches!(event, Event::Gone { .. })).then_some(())
    });
    // Longer than the first backoff of a connector.
    let end = std::time::Instant::now() + Duration::from_millis(300);
    while std::time::Instant::now() < end {
        for hub in [&mut server, &mut client] {
            hub.poll(Some(Duration::from_millis(5))).unwrap();
            assert!(!matches!(hub.next_event(), Some(Event::Ready { .. } | Event::Failed { .. })));
        }
    }
}

#[test]
fn slot_of_a_peer_that_is_gone_can_be_reserved() {
    let (mut server, endpoint) = bound(options(SocketType::Router));
    let come_and_go = |server: &mut Hub, keep: bool| {
        let mut client = Hub::new(options(SocketType::Dealer)).unwrap();
        client.connect(&endpoint).unwrap();
        let came = until(&mut [&mut *server, &mut client], |hub, event| match event {
            Event::Ready { peer } if hub == 0 => Some(peer),
            _ => None,
        });
        drop(client);
        let gone = until(&mut [&mut *server], |_, event| match event {
            Event::Gone { peer, .. } => Some(peer),
            _ => None,
        });
        assert_eq!(came, gone);
        assert_eq!(keep && server.reserve_slot(gone), keep);
        gone
    };
    let first = come_and_go(&mut server, false);
    let second = come_and_go(&mut server, true);
    assert_eq!(first.slot(), second.slot(), "it was free");
    assert!(!server.reserve_slot(first), "it was another's by then");
    let third = come_and_go(&mut server, false);
    assert_ne!(third.slot(), second.slot(), "it is kept");
    server.release_slot(second);
    server.release_slot(second);
    let next: Vec<_> = (0..2).map(|_| come_and_go(&mut server, true).slot()).collect();
    assert!(next.contains(&second.slot()) && next.contains(&third.slot()), "{next:?}");
}
