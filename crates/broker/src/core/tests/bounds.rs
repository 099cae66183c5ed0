//! Limits: what counts as memory, and what happens beyond it.

use super::*;
use towpath_requests::is_built_in;

/// A core with little memory, and no other limit in the way.
fn narrow(bytes_max: usize) -> Core {
    let settings = Settings { secret: [3, 4], bytes_max, service_bytes_max: bytes_max, ..Settings::default() };
    Core::new(Settings { client_bytes_max: bytes_max, ..settings })
}

fn envelope(frames: usize, bytes: usize) -> StockEnvelope {
    Some((0..frames).map(|_| Bytes::from(vec![b'e'; bytes])).collect())
}

fn refusals(actions: &[Action]) -> usize {
    let refused = |action: &&Action| matches!(action, Action::StockReply { status: Status::UNAVAILABLE, .. });
    actions.iter().filter(refused).count()
}

#[test]
fn an_envelope_counts_with_its_bytes() {
    let mut core = core();
    core.stock_request(0, 1, true, envelope(16, 255), b"nobody", Body::from("x"));
    let with = core.load().1;
    assert!(with > 16 * 255, "{with}");
    core.peer_gone(1, 1);
    assert_eq!(core.load(), (0, 0));
    core.check();
}

#[test]
fn tiny_frames_count_with_their_overhead() {
    let frames = || (0..1000).map(|_| Bytes::from_static(b"x"));
    let counted = Body::owned(frames().collect::<Vec<_>>()).memory_bytes();
    assert!(counted >= 1000 * 96, "{counted}");
}

#[test]
fn a_stock_client_beyond_the_limits_is_refused_once_and_paused() {
    let mut core = narrow(1 << 20);
    let most = (1 << 20) + core.settings().late_bytes_max();
    let body = || Body::from(Bytes::from(vec![0; 512 << 10]));
    let mut peer = 0;
    while core.load().1 + (512 << 10) <= most {
        core.stock_request(0, peer, true, None, b"nobody", body());
        peer += 1;
    }
    actions(&mut core);
    core.stock_request(0, peer, true, None, b"another", body());
    let done = actions(&mut core);
    assert_eq!(refusals(&done), 1);
    assert!(done.contains(&Action::Pause { peer, paused: true }), "{done:?}");
    // It is resumed when there is space.
    (0..peer).for_each(|other| core.peer_gone(1, other));
    core.tick(1);
    assert!(actions(&mut core).contains(&Action::Pause { peer, paused: false }));
}

#[test]
fn memory_pressure_counts_unread_output() {
    const MIB: usize = 1 << 20;
    let mut core = narrow(8 * MIB);
    assert_eq!(core.memory_pressure(0), MemoryPressure::Low);
    core.stock_request(0, 1, true, None, b"nobody", Body::from(Bytes::from(vec![0; 3 * MIB])));
    assert_eq!(core.memory_pressure(0), MemoryPressure::Low);
    // The replies to requests that are here may be as large.
    assert_eq!(core.memory_pressure(MIB), MemoryPressure::High);
    assert_eq!(core.memory_pressure(5 * MIB), MemoryPressure::Backlog);
    core.stock_request(0, 2, true, None, b"nobody", Body::from(Bytes::from(vec![0; 5 * MIB])));
    assert_eq!(core.memory_pressure(0), MemoryPressure::Full);
    core.peer_gone(1, 2);
    assert_eq!(core.memory_pressure(0), MemoryPressure::Low);

    let mut core = Core::new(Settings { requests_max: 4, ..Settings::default() });
    let spaces =
        [MemoryPressure::Low, MemoryPressure::Low, MemoryPressure::High, MemoryPressure::High, MemoryPressure::Full];
    for (requests, space) in (0..).zip(spaces) {
        assert_eq!(core.memory_pressure(0), space, "{requests}");
        core.stock_request(0, requests, true, None, b"nobody", Body::default());
    }
}

