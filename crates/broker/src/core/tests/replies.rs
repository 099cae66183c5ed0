//! How much of the memory replies may take, whoever doesn't take them.

use super::*;
use std::ops::RangeInclusive;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// A broker with 64 MiB, and a worker that takes all that there is.
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

/// What was said, to peers that take all of it.
#[derive(Default)]
struct Said {
    given: Vec<Token>,
    /// Whose requests were done.
    done: Vec<(Peer, u64)>,
    /// Whose replies had no room.
    without_room: Vec<(Peer, u64)>,
}

fn said(core: &mut Core) -> Said {
    let mut said = Said::default();
    loop {
        for action in actions(core) {
            match action {
                Action::Dispatch { token, .. } => said.given.push(token),
                Action::Reply { peer, number, status: Status::OK, .. } => said.done.push((peer, number)),
                Action::Reply { peer, number, status: Status::NO_STORAGE, .. } => {
                    said.without_room.push((peer, number))
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
fn a_client_gets_all_of_large_replies_as_it_takes_them() {
    let mut core = broker();
    client(&mut core, 1, 1);
    let mut now = said(&mut core);
    let mut taken = 0;
    while taken < 1_000 {
        reply(&mut core, &now.given, MIB);
        assert!(core.load().1 < 40 * MIB);
        now = said(&mut core);
        // Nothing more before it takes some.
        assert!(now.given.is_empty() && now.without_room.is_empty());
        taken += now.done.len();
        confirm(&mut core, &now.done);
        if taken == 1 {
            ask(&mut core, 1, 2..=1_000, 0);
        }
        now = said(&mut core);
        assert!((1..=33).contains(&now.given.len()) || taken == 1_000, "{} at a time", now.given.len());
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
fn what_nobody_expected_has_no_room_in_the_end_and_others_are_served() {
    let mut core = broker();
    client(&mut core, 1, 5_000);
    let first = said(&mut core).given;
    reply(&mut core, &first, 900 * KIB);
    let bytes = core.load().1;
    assert!((20 * MIB..48 * MIB).contains(&bytes), "{bytes}");
    // It knows how each of them ended, and nothing else is executed until it confirms that.
    let now = said(&mut core);
    assert_eq!(now.done.len() + now.without_room.len(), first.len());
    assert!((20..50).contains(&now.done.len()), "{}", now.done.len());
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
fn the_more_clients_take_nothing_the_less_each_of_them_has() {
    let mut core = broker();
    (1..=60).for_each(|peer| client(&mut core, peer, 100));
    for _ in 0..3 {
        let all = said(&mut core).given;
        reply(&mut core, &all, 100 * KIB);
    }
    let bytes = core.load().1;
    assert!((20 * MIB..56 * MIB).contains(&bytes), "{bytes}");
    said(&mut core);
    // One that takes them has all of its own.
    client(&mut core, 61, 10);
    for taken in 0..10 {
        let now = said(&mut core);
        let more = now.given;
        assert_eq!(more.len(), 1, "after {taken}");
        reply(&mut core, &more, 100 * KIB);
        let now = said(&mut core);
        assert_eq!((now.done.len(), now.given.len()), (1, 0));
        confirm(&mut core, &now.done);
    }
}

#[test]
fn who_was_held_back_for_others_goes_on_when_they_have_gone() {
    let mut core = broker();
    client(&mut core, 1, 2_000);
    let first = said(&mut core).given;
    reply(&mut core, &first, 100 * KIB);
    client(&mut core, 2, 100);
    let few = said(&mut core).given.len();
    assert!((1..50).contains(&few), "{few}");
    core.confirm(0, 1, 1, 2_000);
    // Nothing of its own has changed.
    core.tick(1_000);
    assert_eq!(few + said(&mut core).given.len(), 100);
}

#[test]
fn who_finds_much_of_others_can_still_have_several_at_a_time() {
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
                body: Body::default(),
                outcome: Some((Status::OK, Body::from(Bytes::from(vec![0; MIB])))),
            },
        );
    }
    core.worker_ready(0, WORKER, Kind::Numbered, b"zeros", 60_000);
    client(&mut core, 1, 1_000);
    let first = said(&mut core).given;
    assert!((32..100).contains(&first.len()), "{}", first.len());
    reply(&mut core, &first, 10 * KIB);
    core.take_entries(&mut Vec::new());
    core.persisted(10_000);
    let now = said(&mut core);
    assert_eq!((now.done.len(), now.without_room.len()), (first.len(), 0));
}

#[test]
fn an_echo_needs_no_more_than_its_request() {
    let mut core = broker();
    core.client_hello(0, 1, CLIENT, 1);
    ask(&mut core, 1, 1..=30, MIB);
    let mut now = said(&mut core);
    let (mut given, mut done) = (0, 0);
    while !now.given.is_empty() {
        given += now.given.len();
        reply(&mut core, &now.given, MIB);
        now = said(&mut core);
        assert!(now.without_room.is_empty());
        done += now.done.len();
    }
    // It has confirmed none.
    assert!(given == done && done > 15, "{done} of {given}");
}

#[test]
fn parts_that_are_collected_have_a_bound_for_all() {
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
