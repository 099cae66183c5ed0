//! `tow serve` of a bucket, whose store is one of ours that fails on command; and of real ones.

#![allow(clippy::unwrap_used)]

mod killed_stores;
mod push;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../cell/s3.rs"]
mod s3;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../../../objects/tests/store/server.rs"]
mod server;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../binary/support/mod.rs"]
mod support;
mod torture;

use rustix::process::Signal;
use s3::{BUCKET, KEY, S3, SECRET};
use serde_json::Value;
use server::{Fault, Store};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use support::process::{Process, Server, get, get_command, run, tow};
use support::tree::{assert_same, random_file, write};
use support::wait_until;
use tempfile::TempDir;

const PIECE: usize = 8 << 20;

/// A command that serves the prefix `tree` of a bucket.
fn serve(store: &Store, cache: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = tow(["serve", "s3://data/tree", "--bind", "tcp://127.0.0.1:0", "--s3-anonymous"]);
    command.args(["--s3-endpoint", &store.endpoint]).args(arguments);
    if let Some(cache) = cache {
        command.arg("--cache").arg(cache).args(["--cache-size", "300M"]);
    }
    command
}

/// A tree, on the disk and in a store.
fn filled(folder: &Path) -> (Arc<Store>, PathBuf) {
    let (store, tree) = (Store::start(), folder.join("tree"));
    let put = |path: &str, content: Vec<u8>| {
        write(&tree.join(path), &content);
        store.put(&format!("tree/{path}"), content);
    };
    put("big", random_file(&folder.join("scratch"), 2 * PIECE + 12_345, 1));
    put("empty", Vec::new());
    for number in 0..300 {
        put(&format!("many/file-{number:03}.txt"), format!("{number}").repeat(number).into_bytes());
    }
    put("many/file/below", b"sorts before file-000.txt".to_vec());
    put("\u{e4} b+c%/x", b"x".to_vec());
    (store, tree)
}

#[test]
fn a_bucket_is_got_like_a_directory_and_each_piece_is_fetched_once() {
    let folder = TempDir::new().unwrap();
    let (store, tree) = filled(folder.path());
    let cache = folder.path().join("cache");
    let server = Server::from_command(&mut serve(
        &store,
        Some(&cache),
        &["--digest-file", folder.path().join("digests").to_str().unwrap()],
    ));
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let copy = folder.path().join(format!("copy{number}"));
            (Process::start(&mut get_command(&server.url(""), &copy)), copy)
        })
        .collect();
    for (client, copy) in clients {
        client.finish().expect_code(0);
        same_contents(&tree, &copy);
    }
    let gets = store.requests("GET").into_iter().filter(|get| get.range.is_some()).count();
    assert_eq!(gets, 3 + 301, "a request for each piece");
    // By the rest of what was got, ranges, and after a restart.
    server.stop(Signal::TERM).expect_code(0);
    let server = Server::from_command(&mut serve(&store, Some(&cache), &[]));
    let copy = folder.path().join("again");
    get(&server.url(""), &copy).expect_code(0);
    same_contents(&tree, &copy);
    let summary = get(&server.url(""), &copy).expect_code(0).summary();
    assert_eq!(summary["skipped"], 304, "{summary}");
    assert_eq!(store.requests("GET").into_iter().filter(|get| get.range.is_some()).count(), gets);
    assert!(server.resident_kib() < 64 << 10, "{} KiB", server.resident_kib());
}

/// Compares trees without the times of directories, which a bucket doesn't have.
fn same_contents(left: &Path, right: &Path) {
    for tree in [left, right] {
        let mut dirs = vec![tree.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let there = std::fs::File::options().write(true).open(&path).unwrap();
                    there.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
                }
            }
            std::fs::File::open(&dir).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
    }
    assert_same(left, right);
}

