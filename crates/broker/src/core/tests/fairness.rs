//! Turns and shares by tenant.

use super::*;
use towpath_sockets::Tenant;

fn tenant(number: u32) -> Tenant {
    Tenant::Ipc(Some(number))
}

/// A numbered client on this connection, of this tenant.
fn client(core: &mut Core, peer: Peer, of: u32) {
    core.connected(peer, tenant(of));
    core.client_hello(0, peer, ClientId([peer as u8; 16]), 1);
}

fn ask(core: &mut Core, peer: Peer, numbers: impl IntoIterator<Item = u64>, service: &[u8]) {
    for number in numbers {
        core.request(0, peer, number, 0, true, service, Body::from(format!("{peer}/{number}").as_str()));
    }
}

fn refused(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Refused { .. })).count()
}

/// The requests that a worker with this credit is given next, one after the other.
fn served(core: &mut Core, worker: Peer, count: usize) -> Vec<String> {
    let mut served = Vec::new();
    while served.len() < count {
        let given: Vec<_> = actions(core)
            .into_iter()
            .filter_map(|action| match action {
                Action::Dispatch { token, body, .. } => Some((token, body)),
                _ => None,
            })
            .collect();
        assert!(!given.is_empty(), "nothing is left after {served:?}");
        for (token, body) in given {
            served.push(String::from_utf8(body.single().unwrap().to_vec()).unwrap());
            core.worker_reply(1, worker, &token, Status::OK, None, Body::default());
        }
    }
    served.truncate(count);
    served
}

#[test]
fn tenants_take_turns_then_clients_and_one_client_is_served_in_order() {
    let mut core = core();
    client(&mut core, 1, 7);
    client(&mut core, 2, 7);
    client(&mut core, 3, 8);
    ask(&mut core, 1, 1..=3_000, b"echo");
    ask(&mut core, 2, 1..=2, b"echo");
    ask(&mut core, 3, 1..=2, b"echo");
    core.worker_ready(1, 9, Kind::Stock, b"echo", 1);
    assert_eq!(served(&mut core, 9, 8), ["1/1", "3/1", "2/1", "3/2", "1/2", "2/2", "1/3", "1/4"]);
}

#[test]
fn stock_clients_and_dead_workers_keep_to_the_turns() {
    let mut core = core();
    client(&mut core, 1, 7);
    core.connected(2, tenant(8));
    core.connected(3, tenant(9));
    ask(&mut core, 1, 1..=10, b"echo");
    for (peer, name) in [(2, "2/1"), (2, "2/2"), (3, "3/1")] {
        core.stock_request(0, peer, true, None, b"echo", Body::from(name));
    }
    core.worker_ready(1, 9, Kind::Stock, b"echo", 1);
    assert_eq!(served(&mut core, 9, 2), ["1/1", "2/1"]);
    actions(&mut core);
    // It has the request of the third, and the first two have had their turns: the next worker gets that one first.
    core.peer_gone(2, 9);
    core.worker_ready(2, 10, Kind::Stock, b"echo", 1);
    assert_eq!(served(&mut core, 10, 4), ["3/1", "1/2", "2/2", "1/3"]);
}

/// Everything that a tenant asks for and nobody works for, until it is refused. Returns how much was taken.
fn fill(core: &mut Core, peers: std::ops::Range<Peer>, of: u32) -> usize {
    let before = core.load().0;
    for peer in peers {
        client(core, peer, of);
        ask(core, peer, 1..=40, b"nobody");
        actions(core);
    }
    core.load().0 - before
}

#[test]
fn a_tenant_leaves_space_for_others() {
    let mut core = Core::new(Settings { requests_max: 400, ..Settings::default() });
    assert_eq!(fill(&mut core, 0..20, 7), 300);
    // Others have space, as often as they come.
    assert_eq!(fill(&mut core, 20..30, 8), 75);
    assert_eq!(fill(&mut core, 30..40, 9), 19);
    // Clients of the first one that are new have none; and what was taken stays.
    assert_eq!(fill(&mut core, 40..41, 7), 0);
    assert_eq!(core.load().0, 394);
}

