//! Outcomes that are kept, give way, and are dropped.

use super::*;

/// A core with a worker, and this many outcomes of a client that it then left. The next tick is at 2.
fn with_outcomes(settings: Settings, outcomes: u64, length: usize) -> Core {
    let mut core = Core::new(settings);
    core.worker_ready(0, 9, Kind::Numbered, b"echo", 10);
    core.client_hello(0, 1, CLIENT, 1);
    for number in 1..=outcomes {
        core.request(0, 1, number, 1_000, false, b"echo", Body::from(vec![0; length]));
        for (peer, token, _) in dispatched(&mut core) {
            core.worker_reply(1, peer, &token, Status::OK, None, Body::from(vec![1; length]));
        }
    }
    core.peer_gone(1, 1);
    actions(&mut core);
    core
}

#[test]
fn unconfirmed_outcomes_leave_requests_their_space() {
    let mut core = with_outcomes(Settings { requests_max: 4, ..Settings::default() }, 4, 0);
    for peer in [2, 3, 4] {
        core.stock_request(2, peer, true, None, b"echo", Body::default());
    }
    let paused = actions(&mut core).into_iter().filter(|action| matches!(action, Action::Pause { .. })).count();
    assert_eq!((paused, core.load().0, core.is_full()), (0, 7, false));
    core.stock_request(2, 5, true, None, b"echo", Body::default());
    assert_eq!(actions(&mut core).last(), Some(&Action::Pause { peer: 5, paused: true }));
    assert!(core.is_full());
}

#[test]
fn an_outcome_is_dropped_when_the_grace_is_over_and_its_number_stays_over() {
    let settings = Settings { outcome_grace_ms: 5_000, ..Settings::default() };
    let mut core = with_outcomes(settings, 3, 0);
    core.tick(5_999);
    assert_eq!(core.outcomes().0, 3);
    core.tick(7_000);
    assert_eq!((core.outcomes(), core.load(), core.counters().outcomes_dropped), ((0, 0), (0, 0), 3));
    // It comes back, and asks again.
    core.client_hello(8_000, 1, CLIENT, 2);
    core.request(8_000, 1, 2, 0, false, b"echo", Body::default());
    let is_lost = |action: &Action| matches!(action, Action::Reply { number: 2, status: Status::LOST, .. });
    assert!(actions(&mut core).last().is_some_and(is_lost));
    core.confirm(8_000, 1, 2, 2);
    core.request(8_000, 1, 3, 0, false, b"echo", Body::default());
    let is_conflict = |action: &Action| matches!(action, Action::Refused { number: 3, status: Status::CONFLICT, .. });
    assert!(actions(&mut core).last().is_some_and(is_conflict));
    assert_eq!(core.load().0, 0);
    core.peer_gone(8_000, 1);
    assert_eq!((core.load(), core.counters().dispatched), ((0, 0), 3));
}

#[test]
fn outcomes_of_a_connected_client_and_stored_ones_are_kept_beyond_the_grace() {
    let settings = Settings { outcome_grace_ms: 0, journal: true, ..Settings::default() };
    let mut core = with_outcomes(settings.clone(), 2, 0);
    core.client_hello(1, 1, CLIENT, 1);
    let mut taken = Vec::new();
    core.store(1, ClientId([9; 16]), b"echo", Body::from("stored"), Token([0; 16]), Body::default());
    core.take_entries(&mut taken);
    core.persisted(taken.len() as u64);
    for (peer, token, _) in dispatched(&mut core) {
        core.worker_reply(1, peer, &token, Status::OK, None, Body::default());
    }
    core.tick(100_000);
    assert_eq!((actions(&mut core).len(), core.outcomes().0), (0, 3));
    core.peer_gone(100_000, 1);
    core.tick(200_000);
    assert_eq!((core.outcomes().0, core.drop_absent_outcomes()), (1, 0));
}

