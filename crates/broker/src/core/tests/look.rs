//! The look at services, workers and clients.

use super::*;
use towpath_sockets::Tenant;

fn look(core: &Core, now: Millis) -> (Vec<ServiceInfo>, Vec<WorkerInfo>) {
    let services = core.look(now, LookAt::Services(0));
    assert_eq!(services.next, Some(LookAt::Workers(0)));
    let workers = core.look(now, LookAt::Workers(0));
    assert_eq!(workers.next, None);
    (services.services, workers.workers)
}

#[test]
fn a_busy_worker_is_seen_with_the_age_of_its_oldest_request_and_the_usual_time() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 2);
    core.request(0, 1, 1, 0, false, b"echo", Body::default());
    let [(2, first, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    assert_eq!(look(&core, 1_000), (vec![], vec![]));
    core.worker_reply(100, 2, &first, Status::OK, None, Body::default());
    core.request(1_000, 1, 2, 0, false, b"echo", Body::default());
    core.request(2_000, 1, 3, 0, false, b"echo", Body::default());
    core.request(3_000, 1, 4, 0, false, b"echo", Body::default());
    let [(2, second, 1), (2, third, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    let (services, workers) = look(&core, 9_000);
    assert_eq!((services.len(), services[0].waiting, services[0].usual_ms), (1, 1, Some(128)));
    assert_eq!((workers.len(), workers[0].oldest_since, workers[0].usual_ms), (1, Some(1_000), Some(128)));
    core.worker_reply(9_000, 2, &second, Status::OK, None, Body::default());
    let (services, workers) = look(&core, 9_000);
    assert_eq!((services.len(), workers[0].oldest_since), (0, Some(2_000)));
    core.worker_reply(9_000, 2, &third, Status::OK, None, Body::default());
    assert_eq!(look(&core, 9_000), (vec![], vec![]));
}

#[test]
fn failures_in_a_row_end_with_another_reply() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    for (number, status, failed) in [(1, Status::FAILED, 1), (2, Status::FAILED, 2), (3, Status::OK, 0)] {
        core.request(0, 1, number, 0, false, b"echo", Body::default());
        let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
        core.worker_reply(0, 2, &token, status, None, Body::default());
        assert_eq!(core.worker(2).map(|worker| worker.failed_in_a_row), Some(failed));
    }
}

#[test]
fn requests_that_expire_at_a_worker_count_as_its_failures() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    let failed = |core: &Core| core.worker(2).map(|worker| worker.failed_in_a_row);
    // The third expires in the queue: that is no fault of the worker.
    core.request(0, 1, 1, 1_000, false, b"echo", Body::default());
    core.request(0, 1, 2, 2_000, false, b"echo", Body::default());
    core.request(0, 1, 3, 1_000, false, b"echo", Body::default());
    core.tick(1_000);
    assert_eq!(failed(&core), Some(1));
    core.tick(2_000);
    assert_eq!(failed(&core), Some(2));
    assert_eq!(dispatched(&mut core), []);
    core.request(2_000, 1, 4, 0, false, b"echo", Body::default());
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given to the worker") };
    core.worker_reply(2_000, 2, &token, Status::OK, None, Body::default());
    assert_eq!(failed(&core), Some(0));
}

#[test]
fn a_refusal_names_its_client_and_the_largest_one_is_known() {
    let mut core = Core::new(Settings { client_requests_max: 2, ..Settings::default() });
    core.connected(1, Tenant::User("ann".into()));
    core.client_hello(0, 1, CLIENT, 1);
    for number in 1..=2 {
        core.request(7, 1, number, 0, false, b"echo", Body::default());
    }
    assert_eq!(core.last_refusal(), None);
    core.request(8, 1, 3, 0, false, b"echo", Body::default());
    let refusal = core.last_refusal().unwrap();
    assert_eq!((refusal.at, refusal.tenant.clone()), (8, Some(Tenant::User("ann".into()))));
    let largest = core.largest_client().unwrap();
    assert_eq!((largest.tenant, largest.requests), (Tenant::User("ann".into()), 2));
    assert!(largest.bytes > 0);
    // What a draining broker refuses isn't refused for want of anything.
    core.drain(true);
    core.request(9, 1, 3, 0, false, b"echo", Body::default());
    assert_eq!((core.last_refusal().map(|refusal| refusal.at), core.counters().refused), (Some(8), 2));
}

#[test]
fn many_services_are_looked_at_in_steps() {
    let mut core = core();
    core.client_hello(0, 1, CLIENT, 1);
    for number in 1..=200 {
        core.request(0, 1, number, 0, false, format!("service {number}").as_bytes(), Body::default());
    }
    let (mut at, mut seen, mut steps) = (LookAt::Services(0), 0, 0);
    loop {
        let look = core.look(0, at);
        (seen, steps) = (seen + look.services.len(), steps + 1);
        match look.next {
            Some(next) => at = next,
            None => break,
        }
    }
    assert_eq!((seen, steps), (200, 5));
}
