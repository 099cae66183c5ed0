//! Workers that return requests they have no room for.

use super::*;

fn no_place(core: &mut Core, peer: Peer, token: &Token) {
    core.worker_returns_request(1, peer, token, Body::from("no place"));
}

fn failed(action: &Action) -> bool {
    matches!(action, Action::Reply { status: Status::FAILED, .. })
}

#[test]
fn a_returned_request_goes_to_another_worker_or_fails() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::default());
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    // There is no other worker.
    no_place(&mut core, 2, &token);
    assert!(actions(&mut core).iter().any(failed));
    core.worker_ready(0, 3, Kind::Numbered, b"echo", 1);
    for number in 2..=4 {
        core.request(0, 1, number, 0, false, b"echo", Body::default());
    }
    let [(2, second, 1), (3, third, 1)] = dispatched(&mut core)[..] else { panic!("not given to both") };
    // The other one is busy, and this one rests: it waits for the other one, at the end of the queue.
    no_place(&mut core, 2, &second);
    assert_eq!(dispatched(&mut core), []);
    core.worker_reply(1, 3, &third, Status::OK, None, Body::default());
    let [(3, fourth, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 3, &fourth, Status::OK, None, Body::default());
    let [(3, second, 1)] = dispatched(&mut core)[..] else {
        panic!("not given to the other one, or it cost an attempt")
    };
    // The other worker rests too.
    no_place(&mut core, 3, &second);
    assert!(actions(&mut core).iter().any(failed));
    // It doesn't have the first one any more.
    no_place(&mut core, 2, &token);
    assert_eq!((actions(&mut core), core.counters().late_replies), (vec![], 1));
    // A reply that the broker has no room for was executed.
    core.request(1, 1, 5, 0, false, b"echo", Body::default());
    let [(3, fifth, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 3, &fifth, Status::NO_STORAGE, None, Body::from("no room"));
    let told = |action: &Action| matches!(action, Action::Reply { number: 5, status: Status::NO_STORAGE, .. });
    assert!(actions(&mut core).iter().any(told));
}

#[test]
fn rests_double_up_to_a_limit() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 8);
    core.worker_ready(0, 3, Kind::Numbered, b"echo", 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::default());
    core.request(0, 1, 2, 0, false, b"echo", Body::default());
    let [(2, mut token, 1), (3, _, 1)] = dispatched(&mut core)[..] else { panic!("not given to both") };
    let mut now = 1;
    for seconds in [1, 2, 4, 8, 16, 16] {
        core.worker_returns_request(now, 2, &token, Body::from("no place"));
        assert_eq!(dispatched(&mut core), []);
        now += seconds * 1000;
        core.tick(now - 1);
        assert!(dispatched(&mut core).is_empty() && core.next_deadline() <= now);
        core.tick(now);
        let [(2, again, 1)] = dispatched(&mut core)[..] else { panic!("not given again") };
        token = again;
    }
}

#[test]
fn requests_returned_together_count_as_one_rest() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 3);
    for number in 1..=3 {
        core.request(0, 1, number, 0, false, b"echo", Body::default());
    }
    let given = dispatched(&mut core);
    core.worker_ready(0, 3, Kind::Numbered, b"echo", 0);
    for (_, token, _) in &given {
        no_place(&mut core, 2, token);
    }
    core.tick(1000);
    assert_eq!(dispatched(&mut core), []);
    core.tick(1001);
    assert_eq!(dispatched(&mut core).len(), 3);
}

#[test]
fn parts_of_an_earlier_attempt_do_not_prevent_a_return() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::default());
    let [(2, first, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    core.worker_reply(1, 2, &first, Status::OK, Some(0), Body::from("a part"));
    core.peer_gone(1, 2);
    for peer in [3, 4] {
        core.worker_ready(1, peer, Kind::Numbered, b"echo", 1);
    }
    let [(3, second, 2)] = dispatched(&mut core)[..] else { panic!("not given to the next") };
    no_place(&mut core, 3, &second);
    assert!(matches!(dispatched(&mut core)[..], [(4, _, 2)]), "not given to the one after it");
}

#[test]
fn reply_over_a_connection_that_has_not_introduced_itself_counts() {
    let mut core = core();
    core.worker_ready(0, 2, Kind::Stock, b"echo", 1);
    core.stock_request(0, 1, true, None, b"echo", Body::from("hello"));
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    // The connection is reset, and the worker doesn't know. First a reply with a token that nobody was given.
    core.peer_gone(1, 2);
    let mut forged = token;
    forged.0[15] ^= 1;
    core.worker_reply(2, 3, &forged, Status::OK, None, Body::from("forged"));
    assert!(matches!(actions(&mut core)[..], [Action::Disconnect { peer: 3, .. }]));
    core.worker_reply(2, 3, &token, Status::OK, None, Body::from("there"));
    let [Action::StockReply { peer: 1, status: Status::OK, body, .. }, Action::Disconnect { peer: 3, .. }] =
        &actions(&mut core)[..]
    else {
        panic!("it is not taken, or the worker is not told to register again")
    };
    assert_eq!((body, core.counters().replied), (&Body::from("there"), 1));
    // Once more, by another connection: there is an outcome already.
    core.worker_reply(3, 4, &token, Status::OK, None, Body::from("again"));
    assert!(matches!(actions(&mut core)[..], [Action::Disconnect { peer: 4, .. }]));
    assert_eq!((core.load(), core.counters().late_replies), ((0, 0), 1));
}
