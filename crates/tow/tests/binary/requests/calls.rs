//! Requests through `tow broker`, `tow work` and `tow call`: replies, failures, and what happens when one of them dies.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::tempdir;
use tokio::signal::unix::{SignalKind, signal};

use crate::operator::status::Place;
use crate::support::broker::{Broker, await_progress, call, work, workers_of};
use crate::support::process::{Process, Server, is_running, run, tow};
use crate::support::tree::{digest, random_file};
use crate::support::wait_until;

#[test]
fn command_runs_for_each_request() {
    let broker = Broker::start();
    let _upper = work(&[&broker], &["upper", "--jobs", "2", "--", "tr", "a-z", "A-Z"]);
    let outcome = run(&mut call(&[&broker], &["upper", "how", "far?"])).expect_code(0);
    assert_eq!(outcome.stdout, b"HOW FAR?");

    let folder = tempdir().expect("a folder");
    let question = folder.path().join("question");
    std::fs::write(&question, "from standard input\n").expect("write");
    let mut command = call(&[&broker], &["upper"]);
    let outcome = run(command.stdin(File::open(&question).expect("open"))).expect_code(0);
    assert_eq!(outcome.stdout, b"FROM STANDARD INPUT\n");
}

#[test]
fn failures_state_their_reason() {
    let broker = Broker::start();
    let _bad = work(&[&broker], &["bad", "--", "sh", "-c", "echo oops >&2; exit 3"]);
    let outcome = run(&mut call(&[&broker], &["bad", "x"])).expect_code(9);
    assert!(outcome.stdout.is_empty());
    assert!(outcome.stderr.contains("exit status: 3: oops"), "{}", outcome.stderr);

    let outcome = run(&mut call(&[&broker], &["nobody", "x", "--timeout", "3"])).expect_code(7);
    // From the broker, which knows that no worker had it. The client's own timeout comes later.
    assert!(outcome.stderr.contains("408"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("(no worker for nobody)"), "{}", outcome.stderr);

    let nobody = ["call", "echo", "x", "--connect", "ipc:///nowhere/at/all", "--timeout", "2"];
    let outcome = run(&mut tow(nobody)).expect_code(6);
    assert!(outcome.stderr.contains("connecting failed"), "{}", outcome.stderr);
    run(&mut tow(["call", "echo", "--ahead", "3"])).expect_code(2);
    run(&mut tow(["work", "echo"])).expect_code(2);
}

#[test]
fn a_failed_worker_is_the_same_exit_status_in_every_dialect() {
    let broker = Broker::start();
    let _bad = work(&[&broker], &["bad", "--", "sh", "-c", "exit 3"]);
    for dialect in ["auto", "mdp01", "mdp02", "majortomo"] {
        run(&mut call(&[&broker], &["bad", "x", "--dialect", dialect])).expect_code(9);
    }
}

#[test]
fn a_call_behind_busy_workers_says_so() {
    let broker = Broker::start();
    let _slow = work(&[&broker], &["slow", "--", "sleep", "1000"]);
    let _first = Process::start(&mut call(&[&broker], &["slow", "x"]));
    wait_until("the worker has it", || workers_of(&broker, "slow").first().is_some_and(|worker| worker["held"] == 1));
    let second = Process::start(&mut call(&[&broker], &["slow", "x", "-v"]));
    wait_until("it is said", || second.log().contains("the workers are busy") && second.log().contains("waiting=1"));
}

#[test]
fn a_service_without_workers_is_named() {
    let broker = Broker::start();
    let outcome = run(&mut call(&[&broker], &["resise", "x", "--no-wait"])).expect_code(4);
    assert!(outcome.stderr.contains("no worker for resise"), "{}", outcome.stderr);
    let caller = Process::start(&mut call(&[&broker], &["resise", "x"]));
    wait_until("it is said", || caller.log().contains("no worker for resise; waiting up to 1m"));
    let _worker = work(&[&broker], &["resise", "--echo"]);
    let outcome = caller.finish().expect_code(0);
    assert_eq!(outcome.stdout, b"x");
    let outcome = run(&mut call(&[&broker], &["resise", "x", "--no-wait"])).expect_code(0);
    assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), (&b"x"[..], ""));
}

