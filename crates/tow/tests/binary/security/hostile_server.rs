//! Hostile servers. The client may refuse or give up, but writes nothing outside its destination and installs nothing
//! that differs from what was announced.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::process::{Outcome, get, get_command, run};
use crate::support::tree::{snapshot, write};
use crate::support::wire::{END, HOLE, Piece, Wire, WireServer, ZSTD, data_message, long_header};

const EVIL: &[u8] = b"written by a hostile server";

/// Announced attributes and sent pieces of a file.
#[derive(Clone)]
struct Lie {
    path: &'static str,
    /// Size in the listing and the metadata.
    size: u64,
    digest: Value,
    pieces: Vec<Piece>,
}

impl Lie {
    /// An honest file of `contents`.
    fn honest(path: &'static str, contents: &[u8]) -> Self {
        let digest = blake3::hash(contents).to_hex().to_string().into();
        let pieces = vec![Piece::of(0, END, 0, contents)];
        Self { path, size: contents.len() as u64, digest, pieces }
    }

    fn size(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    fn digest(mut self, digest: Value) -> Self {
        self.digest = digest;
        self
    }

    fn pieces(mut self, pieces: Vec<Piece>) -> Self {
        self.pieces = pieces;
        self
    }

    fn piece(self, change: impl FnOnce(&mut Piece)) -> Self {
        let mut piece = Piece::of(0, END, 0, EVIL);
        change(&mut piece);
        self.pieces(vec![piece])
    }

    fn entry(&self) -> Value {
        json!({"path": self.path, "type": "file", "size": self.size, "mtime": [1_700_000_000, 0], "mode": 0o644,
            "digest": self.digest})
    }
}

fn link(path: &str, target: &str) -> Value {
    json!({"path": path, "type": "link", "size": 0, "mtime": [1_700_000_000, 0], "mode": 0o777, "target": target})
}

fn directory(path: &str) -> Value {
    json!({"path": path, "type": "dir", "size": 0, "mtime": [1_700_000_000, 0], "mode": 0o755})
}

/// A server with these answers. Without `files` it closes the connection at every fetch.
fn hostile(entries: Vec<Value>, files: Option<Vec<Lie>>) -> WireServer {
    WireServer::start(move |wire| converse(wire, &entries, files.as_deref()))
}

fn url_of(server: &WireServer) -> String {
    format!("tcp://127.0.0.1:{}/", server.port)
}

/// Answers requests until the client leaves.
fn converse(wire: &mut Wire, entries: &[Value], files: Option<&[Lie]>) -> std::io::Result<()> {
    loop {
        let frames = wire.receive()?;
        let Some(request) = frames.get(1).and_then(|text| serde_json::from_slice::<Value>(text).ok()) else {
            continue;
        };
        let id = &request["id"];
        let mut answers = VecDeque::new();
        match request["op"].as_str() {
            Some("hello") => answers.push_back(json!({"re": "hello", "protocol": 1, "software": "hostile",
                "chunk_bytes_max": 4_194_304, "fetch_files_max": 4096, "requests_max": 64,
                "features": ["zstd", "leaves", "holes"]})),
            Some("list") => {
                let named = entries.iter().find(|entry| entry["type"] == "file" && entry["path"] == request["path"]);
                let (base, entries) = match named {
                    Some(file) => ("file", json!([file])),
                    None => ("dir", json!(entries)),
                };
                answers.push_back(json!({"re": "list", "id": id, "base": base, "entries": entries, "more": false}));
            }
            Some("cancel") => answers.push_back(json!({"re": "cancelled", "id": id})),
            Some("leaves") => answers.push_back(json!({"re": "error", "id": id, "code": "changed", "message": "no"})),
            Some("fetch") => {
                let Some(files) = files else { return Ok(()) };
                fetch(wire, &request, files)?;
                answers.push_back(json!({"re": "done", "id": id}));
            }
            _ => {}
        }
        for answer in answers {
            wire.request(&answer)?;
        }
    }
}

/// Sends the made-up answer for each requested file.
fn fetch(wire: &mut Wire, request: &Value, files: &[Lie]) -> std::io::Result<()> {
    let asked = request["files"].as_array().cloned().unwrap_or_default();
    let id = request["id"].as_u64().unwrap_or(0) as u32;
    for (n, file) in asked.iter().enumerate() {
        let Some(lie) = files.iter().find(|lie| file["path"] == lie.path) else {
            let error = json!({"code": "not-found", "message": "no such file"});
            wire.request(&json!({"re": "files", "id": id, "files": [{"n": n, "error": error}]}))?;
            continue;
        };
        wire.request(
            &json!({"re": "files", "id": id, "files": [{"n": n, "size": lie.size, "mtime": [1_700_000_000, 0],
            "mode": 0o644, "digest": lie.digest, "leaf_bytes": 1 << 20, "sparse": false}]}),
        )?;
        for piece in &lie.pieces {
            let piece = Piece { n: piece.n.wrapping_add(n as u32), ..piece.clone() };
            wire.send(&data_message(id, &[piece]))?;
        }
    }
    Ok(())
}

/// Fetches everything from such a server. Panics if anything outside the destination changed.
#[track_caller]
fn get_from(entries: Vec<Value>, files: Vec<Lie>, prepare: impl FnOnce(&Path)) -> (tempfile::TempDir, Outcome) {
    let folder = tempdir().expect("a folder");
    let arena = folder.path().join("arena");
    write(&arena.join("outside/precious"), b"precious");
    fs::create_dir(arena.join("copy")).expect("mkdir");
    prepare(&arena);
    let before = snapshot(&arena.join("outside"));
    let server = hostile(entries, Some(files));
    let outcome = get(&url_of(&server), &arena.join("copy"));
    assert_eq!(snapshot(&arena.join("outside")), before, "it wrote outside: {}", outcome.stderr);
    let names: Vec<_> = fs::read_dir(&arena).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    assert_eq!(names.len(), 2, "it wrote outside: {names:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1, "it wrote outside");
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    (folder, outcome)
}

/// Checks the test server itself.
#[test]
fn hostile_server_without_a_lie_serves_a_file() {
    let file = Lie::honest("sub/file", b"honest");
    let (folder, outcome) = get_from(vec![directory("sub"), file.entry()], vec![file], |_| {});
    let outcome = outcome.expect_code(0);
    assert_eq!(outcome.number("files"), 1);
    assert_eq!(fs::read(folder.path().join("arena/copy/sub/file")).expect("read"), b"honest");
}

#[test]
fn listed_paths_cannot_leave_the_destination() {
    for path in [
        "../outside/evil",
        "../../evil",
        "..",
        ".",
        "a/../../outside/evil",
        "/tmp/towpath-test-evil",
        "//tmp/towpath-test-evil",
        "a//b",
        "./a",
        "a/",
        "a/./b",
        "",
        "nul\0byte",
    ] {
        let file = Lie::honest(path, EVIL);
        let (folder, outcome) = get_from(vec![file.entry()], vec![file.clone()], |_| {});
        outcome.expect_code(1);
        assert!(!Path::new("/tmp/towpath-test-evil").exists());
        let copy = snapshot(&folder.path().join("arena/copy"));
        assert!(copy.is_empty(), "{path:?} made {copy:?}");
    }
    for path in ["n".repeat(256), "deep/".repeat(900) + "x", "../".repeat(40) + "tmp/towpath-test-evil"] {
        let path: &'static str = path.leak();
        let file = Lie::honest(path, EVIL);
        let (_folder, outcome) = get_from(vec![file.entry()], vec![file.clone()], |_| {});
        outcome.expect_code(1);
    }
}

#[test]
fn links_made_by_the_transfer_are_not_followed() {
    for target in ["../outside", "/", "..", "../../..", "/proc/self/cwd", "self", "sub/../../outside"] {
        let file = Lie::honest("self/evil", EVIL);
        let deep = Lie::honest("self/outside/evil", EVIL);
        let entries = vec![directory("sub"), link("self", target), directory("self"), file.entry(), deep.entry()];
        let (folder, _) = get_from(entries, vec![file, deep], |_| {});
        let copy = folder.path().join("arena/copy");
        let made = fs::symlink_metadata(copy.join("self"));
        assert!(!made.is_ok_and(|metadata| metadata.is_symlink()) || target == "self", "a link to {target} was made");
    }
    // A link that stays inside is made but not followed: no file appears below its target.
    let file = Lie::honest("link/evil", EVIL);
    let entries = vec![directory("sub"), link("link", "sub"), file.entry()];
    let (folder, outcome) = get_from(entries, vec![file], |_| {});
    assert!(matches!(outcome.status.code(), Some(0 | 1)), "{outcome:?}");
    assert!(folder.path().join("arena/copy").exists());
}

#[test]
fn existing_links_out_of_the_destination_are_not_followed() {
    let inner = Lie::honest("door/evil", EVIL);
    let plain = Lie::honest("window", EVIL);
    let (folder, _) = get_from(vec![directory("door"), inner.entry(), plain.entry()], vec![inner, plain], |arena| {
        symlink("../outside", arena.join("copy/door")).expect("link");
        symlink("../outside/precious", arena.join("copy/window")).expect("link");
    });
    assert_eq!(fs::read(folder.path().join("arena/outside/precious")).expect("read"), b"precious");
}

#[test]
fn lies_about_sizes_and_pieces_install_nothing() {
    let file = || Lie::honest("file", EVIL);
    let other = || blake3::hash(b"something else").to_hex().to_string();
    let bomb = zstd_of_zeros(1 << 30);
    let lies = [
        ("a digest of something else", file().digest(other().into())),
        ("a digest that is none", file().digest("xyz".into())),
        ("a digest that is a number", file().digest(7.into())),
        ("shorter than announced", file().size(EVIL.len() as u64 + 10)),
        ("longer than announced", file().size(3)),
        ("an absurd size", file().size((1 << 53) - 1)),
        ("a larger absurd size", file().size(u64::MAX)),
        ("an offset behind the end", file().piece(|piece| piece.offset = 1 << 40)),
        ("an offset that overflows", file().piece(|piece| piece.offset = u64::MAX - 3)),
        ("a length that overflows", file().piece(|piece| (piece.length, piece.flags) = (u64::MAX, END | HOLE))),
        ("a length unlike the body", file().piece(|piece| piece.length -= 1)),
        ("a body unlike the header", file().piece(|piece| piece.body_length += 1)),
        (
            "a hole for everything",
            file().piece(|piece| (piece.flags, piece.body, piece.body_length) = (END | HOLE, vec![], 0)),
        ),
        ("a hole with a body", file().piece(|piece| piece.flags = END | HOLE)),
        ("a file that nobody asked for", file().piece(|piece| piece.n = 5)),
        ("index 2^32-1", file().piece(|piece| piece.n = u32::MAX)),
        ("flags that nobody knows", file().piece(|piece| piece.flags = 0xf0)),
        ("zstd that is none", file().piece(|piece| piece.flags = END | ZSTD)),
        (
            "zstd that never ends",
            file().piece(|piece| {
                (piece.flags, piece.body_length, piece.body) = (END | ZSTD, bomb.len() as u64, bomb.clone());
            }),
        ),
        ("the same piece twice", file().pieces(vec![Piece::of(0, 0, 0, EVIL), Piece::of(0, END, 0, EVIL)])),
        ("nothing at all", file().pieces(vec![])),
        ("no end", file().pieces(vec![Piece::of(0, 0, 0, EVIL)])),
    ];
    for (what, lie) in lies {
        let (folder, outcome) = get_from(vec![lie.entry()], vec![lie.clone()], |_| {});
        let installed = folder.path().join("arena/copy/file");
        if what == "no end" || what == "flags that nobody knows" || what == "the same piece twice" {
            // A file that is there has the announced digest.
            assert!(!installed.exists() || fs::read(&installed).expect("read") == EVIL, "{what}");
        } else {
            assert!(!installed.exists(), "{what}: it was installed");
            assert_eq!(outcome.status.code(), Some(1), "{what}: {}", outcome.stderr);
            assert!(!outcome.stderr.is_empty(), "{what}: no reason was given");
        }
    }
}

#[test]
fn listing_with_wrong_types_is_refused() {
    for entries in [
        vec![json!({"path": "x", "type": "device", "size": 1})],
        vec![json!({"path": "x", "type": "file", "size": -1})],
        vec![json!({"path": "x"})],
        vec![json!(7)],
        vec![link("l", &"t".repeat(100_000))],
        vec![link("l", "")],
        vec![link("l", "a\0b")],
    ] {
        let shown = json!(entries).to_string();
        let (_folder, outcome) = get_from(entries, vec![], |_| {});
        assert!(matches!(outcome.status.code(), Some(0 | 1)), "{shown:.100}: {outcome:?}");
    }
}

/// The client doesn't reconnect for ever.
#[test]
fn server_that_closes_every_connection_is_given_up() {
    let file = Lie::honest("file", EVIL);
    for destination in ["copy", "-"] {
        let server = hostile(vec![file.entry()], None);
        let folder = tempdir().expect("a folder");
        let destination = if destination == "-" { "-".into() } else { folder.path().join(destination) };
        let outcome = get(&format!("{}file", url_of(&server)), &destination).expect_code(1);
        assert!(outcome.stderr.contains("broke"), "{}", outcome.stderr);
    }
}

#[test]
fn oversized_frames_are_refused_by_the_client() {
    let server = WireServer::start(|wire| {
        wire.receive()?;
        wire.write(&long_header(0, 1 << 63))?;
        wire.write(&[0; 1000])
    });
    let folder = tempdir().expect("a folder");
    let mut command = get_command(&format!("{}x", url_of(&server)), &folder.path().join("copy"));
    // The client reconnects until the idle timeout.
    let outcome = run(command.args(["--timeout", "5"])).expect_code(1);
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

/// zstd frame of `count` zeros.
fn zstd_of_zeros(count: u64) -> Vec<u8> {
    zstd::stream::encode_all(std::io::Read::take(std::io::repeat(0), count), 1).expect("compress")
}
