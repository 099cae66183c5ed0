//! Handshakes that cost a server more than their sender.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::net::{AddressFamily, SocketType};

use crate::security::keys::Keys;
use crate::support::process::{Server, run, tow};
use crate::support::tree::write;
use crate::support::wire::{command, greeting};
use crate::support::{DEADLINE, wait_until};

/// A HELLO that no key opens.
fn garbage(seed: usize) -> Vec<u8> {
    let mut data = vec![1, 0];
    data.resize(2 + 72, 0);
    data.extend(
        (0..32 + 8 + 80_usize).map(|at| (seed.wrapping_mul(2_654_435_761).wrapping_add(at * 40_503) >> 8) as u8),
    );
    [greeting("CURVE"), command("HELLO", &data)].concat()
}

fn connect_from(address: [u8; 4], port: u16) -> Option<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddr::from((address, 0))).ok()?;
    rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    Some(TcpStream::from(socket))
}

#[test]
fn honest_client_gets_in_during_a_flood_of_hellos() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source, b"content");
    let mut command = tow(["serve".as_ref(), source.as_os_str()]);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]).args(keys.server()));
    let port = server.port();

    // No amplification: the answer is shorter than what it answers.
    let hello = garbage(0);
    let mut one = connect_from([127, 0, 0, 1], port).expect("connect");
    one.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    one.write_all(&hello).expect("write");
    let mut answer = Vec::new();
    let _ = one.read_to_end(&mut answer);
    assert!((64..hello.len()).contains(&answer.len()), "{} bytes for {}", answer.len(), hello.len());

    let (ends, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let flooding: Vec<_> = (2..4_u8)
        .map(|host| {
            let (ends, sent) = (Arc::clone(&ends), Arc::clone(&sent));
            std::thread::spawn(move || {
                let mut open = std::collections::VecDeque::new();
                while !ends.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let Some(mut stream) = connect_from([127, 0, 0, host], port) else { continue };
                    let _ = stream.write_all(&garbage(number));
                    open.push_back(stream);
                    if open.len() > 200 {
                        open.pop_front();
                    }
                }
            })
        })
        .collect();
    wait_until("the flood has begun", || sent.load(Ordering::Relaxed) > 500);
    let url = format!("tcp://127.0.0.1:{port}/");
    for _ in 0..3 {
        let before = sent.load(Ordering::Relaxed);
        run(tow(["ls", &url]).args(keys.client("alice"))).expect_code(0);
        wait_until("the flood goes on", || sent.load(Ordering::Relaxed) > before);
    }
    ends.store(true, Ordering::Relaxed);
    for thread in flooding {
        thread.join().expect("no panic");
    }
}
