//! Clients and workers whose broker is gone, hangs or refuses requests use another one.

use rustix::process::Signal;
use tempfile::{TempDir, tempdir};

use crate::operator::letters_and_drains::service;
use crate::operator::status::Place;
use crate::support::broker::{Broker, await_progress, call, work, workers_of};
use crate::support::process::{Process, run, tow};
use crate::support::proxy::Proxy;
use crate::support::wait_until;

fn takes_over_after(signal: Signal) {
    let (one, two) = (Broker::start(), Broker::start());
    let _echo = work(&[&one, &two], &["echo", "--echo", "--work-time", "5ms", "--jobs", "10"]);
    let load = Process::start(&mut call(&[&one, &two], &["echo", "--count", "2000", "--ahead", "20", "--json"]));
    await_progress(&one, "echo");
    one.signal(signal);
    let outcome = load.finish().expect_code(0);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (2000, 0));
    assert!(outcome.number("resent") > 0, "{}", outcome.summary());
    // A stopped process can be killed after SIGCONT.
    one.signal(Signal::CONT);
}

#[test]
fn client_fails_over_from_a_killed_broker() {
    takes_over_after(Signal::KILL);
}

#[test]
fn client_fails_over_from_a_hanging_broker() {
    takes_over_after(Signal::STOP);
}

#[test]
fn short_call_reaches_the_second_broker_if_the_first_hangs() {
    let (one, two) = (Broker::start(), Broker::start());
    let _echo = work(&[&two], &["echo", "--echo"]);
    one.signal(Signal::STOP);
    let outcome = run(&mut call(&[&one, &two], &["echo", "hello", "--timeout", "2.5"]));
    one.signal(Signal::CONT);
    assert_eq!(outcome.expect_code(0).stdout, b"hello");
}

/// Log line about a silent peer with bytes in flight.
const STALLED: &str = "the peer took nothing of its backlog";

#[test]
fn requests_of_a_hanging_worker_with_bytes_in_flight_go_to_another() {
    let place = Place::new();
    let broker = place.broker(&["--heartbeat", "1"]);
    let workers = [(); 2].map(|()| work(&[&broker], &["echo", "--echo", "--work-time", "20ms", "--jobs", "300"]));
    wait_until("the broker knows both", || workers_of(&broker, "echo").len() == 2);
    // It is given its share, 18 MB, at once, which is more than its socket takes.
    place.tow(&["pause", "echo"]).expect_code(0);
    let arguments = ["echo", "--count", "900", "--size", "60000", "--ahead", "600", "--json"];
    let caller = Process::start(&mut call(&[&broker], &arguments));
    wait_until("requests wait", || service(&place, "echo", "waiting") == 600);
    workers[0].signal(Signal::STOP);
    place.tow(&["resume", "echo"]).expect_code(0);
    let outcome = caller.finish().expect_code(0);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (900, 0));
    assert!(broker.log().contains(STALLED), "{}", broker.log());
    workers[0].signal(Signal::CONT);
}

#[test]
fn client_fails_over_from_a_broker_that_hangs_in_a_large_request() {
    let (one, two) = (Broker::start(), Broker::start());
    let _echo = work(&[&one, &two], &["echo", "--echo"]);
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("body");
    std::fs::write(&path, vec![7; 300 << 20]).expect("write");
    let mut command = call(&[&one, &two], &["echo", "--timeout", "50"]);
    command.stdin(std::fs::File::open(&path).expect("open")).env("TOW_LOG", "debug");
    let caller = Process::start(&mut command);
    wait_until("it has begun to arrive", || one.bytes_written() > 10 << 20);
    one.signal(Signal::STOP);
    let outcome = caller.finish().expect_code(0);
    one.signal(Signal::CONT);
    assert_eq!(outcome.stdout, std::fs::read(&path).expect("read"));
    assert!(outcome.stderr.contains(STALLED), "{}", outcome.stderr);
}

/// Draining broker that can't end while a worker has a request, until the file exists.
struct Stopping {
    broker: Broker,
    folder: TempDir,
    caller: Process,
    _slow: Process,
}

impl Stopping {
    fn from(broker: Broker) -> Stopping {
        let folder = tempdir().expect("a folder");
        let (begun, flag) = (folder.path().join("begun"), folder.path().join("flag"));
        let script = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done; cat", begun.display(), flag.display());
        let slow = work(&[&broker], &["slow", "--", "sh", "-c", &script]);
        let caller = Process::start(&mut call(&[&broker], &["slow", "finish this"]));
        wait_until("the worker has it", || begun.exists());
        broker.signal(Signal::TERM);
        wait_until("it stops", || broker.log().contains("stopping"));
        Stopping { broker, folder, caller, _slow: slow }
    }

