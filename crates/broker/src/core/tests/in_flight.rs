//! In-flight windows.

use super::*;

const MIB: usize = 1 << 20;

fn large() -> Body {
    Body::from(Bytes::from(vec![1; MIB]))
}

fn replies(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Reply { .. })).count()
}

/// Actions in each round, until a flush opens no window.
fn by_turns(core: &mut Core, count: fn(&[Action]) -> usize) -> Vec<usize> {
    let mut turns = vec![count(&actions(core))];
    while core.flushed(0) {
        turns.push(count(&actions(core)));
    }
    turns
}

#[test]
fn a_worker_gets_more_as_its_window_opens() {
    let mut core = core();
    for peer in 0..2 {
        core.stock_request(0, peer, true, None, b"echo", Body::default());
        (0..20).for_each(|_| core.stock_request(0, peer, true, None, b"echo", large()));
    }
    core.worker_ready(0, 9, Kind::Numbered, b"echo", 4096);
    let first = dispatched(&mut core).len();
    assert!((4..8).contains(&first), "{first}");
    // Nothing while it is blocked.
    core.peer_blocked(0, 9, true);
    assert!(!core.flushed(0) && dispatched(&mut core).is_empty());
    core.peer_blocked(0, 9, false);
    let second = dispatched(&mut core).len();
    assert!((4..8).contains(&second), "{second}");
    let dispatches = |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::Dispatch { .. })).count();
    let rest = by_turns(&mut core, dispatches);
    assert!(rest.iter().all(|&turn| turn < 8), "{rest:?}");
    assert_eq!(first + second + rest.iter().sum::<usize>(), 42);
}

#[test]
fn pending_outcomes_are_sent_as_the_window_opens() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 100);
    (1..=40).for_each(|number| core.request(0, 1, number, 0, false, b"echo", Body::default()));
    let given = dispatched(&mut core);
    core.peer_gone(0, 1);
    given.iter().for_each(|(peer, token, _)| core.worker_reply(0, *peer, token, Status::OK, None, large()));
    core.client_hello(0, 3, CLIENT, 1);
    // Each outcome is sent once, however often the client asks.
    for _ in 0..50 {
        (1..=40).for_each(|number| core.request(0, 3, number, 0, false, b"echo", Body::default()));
    }
    // One of them is confirmed meanwhile.
    core.confirm(0, 3, 40, 1);
    let turns = by_turns(&mut core, replies);
    assert!(turns.iter().all(|&turn| turn < 8), "{turns:?}");
    let answered: usize = turns.iter().sum();
    assert!((39..50).contains(&answered), "{answered}");
    // Outcomes that were pending when the connection ended are sent on the next one, if the client asks.
    (1..=39).for_each(|number| core.request(0, 3, number, 0, false, b"echo", Body::default()));
    core.client_hello(0, 4, CLIENT, 1);
    core.check();
    (1..=39).for_each(|number| core.request(0, 4, number, 0, false, b"echo", Body::default()));
    let answered: usize = by_turns(&mut core, replies).iter().sum();
    assert!(answered >= 39, "{answered}");
}

#[test]
fn a_stock_client_never_gets_parts_of_two_workers() {
    let mut core = core();
    core.stock_request(0, 1, false, None, b"echo", Body::from("please"));
    core.worker_ready(0, 2, Kind::Stock, b"echo", 1);
    core.worker_ready(0, 3, Kind::Stock, b"echo", 1);
    let [(worker, token, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(0, worker, &token, Status::OK, Some(0), Body::from("half"));
    assert!(matches!(actions(&mut core)[..], [Action::StockReply { partial: true, .. }]));
    core.peer_gone(0, worker);
    let done = actions(&mut core);
    let [Action::StockReply { status: Status::LOST, partial: false, .. }] = &done[..] else { panic!("{done:?}") };
}
