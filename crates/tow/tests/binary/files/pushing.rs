//! `tow push` and `tow serve --accept-push`: files that clients send, whole or not at all, through faults of either side.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::files::destination::with_small_disk;
use crate::security::keys::Keys;
use crate::support::process::{Outcome, Process, Server, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{digest, random_file, write};
use crate::support::wait_until;
use crate::support::wire::{Piece, Wire, ZSTD, data_message};

/// A server that takes files below `in`.
pub struct Taking {
    pub folder: TempDir,
    options: &'static [&'static str],
    server: Option<Server>,
    pub port: u16,
}

impl Taking {
    pub fn start(options: &'static [&'static str]) -> Self {
        let folder = tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("served/in")).expect("mkdir");
        let mut taking = Self { folder, options, server: None, port: 0 };
        taking.serve();
        taking
    }

    /// Starts the server, on the port that it had.
    pub fn serve(&mut self) {
        self.server = None;
        let bind = format!("tcp://127.0.0.1:{}", self.port);
        let served = self.folder.path().join("served");
        let words = ["serve", served.to_str().expect("UTF-8"), "--bind", &bind, "--accept-push", "in"];
        let server = Server::from_command(tow(words).args(self.options));
        self.port = server.port();
        self.server = Some(server);
    }

    /// Kills the server.
    pub fn stop(&mut self) {
        self.server.take().expect("a server").kill();
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("a server")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("served").join(name)
    }

    /// A file to push.
    fn source(&self, name: &str, size: usize) -> PathBuf {
        let path = self.folder.path().join(name);
        random_file(&path, size, size as u64);
        path
    }

    fn push(&self, file: &Path, to: &str, options: &[&str]) -> Outcome {
        run(&mut self.command(file, &self.server().url(to), options))
    }

    fn command(&self, file: &Path, url: &str, options: &[&str]) -> std::process::Command {
        let mut command = tow(["push", file.to_str().expect("UTF-8"), url, "--json"]);
        command.args(options);
        command
    }

    /// Incomplete files and their states.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("in")).expect("read").map(|entry| entry.expect("read").path());
        entries
            .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".tow-")))
            .collect()
    }

    fn wire(&self) -> Wire {
        Wire::dealer(self.port)
    }
}

/// Makes files this many hours old.
fn age(paths: &[PathBuf], hours: u64) {
    for path in paths {
        let file = fs::File::options().append(true).open(path).expect("open");
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).expect("set the time");
    }
}

/// A push of these bytes, as the protocol has it.
fn offer(id: u32, path: &str, bytes: &[u8]) -> Value {
    json!({
        "op": "push", "id": id, "path": path, "size": bytes.len(), "mtime": [1_790_000_000, 0], "mode": 0o6777,
        "digest": blake3::hash(bytes).to_hex().as_str(),
    })
}

fn error(answer: &Value) -> &str {
    assert_eq!(answer["re"], "error", "{answer}");
    answer["code"].as_str().expect("a code")
}

#[test]
fn quiet_push_prints_what_failed() {
    let taking = Taking::start(&[]);
    let url = taking.server().url("in/file");
    let quiet = |file: &Path, option: &str| run(tow(["push", "--quiet", option]).arg(file).arg(&url));
    let done = quiet(&taking.source("one", 1000), "--fsync").expect_code(0);
    assert!(done.stdout.is_empty() && done.stderr.is_empty(), "{}", done.stderr);
    let failed = quiet(&taking.source("two", 2000), "--if-absent");
    assert!(failed.stdout.is_empty() && failed.stderr.contains("something is there already"), "{}", failed.stderr);
}

#[test]
fn file_is_in_place_with_its_time_and_mode() {
    let taking = Taking::start(&[]);
    for (name, size) in [("empty", 0), ("small", 1000), ("leaf", 1 << 20), ("large", (9 << 20) + 12_345)] {
        let source = taking.source(name, size);
        fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).expect("chmod");
        let pushed = taking.push(&source, &format!("in/a/{name}"), &["--fsync"]).expect_code(0).summary();
        let there = taking.path("in/a").join(name);
        assert_eq!(
            (digest(&there), pushed["digest"].as_str()),
            (digest(&source), Some(digest(&source).to_hex().as_str()))
        );
        let (of, to) = (source.metadata().expect("stat"), there.metadata().expect("stat"));
        assert_eq!((of.mtime(), of.mtime_nsec(), of.mode() & 0o777), (to.mtime(), to.mtime_nsec(), to.mode() & 0o777));
        assert_eq!((&pushed["durable"], &pushed["same"], &pushed["seq"]), (&json!(true), &json!(false), &Value::Null));
        // Once more: nothing is sent.
        assert_eq!(taking.push(&source, &format!("in/a/{name}"), &[]).expect_code(0).summary()["same"], true);
    }
    assert_eq!(fs::read_dir(taking.path("in/a")).expect("read").count(), 4);
}

