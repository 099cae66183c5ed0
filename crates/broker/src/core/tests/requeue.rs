//! Workers that give requests back which they can't begin.

use super::*;

fn no_place(core: &mut Core, peer: Peer, token: &Token) {
    core.worker_returns_request(1, peer, token, b"no place");
}

#[test]
fn a_request_given_back_goes_to_another_worker_and_costs_no_attempt() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.worker_ready(0, 3, Kind::Numbered, b"echo", 1);
    for number in 1..=3 {
        core.request(0, 1, number, 0, false, b"echo", Body::default());
    }
    let [(2, first, 1), (3, second, 1)] = dispatched(&mut core)[..] else { panic!("not given to both") };
    // The other one is busy, and this one rests: it waits for the other one, at the end of the queue.
    no_place(&mut core, 2, &first);
    assert_eq!(dispatched(&mut core), []);
    core.worker_reply(1, 3, &second, Status::OK, None, Body::default());
    let [(3, third, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 3, &third, Status::OK, None, Body::default());
    let [(3, again, 1)] = dispatched(&mut core)[..] else { panic!("not given, or it cost an attempt") };
    core.worker_reply(1, 3, &again, Status::OK, None, Body::default());
    actions(&mut core);
    // The first one doesn't have it any more.
    no_place(&mut core, 2, &first);
    assert_eq!((actions(&mut core), core.counters().late_replies), (vec![], 1));
    // A reply that the broker has no space for was executed.
    core.request(1, 1, 5, 0, false, b"echo", Body::default());
    let [(3, fifth, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 3, &fifth, Status::NO_STORAGE, None, Body::from("no space"));
    let answered = |action: &Action| matches!(action, Action::Reply { number: 5, status: Status::NO_STORAGE, .. });
    assert!(actions(&mut core).iter().any(answered));
}

#[test]
fn what_the_only_worker_gives_back_waits_until_it_expires() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.request(0, 1, 1, 5_000, false, b"echo", Body::default());
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    assert_eq!(core.worker_returns_request(1, 2, &token, b"cannot start /tmp/x"), Some(1_000));
    let worker = core.worker(2).unwrap();
    assert_eq!((worker.rests_until, worker.gave_back.as_deref()), (Some(1_001), Some(&b"cannot start /tmp/x"[..])));
    core.tick(1_001);
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given again") };
    no_place(&mut core, 2, &token);
    core.tick(5_000);
    let answered = actions(&mut core);
    assert!(matches!(answered[..], [Action::Reply { number: 1, status: Status::EXPIRED, .. }]), "{answered:?}");
    // What works again says nothing of the past.
    core.tick(20_000);
    core.request(20_000, 1, 2, 0, false, b"echo", Body::default());
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("it rests for ever") };
    core.worker_reply(20_001, 2, &token, Status::OK, None, Body::default());
    assert_eq!(core.worker(2).and_then(|worker| worker.gave_back), None);
}

#[test]
fn a_request_that_was_sent_elsewhere_before_may_have_been_executed() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    let sent = Sent { volatile: false, resent: true };
    core.request(0, 1, 1, 0, sent, b"echo", Body::default());
    for peer in 2.. {
        core.worker_ready(1, peer, Kind::Numbered, b"echo", 1);
        // It has as many attempts here as any other.
        let [(_, _, attempt)] = dispatched(&mut core)[..] else {
            assert_eq!(peer, 2 + Peer::from(core.settings().attempts_max));
            break;
        };
        assert_eq!(Peer::from(attempt), peer);
        core.peer_gone(1, peer);
    }
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
        core.worker_returns_request(now, 2, &token, b"no place");
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
        panic!("it is not taken, or the worker is not asked to register again")
    };
    assert_eq!((body, core.counters().replied), (&Body::from("there"), 1));
    // Once more, by another connection: there is an outcome already.
    core.worker_reply(3, 4, &token, Status::OK, None, Body::from("again"));
    assert!(matches!(actions(&mut core)[..], [Action::Disconnect { peer: 4, .. }]));
    assert_eq!((core.load(), core.counters().late_replies), ((0, 0), 1));
}
