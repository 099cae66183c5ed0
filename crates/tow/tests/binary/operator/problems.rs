//! Problems, as an operator sees them: `tow status`, its exit status, and the metric.

use std::fs::File;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::operator::status::{Place, get};
use crate::support::broker::{call, work};
use crate::support::process::Process;
use crate::support::tree::random_file;
use crate::support::wait_until;

/// The problems of a kind.
pub fn problems(place: &Place, kind: &str) -> Vec<Value> {
    let status = &place.json(&["status"])[0];
    let all = status["problems"].as_array().unwrap_or_else(|| panic!("no problems in {status}"));
    all.iter().filter(|problem| problem["kind"] == kind).cloned().collect()
}

#[test]
fn a_service_without_a_worker_is_critical_until_it_has_one() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let status = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(
        status.starts_with("restart now safe (nothing is held)\nproblems    no problems known\nserver "),
        "{status}"
    );
    place.tow(&["status", "--check"]).expect_code(0);
    let calls = ["1", "2"].map(|number| Process::start(&mut call(&[&broker], &["reports", number])));
    wait_until("it is a problem", || !problems(&place, "no_worker").is_empty());
    let problem = problems(&place, "no_worker").remove(0);
    assert_eq!((&problem["subject"], &problem["service"]), (&"reports".into(), &"reports".into()));
    assert_eq!((&problem["evidence"]["waiting"], &problem["severity"]), (&2.into(), &"critical".into()));
    let check = String::from_utf8(place.tow(&["status", "--check"]).expect_code(11).stdout).expect("UTF-8");
    assert!(
        check.starts_with("problems    1 problem, critical\nCRITICAL    reports: no worker; 2 wait, oldest "),
        "{check}"
    );
    assert!(check.contains("tow work reports"), "{check}");
    assert!(get(&place.socket(), "/metrics").contains("towpath_problems{kind=\"no_worker\"} 1\n"));

    // A paused service isn't one that lacks a worker.
    place.tow(&["pause", "reports"]).expect_code(0);
    place.tow(&["status", "--check"]).expect_code(10);
    assert_eq!((problems(&place, "no_worker").len(), problems(&place, "paused").len()), (0, 1));
    place.tow(&["resume", "reports"]).expect_code(0);
    let _worker = work(&[&broker], &["reports", "--echo"]);
    for call in calls {
        call.finish().expect_code(0);
    }
    place.tow(&["status", "--check"]).expect_code(0);
    assert!(get(&place.socket(), "/metrics").contains("towpath_problems{kind=\"no_worker\"} 0\n"));
}

#[test]
fn a_problem_that_is_muted_is_listed_but_not_counted_until_the_time_is_over() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let _call = Process::start(&mut call(&[&broker], &["reports", "1"]));
    wait_until("it is a problem", || !problems(&place, "no_worker").is_empty());
    let printed = place.tow(&["mute", "no_worker", "reports", "--for", "2h"]).expect_code(0).stdout;
    assert_eq!(String::from_utf8_lossy(&printed), "muted no_worker of reports for 2h, or until the server ends\n");
    let check = String::from_utf8(place.tow(&["status", "--check"]).expect_code(0).stdout).expect("UTF-8");
    assert!(check.contains("no problems known") && check.contains("muted       reports: no worker"), "{check}");
    assert!(check.contains(&format!("uid {}) for another ", rustix::process::geteuid().as_raw())), "{check}");
    assert!(get(&place.socket(), "/metrics").contains("towpath_problems{kind=\"no_worker\"} 0\n"));
    assert_eq!(place.json(&["mute"]).iter().map(|mute| &mute["kind"]).collect::<Vec<_>>(), ["no_worker"]);
    place.tow(&["mute", "no_worker", "reports", "--end"]).expect_code(0);
    place.tow(&["status", "--check"]).expect_code(11);
    place.tow(&["mute", "no_worker", "--end"]).expect_code(4);
    assert!(place.tow(&["mute", "no_such_kind"]).expect_code(5).stderr.contains("waiting_long"));
    let actions: Vec<_> = place.json(&["audit"]).iter().map(|action| action["action"].clone()).collect();
    assert_eq!(actions, ["mute", "unmute", "unmute", "mute"]);
    place.tow(&["mute", "no_worker", "--for", "1"]).expect_code(0);
    wait_until("it counts again", || place.tow(&["status", "--check"]).status.code() == Some(11));
}