    /// Checks that it still runs, and ends cleanly.
    #[track_caller]
    fn end(self) {
        std::fs::write(self.folder.path().join("flag"), "").expect("write");
        assert_eq!(self.caller.finish().expect_code(0).stdout, b"finish this");
        self.broker.finish().expect_code(0);
    }
}

#[test]
fn client_refused_by_a_draining_broker_fails_over() {
    let (one, two) = (Broker::with(&["--grace", "60"]), Broker::start());
    let _echo = work(&[&one, &two], &["echo", "--echo"]);
    let stopping = Stopping::from(one);
    let mut command = call(&[&stopping.broker, &two], &["echo", "hello", "--timeout", "20"]);
    assert_eq!(run(&mut command).expect_code(0).stdout, b"hello");
    assert!(!stopping.broker.log().contains("misbehaves"), "{}", stopping.broker.log());
    stopping.end();
}

#[test]
fn load_test_continues_at_another_broker_while_the_first_drains() {
    let (one, two) = (Broker::with(&["--grace", "60"]), Broker::start());
    let _echo = work(&[&one, &two], &["echo", "--echo", "--work-time", "5ms", "--jobs", "10"]);
    let load = Process::start(&mut call(&[&one, &two], &["echo", "--count", "2000", "--ahead", "20", "--json"]));
    let stopping = Stopping::from(one);
    let outcome = load.finish().expect_code(0);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (2000, 0));
    // Requests at the first broker ended there.
    assert_eq!(outcome.number("resent"), 0, "{}", outcome.summary());
    stopping.end();
}

#[test]
fn client_fails_over_from_a_broker_whose_journal_was_moved() {
    let folder = tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let one = Broker::with(&["--journal", journal.to_str().expect("letters")]);
    let two = Broker::start();
    let _echo = work(&[&one, &two], &["echo", "--echo"]);
    std::fs::rename(&journal, folder.path().join("elsewhere")).expect("rename");
    // The first request shows it.
    run(&mut call(&[&one], &["echo", "x", "--timeout", "2"])).expect_code(8);
    wait_until("it knows", || one.log().contains("new requests are refused"));
    let mut command = call(&[&one, &two], &["echo", "hello", "--timeout", "20"]);
    assert_eq!(run(&mut command).expect_code(0).stdout, b"hello");
    let load = ["echo", "--count", "2000", "--ahead", "100", "--timeout", "20", "--json"];
    let outcome = run(&mut call(&[&one, &two], &load)).expect_code(0);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (2000, 0));
    // If all brokers refuse, the client backs off.
    let load = ["echo", "--count", "1", "--timeout", "2.5", "--json"];
    let outcome = run(&mut call(&[&one, &one], &load)).expect_code(1);
    assert!(outcome.stderr.contains("507"), "{}", outcome.stderr);
    assert!((2..=12).contains(&outcome.number("retried")), "{}", outcome.summary());
}

#[test]
fn long_reply_of_a_worker_that_ends_is_not_run_again() {
    const BYTES: usize = 30_000_000;
    let broker = Broker::start();
    // On its way for longer than a worker waits that has nothing to send.
    let slow = Proxy::start(broker.port());
    slow.slow_down_senders(5_000_000);
    let folder = tempdir().expect("a folder");
    let runs = folder.path().join("runs");
    let script = format!("echo run >> {}; head -c {BYTES} /dev/zero", runs.display());
    let command = ["large", "--", "sh", "-c", &script];
    let mut first = tow(["work", "--connect", slow.url("").trim_end_matches('/')]);
    let first = Process::start(first.args(command));
    let caller = Process::start(&mut call(&[&broker], &["large", "please"]));
    wait_until("it runs", || runs.exists());
    first.signal(Signal::TERM);
    let ended = first.finish().expect_code(0);
    eprintln!("the first worker: {}", ended.stderr);
    let _second = work(&[&broker], &command);
    assert_eq!(caller.finish().expect_code(0).stdout.len(), BYTES);
    let runs = std::fs::read_to_string(&runs).expect("read");
    assert_eq!(runs, "run\n", "{}", broker.log());
}