#[test]
fn several_files_go_into_a_directory_and_sources_are_removed() {
    let taking = Taking::start(&[]);
    let sources: Vec<PathBuf> = (0..30).map(|number| taking.source(&format!("f{number}"), 100 + number)).collect();
    let bytes: Vec<Vec<u8>> = sources.iter().map(|path| fs::read(path).expect("read")).collect();
    let url = taking.server().url("in/all/");
    run(tow(["push"]).args(&sources).arg(&url).arg("--remove-source")).expect_code(0);
    for (source, bytes) in sources.iter().zip(bytes) {
        assert!(!source.exists());
        assert_eq!(fs::read(taking.path("in/all").join(source.file_name().expect("a name"))).expect("read"), bytes);
    }
    let source = taking.source("one", 100);
    for directory in ["in", "in/all"] {
        let outcome = run(tow(["push"]).arg(&source).arg(taking.server().url(directory))).expect_code(5);
        assert!(outcome.stderr.contains("with a / at its end"), "{}", outcome.stderr);
    }
    let pipe = taking.path("in/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("mkfifo");
    let outcome = run(tow(["push"]).arg(&source).arg(taking.server().url("in/pipe"))).expect_code(5);
    assert!(outcome.stderr.contains("a device, pipe or socket is at this path"), "{}", outcome.stderr);
    // A link isn't what was pushed.
    let link = source.with_file_name("link");
    std::os::unix::fs::symlink(&source, &link).expect("symlink");
    let outcome = run(tow(["push"]).arg(&link).arg(&url).arg("--remove-source")).expect_code(0);
    assert!(outcome.stderr.contains("it is a link"), "{}", outcome.stderr);
    assert!(source.exists() && link.exists());
}

#[test]
fn conditions_hold_until_the_file_has_its_name() {
    let taking = Taking::start(&[]);
    let (first, second) = (taking.source("first", 3 << 20), taking.source("second", 2 << 20));
    let refused = |outcome: Outcome| {
        let summary = outcome.expect_code(5).summary();
        assert_eq!((&summary["event"], &summary["error"]), (&json!("failed"), &json!("conflict")), "{summary}");
    };
    let of_first = digest(&first).to_hex();
    refused(taking.push(&second, "in/x", &["--if", of_first.as_str()]));
    taking.push(&first, "in/x", &["--if-absent"]).expect_code(0);
    let outcome = taking.push(&second, "in/x", &["--if-absent"]);
    let reason = outcome.summary()["reason"].to_string();
    assert!(reason.contains("something is there already"), "{reason}");
    refused(outcome);
    assert_eq!(digest(&taking.path("in/x")), digest(&first));
    taking.push(&second, "in/x", &["--if", of_first.as_str()]).expect_code(0);
    refused(taking.push(&first, "in/x", &["--if", of_first.as_str()]));
    assert_eq!(digest(&taking.path("in/x")), digest(&second));
    taking.push(&first, "in/x", &[]).expect_code(0);

    // What appears while it is sent counts, too.
    for (condition, appears) in [(Value::Null, true), (json!({"digest": of_first.as_str()}), false)] {
        let mut wire = taking.wire();
        let path = if appears { "in/appears" } else { "in/x" };
        let mut push = offer(1, path, b"new");
        push["if"] = condition;
        assert_eq!(wire.ask(&push)["re"], "push");
        write(&taking.path(path), b"another");
        wire.send(&data_message(1, &[Piece::of(0, 0, 0, b"new")])).expect("send");
        assert_eq!(error(&wire.control()), "conflict");
        assert_eq!(fs::read(taking.path(path)).expect("read"), b"another");
    }
    assert_eq!(taking.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn one_of_two_pushes_to_a_path_wins() {
    let taking = Taking::start(&[]);
    let (mut one, mut two) = (taking.wire(), taking.wire());
    assert_eq!(one.ask(&offer(1, "in/x", b"one"))["re"], "push");
    assert_eq!(error(&two.ask(&offer(1, "in/x", b"two"))), "conflict");
    // The same file over another connection: the first one is perhaps lost.
    assert_eq!(error(&two.ask(&offer(2, "in/x", b"one"))), "busy");
    assert_eq!(error(&one.control()), "conflict");
    wait_until("the first push is gone", || two.ask(&offer(3, "in/x", b"one"))["re"] == "push");
    two.send(&data_message(3, &[Piece::of(0, 0, 0, b"one")])).expect("send");
    assert_eq!(two.control()["re"], "pushed");
    assert_eq!(fs::read(taking.path("in/x")).expect("read"), b"one");
}

#[test]
fn nothing_gets_outside_or_gets_special_modes() {
    let taking = Taking::start(&[]);
    fs::create_dir(taking.path("beside")).expect("mkdir");
    symlink("../beside", taking.path("in/out")).expect("symlink");
    write(&taking.path("in/real"), b"real");
    symlink("real", taking.path("in/link")).expect("symlink");
    let mut wire = taking.wire();
    for (path, code) in [
        ("beside/x", "denied"),
        ("in", "denied"),
        ("", "denied"),
        ("inner", "denied"),
        ("in/../beside/x", "bad-request"),
        ("../x", "bad-request"),
        ("/etc/x", "bad-request"),
        ("in//x", "bad-request"),
        ("in/.tow-0123456789abcdef.part", "denied"),
    ] {
        assert_eq!(error(&wire.ask(&offer(1, path, b"x"))), code, "{path}");
    }
    let deep = format!("in/{}", vec!["d"; 40].join("/"));
    assert_eq!(error(&wire.ask(&offer(1, &deep, b"x"))), "denied");
    // A link is no way out, and is itself replaced.
    let answer = wire.ask(&offer(2, "in/out/x", b"x"));
    assert_eq!(error(&answer), "denied", "{answer}");
    assert!(
        !answer.to_string().contains(&*taking.path("in").to_string_lossy()),
        "where it is there is nobody's business: {answer}"
    );
    assert_eq!(wire.ask(&offer(3, "in/link", b"new"))["re"], "push");
    wire.send(&data_message(3, &[Piece::of(0, 0, 0, b"new")])).expect("send");
    assert_eq!(wire.control()["re"], "pushed");
    let metadata = taking.path("in/link").symlink_metadata().expect("stat");
    assert!(metadata.is_file() && metadata.mode() & 0o7002 == 0, "{:o}", metadata.mode());
    assert_eq!(fs::read(taking.path("in/real")).expect("read"), b"real");
    assert_eq!(fs::read_dir(taking.path("beside")).expect("read").count(), 0);
    fs::create_dir(taking.path("in/dir")).expect("mkdir");
    assert_eq!(error(&wire.ask(&offer(4, "in/dir", b"x"))), "conflict");
    // A server takes nothing unless it is asked to.
    let closed = Server::start(&taking.path(""));
    let outcome = run(&mut taking.command(&taking.source("x", 5), &closed.url("in/x"), &[])).expect_code(5);
    assert!(outcome.stdout.windows(13).any(|text| text == b"--accept-push"), "{outcome:?}");
}

#[test]
fn pushers_that_lie_are_refused() {
    let taking = Taking::start(&[]);
    let mut wire = taking.wire();
    let bytes = vec![7; 200_000];
    let lies: [(&str, &str, Vec<Vec<u8>>); 8] = [
        ("another digest", "changed", data_message(1, &[Piece::of(0, 0, 0, &vec![8; 200_000])])),
        ("not the next piece", "bad-request", data_message(1, &[Piece::of(0, 0, 1, b"x")])),
        ("past the end", "bad-request", data_message(1, &[Piece::of(0, 0, 0, &vec![7; 200_001])])),
        ("another file", "bad-request", data_message(1, &[Piece::of(1, 0, 0, b"x")])),
        ("compressed", "bad-request", data_message(1, &[Piece { length: 9, ..Piece::of(0, ZSTD, 0, b"x") }])),
        ("two pieces", "bad-request", data_message(1, &[Piece::of(0, 0, 0, b"x"), Piece::of(0, 0, 1, b"x")])),
        (
            "another length",
            "bad-request",
            data_message(1, &[Piece { body: b"xy".to_vec(), ..Piece::of(0, 0, 0, b"x") }]),
        ),
        ("no body", "bad-request", data_message(1, &[Piece::of(0, 0, 0, b"x")])[..1].to_vec()),
    ];
    for (name, code, message) in lies {
        let answer = wire.ask(&offer(1, "in/x", &bytes));
        assert_eq!(answer["re"], "push", "{name}: {answer}");
        wire.send(&message).expect("send");
        if code == "bad-request" {
            // What was on its way when it ended is dropped.
            wire.send(&data_message(1, &[Piece::of(0, 0, 0, b"late")])).expect("send");
        }
        assert_eq!(error(&wire.control()), code, "{name}");
        assert_eq!(wire.ask(&json!({"op": "hello"}))["re"], "hello", "{name}");
    }
    // More than the credit: one that never waits for any.
    let large = vec![1; 6 << 20];
    let answer = wire.ask(&offer(2, "in/y", &large));
    let chunk = answer["chunk_bytes"].as_u64().expect("a number") as usize;
    let credit = answer["credit_bytes"].as_u64().expect("a number");
    assert!(credit < 6 << 20 && chunk <= 256 << 10);
    let mut server_stopped = false;
    taking.server().signal(Signal::STOP);
    for (index, piece) in large.chunks(chunk).enumerate() {
        server_stopped |= wire.send(&data_message(2, &[Piece::of(0, 0, (index * chunk) as u64, piece)])).is_err();
        if index == 0 {
            taking.server().signal(Signal::CONT);
        }
    }
    assert!(!server_stopped);
    let mut answer = wire.control();
    while answer["re"] == "credit" {
        answer = wire.control();
    }
    // Depending on the moment it was written as fast as it came.
    assert!(answer["re"] == "pushed" || error(&answer) == "bad-request", "{answer}");
    assert!(!taking.path("in/x").exists());
    // A push that is too large is refused before anything is sent; a push that can't be is no push.
    for wrong in [json!({"size": 1_u64 << 63}), json!({"digest": "00"}), json!({"mode": 65536}), json!({"if": 7})] {
        let mut push = offer(3, "in/z", b"z");
        push.as_object_mut().expect("an object").extend(wrong.as_object().expect("an object").clone());
        assert_eq!(error(&wire.ask(&push)), "bad-request", "{wrong}");
    }
    let mut huge = offer(4, "in/z", b"z");
    huge["size"] = json!(1_u64 << 60);
    assert_eq!(error(&wire.ask(&huge)), "full");
    assert_eq!(wire.ask(&json!({"op": "hello"}))["features"].as_array().expect("a list").last(), Some(&json!("push")));
}

#[test]
fn client_has_a_limited_number_of_pushes() {
    let taking = Taking::start(&[]);
    let mut wire = taking.wire();
    for id in 0..1024 {
        assert_eq!(wire.ask(&offer(id, &format!("in/{id}"), b"x"))["re"], "push");
    }
    assert_eq!(error(&wire.ask(&offer(1024, "in/1024", b"x"))), "busy");
    assert_eq!(wire.ask(&json!({"op": "cancel", "id": 3}))["re"], "cancelled");
    assert_eq!(wire.ask(&offer(1025, "in/1025", b"x"))["re"], "push");
    // Those of a connection that ends go with it.
    drop(wire);
    let mut wire = taking.wire();
    wait_until("the path is free", || wire.ask(&offer(0, "in/0", b"y"))["re"] == "push");
}

#[test]
fn quota_refuses_and_loses_nothing() {
    let taking = Taking::start(&["--push-max-bytes", "3M", "--push-max-files", "3"]);
    let (old, large) = (taking.source("old", 2 << 20), taking.source("large", (1 << 20) + 1));
    taking.push(&old, "in/old", &[]).expect_code(0);
    let refused = taking.push(&large, "in/large", &[]).expect_code(5).summary();
    assert_eq!(refused["error"], "full");
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("--push-max-bytes")), "{refused}");
    let small = taking.source("small", 10);
    taking.push(&small, "in/a/b", &[]).expect_code(0);
    let refused = taking.push(&small, "in/c", &[]).expect_code(5).summary();
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("--push-max-files")), "{refused}");
    assert_eq!(digest(&taking.path("in/old")), digest(&old));
    // What is there may be replaced.
    taking.push(&large, "in/a/b", &[]).expect_code(5);
    taking.push(&taking.source("other", 11), "in/a/b", &[]).expect_code(0);
}