/// Takes over a minute: the worker has to hang that long.
#[test]
fn a_worker_that_hangs_is_a_problem_until_it_is_kicked() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let command = "read -r what; test \"$what\" != hang || exec sleep 600; echo done";
    let _worker = work(&[&broker], &["reports", "--", "sh", "-c", command]);
    Process::start(&mut call(&[&broker], &["reports", "x\n"])).finish().expect_code(0);
    let _hung = Process::start(&mut call(&[&broker], &["reports", "hang\n", "--timeout", "600"]));
    let worker = || place.json(&["workers", "reports"]).remove(0);
    wait_until("the worker is busy for half of the time", || worker()["busy_seconds"].as_f64() > Some(30.0));
    assert_eq!(problems(&place, "worker_busy").len(), 0);
    wait_until("it is a problem", || !problems(&place, "worker_busy").is_empty());
    let problem = problems(&place, "worker_busy").remove(0);
    assert!(problem["evidence"]["busy_seconds"].as_u64() >= Some(60), "{problem}");
    assert_eq!((&problem["peer"], &problem["service"]), (&worker()["peer"], &"reports".into()));
    let peer = problem["peer"].as_str().expect("an id");
    assert!(problem["advice"].as_str().is_some_and(|advice| advice.contains(&format!("tow kick {peer}"))), "{problem}");
    place.tow(&["status", "--check"]).expect_code(10);
    let drained = place.tow(&["drain"]).expect_code(0);
    let never = "tow: never ends: 1 request of reports: busy with one request for ";
    assert!(
        drained.stderr.starts_with(never) && drained.stderr.ends_with(&format!("; tow kick {peer}\n")),
        "{drained:?}"
    );
    place.tow(&["drain", "--cancel"]).expect_code(0);
    place.tow(&["kick", peer]).expect_code(0);
    wait_until("it is over", || problems(&place, "worker_busy").is_empty());
}

#[test]
fn a_full_broker_says_so_and_who_has_the_most() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let broker = place.broker(&["--max-memory", "4M"]);
    let body = folder.path().join("body");
    random_file(&body, 900 << 10, 1);
    let ask = |service: &str| {
        let mut command = call(&[&broker], &[service, "--timeout", "600"]);
        Process::start(command.stdin(File::open(&body).expect("open")))
    };
    let services = ["a", "b", "c", "d"];
    let _calls = services.map(&ask);
    wait_until("they wait", || place.json(&["status"])[0]["requests"] == 4);
    // It tries again and again.
    let _refused = ask("e");
    wait_until("it is full", || !problems(&place, "full").is_empty());
    let full = problems(&place, "full").remove(0);
    let cause = full["cause"].as_str().expect("a cause");
    assert!(cause.contains("who has the most, 127.0.0.1, has 4 requests"), "{full}");
    assert_eq!(problems(&place, "large_client").len(), 1);
    wait_until("the refusal is a problem", || !problems(&place, "refused").is_empty());
    assert_eq!(problems(&place, "refused")[0]["subject"], "127.0.0.1");
    place.tow(&["status", "--check"]).expect_code(11);
    let _workers = ["a", "b", "c", "d", "e"].map(|service| work(&[&broker], &[service, "--", "true"]));
    wait_until("it is full no more", || problems(&place, "full").is_empty());
    wait_until("nobody has too much", || problems(&place, "large_client").is_empty());
}

#[test]
fn a_server_that_does_not_answer_fails_the_check() {
    let place = Place::new();
    place.tow(&["status", "--check"]).expect_code(6);
    let broker = place.broker(&[]);
    broker.signal(Signal::STOP);
    let stopped = place.tow(&["status", "--check"]).expect_code(1);
    assert!(stopped.stderr.contains("no reply in"), "{}", stopped.stderr);
    broker.signal(Signal::CONT);
    place.tow(&["status", "--check"]).expect_code(0);
}
