//! The memory of replies, when clients don't confirm them.

use super::*;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// A broker with 64 MiB, and a worker with credit for everything.
fn broker() -> Core {
    let settings = Settings { bytes_max: 64 * MIB, client_bytes_max: 32 * MIB, ..Settings::default() };
    let mut core = Core::new(Settings { secret: [3, 4], ..settings });
    core.worker_ready(0, WORKER, Kind::Numbered, b"zeros", 60_000);
    core
}

const WORKER: Peer = 99;

fn ask(core: &mut Core, peer: Peer, numbers: RangeInclusive<u64>, size: usize) {
    let body = Body::from(Bytes::from(vec![0; size]));
    numbers.for_each(|number| core.request(0, peer, number, 0, false, b"zeros", body.clone()));
}

fn client(core: &mut Core, peer: Peer, requests: u64) {
    core.client_hello(0, peer, ClientId([peer as u8; 16]), 1);
    ask(core, peer, 1..=requests, 0);
}

/// Actions for peers that read everything.
#[derive(Default)]
struct Said {
    given: Vec<Token>,
    /// Requests that were replied to.
    done: Vec<(Peer, u64)>,
    /// Requests whose replies were discarded.
    without_space: Vec<(Peer, u64)>,
}

fn said(core: &mut Core) -> Said {
    let mut said = Said::default();
    loop {
        for action in actions(core) {
            match action {
                Action::Dispatch { token, .. } => said.given.push(token),
                Action::Reply { peer, number, status: Status::OK, .. } => said.done.push((peer, number)),
                Action::Reply { peer, number, status: Status::NO_STORAGE, .. } => {
                    said.without_space.push((peer, number))
                }
                _ => {}
            }
        }
        if !core.flushed(0) {
            return said;
        }
    }
}

fn reply(core: &mut Core, given: &[Token], size: usize) {
    for token in given {
        core.worker_reply(0, WORKER, token, Status::OK, None, Body::from(Bytes::from(vec![0; size])));
    }
}

fn confirm(core: &mut Core, done: &[(Peer, u64)]) {
    done.iter().for_each(|&(peer, number)| core.confirm(0, peer, number, 1));
}

#[test]
fn a_confirming_client_gets_any_number_of_large_replies() {
    let mut core = broker();
    client(&mut core, 1, 1);
    let mut now = said(&mut core);
    let mut taken = 0;
    while taken < 1_000 {
        reply(&mut core, &now.given, MIB);
        assert!(core.load().1 < 56 * MIB);
        core.tick(0);
        now = said(&mut core);
        assert!(now.given.len() <= 48 && now.without_space.is_empty());
        taken += now.done.len();
        let first = taken == 1;
        confirm(&mut core, &now.done);
        if first {
            ask(&mut core, 1, 2..=1_000, 0);
        }
        now.given.extend(said(&mut core).given);
    }
    assert_eq!(core.load(), (0, 0));
}

#[test]
fn small_replies_hold_nothing_back() {
    let mut core = broker();
    client(&mut core, 1, 10_000);
    let first = said(&mut core).given;
    assert!((1_000..4_000).contains(&first.len()), "{}", first.len());
    reply(&mut core, &first, 30);
    assert_eq!(first.len() + said(&mut core).given.len(), 10_000);
}

#[test]
fn unexpectedly_large_replies_are_discarded_and_others_are_served() {
    let mut core = broker();
    client(&mut core, 1, 5_000);
    let first = said(&mut core).given;
    reply(&mut core, &first, 900 * KIB);
    let bytes = core.load().1;
    assert!((40 * MIB..60 * MIB).contains(&bytes), "{bytes}");
    // The client knows how each of them ended. No others are dispatched until it confirms.
    let now = said(&mut core);
    assert_eq!(now.done.len() + now.without_space.len(), first.len());
    assert!((45..70).contains(&now.done.len()), "{}", now.done.len());
    assert!(now.given.is_empty());
    client(&mut core, 2, 3);
    let others = said(&mut core).given;
    assert!(!others.is_empty());
    reply(&mut core, &others, 900 * KIB);
    assert_eq!(said(&mut core).done.len(), others.len());
    core.confirm(0, 1, 1, 5_000);
    core.confirm(0, 2, 1, 3);
    assert_eq!(core.load(), (0, 0));
}

