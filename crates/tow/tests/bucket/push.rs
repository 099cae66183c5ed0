//! `tow push` into a served bucket.

use crate::s3::{BUCKET, S3, credentials};
use crate::server::{Fault, Store};
use crate::support::process::{Outcome, Process, Server, get, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{random_file, write, write_secret};
use crate::support::wait_until;
use crate::{PIECE, serve};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Bytes of a file of three parts.
const LARGE: usize = 2 * PIECE + 12_345;

/// A server of a bucket that takes files below `in`.
struct Taking {
    folder: TempDir,
    store: Arc<Store>,
    server: Server,
}

impl Taking {
    fn start(options: &[&str]) -> Taking {
        let (folder, store) = (TempDir::new().unwrap(), Store::start());
        let server = start(&store, folder.path(), options);
        Taking { folder, store, server }
    }

    fn file(&self, name: &str, size: usize) -> (PathBuf, Vec<u8>) {
        let path = self.folder.path().join(name);
        let content = random_file(&path, size, size as u64);
        (path, content)
    }

    fn push(&self, file: &Path, to: &str, options: &[&str]) -> Outcome {
        run(&mut push(&self.server, file, to, options))
    }

    fn is_there(&self, key: &str, content: &[u8]) -> bool {
        self.store.content(&format!("tree/{key}")).is_some_and(|there| *there == *content)
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        leftovers(&self.folder.path().join("cache"))
    }
}

fn start(store: &Store, folder: &Path, options: &[&str]) -> Server {
    Server::from_command(serve(store, Some(&folder.join("cache")), &["--accept-push", "in"]).args(options))
}

fn push(server: &Server, file: &Path, to: &str, options: &[&str]) -> Command {
    let mut command = tow(["push".as_ref(), file.as_os_str(), server.url(to).as_ref(), "--json".as_ref()]);
    command.args(options);
    command
}

/// Files that have arrived below a cache, and aren't in the bucket.
fn leftovers(cache: &Path) -> Vec<PathBuf> {
    let entries =
        |path: &Path| std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    let places: Vec<PathBuf> = entries(&cache.join("incoming"));
    places.iter().flat_map(|place| -> Vec<PathBuf> { entries(place) }).collect()
}

/// The event of a push of one file.
fn said(outcome: &Outcome) -> Value {
    outcome.summary()
}

/// Why it failed.
fn reason(outcome: &Outcome) -> String {
    said(outcome)["reason"].to_string()
}

fn hex(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

#[test]
fn pushed_files_are_objects_with_their_metadata_and_are_got_again() {
    let taking = Taking::start(&[]);
    // With its push, as a whole, and in parts.
    for (name, size) in [("empty", 0), ("small", 1000), ("whole", 3 << 20), ("eight", PIECE), ("large", LARGE)] {
        let (file, content) = taking.file(name, size);
        let first = said(&taking.push(&file, "in/", &[]).expect_code(0));
        assert_eq!((&first["same"], &first["resumed_bytes"]), (&false.into(), &0.into()), "{first}");
        assert!(taking.is_there(&format!("in/{name}"), &content), "{name}");
        let key = format!("tree/in/{name}");
        assert_eq!(taking.store.metadata(&key, "towpath-blake3"), Some(hex(&content)), "{name}");
        let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
        let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().to_string();
        assert!(taking.store.metadata(&key, "mtime").unwrap().starts_with(&seconds), "{name}");
        assert!(taking.store.metadata(&key, "towpath-mode").is_some(), "{name}");
        let puts = taking.store.requests("PUT").len();
        assert_eq!(said(&taking.push(&file, "in/", &[]).expect_code(0))["same"], true, "{name}");
        assert_eq!(taking.store.requests("PUT").len(), puts, "{name}: nothing is put again");
        let copy = taking.folder.path().join("copy");
        get(&taking.server.url(&format!("in/{name}")), &copy).expect_code(0);
        assert!(std::fs::read(&copy).unwrap() == content, "{name}");
        std::fs::remove_file(copy).unwrap();
    }
    assert_eq!((taking.leftovers(), taking.store.uploads()), (vec![], vec![]));
    // Three parts, each fetched once to be sent, and none to be hashed.
    let gets = |name: &str| taking.store.requests("GET").iter().filter(|get| get.key.ends_with(name)).count();
    assert_eq!((gets("in/large"), gets("in/whole")), (3, 1));
    // Another one in its place is what clients get, although the one before was looked at just now.
    let (file, content) = taking.file("other", 5000);
    taking.push(&file, "in/large", &[]).expect_code(0);
    let copy = taking.folder.path().join("copy");
    get(&taking.server.url("in/large"), &copy).expect_code(0);
    assert!(std::fs::read(&copy).unwrap() == content);
}

#[test]
fn a_tree_is_pushed_and_names_that_can_not_be_there_are_refused() {
    let taking = Taking::start(&[]);
    let tree = taking.folder.path().join("results");
    for number in 0..200 {
        write(&tree.join(format!("many/file {number}+%")), format!("{number}").repeat(number).as_bytes());
    }
    random_file(&tree.join("large"), LARGE, 7);
    taking.push(&tree, "in/", &[]).expect_code(0);
    assert_eq!(taking.store.keys().len(), 201);
    assert!(taking.is_there("in/results/many/file 199+%", "199".repeat(199).as_bytes()));
    let keys = taking.store.keys();
    // A prefix has no other kind of file, but a directory is none.
    let (file, _) = taking.file("one", 10);
    let outcome = taking.push(&file, "in/results", &[]).expect_code(5);
    assert!(reason(&outcome).contains("a directory is at this path"), "{}", reason(&outcome));
    for wrong in ["elsewhere", "in/new\nline", &format!("in/{}", "x/".repeat(31) + &"y".repeat(1000))] {
        let outcome = taking.push(&file, wrong, &[]);
        assert!(!outcome.status.success(), "{wrong}");
    }
    assert_eq!(taking.store.keys(), keys);
}

#[test]
fn conditions_hold_until_the_object_is_there() {
    let taking = Taking::start(&[]);
    let (small, of_small) = taking.file("small", 2000);
    let (large, of_large) = taking.file("large", LARGE);
    taking.store.put("tree/in/there", *b"without a digest");
    for file in [&small, &large] {
        let outcome = taking.push(file, "in/there", &["--if-absent"]).expect_code(5);
        assert!(reason(&outcome).contains("something is there already"), "{}", reason(&outcome));
        taking.push(file, "in/there", &["--if", &hex(b"other")]).expect_code(5);
        taking.push(file, "in/missing", &["--if", &hex(b"other")]).expect_code(5);
    }
    assert!(taking.is_there("in/there", b"without a digest"));
    taking.push(&small, "in/there", &["--if", &hex(b"without a digest")]).expect_code(0);
    taking.push(&large, "in/there", &["--if", &hex(&of_small)]).expect_code(0);
    taking.push(&large, "in/new", &["--if-absent"]).expect_code(0);
    assert!(taking.is_there("in/there", &of_large) && taking.is_there("in/new", &of_large));
    // Somebody else is faster, just before the object is put, or completed.
    for (file, method, key) in [(&small, "PUT", "in/late"), (&large, "POST", "in/later")] {
        for option in [&["--if-absent"][..], &["--if", &hex(b"before")]] {
            if option.len() > 1 {
                taking.store.put(&format!("tree/{key}"), *b"before");
            }
            let is_last = move |request: &crate::server::Request| {
                request.method == method && request.key.ends_with(key) && !request.query.contains_key("uploads")
            };
            let mut is_done = false;
            taking.store.fail(move |request| {
                let is_now = is_last(request) && !is_done;
                is_done |= is_now;
                is_now.then(|| Fault::Replaced(b"faster".to_vec()))
            });
            taking.push(file, key, option).expect_code(5);
            assert!(taking.is_there(key, b"faster"), "{key} {option:?}");
        }
    }
    assert_eq!((taking.leftovers(), taking.store.uploads()), (vec![], vec![]));
}

#[test]
fn a_lost_answer_is_no_conflict() {
    let taking = Taking::start(&[]);
    for (name, size) in [("small", 2000), ("large", LARGE)] {
        let (file, content) = taking.file(name, size);
        let mut is_done = false;
        taking.store.fail(move |request| {
            let is_last = request.if_none_match && !is_done;
            is_done |= is_last;
            is_last.then_some(Fault::Lost)
        });
        taking.push(&file, "in/", &["--if-absent"]).expect_code(0);
        assert!(taking.is_there(&format!("in/{name}"), &content), "{name}");
    }
    assert_eq!((taking.leftovers(), taking.store.uploads()), (vec![], vec![]));
}

#[test]
fn a_store_that_is_away_is_waited_for_and_what_arrived_is_not_sent_again() {
    let taking = Taking::start(&[]);
    let (small, of_small) = taking.file("small", 2000);
    let (large, of_large) = taking.file("large", LARGE);
    let failed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failed);
    taking.store.fail(move |request| {
        let is_refused = matches!(&*request.method, "PUT" | "POST") && count.fetch_add(1, Ordering::Relaxed) < 20;
        is_refused.then_some(Fault::Status(503, "ServiceUnavailable"))
    });
    let pushes = [&small, &large].map(|file| Process::start(&mut push(&taking.server, file, "in/", &[])));
    for push in pushes {
        push.finish().expect_code(0);
    }
    assert!(failed.load(Ordering::Relaxed) > 20);
    assert!(taking.is_there("in/small", &of_small) && taking.is_there("in/large", &of_large));
    assert_eq!((taking.leftovers(), taking.store.uploads()), (vec![], vec![]));
    // The server dies while it is away.
    let (large, of_large) = taking.file("second", LARGE);
    taking
        .store
        .fail(|request| (request.query.contains_key("partNumber")).then_some(Fault::Status(503, "ServiceUnavailable")));
    let client = Process::start(&mut push(&taking.server, &large, "in/", &[]));
    wait_until("a part was refused", || taking.store.requests("PUT").iter().any(|put| put.key.ends_with("second")));
    let Taking { folder, store, server } = taking;
    server.kill();
    drop(client);
    assert_eq!(leftovers(&folder.path().join("cache")).len(), 2, "a file and its state");
    store.fail(|_| None);
    let taking = Taking { server: start(&store, folder.path(), &[]), folder, store };
    let pushed = said(&taking.push(&large, "in/", &[]).expect_code(0));
    assert_eq!((&pushed["resumed_bytes"], &pushed["same"]), (&LARGE.into(), &false.into()), "{pushed}");
    assert!(taking.is_there("in/second", &of_large));
    assert_eq!(taking.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn what_the_store_refuses_fails_and_is_kept() {
    let taking = Taking::start(&[]);
    let (large, of_large) = taking.file("large", LARGE);
    taking.store.fail(|request| (request.method == "POST").then_some(Fault::Status(403, "AccessDenied")));
    let outcome = taking.push(&large, "in/", &[]).expect_code(1);
    assert!(reason(&outcome).contains("the store doesn't allow that to the server"), "{}", reason(&outcome));
    assert!(taking.server.log().contains("access denied"), "{}", taking.server.log());
    // Only the end is refused: then its parts are removed.
    taking.store.fail(|request| {
        let is_end = request.method == "POST" && request.query.contains_key("uploadId");
        is_end.then_some(Fault::Status(403, "AccessDenied"))
    });
    taking.push(&large, "in/", &[]).expect_code(1);
    assert_eq!((taking.store.keys(), taking.store.uploads()), (vec![], vec![]));
    taking.store.fail(|_| None);
    assert_eq!(said(&taking.push(&large, "in/", &[]).expect_code(0))["resumed_bytes"], LARGE);
    assert!(taking.is_there("in/large", &of_large));
}

#[test]
fn what_is_damaged_on_its_way_is_never_an_object() {
    let taking = Taking::start(&[]);
    // More parts than are put at a time: the last one is read after the first answer.
    let (file, content) = taking.file("large", 6 * PIECE + 1);
    let cache = taking.folder.path().join("cache");
    let mut is_damaged = false;
    taking.store.fail(move |request| {
        if request.query.contains_key("partNumber") && !std::mem::replace(&mut is_damaged, true) {
            let arrived = leftovers(&cache).into_iter().find(|path| path.extension().is_some_and(|end| end == "part"));
            let arrived = std::fs::File::options().write(true).open(arrived.unwrap()).unwrap();
            arrived.write_all_at(b"damage", 5 * PIECE as u64 + 7).unwrap();
        }
        None
    });
    let outcome = taking.push(&file, "in/", &[]).expect_code(1);
    assert!(reason(&outcome).contains("isn't what had arrived"), "{}", reason(&outcome));
    assert_eq!((taking.store.keys(), taking.store.uploads(), taking.leftovers()), (vec![], vec![], vec![]));
    assert_eq!(said(&taking.push(&file, "in/", &[]).expect_code(0))["resumed_bytes"], 0);
    assert!(taking.is_there("in/large", &content));
}

#[test]
fn followers_get_what_is_pushed() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    let taking = Taking::start(&["--watch", "--rescan", "1s", "--state", state.to_str().unwrap()]);
    let copy = taking.folder.path().join("copied");
    let _follower = Process::start(tow(["follow", "--mirror", &taking.server.url("in")]).arg(&copy));
    for (name, size) in [("small", 100), ("large", LARGE), ("small", 200)] {
        let (file, content) = taking.file(name, size);
        taking.push(&file, "in/", &[]).expect_code(0);
        wait_until("the follower has it", || std::fs::read(copy.join(name)).is_ok_and(|there| there == content));
    }
}

#[test]
fn files_are_pushed_into_real_stores() {
    for s3 in S3::each() {
        let folder = TempDir::new().unwrap();
        let mut command = tow(["serve", &format!("s3://{BUCKET}/tree"), "--bind", "tcp://127.0.0.1:0"]);
        command.args(["--accept-push", "."]).arg("--cache").arg(folder.path().join("cache"));
        let server = Server::from_command(s3.known_to(credentials(&mut command)));
        let file = |name: &str, size: usize| {
            let path = folder.path().join(name);
            let content = random_file(&path, size, size as u64);
            (path, content)
        };
        for (name, size) in [("empty", 0), ("small", 1000), ("whole", 3 << 20), ("na\u{ef}ve (1) +&=#%25", LARGE)] {
            let (path, content) = file(name, size);
            let outcome = run(&mut push(&server, &path, "ab/", &["--if-absent"])).expect_code(0);
            assert_eq!(said(&outcome)["same"], false, "{name}");
            assert_eq!(said(&run(&mut push(&server, &path, "ab/", &[])).expect_code(0))["same"], true, "{name}");
            let copy = folder.path().join("copy");
            get(&server.url("ab"), &copy).expect_code(0);
            assert!(std::fs::read(copy.join(name)).unwrap() == content, "{name}");
        }
        let (large, of_large) = file("large", LARGE);
        let (other, of_other) = file("other", LARGE + 1);
        run(&mut push(&server, &large, "x", &["--if-absent"])).expect_code(0);
        run(&mut push(&server, &other, "x", &["--if-absent"])).expect_code(5);
        run(&mut push(&server, &other, "x", &["--if", &hex(&of_other[1..])])).expect_code(5);
        assert!(s3.content("tree/x") == of_large);
        run(&mut push(&server, &other, "x", &["--if", &hex(&of_large)])).expect_code(0);
        assert!(s3.content("tree/x") == of_other);
        assert_eq!(s3.header("tree/x", "x-amz-meta-towpath-blake3"), Some(hex(&of_other)));
        assert!(s3.header("tree/x", "x-amz-meta-mtime").is_some());
        assert_eq!((s3.uploads(), leftovers(&folder.path().join("cache"))), (vec![], vec![]));
    }
}

#[test]
fn rules_decide_who_learns_what_is_there() {
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join("rules");
    write_secret(&rules, "allow anyone to push in\n");
    let taking = Taking::start(&["--rules", rules.to_str().unwrap()]);
    let (file, content) = taking.file("file", 3 << 20);
    taking.store.put("tree/in/secret", content.clone());
    for (path, option) in
        [("in/secret", &["--if-absent"][..]), ("in/new", &["--if-absent"]), ("in/secret", &["--if", &hex(&content)])]
    {
        let outcome = taking.push(&file, path, option);
        assert!(reason(&outcome).contains("rules don't allow"), "{path}: {}", reason(&outcome));
    }
    assert_eq!(said(&taking.push(&file, "in/secret", &[]).expect_code(0))["same"], false);
    // Except what one has put there oneself.
    assert_eq!(said(&taking.push(&file, "in/secret", &[]).expect_code(0))["same"], true);
    let (next, _) = taking.file("next", 1000);
    taking.push(&next, "in/secret", &["--if", &hex(&content)]).expect_code(0);
    let outcome = taking.push(&file, "elsewhere", &[]);
    assert!(!outcome.status.success() && taking.store.keys() == ["tree/in/secret"], "{}", reason(&outcome));
}

#[test]
fn a_server_that_ends_leaves_no_parts() {
    let taking = Taking::start(&[]);
    let (file, _) = taking.file("large", LARGE);
    taking
        .store
        .fail(|request| request.query.contains_key("partNumber").then_some(Fault::Status(503, "ServiceUnavailable")));
    let _client = Process::start(&mut push(&taking.server, &file, "in/", &[]));
    wait_until("a part is on its way", || {
        let has_part = taking.store.requests("PUT").iter().any(|put| put.query.contains_key("partNumber"));
        has_part && !taking.store.uploads().is_empty()
    });
    let Taking { folder, store, server } = taking;
    server.stop(Signal::TERM).expect_code(0);
    assert_eq!(store.uploads(), Vec::<String>::new());
    assert_eq!(leftovers(&folder.path().join("cache")).len(), 2, "a file and its state");
}

#[test]
fn what_nobody_pushes_again_is_removed_after_a_day() {
    let taking = Taking::start(&[]);
    let (file, _) = taking.file("large", LARGE);
    taking.store.fail(|request| (request.method == "POST").then_some(Fault::Status(403, "AccessDenied")));
    taking.push(&file, "in/", &[]).expect_code(1);
    let Taking { folder, store, server } = taking;
    server.kill();
    let old = leftovers(&folder.path().join("cache"));
    assert_eq!(old.len(), 2, "a file and its state");
    for path in old {
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(25 * 3600)).unwrap();
    }
    let _server = start(&store, folder.path(), &[]);
    wait_until("it is removed", || leftovers(&folder.path().join("cache")).is_empty());
}

#[test]
fn real_stores_know_that_somebody_else_was_faster() {
    for s3 in S3::each() {
        let folder = TempDir::new().unwrap();
        let proxy = Proxy::start(s3.port());
        proxy.slow_down_senders(8 << 20);
        let endpoint = proxy.url("").replace("tcp://", "http://");
        let mut command = tow(["serve", &format!("s3://{BUCKET}/tree"), "--bind", "tcp://127.0.0.1:0"]);
        command.args(["--accept-push", ".", "--s3-endpoint", endpoint.trim_end_matches('/')]);
        command.arg("--cache").arg(folder.path().join("cache"));
        let server = Server::from_command(credentials(&mut command));
        let large = folder.path().join("large");
        random_file(&large, LARGE, 1);
        s3.put("tree/there", b"before");
        for (path, option) in [("absent", &["--if-absent"][..]), ("there", &["--if", &hex(b"before")])] {
            let key = format!("tree/{path}");
            let mut client = Process::start(&mut push(&server, &large, path, option));
            wait_until("parts are on their way", || {
                assert!(!client.ended(), "{}", client.log());
                s3.uploads() == [&*key]
            });
            s3.put(&key, b"faster");
            client.finish().expect_code(5);
            assert_eq!((s3.content(&key), s3.uploads()), (b"faster".to_vec(), vec![]), "{path}");
        }
    }
}
