//! Requests that a worker can't do now.

use super::*;
use std::collections::BTreeMap;
use towpath_requests::numbered::RequestId;

#[test]
fn request_is_tried_again_with_growing_pauses_and_given_up_in_the_end() {
    let mut core = Core::new(Settings { secret: [3, 4], attempts_max: 3, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 10);
    core.request(0, 1, 1, 60_000, false, b"echo", Body::from("hello"));
    let mut now = 0;
    for (attempt, pause) in [(1, 1_000), (2, 2_000)] {
        let [(2, token, given)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
        assert_eq!(given, attempt);
        core.worker_tries_later(now, 2, &token, Body::from("not now"));
        core.tick(now + pause - 1);
        assert_eq!(dispatched(&mut core), []);
        assert!(core.next_deadline() <= now + pause);
        now += pause;
        core.tick(now);
    }
    let [(2, token, 3)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    core.worker_tries_later(now, 2, &token, Body::from("not now"));
    let given_up = |action: &Action| matches!(action, Action::Reply { status: Status::ATTEMPTS_USED_UP, .. });
    assert!(actions(&mut core).iter().any(given_up));
}

#[test]
fn postponed_request_expires_and_is_cancelled() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 10);
    for number in [1, 2] {
        core.request(0, 1, number, 500, false, b"echo", Body::from("hello"));
    }
    for (_, token, _) in dispatched(&mut core) {
        core.worker_tries_later(0, 2, &token, Body::from("not now"));
    }
    core.cancel(1, 1, 2);
    core.tick(600);
    let expired = |action: &Action| matches!(action, Action::Reply { number: 1, status: Status::TIMED_OUT, .. });
    assert!(actions(&mut core).iter().any(expired));
    core.tick(5_000);
    assert_eq!(dispatched(&mut core), []);
}

#[test]
fn id_of_a_request_is_the_same_for_all_attempts_and_at_all_brokers() {
    let ids = |secret, attempts: Millis| {
        let mut core = Core::new(Settings { secret, ..Settings::default() });
        core.worker_ready(0, 2, Kind::Numbered, b"echo", 10);
        core.client_hello(0, 1, CLIENT, 1);
        core.request(0, 1, 1, 60_000, false, b"echo", Body::from("1"));
        core.request(0, 1, 2, 60_000, false, b"echo", Body::from("2"));
        core.stock_request(0, 3, true, None, b"echo", Body::from("3"));
        for attempt in 0..attempts {
            core.peer_gone(attempt, 2);
            core.worker_ready(attempt, 2, Kind::Numbered, b"echo", 10);
        }
        // Clients take turns: the order differs.
        let given = actions(&mut core).into_iter().filter_map(|action| match action {
            Action::Dispatch { token, body, .. } => {
                Some((body.single().unwrap().to_vec(), core.request_id(&token).unwrap()))
            }
            _ => None,
        });
        let ids: BTreeMap<Vec<u8>, RequestId> = given.collect();
        <[RequestId; 3]>::try_from(ids.into_values().collect::<Vec<_>>()).unwrap()
    };
    let [one, two, stock] = ids([3, 4], 1);
    assert!(one != two && two != stock && one != stock);
    assert_eq!(ids([3, 4], 2), [one, two, stock]);
    let [same_one, same_two, other] = ids([5, 6], 3);
    assert!((same_one, same_two) == (one, two) && other != stock, "a stock client has no name at other brokers");
}

#[test]
fn another_request_under_the_same_number_is_refused() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::from("first"));
    core.client_hello(1, 2, CLIENT, 1);
    actions(&mut core);
    let conflict = |core: &mut Core, service: &[u8], body: &'static str| {
        core.request(1, 2, 1, 0, false, service, Body::from(body));
        let answered = actions(core);
        matches!(answered[..], [Action::Refused { number: 1, status: Status::CONFLICT, retry_ms: 0, .. }])
    };
    assert!(conflict(&mut core, b"echo", "second") && conflict(&mut core, b"other", "first"));
    assert!(!conflict(&mut core, b"echo", "first"), "it is the same");
    assert_eq!((core.counters().refused, core.counters().duplicates), (2, 1));
    // With its outcome too, and after that was confirmed.
    core.worker_ready(2, 3, Kind::Numbered, b"echo", 1);
    let [(3, token, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(3, 3, &token, Status::OK, None, Body::from("reply"));
    actions(&mut core);
    assert!(conflict(&mut core, b"echo", "second"));
    core.confirm(4, 2, 1, 1);
    assert!(conflict(&mut core, b"echo", "first"));
}