#[test]
fn outcomes_of_absent_clients_give_way_beyond_half_of_the_memory_and_then_a_quarter() {
    let settings = Settings { bytes_max: 40_000, reply_bytes_expected: 0, ..Settings::default() };
    let mut core = with_outcomes(settings, 5, 2_000);
    for (client, peer) in [(20, 2), (21, 3), (22, 4)] {
        core.client_hello(1, peer, ClientId([client; 16]), 1);
        core.request(1, peer, 1, 600_000, false, b"echo", Body::from(vec![0; 4_000]));
        for (worker, token, _) in dispatched(&mut core) {
            core.worker_reply(1, worker, &token, Status::OK, None, Body::from(vec![1; 4_000]));
        }
        core.peer_gone(Millis::from(peer), peer);
    }
    // The one that is longest away.
    core.tick(10);
    assert_eq!(core.outcomes(), (3, 3 * (4_000 + 256)));
    core.tick(10_010);
    assert_eq!(core.outcomes(), (2, 2 * (4_000 + 256)));
    core.client_hello(10_020, 3, ClientId([20; 16]), 1);
    core.request(10_020, 3, 1, 0, false, b"echo", Body::from(vec![0; 4_000]));
    let is_lost = |action: &Action| matches!(action, Action::Reply { number: 1, status: Status::LOST, .. });
    assert!(actions(&mut core).last().is_some_and(is_lost));
}

#[test]
fn the_grace_of_an_outcome_goes_on_across_a_restart_and_no_request_has_more_time_than_it_could_ask_for() {
    let mut core =
        Core::new(Settings { outcome_grace_ms: 5_000, ttl_max_ms: 60_000, journal: true, ..Settings::default() });
    let outcome = || Some((Status::OK, Body::default()));
    let year = 365 * 24 * 3_600_000;
    let requests = [
        (1, 0, 7_000, outcome()),
        (2, 0, 3_000, outcome()),
        (3, 1_000, 0, outcome()),
        // As after a clock that was set back.
        (4, year, 0, outcome()),
        (5, year, 0, None),
        // A stored one.
        (6, Millis::MAX, 0, outcome()),
    ];
    for (number, expires, overdue_ms, outcome) in requests {
        let client = if number == 6 { ClientId([6; 16]) } else { CLIENT };
        let (service, body) = (Bytes::from_static(b"echo"), Body::default());
        let (checksum, letter) = (RequestChecksum::default(), None);
        core.restore(
            0,
            Restored { id: number, client, number, service, expires, overdue_ms, checksum, letter, body, outcome },
        );
    }
    core.restored_up_to(6);
    let left = |core: &mut Core, now: Millis| {
        core.tick(now);
        core.check();
        core.outcomes().0
    };
    assert_eq!([0, 1_999, 3_000, 6_000].map(|now| left(&mut core, now)), [4, 4, 3, 2]);
    core.worker_ready(6_000, 2, Kind::Numbered, b"echo", 1);
    let ttls = actions(&mut core).into_iter().filter_map(|action| match action {
        Action::Dispatch { ttl_ms, .. } => Some(ttl_ms),
        _ => None,
    });
    assert_eq!(ttls.collect::<Vec<_>>(), [54_000]);
    assert_eq!([64_999, 66_000].map(|now| left(&mut core, now)), [3, 1]);
}

#[test]
fn a_clock_that_was_set_makes_no_false_words_and_no_request_without_a_time() {
    let settings = Settings { journal: true, ttl_max_ms: Millis::MAX / 2, ..Settings::default() };
    let mut core = Core::new(settings);
    let (service, body) = (Bytes::from_static(b"echo"), Body::default());
    for (number, expires, overdue_ms) in [(1, 0, 7_200_000), (2, 20 * 365 * 24 * 3_600_000, 0)] {
        let (service, body) = (service.clone(), body.clone());
        let checksum = IncomingBody::from(body.clone()).request_checksum(&service);
        let (letter, outcome) = (None, None);
        core.restore(
            0,
            Restored {
                id: number,
                client: CLIENT,
                number,
                service,
                expires,
                overdue_ms,
                checksum,
                letter,
                body,
                outcome,
            },
        );
    }
    core.restored_up_to(2);
    core.tick(20);
    core.take_entries(&mut Vec::new());
    core.persisted(1);
    core.worker_ready(20, 2, Kind::Numbered, b"echo", 2);
    let ttls = actions(&mut core).into_iter().filter_map(|action| match action {
        Action::Dispatch { ttl_ms, .. } => Some(ttl_ms),
        _ => None,
    });
    assert_eq!(ttls.collect::<Vec<_>>(), [u32::MAX], "0 is none");
    core.client_hello(30, 1, CLIENT, 1);
    core.request(30, 1, 1, 0, false, b"echo", Body::default());
    let Some(Action::Reply { number: 1, status: Status::TIMED_OUT, body, .. }) = actions(&mut core).pop() else {
        panic!("it hasn't expired")
    };
    let reason = String::from_utf8_lossy(body.single().unwrap()).into_owned();
    let reason = Status::TIMED_OUT.describe(&reason);
    assert_eq!(reason, "504 expired, and a worker may have had it: before the broker was restarted");
}

