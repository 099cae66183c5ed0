//! An operator's commands at a standby: they act at the leader, and what they did survives a takeover.

use rustix::process::Signal;
use serde_json::Value;

use super::Cell;
use super::members::Member;
use crate::support::broker::{call, work};
use crate::support::process::{Process, run, tow};
use crate::support::wait_until;

/// A leader, and a standby that knows it.
fn pair(cell: &Cell) -> (Member, Member) {
    let one = Member::start(cell, "one");
    one.await_leading();
    let two = Member::start(cell, "two");
    two.await_standby();
    wait_until("it knows the leader", || two.sees("one")["role"] == "leading");
    (one, two)
}

/// Entries of a list, each a line.
fn listed(member: &Member, words: &[&str]) -> Vec<Value> {
    let lines = member.operate(&[words, &["--json"]].concat()).expect_code(0).stdout;
    let lines = String::from_utf8(lines).expect("text");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_pause_at_a_standby_is_one_at_the_leader_and_survives_it() {
    let Some(cell) = Cell::start(1) else { return };
    let (one, two) = pair(&cell);
    let three = Member::start(&cell, "three");
    three.await_standby();
    two.operate(&["pause", "echo"]).expect_code(0);
    let paused = |member: &Member| member.status()["paused"].clone();
    assert_eq!(paused(&one), serde_json::json!(["echo"]), "at the leader");
    let load =
        Process::start(&mut call(&[&one.broker, &two.broker, &three.broker], &["echo", "hello", "--timeout", "100"]));
    let waits = |member: &Member| {
        listed(member, &["services"]).iter().any(|one| one["service"] == "echo" && one["waiting"] == 1)
    };
    wait_until("the standby lists what waits at the leader", || waits(&two));
    // The leader has written it down, with the operator's name and where it was given.
    let audit = listed(&one, &["audit"]);
    let action = audit.iter().find(|action| action["action"] == "pause").expect("an action");
    let (by, address) = (action["by"].as_str().unwrap_or_default(), action["address"].as_str().unwrap_or_default());
    assert!(!by.is_empty() && address.contains(" at tcp://"), "{action}");
    assert!(listed(&two, &["audit"]).is_empty(), "it was done elsewhere");
    one.broker.signal(Signal::KILL);
    wait_until("another leads", || super::leads(&two.broker) || super::leads(&three.broker));
    let (leader, standby) = if super::leads(&two.broker) { (&two, &three) } else { (&three, &two) };
    wait_until("the pause and the request are there", || {
        paused(leader) == serde_json::json!(["echo"]) && waits(leader)
    });
    let _echo = work(&[&leader.broker], &["echo", "--echo"]);
    wait_until("the standby knows the leader", || standby.operate(&["resume", "echo"]).status.code() == Some(0));
    assert_eq!(load.finish().expect_code(0).stdout, b"hello");
}

#[test]
fn dead_letters_are_requeued_from_a_standby_and_survive_the_leader() {
    let Some(cell) = Cell::start(1) else { return };
    let one = Member::with(&cell, "one", &["--attempts", "1"]);
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    wait_until("it knows the leader", || two.sees("one")["role"] == "leading");
    // A worker that dies with it.
    let worker = Process::start(tow(["work", "--connect", one.broker.endpoint()]).args(["job", "--", "sleep", "1000"]));
    let load = Process::start(&mut call(&[&one.broker, &two.broker], &["job", "hello", "--timeout", "100"]));
    wait_until("a worker has it", || listed(&two, &["workers"]).iter().any(|worker| worker["held"] == 1));
    worker.signal(Signal::KILL);
    let letters =
        |member: &Member| listed(member, &["dead-letters"]).first().map_or(Value::Null, |of| of["letters"].clone());
    wait_until("the standby lists the dead letter", || letters(&two) == 1);
    let body = two.operate(&["dead-letters", "job"]).expect_code(0).stdout;
    assert!(String::from_utf8_lossy(&body).contains("hello"), "{}", String::from_utf8_lossy(&body));
    drop(load);
    let three = Member::start(&cell, "three");
    three.await_standby();
    one.broker.signal(Signal::KILL);
    wait_until("another leads", || super::leads(&two.broker) || super::leads(&three.broker));
    let (leader, standby) = if super::leads(&two.broker) { (&two, &three) } else { (&three, &two) };
    assert_eq!(letters(leader), 1, "it is in the log");
    wait_until("it is requeued from the standby", || standby.operate(&["requeue", "job"]).status.code() == Some(0));
    let waits = |member: &Member| {
        listed(member, &["services"]).iter().any(|one| one["service"] == "job" && one["waiting"] == 1)
    };
    assert!(waits(leader), "it waits again");
    leader.broker.signal(Signal::KILL);
    wait_until("the last one leads", || super::leads(&standby.broker));
    assert!(waits(standby), "the requeue is in the log");
}

#[test]
fn without_a_leader_a_command_says_so() {
    let Some(cell) = Cell::start(1) else { return };
    let (one, two) = pair(&cell);
    // What is about the broker itself is its own.
    assert!(two.operate(&["peers"]).expect_code(0).stderr.is_empty());
    one.broker.signal(Signal::STOP);
    // Not yet taken over, it may have been done.
    let refused = two.operate(&["pause", "echo"]);
    assert!(refused.status.code() != Some(0) || super::leads(&two.broker), "{}", refused.stderr);
    two.await_leading();
    two.broker.signal(Signal::KILL);
    let three = Member::with(&cell, "three", &["--takeover-after", "1h"]);
    three.await_standby();
    wait_until("it knows that nobody leads", || {
        three.operate(&["pause", "echo"]).stderr.contains("nobody leads the cell now: nothing was done")
    });
    assert!(run(&mut cell.queue("status")).status.code() == Some(1), "nobody leads");
}
