//! A copy belongs to the server and the path that it was followed from.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::{TempDir, tempdir};

use crate::support::process::{Outcome, Process, Server, run, tow};
use crate::support::tree::write;
use crate::support::wait_until;

/// A directory with this many files.
fn source(folder: &TempDir, name: &str, files: u32, content: &str) -> PathBuf {
    let source = folder.path().join(name);
    (0..files).for_each(|n| write(&source.join(format!("sub/f{n}")), format!("{content} {n}").as_bytes()));
    source
}

fn serve(source: &Path, state: Option<&Path>, options: &[&str]) -> Server {
    let mut command = tow(["serve", "--watch", "--settle", "100ms", "--bind", "tcp://127.0.0.1:0"]);
    command.arg(source).args(options);
    state.iter().for_each(|state| _ = command.arg("--state").arg(state));
    Server::from_command(&mut command)
}

fn follow(url: &str, copy: &Path, options: &[&str]) -> Outcome {
    run(tow(["follow", url, "--once"]).arg(copy).args(options))
}

fn count(copy: &Path) -> usize {
    fs::read_dir(copy.join("sub")).into_iter().flatten().count()
}

#[test]
fn another_server_neither_deletes_nor_replaces_until_it_is_adopted() {
    let folder = tempdir().expect("a folder");
    let (one, other) = (source(&folder, "one", 20, "one"), source(&folder, "other", 5, "other"));
    let at = |name: &str| folder.path().join(name);
    let first = serve(&one, Some(&at("state-1")), &[]);
    let second = serve(&other, Some(&at("state-2")), &[]);
    let copy = at("copy");
    follow(&first.url(""), &copy, &["--mirror"]).expect_code(0);
    for options in [&["--mirror"][..], &[]] {
        let outcome = follow(&second.url(""), &copy, options).expect_code(2);
        assert!(outcome.stderr.contains("another server") && outcome.stderr.contains("--adopt"), "{}", outcome.stderr);
        assert_eq!((count(&copy), fs::read(copy.join("sub/f1")).expect("read")), (20, b"one 1".to_vec()));
    }
    // The right one goes on, also at another address, and with another filter.
    let id = fs::read_to_string(at("state-1/server-id")).expect("a number");
    first.stop(Signal::TERM).expect_code(0);
    fs::remove_file(one.join("sub/f19")).expect("remove");
    let first = serve(&one, Some(&at("state-1")), &[]);
    follow(&first.url(""), &copy, &["--mirror"]).expect_code(0);
    follow(&first.url(""), &copy, &["--mirror", "--exclude", "*.tmp"]).expect_code(0);
    assert_eq!(count(&copy), 19);
    // One that lost its state is the same with its number.
    first.stop(Signal::TERM).expect_code(0);
    let first = serve(&one, Some(&at("state-3")), &["--server-id", id.trim_end()]);
    follow(&first.url(""), &copy, &["--mirror"]).expect_code(0);
    // A person may say that the copy is to be another server's.
    follow(&second.url(""), &copy, &["--mirror", "--adopt", "--max-delete", "100"]).expect_code(0);
    assert_eq!((count(&copy), fs::read(copy.join("sub/f1")).expect("read")), (5, b"other 1".to_vec()));
    follow(&second.url(""), &copy, &["--mirror"]).expect_code(0);
    follow(&first.url(""), &copy, &["--mirror"]).expect_code(2);
}

#[test]
fn paths_share_a_destination_as_far_as_they_do_not_collide() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("source");
    for (path, content) in [("a/d/own", "a"), ("a/d/same", "a"), ("b/d/mine", "b"), ("c/d/own", "c")] {
        write(&source.join(path), content.as_bytes());
    }
    let server = serve(&source, Some(&folder.path().join("state")), &[]);
    let copy = folder.path().join("copy");
    let read = |path: &str| fs::read_to_string(copy.join(path)).ok();
    follow(&server.url("a"), &copy, &["--mirror"]).expect_code(0);
    follow(&server.url("b"), &copy, &["--mirror"]).expect_code(0);
    assert_eq!((read("d/own").as_deref(), read("d/mine").as_deref()), (Some("a"), Some("b")));
    let outcome = follow(&server.url("c"), &copy, &["--mirror"]).expect_code(2);
    assert!(outcome.stderr.contains("(of /a)") && outcome.stderr.contains("--adopt"), "{}", outcome.stderr);
    assert_eq!(read("d/own").as_deref(), Some("a"));
    // A directory of both stays while one of them has it.
    fs::remove_dir_all(source.join("b/d")).expect("remove");
    let gone = || {
        follow(&server.url("b"), &copy, &["--mirror", "--max-delete", "9"]).expect_code(0);
        read("d/mine").is_none()
    };
    wait_until("it is gone", gone);
    assert_eq!(read("d/same").as_deref(), Some("a"));
    // What is taken over isn't the other one's any more.
    follow(&server.url("c"), &copy, &["--mirror", "--adopt"]).expect_code(0);
    assert_eq!(read("d/own").as_deref(), Some("c"));
    for _ in 0..2 {
        let outcome = follow(&server.url("a"), &copy, &["--mirror"]).expect_code(2);
        assert!(outcome.stderr.contains("(of /c)"), "{}", outcome.stderr);
        assert!(!String::from_utf8_lossy(&outcome.stdout).contains("up to date"));
        assert_eq!(read("d/own").as_deref(), Some("c"));
    }
}