#[test]
fn bad_arguments_are_refused_at_the_start() {
    for (arguments, reason) in [
        (&["missing", "--", "/nowhere/at/all"][..], "tow: /nowhere/at/all: not an executable file"),
        (&["missing", "--", "no-such-command-at-all"], "no such command in PATH"),
        (&["mmi.foo", "--echo"], "the broker's own services"),
        (&["titanic.request", "--", "cat"], "the broker's own services"),
        (&["echo", "--echo", "--jobs", "0"], "--jobs"),
        (&["echo", "--work-time", "5ms", "--", "cat"], "--work-time"),
        (&["echo", "--work-time", "5ms"], "--echo"),
        (&["echo", "--echo", "--connect", "tcp://127.0.0.1:0"], "cannot connect to port 0"),
        (&["echo", "--echo", "--connect", "inproc://here"], "inproc works only within a process"),
    ] {
        let outcome = run(tow(["work"]).args(arguments)).expect_code(2);
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    }
    for more in [&["x"][..], &["--count", "3"]] {
        let outcome = run(tow(["call", "echo", "--connect", "tcp://127.0.0.1:0"]).args(more)).expect_code(2);
        assert!(
            outcome.stderr.contains("'tcp://127.0.0.1:0' for '--connect <ENDPOINT>': cannot connect to port 0"),
            "{}",
            outcome.stderr
        );
    }
    let outcome = run(tow(["work", "echo", "--echo"]).env("TOW_LOG", "foo")).expect_code(2);
    assert_eq!(outcome.stderr, "tow: TOW_LOG=foo: use error, warn, info, debug or trace\n");
}

#[test]
fn error_names_a_spool_or_journal_that_is_no_directory() {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, vec![b'x'; 2 << 20]).expect("write");
    let place = file.to_str().expect("letters");
    for option in ["--journal", "--spool"] {
        let outcome = run(&mut tow(["broker", "--bind", "tcp://127.0.0.1:0", option, place])).expect_code(1);
        assert!(outcome.stderr.contains(place) && outcome.stderr.contains("Not a directory"), "{}", outcome.stderr);
    }
    // The same for the spool of a worker and of a client.
    let broker = Broker::start();
    let _large = work(&[&broker], &["large", "--spool", place, "--", "head", "-c", "9000000", "/dev/zero"]);
    let outcome = run(&mut call(&[&broker], &["large", "x"])).expect_code(9);
    let no_place = format!("cannot spool a large body in {place}: Not a directory");
    assert!(outcome.stderr.contains(&format!("head: its output: {no_place}")), "{}", outcome.stderr);
    let mut large = call(&[&broker], &["large", "--spool", place]);
    let outcome = run(large.stdin(File::open(&file).expect("open"))).expect_code(1);
    assert!(outcome.stderr.contains(&format!("tow: {no_place}")), "{}", outcome.stderr);
}

#[test]
fn broker_with_an_unwritable_spool_does_not_start() {
    // Not even root can make a file there.
    let place = "/proc/self";
    let outcome = run(&mut tow(["broker", "--bind", "tcp://127.0.0.1:0", "--spool", place])).expect_code(1);
    let named = outcome.stderr.contains(&format!("no place for large bodies: {place}: "));
    assert!(named, "{}", outcome.stderr);
}

#[test]
fn commands_without_descriptors_fail_without_panic() {
    for command in [&["broker", "--bind", "tcp://127.0.0.1:0"][..], &["call", "x", "x"], &["work", "x", "--echo"]] {
        for most in 6..20 {
            let mut short = Command::new("sh");
            short.args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"]);
            short.arg(tow(command).get_program()).args(command);
            let outcome = run(&mut short).expect_code(1);
            assert!(outcome.stderr.contains("ulimit -n"), "{most}: {}", outcome.stderr);
        }
    }
}

#[test]
fn stock_client_fails_on_an_error_reply_of_our_broker() {
    let broker = Broker::start();
    let _bad = work(&[&broker], &["bad", "--", "sh", "-c", "echo oops >&2; exit 3"]);
    let _number = work(&[&broker], &["number", "--", "echo", "404"]);
    for dialect in ["mdp01", "mdp02", "majortomo"] {
        let outcome = run(&mut call(&[&broker], &["bad", "x", "--dialect", dialect])).expect_code(9);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "");
        assert!(outcome.stderr.starts_with("tow: 500"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("exit status: 3: oops"), "{}", outcome.stderr);
        let outcome = run(&mut call(&[&broker], &["number", "x", "--dialect", dialect])).expect_code(0);
        assert_eq!(outcome.stdout, b"404\n");
    }
}

