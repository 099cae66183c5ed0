//! Reconnecting to an endpoint where connections don't last.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::*;
use towpath_sockets::{Backoff, Endpoint, Event, Hub, SocketType};

/// Does the handshake with any peer, and ends the connection.
fn fickle_server() -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that has ended is no mistake of the test.
            let _ = stream.and_then(shake_hands);
        }
    });
    format!("tcp://127.0.0.1:{port}").parse().unwrap()
}

fn shake_hands(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(&[raw_greeting(), raw_ready()].concat())?;
    // A greeting, and a READY in a short frame.
    stream.read_exact(&mut [0; 64])?;
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut vec![0; usize::from(head[1])])
}

#[test]
fn connections_that_end_after_the_handshake_are_retried_with_backoff() {
    let reconnect = Backoff { first: Duration::from_millis(10), most: Duration::from_millis(320) };
    let mut hub = Hub::new(options(SocketType::Router).with(|options| options.reconnect = reconnect)).unwrap();
    hub.connect(&fickle_server()).unwrap();
    let begin = Instant::now();
    let mut ready = 0;
    while ready < 8 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{ready} connections");
        hub.poll(Some(Duration::from_millis(10))).unwrap();
        while let Some(event) = hub.next_event() {
            ready += usize::from(matches!(event, Event::Ready { .. }));
        }
    }
    // 10, 20, 40 ... 320, 320 milliseconds, half of them at the least; without that it would be a few in all.
    assert!(begin.elapsed() >= Duration::from_millis(475), "{:?}", begin.elapsed());
}
