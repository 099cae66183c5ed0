//! Clients of one broker: they take turns, and none takes all that it has. Peers over TCP and over ipc are different tenants.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, run, tow};
use crate::support::wait_until;

fn ipc_of(folder: &Path) -> String {
    format!("ipc://{}/broker", folder.display())
}

fn broker(folder: &Path, arguments: &[&str]) -> Broker {
    Broker::with(&[&["--bind", "tcp://127.0.0.1:0", "--bind", &ipc_of(folder)], arguments].concat())
}

/// `tow COMMAND` over ipc, not yet started.
fn over_ipc(folder: &Path, command: &str, arguments: &[&str]) -> Command {
    tow([&[command, "--connect", &ipc_of(folder)], arguments].concat())
}

/// Requests that wait for a service.
fn waiting(folder: &Path, service: &str) -> u64 {
    let queue = run(&mut over_ipc(folder, "call", &["mmi.queue", service])).stdout;
    let queue: Value = serde_json::from_slice(&queue).unwrap_or_default();
    queue[0]["waiting"].as_u64().unwrap_or(0)
}

#[test]
fn one_request_does_not_wait_for_hundreds_of_another_client() {
    let folder = tempdir().expect("a folder");
    let broker = broker(folder.path(), &[]);
    let _many =
        Process::start(&mut call(&[&broker], &["slow", "--count", "300", "--ahead", "300", "--timeout", "600"]));
    wait_until("300 wait", || waiting(folder.path(), "slow") == 300);
    let elsewhere = Process::start(&mut over_ipc(folder.path(), "call", &["slow", "x"]));
    let same_address = Process::start(&mut call(&[&broker], &["slow", "x"]));
    wait_until("all wait", || waiting(folder.path(), "slow") == 302);
    // It replies with the number of requests so far.
    let count = folder.path().join("count");
    let command = format!("echo >> '{0}'; wc -l < '{0}'", count.display());
    let _worker = work(&[&broker], &["slow", "--", "sh", "-c", &command]);
    for (caller, most) in [(elsewhere, 2), (same_address, 3)] {
        let reply = caller.finish().expect_code(0).stdout;
        let place: u32 = String::from_utf8_lossy(&reply).trim().parse().expect("a number");
        assert!(place <= most, "{place} were served before it, and with it");
    }
}

#[test]
fn who_fills_the_broker_and_leaves_does_not_keep_others_out() {
    for journal in [false, true] {
        let folder = tempdir().expect("a folder");
        let directory = folder.path().join("journal");
        let mut arguments = vec!["--max-memory", "4M"];
        if journal {
            arguments.extend(["--journal", directory.to_str().expect("letters")]);
        }
        let first = broker(folder.path(), &arguments);
        // The memory would hold 16,384 requests without a body.
        let load = ["nobody", "--count", "40000", "--ahead", "40000", "--clients", "4", "--timeout", "600"];
        let attacker = Process::start(&mut call(&[&first], &load));
        wait_until("it has all that it gets", || waiting(folder.path(), "nobody") >= 12_000);
        drop(attacker);
        let _worker = Process::start(&mut over_ipc(folder.path(), "work", &["echo", "--echo"]));
        let ask = || run(&mut over_ipc(folder.path(), "call", &["echo", "hello", "--timeout", "30"]));
        assert_eq!(ask().expect_code(0).stdout, b"hello");
        if journal {
            first.signal(Signal::KILL);
            first.finish();
            let _second = broker(folder.path(), &arguments);
            assert!(waiting(folder.path(), "nobody") >= 12_000, "what was acknowledged is gone");
            assert_eq!(ask().expect_code(0).stdout, b"hello");
        } else {
            wait_until("it gives way", || waiting(folder.path(), "nobody") <= 8_192);
            let again = call(&[&first], &["echo", "hello"]).args(["--timeout", "30"]).output().expect("it runs");
            assert_eq!(again.stdout, b"hello");
        }
    }
}