#[test]
fn push_goes_on_after_the_server_or_the_client_is_killed() {
    let mut taking = Taking::start(&[]);
    let source = taking.source("source", 24 << 20);
    let received = |taking: &Taking| {
        taking.leftovers().iter().filter_map(|path| path.metadata().ok()).map(|of| of.blocks()).sum::<u64>()
    };
    for round in 0..3 {
        let proxy = Proxy::start(taking.port);
        proxy.slow_down(16 << 20);
        let mut pushing = Process::start(&mut taking.command(&source, &proxy.url("in/x"), &[]));
        let before = received(&taking);
        wait_until("some of it has arrived", || received(&taking) > before + (4 << 20) / 512 || pushing.ended());
        if round % 2 == 0 {
            pushing.signal(Signal::KILL);
        } else {
            taking.server.take().expect("a server").kill();
            pushing.signal(Signal::KILL);
            taking.serve();
        }
        pushing.finish();
    }
    // And with a client that lives on.
    let proxy = Proxy::start(taking.port);
    proxy.slow_down(16 << 20);
    let pushing = Process::start(&mut taking.command(&source, &proxy.url("in/x"), &[]));
    let before = received(&taking);
    wait_until("some of it has arrived", || received(&taking) > before + 1024 || taking.path("in/x").exists());
    taking.server.take().expect("a server").kill();
    taking.serve();
    let outcome = pushing.finish().expect_code(0);
    let last: Value = serde_json::from_slice(
        outcome.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).expect("a line"),
    )
    .expect("JSON");
    assert!(last["resumed_bytes"].as_u64().is_some_and(|bytes| bytes >= 4 << 20), "{last}");
    assert_eq!(digest(&taking.path("in/x")), digest(&source));
    assert_eq!(taking.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn pushed_file_is_published_with_its_number() {
    let taking = Taking::start(&["--watch", "--settle", "200ms"]);
    let copy = taking.folder.path().join("copy");
    let url = taking.server().url("");
    let follower = Process::start(&mut tow(["follow", &url, copy.to_str().expect("UTF-8"), "--json"]));
    wait_until("it is up to date", || follower.output().contains("up-to-date"));
    let source = taking.source("source", 2 << 20);
    let pushed = taking.push(&source, "in/x", &[]).expect_code(0).summary();
    let seq = pushed["seq"].as_u64().expect("a number");
    wait_until("it is followed", || copy.join("in/x").exists());
    assert_eq!(digest(&copy.join("in/x")), digest(&source));
    let reported = |output: String| {
        let events = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect::<Vec<_>>();
        events.into_iter().find(|event| event["path"] == "in/x")
    };
    wait_until("it is reported", || reported(follower.output()).is_some());
    assert_eq!(reported(follower.output()).expect("an event")["seq"], seq);
    // The same once more has the same number.
    let again = taking.push(&source, "in/x", &[]).expect_code(0).summary();
    assert_eq!((&again["seq"], &again["same"]), (&json!(seq), &json!(true)));
}

#[test]
fn incomplete_files_are_removed_after_a_day() {
    let mut taking = Taking::start(&[]);
    let mut wire = taking.wire();
    let bytes = vec![7; 3 << 20];
    let chunk = wire.ask(&offer(1, "in/x", &bytes))["chunk_bytes"].as_u64().expect("a number") as usize;
    for at in (0..2 << 20).step_by(chunk) {
        wire.send(&data_message(1, &[Piece::of(0, 0, at as u64, &bytes[at..at + chunk])])).expect("send");
    }
    wait_until("some of it is there", || taking.leftovers().len() == 2);
    drop(wire);
    taking.server.take().expect("a server").kill();
    write(&taking.path("in/.tow-0123456789abcdef.follow"), b"something else");
    age(&taking.leftovers(), 23);
    taking.serve();
    assert_eq!(taking.push(&taking.source("y", 5), "in/y", &[]).expect_code(0).summary()["event"], "pushed");
    assert_eq!(taking.leftovers().len(), 3);
    taking.server = None;
    age(&taking.leftovers(), 25);
    taking.serve();
    wait_until("they are removed", || taking.leftovers().len() == 1);
}

#[test]
fn full_disk_of_the_server_refuses_and_loses_nothing() {
    let folder = tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(path("mount")).expect("mkdir");
    for (name, size) in [("old", 1 << 20), ("large", 12 << 20), ("one", 5 << 20), ("two", (5 << 20) + 1)] {
        random_file(&folder.path().join(name), size, size as u64);
    }
    let push = |name: &str| format!("\"$TOW\" push '{}' \"$at/{name}\" --json", path(name));
    // What is too large is refused before it is sent; of two that fit alone, at least one when the disk is full.
    let script = format!(
        "at=\"ipc://$1.sock:/in\"; mkdir \"$1/in\"; \"$TOW\" serve \"$1\" --accept-push in --bind \"ipc://$1.sock\" > \"$1.out\" & server=$!; \
         until grep -q serving \"$1.out\"; do sleep 0.05; done; \
         {old} || exit 70; {large}; [ $? = 5 ] || exit 71; {one} & one=$!; {two}; two=$?; wait $one; one=$?; \
         [ $one = 5 ] || [ $two = 5 ] || exit 72; cmp '{path}' \"$1/in/old\" || exit 73; [ ! -e \"$1/in/large\" ] || exit 74; \
         kill $server; wait $server; exit 0",
        old = push("old"),
        large = push("large"),
        one = push("one"),
        two = push("two"),
        path = path("old"),
    );
    let Some(outcome) = with_small_disk(&folder.path().join("mount"), 8, &script) else { return };
    let outcome = outcome.expect_code(0);
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let failed = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let failed: Vec<Value> = failed.filter(|event| event["event"] == "failed").collect();
    assert!(failed.len() >= 2 && failed.iter().all(|event| event["error"] == "full"), "{said}");
}

#[test]
fn interrupted_push_ends_by_the_signal_and_is_resumed() {
    let taking = Taking::start(&[]);
    let source = taking.source("source", 8 << 20);
    let proxy = Proxy::start(taking.port);
    proxy.slow_down(4 << 20);
    let pushing = Process::start(&mut taking.command(&source, &proxy.url("in/x"), &[]));
    let has_some =
        || taking.leftovers().iter().any(|path| path.metadata().is_ok_and(|of| of.blocks() > (2 << 20) / 512));
    wait_until("some of it has arrived", has_some);
    pushing.signal(Signal::INT);
    let outcome = pushing.finish().expect_signal(Signal::INT);
    assert!(outcome.stderr.contains("run the same command again"), "{}", outcome.stderr);
    let pushed = taking.push(&source, "in/x", &[]).expect_code(0).summary();
    assert!(pushed["resumed_bytes"].as_u64().is_some_and(|bytes| bytes >= 1 << 20), "{pushed}");
    assert_eq!(digest(&taking.path("in/x")), digest(&source));
}

/// Hashing takes minutes: that nobody is there is said before.
#[test]
fn missing_server_is_reported_while_the_file_is_hashed() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("source");
    fs::File::create(&source).expect("create").set_len(1 << 40).expect("set the length");
    let url = format!("ipc://{}:/in/x", folder.path().join("nobody").display());
    let words = ["push", source.to_str().expect("UTF-8"), &url, "--connect-timeout", "100ms"];
    run(&mut tow(words)).expect_code(6);
}

#[test]
fn push_goes_encrypted() {
    let keys = Keys::new();
    let folder = tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("served/in")).expect("mkdir");
    let served = folder.path().join("served").display().to_string();
    let words = ["serve", &served, "--bind", "tcp://127.0.0.1:0", "--accept-push", "in"];
    let server = Server::from_command(tow(words).args(keys.server()));
    let source = folder.path().join("source");
    random_file(&source, (3 << 20) + 7, 1);
    let push = |client: &str| {
        let url = server.url("in/x");
        run(tow(["push", source.to_str().expect("UTF-8"), &url]).args(keys.client(client)))
    };
    push("eve").expect_code(5);
    push("alice").expect_code(0);
    assert_eq!(digest(&folder.path().join("served/in/x")), digest(&source));
}
