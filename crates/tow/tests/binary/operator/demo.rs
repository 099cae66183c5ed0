//! `tow demo`: its output, and its cleanup however it ends.

use std::fs;
use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use tempfile::tempdir;

use crate::support::process::{Process, run, tow};
use crate::support::wait_until;

/// More than any machine completes before the signal.
const REQUESTS: &str = "400000";

#[test]
fn demo_runs_and_cleans_up() {
    let folder = tempdir().expect("a folder");
    let mut command = tow(["demo", "--size", "24M", "--requests", "30000", "--folder"]);
    let outcome = run(command.arg(folder.path())).expect_code(0);
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    for word in ["verified", "CPU", "memory", "copy"] {
        assert!(text.contains(word), "nothing of {word} in: {text}");
    }
    for line in [
        "whole and verified in all copies after",
        "in place as a whole, with the same content as all copies, after",
        "started again, its copy is the same as the others after",
        "after 10000 replies a worker is killed",
        "after 15000 replies the broker is killed, and started again on its journal",
        "30000 of 30000 requests have their reply, each exactly one",
        "ms after the new broker listened",
    ] {
        assert!(text.contains(line), "no {line:?} in: {text}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0, "something is left over");
}

/// Process group, killed at the end of the test.
struct Group(Pid);

impl Group {
    /// True while a process of the group runs or was not waited for.
    fn is_there(&self) -> bool {
        test_kill_process_group(self.0).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails if the group has ended, as it should.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// Interrupts a demo after it has printed `line`: the demo alone, or its group as a terminal does.
fn interrupt_after(line: &str, signal: Signal, is_alone: bool) {
    let folder = tempdir().expect("a folder");
    let mut command = tow(["demo", "--size", "64M", "--requests", REQUESTS]);
    let mut demo = Process::start(command.env("TMPDIR", folder.path()).process_group(0));
    let group = Group(demo.pid());
    wait_until(line, || demo.output().contains(line) || demo.ended());
    let sent = if is_alone { kill_process(group.0, signal) } else { kill_process_group(group.0, signal) };
    sent.expect("it has not ended by itself");
    wait_until("it has ended", || demo.ended());
    assert!(!group.is_there(), "after {line:?}: a process is left over");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("read").flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "after {line:?}: left over: {left:?}");
    let outcome = demo.finish().expect_code(1);
    // In a group another process may report the interruption first.
    assert!(!is_alone || outcome.stderr == "tow: interrupted\n", "after {line:?}: {}", outcome.stderr);
}

#[test]
fn demo_interrupted_during_files_cleans_up() {
    for line in ["1. ", "2. a plain copy", "serving on", "4. tow get"] {
        interrupt_after(line, Signal::INT, true);
        interrupt_after(line, Signal::TERM, false);
    }
}

#[test]
fn demo_interrupted_during_requests_cleans_up() {
    interrupt_after("a follower is killed", Signal::TERM, true);
    for line in ["1. tow broker", "broker on", "times tow work", "ahead; a worker"] {
        interrupt_after(line, Signal::TERM, true);
        interrupt_after(line, Signal::INT, false);
    }
    interrupt_after("a worker is killed", Signal::INT, true);
}
