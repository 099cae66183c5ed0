//! Peers of a broker that doesn't lead: it relays their connections to the one that does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::support::broker::{Broker, call, work};
use super::support::process::{Process, run, tow};
use super::support::tree::write_secret;
use super::support::{skip, wait_until};
use super::{Cell, await_leader, expect_all, leads, load, worker};

/// Broker of a cell on a port that others know, with a folder for its operator's socket.
struct Member {
    broker: Broker,
    folder: TempDir,
}

impl Member {
    fn start(cell: &Cell, options: &[String]) -> Member {
        // It is free a moment later, and the next ones that the system gives are others.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = tow(["broker", "--bind", &format!("tcp://127.0.0.1:{port}"), "--grace", "0.1"]);
        command.args(["--takeover-after", cell.takeover_after, "--heartbeat", "500ms"]).args(options);
        cell.options(&mut command);
        here(&mut command, folder.path());
        Member { broker: Broker::from_command(&mut command), folder }
    }

    fn json(&self, words: &[&str]) -> Vec<Value> {
        let mut command = tow(words);
        here(command.arg("--json"), self.folder.path());
        let lines = run(&mut command).expect_code(0).stdout;
        let lines = String::from_utf8(lines).expect("text");
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn tow(&self, words: &[&str]) {
        let mut command = tow(words);
        here(&mut command, self.folder.path());
        run(&mut command).expect_code(0);
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.broker.port()))
    }

    fn await_relaying(&self, leader: &Member) {
        let line = format!("connections are relayed to the broker that leads to={}", leader.broker.endpoint());
        wait_until("it relays", || self.broker.log().contains(&line));
    }
}

fn here(command: &mut Command, folder: &Path) {
    command.env("XDG_RUNTIME_DIR", folder).env_remove("RUNTIME_DIRECTORY");
}

/// The one that leads, and a standby.
fn two(cell: &Cell, options: &[String]) -> (Member, Member) {
    let one = Member::start(cell, options);
    await_leader(&one.broker);
    let two = Member::start(cell, options);
    two.await_relaying(&one);
    (one, two)
}

