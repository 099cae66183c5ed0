//! The progress of `tow get` on a terminal: one line, never wider than the terminal.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::process::{Process, Server, tow};
use crate::support::skip;
use crate::support::tree::random_file;
use crate::support::wait_until;

/// Narrow enough that a whole bar doesn't fit.
const COLUMNS: usize = 40;

/// `tow` on a terminal of [`COLUMNS`], whose output is the process's output. `None`, and the test is skipped, without script(1).
pub fn on_terminal(arguments: &[&str], folder: &Path) -> Option<Process> {
    let mut probe = Command::new("script");
    if !probe.args(["-qec", "true", "/dev/null"]).output().is_ok_and(|probed| probed.status.success()) {
        skip("no terminal without script(1) of util-linux");
        return None;
    }
    let command = format!("stty cols {COLUMNS} rows 24 && exec \"$TOW\" {}", arguments.join(" "));
    let mut script = Command::new("script");
    script.args(["-qfec", &command, "/dev/null"]).current_dir(folder).stdin(std::process::Stdio::null());
    script.env("TOW", env!("CARGO_BIN_EXE_tow")).env("TERM", "xterm");
    Some(Process::start(&mut script))
}

/// The lines that were drawn, one over another, without what moves the cursor.
fn drawn(output: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut characters = output.chars();
    while let Some(one) = characters.next() {
        match one {
            '\u{1b}' => drop(characters.by_ref().skip(1).find(char::is_ascii_alphabetic)),
            '\r' | '\n' => lines.push(String::new()),
            one => lines.last_mut().expect("a line").push(one),
        }
    }
    lines
}

#[test]
fn what_it_waits_for_is_said_in_one_line() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    random_file(&served.join("large"), 1 << 20, 1);
    let server = Server::start(&served);
    let url = server.url("large");
    let arguments = ["get", &url, "copy", "--bwlimit", "100K", "--timeout", "60"];
    let Some(client) = on_terminal(&arguments, folder.path()) else { return };
    wait_until("the rate is shown", || client.output().contains("KiB/s"));
    server.kill();
    wait_until("the loss is said", || client.output().contains("connection lost, trying again"));
    client.signal(Signal::TERM);
    let shown = client.output();
    let lines = drawn(&shown);
    for line in lines.iter().take_while(|line| !line.contains("interrupted")) {
        assert!(line.chars().count() <= COLUMNS, "{} columns: {line:?}", line.chars().count());
    }
    // Nobody is there at all.
    let arguments = ["get", "127.0.0.1:1/", "copy", "--connect-timeout", "1s"];
    let client = on_terminal(&arguments, folder.path()).expect("a terminal, as before");
    let outcome = client.finish();
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(said.contains("connecting to tcp://127.0.0.1:1"), "{said}");
}

/// Nothing is drawn where nobody sees it.
#[test]
fn without_a_terminal_nothing_is_drawn() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1 << 20, 1);
    let server = Server::start(folder.path());
    let mut command = tow(["get", &server.url("a"), "copy"]);
    let outcome = Process::start(command.current_dir(folder.path())).finish().expect_code(0);
    assert_eq!((outcome.stderr.as_str(), outcome.stdout.len()), ("", 0));
}
