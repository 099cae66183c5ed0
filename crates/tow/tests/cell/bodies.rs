//! Bodies over 16 MiB, in a directory that all brokers of a cell share.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use tempfile::TempDir;

use super::Cell;
use super::members::Member;
use crate::support::broker::{call, work};
use crate::support::process::{Outcome, Process, run};
use crate::support::wait_until;

/// A cell whose brokers share a directory.
struct Shared {
    cell: Cell,
    folder: TempDir,
}

impl Shared {
    fn start() -> Option<Shared> {
        let shared = Shared { cell: Cell::start(1)?, folder: tempfile::tempdir().expect("a folder") };
        run(shared.cell.queue("init").args(["--bodies", &shared.path()])).expect_code(0);
        Some(shared)
    }

    fn path(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("test")
    }

    fn member(&self, name: &str) -> Member {
        Member::with(&self.cell, name, &["--bodies", &self.path()])
    }

    fn bodies(&self) -> usize {
        let names = std::fs::read_dir(self.directory())
            .expect("the directory")
            .map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "body")).count()
    }
}

/// A call with a body of so many bytes.
pub fn sent(folder: &TempDir, members: &[&Member], bytes: usize, timeout: &str) -> Process {
    let path = folder.path().join(format!("sent-{bytes}"));
    std::fs::write(&path, content(bytes)).expect("write");
    let brokers: Vec<_> = members.iter().map(|member| &member.broker).collect();
    let mut command = call(&brokers, &["echo", "--timeout", timeout]);
    Process::start(command.stdin(File::open(&path).expect("open")))
}

pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 4096) as u8).collect()
}

const LARGE: usize = 64 << 20;

#[test]
fn large_body_survives_the_leader_and_is_removed_afterwards() {
    let Some(shared) = Shared::start() else { return };
    let (one, folder) = (shared.member("one"), tempfile::tempdir().expect("a folder"));
    one.await_leading();
    let two = shared.member("two");
    two.await_standby();
    let load = sent(&folder, &[&one, &two], LARGE, "100");
    wait_until("it is in the log", || shared.cell.status()["requests"] == 1);
    assert_eq!(shared.bodies(), 1);
    one.broker.signal(Signal::KILL);
    two.await_leading();
    let _echo = work(&[&two.broker], &["echo", "--echo"]);
    assert!(load.finish().expect_code(0).stdout == content(LARGE), "the reply is another");
    wait_until("its files are removed", || shared.bodies() == 0);
}

#[test]
fn without_the_directory_large_requests_are_refused_and_small_ones_go_on() {
    let Some(shared) = Shared::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let one = shared.member("one");
    one.await_leading();
    let _echo = work(&[&one.broker], &["echo", "--echo"]);
    let away = shared.folder.path().join("away");
    std::fs::rename(shared.directory(), &away).expect("rename");
    wait_until("it is noticed", || one.broker.log().contains("the place of large bodies can't be used"));
    let cause = one.await_problem("bodies_away");
    let words = format!("place of large bodies: {}: No such file", shared.directory().display());
    assert!(cause.starts_with(&words), "{cause}");
    let refused = sent(&folder, &[&one], 17 << 20, "3").finish();
    assert!(refused.stderr.contains("503") && refused.stderr.contains("have large bodies"), "{}", refused.stderr);
    let small = run(&mut call(&[&one.broker], &["echo", "hello", "--timeout", "50"])).expect_code(0);
    assert_eq!(small.stdout, b"hello");
    assert!(!shared.directory().exists(), "nothing is made in its place");
    std::fs::rename(&away, shared.directory()).expect("rename");
    wait_until("it is no problem any more", || one.problem("bodies_away").is_none());
    let answered: Outcome = sent(&folder, &[&one], 17 << 20, "100").finish().expect_code(0);
    assert_eq!(answered.stdout.len(), 17 << 20);
    // A cell without such a directory says which option it is.
    let plain = Cell::start(1).expect("a cell");
    let other = Member::start(&plain, "other");
    other.await_leading();
    let refused = sent(&folder, &[&other], 17 << 20, "3").finish();
    assert!(refused.stderr.contains("413") && refused.stderr.contains("--bodies"), "{}", refused.stderr);
}