#[test]
fn error_distinguishes_a_wrong_peer_from_a_silent_one() {
    let folder = tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let arguments = ["call", "echo", "x", "--timeout", "1", "--connect", server.endpoint()];
    let outcome = run(&mut tow(arguments)).expect_code(6);
    assert!(outcome.stderr.contains("this is a file server (tow serve)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(server.endpoint()), "{}", outcome.stderr);
}

#[test]
fn worker_logs_a_missing_broker_once() {
    let mut command = tow(["work", "echo", "--echo", "--connect", "ipc:///nowhere/at/all"]);
    let worker = Process::start(command.env("TOW_LOG", "debug"));
    let reported = || worker.log().matches("no connection to a broker, still trying").count();
    wait_until("it tries again and again", || reported() > 5);
    let is_loud = |line: &&str| line.contains("WARN") && line.contains("no connection to a broker");
    assert_eq!(worker.log().lines().filter(is_loud).count(), 1, "{}", worker.log());
}

#[test]
fn mmi_replies_are_json_lines() {
    let broker = Broker::start();
    let _echo = work(&[&broker], &["echo", "--echo"]);
    let outcome = run(&mut call(&[&broker], &["mmi.services"])).expect_code(0);
    assert_eq!(outcome.stdout, b"[\"echo\"]\n");
    let outcome = run(&mut call(&[&broker], &["mmi.workers", "echo", "--dialect", "mdp02"])).expect_code(0);
    assert_eq!(outcome.summary()[0]["service"], "echo");
    assert!(run(&mut call(&[&broker], &["mmi.service", "echo"])).expect_code(0).stdout.is_empty());
    let outcome = run(&mut call(&[&broker], &["mmi.service", "nobody"])).expect_code(4);
    assert_eq!((&*outcome.stdout, &*outcome.stderr), (&b""[..], "tow: 404: no worker serves it\n"));
    run(&mut call(&[&broker], &["mmi.no-such-thing", ""])).expect_code(4);
}

#[test]
fn requests_fail_after_the_journal_was_removed() {
    let folder = tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let broker =
        Broker::with(&["--bind", "tcp://127.0.0.1:0", "--journal", journal.to_str().expect("a name of letters")]);
    let _echo = work(&[&broker], &["echo", "--echo"]);
    run(&mut call(&[&broker], &["echo", "hello"])).expect_code(0);
    std::fs::remove_dir_all(&journal).expect("remove");
    let outcome = run(&mut call(&[&broker], &["echo", "hello", "--timeout", "2"]));
    // Whether a worker had it depends on when the broker has noticed.
    assert!(matches!(outcome.status.code(), Some(7 | 8)), "{}", outcome.stderr);
    assert!(broker.log().contains("it was moved, removed or replaced"), "{}", broker.log());
}

#[test]
fn worker_short_of_descriptors_retries() {
    let broker = Broker::start();
    let mut short = Command::new("sh");
    // Each command takes three descriptors; there are too few for all.
    short.args(["-c", "ulimit -n 48; exec \"$@\"", "sh"]);
    let work = tow(["work", "many", "--jobs", "40", "--connect", broker.endpoint()]);
    short.arg(work.get_program()).args(work.get_args()).args(["--", "sh", "-c", "cat; sleep 0.05"]);
    let _worker = Process::start(&mut short);
    let load = ["many", "--count", "60", "--ahead", "60", "--timeout", "60", "--json"];
    let outcome = run(&mut call(&[&broker], &load)).expect_code(0);
    assert_eq!(outcome.number("replies"), 60);
}

#[test]
fn text_from_peers_is_escaped() {
    let broker = Broker::start();
    let service = "evil\u{1b}[2J\n2026-01-01 INFO all is well";
    let _evil = work(&[&broker], &[service, "--", "sh", "-c", "printf 'no\\033[2J\\nway' >&2; exit 1"]);
    let outcome = run(&mut call(&[&broker], &[service, "x"])).expect_code(9);
    assert!(outcome.stderr.contains("no\\u{1b}[2J\n  way"), "{:?}", outcome.stderr);
    wait_until("the worker is logged", || broker.log().contains("a worker is there"));
    let log = broker.log();
    assert!(!log.contains('\u{1b}') && log.lines().all(|line| !line.starts_with("2026-01-01 INFO")), "{log:?}");
}

#[test]
fn call_says_that_it_waits_for_a_broker() {
    for load in [&[][..], &["--count", "3"]] {
        let mut command = tow(["call", "echo", "--connect", "ipc:///nowhere/at/all", "--timeout", "60"]);
        let caller = Process::start(command.args(load));
        wait_until("it says so", || caller.log().contains("no connection to a broker"));
        caller.signal(Signal::INT);
        let outcome = caller.finish().expect_signal(Signal::INT);
        assert_eq!(outcome.stderr.matches("no connection to a broker").count(), 1, "{}", outcome.stderr);
    }
    run(&mut tow(["call", ""])).expect_code(2);
    run(&mut tow(["call", "", "--count", "3"])).expect_code(2);
    run(&mut tow(["call", "echo", "--count", "3", "--rate", "0"])).expect_code(2);
}

#[test]
fn load_test_gives_up_without_a_broker() {
    let mut load = tow(["call", "echo", "--connect", "ipc:///nowhere/at/all", "--timeout", "2", "--json"]);
    let outcome = run(load.args(["--count", "1000000", "--ahead", "8"])).expect_code(6);
    assert!(outcome.stderr.contains("without a connection to a broker: "), "{}", outcome.stderr);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (0, 1_000_000));
    assert!((8..1_000_000).contains(&outcome.number("requests")), "{}", outcome.number("requests"));
}

#[test]
fn error_names_every_unreachable_broker() {
    let mut command = tow(["call", "echo", "x", "--timeout", "2"]);
    let brokers = ["ipc:///nowhere/one", "ipc:///nowhere/two"];
    let outcome = run(command.args(brokers.iter().flat_map(|broker| ["--connect", broker]))).expect_code(6);
    let reported = |broker: &&str| outcome.stderr.contains(&format!("{broker}: "));
    assert!(outcome.stderr.contains("no connection: ") && brokers.iter().all(reported), "{}", outcome.stderr);
}

#[test]
fn words_are_frames_in_every_dialect() {
    let folder = tempdir().expect("a folder");
    let journal = folder.path().to_str().expect("letters");
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--journal", journal]);
    let _echo = work(&[&broker], &["echo", "--echo"]);
    for dialect in [&[][..], &["--dialect", "mdp01"], &["--dialect", "mdp02"], &["--dialect", "majortomo"]] {
        let ask = |arguments: &[&str]| run(call(&[&broker], arguments).args(dialect));
        let stored = ask(&["--frames", "titanic.request", "echo", "in two words"]).expect_code(0).stdout;
        let name = String::from_utf8(stored).expect("a name");
        wait_until("it is done", || ask(&["titanic.reply", &name]).stdout == b"in two words");
        ask(&["titanic.close", &name]).expect_code(0);
        let outcome = ask(&["titanic.request", "echo", "in one frame"]).expect_code(1);
        assert!(outcome.stderr.starts_with("tow: 500 "), "{}", outcome.stderr);
    }
    run(&mut call(&[&broker], &["--frames", "echo"])).expect_code(2);
}

#[test]
fn call_says_that_it_waits_for_a_full_queue() {
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--max-waiting", "1"]);
    let _first = Process::start(&mut call(&[&broker], &["full", "first", "--timeout", "600"]));
    let waiting = || run(&mut call(&[&broker], &["mmi.queue", "full"])).stdout;
    wait_until("the queue is full", || String::from_utf8_lossy(&waiting()).contains("\"waiting\":1"));
    for load in [&["second"][..], &["--count", "3", "--ahead", "3", "--timeout", "600"]] {
        let caller = Process::start(call(&[&broker], &["full"]).args(load));
        wait_until("it says so", || caller.log().contains("still trying: 503 not now: the service's queue is full"));
        caller.signal(Signal::INT);
        caller.finish().expect_signal(Signal::INT);
    }
    // The reason is printed once. The broker's timeout may come first or second.
    let outcome = run(&mut call(&[&broker], &["mmi.nothing", "x"])).expect_code(4);
    assert_eq!(outcome.stderr, "tow: 501 no such built-in service\n");
    let outcome = run(&mut call(&[&broker], &["full", "second", "--timeout", "3"])).expect_code(7);
    let expected = "no broker took it within its time; the last refusal was 503 not now: the service's queue is full \
                    (no worker for full)\n";
    assert!(outcome.stderr.ends_with(expected), "{}", outcome.stderr);
}

#[test]
fn command_that_does_not_read_its_input_replies() {
    let broker = Broker::start();
    let _lazy = work(&[&broker], &["lazy", "--", "echo", "done"]);
    let folder = tempdir().expect("a folder");
    for size in [100, 900 << 10, 5 << 20] {
        let path = folder.path().join("question");
        random_file(&path, size, 1);
        let mut command = call(&[&broker], &["lazy"]);
        let outcome = run(command.stdin(File::open(&path).expect("open"))).expect_code(0);
        assert_eq!(outcome.stdout, b"done\n");
    }
}

#[test]
fn large_bodies_take_constant_memory() {
    const SIZE: usize = 192 << 20;
    let broker = Broker::start();
    let cat = work(&[&broker], &["cat", "--", "cat"]);
    let folder = tempdir().expect("a folder");
    let (question, answer) = (folder.path().join("question"), folder.path().join("answer"));
    random_file(&question, SIZE, 3);
    let mut child = call(&[&broker], &["cat", "--json"])
        .stdin(File::open(&question).expect("open"))
        .stdout(File::create(&answer).expect("create"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().expect("piped"), &mut said).expect("read");
    assert!(child.wait().expect("wait").success(), "{said}");
    assert_eq!(digest(&answer), digest(&question));
    let object: serde_json::Value = serde_json::from_str(&said).expect("an object");
    assert_eq!(object["reply_bytes"], SIZE);
    let callers = object["peak_memory_bytes"].as_u64().expect("a number");
    for (who, peak) in [("caller", callers), ("broker", broker.peak_memory()), ("worker", cat.peak_memory())] {
        assert!(peak < 64 << 20, "the {who} had {peak} bytes of memory");
    }
}

#[test]
fn load_test_checks_every_reply() {
    let broker = Broker::start();
    let _echo = work(&[&broker], &["echo", "--echo"]);
    let arguments = ["echo", "--count", "20000", "--ahead", "200", "--clients", "3", "--json"];
    let outcome = run(&mut call(&[&broker], &arguments)).expect_code(0);
    for (member, value) in [("requests", 20_000), ("replies", 20_000), ("failed", 0), ("resent", 0)] {
        assert_eq!(outcome.number(member), value, "{member}");
    }
    assert!(outcome.number("p50_us") <= outcome.number("p99_us"));
    // Bodies shorter than a number, attached ones, and spooled ones.
    for size in ["1", "5", "10K", "2M"] {
        run(&mut call(&[&broker], &["echo", "--count", "20", "--ahead", "5", "--size", size])).expect_code(0);
    }
    let started = Instant::now();
    run(&mut call(&[&broker], &["echo", "--count", "50", "--rate", "100", "--ahead", "10"])).expect_code(0);
    assert!(started.elapsed() >= Duration::from_millis(450));

    let _upper = work(&[&broker], &["upper", "--", "tr", "a-z", "A-Z"]);
    let outcome = run(&mut call(&[&broker], &["upper", "--count", "3", "--json"])).expect_code(1);
    assert_eq!((outcome.number("wrong"), outcome.number("failed")), (3, 3));
}

#[test]
fn bodies_come_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("body");
    std::fs::write(&file, "from a file").expect("write");
    let broker = Broker::start();
    let _worker = work(&[&broker], &["echo", "--echo"]);
    let at_file = format!("@{}", file.display());
    for (words, input, expected) in [
        (&[&*at_file][..], "", "from a file"),
        (&["@-"], "from input", "from input"),
        (&["@@home"], "", "@home"),
        (&["mail", "me@home", "@noon"], "", "mail me@home @noon"),
        (&["--frames", "two ", &at_file], "", "two from a file"),
    ] {
        let inputs = folder.path().join("input");
        std::fs::write(&inputs, input).expect("write");
        let mut command = call(&[&broker], &["echo"]);
        let outcome = run(command.args(words).stdin(std::fs::File::open(&inputs).expect("open"))).expect_code(0);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), expected, "{words:?}");
    }
    let outcome = run(&mut call(&[&broker], &["echo", "@nowhere"])).expect_code(1);
    assert!(outcome.stderr.contains("nowhere: No such file"), "{}", outcome.stderr);
}

