//! Logins at `tow broker`, and its limit of connections per address.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use rustix::net::{AddressFamily, SocketType};
use tempfile::tempdir;

use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, Server, get_command, run, tow};
use crate::support::tree::{write, write_secret};
use crate::support::wait_until;
use crate::support::wire::{Wire, command, greeting};

#[test]
fn broker_admits_only_users_with_passwords() {
    let folder = tempdir().expect("a folder");
    let passwords = folder.path().join("passwords");
    write_secret(&passwords, "ada:lovelace\n");
    let passwords = passwords.to_str().expect("letters");
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--plain-passwords", passwords]);
    let as_user = |user: &[&str], password: &str| {
        let mut command = call(&[&broker], &["echo", "hello", "--timeout", "50"]);
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
        let outcome = as_user(user, password).expect_code(5);
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains(hint), "{user:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("lovelace"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("the broker refuses this client"), "{}", outcome.stderr);
    }
    assert_eq!(as_user(&["--user", "ada"], "lovelace").expect_code(0).stdout, b"hello");
    run(call(&[&broker], &["echo", "hello", "--user", "ada"]).env_remove("TOW_PASSWORD")).expect_code(2);
    assert!(!broker.log().contains("lovelace"), "a password is in the log");
    drop(worker);
}

#[test]
fn commands_of_a_worker_do_not_get_its_password() {
    let broker = Broker::start();
    let mut worker = tow(["work", "env", "--connect", broker.endpoint(), "--", "env"]);
    let worker = Process::start(worker.env("TOW_PASSWORD", "lovelace"));
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    let environment = run(&mut call(&[&broker], &["env", "x"])).expect_code(0).stdout;
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("TOW_SERVICE=env") && !environment.contains("TOW_PASSWORD"), "{environment}");
}

#[test]
fn password_comes_from_a_file_that_only_its_user_can_read() {
    let folder = tempdir().expect("a folder");
    let (users, password) = (folder.path().join("users"), folder.path().join("password"));
    write_secret(&users, "ada:lovelace\n");
    write_secret(&password, "lovelace\n");
    let (users, password) = (users.to_str().expect("letters"), password.to_str().expect("letters"));
    let login = ["--user", "ada", "--password-file", password];
    let broker = Broker::with(&["--plain-passwords", users]);
    let _echo = work(&[&broker], &[&["echo", "--echo"], &login[..]].concat());
    let ask = || run(call(&[&broker], &["echo", "hello"]).args(login).env("TOW_PASSWORD", "byron"));
    assert_eq!(ask().expect_code(0).stdout, b"hello");
    let file = folder.path().join("file");
    write(&file, b"contents");
    let mut serve = tow(["serve", file.to_str().expect("letters"), "--bind", "tcp://127.0.0.1:0"]);
    let server = Server::from_command(serve.args(["--plain-passwords", users]));
    run(get_command(&server.url(""), &folder.path().join("copy")).args(login)).expect_code(0);
    run(tow(["ls", &server.url("")]).args(login)).expect_code(0);

    for path in [users, password] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("set the mode");
    }
    let mut second = tow(["broker", "--bind", "tcp://127.0.0.1:0", "--plain-passwords", users]);
    for (outcome, path) in [(ask(), password), (run(&mut second), users)] {
        let outcome = outcome.expect_code(1);
        assert!(outcome.stderr.contains(&format!("chmod 600 {path}")), "{}", outcome.stderr);
    }
    run(&mut call(&[&broker], &["echo", "x", "--password-file", password])).expect_code(2);
}

#[test]
fn connections_per_address_are_limited() {
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--max-peers-per-address", "1"]);
    let mut command = tow(["work", "echo", "--echo", "--connect", broker.endpoint()]);
    let worker = Process::start(&mut command);
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    let outcome = run(&mut call(&[&broker], &["echo", "x", "--timeout", "1"])).expect_code(6);
    assert!(outcome.stderr.contains("no connection"), "{}", outcome.stderr);
    assert!(broker.log().contains("127.0.0.1"), "{}", broker.log());
}