/// The requests that a journal with these entries restores.
fn restored(entries: &[Entry]) -> Vec<Restored> {
    let mut requests = std::collections::BTreeMap::new();
    for entry in entries.iter().cloned() {
        match entry {
            Entry::Accepted { id, client, number, service, expires, checksum, letter, body } => {
                assert_eq!(letter, None);
                let (overdue_ms, letter, outcome) = (0, None, None);
                let request =
                    Restored { id, client, number, service, expires, overdue_ms, checksum, letter, body, outcome };
                requests.insert(id, request);
            }
            Entry::Finished { id, status, body } => requests.get_mut(&id).unwrap().outcome = Some((status, body)),
            Entry::Forgotten { id } => _ = requests.remove(&id),
            Entry::Moved { .. } => unreachable!("no dead letters"),
        }
    }
    requests.into_values().collect()
}

/// A core with a journal that has these entries. All that it writes from now on is at once on the disk.
fn restarted(settings: &Settings, entries: &[Entry]) -> Core {
    let mut core = Core::new(settings.clone());
    restored(entries).into_iter().for_each(|request| core.restore(0, request));
    core.restored_up_to(1_000);
    core.worker_ready(0, 9, Kind::Numbered, b"echo", 10);
    core.check();
    core
}

/// Moves what a core writes to its journal.
fn write(core: &mut Core, journal: &mut Vec<Entry>) {
    let before = journal.len();
    core.take_entries(journal);
    core.persisted((core.durability.durable() as usize + journal.len() - before) as u64);
}

#[test]
fn dropped_numbers_stay_over_across_restarts_until_they_are_confirmed() {
    let settings = Settings { journal: true, outcome_grace_ms: 5_000, ..Settings::default() };
    let mut core = Core::new(settings.clone());
    let mut journal = Vec::new();
    core.worker_ready(0, 9, Kind::Numbered, b"echo", 10);
    core.client_hello(0, 1, CLIENT, 1);
    for (number, ttl_ms) in [(1, 1_000), (2, 1_000), (3, 600_000), (4, 10_000), (5, 1_000)] {
        core.request(0, 1, number, ttl_ms, false, b"echo", Body::from("x"));
    }
    write(&mut core, &mut journal);
    for (peer, token, _) in dispatched(&mut core) {
        core.worker_reply(1, peer, &token, Status::OK, None, Body::from("y"));
    }
    write(&mut core, &mut journal);
    core.confirm(1, 1, 5, 1);
    core.peer_gone(1, 1);
    write(&mut core, &mut journal);
    let kept = journal.len();
    for (now, left) in [(7_000, 2), (16_000, 1)] {
        core.tick(now);
        write(&mut core, &mut journal);
        assert_eq!(core.outcomes().0, left);
    }
    // Killed at any time in between.
    for end in kept..=journal.len() {
        let mut core = restarted(&settings, &journal[..end]);
        core.client_hello(0, 1, CLIENT, 1);
        actions(&mut core);
        for number in 1..=4 {
            core.request(0, 1, number, 0, false, b"echo", Body::from("x"));
            let Some(Action::Reply { status, .. }) = actions(&mut core).pop() else { panic!("{end} {number}") };
            assert!(status == Status::OK || end > kept && number != 3 && status == Status::LOST, "{end} {number}");
        }
        assert_eq!(core.counters().dispatched, 0);
    }
    let records = |journal: &[Entry]| restored(journal).iter().filter(|one| one.service.is_empty()).count();
    assert_eq!((restored(&journal).len(), records(&journal)), (2, 1));

    let mut core = restarted(&settings, &journal);
    core.client_hello(0, 1, CLIENT, 2);
    core.request(0, 1, 2, 0, false, b"echo", Body::from("x"));
    let is_lost = |action: &Action| matches!(action, Action::Reply { number: 2, status: Status::LOST, .. });
    assert!(actions(&mut core).last().is_some_and(is_lost));
    core.confirm(0, 1, 2, 1);
    write(&mut core, &mut journal);
    assert_eq!(records(&journal), 1);
    core.confirm(0, 1, 3, 2);
    write(&mut core, &mut journal);
    assert_eq!(restored(&journal).len(), 0);
}

