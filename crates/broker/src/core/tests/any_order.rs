//! Any events in any order.

use super::*;
use proptest::prelude::*;

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
        1 => (peer, any::<bool>()).prop_map(|(peer, blocked)| Step::Blocked(peer, blocked)),
        2 => (0..60_u64).prop_map(Step::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever peers do, the sums and lists stay true, and nothing panics.
    #[test]
    fn any_order_of_events_keeps_the_books(steps in prop::collection::vec(step(), 0..200), journal in any::<bool>()) {
        let mut core = Core::new(Settings {
            journal,
            client_bytes_max: 12_000,
            service_requests_max: 8,
            attempts_max: 3,
            busy_timeout_ms: Some(200),
            absent_client_ms: 100,
            journal_retention_ms: 300,
            heartbeat_ms: 25,
            ..Settings::default()
        });
        let (mut now, mut given, mut entries, mut written) = (0, Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Hello(peer, client) => core.client_hello(now, peer, ClientId([client; 16]), 1),
                Step::Ready(peer, stock, credit) => {
                    let (kind, credit) = if stock { (Kind::Stock, 1) } else { (Kind::Numbered, credit) };
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
                    core.worker_reply(now, peer, &token, Status::OK, part, Body::from(vec![0; index % 900]));
                }
                Step::Reply(..) => {}
                Step::Confirm(peer, first, count) => core.confirm(now, peer, first, count),
                Step::Cancel(peer, number) => core.cancel(now, peer, number),
                Step::Gone(peer) => core.peer_gone(now, peer),
                Step::Blocked(peer, blocked) => core.peer_blocked(now, peer, blocked),
                Step::Time(passed) => {
                    now += passed;
                    core.tick(now);
                    core.take_entries(&mut entries);
                    written += entries.drain(..).count() as u64;
                    core.persisted(written);
                }
            }
            for action in actions(&mut core) {
                if let Action::Dispatch { peer, token, .. } = action {
                    given.push((peer, token));
                }
            }
        }
        // When all are gone and the time is over, nothing is left.
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