/// Connects from this address of the machine.
fn connect_from(address: [u8; 4], port: u16) -> Wire {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddr::from((address, 0))).expect("bind");
    rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).expect("connect");
    Wire::on(TcpStream::from(socket))
}

/// Sends a password; returns a function that waits for the command that answers, or `None` if there is none.
fn log_in(address: [u8; 4], port: u16, password: &str) -> impl FnOnce() -> Option<String> + use<> {
    let mut wire = connect_from(address, port);
    let mut hello = b"\x03ada".to_vec();
    hello.push(password.len() as u8);
    hello.extend_from_slice(password.as_bytes());
    wire.write(&[greeting("PLAIN"), command("HELLO", &hello)].concat()).expect("write");
    move || {
        wire.read_exact(&mut [0; 64]).ok()?;
        let (_, body) = wire.read_frame().ok()?;
        Some(String::from_utf8_lossy(&body[1..]).into_owned())
    }
}

/// Sixty guesses from one address and the right password from another: only the guesses are slowed down.
fn guess(passwords: &str) -> Broker {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("passwords");
    write_secret(&file, passwords);
    let broker = Broker::with(&["--plain-passwords", file.to_str().expect("letters")]);
    let guesses: Vec<_> = (0..60).map(|n| log_in([127, 0, 0, 1], broker.port(), &n.to_string())).collect();
    let honest = log_in([127, 0, 0, 2], broker.port(), "lovelace");
    assert_eq!(honest().expect("an answer"), "WELCOME");
    let answers: Vec<_> = guesses.into_iter().map(|answer| answer()).collect();
    let checked = answers.iter().flatten().count();
    assert!(answers.iter().flatten().all(|answer| answer.starts_with("ERROR")), "{answers:?}");
    assert!((1..30).contains(&checked), "{checked} of {} guesses were checked", answers.len());
    assert!(broker.log().contains("too many failed logins"), "{}", broker.log());
    broker
}

#[test]
fn guesses_are_slowed_down_for_their_address_alone() {
    let broker = guess("ada:lovelace\n");
    assert!(broker.log().contains("tow password"), "{}", broker.log());
}

#[test]
fn guesses_at_hashed_passwords_too() {
    let line = run(tow(["password", "ada"]).env("TOW_PASSWORD", "lovelace")).expect_code(0).stdout;
    let line = String::from_utf8(line).expect("UTF-8");
    assert!(line.starts_with("ada:$argon2id$") && !line.contains("lovelace"), "{line}");
    let broker = guess(&line);
    assert!(!broker.log().contains("not hashed"), "{}", broker.log());
    // Who is in is served, and gets in again.
    let mut worker = tow(["work", "echo", "--echo", "--user", "ada", "--connect", broker.endpoint()]);
    // Its first attempts may come while guesses from its address aren't forgiven.
    let worker = Process::start(worker.env("TOW_PASSWORD", "lovelace"));
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    let mut command = call(&[&broker], &["echo", "hello", "--user", "ada", "--timeout", "50"]);
    assert_eq!(run(command.env("TOW_PASSWORD", "lovelace")).expect_code(0).stdout, b"hello");
}

#[test]
fn lines_of_passwords_are_made_from_a_pipe_or_a_file() {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("password");
    write_secret(&file, "lovelace\nmore\n");
    let quiet = || {
        let mut command = tow(["password", "ada"]);
        command.env_remove("TOW_PASSWORD");
        command
    };
    let made = run(quiet().stdin(std::fs::File::open(&file).expect("open"))).expect_code(0);
    let other = run(quiet().args(["--password-file", file.to_str().expect("letters")])).expect_code(0);
    for line in [&made.stdout, &other.stdout] {
        assert!(line.starts_with(b"ada:$argon2id$v=19$m=19456,t=2,p=1$"), "{}", line.escape_ascii());
    }
    assert_ne!(made.stdout, other.stdout, "each has a salt of its own");
    run(&mut quiet()).expect_code(2);
    run(tow(["password", "a:b"]).env("TOW_PASSWORD", "x")).expect_code(2);
}