#[test]
fn load_test_keeps_ahead_requests_in_flight() {
    let broker = Broker::start();
    let load = Process::start(&mut call(&[&broker], &["echo", "--count", "6000", "--ahead", "5000", "--json"]));
    wait_until("5000 requests wait for a worker", || {
        let outcome = run(&mut call(&[&broker], &["mmi.queue", "echo"])).expect_code(0);
        let queues: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
        queues[0]["waiting"] == 5000
    });
    let _echo = work(&[&broker], &["echo", "--echo"]);
    let outcome = load.finish().expect_code(0);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (6000, 0));
}

#[test]
fn requests_of_a_killed_worker_go_to_another() {
    let broker = Broker::start();
    let one = work(&[&broker], &["echo", "--echo", "--work-time", "20ms", "--jobs", "10"]);
    let _two = work(&[&broker], &["echo", "--echo", "--work-time", "20ms", "--jobs", "10"]);
    let load = Process::start(&mut call(&[&broker], &["echo", "--count", "1000", "--ahead", "50", "--json"]));
    await_progress(&broker, "echo");
    drop(one);
    let outcome = load.finish().expect_code(0);
    assert_eq!((outcome.number("replies"), outcome.number("failed")), (1000, 0));
}

#[test]
fn worker_drains_on_the_first_signal_and_ends_on_the_second() {
    let broker = Broker::start();
    let folder = tempdir().expect("a folder");
    let (flag, pid_file) = (folder.path().join("flag"), folder.path().join("pid"));
    let script =
        format!("echo $$ > {}; while [ ! -e {} ]; do sleep 0.05; done; cat", pid_file.display(), flag.display());
    let slow = work(&[&broker], &["slow", "--", "sh", "-c", &script]);
    let caller = Process::start(&mut call(&[&broker], &["slow", "finish this"]));
    wait_until("the command runs", || is_running(&pid_file).is_some());
    slow.signal(Signal::TERM);
    wait_until("the worker drains", || slow.log().contains("draining"));
    std::fs::write(&flag, "").expect("write");
    assert_eq!(caller.finish().expect_code(0).stdout, b"finish this");
    slow.finish().expect_code(0);

    std::fs::remove_file(&flag).expect("remove");
    let slow = work(&[&broker], &["slow", "--", "sh", "-c", &script]);
    let _caller = Process::start(&mut call(&[&broker], &["slow", "never"]));
    wait_until("the command runs", || is_running(&pid_file).is_some());
    slow.signal(Signal::TERM);
    wait_until("the worker drains", || slow.log().contains("draining"));
    // Signals within 100 ms count as one.
    std::thread::sleep(Duration::from_millis(200));
    slow.signal(Signal::TERM);
    slow.finish().expect_signal(Signal::TERM);
    wait_until("the command is gone", || is_running(&pid_file).is_none());
}

