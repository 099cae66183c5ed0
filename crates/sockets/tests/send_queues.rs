//! The budget for all send queues holds, whichever peers don't read.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::time::Duration;
use support::*;
use towpath_sockets::{Event, Hub, HubOptions, Message, PeerId, SendError, SocketType};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Minimum limit of each queue; see `HubOptions::queued_bytes_max`.
const LEAST: usize = 16 * KIB;

/// Bytes of a message, with what is counted for it beside.
const MESSAGE: usize = 4 * KIB;

/// A server, and this many clients that only read what they are turned for.
fn crowd(server: HubOptions, count: usize) -> (Hub, Vec<Hub>, Vec<PeerId>) {
    let mut server = Hub::new(server).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let (mut clients, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let mut client = Hub::new(options(SocketType::Dealer)).unwrap();
        client.connect(&endpoint).unwrap();
        peers.push(ready(&mut [&mut server, &mut client])[0]);
        clients.push(client);
    }
    (server, clients, peers)
}

/// Sends until the queue is full, whatever the kernel has taken; how many messages.
fn fill(server: &mut Hub, peer: PeerId) -> usize {
    let mut sent = 0;
    loop {
        match server.send(peer, Message::new().with(vec![7; MESSAGE - 100])) {
            Ok(()) => sent += 1,
            Err(SendError::Full(_)) => return sent,
            Err(SendError::Gone(_)) => panic!("gone"),
        }
        if sent % 64 == 0 {
            server.flush();
        }
    }
}

#[test]
fn full_queues_leave_some_budget_for_others_and_stay_within_it() {
    let most = 4 * MIB;
    let server = options(SocketType::Router).with(|options| {
        options.send_queue_bytes = MIB;
        options.queued_bytes_max = most;
    });
    let (mut server, mut clients, peers) = crowd(server, 40);
    let (last, others) = peers.split_last().unwrap();
    for peer in others {
        fill(&mut server, *peer);
        assert!(server.queued(*peer).memory_bytes >= LEAST);
    }
    // The kernel may take some of what waited for the first ones, and they are filled again, until nothing more goes.
    while others.iter().map(|peer| fill(&mut server, *peer)).sum::<usize>() > 0 {
        server.flush();
    }
    assert!(server.queued(others[0]).memory_bytes < MIB, "it had less than it may have alone");
    let beside = others.len() * (LEAST + MESSAGE);
    assert!((most / 2..most + beside).contains(&server.queued_bytes()), "{}", server.queued_bytes());
    let sum: usize = peers.iter().map(|peer| server.queued(*peer).memory_bytes).sum();
    assert_eq!(server.queued_bytes(), sum);
    assert!(server.is_writable(*last));
    let sent = fill(&mut server, *last);
    assert!(sent * MESSAGE >= LEAST);
    // A peer that reads gets everything, and its queue takes more.
    let (mut got, mut space) = (0, false);
    until(&mut [&mut server, clients.last_mut().unwrap()], |at, event| {
        match event {
            Event::Message { .. } => got += usize::from(at == 1),
            Event::Writable { peer } => space |= peer == *last,
            _ => {}
        }
        (got == sent && space).then_some(())
    });
    assert!(server.is_writable(*last));
}

#[test]
fn queue_takes_its_minimum_when_the_budget_is_used_up() {
    let server = options(SocketType::Router).with(|options| options.queued_bytes_max = 1);
    let (mut server, clients, peers) = crowd(server, 4);
    for peer in &peers {
        while fill(&mut server, *peer) > 0 {
            server.flush();
        }
        let queued = server.queued(*peer).memory_bytes;
        assert!((LEAST..LEAST + MESSAGE).contains(&queued), "{queued}");
    }
    let all = server.queued_bytes();
    // Nothing, if all of it was gathered to be written together.
    let removed = server.clear_queue(peers[0]);
    assert_eq!(server.queued_bytes(), all - removed.memory_bytes);
    server.disconnect(peers[1], "enough");
    drop(clients);
    let mut left = peers.len();
    until(&mut [&mut server], |_, event| {
        left -= usize::from(matches!(event, Event::Gone { .. }));
        (left == 0).then_some(())
    });
    assert_eq!(server.queued_bytes(), 0);
    server.poll(Some(Duration::ZERO)).unwrap();
}
