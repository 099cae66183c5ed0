//! Peers that send nonsense, too much, too little or nothing: they cost the server next to nothing, and others are served
//! as usual.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tempfile::{TempDir, tempdir};

use crate::support::broker::Broker;
use crate::support::process::{Server, get};
use crate::support::random::Random;
use crate::support::tree::{digest, random_file};
use crate::support::wire::{COMMAND, LONG, MORE, Wire, command, frame, greeting, long_header, ready};
use crate::support::{DEADLINE, wait_until};

/// Most memory that a server may grow by under any of these attacks.
const GROWTH_KIB: u64 = 16 << 10;

/// Server with a small and a large file, and its memory after one transfer.
struct Fixture {
    folder: TempDir,
    server: Server,
    resident_kib: u64,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempdir().expect("a folder");
        random_file(&folder.path().join("small"), 100_000, 1);
        random_file(&folder.path().join("large"), 48 << 20, 2);
        let server = Server::start(folder.path());
        let mut fixture = Self { folder, server, resident_kib: 0 };
        fixture.expect_service();
        fixture.resident_kib = fixture.server.resident_kib();
        fixture
    }

    /// Checks that another client gets a file soon.
    #[track_caller]
    fn expect_service(&mut self) {
        self.server.expect_alive();
        let copy = self.folder.path().join("copy-of-small");
        // It may exist from an earlier call.
        let _ = std::fs::remove_file(&copy);
        let outcome = get(&self.server.url("small"), &copy).expect_code(0);
        assert!(outcome.seconds < 20.0, "it took {} s", outcome.seconds);
        assert_eq!(digest(&copy), digest(&self.folder.path().join("small")));
    }

    #[track_caller]
    fn expect_flat_memory(&self) {
        let now = self.server.resident_kib();
        assert!(now < self.resident_kib + GROWTH_KIB, "memory went from {} to {now} KiB", self.resident_kib);
    }
}

#[test]
fn garbage_instead_of_a_greeting_is_refused() {
    let mut fixture = Fixture::new();
    let mut random = Random::new(3);
    let mut attacks = vec![
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(10),
        vec![0; 64],
        vec![0xff; 64],
        // ZMTP 1.0: a routing id of 4 bytes and a message; ZMTP 2.0: its signature and revision 1.
        b"\x05\x00abcd\x06\x00hello".to_vec(),
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\x00\x00".to_vec(),
        greeting("GSSAPI"),
        greeting("CURVE"),
        greeting("NULLnull"),
        greeting(""),
        [greeting("NULL"), random.bytes(1000)].concat(),
    ];
    attacks.extend((0..20).map(|_| random.bytes(200)));
    for attack in attacks {
        let mut wire = Wire::connect(fixture.server.port());
        // An error means that the connection was closed already.
        let _ = wire.write(&attack);
        wire.expect_closed();
    }
    fixture.expect_flat_memory();
    fixture.expect_service();
    // The log explains it to users of an old library.
    let log = fixture.server.log();
    assert!(log.contains("ZMTP 1") && log.contains("ZMTP 2"), "{log}");
}

#[test]
fn bad_handshake_commands_are_refused() {
    let mut fixture = Fixture::new();
    let property = |name: &[u8], announced: u32, value: &[u8]| {
        let mut bytes = vec![name.len() as u8];
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&announced.to_be_bytes());
        bytes.extend_from_slice(value);
        bytes
    };
    let many: Vec<u8> = (0..20_000).flat_map(|i| property(format!("X-{i}").as_bytes(), 1, b"x")).collect();
    let attacks = [
        command("READY", &property(b"Socket-Type", u32::MAX, b"DEALER")),
        command("READY", &property(b"Socket-Type", 7, b"DEALER")),
        command("READY", &property(b"Socket-Type", 6, b"WIZARD")),
        command("READY", &property(b"Socket-Type", 3, b"PUB")),
        command("READY", &[255]),
        command("READY", &many),
        command("READY", &property(b"Identity", 300, &[1; 300])),
        command("ERROR", b"\xffshort"),
        command("", b""),
        frame(COMMAND, b""),
        frame(COMMAND, b"\xffREADY"),
        frame(0, b"a message before READY"),
        long_header(COMMAND, u64::MAX),
        long_header(COMMAND, 1 << 40),
    ];
    for attack in attacks {
        let mut wire = Wire::connect(fixture.server.port());
        // An error means that the connection was closed already.
        let _ = wire.write(&[greeting("NULL"), attack.clone()].concat());
        wire.expect_closed();
        fixture.server.expect_alive();
    }
    fixture.expect_flat_memory();
    fixture.expect_service();
}

