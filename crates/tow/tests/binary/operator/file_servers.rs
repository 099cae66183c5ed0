//! An operator's view of a file server: transfers with the one cause for what waits, followers, versions, failures, the catalogue.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::tempdir;
use towpath_slow_disk::{Pace, SlowDisk};

use crate::operator::problems::problems;
use crate::operator::status::{Place, get};
use crate::support::process::{Process, Server, run, tow};
use crate::support::tree::{random_file, write};
use crate::support::wait_until;
use crate::support::wire::{Piece, Wire, data_message};

const LARGE: usize = 64 << 20;

pub fn serve(place: &Place, path: &Path, options: &[&str]) -> Server {
    let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0"]);
    command.arg(path).args(options).env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY");
    Server::from_command(&mut command)
}

fn fetch(id: u32, path: &str, digest: &str, credit: u64) -> Value {
    json!({"op": "fetch", "id": id, "digest": digest, "credit_bytes": credit, "files": [{"path": path}]})
}

/// Waits until there is a transfer of which this holds, and gives it.
fn transfer(place: &Place, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let find = || place.json(&["transfers"]).into_iter().find(|transfer| holds(transfer));
    let mut found = None;
    wait_until(&format!("{what}: {:?}", place.json(&["transfers"])), || {
        found = find();
        found.is_some()
    });
    found.expect("one was found")
}