#[test]
fn resuming_one_client_does_not_look_at_all() {
    const STOPPED: Peer = 200;
    const KEPT: u64 = 300;
    let mut core = Core::new(Settings { requests_max: KEPT as usize + 1, ..Settings::default() });
    core.worker_ready(0, 1000, Kind::Numbered, b"echo", 1000);
    core.client_hello(0, 999, CLIENT, 1);
    // More than half of the requests are for a service without workers, so each stock client exceeds the limit.
    (1..=KEPT).for_each(|number| core.request(0, 999, number, 0, false, b"nobody", Body::default()));
    (0..STOPPED).for_each(|peer| core.stock_request(0, peer, true, None, b"echo", Body::default()));
    for (worker, token, _) in dispatched(&mut core) {
        core.worker_reply(0, worker, &token, Status::OK, None, Body::default());
    }
    actions(&mut core);
    // Clients that leave meanwhile aren't remembered, although nobody is looked at.
    core.request(0, 999, KEPT + 1, 0, false, b"nobody", Body::default());
    for _ in 0..10 {
        core.stock_request(0, STOPPED, true, None, b"nobody", Body::default());
        core.peer_gone(0, STOPPED);
        core.tick(0);
    }
    assert_eq!((core.paused.len(), core.paused.looks), (STOPPED as usize, 0));
    core.cancel(0, 999, KEPT + 1);
    core.confirm(0, 999, KEPT + 1, 1);
    actions(&mut core);
    let mut resumed = Vec::new();
    for now in 1..=u64::from(STOPPED) {
        core.tick(now);
        resumed.extend(actions(&mut core).iter().filter_map(|action| match action {
            Action::Pause { peer, paused: false } => Some(*peer),
            _ => None,
        }));
    }
    assert_eq!(resumed, (0..STOPPED).collect::<Vec<_>>());
    assert!(core.paused.looks <= 2 * STOPPED as usize, "{} looks", core.paused.looks);
}

#[test]
fn a_tick_looks_at_few_of_the_clients_that_wait_for_one_queue() {
    const ALL: Peer = 400;
    const WORKER: Peer = ALL;
    const LOOKS_MAX: usize = 64;
    let mut core = Core::new(Settings { service_requests_max: 100, ..Settings::default() });
    (0..ALL).for_each(|peer| core.stock_request(0, peer, true, None, b"echo", Body::default()));
    assert_eq!(core.paused.len(), ALL as usize - 99);
    core.worker_ready(0, WORKER, Kind::Numbered, b"echo", 1);
    let (mut served, mut looks) = (0, 0);
    while let Some((worker, token, _)) = dispatched(&mut core).pop() {
        core.worker_reply(0, worker, &token, Status::OK, None, Body::default());
        core.tick(0);
        served += 1;
        let before = std::mem::replace(&mut looks, core.paused.looks);
        assert!(looks - before <= LOOKS_MAX, "{} looks", looks - before);
    }
    assert_eq!(served, ALL);
    // Nobody has to send anything before the last of them are looked at.
    for _ in 0..ALL {
        if core.next_deadline() > 0 {
            break;
        }
        core.tick(0);
    }
    assert_eq!(core.paused.len(), 0);
}

#[test]
fn a_blocked_client_gets_no_builtin_answers() {
    let mut core = core();
    core.stock_request(0, 1, true, None, b"mmi.queue", Body::default());
    assert!(matches!(actions(&mut core)[..], [Action::BuiltIn { .. }]));
    core.peer_blocked(0, 1, true);
    core.stock_request(0, 1, true, None, b"mmi.queue", Body::default());
    assert_eq!(refusals(&actions(&mut core)), 1);
    core.peer_blocked(0, 1, false);
    core.stock_request(0, 1, true, None, b"mmi.queue", Body::default());
    assert!(matches!(actions(&mut core)[..], [Action::BuiltIn { .. }]));
    assert!(is_built_in(b"mmi.queue"));
}

#[test]
fn gaps_between_confirmed_numbers_count_as_memory() {
    let mut core = narrow(64 << 10);
    let confirm_odd = |core: &mut Core, peer, numbers: std::ops::Range<u64>| {
        numbers.for_each(|number| core.confirm(0, peer, 2 * number, 1));
    };
    core.client_hello(0, 1, CLIENT, 1);
    confirm_odd(&mut core, 1, 1..500);
    assert!(core.load().1 >= 499 * 64);
    assert!(!actions(&mut core).iter().any(|action| matches!(action, Action::Disconnect { .. })));
    // Requested numbers may be confirmed in any order, even without space.
    let mut filler = 0;
    core.client_hello(0, 2, ClientId([8; 16]), 1);
    while filler < 100 && core.load().1 + 300 < 64 << 10 {
        filler += 1;
        core.request(0, 2, filler, 0, false, b"nobody", Body::default());
    }
    (1..=filler).filter(|number| number % 2 == 0).for_each(|number| core.confirm(0, 2, number, 1));
    assert!(!actions(&mut core).iter().any(|action| matches!(action, Action::Disconnect { .. })));
    // Nor is a client at fault whose requests the broker has lost: it has more space for that.
    confirm_odd(&mut core, 1, 500..600);
    assert!(!actions(&mut core).iter().any(|action| matches!(action, Action::Disconnect { .. })));
    confirm_odd(&mut core, 1, 600..2000);
    let ended = |action: &Action| matches!(action, Action::Disconnect { peer: 1, .. });
    assert!(actions(&mut core).iter().any(ended));
    core.peer_gone(0, 2);
    core.tick(core.settings().absent_client_ms + 1);
    assert_eq!(core.load(), (0, 0));
}