#[test]
fn absurd_frame_lengths_are_refused_without_memory() {
    let mut fixture = Fixture::new();
    for length in [1 << 63, u64::MAX, u64::MAX - 8, i64::MAX as u64, 1 << 40] {
        for flags in [0, MORE, COMMAND] {
            let mut wire = Wire::dealer(fixture.server.port());
            // An error means that the connection was closed already.
            let _ = wire.write(&[long_header(flags, length), vec![7; 100]].concat());
            wire.expect_closed();
        }
    }
    fixture.expect_flat_memory();
    fixture.expect_service();
}

#[test]
fn endless_multipart_message_is_refused_without_memory() {
    let mut fixture = Fixture::new();
    for body in [vec![], vec![7; 100], vec![7; 60_000]] {
        let mut wire = Wire::dealer(fixture.server.port());
        let batch = frame(MORE, &body).repeat(if body.len() > 1000 { 10 } else { 1000 });
        // At most a million small frames, or 600 MB of large ones; the server closes before or after the last one.
        for _ in 0..1000 {
            if wire.write(&batch).is_err() {
                break;
            }
        }
        wire.expect_closed();
        fixture.expect_flat_memory();
    }
    fixture.expect_service();
}

#[test]
fn short_frames_in_the_long_form_are_accepted() {
    let fixture = Fixture::new();
    let mut wire = Wire::dealer(fixture.server.port());
    for (body, flags) in [(b"TOW1".as_slice(), MORE), (br#"{"op":"hello"}"#, 0)] {
        let bytes = [long_header(flags | LONG, body.len() as u64), body.to_vec()].concat();
        for byte in bytes {
            // One byte per packet: any split must work.
            wire.write(&[byte]).expect("send");
        }
    }
    assert_eq!(wire.control()["re"], "hello");
}

#[test]
fn trickled_handshake_ends_at_its_deadline() {
    let mut fixture = Fixture::new();
    let bytes = [greeting("NULL"), ready("DEALER")].concat();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, fixture.server.port())).expect("connect");
    stream.set_nodelay(true).expect("set nodelay");
    let silent = Wire::connect(fixture.server.port());
    let start = Instant::now();
    let mut trickled = 0;
    // At one byte a second it would take over two minutes; a deadline for each read would never end it.
    for byte in bytes {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        trickled += 1;
        assert!(start.elapsed() < DEADLINE, "{trickled} bytes were trickled for {DEADLINE:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    silent.expect_closed();
    fixture.expect_service();
}

#[test]
fn clients_that_never_read_take_no_memory_and_stall_no_one() {
    let mut fixture = Fixture::new();
    let mut stalled = Vec::new();
    for index in 0..24 {
        let mut wire = Wire::dealer(fixture.server.port());
        match index % 3 {
            // The whole file in the plain dialect, followed by more requests.
            0 => (0..4).for_each(|_| wire.send(&[b"fetch".as_slice(), b"large"]).expect("send")),
            1 => (0..48_u64).for_each(|piece| {
                let offset = (piece << 20).to_string();
                wire.send(&[b"fetch".as_slice(), b"large", offset.as_bytes(), b"1048576"]).expect("send");
            }),
            _ => {
                let request = json!({"op": "fetch", "id": 1, "digest": "none", "credit_bytes": 1_u64 << 50,
                    "files": vec![json!({"path": "large"}); 20]});
                wire.request(&request).expect("send");
            }
        }
        stalled.push(wire);
    }
    for _ in 0..5 {
        fixture.expect_service();
        fixture.expect_flat_memory();
    }
    // Slow clients still get what they asked for.
    for mut wire in stalled.drain(..2) {
        assert!(!wire.receive().expect("the first chunk").is_empty());
    }
}

/// The map of a file's holes isn't kept per receiver.
#[test]
fn sparse_file_to_clients_that_never_read_takes_no_memory() {
    let mut fixture = Fixture::new();
    let file = std::fs::File::create(fixture.folder.path().join("sparse")).expect("create");
    file.set_len(256 << 20).expect("set the length");
    for index in 0..2048 {
        file.write_all_at(b"here is data", index << 17).expect("write");
    }
    let stalled: Vec<_> = (0..250)
        .map(|_| {
            let mut wire = Wire::dealer(fixture.server.port());
            let request = json!({"op": "fetch", "id": 1, "digest": "none", "credit_bytes": 0,
                "files": [json!({"path": "sparse"})]});
            wire.request(&request).expect("send");
            // The answer to the request, which shows that it was read.
            assert!(!wire.receive().expect("the metadata").is_empty());
            wire
        })
        .collect();
    fixture.expect_service();
    fixture.expect_flat_memory();
    drop(stalled);
}

/// Unread answers don't pile up in memory.
#[test]
fn endless_requests_without_reading_are_back_pressured() {
    let mut fixture = Fixture::new();
    let port = fixture.server.port();
    let hello = [frame(MORE, b"TOW1"), frame(0, br#"{"op":"hello"}"#)].concat().repeat(500);
    let list = [frame(MORE, b"TOW1"), frame(0, br#"{"op":"list","id":1,"path":""}"#)].concat().repeat(500);
    let bad = frame(0, b"nonsense").repeat(2000);
    let small = [frame(MORE, b"fetch"), frame(MORE, b"small"), frame(MORE, b"0"), frame(0, b"1000")].concat();
    let fetches = small.repeat(500);
    for batch in [hello, list, bad, fetches] {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
        let mut wire = Wire::on(stream.try_clone().expect("clone"));
        wire.handshake("DEALER").expect("handshake");
        // Writing blocks when the server stops reading: back-pressure.
        stream.set_write_timeout(Some(Duration::from_secs(2))).expect("set a timeout");
        let mut stopped = false;
        for _ in 0..3000 {
            if wire.write(&batch).is_err() {
                stopped = true;
                break;
            }
        }
        assert!(stopped, "the server read {} bytes of requests without an answer read", batch.len() * 3000);
        fixture.expect_flat_memory();
    }
    fixture.expect_service();
}

#[test]
fn thousand_idle_connections_stall_no_one() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("raise the limit");
    let mut fixture = Fixture::new();
    let mut idle = Vec::new();
    for index in 0..1000 {
        let mut wire = Wire::connect(fixture.server.port());
        match index % 4 {
            0 => {}
            1 => wire.write(&greeting("NULL")[..10]).expect("send"),
            // Doesn't read, and so doesn't wait for the server.
            _ => wire.write(&[greeting("NULL"), ready("DEALER")].concat()).expect("send"),
        }
        idle.push(wire);
    }
    fixture.expect_service();
    let grown = fixture.server.resident_kib().saturating_sub(fixture.resident_kib);
    assert!(grown < 64 << 10, "a thousand idle connections cost {grown} KiB");
    drop(idle);
    let server = &fixture.server;
    wait_until("the server has closed its side", || server.open_descriptors() < 100);
    fixture.expect_service();
}

/// Without descriptors accept() fails: the server logs it, waits and continues.
#[test]
fn server_survives_running_out_of_descriptors() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("small"), 100_000, 1);
    let mut command = std::process::Command::new("prlimit");
    command.args(["--nofile=64:64", env!("CARGO_BIN_EXE_tow"), "serve"]).arg(folder.path());
    command.args(["--bind", "tcp://127.0.0.1:0"]);
    let mut server = Server::from_command(&mut command);
    let flood: Vec<_> =
        (0..200).filter_map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).ok()).collect();
    assert!(flood.len() > 64, "only {} connections were made", flood.len());
    server.expect_alive();
    drop(flood);
    let copy = folder.path().join("copy");
    wait_until("the server serves again", || get(&server.url("small"), &copy).status.success());
    server.expect_alive();
}