/// The entries of a list, by the socket.
pub fn list(place: &Place, path: &str, name: &str) -> Vec<Value> {
    let reply = get(&place.socket(), path);
    let (_, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
    let reply: Value = serde_json::from_str(body).expect(body);
    reply[name].as_array().unwrap_or_else(|| panic!("{reply}")).clone()
}

fn status(place: &Place) -> Value {
    place.json(&["status"]).remove(0)
}

#[test]
fn a_transfer_waits_for_credit_or_for_its_receiver() {
    // On a loaded machine it may be silent for long enough to count as frozen.
    let withholds = |transfer: &Value| transfer["waits_for"] == "credit" || transfer["waits_for"] == "frozen";
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    random_file(&folder.path().join("large"), LARGE, 1);
    let server = serve(&place, folder.path(), &[]);
    let mut wire = Wire::dealer(server.port());
    wire.request(&fetch(1, "large", "none", 0)).expect("send");
    let waits = transfer(&place, "no credit", withholds);
    assert_eq!((&waits["kind"], &waits["path"], &waits["done_bytes"]), (&"fetch".into(), &"large".into(), &0.into()));
    assert_eq!(waits["total_bytes"], LARGE);
    // A quarter of it, which the client takes.
    wire.request(&json!({"op": "credit", "bytes": LARGE / 4})).expect("send");
    let mut received = 0;
    while received < LARGE / 4 {
        let message = wire.receive().expect("a message");
        received += if message[0].starts_with(b"TOWD") { message[1].len() } else { 0 };
    }
    let is_at = |transfer: &Value| withholds(transfer) && transfer["done_bytes"] == LARGE / 4;
    let waits = transfer(&place, "a quarter", is_at);
    assert_eq!((&waits["sent_bytes"], &waits["received_bytes"]), (&json!(LARGE / 4), &0.into()));
    let table = String::from_utf8(place.tow(&["transfers"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains(" 25% ") && table.contains("64.00 MiB"), "{table}");
    // All the rest, which it doesn't read.
    wire.request(&json!({"op": "credit", "bytes": LARGE})).expect("send");
    transfer(&place, "it isn't read", |transfer| {
        transfer["waits_for"] == "frozen" && transfer["done_bytes"].as_u64() > Some(LARGE as u64 / 4)
    });
    // Its connection ends before the transfer does.
    drop(wire);
    wait_until("the failure is known", || !place.json(&["failures"]).is_empty());
    let failure = place.json(&["failures"]).remove(0);
    let shown = ["kind", "code", "path", "peer"].map(|name| &failure[name]);
    assert_eq!(shown, [&json!("fetch"), &json!("lost"), &json!("large"), &waits["peer"]]);
    assert!(place.json(&["transfers"]).is_empty());
}

/// The causes of a disk that hangs: the one that has a thread waits for the disk, others for a thread.
#[test]
fn a_transfer_waits_for_disk_digest_or_thread() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let served = folder.path().join("served");
    fs::create_dir_all(served.join("disk")).expect("mkdir");
    let server = serve(&place, &served, &[]);
    for (pace, digest, expected) in [(Pace::Held, "none", "disk"), (Pace::Held, "now", "hash")] {
        let disk = match SlowDisk::mount(&served.join("disk"), 6 << 20, pace) {
            Ok(disk) => disk,
            Err(error) => return println!("skipped: no FUSE file system can be mounted here: {error}"),
        };
        let mut wire = Wire::dealer(server.port());
        wire.request(&fetch(1, "disk/cold", digest, 1 << 30)).expect("send");
        transfer(&place, expected, |transfer| transfer["waits_for"] == expected);
        disk.release();
        wait_until("it goes on", || place.json(&["transfers"]).iter().all(|of| of["waits_for"] != expected));
        drop(wire);
        wait_until("all are gone", || place.json(&["peers"]).is_empty());
        drop(disk);
    }
    let disk = SlowDisk::mount(&served.join("disk"), 6 << 20, Pace::HeldAtOpen).expect("mount");
    let wires: Vec<_> = (0..4)
        .map(|_| {
            let mut wire = Wire::dealer(server.port());
            wire.request(&fetch(1, "disk/cold", "none", 1 << 30)).expect("send");
            wire
        })
        .collect();
    wait_until("two wait for the disk and two for a thread", || {
        let mut waits: Vec<_> = place.json(&["transfers"]).iter().map(|of| of["waits_for"].clone()).collect();
        waits.sort_by_key(ToString::to_string);
        waits == ["disk", "disk", "pool", "pool"]
    });
    disk.release();
    drop(wires);
}

#[test]
fn a_transfer_waits_for_an_open_file_of_others() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    for index in 0..40 {
        random_file(&folder.path().join(index.to_string()), 2 << 20, index);
    }
    // Half of them are for open files. What each client may have in any case comes on top.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 80; exec \"$@\"", "sh"]).arg(env!("CARGO_BIN_EXE_tow"));
    command.args(["serve", "--bind", "tcp://127.0.0.1:0"]).arg(folder.path());
    let server = Server::from_command(command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY"));
    let files: Vec<_> = (0..40).map(|index| json!({"path": index.to_string()})).collect();
    let mut wires = Vec::new();
    let waits = || place.json(&["transfers"]).iter().any(|of| of["waits_for"] == "open_files");
    // Each has as many open as it may, for the first of which it gives no credit.
    while !waits() {
        let mut wire = Wire::dealer(server.port());
        for id in 0..4 {
            let request = json!({"op": "fetch", "id": id, "digest": "none", "credit_bytes": 0, "files": files});
            wire.request(&request).expect("send");
        }
        wires.push(wire);
        assert!(wires.len() < 12, "{:?}", place.json(&["transfers"]));
        wait_until("they are listed", || place.json(&["transfers"]).len() == 4 * wires.len());
    }
    drop(wires);
}

#[test]
fn pushes_are_transfers_and_what_is_refused_is_remembered() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let served = folder.path().join("served");
    fs::create_dir_all(served.join("in")).expect("mkdir");
    let server = serve(&place, &served, &["--accept-push", "in"]);
    let bytes = vec![7; 64 << 10];
    let push = |id: u32, path: &str| {
        json!({
            "op": "push", "id": id, "path": path, "size": bytes.len(), "mtime": [1_790_000_000, 0], "mode": 0o644,
            "digest": blake3::hash(&bytes).to_hex().as_str(),
        })
    };
    let mut wire = Wire::dealer(server.port());
    assert_eq!(wire.ask(&push(1, "in/half"))["re"], "push");
    wire.send(&data_message(1, &[Piece::of(0, 0, 0, &bytes[..32 << 10])])).expect("send");
    let waits = transfer(&place, "half has come", |of| of["received_bytes"] == 32 << 10 && of["waits_for"] == "sender");
    let shown = ["kind", "path", "done_bytes", "total_bytes", "sent_bytes", "id"].map(|name| &waits[name]);
    assert_eq!(shown, [&json!("push"), &json!("in/half"), &json!(32 << 10), &json!(64 << 10), &json!(0), &json!(1)]);

    let mut denied = wire.ask(&push(2, "elsewhere"));
    // Credit for what has come may be before it.
    while denied["re"] != "error" {
        denied = wire.control();
    }
    assert_eq!(denied["code"], "denied");
    assert_eq!(wire.ask(&json!({"op": "list", "id": 3, "path": "nowhere\u{1b}[2J"}))["code"], "not-found");
    assert_eq!(wire.ask(&json!({"op": "nothing", "id": 4}))["re"], "error");
    let failures = place.json(&["failures"]);
    let shown: Vec<_> = failures.iter().map(|failure| (failure["kind"].clone(), failure["code"].clone())).collect();
    let expected = [("unknown", "unsupported"), ("list", "not-found"), ("push", "denied")];
    assert_eq!(shown, expected.map(|(kind, code)| (json!(kind), json!(code))), "{failures:?}");
    assert_eq!((&failures[2]["path"], &failures[2]["peer"]), (&json!("elsewhere"), &waits["peer"]));
    let shown = String::from_utf8(place.tow(&["failures"]).expect_code(0).stdout).expect("UTF-8");
    assert!(shown.contains(" push elsewhere: denied: files may be pushed below in/ only\n"), "{shown}");
    assert!(shown.lines().count() == 3 && !shown.contains('\u{1b}'), "{shown}");
    drop(wire);
    wait_until("the push is lost", || place.json(&["failures"]).len() == 4);
    let lost = place.json(&["failures"]).remove(0);
    assert_eq!((&lost["kind"], &lost["code"], &lost["path"]), (&json!("push"), &json!("lost"), &json!("in/half")));
    write(&folder.path().join("file"), &bytes);
    run(tow(["push"]).arg(folder.path().join("file")).arg(server.url("in/"))).expect_code(0);
    let counters = &status(&place)["counters"];
    assert_eq!((&counters["pushed"], &counters["pushes_failed"]), (&1.into(), &1.into()), "{counters}");
}

/// A follower by name, if there is one.
pub fn follower(place: &Place, name: &str) -> Option<Value> {
    place.json(&["followers"]).into_iter().find(|follower| follower["name"] == name)
}

#[test]
fn followers_are_listed_with_what_they_lack_also_behind_a_relay() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let source = folder.path().join("source");
    write(&source.join("a/b"), b"one");
    let server = serve(&place, &source, &["--watch", "--settle", "200ms"]);
    let follow = |name: &str, url: &str, options: &[&str]| {
        let mut command = tow(["follow", url, "--name", name]);
        Process::start(command.arg(folder.path().join(name)).args(options))
    };
    let direct = follow("direct", &server.url("a"), &[]);
    let socket = format!("ipc://{}", folder.path().join("relay.sock").display());
    let _relay = follow("relay", &server.url(""), &["--serve", &socket]);
    wait_until("the relay serves", || folder.path().join("relay.sock").exists());
    let _child = follow("child", &format!("{socket}:/"), &[]);
    let is_there = |name: &str| {
        follower(&place, name).is_some_and(|of| of["behind"] == 0 && of["in_place_seq"].as_u64().is_some())
    };
    for name in ["direct", "relay", "child"] {
        wait_until(&format!("{name} has everything: {:?}", follower(&place, name)), || is_there(name));
    }
    let found = follower(&place, "direct").expect("one");
    assert_eq!((&found["path"], &found["live"], &found["via"]), (&"a".into(), &true.into(), &Value::Null));
    assert!(found["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{found}");
    let child = follower(&place, "child").expect("one");
    assert_eq!((&child["via"], &child["peer"]), (&"relay".into(), &Value::Null));

    // One that gives no credit gets nothing.
    let mut wire = Wire::dealer(server.port());
    wire.send(&["follow", ""]).expect("send");
    let plain = || {
        let mut all = place.json(&["followers"]).into_iter();
        all.find(|of| of["name"].is_null() && of["behind"].as_u64() > Some(1))
    };
    wait_until("a follower without credit is behind", || plain().is_some());
    assert_eq!(plain().expect("one")["live"], false);
    // What isn't for a follower doesn't leave it behind.
    write(&source.join("other"), b"two");
    let head = || status(&place)["catalogue"]["seq"].as_u64().expect("a number");
    wait_until("the change is published", || plain().is_some_and(|of| of["behind"] == head()));
    wait_until("all others have it", || ["direct", "relay", "child"].iter().all(|name| is_there(name)));
    let catalogue = &status(&place)["catalogue"];
    assert_eq!((&catalogue["followers"], &catalogue["behind"]), (&3.into(), &head().into()));
    let metrics = get(&place.socket(), "/metrics");
    for line in ["towpath_followers 3", &format!("towpath_follow_lag_changes {}", head()), "towpath_holders 3"] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}: {metrics}");
    }
    drop(wire);
    // One that is gone is remembered by its name.
    direct.signal(Signal::INT);
    direct.finish();
    wait_until("it isn't connected", || follower(&place, "direct").is_some_and(|of| of["peer"].is_null()));
    let table = String::from_utf8(place.tow(&["followers"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("not connected") && table.contains("via relay"), "{table}");
    let shown = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(shown.contains("followers   1, none is behind"), "{shown}");
}

#[test]
fn versions_are_listed_with_their_size_and_how_many_have_them() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let source = folder.path().join("source");
    write(&source.join("a"), b"one");
    write(&source.join("b"), b"four");
    let state = folder.path().join("state");
    let options = ["--watch", "--settle", "200ms", "--accept-publish", "--state", state.to_str().expect("UTF-8")];
    let server = serve(&place, &source, &options);
    let publish = |label: &str| {
        run(&mut tow(["publish", &server.url(""), label, "--timeout", "20s"])).expect_code(0);
    };
    publish("v1");
    let mut command = tow(["follow", &server.url(""), "--versions", "--name", "gpu-1"]);
    let follower_of_versions = Process::start(command.arg(folder.path().join("copy")));
    let versions = || list(&place, "/api/v1/versions", "versions");
    let counts = |version: &Value| ["holders", "missing", "files", "bytes"].map(|name| version[name].as_u64());
    wait_until("it is in place", || counts(&versions()[0]) == [Some(1), Some(0), Some(2), Some(7)]);
    let version = versions()[0]["version"].clone();
    assert_eq!(
        (&versions()[0]["label"], &follower(&place, "gpu-1").expect("one")["version"]),
        (&"v1".into(), &version)
    );
    let newest = || {
        let of = follower(&place, "gpu-1").expect("one");
        (of["wants"].clone(), of["has_newest"].clone())
    };
    let table = || String::from_utf8(place.tow(&["followers"]).expect_code(0).stdout).expect("UTF-8");
    assert_eq!(newest(), ("v1".into(), true.into()));
    assert!(table().contains("versions of /, has v1\n"), "{}", table());
    write(&source.join("a"), b"three");
    follower_of_versions.signal(Signal::STOP);
    publish("v2");
    assert_eq!(newest(), ("v2".into(), false.into()));
    assert!(table().contains(", lacks v2\n"), "{}", table());
    let all = versions();
    assert_eq!(counts(&all[0]), [Some(1), Some(0), Some(2), Some(7)]);
    assert_eq!(counts(&all[1]), [Some(0), Some(1), Some(2), Some(9)]);
    drop(follower_of_versions);
    // By their manifests after a restart. The follower is remembered.
    server.stop(Signal::TERM).expect_code(0);
    let _server = serve(&place, &source, &options);
    let all = list(&place, "/api/v1/versions", "versions");
    assert_eq!(counts(&all[0]), [Some(1), Some(0), Some(2), Some(7)]);
    assert_eq!(counts(&all[1]), [Some(0), Some(1), Some(2), Some(9)]);
}

