#![allow(clippy::unwrap_used)]

mod any_order;
mod bounds;
mod dead_letter;
mod fairness;
mod in_flight;
mod look;
mod operator;
mod outcomes;
mod reply_budget;
mod requeue;
mod retry;

use super::*;
use bytes::Bytes;
use towpath_requests::body::{Body, IncomingBody, RequestChecksum};
use towpath_requests::numbered::{ClientId, Sent, Status, Token};

const CLIENT: ClientId = ClientId([7; 16]);

fn core() -> Core {
    Core::new(Settings { secret: [3, 4], ..Settings::default() })
}

fn actions(core: &mut Core) -> Vec<Action> {
    core.check();
    let mut actions = Vec::new();
    core.take_actions(&mut actions);
    actions.retain(|action| !matches!(action, Action::Heartbeat { .. }));
    actions
}

fn dispatched(core: &mut Core) -> Vec<(Peer, Token, u16)> {
    let tokens = actions(core).into_iter().filter_map(|action| match action {
        Action::Dispatch { peer, token, attempt, .. } => Some((peer, token, attempt)),
        _ => None,
    });
    tokens.collect()
}

#[test]
fn a_reply_is_sent_again_until_it_is_confirmed() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::from("hello"));
    assert_eq!(actions(&mut core), [Action::Welcome { peer: 1 }]);
    core.worker_ready(1, 2, Kind::Numbered, b"echo", 10);
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    core.worker_reply(2, 2, &token, Status::OK, None, Body::from("there"));
    let reply = Action::Reply { peer: 1, number: 1, status: Status::OK, part: None, body: Body::from("there") };
    assert_eq!(actions(&mut core), [reply]);
    // The reply was lost: the client asks again over another connection.
    core.client_hello(3, 5, CLIENT, 1);
    core.request(3, 5, 1, 0, false, b"echo", Body::from("hello"));
    let Action::Reply { peer: 5, number: 1, .. } = actions(&mut core)[2] else { panic!("not sent again") };
    core.worker_reply(4, 2, &token, Status::OK, None, Body::from("there"));
    assert_eq!(core.counters().late_replies, 1);
    core.confirm(5, 5, 1, 1);
    assert_eq!(core.load(), (0, 0));
    core.request(6, 5, 1, 0, false, b"echo", Body::from("hello"));
    assert_eq!(core.load(), (0, 0));
    assert_eq!(core.counters().duplicates, 1);
}

#[test]
fn a_queued_action_never_sends_the_body_of_another_request() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 10);
    core.worker_ready(0, 3, Kind::Stock, b"stock", 1);
    actions(&mut core);
    // All in one block: the first has ended before the worker received it, and the second one's slot is reused.
    core.request(1, 1, 1, 0, false, b"echo", Body::from("first"));
    core.cancel(1, 1, 1);
    core.request(1, 1, 2, 0, false, b"echo", Body::from("second"));
    core.cancel(1, 1, 2);
    core.confirm(1, 1, 2, 1);
    core.request(1, 1, 3, 0, false, b"echo", Body::from("third"));
    let bodies: Vec<_> = actions(&mut core)
        .into_iter()
        .filter_map(|action| match action {
            Action::Dispatch { body, .. } | Action::Reply { body, .. } => Some(body),
            _ => None,
        })
        .collect();
    assert_eq!(bodies, [Body::from("cancelled by its client"), Body::from("third")]);
    // A stock worker is sent a request even if it is cancelled at once.
    core.request(2, 1, 4, 0, false, b"stock", Body::from("fourth"));
    core.cancel(2, 1, 4);
    let [Action::Dispatch { peer: 3, body, .. }, Action::Reply { number: 4, .. }] = &actions(&mut core)[..] else {
        panic!("it waits for a reply to what it never gave")
    };
    assert_eq!(*body, Body::from("fourth"));
}