#[test]
fn interrupted_load_test_prints_its_results() {
    let broker = Broker::start();
    let _echo = work(&[&broker], &["echo", "--echo", "--work-time", "10ms", "--jobs", "5"]);
    let load = Process::start(&mut call(&[&broker], &["echo", "--count", "1000000", "--ahead", "10", "--json"]));
    await_progress(&broker, "echo");
    load.signal(Signal::INT);
    let outcome = load.finish().expect_signal(Signal::INT);
    assert!((1..1_000_000).contains(&outcome.number("replies")), "{}", outcome.summary());
    assert_eq!(outcome.number("failed"), 0);
    // No worker takes the rest.
    wait_until("the broker has nothing of it", || {
        let queue = run(&mut call(&[&broker], &["mmi.queue", "echo"])).expect_code(0).stdout;
        let queue: serde_json::Value = serde_json::from_slice(&queue).expect("JSON");
        queue[0]["waiting"] == 0 && queue[0]["unconfirmed"] == 0
    });
}

#[test]
fn worker_drains_on_sighup() {
    // Under nohup(1) the tests and so the worker would ignore the signal. A handled signal isn't ignored by children.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _handled = runtime.block_on(async { signal(SignalKind::hangup()) }).expect("a handler");
    let broker = Broker::start();
    let slow = work(&[&broker], &["slow", "--", "sh", "-c", "cat; sleep 0.2"]);
    let caller = Process::start(&mut call(&[&broker], &["slow", "finish this"]));
    wait_until("the worker has it", || {
        let workers = run(&mut call(&[&broker], &["mmi.workers", "slow"])).stdout;
        String::from_utf8_lossy(&workers).contains("\"held\":1")
    });
    slow.signal(Signal::HUP);
    assert_eq!(caller.finish().expect_code(0).stdout, b"finish this");
    slow.finish().expect_code(0);
}

