//! An operator's view of a running server or broker, and actions: `tow status` and its kind, and the socket under them.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::support::broker::{Broker, call, work};
use crate::support::process::{Outcome, Process, Server, run, tow};
use crate::support::tree::write;
use crate::support::wait_until;
use crate::support::wire::Wire;

/// Bytes of a file that is more than a client and the sockets hold.
const SIZE: usize = 64 << 20;

/// A directory for the sockets of one test's servers.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempdir().expect("a folder"))
    }

    pub fn serve(&self, path: &Path) -> Server {
        let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0"]);
        Server::from_command(command.arg(path).env("XDG_RUNTIME_DIR", self.0.path()).env_remove("RUNTIME_DIRECTORY"))
    }

    pub fn broker(&self, arguments: &[&str]) -> Broker {
        let mut command = tow(["broker", "--bind", "tcp://127.0.0.1:0", "--grace", "0.1"]);
        Broker::from_command(
            command.args(arguments).env("XDG_RUNTIME_DIR", self.0.path()).env_remove("RUNTIME_DIRECTORY"),
        )
    }

    pub fn tow(&self, arguments: &[&str]) -> Outcome {
        run(tow(arguments).env("XDG_RUNTIME_DIR", self.0.path()).env_remove("RUNTIME_DIRECTORY"))
    }

    /// The objects that a command prints.
    pub fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let outcome = self.tow(&[arguments, &["--json"]].concat()).expect_code(0);
        let text = String::from_utf8(outcome.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Sockets of servers, by name.
    fn sockets(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.0.path().join("towpath")).into_iter().flatten();
        files.map(|file| file.expect("a file").path()).collect()
    }

    pub fn socket(&self) -> PathBuf {
        let sockets = self.sockets();
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        sockets[0].clone()
    }
}

/// A request over the socket, and the whole reply.
fn http(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("connect");
    stream.write_all(request.as_bytes()).expect("write");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    reply
}