#[test]
fn requests_of_a_lost_worker_are_requeued_in_order_until_given_up() {
    let mut core = Core::new(Settings { attempts_max: 2, ..Settings::default() });
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 2);
    core.client_hello(0, 1, CLIENT, 1);
    for number in 1..=4 {
        core.request(0, 1, number, 0, false, b"echo", Body::default());
    }
    let first = dispatched(&mut core);
    assert_eq!(first.len(), 2);
    core.peer_gone(1, 2);
    core.worker_ready(2, 3, Kind::Stock, b"echo", 1);
    let [(3, second, 2)] = dispatched(&mut core)[..] else { panic!("the first is not given first") };
    assert_eq!(second.0[..8], first[0].1.0[..8]);
    core.peer_gone(3, 3);
    let (service, why) = (Bytes::from_static(b"echo"), Bytes::from_static(b"its worker's connection ended"));
    let answered = Action::GaveUp { client: Some(CLIENT), number: 1, service, attempts: 2, why, kept_for: None };
    let failed = Action::Reply {
        peer: 1,
        number: 1,
        status: Status::ATTEMPTS_USED_UP,
        part: None,
        body: Body::from("given up at attempt 2: workers went while they had it, or couldn't do it"),
    };
    assert_eq!(actions(&mut core), [answered, failed]);
    // The first worker reconnects, with a reply to its first attempt.
    core.worker_ready(4, 4, Kind::Numbered, b"echo", 1);
    assert_eq!(dispatched(&mut core).len(), 1);
    core.worker_reply(4, 4, &first[1].1, Status::OK, None, Body::default());
    let replied = |action: &Action| matches!(action, Action::Reply { number: 2, status: Status::OK, .. });
    assert_eq!(actions(&mut core).iter().filter(|action| replied(action)).count(), 1);
}

#[test]
fn a_request_expires_wherever_it_is() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.request(0, 1, 1, 50, false, b"echo", Body::default());
    core.worker_ready(0, 2, Kind::Stock, b"echo", 1);
    core.request(0, 1, 2, 100, false, b"echo", Body::default());
    let tokens = dispatched(&mut core);
    core.tick(49);
    assert_eq!(actions(&mut core), []);
    core.tick(50);
    assert!(matches!(actions(&mut core)[..], [Action::Reply { number: 1, status: Status::TIMED_OUT, .. }]));
    core.tick(120);
    // The stock worker couldn't be cancelled, and stays busy.
    assert!(matches!(actions(&mut core)[..], [Action::Reply { number: 2, status: Status::EXPIRED, .. }]));
    core.request(120, 1, 3, 0, false, b"echo", Body::default());
    assert_eq!(actions(&mut core), []);
    core.worker_reply(130, 2, &tokens[0].1, Status::OK, None, Body::default());
    assert_eq!(dispatched(&mut core).len(), 1);
}

