//! `tow block`: peers that are disconnected and kept out, on servers of both kinds, whatever else they check.

use std::path::Path;

use rustix::process::Signal;
use tempfile::tempdir;

use crate::operator::status::Place;
use crate::security::keys::Keys;
use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, Server, get, run, tow};
use crate::support::tree::{write, write_secret};
use crate::support::wait_until;
use crate::support::wire::{COMMAND, Wire};

/// The reason in the ERROR with which a connection ends.
fn error_of(mut wire: Wire) -> String {
    loop {
        let (flags, body) = wire.read_frame().expect("an ERROR before the end");
        if let Some(reason) = body.strip_prefix(b"\x05ERROR").filter(|_| flags & COMMAND != 0) {
            let reason = String::from_utf8_lossy(&reason[1..]).into_owned();
            wire.expect_closed();
            return reason;
        }
    }
}

#[test]
fn an_address_is_disconnected_and_kept_out_of_an_open_server_until_it_is_unblocked() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    write(&folder.path().join("served/file"), b"content");
    let server = place.serve(&folder.path().join("served"));
    let connected = Wire::dealer(server.port());
    wait_until("it is listed", || place.json(&["peers"]).len() == 1);
    let outcome = place.tow(&["block", "127.0.0.0/8", "--reason", "floods"]).expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "blocked 127.0.0.0/8; 1 peer disconnected\n");
    assert!(outcome.stderr.contains("forgets"), "it has no directory for its state: {}", outcome.stderr);
    assert_eq!(error_of(connected), "blocked by the operator: floods");
    for _ in 0..5 {
        Wire::connect(server.port()).expect_closed();
    }
    let gone = || place.json(&["gone"]).into_iter().find(|gone| gone["handshake"] == false).expect("attempts");
    wait_until("five were refused", || gone()["attempts"] == 5);
    assert_eq!(
        (&gone()["id"], &gone()["reason"]),
        (&serde_json::Value::Null, &"blocked by the operator: floods".into())
    );
    let lines = server.log().lines().filter(|line| line.contains("connection refused")).count();
    assert_eq!(lines, 3, "of the first, second and fourth: {}", server.log());
    let blocked = place.json(&["blocked"]).remove(0);
    assert_eq!((&blocked["who"], &blocked["refused"]), (&"127.0.0.0/8".into(), &5.into()));
    assert!(blocked["by"].as_str().is_some_and(|by| by.contains("uid ")), "{blocked}");
    let status = place.json(&["status"]).remove(0);
    assert_eq!((&status["blocked"], &status["gone"]["blocked"]), (&1.into(), &6.into()));
    let copy = folder.path().join("copy");
    assert_ne!(get(&server.url("file"), &copy).status.code(), Some(0));

    place.tow(&["unblock", "127.0.0.1"]).expect_code(4);
    place.tow(&["unblock", "127.0.0.0/8"]).expect_code(0);
    get(&server.url("file"), &copy).expect_code(0);
    for (wrong, why) in [("0.0.0.0/0", "blocks everybody"), ("3.0", "tow peers"), ("10.0.0.1/8", "no address")] {
        let refused = place.tow(&["block", wrong]).expect_code(2);
        assert!(refused.stderr.contains(why), "{wrong}: {}", refused.stderr);
    }
    // It ends by itself.
    place.tow(&["block", "127.0.0.1", "--for", "1s"]).expect_code(0);
    wait_until("the block is over", || get(&server.url("file"), &copy).status.code() == Some(0));
    assert!(place.json(&["block"]).is_empty());
}

