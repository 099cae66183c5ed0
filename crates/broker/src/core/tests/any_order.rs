//! Random events in random order.

use super::*;
use crate::core::worker::Worker;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Debug, Clone)]
enum Step {
    Hello(Peer, u8),
    Ready(Peer, bool, u32),
    Request(Peer, u64, u32, usize),
    Stock(Peer, usize),
    Reply(usize, Peer, Option<u32>),
    Confirm(Peer, u64, u32),
    Cancel(Peer, u64),
    Gone(Peer),
    Blocked(Peer, bool),
    Flushed,
    LosePart(usize, Peer),
    GiveBack(usize, Peer),
    Store(u8, usize),
    Close(Peer, u64, u8),
    NotKept,
    NoSpace,
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let peer = 0..6_u32;
    prop_oneof![
        1 => (peer.clone(), 0..3_u8).prop_map(|(peer, client)| Step::Hello(peer, client)),
        2 => (peer.clone(), any::<bool>(), 0..4_u32).prop_map(|(peer, stock, credit)| Step::Ready(peer, stock, credit)),
        8 => (peer.clone(), 1..30_u64, 0..90_u32, 0..3000_usize)
            .prop_map(|(peer, number, ttl, size)| Step::Request(peer, number, ttl, size)),
        2 => (peer.clone(), 0..3000_usize).prop_map(|(peer, size)| Step::Stock(peer, size)),
        8 => (any::<usize>(), peer.clone(), prop::option::weighted(0.2, 0..3_u32))
            .prop_map(|(token, peer, part)| Step::Reply(token, peer, part)),
        3 => (peer.clone(), 1..30_u64, 0..10_u32).prop_map(|(peer, first, count)| Step::Confirm(peer, first, count)),
        1 => (peer.clone(), 1..30_u64).prop_map(|(peer, number)| Step::Cancel(peer, number)),
        1 => peer.clone().prop_map(Step::Gone),
        2 => (peer.clone(), any::<bool>()).prop_map(|(peer, blocked)| Step::Blocked(peer, blocked)),
        3 => Just(Step::Flushed),
        1 => (any::<usize>(), peer.clone()).prop_map(|(token, peer)| Step::LosePart(token, peer)),
        2 => (any::<usize>(), peer.clone()).prop_map(|(token, peer)| Step::GiveBack(token, peer)),
        1 => (0..4_u8, 0..3000_usize).prop_map(|(name, size)| Step::Store(name, size)),
        1 => (peer, 1..30_u64, 0..4_u8).prop_map(|(peer, number, name)| Step::Close(peer, number, name)),
        1 => Just(Step::NotKept),
        1 => Just(Step::NoSpace),
        2 => (0..60_u64).prop_map(Step::Time),
    ]
}

