//! Commands of `tow work`: how they end, and what they leave behind.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Signal, kill_process};
use tempfile::tempdir;

use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, is_running, run};
use crate::support::wait_until;

#[test]
fn cancelled_request_ends_the_process_group_of_its_command() {
    let broker = Broker::start();
    let folder = tempdir().expect("a folder");
    let (pid_file, term) = (folder.path().join("pid"), folder.path().join("term"));
    // Ignores SIGTERM, apart from noting it.
    let script = format!(
        "trap 'echo > {}' TERM; (trap '' TERM; exec sleep 1000) & echo $! > {}; while :; do wait; done",
        term.display(),
        pid_file.display()
    );
    let _slow = work(&[&broker], &["slow", "--", "sh", "-c", &script]);
    let caller = Process::start(&mut call(&[&broker], &["slow", "x"]));
    wait_until("the command runs", || is_running(&pid_file).is_some());
    caller.signal(Signal::INT);
    assert!(caller.finish().stderr.contains("interrupted"));
    wait_until("the command has been asked to end", || term.exists());
    wait_until("the command is gone", || is_running(&pid_file).is_none());
}

#[test]
fn killed_worker_takes_its_commands_along() {
    let broker = Broker::start();
    let folder = tempdir().expect("a folder");
    let pid_file = folder.path().join("pid");
    // The guard knows the command before that has its input.
    let script = format!("cat; sleep 1000 & echo $! > {}; wait", pid_file.display());
    let slow = work(&[&broker], &["slow", "--", "sh", "-c", &script]);
    let _caller = Process::start(&mut call(&[&broker], &["slow", "x"]));
    wait_until("the command runs", || is_running(&pid_file).is_some());
    slow.signal(Signal::KILL);
    wait_until("the command is gone", || is_running(&pid_file).is_none());
}

#[test]
fn reply_does_not_wait_for_what_the_command_leaves_behind() {
    let broker = Broker::start();
    let folder = tempdir().expect("a folder");
    let pid_file = folder.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; head -c 3000000 /dev/zero", pid_file.display());
    let daemon = work(&[&broker], &["daemon", "--", "sh", "-c", &script]);
    let outcome = run(&mut call(&[&broker], &["daemon", "x"])).expect_code(0);
    assert_eq!(outcome.stdout.len(), 3_000_000);
    assert!(daemon.log().contains("another process keeps its output open"), "{}", daemon.log());
    let left = is_running(&pid_file).expect("it goes on");
    kill_process(left, Signal::KILL).expect("kill");
}

#[test]
fn command_knows_its_deadline() {
    let broker = Broker::start();
    let _deadline = work(&[&broker], &["deadline", "--", "printenv", "TOW_DEADLINE"]);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let before = now();
    let outcome = run(&mut call(&[&broker], &["deadline", "x", "--timeout", "1000"])).expect_code(0);
    let deadline: u64 = String::from_utf8_lossy(&outcome.stdout).trim().parse().expect("a number");
    // The broker's clock and the worker's are rounded to milliseconds.
    assert!((before + 990..=now() + 1001).contains(&deadline), "{deadline}");
}

#[test]
fn temporary_failure_is_tried_again_until_all_attempts_are_used() {
    let broker = Broker::start();
    let folder = tempdir().expect("a folder");
    let first = folder.path().join("first");
    let path = first.display();
    let script = format!(
        "if [ -e {path} ]; then echo 2 $TOW_REQUEST; else echo $TOW_ATTEMPT $TOW_REQUEST > {path}; exit 75; fi"
    );
    let _later = work(&[&broker], &["later", "--", "sh", "-c", &script]);
    let second = run(&mut call(&[&broker], &["later", "x"])).expect_code(0).stdout;
    let (first, second) = (std::fs::read(&first).expect("it is there"), String::from_utf8(second).expect("ASCII"));
    let first = String::from_utf8(first).expect("ASCII");
    assert_eq!(first.strip_prefix("1 "), second.strip_prefix("2 "));
    assert_eq!(second.trim_end().len(), 2 + 32, "{second}");
    let another = run(&mut call(&[&broker], &["later", "x"])).expect_code(0).stdout;
    assert_ne!(second.as_bytes(), another);

    let broker = Broker::with(&["--attempts", "1"]);
    let _never = work(&[&broker], &["never", "--", "sh", "-c", "exit 75"]);
    let outcome = run(&mut call(&[&broker], &["never", "x"])).expect_code(8);
    assert!(outcome.stderr.contains("502"), "{}", outcome.stderr);
}
