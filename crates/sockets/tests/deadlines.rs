//! Deadlines: TTLs of peers that are not always read, and times beyond the clock.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Backoff, Endpoint, Event, Heartbeat, Hub, HubOptions, Socket, SocketError, SocketType};

#[test]
fn silence_of_a_paused_peer_counts_from_resuming() {
    let mut hub = Hub::new(options(SocketType::Router)).unwrap();
    let Endpoint::Tcp { host, port } = hub.bind(&anywhere()).unwrap() else { panic!("not tcp") };
    let mut client = TcpStream::connect((host, port)).unwrap();
    // A PING whose TTL is a tenth of a second.
    let said = [raw_greeting(), raw_ready(), b"\x04\x07\x04PING\x00\x01".to_vec()].concat();
    client.write_all(&said).unwrap();
    let begin = Instant::now();
    let peer = loop {
        hub.poll(Some(Duration::from_millis(1))).unwrap();
        let peer = hub.peers().next().and_then(|peer| hub.peer(peer));
        if let Some(peer) = peer.filter(|peer| peer.bytes_in == said.len() as u64) {
            break peer.id;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "what was said has not come");
    };
    hub.pause_reading(peer, true);
    while hub.deadline().is_some() {
        hub.poll(Some(Duration::from_millis(1))).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20), "a deadline that rests is waited for");
    }
    assert!(hub.peer(peer).is_some(), "the silence of a peer that isn't read from is not its own");
    hub.pause_reading(peer, false);
    let reason = until(&mut [&mut hub], |_, event| match event {
        Event::Gone { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(reason.contains("TTL"), "{reason}");
}

/// No clock counts to any of these; or one does that nobody waits for.
fn without_end(socket_type: SocketType, most: Duration) -> HubOptions {
    options(socket_type).with(|options| {
        options.heartbeat = Some(Heartbeat { interval: most, timeout: most, ttl: most });
        options.handshake_timeout = most;
        options.busy_poll = most;
        options.reconnect = Backoff { first: most, most };
        options.stable_after = most;
    })
}

#[test]
fn times_beyond_the_clock_never_come() {
    let most = Duration::MAX;
    let mut pair = pair(without_end(SocketType::Router, most), without_end(SocketType::Dealer, most));
    for _ in 0..20 {
        pair.client.send(pair.at_client, text("x")).unwrap();
        until(&mut [&mut pair.server, &mut pair.client], |index, event| {
            (index == 0 && matches!(event, Event::Message { .. })).then_some(())
        });
    }
    assert!(pair.client.deadline().is_none());
    drop(pair.server);
    until(&mut [&mut pair.client], |_, event| matches!(event, Event::Gone { .. }).then_some(()));
    assert!(pair.client.deadline().is_none(), "nobody waits to connect again");
    pair.client.poll(Some(Duration::from_millis(1))).unwrap();
    assert!(pair.client.close(Duration::MAX).unwrap().is_empty());
}

#[tokio::test]
async fn sockets_accept_times_beyond_the_clock() {
    for most in [Duration::MAX, Duration::from_secs(1 << 62)] {
        let [one, other] =
            [SocketType::Rep, SocketType::Req].map(|socket_type| Socket::new(without_end(socket_type, most)).unwrap());
        socket::join(&one, &other, &anywhere());
        for _ in 0..20 {
            socket::send(&other, &["?"]).await;
            socket::recv(&one).await;
            socket::send(&one, &["!"]).await;
            socket::recv(&other).await;
        }
        drop(one);
        assert!(matches!(socket::within("it fails", other.recv()).await, Err(SocketError::OutOfTurn(_))));
        assert!(socket::within("it is closed", other.close(most)).await.is_empty());
    }
}