#[test]
fn clients_that_confirm_nothing_share_the_memory() {
    let mut core = broker();
    (1..=60).for_each(|peer| client(&mut core, peer, 100));
    let mut now = said(&mut core);
    while !now.given.is_empty() {
        reply(&mut core, &now.given, 100 * KIB);
        now = said(&mut core);
    }
    let bytes = core.load().1;
    assert!((40 * MIB..64 * MIB).contains(&bytes), "{bytes}");
    // A client that confirms gets all of its replies.
    client(&mut core, 61, 20);
    let mut taken = 0;
    while taken < 20 {
        let given = said(&mut core).given;
        assert!(!given.is_empty(), "after {taken}");
        reply(&mut core, &given, 100 * KIB);
        let now = said(&mut core);
        assert_eq!((now.done.len(), now.without_space.len()), (given.len(), 0));
        confirm(&mut core, &now.done);
        taken += given.len();
    }
}

#[test]
fn a_client_held_back_for_others_resumes_when_they_confirm() {
    let mut core = broker();
    client(&mut core, 1, 2_000);
    let first = said(&mut core).given;
    reply(&mut core, &first, 100 * KIB);
    client(&mut core, 2, 10);
    let few = said(&mut core).given;
    reply(&mut core, &few, 100 * KIB);
    ask(&mut core, 2, 11..=20, 0);
    assert!(said(&mut core).given.is_empty());
    core.confirm(0, 1, 1, 2_000);
    // Nothing of its own has changed.
    core.tick(1_000);
    assert_eq!(few.len() + said(&mut core).given.len(), 20);
}

#[test]
fn restored_outcomes_of_others_do_not_stop_a_client() {
    let mut core = Core::new(Settings { journal: true, ..Settings::default() });
    for number in 1..=800 {
        core.restore(
            0,
            Restored {
                id: number,
                client: CLIENT,
                number,
                service: Bytes::from_static(b"zeros"),
                expires: 60_000,
                overdue_ms: 0,
                checksum: RequestChecksum::default(),
                letter: None,
                body: Body::default(),
                outcome: Some((Status::OK, Body::from(Bytes::from(vec![0; MIB])))),
            },
        );
    }
    core.worker_ready(0, WORKER, Kind::Numbered, b"zeros", 60_000);
    client(&mut core, 1, 1_000);
    let first = said(&mut core).given;
    assert!(first.len() > 30, "{}", first.len());
    reply(&mut core, &first, 10 * KIB);
    core.take_entries(&mut Vec::new());
    core.persisted(10_000);
    let now = said(&mut core);
    assert_eq!((now.done.len(), now.without_space.len()), (first.len(), 0));
    // And all of them when it has confirmed one.
    confirm(&mut core, &now.done);
    assert_eq!(first.len() + said(&mut core).given.len(), 1_000);
}

#[test]
fn large_expected_replies_do_not_stop_other_services_of_the_client() {
    let mut core = broker();
    client(&mut core, 1, 1);
    let first = said(&mut core).given;
    reply(&mut core, &first, MIB);
    confirm(&mut core, &[(1, 1)]);
    ask(&mut core, 1, 2..=200, 0);
    // As many as there is memory for.
    let jobs = said(&mut core).given;
    assert_eq!(jobs.len(), 48);
    core.worker_ready(0, WORKER - 1, Kind::Numbered, b"echo", 10);
    core.request(0, 1, 201, 0, false, b"echo", Body::from("small"));
    let [echo] = said(&mut core).given[..] else { panic!("not given") };
    core.worker_reply(0, WORKER - 1, &echo, Status::OK, None, Body::from("small"));
    assert!(said(&mut core).done.contains(&(1, 201)));
    // Each reply makes space for another request, of any service.
    core.request(0, 1, 202, 0, false, b"others", Body::default());
    reply(&mut core, &jobs[..10], KIB);
    assert_eq!(said(&mut core).given.len(), 10);
}

