//! Logins at `tow broker`, and its limit of connections per address.

use tempfile::tempdir;

use crate::support::broker::{Broker, call};
use crate::support::process::{Process, run, tow};
use crate::support::wait_until;

#[test]
fn broker_admits_only_users_with_passwords() {
    let folder = tempdir().expect("a folder");
    let passwords = folder.path().join("passwords");
    std::fs::write(&passwords, "ada:lovelace\n").expect("write");
    let passwords = passwords.to_str().expect("letters");
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--plain-passwords", passwords]);
    let as_user = |user: &[&str], password: &str| {
        let mut command = call(&[&broker], &["echo", "hello", "--timeout", "2"]);
        run(command.args(user).env("TOW_PASSWORD", password))
    };
    let mut command = tow(["work", "echo", "--echo", "--user", "ada", "--connect", broker.endpoint()]);
    let worker = Process::start(command.env("TOW_PASSWORD", "lovelace"));
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    for (user, password, hint) in [
        (&["--user", "ada"][..], "byron", "TOW_PASSWORD"),
        (&["--user", "bob"], "lovelace", "TOW_PASSWORD"),
        (&[], "lovelace", "--user"),
    ] {
        let outcome = as_user(user, password).expect_code(1);
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains(hint), "{user:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("lovelace"), "{}", outcome.stderr);
    }
    assert_eq!(as_user(&["--user", "ada"], "lovelace").expect_code(0).stdout, b"hello");
    run(call(&[&broker], &["echo", "hello", "--user", "ada"]).env_remove("TOW_PASSWORD")).expect_code(2);
    assert!(!broker.log().contains("lovelace"), "a password is in the log");
    drop(worker);
}

#[test]
fn connections_per_address_are_limited() {
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--max-peers-per-address", "1"]);
    let mut command = tow(["work", "echo", "--echo", "--connect", broker.endpoint()]);
    let worker = Process::start(&mut command);
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    let outcome = run(&mut call(&[&broker], &["echo", "x", "--timeout", "1"])).expect_code(1);
    assert!(outcome.stderr.contains("no connection"), "{}", outcome.stderr);
    assert!(broker.log().contains("127.0.0.1"), "{}", broker.log());
}
