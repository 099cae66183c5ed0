//! `tow get` into buckets of real S3 servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::s3::{BUCKET, S3, credentials};
use crate::support::process::{Outcome, Process, Server, run, tow};
use crate::support::proxy::Proxy;
use crate::support::wait_until;

/// Bytes of three parts, the last of them short.
const LARGE: usize = (16 << 20) + 4321;

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 4096) as u8).collect()
}

fn write(top: &Path, path: &str, content: &[u8]) {
    let path = top.join(path);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    std::fs::write(path, content).expect("write");
}

fn get(server: &Server, path: &str, to: &str, options: &[&str]) -> Command {
    let mut command = tow(["get", "--json"]);
    command.args(options).arg(server.url(path)).arg(to);
    command
}

fn address(prefix: &str) -> String {
    format!("s3://{BUCKET}/{prefix}")
}

/// Bytes that it received.
fn received(outcome: &Outcome) -> u64 {
    outcome.number("received_bytes")
}

#[test]
fn a_directory_becomes_objects_with_digests_times_and_modes() {
    for s3 in S3::each() {
        let folder = TempDir::new().expect("a folder");
        let mut tree: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (path, bytes) in [("large", LARGE), ("in/parts", 16 << 20), ("in/one part", 3 << 20), ("in/empty", 0)] {
            tree.insert(path.to_owned(), content(bytes));
        }
        (0..40).for_each(|number| drop(tree.insert(format!("in/deep/er/{number:02}"), content(number))));
        tree.insert("in/na\u{ef}ve (1) +&=#%25".to_owned(), b"a name".to_vec());
        tree.iter().for_each(|(path, content)| write(folder.path(), path, content));
        std::os::unix::fs::symlink("large", folder.path().join("link")).expect("a link");
        let server = Server::start(folder.path());
        let get = || run(s3.known_to(&mut get(&server, "", &address("a/b"), &[]))).expect_code(0);
        let first = get();
        assert_eq!(first.number("files"), tree.len() as u64, "{}", first.summary());
        assert!(first.stderr.contains("a link was left out"), "{}", first.stderr);
        assert_eq!(s3.keys().len(), tree.len(), "{:?}", s3.keys());
        assert_eq!(s3.uploads(), Vec::<String>::new());
        for path in ["large", "in/parts", "in/empty", "in/deep/er/07"] {
            let key = format!("a/b/{path}");
            assert!(s3.content(&key) == tree[path], "{key}");
            let digest = blake3::hash(&tree[path]).to_hex().to_string();
            assert_eq!(s3.header(&key, "x-amz-meta-towpath-blake3"), Some(digest), "{key}");
            assert!(
                s3.header(&key, "x-amz-meta-mtime").is_some() && s3.header(&key, "x-amz-meta-towpath-mode").is_some()
            );
        }
        let again = get();
        let numbers = (again.number("skipped"), received(&again));
        assert_eq!(numbers, (tree.len() as u64, 0), "{}", again.summary());
        // One is other, another only has another time, and somebody replaced a third.
        write(folder.path(), "large", &content(LARGE + 1));
        write(folder.path(), "in/parts", &tree["in/parts"]);
        s3.put("a/b/in/deep/er/07", b"1234567");
        let third = get();
        assert_eq!(received(&third), LARGE as u64 + 1 + 7, "{}", third.summary());
        assert!(s3.content("a/b/in/deep/er/07") == content(7) && s3.content("a/b/large") == content(LARGE + 1));
    }
}

#[test]
fn interrupted_get_leaves_no_parts() {
    for s3 in S3::each() {
        let folder = TempDir::new().expect("a folder");
        write(folder.path(), "large", &content(64 << 20));
        let server = Server::start(folder.path());
        let proxy = Proxy::start(s3.port());
        proxy.slow_down_senders(8 << 20);
        let endpoint = format!("http://{}", proxy.url("").trim_start_matches("tcp://").trim_end_matches('/'));
        let mut command = get(&server, "large", &address("x/"), &["--s3-endpoint", &endpoint]);
        let mut client = Process::start(credentials(&mut command));
        wait_until("parts are on their way", || {
            assert!(!client.ended(), "{}", client.log());
            proxy.sent() > 1 << 20 && s3.uploads() == ["x/large"]
        });
        client.signal(Signal::INT);
        let outcome = client.finish();
        assert!(outcome.status.code() != Some(0), "{}", outcome.stderr);
        assert_eq!((s3.uploads(), s3.keys()), (vec![], vec![]), "{}", outcome.stderr);
    }
}

#[test]
fn failures_are_in_clear_words() {
    for mut s3 in S3::each() {
        let folder = TempDir::new().expect("a folder");
        write(folder.path(), "a", b"content");
        let server = Server::start(folder.path());
        let fails = |command: &mut Command, words: &str| {
            let outcome = run(command).expect_code(1);
            assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
        };
        fails(s3.known_to(&mut get(&server, "", "s3://nowhere-at-all/x", &[])), "there is no such bucket");
        let mut denied = get(&server, "", &address(""), &[]);
        fails(s3.known_to(&mut denied).env("AWS_SECRET_ACCESS_KEY", "wrong"), "access denied");
        let mut wrong = get(&server, "", &address(""), &["--delete"]);
        assert!(run(s3.known_to(&mut wrong)).expect_code(2).stderr.contains("--delete"));
        s3.kill();
        fails(s3.known_to(&mut get(&server, "", &address(""), &[])), "the store can't be reached");
        s3.run();
    }
}

#[test]
fn cut_connections_to_the_store_are_made_again() {
    let Some(s3) = S3::any() else { return };
    let folder = TempDir::new().expect("a folder");
    write(folder.path(), "large", &content(LARGE));
    let server = Server::start(folder.path());
    let proxy = Proxy::start(s3.port());
    proxy.slow_down_senders(2 << 20);
    let endpoint = format!("http://{}", proxy.url("").trim_start_matches("tcp://").trim_end_matches('/'));
    let mut command = get(&server, "", &address(""), &["--s3-endpoint", &endpoint]);
    let process = Process::start(credentials(&mut command));
    wait_until("a part is on its way", || proxy.sent() > 1 << 20);
    let connections = proxy.connections();
    proxy.cut_now();
    process.finish().expect_code(0);
    assert!(proxy.connections() > connections, "all went over {connections} connections");
    assert!(s3.content("large") == content(LARGE));
}