#[test]
fn the_status_says_what_keeps_files_from_being_published() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let source = folder.path().join("source");
    for index in 0..6 {
        write(&source.join(format!("dir/{index}")), b"x");
    }
    let options = ["--watch", "--settle", "1h", "--max-delete", "3", "--max-watches", "1"];
    let server = serve(&place, &source, &options);
    let catalogue = || status(&place)["catalogue"].clone();
    wait_until("everything is published", || catalogue()["paths"] == 7);
    wait_until("everything was looked at", || catalogue()["watch"]["looked_seconds"].is_f64());
    let now = catalogue();
    assert_eq!((&now["complete"], &now["seq"], &now["watch"]["unwatched"]), (&true.into(), &7.into(), &true.into()));
    assert_eq!(problems(&place, "unwatched").len(), 1);
    // One that somebody has open for writing.
    let open = fs::File::create(source.join("open")).expect("create");
    wait_until("a file isn't finished", || catalogue()["watch"]["waiting_files"] == 1);
    drop(open);
    fs::remove_dir_all(source.join("dir")).expect("rm -r");
    wait_until("the deletions are held", || catalogue()["watch"]["held_deletions"] == 7);
    let reason = catalogue()["watch"]["held_reason"].clone();
    assert!(reason.as_str().is_some_and(|reason| reason.contains("--max-delete")), "{reason}");
    let shown = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(shown.contains("\nWARNING     published directory: 7 deletions are held: "), "{shown}");
    assert_eq!(problems(&place, "held_deletions").len(), 1);
    server.signal(Signal::USR1);
    wait_until("they are released", || catalogue()["watch"]["held_deletions"] == 0 && catalogue()["paths"] == 1);
    assert_eq!((problems(&place, "held_deletions").len(), problems(&place, "unwatched").len()), (0, 0));
}
