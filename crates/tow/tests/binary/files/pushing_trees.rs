//! `tow push` of directories and of standard input.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::tempdir;

use super::pushing::Taking;
use crate::support::process::{Outcome, Process, run, tow};
use crate::support::proxy::Proxy;
use crate::support::random::Random;
use crate::support::tree::{mixed, write};
use crate::support::wait_until;

/// All files below a directory, with what they have.
fn contents(root: &Path) -> BTreeMap<PathBuf, (u32, blake3::Hash)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("read") {
            let path = entry.expect("read").path();
            let stat = path.symlink_metadata().expect("stat");
            if stat.is_dir() {
                dirs.push(path);
            } else if stat.is_file() {
                let relative = path.strip_prefix(root).expect("below").to_owned();
                let hash = blake3::hash(&fs::read(&path).expect("read"));
                found.insert(relative, (stat.permissions().mode() & 0o777, hash));
            }
        }
    }
    found
}

fn events(outcome: &Outcome) -> Vec<Value> {
    let lines = outcome.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

fn push(words: &[&str], options: &[&str]) -> Outcome {
    run(tow(["push"]).args(words).args(options))
}

#[test]
fn directory_is_pushed_with_what_is_below_it() {
    let taking = Taking::start(&[]);
    let tree = taking.folder.path().join("tree");
    mixed(&tree, 60, 3);
    fs::set_permissions(tree.join("large/0.bin"), fs::Permissions::from_mode(0o640)).expect("chmod");
    let local = tree.to_str().expect("UTF-8");
    let outcome = push(&[local, &taking.server().url("in/")], &["--json"]).expect_code(0);
    assert_eq!(events(&outcome).len(), 63);
    assert_eq!(contents(&tree), contents(&taking.path("in/tree")));
    // Under another name, from the directory itself.
    let command = &mut tow(["push", ".", &taking.server().url("in/other")]);
    run(command.current_dir(&tree)).expect_code(0);
    assert_eq!(contents(&tree), contents(&taking.path("in/other")));
    // What is there isn't sent again; what changed is.
    write(&tree.join("folder 1/new"), b"new");
    let again = push(&[local, &taking.server().url("in/")], &["--json"]).expect_code(0);
    assert_eq!(events(&again).iter().filter(|event| event["same"] == false).count(), 1);
    assert_eq!(contents(&tree), contents(&taking.path("in/tree")));
    // Beside a file; and what goes to the server isn't here any more.
    let file = taking.folder.path().join("file");
    write(&file, b"file");
    let file = file.to_str().expect("UTF-8");
    let before = contents(&tree);
    push(&[local, file, &taking.server().url("in/both")], &["--remove-source"]).expect_code(0);
    assert_eq!(before, contents(&taking.path("in/both/tree")));
    assert_eq!((contents(&tree).len(), fs::read(taking.path("in/both/file")).expect("read")), (0, b"file".to_vec()));
}

#[test]
fn patterns_choose_and_what_is_no_file_is_left_out() {
    let taking = Taking::start(&[]);
    let tree = taking.folder.path().join("tree");
    for name in ["a.c", "a.o", "d/b.c", "d/b.o", "cache/c.c", "keep.o", ".tow-0123456789abcdef.part"] {
        write(&tree.join(name), name.as_bytes());
    }
    let local = tree.to_str().expect("UTF-8");
    let options = ["--include", "keep.o", "--exclude", "*.o", "--exclude", "/cache/"];
    push(&[local, &taking.server().url("in/1")], &options).expect_code(0);
    let names =
        |of: &str| contents(&taking.path(of)).into_keys().map(|path| path.display().to_string()).collect::<Vec<_>>();
    assert_eq!(names("in/1"), ["a.c", "d/b.c", "keep.o"]);
    push(&[local, &taking.server().url("in/2")], &["--include", "*.c"]).expect_code(0);
    assert_eq!(names("in/2"), ["a.c", "cache/c.c", "d/b.c"]);
    let wrong = push(&[local, &taking.server().url("in/3")], &["--exclude", "[z-a]"]).expect_code(2);
    assert!(wrong.stderr.contains("[z-a]"), "{}", wrong.stderr);

    // An empty directory is said, and is no failure.
    fs::create_dir(tree.join("empty")).expect("mkdir");
    let outcome = push(&[local, &taking.server().url("in/4")], &[]).expect_code(0);
    assert!(outcome.stderr.contains("an empty directory is left out"), "{}", outcome.stderr);
    // A link is; its target may be anywhere.
    symlink("/etc/passwd", tree.join("link")).expect("symlink");
    symlink("d", tree.join("to-dir")).expect("symlink");
    let outcome = push(&[local, &taking.server().url("in/4")], &["--json"]).expect_code(1);
    let failed: Vec<_> = events(&outcome).into_iter().filter(|event| event["event"] == "failed").collect();
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(failed[0]["reason"].as_str().is_some_and(|reason| reason.contains("a symbolic link")), "{failed:?}");
    assert_eq!(names("in/4").len(), 6);
    push(&[local, &taking.server().url("in/4")], &["--exclude", "/link", "--exclude", "to-dir"]).expect_code(0);
}

#[test]
fn status_says_why_nothing_was_pushed() {
    let taking = Taking::start(&[]);
    let tree = taking.folder.path().join("tree");
    for name in ["a", "b", "c"] {
        write(&tree.join(name), name.as_bytes());
    }
    let local = tree.to_str().expect("UTF-8");
    // All of it is refused for the same reason.
    push(&[local, &taking.server().url("elsewhere/")], &[]).expect_code(5);
    push(&[local, &taking.server().url("in/x")], &[]).expect_code(0);
    push(&[local, &taking.server().url("in/x")], &["--if-absent"]).expect_code(0);
    write(&tree.join("a"), b"changed");
    // One of several.
    push(&[local, &taking.server().url("in/x")], &["--if-absent"]).expect_code(1);
    push(&["missing", &taking.server().url("in/")], &[]).expect_code(1);
    let url = format!("ipc://{}:/in/x", taking.folder.path().join("nobody").display());
    push(&[local, &url], &["--connect-timeout", "100ms"]).expect_code(6);
    let twice = push(&[local, local, &taking.server().url("in/")], &[]).expect_code(2);
    assert!(twice.stderr.contains("two of the files"), "{}", twice.stderr);
}

#[test]
fn tree_goes_on_after_the_client_and_the_server_are_killed() {
    let mut taking = Taking::start(&[]);
    let tree = taking.folder.path().join("tree");
    mixed(&tree, 40, 4);
    let proxy = Proxy::start(taking.port);
    proxy.slow_down(8 << 20);
    let command = || {
        let mut command = tow(["push", tree.to_str().expect("UTF-8"), &proxy.url("in/tree"), "--json"]);
        command.args(["--timeout", "30s"]);
        command
    };
    let mut pushing = Process::start(&mut command());
    wait_until("some of it is in place", || taking.path("in/tree/large/0.bin").exists() || pushing.ended());
    pushing.signal(Signal::KILL);
    pushing.finish();
    let mut pushing = Process::start(&mut command());
    wait_until("more of it is in place", || taking.path("in/tree/large/1.bin").exists() || pushing.ended());
    taking.stop();
    taking.serve();
    let outcome = pushing.finish().expect_code(0);
    assert!(events(&outcome).iter().any(|event| event["same"] == true), "nothing was there");
    assert_eq!(contents(&tree), contents(&taking.path("in/tree")));
    assert_eq!(taking.leftovers(), Vec::<PathBuf>::new());
}

/// A push of standard input, whose other end is given.
fn from_pipe(url: &str, spool: &Path) -> (Child, std::process::ChildStdin) {
    let mut command = tow(["push", "-", url, "--json"]);
    command.env("TMPDIR", spool).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start");
    let stdin = child.stdin.take().expect("piped");
    (child, stdin)
}

#[test]
fn standard_input_is_pushed_as_a_whole() {
    let mut taking = Taking::start(&[]);
    let spool = tempdir().expect("a folder");
    for (name, size) in [("empty", 0), ("small", 5), ("large", (12 << 20) + 7)] {
        let bytes = Random::new(size as u64).bytes(size);
        let proxy = Proxy::start(taking.port);
        proxy.slow_down(16 << 20);
        let (child, mut stdin) = from_pipe(&proxy.url(&format!("in/{name}")), spool.path());
        stdin.write_all(&bytes).expect("write");
        drop(stdin);
        if name == "large" {
            let blocks = |path: &PathBuf| path.metadata().map_or(0, |of| of.blocks());
            let is_begun = || taking.leftovers().iter().any(|path| blocks(path) > (4 << 20) / 512);
            wait_until("some of it has arrived", || is_begun() || taking.path("in/large").exists());
            taking.stop();
            taking.serve();
        }
        let output = child.wait_with_output().expect("wait");
        assert!(output.status.success(), "{output:?}");
        let last = output.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).expect("a line");
        let pushed: Value = serde_json::from_slice(last).expect("JSON");
        assert_eq!((&pushed["file"], &pushed["size"]), (&"-".into(), &size.into()), "{pushed}");
        let resumed = pushed["resumed_bytes"].as_u64();
        assert!(resumed.is_some_and(|bytes| (bytes >= 1 << 20) == (name == "large")), "{pushed}");
        assert!(fs::read(taking.path("in").join(name)).expect("read") == bytes, "{name}");
    }
    assert_eq!(taking.path("in/small").metadata().expect("stat").permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(spool.path()).expect("read").count(), 0);
    for words in [["-", "in/"], ["-", ""]] {
        let outcome = push(&[words[0], &taking.server().url(words[1])], &[]).expect_code(2);
        assert!(outcome.stderr.contains("name the file"), "{}", outcome.stderr);
    }
    push(&["-", &taking.server().url("in/x")], &["--remove-source"]).expect_code(2);
}

#[test]
fn standard_input_that_can_not_be_pushed_is_not_read_to_its_end() {
    let spool = tempdir().expect("a folder");
    // Nobody is there, and the input doesn't end.
    let (child, stdin) = from_pipe(&format!("ipc://{}:/in/x", spool.path().join("nobody").display()), spool.path());
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    drop(stdin);
    // A signal ends it, and nothing is left.
    let taking = Taking::start(&[]);
    let (mut child, mut stdin) = from_pipe(&taking.server().url("in/x"), spool.path());
    stdin.write_all(&[7; 3 << 20]).expect("write");
    kill_process(Pid::from_child(&child), Signal::INT).expect("signal");
    let status = child.wait().expect("wait");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::INT.as_raw()));
    assert!(!taking.path("in/x").exists());
    assert_eq!(fs::read_dir(spool.path()).expect("read").count(), 0);
    // Without a place for it, it says so.
    let mut command: Command = tow(["push", "-", &taking.server().url("in/x")]);
    let outcome = run(command.env("TMPDIR", spool.path().join("missing"))).expect_code(1);
    assert!(outcome.stderr.contains("missing: cannot keep what is read"), "{}", outcome.stderr);
}
