//! Decisions about credentials that take long.

mod support;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use support::*;
use towpath_sockets::{Authenticator, Event, Hub, MechanismConfig, SocketType};

/// Decisions that have begun, those that are not over, and whether they may end.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, usize, bool)>,
    changed: Condvar,
}

#[test]
fn slow_decisions_are_few_at_a_time_and_hold_up_nobody() {
    const CLIENTS: usize = 5;
    let gate = Arc::new(Gate::default());
    let at_gate = Arc::clone(&gate);
    let authenticator = Authenticator::slow(move |credentials| {
        let mut state = at_gate.state.lock().unwrap();
        (state.0, state.1) = (state.0 + 1, state.1 + 1);
        assert!(state.1 <= 2, "more than two at a time");
        while !state.2 {
            state = at_gate.changed.wait(state).unwrap();
        }
        state.1 -= 1;
        Some(credentials.principal())
    });
    let mut server_options = options(SocketType::Router);
    server_options.mechanism = MechanismConfig::PlainServer;
    let mut server = Hub::new(server_options).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let mut clients: Vec<Hub> = (0..CLIENTS)
        .map(|number| {
            let mut client_options = options(SocketType::Dealer);
            client_options.mechanism = MechanismConfig::PlainClient { user: number.to_string(), password: "x".into() };
            let mut client = Hub::new(client_options).unwrap();
            client.connect(&endpoint).unwrap();
            client
        })
        .collect();
    let (mut asked, mut ready) = (0, 0);
    let mut turn = |ready: &mut usize| {
        for client in &mut clients {
            client.poll(Some(Duration::from_millis(1))).unwrap();
            while client.next_event().is_some() {}
        }
        server.poll(Some(Duration::from_millis(1))).unwrap();
        while let Some(event) = server.next_event() {
            match event {
                Event::Authenticate { peer, credentials } => {
                    asked += 1;
                    server.authenticate_by(Some(&authenticator), peer, credentials);
                }
                Event::Ready { .. } => *ready += 1,
                other => panic!("{other:?}"),
            }
        }
        asked
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    // The hub goes on although decisions wait.
    while turn(&mut ready) < CLIENTS || gate.state.lock().unwrap().0 < 2 {
        assert!(std::time::Instant::now() < deadline, "not all have asked");
    }
    assert_eq!((ready, gate.state.lock().unwrap().0), (0, 2));
    gate.state.lock().unwrap().2 = true;
    gate.changed.notify_all();
    while ready < CLIENTS {
        turn(&mut ready);
        assert!(std::time::Instant::now() < deadline, "{ready} are ready");
    }
}
