//! An operator's look at requests, and the end of one.

use super::*;

fn listed(core: &Core, service: &[u8]) -> Vec<RequestInfo> {
    core.requests_from(service, 0).entries.into_iter().map(|(_, request)| request).collect()
}

#[test]
fn requests_are_listed_with_their_state_and_one_is_ended() {
    let mut core = core();
    core.connected(1, towpath_sockets::Tenant::User("ann".into()));
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    for number in 1..=3 {
        core.request(7, 1, number, 500, false, b"echo", Body::from(format!("body {number}").as_str()));
    }
    core.request(7, 1, 4, 0, false, b"other", Body::from(vec![b'x'; 100]));
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    let requests = listed(&core, b"echo");
    let seen: Vec<_> = requests.iter().map(|request| (request.number, request.state, request.worker)).collect();
    let waiting = |number| (number, RequestState::Waiting, None);
    assert_eq!(seen, [(1, RequestState::Worker, Some(2)), waiting(2), waiting(3)]);
    let RequestInfo { since, expires, attempts, bytes, first, client, peer, .. } = &requests[1];
    assert_eq!((*since, *expires, *attempts, *bytes, *peer), (7, Some(507), 0, 6, Some(1)));
    assert_eq!((first.as_deref(), client.as_ref().unwrap().to_string()), (Some(&b"body 2"[..]), "user ann".to_owned()));
    assert_eq!(listed(&core, b"other")[0].first.as_ref().unwrap().len(), 64);

    assert_eq!(core.end_request(8, b"other", requests[2].key), Err(NotEnded::Gone));
    assert_eq!(core.end_request(8, b"echo", requests[2].key), Ok(()));
    assert_eq!(core.end_request(8, b"echo", requests[0].key), Ok(()));
    assert_eq!(core.end_request(8, b"echo", requests[0].key), Err(NotEnded::Over));
    let actions = actions(&mut core);
    let reply = |number, reason: &str| Action::Reply {
        peer: 1,
        number,
        status: Status::CANCELLED,
        part: None,
        body: Body::from(reason),
    };
    assert_eq!(actions[0], reply(3, "ended by the operator; never begun"));
    assert_eq!(actions[1], Action::CancelWork { peer: 2, token });
    // The worker has the next one.
    assert!(matches!(actions[2], Action::Dispatch { peer: 2, .. }));
    assert_eq!(actions[3], reply(1, "ended by the operator; perhaps begun"));
    assert_eq!((core.counters().purged, core.counters().failed), (2, 0));
    core.confirm(9, 1, 1, 3);
    assert_eq!(core.end_request(9, b"echo", requests[0].key), Err(NotEnded::Gone));
}

#[test]
fn a_list_of_many_requests_comes_in_bounded_steps() {
    let mut core = Core::new(Settings { service_requests_max: 20_000, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    for number in 1..=10_000 {
        let service: &[u8] = if number % 1_000 == 0 { b"rare" } else { b"echo" };
        core.request(0, 1, number, 0, false, service, Body::default());
    }
    for (service, expected) in [(&b"rare"[..], 10), (b"echo", 9_990), (b"none", 0)] {
        let (mut numbers, mut steps, mut next) = (Vec::new(), 0, Some(0));
        while let Some(from) = next {
            let page = core.requests_from(service, from);
            assert!(page.entries.len() <= 64);
            numbers.extend(page.entries.into_iter().map(|(_, request)| request.number));
            (next, steps) = (page.next, steps + 1);
        }
        assert_eq!(numbers.len(), expected);
        assert!(numbers.is_sorted() && steps <= 160, "{steps}");
    }
}

#[test]
fn the_memory_of_services_adds_up_to_the_total() {
    let mut core = Core::new(Settings { attempts_max: 1, journal: true, ..Settings::default() });
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"two", 5);
    for number in 1..=100 {
        let (service, length): (&[u8], usize) = if number % 2 == 0 { (b"one", 3) } else { (b"two", 500) };
        core.request(0, 1, number, 0, false, service, Body::from(vec![7; length]));
    }
    // Some become dead letters, and some of these go back.
    core.peer_gone(0, 2);
    let run = core.begin_letters(LetterAction::Requeue);
    assert_eq!(core.go_on_with_letters(0, b"two", run, 3).done, 3);
    dispatched(&mut core);
    let (one, two) = (core.service(b"one").unwrap(), core.service(b"two").unwrap());
    assert_eq!((one.waiting, one.waiting_bytes, one.bytes), (50, 50 * 256, 50 * 256));
    assert!(two.bytes > 48 * (256 + 500) && two.waiting_bytes <= two.bytes);
    assert_eq!(core.services().map(|service| service.bytes).sum::<usize>(), core.load().1);
}

#[test]
fn a_restart_costs_what_is_in_no_journal_and_asked_for_again_by_nobody() {
    for journal in [false, true] {
        let mut core = Core::new(Settings { journal, secret: [3, 4], ..Settings::default() });
        let cost = |core: &mut Core, (stock, away, again): (usize, usize, usize)| {
            core.check();
            assert_eq!(core.restart_cost(), RestartCost { stock, away, again }, "journal: {journal}");
        };
        core.client_hello(0, 1, CLIENT, 1);
        for (number, volatile) in [(1, false), (2, true), (3, false)] {
            core.request(0, 1, number, 0, volatile, b"echo", Body::default());
        }
        cost(&mut core, (0, 0, 0));
        core.stock_request(0, 2, true, None, b"echo", Body::default());
        core.stock_request(0, 2, true, None, b"other", Body::default());
        cost(&mut core, (2, 0, 0));
        core.worker_ready(0, 3, Kind::Numbered, b"echo", 2);
        // Clients take turns: one of each.
        let given = dispatched(&mut core);
        cost(&mut core, (2, 0, 1));
        core.worker_reply(0, 3, &given[0].1, Status::OK, None, Body::default());
        core.worker_reply(0, 3, &given[1].1, Status::OK, None, Body::default());
        cost(&mut core, (1, 0, 2));
        // Of the client that is away, one has an outcome, and workers have two.
        core.peer_gone(1, 1);
        cost(&mut core, (1, if journal { 1 } else { 3 }, 2));
        core.client_hello(2, 4, CLIENT, 1);
        cost(&mut core, (1, 0, 2));
        core.peer_gone(3, 3);
        core.peer_gone(3, 2);
        cost(&mut core, (0, 0, 0));
    }
}