#[test]
fn services_that_wait_for_memory_take_turns() {
    let mut core = broker();
    let services = [&b"one"[..], b"two", b"three"];
    core.client_hello(0, 1, CLIENT, 1);
    for (peer, service) in (10..).zip(services) {
        core.worker_ready(0, peer, Kind::Numbered, service, 1_000);
        core.request(0, 1, u64::from(peer), 0, false, service, Body::default());
    }
    let (mut held, mut done, mut number) = (VecDeque::new(), [0; 3], 100);
    for turn in 0..3_000 {
        for action in actions(&mut core) {
            match action {
                Action::Dispatch { peer, token, .. } => held.push_back((peer, token)),
                Action::Reply { number, .. } => core.confirm(turn, 1, number, 1),
                _ => {}
            }
        }
        let (peer, token) = held.pop_front().expect("something is given");
        core.worker_reply(turn, peer, &token, Status::OK, None, Body::from(Bytes::from(vec![0; MIB])));
        done[peer as usize - 10] += 1;
        // More waits for each of them than fits.
        for service in services.iter().cycle().take(6) {
            number += 1;
            core.request(turn, 1, number, 0, false, service, Body::default());
        }
        core.tick(turn);
        core.flushed(turn);
    }
    assert!(done.iter().all(|&one| one > 800), "{done:?}");
}

#[test]
fn requests_of_a_stock_client_are_requeued_in_order() {
    let mut core = broker();
    for number in 0..3_000_u64 {
        core.stock_request(0, 1, true, None, b"zeros", Body::copied(&number.to_be_bytes()));
    }
    assert_eq!(said(&mut core).given.len(), 3_000);
    core.peer_gone(1, WORKER);
    core.worker_ready(1, WORKER, Kind::Numbered, b"zeros", 60_000);
    let mut numbers = Vec::new();
    loop {
        numbers.extend(actions(&mut core).into_iter().filter_map(|action| match action {
            Action::Dispatch { body, .. } => body.single().map(<[u8]>::to_vec),
            _ => None,
        }));
        if !core.flushed(1) {
            break;
        }
    }
    assert!(numbers.len() == 3_000 && numbers.is_sorted());
}

#[test]
fn an_echo_needs_no_memory_beyond_its_request() {
    let mut core = broker();
    core.client_hello(0, 1, CLIENT, 1);
    ask(&mut core, 1, 1..=30, MIB);
    let mut now = said(&mut core);
    let (mut given, mut done) = (0, 0);
    while !now.given.is_empty() {
        given += now.given.len();
        reply(&mut core, &now.given, MIB);
        now = said(&mut core);
        assert!(now.without_space.is_empty());
        done += now.done.len();
    }
    // Nothing is confirmed.
    assert!(given == done && done > 15, "{done} of {given}");
}

#[test]
fn kept_parts_are_limited_in_all() {
    let mut core = broker();
    (1..=50).for_each(|peer| core.stock_request(0, peer, true, None, b"zeros", Body::default()));
    for token in said(&mut core).given {
        for part in 0..10 {
            let body = Body::from(Bytes::from(vec![0; MIB]));
            core.worker_reply(0, WORKER, &token, Status::OK, Some(part), body);
        }
    }
    let bytes = core.load().1;
    assert!((50 * MIB..96 * MIB).contains(&bytes), "{bytes}");
    let refused = |action: &Action| matches!(action, Action::StockReply { status: Status::NO_STORAGE, .. });
    assert!(actions(&mut core).iter().any(refused));
}
