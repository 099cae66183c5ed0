//! Many peers that all send more than is read in a poll.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::collections::HashSet;
use std::time::Duration;
use support::*;
use towpath_sockets::{Event, Hub, Message, SocketType};

const PEERS: usize = 40;

/// Of each. As they come, they fill a turn, and more.
const MESSAGES: usize = 50_000;

#[test]
fn peers_that_flood_are_read_in_turn() {
    let mut server = Hub::new(options(SocketType::Router)).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let mut clients = Vec::new();
    for _ in 0..PEERS {
        let mut client = Hub::new(options(SocketType::Dealer)).unwrap();
        client.connect(&endpoint).unwrap();
        let [_, at_client] = ready(&mut [&mut server, &mut client])[..] else { panic!("not ready") };
        clients.push((client, at_client));
    }
    for (client, peer) in &mut clients {
        for _ in 0..MESSAGES {
            client.send(*peer, Message::new().with(Vec::new())).unwrap();
        }
        client.flush();
        assert!(!client.has_output());
    }
    let (mut received, mut turns, mut messages) = (HashSet::new(), 0, 0);
    while received.len() < PEERS {
        turns += 1;
        assert!(turns <= PEERS + 5, "{} of {PEERS} were read, with {messages} messages", received.len());
        server.poll(Some(Duration::from_secs(1))).unwrap();
        while let Some(event) = server.next_event() {
            if let Event::Message { peer, .. } = event {
                received.insert(peer);
                messages += 1;
            }
        }
    }
    // Not because everything fits into so few polls.
    assert!(messages < PEERS * MESSAGES);
}