#[test]
fn command_that_is_being_replaced_is_retried() {
    let broker = Broker::start();
    let folder = tempdir().expect("a folder");
    let program = folder.path().join("program");
    let install = || {
        let new = folder.path().join("new");
        std::fs::write(&new, "#!/bin/sh\ncat\n").expect("write");
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).expect("make it a program");
        std::fs::rename(&new, &program).expect("rename");
    };
    install();
    let worker = work(&[&broker], &["replaced", "--", program.to_str().expect("UTF-8")]);
    std::fs::remove_file(&program).expect("remove");
    let caller = Process::start(&mut call(&[&broker], &["replaced", "hello"]));
    wait_until("the worker misses it", || worker.log().contains("cannot start the command"));
    install();
    assert_eq!(caller.finish().expect_code(0).stdout, b"hello");
}

#[test]
fn a_worker_that_cannot_start_its_command_gives_requests_back_and_rests() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let broker = place.broker(&[]);
    let tool = folder.path().join("tool");
    std::fs::copy("/bin/true", &tool).expect("copy");
    let gone = work(&[&broker], &["s", "--jobs", "4", "--", tool.to_str().expect("letters")]);
    std::fs::remove_file(&tool).expect("remove");
    // A shell says the same by its exit status.
    let _shell = work(&[&broker], &["s", "--", "sh", "-c", "exec /nowhere/at/all"]);
    // Nobody else can do it: it waits until its time is over, and no worker is said to have failed.
    run(&mut call(&[&broker], &["s", "x", "--timeout", "2"])).expect_code(7);
    wait_until("the worker says why", || gone.log().contains("tool: No such file"));
    wait_until("both rest", || {
        let listed = String::from_utf8(place.tow(&["workers", "s"]).expect_code(0).stdout).expect("UTF-8");
        let both = listed.contains("tool: No such file") && listed.contains("exit status: 127");
        if !both {
            // The one that rests less gets the next.
            run(&mut call(&[&broker], &["s", "x", "--timeout", "2"])).expect_code(7);
        }
        both
    });
    let _good = work(&[&broker], &["s", "--", "cat"]);
    for _ in 0..8 {
        let outcome = run(&mut call(&[&broker], &["s", "x"])).expect_code(0);
        assert_eq!(outcome.stdout, b"x");
    }
}

