//! The requests of a service, one by one and all at once, in an operator's hand.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::operator::letters_and_drains::service;
use crate::operator::status::Place;
use crate::support::broker::{call, work};
use crate::support::process::{Process, tow};
use crate::support::wait_until;

fn requests(place: &Place, service: &str) -> Vec<Value> {
    place.json(&["requests", service])
}

#[test]
fn requests_are_listed_and_one_is_ended() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let worker = work(&[&broker], &["echo", "--", "sleep", "100"]);
    let held = Process::start(&mut call(&[&broker], &["echo", "first"]));
    let worker_has = || service(&place, "echo", "waiting") == 0 && requests(&place, "echo").len() == 1;
    wait_until("the worker has it", || worker_has() && requests(&place, "echo")[0]["state"] == "worker");
    let waiting = Process::start(&mut call(&[&broker], &["echo", "second\n"]));
    wait_until("another one waits", || service(&place, "echo", "waiting") == 1);
    let listed = requests(&place, "echo");
    let of = |state: &str| listed.iter().find(|request| request["state"] == state).expect("one of that state").clone();
    let (first, second) = (of("worker"), of("waiting"));
    // The worker's connection.
    let workers = place.json(&["workers", "echo"]);
    assert_eq!((&first["worker"], &first["worker_address"]), (&workers[0]["peer"], &workers[0]["address"]));
    assert_eq!(
        (&first["attempts"], &first["client"], &second["attempts"]),
        (&1.into(), &"127.0.0.1".into(), &0.into())
    );
    assert_eq!((&second["bytes"], &second["first_b64"]), (&7.into(), &"c2Vjb25kCg==".into()));
    let peers = place.json(&["peers"]);
    assert!(peers.iter().any(|peer| peer["id"] == second["peer"] && peer["address"] == second["address"]), "{second}");
    assert!(second["expires_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{second}");
    let table = String::from_utf8(place.tow(&["requests", "echo"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.lines().count() == 3 && table.contains("  second\\u{a}") && table.contains("  first"), "{table}");
    let found = place.json(&["requests", "echo", "--search", second["address"].as_str().expect("an address")]);
    assert_eq!(found.iter().map(|request| &request["id"]).collect::<Vec<_>>(), [&second["id"]]);
    let sorted = place.json(&["requests", "echo", "--sort", "attempts"]);
    assert_eq!(sorted.iter().map(|request| &request["id"]).collect::<Vec<_>>(), [&second["id"], &first["id"]]);
    let one = place.tow(&["requests", "echo", "--limit", "1"]).expect_code(0);
    assert!(one.stderr.contains("1 other request of echo not shown"), "{}", one.stderr);
    assert_eq!(one.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);

    let [first, second] = [&first, &second].map(|request| request["id"].as_str().expect("an id").to_owned());
    place.tow(&["requests", "other", "--end", &second]).expect_code(4);
    place.tow(&["requests", "echo", "--end", "x"]).expect_code(2);
    let done = place.tow(&["requests", "echo", "--end", &second]).expect_code(0);
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("ended {second} of echo\n"));
    let ended = waiting.finish();
    assert!(ended.stderr.contains("ended by the operator; never begun"), "{}", ended.stderr);
    // The worker's command is ended too: it takes the next one.
    place.tow(&["requests", "echo", "--end", &first]).expect_code(0);
    let ended = held.finish();
    assert!(ended.stderr.contains("ended by the operator; perhaps begun"), "{}", ended.stderr);
    let refused = place.tow(&["requests", "echo", "--end", &first]);
    assert!(!refused.status.success() && refused.stderr.contains("it has ended"), "{}", refused.stderr);
    let next = Process::start(&mut call(&[&broker], &["echo", "third"]));
    wait_until("the worker is free", || requests(&place, "echo").iter().any(|request| request["state"] == "worker"));
    let counters = &place.json(&["status"])[0]["counters"];
    assert_eq!((&counters["purged"], &counters["failed"]), (&2.into(), &0.into()));
    drop((next, worker));
}

#[test]
fn requests_of_a_service_that_is_not_utf8_are_listed_and_ended() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let waiting = Process::start(tow(["call", "--b64", "//4=", "hello"]).args(["--connect", broker.endpoint()]));
    let listed = || place.json(&["requests", "--b64", "//4="]);
    wait_until("it waits", || listed().len() == 1);
    let id = listed()[0]["id"].as_str().expect("an id").to_owned();
    place.tow(&["requests", "--b64", "//4=", "--end", &id]).expect_code(0);
    assert!(waiting.finish().stderr.contains("ended by the operator"));
}

#[test]
fn a_queue_that_grows_is_purged_all_the_same_and_nothing_counts_as_failed() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let is_over = AtomicBool::new(false);
    let waiting = || service(&place, "work", "waiting");
    let metric = |name: &str| {
        let metrics = crate::operator::status::get(&place.socket(), "/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line.expect("a metric")
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let load = ["work", "--count", "1000", "--ahead", "200", "--clients", "2"];
                    Process::start(&mut call(&[&broker], &load)).finish();
                }
            });
        }
        let mut purged = 0;
        for _ in 0..5 {
            wait_until("some wait", || waiting() > 0);
            let done = place.tow(&["purge", "work"]).expect_code(0);
            let said = String::from_utf8(done.stdout).expect("UTF-8");
            purged += said.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a number");
        }
        is_over.store(true, Ordering::Relaxed);
        wait_until("the clients end", || {
            let more = place.tow(&["purge", "work"]).expect_code(0);
            let said = String::from_utf8(more.stdout).expect("UTF-8");
            purged += said.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a number");
            place.json(&["peers"]).is_empty()
        });
        assert!(purged >= 5);
        assert_eq!(metric("towpath_requests_ended_total{outcome=\"purged\"}"), purged);
        assert_eq!(metric("towpath_requests_ended_total{outcome=\"failed\"}"), 0);
    });
    let counters = &place.json(&["status"])[0]["counters"];
    assert_eq!(counters["failed"], 0, "{counters}");
}

#[test]
fn the_memory_of_services_is_that_of_the_broker() {
    let place = Place::new();
    let broker = place.broker(&[]);
    place.tow(&["pause", "small"]).expect_code(0);
    let load = ["small", "--count", "1000", "--ahead", "1000"];
    let _clients = [
        Process::start(&mut call(&[&broker], &load)),
        Process::start(&mut call(&[&broker], &["large", &"x".repeat(5_000)])),
    ];
    wait_until("all wait", || service(&place, "small", "waiting") == 1000 && service(&place, "large", "waiting") == 1);
    assert_eq!(service(&place, "small", "memory_bytes"), 1000 * 256);
    assert_eq!(service(&place, "small", "waiting_bytes"), 1000 * 256);
    let large = service(&place, "large", "memory_bytes");
    assert!((5_256..6_000).contains(&large), "{large}");
    let total = place.json(&["status"])[0]["memory_bytes"].as_u64().expect("a number");
    assert_eq!(total, 1000 * 256 + large);
}