#[test]
fn protocol_deviations_are_logged_at_the_end_of_a_connection() {
    let fixture = Fixture::new();
    let mut wire = Wire::dealer(fixture.server.port());
    let ping = frame(COMMAND | MORE, b"\x04PING\0\0");
    wire.write(&[command("NOVELTY", b"?"), ping, frame(0x80, b"nonsense")].concat()).expect("send");
    assert_eq!(wire.control()["re"], "error");
    drop(wire);
    wait_until("it is said", || fixture.server.log().contains("unknown_commands=1 reserved_bits=2"));
}

/// Connects, sends something that is no greeting, and waits until the server closes.
fn say_nonsense(port: u16, times: usize) {
    for _ in 0..times {
        let mut wire = Wire::connect(port);
        // An error means that the connection was closed already.
        let _ = wire.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        wire.expect_closed();
    }
}

#[test]
fn repeated_log_lines_are_suppressed_and_counted() {
    let fixture = Fixture::new();
    let log = || fixture.server.log();
    say_nonsense(fixture.server.port(), 300);
    let silent = 1200;
    for _ in 0..silent {
        drop(Wire::connect(fixture.server.port()));
    }
    // The report comes although nothing more happens.
    let reported = "WARN 280 more like this in the last 10 s: handshake refused: the peer broke the protocol";
    wait_until("what was held back is logged", || log().contains(reported));
    assert_eq!(log().matches("WARN handshake refused: the peer broke the protocol").count(), 20);
    wait_until("that of clients that say nothing too", || {
        log().contains("INFO 200 more like this in the last 10 s: handshake failed")
    });
    assert_eq!(log().matches("INFO handshake failed").count(), silent - 200);

    let broker = Broker::start();
    say_nonsense(broker.port(), 200);
    broker.signal(rustix::process::Signal::TERM);
    wait_until("the broker logs it as it ends", || broker.log().contains(" 180 more like this in the last "));
    assert!(broker.log().lines().count() < 40, "{}", broker.log());
}