#[test]
fn what_fails_has_clear_words_and_nothing_wrong_is_installed() {
    let folder = TempDir::new().unwrap();
    let (store, _) = filled(folder.path());
    let fails = |code: &'static str, status| {
        store.fail(move |_| Some(Fault::Status(status, code)));
        let outcome = run(&mut serve(&store, None, &[]));
        (outcome.status.code().unwrap(), outcome.stderr)
    };
    for (status, code, exit, words) in [
        (404, "NoSuchBucket", 4, "there is no such bucket"),
        (403, "AccessDenied", 5, "access denied"),
        (400, "ExpiredToken", 5, "the credentials have expired"),
    ] {
        let (ended, log) = fails(code, status);
        assert!(ended == exit && log.contains(words), "{code}: {ended} {log}");
    }
    store.fail(|_| None);
    let server = Server::from_command(&mut serve(&store, Some(&folder.path().join("cache")), &[]));
    // Of one object, and of all once it is begun.
    store.fail(|request| request.key.ends_with("file-007.txt").then_some(Fault::Status(403, "InvalidObjectState")));
    let copy = folder.path().join("copy");
    let outcome = get(&server.url("many"), &copy).expect_code(1);
    assert!(outcome.stderr.contains("file-007.txt") && outcome.stderr.contains("archived"), "{}", outcome.stderr);
    assert!(!copy.join("file-007.txt").exists() && copy.join("file-008.txt").exists());
    // Replaced after its first piece was read.
    let mut gets = 0;
    store.fail(move |request| {
        gets += usize::from(request.method == "GET" && request.key.ends_with("/big"));
        (gets == 2).then(|| {
            gets += 1;
            Fault::Replaced(vec![7; PIECE + 5])
        })
    });
    let copy = folder.path().join("replaced");
    get(&server.url("big"), &copy).expect_code(0);
    assert!(std::fs::read(&copy).unwrap() == vec![7; PIECE + 5]);
}

#[test]
fn a_store_that_fails_is_a_problem_until_it_works() {
    let folder = TempDir::new().unwrap();
    let (store, _) = filled(folder.path());
    let run_folder = |command: &mut Command| {
        command.env("XDG_RUNTIME_DIR", folder.path()).env_remove("RUNTIME_DIRECTORY");
    };
    let mut command = serve(&store, Some(&folder.path().join("cache")), &[]);
    run_folder(&mut command);
    let server = Server::from_command(&mut command);
    let problem = || {
        let mut status = tow(["status", "--json"]);
        run_folder(&mut status);
        let status: Value = serde_json::from_slice(&run(&mut status).expect_code(0).stdout).unwrap();
        status["problems"].as_array().unwrap().iter().find(|problem| problem["kind"] == "source_away").cloned()
    };
    let copy = folder.path().join("copy");
    store.fail(|_| Some(Fault::Status(400, "ExpiredToken")));
    get(&server.url("big"), &copy).expect_code(1);
    wait_until("it is a problem", || problem().is_some());
    let cause = problem().unwrap()["cause"].as_str().unwrap().to_owned();
    assert!(cause.contains("the credentials have expired"), "{cause}");
    // Of one object alone, as its owner may want it.
    store.fail(|request| request.key.ends_with("/big").then_some(Fault::Status(403, "AccessDenied")));
    wait_until("it works", || problem().is_none());
    get(&server.url("big"), &copy).expect_code(5);
    assert_eq!(problem(), None);
}