#[test]
fn an_unconfirmed_reply_holds_back_only_its_client() {
    let mut core = Core::new(Settings { client_bytes_max: 10_000, ..Settings::default() });
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 100);
    core.client_hello(0, 1, CLIENT, 1);
    core.client_hello(0, 9, ClientId([9; 16]), 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::default());
    let [(_, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(0, 2, &token, Status::OK, None, Body::from(vec![1; 9_900]));
    core.request(0, 1, 2, 0, false, b"echo", Body::default());
    assert!(matches!(actions(&mut core)[..], [Action::Reply { .. }, Action::Refused { number: 2, .. }]));
    core.peer_blocked(0, 9, true);
    core.request(0, 9, 1, 0, false, b"echo", Body::default());
    core.confirm(0, 1, 1, 1);
    core.request(0, 1, 2, 0, false, b"echo", Body::default());
    assert_eq!(dispatched(&mut core).len(), 1);
    core.peer_blocked(0, 9, false);
    assert_eq!(dispatched(&mut core).len(), 1);
}

#[test]
fn journalled_requests_are_acknowledged_when_durable_and_restored() {
    let settings = Settings { journal: true, ..Settings::default() };
    let mut core = Core::new(settings.clone());
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    for number in 1..=3 {
        core.request(0, 1, number, 0, false, b"echo", Body::from("work"));
    }
    let [(_, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(0, 2, &token, Status::OK, None, Body::from("done"));
    assert_eq!(dispatched(&mut core).len(), 1);
    let mut entries = Vec::new();
    core.take_entries(&mut entries);
    core.persisted(4);
    let accepted = Action::Accepted { peer: 1, first: 1, count: 3 };
    let reply = Action::Reply { peer: 1, number: 1, status: Status::OK, part: None, body: Body::from("done") };
    assert_eq!(actions(&mut core), [accepted, reply.clone()]);

    let mut next = Core::new(settings);
    for entry in &entries {
        if let Entry::Accepted { id, client, number, service, expires, checksum, letter: None, body } = entry.clone() {
            let outcome = entries.iter().find_map(|entry| match entry {
                Entry::Finished { id: of, status, body } if *of == id => Some((*status, body.clone())),
                _ => None,
            });
            let letter = None;
            next.restore(
                0,
                Restored { id, client, number, service, expires, overdue_ms: 0, checksum, letter, body, outcome },
            );
        }
    }
    next.client_hello(0, 3, CLIENT, 1);
    next.request(0, 3, 1, 0, false, b"echo", Body::from("work"));
    let answered = actions(&mut next);
    assert_eq!(
        answered[1],
        Action::Reply { peer: 3, number: 1, status: Status::OK, part: None, body: Body::from("done") }
    );
    next.worker_ready(0, 4, Kind::Numbered, b"echo", 5);
    assert_eq!(dispatched(&mut next).len(), 2);
}

#[test]
fn expired_requests_go_to_no_worker_and_a_hung_worker_is_disconnected() {
    let mut core = Core::new(Settings { busy_timeout_ms: Some(1_000), heartbeat_ms: 50, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.worker_ready(0, 3, Kind::Stock, b"stuck", 1);
    for (number, service) in [(1, &b"echo"[..]), (2, b"echo"), (3, b"stuck")] {
        core.request(0, 1, number, 100, false, service, Body::default());
    }
    assert_eq!(dispatched(&mut core).len(), 2);
    core.tick(100);
    assert_eq!(dispatched(&mut core), []);
    assert_eq!(core.counters().failed, 3);
    core.worker_alive(900, 3);
    core.tick(999);
    assert_eq!(actions(&mut core), []);
    core.tick(1_050);
    assert!(matches!(actions(&mut core)[..], [Action::Disconnect { peer: 3, .. }]));
}

#[test]
fn a_client_may_have_more_gaps_than_requests() {
    let mut core = Core::new(Settings { client_requests_max: 2, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    for number in 1..=5 {
        core.confirm(0, 1, 2 * number, 1);
    }
    assert_eq!(actions(&mut core), [Action::Welcome { peer: 1 }]);
}

#[test]
fn confirming_huge_ranges_costs_no_more_than_what_is_in_them() {
    const HELD: u64 = 20_000;
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    for index in 1..=HELD {
        core.request(0, 1, 10 * index, 0, false, b"echo", Body::default());
    }
    let before = core.sessions[0].requests.steps;
    // Ranges of many numbers, hardly any of which are here.
    for record in 0..10_000 {
        core.confirm(0, 1, 11 + 10 * record, 9);
        core.confirm(0, 1, 1_000_000 + record, 39_000);
        core.confirm(0, 1, 1 + record, u32::MAX >> (record % 3));
    }
    let steps = core.sessions[0].requests.steps - before;
    assert!(steps < 1_000_000, "{steps} steps");
    core.confirm(0, 1, 0, u32::MAX);
    assert_eq!(core.load(), (0, 0));
}

fn stock_replies(core: &mut Core) -> Vec<(Status, Body)> {
    let replies = actions(core).into_iter().filter_map(|action| match action {
        Action::StockReply { status, body, .. } => Some((status, body)),
        _ => None,
    });
    replies.collect()
}

#[test]
fn parts_lost_with_a_connection_are_reported() {
    for (is_away, comes_again_before_the_end) in [(true, true), (true, false), (false, true)] {
        let mut core = core();
        core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
        core.client_hello(0, 1, CLIENT, 1);
        core.request(0, 1, 1, 0, false, b"echo", Body::from("work"));
        let [(2, token, _)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
        let part = |core: &mut Core, number| {
            core.worker_reply(1, 2, &token, Status::OK, Some(number), Body::from("part"));
            actions(core)
        };
        assert!(matches!(part(&mut core, 0)[..], [Action::Reply { peer: 1, part: Some(0), .. }]));
        if is_away {
            core.peer_gone(2, 1);
            assert_eq!(part(&mut core, 1), []);
        }
        if comes_again_before_the_end {
            core.client_hello(3, 4, CLIENT, 1);
            actions(&mut core);
            assert_eq!(part(&mut core, 2), []);
        }
        core.worker_reply(4, 2, &token, Status::OK, None, Body::from("end"));
        if !comes_again_before_the_end {
            core.client_hello(5, 4, CLIENT, 1);
            core.request(5, 4, 1, 0, false, b"echo", Body::from("work"));
        }
        let answered = actions(&mut core);
        assert!(matches!(answered.last(), Some(Action::Reply { peer: 4, status: Status::LOST, .. })), "{answered:?}");
        core.check();
    }
}

#[test]
fn the_last_part_is_sent_again_after_a_reconnect() {
    let mut core = core();
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.client_hello(0, 1, CLIENT, 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::from("work"));
    let [(2, token, _)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    core.worker_reply(1, 2, &token, Status::OK, Some(0), Body::from("part"));
    core.worker_reply(1, 2, &token, Status::OK, None, Body::from("end"));
    let end = |peer| Action::Reply { peer, number: 1, status: Status::IN_PARTS, part: None, body: Body::from("end") };
    assert_eq!(actions(&mut core).last(), Some(&end(1)));
    // Only the client knows whether the parts and the end arrived before the connection was lost.
    core.peer_gone(2, 1);
    core.client_hello(3, 4, CLIENT, 1);
    core.request(3, 4, 1, 0, false, b"echo", Body::from("work"));
    assert_eq!(actions(&mut core).last(), Some(&end(4)));
}

#[test]
fn a_reply_from_a_worker_of_another_service_is_ignored() {
    let mut core = core();
    core.worker_ready(0, 2, Kind::Stock, b"echo", 1);
    core.worker_ready(0, 3, Kind::Stock, b"other", 1);
    core.worker_ready(0, 4, Kind::Numbered, b"other", 1);
    core.stock_request(0, 1, true, None, b"echo", Body::from("work"));
    let [(2, token, _)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    for (other, is_sent_away) in [(3, true), (4, false)] {
        core.worker_reply(1, other, &token, Status::OK, None, Body::from("forged"));
        let sent_away = |action: &Action| matches!(action, Action::Disconnect { peer, .. } if *peer == other);
        let actions = actions(&mut core);
        assert_eq!(actions.iter().map(sent_away).collect::<Vec<_>>(), vec![true; usize::from(is_sent_away)], "{other}");
    }
    core.worker_reply(2, 2, &token, Status::OK, None, Body::from("done"));
    assert_eq!(stock_replies(&mut core), [(Status::OK, Body::from("done"))]);
    core.check();
}

#[test]
fn the_last_part_alone_is_not_taken_for_the_reply() {
    let mut core = core();
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.stock_request(0, 1, true, None, b"echo", Body::from("work"));
    let [(_, first, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 2, &first, Status::OK, Some(0), Body::from("part"));
    core.peer_gone(2, 2);
    core.worker_ready(3, 3, Kind::Numbered, b"other", 1);
    core.worker_reply(4, 3, &first, Status::OK, None, Body::from("end"));
    assert_eq!(actions(&mut core), []);
    // Nor if the broker has seen parts on the wrong connection only.
    core.worker_ready(5, 4, Kind::Numbered, b"echo", 1);
    let [(_, second, 2)] = dispatched(&mut core)[..] else { panic!("not given again") };
    core.worker_reply(6, 4, &second, Status::OK, Some(0), Body::from("p"));
    core.worker_reply(6, 4, &second, Status::OK, None, Body::from("e"));
    let whole = Body::of_frames(["p", "e"].map(|frame| Bytes::from_static(frame.as_bytes())));
    assert_eq!(stock_replies(&mut core), [(Status::OK, whole)]);
}

#[test]
fn a_client_that_connects_during_a_reply_in_parts_gets_one_reply() {
    let mut core = Core::new(Settings { journal: true, ..Settings::default() });
    let (service, body) = (Bytes::from_static(b"echo"), Body::default());
    let (client, checksum) = (CLIENT, RequestChecksum::default());
    let (outcome, letter) = (None, None);
    core.restore(
        0,
        Restored { id: 1, client, number: 1, service, expires: 9_000, overdue_ms: 0, checksum, letter, body, outcome },
    );
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    let [(_, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 2, &token, Status::OK, Some(0), Body::from("a"));
    core.client_hello(2, 1, CLIENT, 1);
    core.worker_reply(3, 2, &token, Status::OK, Some(1), Body::from("b"));
    core.worker_reply(4, 2, &token, Status::OK, None, Body::from("c"));
    core.persisted(1);
    let whole = Body::of_frames(["a", "b", "c"].map(|frame| Bytes::from_static(frame.as_bytes())));
    let reply = Action::Reply { peer: 1, number: 1, status: Status::OK, part: None, body: whole };
    assert_eq!(actions(&mut core), [Action::Welcome { peer: 1 }, reply]);
}

#[test]
fn joined_parts_are_limited_like_one_body() {
    let mut core = core();
    core.worker_ready(0, 2, Kind::Stock, b"echo", 1);
    core.store(0, CLIENT, b"echo", Body::default(), Token([0; 16]), Body::default());
    let [(2, token, _)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    let large = || Body::from(Bytes::from(vec![0; 40 << 20]));
    core.worker_reply(1, 2, &token, Status::OK, Some(0), large());
    core.worker_reply(1, 2, &token, Status::OK, None, large());
    core.persisted(2);
    assert!(matches!(core.stored(CLIENT), Some(StoredState::Done(Status::TOO_LARGE, _))));
    core.check();
}

#[test]
fn a_request_of_a_slow_worker_expires_at_its_deadline() {
    let mut core = Core::new(Settings { busy_timeout_ms: Some(1_000), ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 5);
    core.worker_ready(0, 3, Kind::Numbered, b"echo", 5);
    for number in 1..=2 {
        core.request(0, 1, number, 1_100, false, b"echo", Body::default());
    }
    assert_eq!(dispatched(&mut core).len(), 2);
    core.tick(1_000);
    // Both workers are disconnected. Neither gets what the other had, and each is cancelled.
    let [
        Action::CancelWork { peer: 2, .. },
        Action::Disconnect { peer: 2, .. },
        Action::CancelWork { peer: 3, .. },
        Action::Disconnect { peer: 3, .. },
    ] = actions(&mut core)[..]
    else {
        panic!("not sent away")
    };
    assert!(core.next_deadline() <= 1_100);
    core.tick(1_100);
    let done = actions(&mut core);
    let body = Body::from("it was queued again");
    let answered =
        |number| Action::Reply { peer: 1, number, status: Status::TIMED_OUT, part: None, body: body.clone() };
    assert_eq!(done, [answered(1), answered(2)]);
}

#[test]
fn a_stock_client_resumes_under_a_limit_of_one_request() {
    let mut core = Core::new(Settings { client_requests_max: 1, ..Settings::default() });
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.stock_request(0, 1, true, None, b"echo", Body::default());
    let [(_, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(1, 2, &token, Status::OK, None, Body::default());
    core.tick(1);
    assert_eq!(actions(&mut core).last(), Some(&Action::Pause { peer: 1, paused: false }));
}

#[test]
fn too_large_requests_are_refused_for_good_and_stored_ones_are_limited() {
    let mut core =
        Core::new(Settings { journal: true, client_bytes_max: 1_000, requests_max: 3, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::from(vec![0; 1_001]));
    let refused = actions(&mut core);
    assert!(matches!(refused[1], Action::Refused { status: Status::TOO_LARGE, retry_ms: 0, .. }), "{refused:?}");
    for name in 1..=4 {
        core.stock_request(0, 2, true, None, b"titanic.request", Body::default());
        let Some(Action::BuiltIn { token, .. }) =
            actions(&mut core).into_iter().find(|action| matches!(action, Action::BuiltIn { .. }))
        else {
            panic!("the broker isn't asked");
        };
        core.store(0, ClientId([100 + name; 16]), b"echo", Body::from("work"), token, Body::from("200"));
        let mut entries = Vec::new();
        core.take_entries(&mut entries);
        core.persisted(u64::from(name));
        let expected = if name < 3 { "200" } else { "500" };
        let [(Status::OK, body)] = &stock_replies(&mut core)[..] else { panic!("{name}: not one reply") };
        assert_eq!(body.frames().unwrap().next(), Some(expected.as_bytes()), "{name}");
    }
    assert_eq!(core.load().0, 2);
}

#[test]
fn only_journalled_requests_have_the_journals_retention() {
    for journalled in [1, 0] {
        let mut core = Core::new(Settings { journal: true, ..Settings::default() });
        core.client_hello(0, 1, CLIENT, 1);
        (1..=2).for_each(|number| core.request(0, 1, number, 0, false, b"nobody", Body::default()));
        core.request(0, 1, 3, 0, true, b"nobody", Body::from("volatile"));
        core.confirm(0, 1, 1, 2 - journalled);
        core.peer_gone(0, 1);
        core.tick(core.settings().absent_client_ms + 1);
        actions(&mut core);
        assert_eq!(core.load().0, if journalled > 0 { 2 } else { 0 });
    }
}

#[test]
fn a_client_with_the_name_of_a_rejected_stored_request_is_disconnected() {
    let mut core = Core::new(Settings { journal: true, ..Settings::default() });
    core.store(0, CLIENT, b"nobody", Body::from("too large"), Token([0; 16]), Body::default());
    core.client_hello(0, 1, CLIENT, 1);
    actions(&mut core);
    core.entry_rejected(0);
    let done = actions(&mut core);
    assert!(matches!(done[..], [Action::Disconnect { peer: 1, .. }]), "{done:?}");
    assert_eq!((core.outstanding(1), core.load()), (0, (0, 0)));
}

#[test]
fn closing_a_stored_request_is_answered_when_durable() {
    let mut core = Core::new(Settings { journal: true, ..Settings::default() });
    let own = |core: &mut Core, peer: Peer, service: &[u8]| {
        core.stock_request(0, peer, true, None, service, Body::default());
        let asked = actions(core).into_iter().find_map(|action| match action {
            Action::BuiltIn { token, .. } => Some(token),
            _ => None,
        });
        asked.expect("the broker is asked")
    };
    let close = |core: &mut Core, peer: Peer| {
        let token = own(core, peer, b"titanic.close");
        core.close_stored(0, CLIENT, token, Body::from("closed"));
    };
    let token = own(&mut core, 1, b"titanic.request");
    core.store(0, CLIENT, b"echo", Body::from("work"), token, Body::from("200"));
    core.persisted(1);
    assert_eq!(stock_replies(&mut core).len(), 1);
    close(&mut core, 1);
    // There is nothing of that name any more, but an earlier entry may be on its way to the disk.
    close(&mut core, 2);
    assert_eq!((stock_replies(&mut core), core.is_idle()), (vec![], false));
    for _ in 0..100 {
        close(&mut core, 3);
        core.peer_gone(0, 3);
    }
    assert!(core.awaiting_closes() < 10);
    core.persisted(2);
    assert_eq!(stock_replies(&mut core), vec![(Status::OK, Body::from("closed")); 2]);
    close(&mut core, 1);
    assert_eq!(stock_replies(&mut core).len(), 1);
}

#[test]
fn a_token_of_an_earlier_process_is_not_accepted() {
    let tokens: Vec<(Core, Token)> = [1, 2]
        .map(|secret| {
            let mut core = Core::new(Settings { secret: [secret, 0], ..Settings::default() });
            core.client_hello(0, 1, CLIENT, 1);
            core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
            core.request(0, 1, secret, 0, false, b"echo", Body::default());
            let [(_, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
            (core, token)
        })
        .into();
    let [(_, earlier), (mut core, token)] = <[_; 2]>::try_from(tokens).unwrap();
    core.worker_reply(1, 2, &earlier, Status::OK, None, Body::from("wrong"));
    assert_eq!(actions(&mut core), []);
    core.worker_reply(1, 2, &token, Status::OK, None, Body::from("right"));
    assert!(matches!(&actions(&mut core)[..], [Action::Reply { body, .. }] if *body == Body::from("right")));
}