/// Python with pyzmq: beside nats-server, where its package was installed with it.
fn python() -> Option<PathBuf> {
    let beside = std::env::var_os("NATS_SERVER").map(|server| Path::new(&server).with_file_name("python"));
    let candidates = beside.into_iter().chain(["python3".into()]);
    let has_zmq = |python: &PathBuf| {
        let output = Command::new(python).args(["-c", "import zmq; assert zmq.has('curve')"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    candidates.into_iter().find(has_zmq)
}

/// Starts a stock client or worker.
fn stock(python: &Path, role: &str, broker: &Member, count: &str, source: &str, keys: &[String]) -> Process {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cell/stock.py");
    let mut command = Command::new(python);
    command.arg(script).args([role, broker.broker.endpoint(), "echo", count, source]).args(keys);
    Process::start(&mut command)
}

/// Stock peers work through a standby, and through the same one when it leads itself.
fn stock_peers_work_through_a_standby(options: &[String], client_keys: &[String], worker_keys: &[String]) {
    let Some(cell) = Cell::start(1) else { return };
    let Some(python) = python() else { return skip("there is no pyzmq") };
    let (one, two) = two(&cell, options);
    let _worker = stock(&python, "worker", &two, "-", "127.0.0.3", worker_keys);
    let client = stock(&python, "client", &two, "300", "127.0.0.2", client_keys);
    wait_until("there are replies", || client.output().lines().count() > 50);
    let peers = one.json(&["peers"]);
    for (role, source) in [("client", "127.0.0.2:"), ("worker", "127.0.0.3:")] {
        let peer = peers.iter().find(|peer| peer["role"] == role).unwrap_or_else(|| panic!("no {role}: {peers:?}"));
        assert!(peer["address"].as_str().is_some_and(|address| address.starts_with(source)), "{peer}");
        assert_eq!(peer["through"], two.broker.endpoint());
    }
    let status = two.json(&["status"]).remove(0);
    assert_eq!((&status["relay"]["connections"], &status["peers"]), (&2.into(), &0.into()), "{status}");
    assert!(status["relay"]["received_bytes"].as_u64().is_some_and(|bytes| bytes > 1_000), "{status}");
    one.broker.signal(Signal::KILL);
    await_leader(&two.broker);
    let outcome = client.finish().expect_code(0);
    let replies = String::from_utf8(outcome.stdout).expect("text");
    assert_eq!(replies.lines().count(), 300);
    assert_eq!(two.json(&["peers"])[0]["through"], Value::Null);
}

#[test]
fn stock_client_and_worker_go_on_through_the_same_broker() {
    stock_peers_work_through_a_standby(&[], &[], &[]);
}

#[test]
fn encrypted_stock_peers_go_on_through_the_same_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let key = |name: &str| {
        run(&mut tow(["key", "new", &path(name)])).expect_code(0);
        let shown = run(&mut tow(["key", "show", &path(name), "--json"])).expect_code(0).summary();
        shown["key"].as_str().expect("a key").to_owned()
    };
    let [server, client, worker] = ["server", "client", "worker"].map(key);
    std::fs::write(path("authorized"), format!("client {client}\nworker {worker}\n")).expect("write");
    let secret = |name: &str| {
        let text = std::fs::read_to_string(path(&format!("{name}_secret"))).expect("a file");
        let quoted = text.lines().find_map(|line| line.trim().strip_prefix("secret-key = ").map(str::to_owned));
        quoted.expect("a secret").trim_matches('"').to_owned()
    };
    let options = ["--key", &path("server_secret"), "--authorized-keys", &path("authorized")].map(str::to_owned);
    let keys = |name: &str, public: &String| [server.clone(), public.clone(), secret(name)];
    stock_peers_work_through_a_standby(&options, &keys("client", &client), &keys("worker", &worker));
}

#[test]
fn own_peers_go_on_through_a_standby_when_the_leader_is_killed() {
    let Some(cell) = Cell::start(1) else { return };
    let (one, two) = two(&cell, &[]);
    let _echo = worker(&[&two.broker]);
    let load = load(&[&two.broker], 3_000);
    super::await_growth(&cell);
    one.broker.signal(Signal::KILL);
    await_leader(&two.broker);
    expect_all(load.finish(), 3_000);
}

#[test]
fn rules_and_blocks_are_about_the_real_address() {
    let Some(cell) = Cell::start(1) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules");
    write_secret(&rules, "allow anyone from 127.0.0.2 to call echo\nallow anyone from 127.0.0.1 to work echo\n");
    let options = ["--rules".to_owned(), rules.display().to_string()];
    let Some(python) = python() else { return skip("there is no pyzmq") };
    let (one, two) = two(&cell, &options);
    let _echo = work(&[&two.broker], &["echo", "--echo"]);
    stock(&python, "client", &two, "1", "127.0.0.2", &[]).finish().expect_code(0);
    // The standby's own address may only work.
    let refused = run(&mut call(&[&two.broker], &["echo", "hello", "--timeout", "5"]));
    assert!(refused.stderr.contains("403"), "{}", refused.stderr);
    one.tow(&["block", "127.0.0.2"]);
    let _client = stock(&python, "client", &two, "1", "127.0.0.2", &[]);
    let is_refused = |gone: &Value| {
        gone["through"] == two.broker.endpoint() && gone["reason"].as_str().is_some_and(|r| r.contains("blocked"))
    };
    wait_until("it is refused", || one.json(&["gone"]).iter().any(is_refused));
}

/// Sends bytes, and waits until the broker ends the connection.
fn ends(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(bytes).expect("write");
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest);
}

#[test]
fn headers_of_strangers_are_refused_and_it_is_logged() {
    let Some(cell) = Cell::start(1) else { return };
    let (one, two) = two(&cell, &[]);
    let header = |length: u16, block: &[u8]| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
        header.extend(length.to_be_bytes());
        [&header, block].concat()
    };
    let block = [10, 0, 0, 7, 127, 0, 0, 1, 0, 80, 0, 80];
    // None, and one that is guessed.
    ends(one.address(), &header(12, &block));
    let guess = [&block[..], &[0xE0, 0, 48], &[9; 48]].concat();
    ends(one.address(), &header(guess.len() as u16, &guess));
    ends(one.address(), &header(2_000, &[0; 2_000]));
    ends(one.address(), b"\r\n\r\nhello, is anybody there");
    // Through a standby, which doesn't relay it.
    ends(two.address(), &header(12, &block));
    let said = |member: &Member, what: &str| member.broker.log().contains(what);
    for what in ["it has no authenticator", "its authenticator is wrong", "it is too long", "one of version 2"] {
        wait_until("it is logged", || said(&one, what));
    }
    wait_until("the standby logs it", || said(&two, "only the broker that leads a cell takes them"));
    assert_eq!(two.json(&["status"])[0]["relay"]["relayed"], 0);
    // One that stops in the middle is waited for no longer than any handshake, and meanwhile others are served.
    let mut slow = TcpStream::connect(one.address()).expect("connect");
    slow.write_all(&header(12, &block[..5])).expect("write");
    let _echo = work(&[&two.broker], &["echo", "--echo"]);
    let answered = run(&mut call(&[&two.broker], &["echo", "hello", "--timeout", "50"])).expect_code(0);
    assert_eq!(answered.stdout, b"hello");
    assert_eq!(slow.read(&mut [0; 64]).ok(), Some(64), "its greeting, which is sent first");
    drop(slow);
}

#[test]
fn one_standby_relays_500_connections() {
    let Some(cell) = Cell::start(1) else { return };
    let (one, two) = two(&cell, &[]);
    let _echo = worker(&[&two.broker]);
    let mut streams: Vec<TcpStream> = (0..500).map(|_| TcpStream::connect(two.address()).expect("connect")).collect();
    // A greeting of NULL, and READY.
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    let ready = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
    assert_eq!(usize::from(ready[1]), ready.len() - 2);
    for stream in &mut streams {
        stream.write_all(&greeting).expect("write");
        stream.write_all(ready).expect("write");
    }
    wait_until("all are there", || one.json(&["status"])[0]["peers"].as_u64().is_some_and(|peers| peers >= 501));
    expect_all(load(&[&two.broker], 500).finish(), 500);
    assert!(two.json(&["status"])[0]["relay"]["connections"].as_u64().is_some_and(|count| count >= 501));
    drop(streams);
    wait_until("they end", || two.json(&["status"])[0]["relay"]["connections"] == 1);
    assert!(leads(&one.broker) && !leads(&two.broker));
}