/// Panics if something waits that nothing holds back.
fn check_progress(core: &Core, now: Millis) {
    assert!(core.windows.none_is_full());
    for (key, session) in core.sessions.iter() {
        assert!(session.pending_outcomes.len == 0 || session.blocked, "an outcome is never sent");
        // Memory freed by others is noticed once a second.
        let is_held_back = core.is_held_back(now, key, 2) || core.settings.bytes_max < 1 << 20;
        assert!(session.parked.len == 0 || session.is_dead_letter() || is_held_back, "requests are never executed");
    }
    for (_, service) in core.services.iter().filter(|(_, service)| service.waiting.sums().requests > 0) {
        let works = |worker: &Worker| core.services.at(worker.service).name == service.name && worker.has_credit();
        let is_idle = core.workers.iter().any(|(_, worker)| works(worker));
        assert!(!is_idle || service.replies.waits_for_memory(), "a worker waits for what waits for it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Sums and lists stay true, and nothing panics.
    #[test]
    fn random_events_keep_lists_and_sums_true(
        steps in prop::collection::vec(step(), 0..200),
        journal in any::<bool>(),
        reply_bytes_expected in prop_oneof![Just(0), 1_000..4_000_usize],
        bytes_max in prop_oneof![Just(1 << 30), Just(24_000)],
    ) {
        let mut core = Core::new(Settings {
            journal,
            client_bytes_max: 12_000,
            window_bytes_max: 3_000,
            reply_bytes_expected,
            bytes_max,
            service_requests_max: 8,
            attempts_max: 3,
            busy_timeout_ms: Some(200),
            absent_client_ms: 100,
            journal_retention_ms: 300,
            heartbeat_ms: 25,
            ..Settings::default()
        });
        let (mut now, mut given, mut entries, mut written) = (0, Vec::new(), Vec::new(), 0);
        let (mut closing, mut flushed) = (Vec::new(), Vec::new());
        let (mut held, mut credits) = (HashMap::<Peer, Vec<Token>>::new(), HashMap::new());
        for step in steps {
            match step {
                Step::Hello(peer, client) => core.client_hello(now, peer, ClientId([client; 16]), 1),
                Step::Ready(peer, stock, credit) => {
                    let (kind, credit) = if stock { (Kind::Stock, 1) } else { (Kind::Numbered, credit) };
                    if core.roles.get(peer) == Role::None {
                        held.remove(&peer);
                        credits.insert(peer, credit as usize);
                    }
                    core.worker_ready(now, peer, kind, b"echo", credit);
                }
                Step::Request(peer, number, ttl, size) => {
                    core.request(now, peer, number, ttl, false, b"echo", Body::from(vec![0; size]));
                }
                Step::Stock(peer, size) => {
                    core.stock_request(now, peer, size % 2 == 0, None, b"echo", Body::from(vec![0; size]));
                }
                Step::Reply(index, peer, part) if !given.is_empty() => {
                    let (to, token) = given[index % given.len()];
                    let peer = if index % 7 == 0 { peer } else { to };
                    if let (None, Some(held)) = (part, held.get_mut(&peer)) {
                        held.retain(|held| *held != token);
                    }
                    core.worker_reply(now, peer, &token, Status::OK, part, Body::from(vec![0; index % 2_900]));
                }
                Step::Reply(..) => {}
                Step::Confirm(peer, first, count) => core.confirm(now, peer, first, count),
                Step::Cancel(peer, number) => core.cancel(now, peer, number),
                Step::Gone(peer) => core.peer_gone(now, peer),
                Step::Blocked(peer, blocked) => core.peer_blocked(now, peer, blocked),
                Step::Flushed => {
                    while core.flushed(now) {
                        core.take_actions(&mut flushed);
                    }
                    check_progress(&core, now);
                }
                Step::LosePart(index, peer) if !given.is_empty() => {
                    let (to, token) = given[index % given.len()];
                    let peer = if index % 7 == 0 { peer } else { to };
                    core.reject_part(now, peer, &token, Status::NO_STORAGE, "no space");
                }
                Step::LosePart(..) => {}
                Step::GiveBack(index, peer) if !given.is_empty() => {
                    let (to, token) = given[index % given.len()];
                    let peer = if index % 7 == 0 { peer } else { to };
                    if let Some(held) = held.get_mut(&peer) {
                        held.retain(|held| *held != token);
                    }
                    core.worker_returns_request(now, peer, &token, b"no place");
                }
                Step::GiveBack(..) => {}
                Step::Store(name, size) if journal => {
                    let body = Body::from(vec![0; size]);
                    core.store(now, ClientId([100 + name; 16]), b"echo", body, Token([0; 16]), Body::default());
                }
                Step::Store(..) => {}
                Step::Close(peer, number, name) => {
                    core.request(now, peer, number, 0, false, b"titanic.close", Body::default());
                    core.take_actions(&mut closing);
                    if let Some(Action::BuiltIn { token, .. }) = closing.last() {
                        core.close_stored(now, ClientId([100 + name; 16]), *token, Body::default());
                    }
                }
                Step::NotKept => {
                    core.take_entries(&mut entries);
                    // One of them is rejected, and those before it are kept.
                    let kept = entries.drain(..).count() as u64;
                    if kept > 0 {
                        core.persisted(written + kept - 1);
                        core.entry_rejected(now);
                        written += kept;
                    }
                }
                Step::NoSpace => {
                    core.take_entries(&mut entries);
                    let accepted = entries.iter().filter_map(|entry| match entry {
                        Entry::Accepted { id, .. } => Some(*id),
                        _ => None,
                    });
                    core.journal_full(now, &accepted.collect());
                }
                Step::Time(passed) => {
                    now += passed;
                    core.tick(now);
                    core.take_entries(&mut entries);
                    written += entries.drain(..).count() as u64;
                    core.persisted(written);
                }
            }
            for action in closing.drain(..).chain(flushed.drain(..)).chain(actions(&mut core)) {
                match action {
                    Action::Dispatch { peer, token, .. } => {
                        given.push((peer, token));
                        held.entry(peer).or_default().push(token);
                        let credit = credits.get(&peer).copied().unwrap_or(0);
                        prop_assert!(held[&peer].len() <= credit, "more than its credit");
                    }
                    Action::CancelWork { peer, token } => held.entry(peer).or_default().retain(|held| *held != token),
                    _ => {}
                }
            }
        }
        // When all peers are gone and everything has expired, nothing is left.
        for peer in 0..6 {
            core.peer_gone(now, peer);
        }
        for _ in 0..1000 {
            now += 1_000;
            core.tick(now);
        }
        actions(&mut core);
        prop_assert_eq!(core.load(), (0, 0));
        prop_assert_eq!(core.services().count(), 0);
    }
}