#[test]
fn a_key_and_a_user_are_kept_out_with_the_reason_and_after_a_restart() {
    let (place, keys) = (Place::new(), Keys::new());
    let journal = keys.path("journal").display().to_string();
    let (server, client) = (keys.server(), keys.client("alice"));
    let start = || {
        let options: Vec<&str> = server.iter().map(String::as_str).chain(["--journal", &journal]).collect();
        place.broker(&options)
    };
    let broker = start();
    let client: Vec<&str> = client.iter().map(String::as_str).collect();
    let worker = work(&[&broker], &[&["echo", "--echo"], &client[..]].concat());
    let ask = |broker: &Broker| run(call(&[broker], &["echo", "hello", "--timeout", "50"]).args(&client));
    ask(&broker).expect_code(0);
    let outcome = place.tow(&["block", &keys.public("alice"), "--reason", "lost laptop"]).expect_code(0);
    assert!(String::from_utf8_lossy(&outcome.stdout).contains("; 1 peer disconnected"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    let refused = ask(&broker).expect_code(5);
    assert!(refused.stderr.contains("blocked by the operator: lost laptop"), "{}", refused.stderr);
    wait_until("the worker says why", || worker.log().contains("lost laptop"));
    let gone = || place.json(&["gone"]).into_iter().find(|gone| gone["handshake"] == false).expect("an attempt");
    assert_eq!(gone()["key"], *keys.public("alice"));

    // By another name that it has.
    broker.signal(Signal::TERM);
    broker.finish().expect_code(0);
    let broker = start();
    ask(&broker).expect_code(5);
    place.tow(&["block", "alice", "--for", "1h"]).expect_code(0);
    let who = |blocked: &serde_json::Value| blocked["who"].as_str().expect("text").to_owned();
    let listed: Vec<_> = place.json(&["block"]).iter().map(who).collect();
    assert_eq!(listed, ["alice".to_owned(), format!("key:{}", keys.public("alice"))]);
    place.tow(&["unblock", &listed[1]]).expect_code(0);
    ask(&broker).expect_code(5);
    place.tow(&["unblock", "alice"]).expect_code(0);
    let _worker = work(&[&broker], &[&["echo", "--echo"], &client[..]].concat());
    ask(&broker).expect_code(0);

    // What can't be read must not let anybody in.
    broker.signal(Signal::TERM);
    broker.finish().expect_code(0);
    write(&keys.path("journal").join("blocked"), b"{\"blocked\":2}\n");
    let mut command = tow(["broker", "--bind", "tcp://127.0.0.1:0", "--journal", &journal]);
    let failed = run(&mut command).expect_code(1);
    assert!(failed.stderr.contains("version is 2") && failed.stderr.contains(&journal), "{}", failed.stderr);
}

#[test]
fn a_user_is_refused_before_the_password_and_a_local_user_by_number() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let passwords = folder.path().join("passwords");
    write_secret(&passwords, "ann:secret\nbob:secret\n");
    let socket = format!("ipc://{}", folder.path().join("socket").display());
    write(&folder.path().join("served/file"), b"content");
    let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0", "--bind", &socket]);
    command.arg(folder.path().join("served")).arg("--plain-passwords").arg(&passwords);
    let server = Server::from_command(command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY"));
    let list = |user: &str, at: &str| {
        let url = if at == "ipc" { format!("{socket}:/") } else { server.url("") };
        run(tow(["ls", &url, "--user", user]).env("TOW_PASSWORD", "secret"))
    };
    list("ann", "tcp").expect_code(0);
    place.tow(&["block", "ann"]).expect_code(0);
    let refused = list("ann", "tcp").expect_code(5);
    assert!(refused.stderr.contains("blocked by the operator"), "{}", refused.stderr);
    list("bob", "tcp").expect_code(0);
    list("bob", "ipc").expect_code(0);
    let uid = format!("uid:{}", rustix::process::geteuid().as_raw());
    place.tow(&["block", &uid]).expect_code(0);
    let local = Process::start(tow(["ls", &format!("{socket}:/"), "--user", "bob"]).env("TOW_PASSWORD", "secret"));
    wait_until("it was refused", || {
        place.json(&["block"]).iter().any(|block| block["who"] == *uid && block["refused"] != 0)
    });
    drop(local);
    list("bob", "tcp").expect_code(0);
}

#[test]
fn a_service_keeps_its_blocks_where_it_has_its_state_unless_that_is_served() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let served = folder.path().join("served");
    write(&served.join("file"), b"content");
    let [state, served_state] = [folder.path().join("state"), served.join("state")];
    for directory in [&state, &served_state] {
        std::fs::create_dir(directory).expect("mkdir");
    }
    let audit = folder.path().join("audit");
    let start = |state: &Path| {
        let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0", "--audit"]);
        command.arg(&audit).arg(&served).env("STATE_DIRECTORY", state);
        Server::from_command(command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY"))
    };
    let server = start(&served_state);
    assert!(place.tow(&["block", "10.0.0.7"]).expect_code(0).stderr.contains("forgets"));
    server.kill();
    let server = start(&state);
    assert!(place.json(&["block"]).is_empty());
    let outcome = place.tow(&["block", "2001:db8::/64", "--for", "1day", "--reason", "a\u{202e}b"]).expect_code(0);
    assert_eq!(outcome.stderr, "");
    get(&server.url("file"), &folder.path().join("copy")).expect_code(0);
    server.kill();
    let server = start(&state);
    let blocked = place.json(&["block"]).remove(0);
    let left = blocked["left_seconds"].as_u64().expect("a number");
    assert!((1..=86_400).contains(&left) && blocked["who"] == "2001:db8::/64", "{blocked}");
    let table = String::from_utf8(place.tow(&["block"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("a\\u{202e}b") && !table.contains('\u{202e}'), "{table}");
    let lines = std::fs::read_to_string(&audit).expect("an audit file");
    assert!(lines.lines().any(|line| line.contains("\"block\"") && line.contains("2001:db8::/64")), "{lines}");
    place.tow(&["block", "127.0.0.1"]).expect_code(0);
    Wire::connect(server.port()).expect_closed();
}

#[test]
fn a_server_that_watches_nothing_keeps_its_blocks_in_a_state_directory_that_it_makes() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    write(&folder.path().join("served/file"), b"content");
    let state = folder.path().join("state");
    let start = || {
        let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0", "--state"]);
        command.arg(&state).arg(folder.path().join("served"));
        Server::from_command(command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY"))
    };
    let server = start();
    assert_eq!(place.tow(&["block", "10.0.0.7"]).expect_code(0).stderr, "");
    server.kill();
    let _server = start();
    assert_eq!(place.json(&["block"]).remove(0)["who"], "10.0.0.7");
}
