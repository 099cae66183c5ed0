//! How often an endpoint is tried at which connections don't last.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Backoff, Endpoint, Event, Hub, HubOptions, SocketType};

/// Does the handshake with whoever comes, and ends the connection after as many milliseconds as are said.
fn fickle_server(lasts_ms: Arc<AtomicU64>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let lasts = Duration::from_millis(lasts_ms.load(Ordering::Relaxed));
            // A client that has ended is no mistake of the test.
            let _ = stream.and_then(|stream| shake_hands(stream, lasts));
        }
    });
    format!("tcp://127.0.0.1:{port}").parse().unwrap()
}

fn shake_hands(mut stream: TcpStream, lasts: Duration) -> std::io::Result<()> {
    stream.write_all(&[raw_greeting(), raw_ready()].concat())?;
    // A greeting, and a READY in a short frame.
    stream.read_exact(&mut [0; 64])?;
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut vec![0; usize::from(head[1])])?;
    std::thread::sleep(lasts);
    Ok(())
}

/// How many connections became ready in that time.
fn connections_in(hub: &mut Hub, time: Duration) -> usize {
    let end = Instant::now() + time;
    let mut ready = 0;
    while Instant::now() < end {
        hub.turn(Some(Duration::from_millis(10))).unwrap();
        while let Some(event) = hub.next_event() {
            ready += usize::from(matches!(event, Event::Ready { .. }));
        }
    }
    ready
}

#[test]
fn connections_that_end_right_after_the_handshake_are_tried_less_and_less_often() {
    let lasts_ms = Arc::new(AtomicU64::new(0));
    let endpoint = fickle_server(Arc::clone(&lasts_ms));
    let reconnect = Backoff { first: Duration::from_millis(10), most: Duration::from_millis(500) };
    let mut hub = Hub::new(HubOptions { reconnect, ..options(SocketType::Router) }).unwrap();
    hub.connect(&endpoint).unwrap();
    // 10, 20, 40 ... milliseconds, half of them at the least; without that it would be hundreds.
    let seen = connections_in(&mut hub, Duration::from_secs(2));
    assert!((2..=14).contains(&seen), "{seen}");
    // One that lasts makes good for it: from then on, most of the time there is a connection.
    lasts_ms.store(150, Ordering::Relaxed);
    let seen = connections_in(&mut hub, Duration::from_secs(3));
    assert!(seen >= 8, "{seen}");
}