#[test]
fn a_bucket_is_followed() {
    let folder = TempDir::new().unwrap();
    let (store, tree) = filled(folder.path());
    // Neither keeps the others from being followed, and nobody asks for them.
    for unread in ["tree/old.archived", "tree/many/new\nline"] {
        store.put(unread, *b"x");
    }
    let state = folder.path().join("state");
    let arguments = ["--watch", "--rescan", "1s", "--state", state.to_str().unwrap()];
    let server = Server::from_command(&mut serve(&store, Some(&folder.path().join("cache")), &arguments));
    let copy = folder.path().join("copy");
    let follower = Process::start(tow(["follow", "--mirror", &server.url("")]).arg(&copy));
    let has = |path: &str, content: &[u8]| std::fs::read(copy.join(path)).is_ok_and(|there| there == content);
    wait_until("all is there", || has("many/file-299.txt", &std::fs::read(tree.join("many/file-299.txt")).unwrap()));
    wait_until("the large one is there", || has("big", &std::fs::read(tree.join("big")).unwrap()));
    let mut once = tow(["follow", "--once", &server.url("")]);
    let outcome = run(once.arg(folder.path().join("once")));
    assert!(outcome.stderr.contains("old.archived") && outcome.stderr.contains("many"), "{}", outcome.stderr);
    assert!(!copy.join("old.archived").exists());
    let asked: Vec<_> = store.requests("GET").into_iter().map(|request| request.key).collect();
    assert!(!asked.iter().any(|key| key == "tree/old.archived"), "{asked:?}");
    store.put("tree/new", *b"new");
    store.put("tree/empty", *b"not any more");
    wait_until("changes are there", || has("new", b"new") && has("empty", b"not any more"));
    drop(follower);
}

#[test]
fn other_options_need_a_bucket_or_a_directory() {
    let folder = TempDir::new().unwrap();
    let (store, _) = filled(folder.path());
    let outcome = run(tow(["serve", "--cache", "x"]).arg(folder.path()));
    assert!(
        outcome.status.code() == Some(2) && outcome.stderr.contains("is for what comes from elsewhere"),
        "{}",
        outcome.stderr
    );
    let outcome = run(&mut serve(&store, None, &["--accept-push", "."]));
    assert!(outcome.status.code() == Some(2) && outcome.stderr.contains("takes --cache"), "{}", outcome.stderr);
    for limit in ["--push-max-bytes", "--push-max-files"] {
        let arguments = ["--accept-push", ".", limit, "1000"];
        let outcome = run(&mut serve(&store, Some(&folder.path().join("cache")), &arguments));
        assert!(outcome.status.code() == Some(2) && outcome.stderr.contains("isn't counted"), "{}", outcome.stderr);
    }
    let outcome = run(tow(["serve", "s3://b/../x"]).arg("--s3-anonymous"));
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
}

#[test]
fn a_real_store_is_served_with_credentials() {
    for store in S3::each() {
        let folder = TempDir::new().unwrap();
        let tree = folder.path().join("tree");
        random_file(&tree.join("big"), PIECE + 99, 3);
        write(&tree.join("a/small"), b"small");
        for name in ["big", "a/small"] {
            store.put(&format!("tree/{name}"), &std::fs::read(tree.join(name)).unwrap());
        }
        // As a profile has them.
        let profile = format!("[profile test]\nregion = us-east-1\nendpoint_url = {}\n", store.endpoint());
        write(&folder.path().join("aws/config"), profile.as_bytes());
        let keys = |secret: &str| format!("[test]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n");
        let serve = |secret: &str| {
            write(&folder.path().join("aws/credentials"), keys(secret).as_bytes());
            let mut command = tow(["serve", &format!("s3://{BUCKET}/tree"), "--bind", "tcp://127.0.0.1:0"]);
            command.env("AWS_CONFIG_FILE", folder.path().join("aws/config")).env("AWS_PROFILE", "test");
            command.env("AWS_SHARED_CREDENTIALS_FILE", folder.path().join("aws/credentials"));
            command
        };
        let outcome = run(&mut serve("wrong-secret"));
        assert!(outcome.status.code() == Some(5) && outcome.stderr.contains("access denied"), "{}", outcome.stderr);
        let server = Server::from_command(serve(SECRET).arg("--cache").arg(folder.path().join("cache")));
        let copy = folder.path().join("copy");
        get(&server.url(""), &copy).expect_code(0);
        same_contents(&tree, &copy);
        let listed = run(&mut tow(["ls", "--json", &server.url("")])).expect_code(0).stdout;
        let listed = String::from_utf8(listed).unwrap();
        let entries: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(entries.iter().any(|entry| entry["path"] == "big"), "{listed}");
    }
}