#[test]
fn dropped_numbers_are_forgotten_with_their_client() {
    let settings = Settings { journal: true, journal_retention_ms: 1_000, ..Settings::default() };
    let mut journal = Vec::new();
    let mut core = with_outcomes(settings.clone(), 2, 0);
    write(&mut core, &mut journal);
    assert_eq!(core.drop_absent_outcomes(), 2);
    write(&mut core, &mut journal);
    assert_eq!(restored(&journal).len(), 1);
    let mut core = restarted(&settings, &journal);
    core.tick(900);
    write(&mut core, &mut journal);
    assert_eq!(restored(&journal).len(), 1);
    core.tick(3_000);
    write(&mut core, &mut journal);
    assert_eq!(restored(&journal).len(), 0);
}

#[test]
fn dropped_numbers_wait_for_space_on_a_full_disk() {
    let settings = Settings { journal: true, ..Settings::default() };
    let mut core = with_outcomes(settings.clone(), 2, 0);
    let mut journal = Vec::new();
    write(&mut core, &mut journal);
    core.drop_absent_outcomes();
    let mut lost = Vec::new();
    core.take_entries(&mut lost);
    let Some(Entry::Accepted { id, .. }) = lost.first() else { panic!("{lost:?}") };
    core.journal_full(2, &std::collections::HashSet::from([*id]));
    journal.extend(lost.iter().filter(|entry| entry.id() != *id).cloned());
    core.take_entries(&mut journal);
    journal.retain(|entry| entry.id() != *id);
    let mut core = restarted(&settings, &journal);
    core.client_hello(3, 1, CLIENT, 1);
    core.request(3, 1, 2, 0, false, b"echo", Body::from(vec![0; 0]));
    let is_lost = |action: &Action| matches!(action, Action::Reply { number: 2, status: Status::LOST, .. });
    assert!(actions(&mut core).last().is_some_and(is_lost));
}

/// A body of this many bytes that isn't in memory.
#[derive(Debug)]
struct Elsewhere(u64);

impl towpath_requests::body::LargeBody for Elsewhere {
    fn length(&self) -> u64 {
        self.0
    }
}

#[test]
fn large_outcomes_of_absent_clients_give_way_beyond_half_of_the_bytes_or_of_the_files() {
    for (bytes_max, files_max, left) in [(8_000, 100, 3), (1 << 40, 8, 3), (1 << 40, 100, 5)] {
        let mut core = core();
        core.set_large_max(bytes_max, files_max);
        core.worker_ready(0, 9, Kind::Numbered, b"echo", 10);
        for client in 1..=5 {
            core.client_hello(0, client, ClientId([client as u8; 16]), 1);
            core.request(0, client, 1, 0, false, b"echo", Body::default());
            for (peer, token, _) in dispatched(&mut core) {
                core.worker_reply(
                    0,
                    peer,
                    &token,
                    Status::OK,
                    None,
                    Body::large(std::sync::Arc::new(Elsewhere(1_000))),
                );
            }
        }
        (1..=5).for_each(|client| core.peer_gone(1, client));
        core.tick(2);
        assert_eq!(core.outcomes().0, left, "{bytes_max} {files_max}");
    }
}

#[test]
fn a_tenant_that_has_its_share_of_outcomes_is_refused_and_others_are_not() {
    let mut core = Core::new(Settings { bytes_max: 40_000, reply_bytes_expected: 0, ..Settings::default() });
    core.worker_ready(0, 9, Kind::Numbered, b"echo", 10);
    let mut ask = |peer: Peer, tenant: u32, number| {
        if !core.has_role(peer) {
            core.connected(peer, towpath_sockets::Tenant::Ipc(Some(tenant)));
            core.client_hello(0, peer, ClientId([peer as u8; 16]), 1);
        }
        core.request(0, peer, number, 0, false, b"echo", Body::from(vec![0; 1_000]));
        let mut refused = false;
        for action in actions(&mut core) {
            match action {
                Action::Dispatch { peer, token, .. } => {
                    core.worker_reply(0, peer, &token, Status::OK, None, Body::from(vec![1; 1_000]));
                }
                Action::Refused { .. } => refused = true,
                _ => {}
            }
        }
        refused
    };
    // Nothing of theirs is confirmed: 30,000 bytes are three times what is left.
    assert_eq!((10..60).position(|peer| ask(peer, 1, 1)), Some(24));
    assert!(!ask(70, 2, 1) && ask(80, 1, 1));
}
