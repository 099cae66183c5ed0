//! Running out of file descriptors, in a process of its own because the limit is the process's.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpStream;
use support::*;
use towpath_sockets::{Endpoint, Event, Hub, SocketType};

#[test]
fn accepting_resumes_when_descriptors_are_free() {
    let mut server = Hub::new(options(SocketType::Router)).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let Endpoint::Tcp { host, port } = &endpoint else { panic!("not tcp") };
    let mut client = Hub::new(options(SocketType::Dealer)).unwrap();

    let mut clients: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect((host.as_str(), *port)).unwrap()).collect();
    let highest = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(highest + 5), maximum: before.maximum }).unwrap();
    for _ in 0..20 {
        server.poll(Some(std::time::Duration::from_millis(1))).unwrap();
        while server.next_event().is_some() {}
    }
    assert!(TcpStream::connect((host.as_str(), *port)).is_err(), "this process is out of descriptors");
    clients.clear();
    client.connect(&endpoint).unwrap();
    let mut both = [false; 2];
    until(&mut [&mut server, &mut client], |index, event| {
        both[index] |= matches!(event, Event::Ready { .. });
        both.iter().all(|ready| *ready).then_some(())
    });
    setrlimit(Resource::Nofile, before).unwrap();
}
