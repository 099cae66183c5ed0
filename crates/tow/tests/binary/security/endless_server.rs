//! Servers that keep a client busy for ever, at no cost to themselves. The client ends by its limits, or because nothing happens.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::process::{Outcome, get_command, run};
use crate::support::wire::{END, HOLE, Piece, Wire, WireServer, data_message};

const TIB: u64 = 1 << 40;
const MTIME: [u64; 2] = [1_700_000_000, 0];

/// Runs `tow get / copy` with these options against a server whose answers to a list or fetch are written by `answer`.
fn get_from(options: &[&str], answer: impl Fn(&mut Wire, &Value) -> io::Result<()> + Send + Sync + 'static) -> Outcome {
    let server = WireServer::start(move |wire| {
        loop {
            let frames = wire.receive()?;
            let request = frames.get(1).and_then(|text| serde_json::from_slice::<Value>(text).ok());
            if let Some(request) = request.filter(|request| request["op"] != "hello") {
                answer(wire, &request)?;
            }
        }
    });
    let folder = tempdir().expect("a folder");
    let url = format!("tcp://127.0.0.1:{}/", server.port);
    let outcome = run(get_command(&url, &folder.path().join("copy")).args(options));
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    outcome.expect_code(1)
}

fn file(name: &str, size: u64) -> Value {
    json!({"path": name, "type": "file", "size": size, "mtime": MTIME, "mode": 0o644, "allocated": 0})
}

fn list(wire: &mut Wire, request: &Value, entries: &[Value], more: bool) -> io::Result<()> {
    wire.request(&json!({"re": "list", "id": request["id"], "base": "dir", "entries": entries, "more": more}))
}

fn metadata(wire: &mut Wire, request: &Value, size: u64) -> io::Result<()> {
    let leaf_bytes = (size / 32_768).next_power_of_two().max(1 << 20);
    let file = json!({"n": 0, "size": size, "mtime": MTIME, "mode": 0o644, "leaf_bytes": leaf_bytes, "sparse": true});
    wire.request(&json!({"re": "files", "id": request["id"], "files": [file]}))
}

fn id(request: &Value) -> u32 {
    request["id"].as_u64().and_then(|id| id.try_into().ok()).expect("an id")
}

/// A hole costs the server 40 bytes, and the client hours to hash.
#[test]
fn holes_are_limited() {
    const SIZE: u64 = 8 * TIB;
    let cases: [(&[&str], &str); 3] = [
        (&[], "holes of more than 1099511627776 bytes"),
        (&["--max-bytes", "9T"], "nothing happened"),
        (&["--max-bytes", "1G"], "more than 1073741824 bytes in all"),
    ];
    for (options, reason) in cases {
        let limited = options.contains(&"9T");
        let options = [options, &["--timeout", "1"]].concat();
        let outcome = get_from(&options, move |wire, request| match request["op"].as_str() {
            Some("list") => list(wire, request, &[file("hole", SIZE)], false),
            // It is accepted, and not sent.
            Some("fetch") if limited => metadata(wire, request, SIZE),
            Some("fetch") => {
                metadata(wire, request, SIZE)?;
                let hole = Piece { n: 0, flags: HOLE | END, offset: 0, length: SIZE, body_length: 0, body: Vec::new() };
                wire.send(&data_message(id(request), &[hole]))
            }
            _ => Ok(()),
        });
        assert!(outcome.stderr.contains(reason), "{options:?}: {}", outcome.stderr);
    }
}

/// New entries, or the same ones again and again.
#[test]
fn listings_are_limited() {
    for is_new in [true, false] {
        let page = AtomicUsize::new(0);
        let outcome = get_from(&["--max-files", "3000"], move |wire, request| {
            if !matches!(request["op"].as_str(), Some("list" | "more")) {
                return Ok(());
            }
            let page = if is_new { page.fetch_add(1, Ordering::Relaxed) } else { 0 };
            let directory = |name: usize| json!({"path": format!("{page}-{name}"), "type": "dir", "size": 0, "mtime": MTIME, "mode": 0o755});
            list(wire, request, &(0..500).map(directory).collect::<Vec<_>>(), true)
        });
        assert!(outcome.stderr.contains("more than 3000 files"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("--max-files"), "{}", outcome.stderr);
    }
}

/// Messages that bring nothing don't count as progress.
#[test]
fn server_that_says_nothing_new_is_given_up() {
    let outcome = get_from(&["--timeout", "1"], |wire, request| match request["op"].as_str() {
        Some("list") => list(wire, request, &[file("file", 3 << 20)], false),
        Some("fetch") => {
            metadata(wire, request, 3 << 20)?;
            let digest = json!({"re": "digest", "id": request["id"], "n": 0, "leaf_bytes": 1 << 20,
                "digest": blake3::hash(b"").to_hex().to_string()});
            loop {
                wire.request(&digest)?;
                // Not as fast as it can, which would only keep the processor busy.
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        _ => Ok(()),
    });
    assert!(outcome.stderr.contains("nothing happened for"), "{}", outcome.stderr);
}