pub fn get(socket: &Path, path: &str) -> String {
    http(socket, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

#[test]
fn a_client_is_listed_with_what_it_does_and_comes_back_after_a_kick() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let source = folder.path().join("served/sub/large.bin");
    write(&source, &vec![7; SIZE]);
    let server = place.serve(&folder.path().join("served"));
    let status = &place.json(&["status"])[0];
    assert_eq!((&status["program"], &status["state"], &status["peers"]), (&"serve".into(), &"ready".into(), &0.into()));
    assert_eq!(status["endpoints"][0], server.endpoint());

    // Nobody reads what it writes, so it reads no more.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = tow(["get", &server.url("sub/large.bin"), "-"]);
    let client = Process::with_output(&mut command, writer.into());
    drop(command);
    let mut transfers = Vec::new();
    wait_until("the transfer waits for its client", || {
        let before = std::mem::replace(&mut transfers, place.json(&["transfers"]));
        let waits = |transfer: &Value| transfer["waits_for"] == "frozen" && transfer["sent_bytes"] != 0;
        let is_same = |transfer: &Value| before.first().is_some_and(|of| of["sent_bytes"] == transfer["sent_bytes"]);
        transfers.first().is_some_and(|transfer| waits(transfer) && is_same(transfer))
    });
    assert_eq!((&transfers[0]["path"], &transfers[0]["files"]), (&"sub/large.bin".into(), &1.into()));
    let peer = place.json(&["peers"]).remove(0);
    assert!(peer["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{peer}");
    assert_eq!((&peer["id"], &peer["transfers"]), (&transfers[0]["peer"], &1.into()));
    let table = String::from_utf8(place.tow(&["peers"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.lines().count() == 2 && table.contains("1 transfer"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");

    let id = peer["id"].as_str().expect("an id").to_owned();
    place.tow(&["kick", &id, "--reason", "make space"]).expect_code(0);
    let gone = place.json(&["gone"]).remove(0);
    assert_eq!(gone["id"], *id);
    assert!(gone["reason"].as_str().is_some_and(|reason| reason.contains("make space")), "{gone}");
    // Another connection, perhaps in the same slot, isn't the one that is gone.
    let _other = Wire::dealer(server.port());
    let other = || place.json(&["peers"]).into_iter().find(|peer| peer["transfers"] == 0);
    wait_until("the other is listed", || other().is_some());
    place.tow(&["kick", &id]).expect_code(4);
    assert_ne!(other().expect("still there")["id"], *id);
    let copied = std::io::copy(&mut { reader }, &mut std::io::sink()).expect("the content");
    assert_eq!(copied, SIZE as u64, "by a second connection");
    client.finish().expect_code(0);
    wait_until("the second connection is gone too", || place.json(&["gone"]).len() == 2);
}

#[test]
fn a_broker_shows_services_workers_and_requests_that_wait() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let status = &place.json(&["status"])[0];
    assert_eq!(
        (&status["program"], &status["journal"], &status["workers"]),
        (&"broker".into(), &Value::Null, &0.into())
    );
    let at = ["--connect", broker.endpoint()];
    let hostile = "hostile\u{202e}";
    let _hostile = Process::start(tow(["call", hostile, "hello"]).args(at));
    let call = Process::start(tow(["call", "echo", "hello"]).args(at));
    let waiting = |service: &str| place.json(&["services", service]).first().is_some_and(|found| found["waiting"] == 1);
    wait_until("the requests wait", || waiting(hostile) && waiting("echo"));
    let table = String::from_utf8(place.tow(&["services"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("hostile\\u{202e}") && !table.contains('\u{202e}'), "{table}");
    let metrics = get(&place.socket(), "/metrics?per=service");
    assert!(metrics.contains("towpath_service_requests_waiting{service=\"hostile\u{202e}\"} 1\n"), "{metrics}");
    assert!(metrics.contains("towpath_requests_waiting 2\n") && metrics.contains("\ntowpath_workers 0\n"), "{metrics}");

    let _worker = work(&[&broker], &["echo", "--", "cat"]);
    assert_eq!(call.finish().expect_code(0).stdout, b"hello");
    let workers = place.json(&["workers", "echo"]);
    assert_eq!((workers.len(), &workers[0]["held"], &workers[0]["protocol"]), (1, &0.into(), &"numbered".into()));
    assert!(place.json(&["workers", hostile]).is_empty());
    let peer = place.json(&["peers"]).into_iter().find(|peer| peer["role"] == "worker").expect("a worker");
    assert_eq!((&peer["id"], &peer["service"]), (&workers[0]["peer"], &"echo".into()));
    // It connects again by itself.
    let id = peer["id"].as_str().expect("an id").to_owned();
    place.tow(&["kick", &id]).expect_code(0);
    let has_returned = || place.json(&["workers"]).first().is_some_and(|worker| worker["peer"] != *id);
    wait_until("the worker is back", has_returned);
}

#[test]
fn services_whose_names_are_not_utf8_are_distinct_and_each_is_steered() {
    let said = |outcome: Outcome| String::from_utf8(outcome.expect_code(0).stdout).expect("UTF-8");
    let place = Place::new();
    let broker = place.broker(&[]);
    let at = ["--connect", broker.endpoint()];
    let [done, purged] = ["//4=", "/v8="].map(|b64| Process::start(tow(["call", "--b64", b64, "hello"]).args(at)));
    let service = |b64: &str| place.json(&["services", "--b64", b64]);
    let waits = |b64: &str| service(b64).first().is_some_and(|found| found["waiting"] == 1);
    wait_until("the requests wait", || waits("//4=") && waits("/v8="));
    let table = said(place.tow(&["services"]));
    assert!(table.contains(" \\xff\\xfe\n") && table.contains(" \\xfe\\xff\n"), "{table}");

    assert_eq!(said(place.tow(&["pause", "--b64", "/v8="])), "paused \\xfe\\xff\n");
    assert_eq!([&service("/v8=")[0]["paused"], &service("//4=")[0]["paused"]], [true, false]);
    let expected = serde_json::json!([{ "service": "\u{fffd}\u{fffd}", "service_b64": "/v8=" }]);
    assert_eq!(place.json(&["status"])[0]["paused"], expected);
    let status = said(place.tow(&["status"]));
    assert!(status.contains(" \\xfe\\xff; tow resume"), "{status}");

    let _worker = work(&[&broker], &["--b64", "//4=", "--", "sh", "-c", "printf %s \"$TOW_SERVICE\""]);
    assert_eq!(done.finish().expect_code(0).stdout, b"\xff\xfe");
    for list in ["peers", "workers"] {
        let has = |entry: &Value| entry["service_b64"] == "//4=";
        assert_eq!(place.json(&[list]).iter().filter(|entry| has(entry)).count(), 1, "{list}");
    }
    assert_eq!(said(place.tow(&["purge", "--b64", "/v8="])), "purged 1 request of \\xfe\\xff\n");
    purged.finish().expect_code(1);
    let audit = get(&place.socket(), "/api/v1/audit");
    assert!(audit.contains("\"object_b64\":\"/v8=\""), "{audit}");
    place.tow(&["pause", "--b64", "no base64"]).expect_code(2);
}

#[test]
fn metrics_and_health_are_plain_http() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    write(&folder.path().join("a"), b"a");
    let server = place.serve(folder.path());
    let socket = place.socket();
    run(&mut tow(["get", &server.url("a"), "-"])).expect_code(0);
    for path in ["/healthz", "/readyz"] {
        assert!(get(&socket, path).starts_with("HTTP/1.1 200 OK\r\n"), "{path}");
    }
    let reply = get(&socket, "/metrics");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect(line);
        assert!(name.starts_with("towpath_") && value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(body.contains("\ntowpath_files_total{outcome=\"confirmed\"} 1\n"), "{body}");
    assert!(body.contains("\n# TYPE towpath_network_bytes_total counter\n"), "{body}");
    let asked = "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text, text/plain;q=0.5\r\n\r\n";
    let open = http(&socket, asked);
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.contains("\n# TYPE towpath_network_bytes counter\n") && open.ends_with("# EOF\n"), "{open}");

    for (request, status) in [
        ("GET /api/v1/nothing HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET /api/v1/services HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET /api/v1/peers?limit=0 HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
        ("POST /api/v1/peers HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "405"),
        ("GET /api/v1/peers/0.0/disconnect HTTP/1.1\r\nHost: a\r\n\r\n", "405"),
        ("POST /api/v1/peers/x/disconnect HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "400"),
        ("POST /api/v1/peers/77.0/disconnect HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "404"),
        ("POST /api/v1/peers/0.0/disconnect HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n", "413"),
    ] {
        let reply = http(&socket, request);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {reply}");
    }
    let endless = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(64 << 10));
    let reply = std::panic::catch_unwind(|| http(&socket, &endless)).unwrap_or_default();
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431 "), "{reply}");
    // Connections that say nothing don't keep others out.
    let silent: Vec<_> = (0..10).map(|_| UnixStream::connect(&socket).expect("connect")).collect();
    place.tow(&["status"]).expect_code(0);
    drop(silent);
}

#[test]
fn the_socket_is_for_its_user_alone_and_gone_at_the_end() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let server = place.serve(folder.path());
    let socket = std::fs::symlink_metadata(place.socket()).expect("a socket");
    assert!(socket.file_type().is_socket());
    assert_eq!((socket.mode() & 0o777, socket.uid()), (0o600, rustix::process::geteuid().as_raw()));
    let folder_mode = std::fs::metadata(place.0.path().join("towpath")).expect("a folder").permissions().mode();
    assert_eq!(folder_mode & 0o777, 0o700);
    server.stop(Signal::TERM).expect_code(0);
    assert_eq!(place.sockets(), [] as [PathBuf; 0]);
    place.tow(&["status"]).expect_code(6);
    // That of a killed server is removed by the next one, and never one where somebody listens.
    place.serve(folder.path()).kill();
    let (abandoned, other) = (place.socket(), place.0.path().join("towpath/other.sock"));
    let _listener = UnixListener::bind(&other).expect("listen");
    let server = place.serve(folder.path());
    assert!(!abandoned.exists() && other.exists(), "{:?}", place.sockets());
    let mut second = tow(["serve", "--bind", "tcp://127.0.0.1:0", "--admin-socket"]);
    let second = Server::from_command(second.args([&other, folder.path()]));
    wait_until("the second says that it has none", || second.log().contains("no socket for tow status"));
    drop(server);
}

#[test]
fn several_servers_are_distinguished() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    place.tow(&["peers"]).expect_code(6);
    let (one, two, broker) = (place.serve(folder.path()), place.serve(folder.path()), place.broker(&[]));
    let all = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    for endpoint in [one.endpoint(), two.endpoint(), broker.endpoint()] {
        assert!(all.contains(endpoint), "{all}");
    }
    let choice = place.tow(&["peers"]).expect_code(2).stderr;
    assert!(choice.contains("--admin") && choice.contains(one.endpoint()), "{choice}");
    // There is one broker.
    place.tow(&["services"]).expect_code(0);
    assert_eq!(place.json(&["status", "--admin", "broker"])[0]["endpoints"][0], broker.endpoint());
    let pid = place.json(&["status"])[0]["pid"].to_string();
    assert_eq!(place.json(&["status", "--admin", &pid]).len(), 1);
}

/// One whose event loop hangs is not passed over in silence.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    std::fs::create_dir(place.0.path().join("towpath")).expect("mkdir");
    let hung = UnixListener::bind(place.0.path().join("towpath/serve-1.sock")).expect("listen");
    let _answering = std::thread::spawn(move || {
        for stream in hung.incoming() {
            let mut stream = stream.expect("a connection");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 17\r\n\r\n{\"error\": \"hung\"}");
        }
    });
    let alone = place.tow(&["status"]).expect_code(1);
    assert!(alone.stderr.contains("serve-1.sock: hung"), "{}", alone.stderr);
    let server = place.serve(folder.path());
    let both = place.tow(&["status"]).expect_code(0);
    assert!(both.stderr.contains("serve-1.sock: hung"), "{}", both.stderr);
    assert!(String::from_utf8_lossy(&both.stdout).contains(server.endpoint()), "{both:?}");
}

#[test]
fn a_service_manager_is_notified() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("bind");
    manager.set_read_timeout(Some(crate::support::DEADLINE)).expect("a deadline");
    let next = || {
        let mut message = [0; 256];
        let length = manager.recv(&mut message).expect("a message in time");
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let mut command = tow(["broker", "--bind", "tcp://127.0.0.1:0", "--grace", "0"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").env("RUNTIME_DIRECTORY", folder.path());
    let broker = Broker::from_command(&mut command);
    let mut said = Vec::new();
    while !(said.iter().any(|line| line == "READY=1") && said.iter().any(|line| line == "WATCHDOG=1")) {
        said.extend(next().lines().map(str::to_owned));
    }
    let socket = folder.path().join("admin.sock");
    run(tow(["status", "--admin"]).arg(&socket)).expect_code(0);
    broker.signal(Signal::TERM);
    broker.finish().expect_code(0);
    while !said.iter().any(|line| line == "STOPPING=1") {
        said.extend(next().lines().map(str::to_owned));
    }
    assert!(!socket.exists());
}

#[test]
fn a_paused_service_takes_requests_and_gives_none_also_after_a_restart() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("journal");
    let arguments = ["--journal", journal.to_str().expect("UTF-8")];
    let broker = place.broker(&arguments);
    let worker = work(&[&broker], &["echo", "--", "cat"]);
    place.tow(&["pause", "echo"]).expect_code(0);
    let calls: Vec<_> =
        (0..2).map(|_| Process::start(&mut tow(["call", "echo", "hello", "--connect", broker.endpoint()]))).collect();
    let waiting =
        || place.json(&["services", "echo"]).first().map_or(0, |found| found["waiting"].as_u64().unwrap_or(0));
    wait_until("both requests wait although there is a worker", || waiting() == 2);
    let status = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(status.contains("\nPAUSED      echo; tow resume"), "{status}");
    let table = String::from_utf8(place.tow(&["services"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("PAUSED  echo"), "{table}");
    // What waits is ended only if it is as much as the operator has seen.
    let refused = place.tow(&["purge", "echo", "--expect", "3"]).expect_code(5);
    assert!(refused.stderr.contains("waiting requests: 2"), "{}", refused.stderr);
    assert_eq!(waiting(), 2);
    let purged = place.tow(&["purge", "echo", "--expect", "2"]).expect_code(0);
    assert_eq!(purged.stdout, b"purged 2 requests of echo\n");
    for call in calls {
        let outcome = call.finish();
        assert!(!outcome.status.success() && outcome.stderr.contains("purged by the operator"), "{outcome:?}");
    }
    let counters = &place.json(&["status"])[0]["counters"];
    assert_eq!((waiting(), &counters["failed"], &counters["purged"]), (0, &0.into(), &2.into()));
    let purged = place.tow(&["purge", "echo"]).expect_code(0);
    assert_eq!(purged.stdout, b"purged 0 requests of echo\n");
    drop(worker);
    broker.signal(Signal::TERM);
    broker.finish().expect_code(0);

    let broker = place.broker(&arguments);
    assert_eq!(place.json(&["status"])[0]["paused"], serde_json::json!(["echo"]));
    wait_until("it says so", || broker.log().contains("this service is paused"));
    let _worker = work(&[&broker], &["echo", "--", "cat"]);
    let call = Process::start(&mut tow(["call", "echo", "hello", "--connect", broker.endpoint()]));
    wait_until("the request waits, and none that was purged", || waiting() == 1);
    place.tow(&["resume", "echo"]).expect_code(0);
    assert_eq!(call.finish().expect_code(0).stdout, b"hello");
    assert_eq!(place.json(&["status"])[0]["paused"], serde_json::json!([]));
}

#[test]
fn a_server_that_is_stopped_is_named_and_the_others_are_shown() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let server = place.serve(folder.path());
    let _broker = place.broker(&[]);
    server.pause();
    let outcome = place.tow(&["status"]).expect_code(0);
    assert!(String::from_utf8_lossy(&outcome.stdout).contains("tow broker"), "{:?}", outcome.stdout);
    assert!(outcome.stderr.contains("serve-") && outcome.stderr.contains("no reply in 2s"), "{}", outcome.stderr);
    let outcome = place.tow(&["status", "--check"]).expect_code(1);
    assert!(String::from_utf8_lossy(&outcome.stdout).contains("no problems known"), "{:?}", outcome.stdout);
    assert!(outcome.stderr.contains("no reply in 2s"), "{}", outcome.stderr);
    // Another one than is meant isn't even asked.
    for arguments in [&["status", "--admin", "broker"][..], &["services"]] {
        assert_eq!(place.tow(arguments).expect_code(0).stderr, "", "{arguments:?}");
    }
    let outcome = place.tow(&["status", "--admin", "serve"]).expect_code(1);
    assert!(outcome.stderr.contains("its process is stopped"), "{}", outcome.stderr);
    server.signal(Signal::CONT);
}

#[test]
fn a_paused_service_is_named_by_who_waits_for_it() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let outcome = place.tow(&["pause", "resise"]).expect_code(0);
    assert!(outcome.stderr.contains("resise has no worker and no request"), "{}", outcome.stderr);
    let _worker = work(&[&broker], &["resize", "--echo"]);
    wait_until("a worker is there", || !place.json(&["workers", "resize"]).is_empty());
    assert_eq!(place.tow(&["pause", "resize"]).expect_code(0).stderr, "");
    let asking = Process::start(&mut call(&[&broker], &["resize", "hello"]));
    wait_until("it says so", || asking.log().contains("resize is paused"));
    place.tow(&["resume", "resize"]).expect_code(0);
    assert_eq!(asking.finish().expect_code(0).stdout, b"hello");
}