#[test]
fn stock_dialects_work_on_both_sides() {
    let broker = Broker::start();
    for dialect in ["mdp01", "mdp02", "majortomo"] {
        let upper = work(&[&broker], &["upper", "--dialect", dialect, "--", "tr", "a-z", "A-Z"]);
        for other in ["mdp01", "mdp02", "majortomo", "auto"] {
            let outcome = run(&mut call(&[&broker], &["upper", "stock", "--dialect", other])).expect_code(0);
            assert_eq!(outcome.stdout, b"STOCK");
        }
        upper.signal(Signal::TERM);
        upper.finish().expect_code(0);
    }
}

#[test]
fn hanging_command_is_killed_at_the_busy_timeout_and_its_request_requeued() {
    let folder = tempdir().expect("a folder");
    let broker = Broker::with(&["--busy-timeout", "1"]);
    for dialect in ["auto", "mdp01"] {
        let script = format!("if mkdir {}; then sleep 1000; else cat; fi", folder.path().join(dialect).display());
        let service = ["hangs", "--dialect", dialect, "--jobs", "1", "--", "sh", "-c", &script];
        let worker = work(&[&broker], &service);
        assert_eq!(run(&mut call(&[&broker], &["hangs", "again"])).expect_code(0).stdout, b"again");
        worker.signal(Signal::TERM);
        worker.finish().expect_code(0);
    }
}