/// Built-in services and volatile requests need no journal.
#[test]
fn a_failed_journal_refuses_only_journalled_requests() {
    let mut core = Core::new(Settings { journal: true, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.storage_failed(Some(StorageFailure::NoSpace));
    core.request(0, 1, 1, 0, false, b"nobody", Body::from("kept"));
    core.request(0, 1, 2, 0, true, b"nobody", Body::from("volatile"));
    core.request(0, 1, 3, 0, false, b"mmi.queue", Body::default());
    let done = actions(&mut core);
    let refused = |action: &Action| match action {
        Action::Refused { number, status, .. } => Some((*number, *status)),
        _ => None,
    };
    let refused: Vec<_> = done.iter().filter_map(refused).collect();
    assert_eq!(refused, [(1, Status::NO_STORAGE)]);
    assert!(done.iter().any(|action| matches!(action, Action::BuiltIn { .. })), "{done:?}");
    core.storage_failed(None);
    core.request(0, 1, 4, 0, false, b"nobody", Body::from("kept"));
    assert!(!actions(&mut core).iter().any(|action| refused_number(action) == Some(4)));
    core.check();
}

fn refused_number(action: &Action) -> Option<u64> {
    if let Action::Refused { number, .. } = action { Some(*number) } else { None }
}

#[test]
fn requests_cannot_use_up_the_services_of_workers() {
    let mut core = Core::new(Settings { services_max: 100, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    for n in 1..=200 {
        core.stock_request(0, 2, true, None, format!("stock {n}").as_bytes(), Body::default());
        // Answered, and not confirmed.
        core.request(0, 1, n, 0, false, format!("mmi.{n}").as_bytes(), Body::default());
        let done = actions(&mut core);
        let asked = done.into_iter().find_map(|action| match action {
            Action::BuiltIn { token, service, .. } => Some((token, service)),
            _ => None,
        });
        let (token, service) = asked.unwrap();
        assert_eq!(service, format!("mmi.{n}"));
        core.built_in_reply(&token, Status::NOT_IMPLEMENTED, Body::from("501"));
    }
    assert!(core.services().count() <= core.settings().asked_services_max());
    actions(&mut core);
    // New services are refused, known ones are not.
    core.stock_request(0, 2, true, None, b"one more", Body::default());
    assert_eq!(refusals(&actions(&mut core)), 1);
    core.stock_request(0, 2, true, None, b"stock 1", Body::default());
    core.worker_ready(0, 3, Kind::Numbered, b"new", 1);
    assert!(!actions(&mut core).iter().any(|action| matches!(action, Action::Disconnect { .. })));
    assert_eq!(core.service(b"new").unwrap().workers, 1);
    // A reply names the service that was asked for.
    core.stock_request(0, 4, true, None, b"mmi.what", Body::default());
    let Some(Action::BuiltIn { token, .. }) = actions(&mut core).pop() else { panic!("not asked") };
    core.built_in_reply(&token, Status::NOT_IMPLEMENTED, Body::from("501"));
    let Some(Action::StockReply { service, .. }) = actions(&mut core).pop() else { panic!("no reply") };
    assert_eq!(service, "mmi.what");
}

#[test]
fn a_rejected_part_ends_its_request_but_not_its_worker() {
    for kind in [Kind::Numbered, Kind::Stock] {
        let mut core = core();
        core.client_hello(0, 1, CLIENT, 1);
        core.worker_ready(0, 2, kind, b"work", 1);
        core.request(0, 1, 1, 0, false, b"work", Body::default());
        core.request(0, 1, 2, 0, false, b"work", Body::default());
        let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
        core.reject_part(1, 2, &token, Status::TOO_LARGE, "too large");
        let done = actions(&mut core);
        let answered = |action: &Action| matches!(action, Action::Reply { number: 1, status: Status::TOO_LARGE, .. });
        assert!(done.iter().any(answered), "{done:?}");
        let given = |actions: &[Action]| actions.iter().position(|action| matches!(action, Action::Dispatch { .. }));
        let cancelled = done.iter().position(|action| matches!(action, Action::CancelWork { .. }));
        match kind {
            // It is cancelled before it gets the next request.
            Kind::Numbered => assert!(cancelled.unwrap() < given(&done).unwrap(), "{done:?}"),
            // It can't be cancelled, and stays busy until its reply comes.
            Kind::Stock => assert_eq!((cancelled, given(&done)), (None, None), "{done:?}"),
        }
        core.reject_part(2, 2, &token, Status::TOO_LARGE, "too large");
        core.worker_reply(2, 2, &token, Status::OK, None, Body::from("the end"));
        let later = actions(&mut core);
        assert_eq!(given(&later).is_some(), kind == Kind::Stock, "{later:?}");
        assert!(!later.iter().any(|action| matches!(action, Action::Disconnect { .. } | Action::Reply { .. })));
        assert_eq!(core.counters().late_replies, 2);
    }
}

/// The disk fills up before anybody noticed.
#[test]
fn a_full_journal_refuses_requests_that_no_worker_had() {
    let mut core = Core::new(Settings { journal: true, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 2);
    core.request(0, 1, 1, 0, false, b"nobody", Body::from("acknowledged"));
    core.persisted(1);
    for number in 2..=5 {
        core.request(0, 1, number, 0, false, b"echo", Body::from("x"));
    }
    let tokens: Vec<_> = dispatched(&mut core).into_iter().map(|(_, token, _)| token).collect();
    core.worker_credit(1, 2, 0);
    core.worker_reply(1, 2, &tokens[0], Status::OK, None, Body::from("replied"));
    assert_eq!(actions(&mut core), []);
    let mut entries = Vec::new();
    core.take_entries(&mut entries);
    let accepted = entries.iter().filter_map(|entry| match entry {
        Entry::Accepted { id, .. } => Some(*id),
        _ => None,
    });
    core.journal_full(1, &accepted.skip(1).collect());
    let done = actions(&mut core);
    // It is too late to refuse what was replied to, or what a worker has.
    let replied = |action: &Action| matches!(action, Action::Reply { number: 2, status: Status::OK, .. });
    assert!(done.iter().any(replied), "{done:?}");
    assert_eq!(done.iter().filter_map(refused_number).collect::<Vec<_>>(), [4, 5]);
    core.worker_reply(2, 2, &tokens[1], Status::OK, None, Body::from("replied"));
    let done = actions(&mut core);
    assert!(matches!(done[..], [Action::Reply { number: 3, status: Status::OK, .. }]), "{done:?}");
    // The journal gets nothing more of them, and keeps what was acknowledged.
    core.persisted(entries.len() as u64);
    core.confirm(3, 1, 2, 4);
    entries.clear();
    core.take_entries(&mut entries);
    assert_eq!((entries, actions(&mut core)), (vec![], vec![]));
    assert_eq!(core.load().0, 1);
    // A repeated request finds space by then.
    core.request(4, 1, 6, 0, false, b"nobody", Body::from("x"));
    core.persisted(7);
    assert_eq!(actions(&mut core), [Action::Accepted { peer: 1, first: 6, count: 1 }]);
}

#[test]
fn stock_worker_serves_titanic_where_there_is_no_journal() {
    for journal in [false, true] {
        let mut core = Core::new(Settings { secret: [3, 4], journal, ..Settings::default() });
        core.client_hello(0, 1, CLIENT, 1);
        core.request(0, 1, 1, 0, false, b"titanic.request", Body::default());
        assert!(matches!(actions(&mut core)[..], [Action::Welcome { .. }, Action::BuiltIn { .. }]));
        core.worker_ready(0, 2, Kind::Numbered, b"titanic.request", 1);
        assert!(matches!(actions(&mut core)[..], [Action::Disconnect { peer: 2, .. }]));
        core.worker_ready(0, 3, Kind::Stock, b"titanic.request", 1);
        core.request(0, 1, 2, 0, false, b"titanic.request", Body::default());
        let done = actions(&mut core);
        match journal {
            true => {
                assert!(matches!(done[..], [Action::Disconnect { peer: 3, .. }, Action::BuiltIn { .. }]), "{done:?}")
            }
            false => assert!(matches!(done[..], [Action::Dispatch { peer: 3, .. }]), "{done:?}"),
        }
    }
}