#[test]
fn memory_services_and_queues_have_shares_too() {
    let settings =
        Settings { bytes_max: 400 << 10, client_bytes_max: 400 << 10, services_max: 444, ..Settings::default() };
    let mut core = Core::new(settings.clone());
    client(&mut core, 1, 7);
    client(&mut core, 2, 8);
    let large = || Body::from(Bytes::from(vec![0; 10 << 10]));
    (1..=40).for_each(|number| core.request(0, 1, number, 0, true, b"nobody", large()));
    assert!((280 << 10..=310 << 10).contains(&core.load().1), "{}", core.load().1);
    assert!(refused(&actions(&mut core)) > 0);
    core.request(0, 2, 1, 0, true, b"nobody", large());
    assert_eq!(refused(&actions(&mut core)), 0);

    // Requests without a body count too.
    let mut core = Core::new(settings.clone());
    client(&mut core, 1, 7);
    client(&mut core, 2, 8);
    ask(&mut core, 1, 1..=2_000, b"nobody");
    assert_eq!((refused(&actions(&mut core)), core.load()), (800, (1_200, 300 << 10)));
    ask(&mut core, 2, [1], b"nobody");
    assert_eq!(refused(&actions(&mut core)), 0);

    let mut core = Core::new(settings);
    client(&mut core, 1, 7);
    client(&mut core, 2, 8);
    (1..=400).for_each(|number| ask(&mut core, 1, [number], format!("service {number}").as_bytes()));
    assert_eq!(core.services().count(), 300);
    assert_eq!(refused(&actions(&mut core)), 100);
    ask(&mut core, 2, [1], b"another");
    assert_eq!(refused(&actions(&mut core)), 0);
    // The names are free again with the last request.
    core.confirm(1, 1, 1, 400);
    ask(&mut core, 1, [401], b"service 401");
    assert_eq!((refused(&actions(&mut core)), core.services().count()), (0, 2));

    let mut core = Core::new(Settings { service_requests_max: 40, ..Settings::default() });
    client(&mut core, 1, 7);
    client(&mut core, 2, 8);
    ask(&mut core, 1, 1..=40, b"nobody");
    assert_eq!((refused(&actions(&mut core)), core.load().0), (0, 40));
    ask(&mut core, 1, [41], b"nobody");
    assert_eq!(refused(&actions(&mut core)), 1);
    // Others may wait beyond it.
    ask(&mut core, 2, 1..=40, b"nobody");
    assert_eq!((refused(&actions(&mut core)), core.load().0), (29, 51));
    ask(&mut core, 1, [42], b"another");
    assert_eq!(refused(&actions(&mut core)), 0);
}

#[test]
fn stock_clients_are_paused_at_the_share_of_their_tenant() {
    let mut core = Core::new(Settings { requests_max: 40, ..Settings::default() });
    core.connected(1, tenant(7));
    core.connected(2, tenant(8));
    let is_paused = |core: &mut Core, peer| actions(core).contains(&Action::Pause { peer, paused: true });
    let asked = (1..=40).find(|_| {
        core.stock_request(0, 1, true, None, b"nobody", Body::default());
        is_paused(&mut core, 1)
    });
    assert_eq!(asked, Some(30));
    core.stock_request(0, 2, true, None, b"nobody", Body::default());
    assert!(!is_paused(&mut core, 2));
}

#[test]
fn absent_clients_give_way_but_not_what_is_in_the_journal() {
    for journal in [false, true] {
        let mut core = Core::new(Settings { requests_max: 400, journal, ..Settings::default() });
        // One that is away with little, and has been for longest.
        client(&mut core, 50, 8);
        core.request(0, 50, 1, 0, !journal, b"nobody", Body::default());
        core.peer_gone(0, 50);
        for peer in 0..20 {
            client(&mut core, peer, 7);
            (1..=40).for_each(|number| core.request(0, peer, number, 0, !journal, b"nobody", Body::default()));
        }
        let taken = core.load().0;
        assert!((295..=301).contains(&taken), "{taken}");
        core.tick(1);
        assert_eq!(core.load().0, taken, "they are there");
        (0..20).for_each(|peer| core.peer_gone(2, peer));
        core.tick(2_000);
        let left = core.load().0;
        assert_eq!(left, if journal { taken } else { left.min(200) }, "half is free");
        assert!(journal || left > 100);
        core.client_hello(2_001, 60, ClientId([50; 16]), 1);
        assert_eq!(core.outstanding(60), 1, "it was forgotten instead of one with much");
        core.check();
    }
}

#[test]
fn a_client_that_moves_takes_what_it_has_with_it() {
    let mut core = Core::new(Settings { requests_max: 40, ..Settings::default() });
    client(&mut core, 1, 7);
    ask(&mut core, 1, 1..=40, b"nobody");
    assert_eq!(core.load().0, 30);
    core.connected(2, tenant(8));
    core.client_hello(1, 2, ClientId([1; 16]), 1);
    actions(&mut core);
    // The new address has its share, and the old one has nothing.
    ask(&mut core, 2, [41], b"nobody");
    assert_eq!(refused(&actions(&mut core)), 1);
    client(&mut core, 3, 7);
    ask(&mut core, 3, [1], b"nobody");
    assert_eq!(refused(&actions(&mut core)), 0);
    core.check();

    // In a service's queue it has the turns of the new address, and counts in its share.
    let mut core = Core::new(Settings { service_requests_max: 40, ..Settings::default() });
    for (peer, of, count) in [(1, 7, 38), (2, 7, 2), (3, 8, 2)] {
        client(&mut core, peer, of);
        ask(&mut core, peer, 1..=count, b"echo");
    }
    core.connected(4, tenant(8));
    core.client_hello(1, 4, ClientId([1; 16]), 1);
    core.check();
    actions(&mut core);
    ask(&mut core, 4, [39], b"echo");
    assert_eq!(refused(&actions(&mut core)), 1);
    core.worker_ready(1, 9, Kind::Stock, b"echo", 1);
    assert_eq!(served(&mut core, 9, 6), ["2/1", "3/1", "2/2", "1/1", "3/2", "1/2"]);
}

#[test]
fn no_client_asks_for_longer_than_the_maximum() {
    let mut core = Core::new(Settings { ttl_max_ms: 1_000, ..Settings::default() });
    client(&mut core, 1, 7);
    core.request(0, 1, 1, u32::MAX, true, b"nobody", Body::default());
    actions(&mut core);
    core.tick(999);
    assert_eq!(actions(&mut core), []);
    core.tick(1_000);
    assert!(matches!(actions(&mut core)[..], [Action::Reply { number: 1, status: Status::EXPIRED, .. }]));
}