#[test]
fn deletions_wait_where_the_server_may_be_another_one() {
    let folder = tempdir().expect("a folder");
    let source = source(&folder, "source", 20, "one");
    let copy = folder.path().join("copy");
    let server = serve(&source, None, &[]);
    follow(&server.url(""), &copy, &["--mirror"]).expect_code(0);
    fs::remove_file(source.join("sub/f3")).expect("remove");
    // The same server deletes; after a restart nobody knows whether it is the same.
    wait_until("it is deleted", || {
        follow(&server.url(""), &copy, &["--mirror"]).expect_code(0);
        count(&copy) == 19
    });
    server.stop(Signal::TERM).expect_code(0);
    fs::remove_file(source.join("sub/f4")).expect("remove");
    let server = serve(&source, None, &[]);
    for _ in 0..2 {
        let outcome = follow(&server.url(""), &copy, &["--mirror", "--max-delete", "100"]).expect_code(3);
        assert!(outcome.stderr.contains("--adopt") && count(&copy) == 19, "{}", outcome.stderr);
    }
    follow(&server.url(""), &copy, &["--mirror", "--adopt"]).expect_code(0);
    assert_eq!(count(&copy), 18);
    follow(&server.url(""), &copy, &["--mirror"]).expect_code(0);
}

#[test]
fn what_a_run_without_mirror_left_is_deleted_by_the_next_one_with_it() {
    let folder = tempdir().expect("a folder");
    let source = source(&folder, "source", 10, "one");
    let copy = folder.path().join("copy");
    let server = serve(&source, Some(&folder.path().join("state")), &[]);
    follow(&server.url(""), &copy, &["--mirror"]).expect_code(0);
    (0..3).for_each(|n| fs::remove_file(source.join(format!("sub/f{n}"))).expect("remove"));
    wait_until("the deletions are held", || {
        follow(&server.url(""), &copy, &["--mirror", "--max-delete", "1"]).status.code() == Some(3)
    });
    let outcome = follow(&server.url(""), &copy, &[]).expect_code(0);
    let printed = String::from_utf8_lossy(&outcome.stdout);
    assert!(printed.contains("- sub/f0 (stays without --mirror)\n") && count(&copy) == 10, "{printed}");
    // Also one that received the full state.
    let outcome = follow(&server.url(""), &copy, &["--mirror", "--max-delete", "1"]).expect_code(3);
    assert!(outcome.stderr.contains("3 deletions are held") && count(&copy) == 10, "{}", outcome.stderr);
    follow(&server.url(""), &copy, &[]).expect_code(0);
    follow(&server.url(""), &copy, &["--mirror"]).expect_code(0);
    assert_eq!(count(&copy), 7);
}

#[test]
fn relays_pass_the_number_of_the_first_server_on() {
    let folder = tempdir().expect("a folder");
    let (one, other) = (source(&folder, "one", 4, "one"), source(&folder, "other", 2, "other"));
    let at = |name: &str| folder.path().join(name);
    let first = serve(&one, Some(&at("state-1")), &[]);
    let second = serve(&other, Some(&at("state-2")), &[]);
    let relay = |name: &str, url: &str| {
        let socket = format!("ipc://{}", at(&format!("{name}.sock")).display());
        let mut command = tow(["follow", url, "--mirror", "--serve", &socket]);
        let process = Process::start(command.arg(at(name)));
        wait_until("the relay serves", || at(&format!("{name}.sock")).exists());
        (process, format!("{socket}:/"))
    };
    let (_first_relay, through_first) = relay("relay-1", &first.url(""));
    let (_second_relay, through_second) = relay("relay-2", &second.url(""));
    let copy = at("copy");
    follow(&through_first, &copy, &["--mirror"]).expect_code(0);
    follow(&first.url(""), &copy, &["--mirror"]).expect_code(0);
    follow(&through_second, &copy, &["--mirror"]).expect_code(2);
    assert_eq!(count(&copy), 4);
}