#[test]
fn leftovers_are_removed_if_they_are_old_and_no_record_names_them() {
    let Some(shared) = Shared::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let one = shared.member("one");
    one.await_leading();
    let load = sent(&folder, &[&one], 17 << 20, "100");
    wait_until("it is in the log", || shared.cell.status()["requests"] == 1);
    // What a killed broker leaves, long ago and now; and the needed one is as old.
    let old = SystemTime::now() - Duration::from_secs(7200);
    let leftover = |digit: &str, end: &str| shared.directory().join(digit.repeat(32) + end);
    for path in [leftover("a", ".body"), leftover("b", ".tmp"), leftover("c", ".body")] {
        File::create(path).expect("a file");
    }
    for entry in std::fs::read_dir(shared.directory()).expect("the directory") {
        let path = entry.expect("an entry").path();
        if path != leftover("c", ".body") {
            File::options().write(true).open(path).and_then(|file| file.set_modified(old)).expect("an old file");
        }
    }
    one.broker.signal(Signal::KILL);
    let two = shared.member("two");
    two.await_leading();
    wait_until("they are removed", || !leftover("a", ".body").exists() && !leftover("b", ".tmp").exists());
    assert!(leftover("c", ".body").exists(), "it may be one that is about to be named");
    assert_eq!(shared.bodies(), 2, "the needed one stays");
    drop(load);
}

#[test]
fn a_broker_without_the_body_of_a_request_does_not_lead() {
    let Some(shared) = Shared::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let one = shared.member("one");
    one.await_leading();
    let load = sent(&folder, &[&one], 17 << 20, "100");
    wait_until("it is in the log", || shared.cell.status()["requests"] == 1);
    one.broker.signal(Signal::KILL);
    let two = Member::start(&shared.cell, "two");
    wait_until("it says why", || two.status()["cell"]["failure"].as_str().is_some_and(|why| why.contains("--bodies")));
    let three = shared.member("three");
    three.await_leading();
    assert!(three.broker.log().contains("requests=1"), "{}", three.broker.log());
    drop(load);
}

#[test]
fn a_body_that_was_damaged_is_answered_as_failed_and_not_delivered() {
    let Some(shared) = Shared::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let one = shared.member("one");
    one.await_leading();
    let two = shared.member("two");
    two.await_standby();
    let damaged = sent(&folder, &[&one, &two], 17 << 20, "100");
    wait_until("it is in the log", || shared.cell.status()["requests"] == 1);
    let entries = std::fs::read_dir(shared.directory()).expect("the directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let body = paths.find(|path| path.extension().is_some_and(|end| end == "body")).expect("a body");
    let written = File::options().write(true).open(body).and_then(|file| file.write_all_at(b"!", 5 << 20));
    written.expect("write");
    // Another one is as it was.
    let whole = sent(&folder, &[&one, &two], LARGE, "100");
    wait_until("both are in the log", || shared.cell.status()["requests"] == 2);
    one.broker.signal(Signal::KILL);
    two.await_leading();
    let _echo = work(&[&two.broker], &["echo", "--echo"]);
    let failed = damaged.finish();
    let words = "500 the worker failed: the body has other bytes than it had in the place of large bodies";
    assert!(failed.stderr.contains(words) && failed.stdout.is_empty(), "{}", failed.stderr);
    assert!(whole.finish().expect_code(0).stdout == content(LARGE), "the reply is another");
    wait_until("their files are removed", || shared.bodies() == 0);
}

#[test]
fn a_broker_whose_directory_is_missing_does_not_start() {
    let Some(shared) = Shared::start() else { return };
    std::fs::remove_dir_all(shared.directory()).expect("remove");
    let mut command = shared.cell.broker_command(super::ANY);
    let failed = run(command.args(["--bodies", &shared.path()])).expect_code(1);
    let words = format!("place of large bodies can't be used: {}: No such file", shared.directory().display());
    assert!(
        failed.stderr.contains(&words) && failed.stderr.contains("a directory must be mounted"),
        "{}",
        failed.stderr
    );
    assert!(!shared.directory().exists(), "nothing is made in its place");
}
