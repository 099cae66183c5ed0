//! A server that takes requests and answers none, or takes long for one: `--timeout` means the same to every command.

use crate::support::process::{Process, tow};
use crate::support::wait_until;
use crate::support::wire::WireServer;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;

/// Takes whatever comes, and answers PINGs alone.
fn silent() -> WireServer {
    WireServer::start(|wire| {
        loop {
            wire.receive()?;
        }
    })
}

#[test]
fn every_command_gives_up_a_silent_server_after_its_timeout() {
    let folder = tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = path("file");
    std::fs::write(&file, "content").expect("a file");
    let commands = [
        vec!["get", "URL", "COPY", "--quiet"],
        vec!["ls", "URL"],
        vec!["ls", "URL", "--digest"],
        vec!["push", &file, "URL", "--quiet"],
        vec!["publish", "URL", "v1"],
        vec!["versions", "URL"],
        vec!["versions", "URL", "--who", "v1"],
        vec!["versions", "URL", "--wait", "v1"],
        vec!["follow", "URL", "COPY", "--once"],
        vec!["follow", "URL", "COPY", "--once", "--versions"],
    ];
    let started = commands.iter().enumerate().map(|(number, arguments)| {
        let server = silent();
        let (url, copy) = (format!("127.0.0.1:{}/", server.port), path(&format!("copy{number}")));
        let words = arguments.iter().map(|word| match *word {
            "URL" => url.clone(),
            "COPY" => copy.clone(),
            word => word.to_owned(),
        });
        let words: Vec<String> =
            words.chain(["--timeout", "2", "--connect-timeout", "1h"].map(str::to_owned)).collect();
        (arguments, server, Process::start(&mut tow(words)))
    });
    // All at once: each takes its timeout.
    let started: Vec<_> = started.collect();
    for (arguments, _server, process) in started {
        let outcome = process.finish().expect_code(1);
        let says = "nothing happened for 2 s\n";
        assert!(outcome.stderr.contains(says), "{arguments:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("cannot connect"), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn every_command_that_finds_no_server_gives_up_after_its_connect_timeout() {
    let folder = tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = path("file");
    std::fs::write(&file, "content").expect("a file");
    // Nobody answers there: the handshake doesn't end.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("{}/", listener.local_addr().expect("an address"));
    for arguments in [
        &["get", &url, &path("copy"), "--quiet"][..],
        &["ls", &url],
        &["push", &file, &url, "--quiet"],
        &["publish", &url, "v1"],
        &["versions", &url],
        &["follow", &url, &path("copy"), "--once"],
        &["follow", &url, &path("copy")],
    ] {
        // The other timeout doesn't count yet, however short it is.
        let words = arguments.iter().chain(&["--connect-timeout", "500ms", "--timeout", "1ms"]);
        let outcome = Process::start(&mut tow(words)).finish().expect_code(6);
        assert!(outcome.stderr.contains("cannot connect to"), "{arguments:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("gave up"), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn a_running_follow_tries_a_silent_server_again() {
    let folder = tempdir().expect("a folder");
    for arguments in [&[][..], &["--versions"]] {
        let server = silent();
        let url = format!("127.0.0.1:{}/", server.port);
        let copy = folder.path().join(format!("copy{}", arguments.len())).display().to_string();
        let words = ["follow", &url, &copy, "--timeout", "1"].into_iter().chain(arguments.iter().copied());
        let mut follower = Process::start(&mut tow(words));
        wait_until("it says so", || follower.log().contains("nothing happened for 1 s; trying again in 10 s"));
        assert!(!follower.ended());
    }
}

#[test]
fn a_server_that_is_alive_may_take_long_to_publish() {
    /// Answers of `hello` before that of the request; there are three within a timeout.
    const HELLOS: usize = 9;
    let hellos = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hellos);
    let server = WireServer::start(move |wire| {
        let mut id = Value::Null;
        loop {
            let frames = wire.receive()?;
            let request: Value = serde_json::from_slice(&frames[1])?;
            let reply = if request["op"] == "publish" {
                id = request["id"].clone();
                continue;
            } else if counted.fetch_add(1, Ordering::Relaxed) + 1 < HELLOS {
                json!({"re": "hello", "protocol": 1, "software": "slow", "chunk_bytes_max": 4_194_304,
                    "fetch_files_max": 4096, "requests_max": 64, "features": []})
            } else {
                json!({"re": "published", "id": id, "version": "00".repeat(32), "label": "v1", "seq": 1, "files": 0,
                    "bytes": 0, "same": false})
            };
            wire.request(&reply)?;
        }
    });
    let url = format!("127.0.0.1:{}/", server.port);
    let outcome = Process::start(&mut tow(["publish", &url, "v1", "--timeout", "1"])).finish().expect_code(0);
    assert!(String::from_utf8_lossy(&outcome.stdout).starts_with("v1 "), "{}", outcome.stderr);
    assert_eq!(hellos.load(Ordering::Relaxed), HELLOS);
}
