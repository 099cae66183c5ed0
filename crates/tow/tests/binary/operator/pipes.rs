//! Standard output and standard error that are closed, broken or not read cause no panic.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::broker::{Broker, call, work};
use crate::support::process::{Outcome, Process, Server, get_command, run, tow};
use crate::support::tree::random_file;
use crate::support::wait_until;

/// Runs a command with a broken pipe as standard output or error; returns its exit status and the other output.
fn with_broken(command: &mut Command, output: bool, error: bool) -> (Option<i32>, String) {
    let broken = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Stdio::from(writer)
    };
    command.stdout(if output { broken() } else { Stdio::piped() });
    command.stderr(if error { broken() } else { Stdio::piped() });
    let outcome = command.output().expect("start the process");
    let said = [outcome.stdout, outcome.stderr].concat();
    (outcome.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a command with outputs closed by a shell.
fn with_closed(command: &Command, closed: &str) -> Outcome {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {closed}"));
    run(shell.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null()))
}

#[test]
fn broken_standard_output_is_no_failure() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1 << 20, 1);
    let server = Server::start(folder.path());
    let broker = Broker::start();
    let _worker = work(&[&broker], &["echo", "--echo"]);
    let copies = tempdir().expect("a folder");
    let copy = copies.path().join("a");
    for mut command in [
        get_command(&server.url("a"), &copy),
        tow(["get", &server.url("a"), "-"]),
        tow(["ls", &server.url("")]),
        tow(["ls", "--json", &server.url("")]),
        call(&[&broker], &["echo", "hello"]),
        call(&[&broker], &["echo", "--count", "10"]),
        call(&[&broker], &["echo", "--count", "10", "--json"]),
        tow(["demo", "--size", "1M", "--requests", "10"]),
    ] {
        let (code, said) = with_broken(&mut command, true, false);
        assert_eq!(code, Some(0), "{command:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{command:?}: {said}");
    }
    // Why there is nothing to print is more important.
    let (code, said) = with_broken(&mut get_command(&server.url("missing"), &copy), true, false);
    assert_eq!(code, Some(4), "{said}");
    // The fetched file is the same.
    assert!(copy.exists());
}

#[test]
fn broken_standard_error_changes_nothing() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1 << 20, 1);
    let server = Server::start(folder.path());
    let broker = Broker::start();
    let _worker = work(&[&broker], &["echo", "--echo"]);
    let copies = tempdir().expect("a folder");
    for (mut command, expected) in [
        (get_command(&server.url("a"), &copies.path().join("a")), 0),
        (get_command(&server.url("missing"), &copies.path().join("b")), 4),
        (tow(["get", &server.url("a"), "-", "--json"]), 0),
        (tow(["ls", &server.url("missing")]), 4),
        (call(&[&broker], &["echo", "hello", "--json"]), 0),
        (call(&[&broker], &["echo", "--count", "10", "--size", "1"]), 0),
        (call(&[&broker], &["echo", "--count", "10", "--timeout", "-1"]), 2),
        (tow(["get"]), 2),
    ] {
        let (code, said) = with_broken(&mut command, false, true);
        assert_eq!(code, Some(expected), "{command:?}: {said}");
        // A panic would end it with 101.
        let (code, _) = with_broken(&mut command, true, true);
        assert!(matches!(code, Some(0..=4)), "{command:?}: {code:?}");
    }
}

#[test]
fn closed_outputs_do_not_panic() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1 << 20, 1);
    let server = Server::start(folder.path());
    let copies = tempdir().expect("a folder");
    for (count, closed) in [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"].into_iter().enumerate() {
        let copy = copies.path().join(count.to_string());
        with_closed(&get_command(&server.url("a"), &copy), closed).expect_code(0);
        assert!(fs::read(&copy).expect("a copy") == fs::read(folder.path().join("a")).expect("the file"));
        with_closed(&tow(["ls", &server.url("")]), closed).expect_code(0);
        with_closed(&tow(["ls", &server.url("missing")]), closed).expect_code(4);
    }
}

/// head(1) reads the first lines and closes the pipe.
#[test]
fn reader_of_the_first_lines_gets_them() {
    let folder = tempdir().expect("a folder");
    let bytes = random_file(&folder.path().join("a"), 4 << 20, 1);
    // More than fits into a pipe.
    for file in 0..2000 {
        fs::write(folder.path().join(format!("{file:0100}")), b"").expect("write");
    }
    let server = Server::start(folder.path());
    for (arguments, first) in
        [(["get", &server.url("a"), "-"], Some(&bytes[..10])), (["ls", &server.url(""), "--json"], None)]
    {
        let mut child =
            tow(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the process");
        let (mut output, mut begin) = (child.stdout.take().expect("piped"), [0; 10]);
        output.read_exact(&mut begin).expect("the beginning");
        drop(output);
        assert!(first.is_none_or(|first| first == begin));
        let outcome = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(0), "{said}");
        assert_eq!(said, "");
    }
}

/// An interrupted command doesn't wait for its reader.
#[test]
fn unread_output_does_not_block_an_interrupted_client() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 4 << 20, 1);
    for file in 0..2000 {
        fs::write(folder.path().join(format!("{file:0100}")), b"").expect("write");
    }
    let server = Server::start(folder.path());
    let broker = Broker::start();
    let _worker = work(&[&broker], &["echo", "--echo"]);
    let mut calling = call(&[&broker], &["echo"]);
    calling.stdin(fs::File::open(folder.path().join("a")).expect("the file"));
    for mut command in [tow(["get", &server.url("a"), "-"]), tow(["ls", &server.url(""), "--json"]), calling] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut client = Process::with_output(&mut command, writer.try_clone().expect("the same pipe").into());
        wait_until("the pipe is full", || {
            assert!(!client.ended(), "{}", client.log());
            let mut takes = [PollFd::new(&writer, PollFlags::OUT)];
            poll(&mut takes, Some(&Timespec::default())).expect("poll") == 0
        });
        client.signal(Signal::INT);
        let outcome = client.finish().expect_signal(Signal::INT);
        assert!(outcome.stderr.ends_with(": interrupted\n"), "{}", outcome.stderr);
        drop(reader);
    }
}

/// An interrupted command doesn't wait for its writer.
#[test]
fn open_input_does_not_block_an_interrupted_client() {
    let broker = Broker::start();
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let mut client =
        Process::start(call(&[&broker], &["echo", "--json"]).stdin(reader.try_clone().expect("the same pipe")));
    // It has started once it has read this.
    writer.write_all(b"the beginning").expect("write");
    wait_until("the pipe is read", || {
        assert!(!client.ended(), "{}", client.log());
        let mut gives = [PollFd::new(&reader, PollFlags::IN)];
        poll(&mut gives, Some(&Timespec::default())).expect("poll") == 0
    });
    client.signal(Signal::INT);
    let outcome = client.finish().expect_signal(Signal::INT);
    let (summary, said) = outcome.stderr.split_once('\n').expect("two lines");
    let summary: serde_json::Value = serde_json::from_str(summary).expect("JSON");
    assert_eq!((&summary["error"], said), (&"interrupted".into(), "tow: interrupted\n"));
}
