//! A server that has its files from another one, and keeps pieces of them in a cache.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::destination::with_small_disk;
use crate::operator::problems::problems;
use crate::operator::status::Place;
use crate::security::keys::Keys;
use crate::support::process::{Process, Server, get, get_command, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, mixed, random_file, write, write_secret};
use crate::support::wait_until;
use crate::support::wire::Wire;

const PIECE: usize = 8 << 20;

/// A relay of the server behind an URL, not yet started.
fn relay(url: &str, cache: &Path, options: &[&str]) -> Command {
    let mut command = tow(["serve", url, "--bind", "tcp://127.0.0.1:0", "--cache-size", "1G"]);
    command.arg("--cache").arg(cache).args(options);
    command
}

/// An origin behind a proxy that counts, and its relay.
struct Relayed {
    folder: TempDir,
    place: Place,
    proxy: Proxy,
    origin: Option<Server>,
}

impl Relayed {
    fn new() -> Relayed {
        let folder = tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("tree")).expect("mkdir");
        let origin = Server::start(&folder.path().join("tree"));
        Relayed { proxy: Proxy::start(origin.port()), place: Place::new(), folder, origin: Some(origin) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    fn start(&self, options: &[&str]) -> Server {
        let mut command = relay(&self.proxy.url(""), &self.path("cache"), options);
        command.env("XDG_RUNTIME_DIR", self.place.0.path()).env_remove("RUNTIME_DIRECTORY");
        Server::from_command(&mut command)
    }

    /// A figure of the relay's cache.
    fn cache(&self, name: &str) -> u64 {
        let status: Value = self.place.json(&["status"]).remove(0);
        status["cache"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"))
    }

    fn get(&self, server: &Server, path: &str, to: &str) -> PathBuf {
        let copy = self.path(to);
        get(&server.url(path), &copy).expect_code(0);
        copy
    }

    /// Starts the origin again on another port, to which the proxy leads.
    fn start_origin(&mut self) {
        let origin = Server::start(&self.tree());
        self.proxy.lead_to(origin.port());
        self.origin = Some(origin);
    }

    fn kill_origin(&mut self) {
        self.origin.take().expect("an origin").kill();
        // Another test's server may take its port.
        self.proxy.lead_to(1);
        self.proxy.cut_now();
    }
}

#[test]
fn each_piece_is_fetched_once_however_many_want_it() {
    let relayed = Relayed::new();
    random_file(&relayed.tree().join("big"), 5 * PIECE + 12_345, 1);
    write(&relayed.tree().join("empty"), b"");
    mixed(&relayed.tree(), 200, 3);
    let pieces = 6 + 3 + (0..200).filter(|index| index * 131 % 9000 > 0).count() as u64;
    let relay = relayed.start(&[]);
    let clients: Vec<_> = (0..20)
        .map(|number| {
            let copy = relayed.path(&format!("copy{number}"));
            (Process::start(&mut get_command(&relay.url(""), &copy)), copy)
        })
        .collect();
    for (client, copy) in clients {
        client.finish().expect_code(0);
        assert_same(&relayed.tree(), &copy);
        std::fs::remove_dir_all(copy).expect("remove");
    }
    assert_eq!((relayed.cache("fetched"), relayed.cache("bypassed")), (pieces, 0));
    let (fetched, passed) = (relayed.cache("fetched_bytes"), relayed.proxy.passed());
    assert!(passed < fetched + fetched / 50 + (1 << 20), "{passed} bytes came for {fetched}");
    // A restart loses nothing.
    relay.stop(Signal::TERM).expect_code(0);
    let relay = relayed.start(&[]);
    assert_same(&relayed.tree(), &relayed.get(&relay, "", "again"));
    assert_eq!(relayed.cache("fetched"), 0);
    assert!(relayed.proxy.passed() < passed + (2 << 20), "{} bytes came again", relayed.proxy.passed() - passed);
    assert!(relay.resident_kib() < 96 << 10, "{} KiB", relay.resident_kib());
}

#[test]
fn ranges_of_a_large_file_fetch_their_pieces_only() {
    let relayed = Relayed::new();
    let content = random_file(&relayed.tree().join("dir/big"), 20 * PIECE, 1);
    let relay = relayed.start(&[]);
    // In the plain dialect, as of clients with other libraries.
    let mut wire = Wire::dealer(relay.port());
    for (offset, size) in [(0, 10), (7 * PIECE - 5, 10), (19 * PIECE, PIECE), (13 * PIECE + 1000, 100_000)] {
        let (offset_text, size_text) = (offset.to_string(), size.to_string());
        let request: [&[u8]; 4] = [b"fetch", b"dir/big", offset_text.as_bytes(), size_text.as_bytes()];
        wire.send(&request).expect("send");
        let frames = wire.receive().expect("a range");
        assert!(frames.last().is_some_and(|bytes| **bytes == content[offset..offset + size]), "{offset} {size}");
    }
    // Pieces 0, 6, 7, 13 and 19, and a few ahead.
    assert!((5..=8).contains(&relayed.cache("fetched")), "{}", relayed.cache("fetched"));
}

#[test]
fn files_that_change_are_fetched_anew_and_never_mixed() {
    let mut relayed = Relayed::new();
    let path = relayed.tree().join("file");
    random_file(&path, 6 * PIECE, 1);
    let relay = relayed.start(&[]);
    // Replaced while it comes.
    relayed.proxy.hold_after(PIECE as u64);
    let mut client = Process::start(&mut get_command(&relay.url("file"), &relayed.path("copy")));
    relayed.proxy.wait_held(&mut client);
    random_file(&relayed.tree().join("new"), 6 * PIECE, 2);
    std::fs::rename(relayed.tree().join("new"), &path).expect("rename");
    relayed.proxy.release();
    client.finish().expect_code(0);
    let is_there = |copy: &Path| std::fs::read(copy).expect("a copy") == std::fs::read(&path).expect("a file");
    assert!(is_there(&relayed.path("copy")));
    // Replaced with the same size and time, while the origin is away: its digest shows that.
    let modified = std::fs::metadata(&path).and_then(|there| there.modified()).expect("a time");
    relayed.kill_origin();
    random_file(&path, 6 * PIECE, 3);
    std::fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_modified(modified))
        .expect("set the time");
    relayed.start_origin();
    wait_until("the new file is served", || {
        // What is there already would be skipped, as it has this size and time.
        let is_new = is_there(&relayed.get(&relay, "file", "same-time"));
        std::fs::remove_file(relayed.path("same-time")).expect("remove");
        is_new
    });
    // Removed.
    std::fs::remove_file(&path).expect("remove");
    wait_until("it is gone", || {
        run(&mut get_command(&relay.url("file"), &relayed.path("gone"))).status.code() == Some(4)
    });
}

#[test]
fn what_is_known_is_served_while_the_origin_is_away() {
    let mut relayed = Relayed::new();
    let content = random_file(&relayed.tree().join("known"), 2 * PIECE, 1);
    random_file(&relayed.tree().join("other"), 2 * PIECE, 2);
    random_file(&relayed.tree().join("big"), 5 * PIECE, 3);
    let relay = relayed.start(&[]);
    relayed.get(&relay, "known", "first");
    // Away in the middle of a transfer, which goes on.
    relayed.proxy.hold_after(2 * PIECE as u64);
    let mut client = Process::start(&mut get_command(&relay.url("big"), &relayed.path("big")));
    relayed.proxy.wait_held(&mut client);
    relayed.kill_origin();
    relayed.proxy.release();
    relayed.start_origin();
    client.finish().expect_code(0);
    relayed.kill_origin();
    assert!(std::fs::read(relayed.get(&relay, "known", "second")).expect("a copy") == content);
    let away = run(get_command(&relay.url("other"), &relayed.path("fails")).args(["--timeout", "15s"])).expect_code(1);
    assert!(away.stderr.contains("the origin can't be reached"), "{}", away.stderr);
    let problem = problems(&relayed.place, "source_away").remove(0);
    assert_eq!(problem["severity"], "critical", "{problem}");
    assert!(problem["seconds"].as_u64() < Some(60), "{problem}");
    // One that waits gets it once the origin is back.
    let waits = Process::start(&mut get_command(&relay.url("other"), &relayed.path("later")));
    relayed.start_origin();
    waits.finish().expect_code(0);
    assert!(
        std::fs::read(relayed.path("later")).expect("a copy")
            == std::fs::read(relayed.tree().join("other")).expect("it")
    );
    wait_until("it is no problem any more", || problems(&relayed.place, "source_away").is_empty());
    let log = relay.log();
    assert!(log.contains("no files can be fetched") && log.contains("the files can be fetched again"), "{log}");
}

#[test]
fn directories_are_listed_like_the_origins() {
    let relayed = Relayed::new();
    for number in 0..3000 {
        write(&relayed.tree().join(format!("many/{number}")), b"x");
    }
    std::fs::create_dir_all(relayed.tree().join("empty/below")).expect("mkdir");
    write(&relayed.tree().join(OsStr::new("many/new\nline")), b"x");
    let relay = relayed.start(&[]);
    let list = |server: &Server, path: &str| {
        let listed = run(&mut tow(["ls", "-r", "--json", &server.url(path)])).expect_code(0);
        String::from_utf8(listed.stdout).expect("UTF-8")
    };
    let origin = relayed.origin.as_ref().expect("an origin");
    for path in ["", "many", "empty"] {
        assert_eq!(list(&relay, path), list(origin, path), "{path}");
    }
    // Links to files are what they lead to; those to directories aren't followed, but a path may lead through one.
    symlink("many/7", relayed.tree().join("link")).expect("a link");
    symlink("many", relayed.tree().join("many-too")).expect("a link");
    symlink("missing", relayed.tree().join("broken")).expect("a link");
    let relay = relayed.start(&[]);
    let copy = relayed.path("copy");
    let outcome = run(&mut get_command(&relay.url(""), &copy));
    assert!(copy.join("link").is_file() && !copy.join("many-too").exists(), "{}", outcome.stderr);
    relayed.get(&relay, "many-too/5", "through");
    let missing = run(&mut tow(["ls", &relay.url("none")])).expect_code(4);
    assert!(missing.stderr.contains("not found"), "{}", missing.stderr);
}

#[test]
fn part_of_an_origin_with_keys_is_served_to_whom_the_rules_allow() {
    let (keys, folder) = (Keys::new(), tempdir().expect("a folder"));
    let tree = folder.path().join("tree");
    random_file(&tree.join("part/open/a"), PIECE + 5, 1);
    random_file(&tree.join("part/secret/b"), 1000, 2);
    let mut serve = tow([OsStr::new("serve"), tree.as_ref()]);
    let origin = Server::from_command(serve.args(["--bind", "tcp://127.0.0.1:0"]).args(keys.server()));
    let rules = folder.path().join("rules");
    let text = format!("key alice {}\nkey eve {}\n", keys.public("alice"), keys.public("eve"));
    write_secret(&rules, &format!("{text}allow alice to read **\nallow eve to read open\n"));
    let (secret, server_key) = (keys.path("alice_secret").display().to_string(), keys.public("server"));
    let options = ["--key", &secret, "--server-key", &server_key, "--rules", rules.to_str().expect("UTF-8")];
    // The origin admits the relay by its key alone.
    let wrong = keys.path("eve_secret").display().to_string();
    let refused = run(&mut relay(
        &origin.url("part"),
        &folder.path().join("cache"),
        &["--key", &wrong, "--server-key", &server_key, "--anyone"],
    ));
    refused.expect_code(5);
    let relay = Server::from_command(&mut relay(&origin.url("part"), &folder.path().join("cache"), &options));
    let get_as = |name: &str, path: &str, to: &str| {
        let secret = keys.path(&format!("{name}_secret")).display().to_string();
        let mut command = get_command(&relay.url(path), &folder.path().join(to));
        run(command.args(["--key", &secret, "--server-key", &keys.public("alice")]))
    };
    get_as("alice", "", "all").expect_code(0);
    assert_same(&tree.join("part"), &folder.path().join("all"));
    get_as("eve", "open/a", "open").expect_code(0);
    // All of it is in the cache by now.
    assert_ne!(get_as("eve", "secret/b", "secret").status.code(), Some(0));
}

#[test]
fn a_loop_of_relays_ends_with_an_error() {
    let mut relayed = Relayed::new();
    write(&relayed.tree().join("a"), b"a");
    let first = relayed.start(&[]);
    let second = Server::from_command(&mut relay(&first.url(""), &relayed.path("second"), &[]));
    relayed.get(&second, "a", "copy");
    // The first one has its files from the second now.
    relayed.kill_origin();
    relayed.proxy.lead_to(second.port());
    for relay in [&first, &second] {
        wait_until("the loop is noticed", || {
            let listed = run(&mut tow(["ls", &relay.url(""), "--timeout", "20s"]));
            listed.status.code() == Some(1) && listed.stderr.contains("a loop")
        });
    }
}

#[test]
fn a_full_disk_ends_nothing() {
    let folder = tempdir().expect("a folder");
    let (tree, mount) = (folder.path().join("tree"), folder.path().join("mount"));
    std::fs::create_dir_all(&mount).expect("mkdir");
    random_file(&tree.join("big"), 5 * PIECE, 1);
    let origin = Server::start(&tree);
    let endpoint = format!("ipc://{}", folder.path().join("socket").display());
    let copy = folder.path().join("copy");
    let script = format!(
        "\"$TOW\" serve {} --cache \"$1/cache\" --cache-size 256M --bind {endpoint} >&2 & relay=$!
         \"$TOW\" get --connect-timeout 60s {endpoint}:/big {}; code=$?; kill $relay; wait $relay; exit $code",
        origin.url(""),
        copy.display(),
    );
    let Some(outcome) = with_small_disk(&mount, 20, &script) else { return };
    let outcome = outcome.expect_code(0);
    assert_same(&tree, &{
        let got = folder.path().join("got");
        std::fs::create_dir(&got).expect("mkdir");
        std::fs::rename(&copy, got.join("big")).expect("rename");
        std::fs::File::open(&got)
            .and_then(|dir| dir.set_modified(std::fs::metadata(&tree)?.modified()?))
            .expect("a time");
        got
    });
    assert!(outcome.stderr.contains("the cache can't keep anything now"), "{}", outcome.stderr);
}

#[test]
fn what_a_relay_cannot_do_is_said_at_its_start() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("tree/file"), b"x");
    let origin = Server::start(&folder.path().join("tree"));
    let cache = folder.path().join("cache");
    let fails = |command: &mut Command, code, words: &str| {
        let outcome = run(command).expect_code(code);
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    };
    fails(&mut tow(["serve", &origin.url("")]), 2, "add --cache DIR");
    fails(&mut relay(&origin.url(""), &cache, &["--watch"]), 2, "tow follow --serve");
    fails(&mut relay(&origin.url(""), &cache, &["--accept-push", "."]), 2, "push to the server");
    fails(&mut relay(&origin.url("*"), &cache, &[]), 2, "name a directory");
    fails(&mut relay(&origin.url("file"), &cache, &[]), 4, "it is a file");
    fails(&mut relay(&origin.url("none"), &cache, &[]), 4, "not found");
    fails(tow(["serve", "--server-key", "x"]).arg(folder.path()), 2, "is for another server");
    // Another test's server may take the port of one that was killed.
    fails(&mut relay("tcp://127.0.0.1:1/", &cache, &[]), 6, "cannot connect");
}

#[test]
fn wrong_bytes_of_an_origin_are_never_kept() {
    let relayed = Relayed::new();
    write(&relayed.tree().join("big"), &vec![7; 2 * PIECE]);
    for number in 0..20 {
        write(&relayed.tree().join(format!("small/{number}")), &[&[9; 50_000][..], &[number]].concat());
    }
    let relay = relayed.start(&[]);
    for to in ["copy", "again"] {
        std::fs::create_dir(relayed.path(to)).expect("mkdir");
    }
    for (byte, path) in [(7, "big"), (9, "small")] {
        relayed.proxy.corrupt_among(byte);
        relayed.get(&relay, path, &format!("copy/{path}"));
        assert!(relayed.proxy.has_corrupted());
        relayed.get(&relay, path, &format!("again/{path}"));
    }
    assert_same(&relayed.tree().join("small"), &relayed.path("copy/small"));
    assert_same(&relayed.tree().join("small"), &relayed.path("again/small"));
    let big = |name: &str| std::fs::read(relayed.path(name)).expect("a file");
    assert!(big("copy/big") == big("tree/big") && big("again/big") == big("tree/big"));
}
