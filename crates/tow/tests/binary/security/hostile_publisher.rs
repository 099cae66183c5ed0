//! Hostile peers of those who follow: servers that announce false changes, and followers that only cause work.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::follow::copies::{Pair, contents, text};
use crate::support::process::{Outcome, Process, run, tow};
use crate::support::tree::write;
use crate::support::wait_until;
use crate::support::wire::{Wire, WireServer};

const EPOCH: &str = "55555555555555555555555555555555";

fn reply(wire: &mut Wire, reply: &Value) -> io::Result<()> {
    wire.send(&[b"TOW1".as_slice(), reply.to_string().as_bytes()])
}

fn page(id: &Value, seq: u64, live: bool, changes: &[Value]) -> Value {
    json!({"re": "changes", "id": id, "cursor": format!("{EPOCH}-{seq}"), "head": seq, "live": live, "changes": changes})
}

/// Answers until the client leaves: `next` is asked for a page each time that one is wanted.
fn converse(wire: &mut Wire, next: &mut dyn FnMut(&Value) -> Vec<Value>) -> io::Result<()> {
    loop {
        let frames = wire.receive()?;
        let Some(request) = frames.get(1).and_then(|text| serde_json::from_slice::<Value>(text).ok()) else { continue };
        let id = &request["id"];
        match request["op"].as_str() {
            Some("hello") => reply(
                wire,
                &json!({"re": "hello", "protocol": 1, "software": "hostile", "chunk_bytes_max": 4_194_304,
                    "fetch_files_max": 4096, "requests_max": 64, "features": ["follow"]}),
            )?,
            Some("follow" | "more") => {
                if request["op"] == "follow" {
                    let cursor = format!("{EPOCH}-0");
                    reply(wire, &json!({"re": "following", "id": id, "state": "full", "cursor": cursor, "head": 0}))?;
                }
                for page in next(id) {
                    reply(wire, &page)?;
                }
            }
            _ => {}
        }
    }
}

/// A server whose first pages are these, one each time that a page is wanted; the last one is the end.
fn publisher(pages: impl Fn(usize, &Value) -> Vec<Value> + Send + 'static) -> WireServer {
    let follows = AtomicUsize::new(0);
    WireServer::start(move |wire| {
        let (follow, mut has_answered) = (follows.fetch_add(1, Ordering::Relaxed), false);
        converse(wire, &mut |id| {
            if std::mem::replace(&mut has_answered, true) { Vec::new() } else { pages(follow, id) }
        })
    })
}

fn follow(server: &WireServer, copy: &Path, options: &[&str]) -> Outcome {
    let url = format!("tcp://127.0.0.1:{}/", server.port);
    run(tow(["follow", &url, copy.to_str().expect("UTF-8"), "--once", "--mirror"]).args(options))
}

fn dir(seq: u64, path: &str) -> Value {
    json!({"seq": seq, "path": path, "type": "dir", "mode": 0o755})
}

#[test]
fn paths_and_links_that_lead_out_are_left_out() {
    let folder = tempdir().expect("a folder");
    let copy = folder.path().join("in/copy");
    let server = publisher(|_, id| {
        let paths =
            ["../x", "/x", "a/../../x", "a\0b", ".tow-0123456789abcdef.follow", ".tow-0123456789abcdef.changes"];
        let mut changes: Vec<_> = (1..).zip(paths).map(|(seq, path)| dir(seq, path)).collect();
        let links = [("l1", "/etc"), ("l2", "../.."), ("l3", "a/../../..")];
        changes.extend((10..).zip(links).map(|(seq, (path, target))| {
            json!({"seq": seq, "path": path, "type": "link", "target": target, "mtime": [1, 0]})
        }));
        changes.extend([dir(20, "good"), json!({"seq": 21, "path": "../../etc", "type": "gone"})]);
        vec![page(id, 21, true, &changes)]
    });
    let outcome = follow(&server, &copy, &[]).expect_code(0);
    assert!(text(&outcome).contains("+ good/"), "{}", text(&outcome));
    assert!(outcome.stderr.matches("refused").count() >= 6, "{}", outcome.stderr);
    assert_eq!(contents(&copy).keys().map(|path| path.display().to_string()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1);
    assert_eq!(fs::read_dir(folder.path().join("in")).expect("read").count(), 1);
}

#[test]
fn wrong_numbers_end_the_follow() {
    type Pages = fn(&Value) -> Vec<Value>;
    let cases: [(&str, Pages); 5] = [
        ("the same twice", |id| vec![page(id, 9, true, &[dir(1, "a"), dir(1, "b")])]),
        ("backwards", |id| vec![page(id, 9, true, &[dir(2, "a"), dir(1, "b")])]),
        ("beyond the cursor", |id| vec![page(id, 1, true, &[dir(2, "a")])]),
        ("nothing at all", |id| vec![page(id, 9, false, &[])]),
        ("negative", |id| vec![page(id, 9, true, &[json!({"seq": -1, "path": "a", "type": "gone"})])]),
    ];
    let folder = tempdir().expect("a folder");
    for (name, pages) in cases {
        let server = publisher(move |_, id| pages(id));
        let url = format!("tcp://127.0.0.1:{}/", server.port);
        let outcome = run(&mut tow(["follow", &url, folder.path().to_str().expect("UTF-8")])).expect_code(1);
        assert!(outcome.stderr.contains("breaks the protocol"), "{name}: {}", outcome.stderr);
    }
}

#[test]
fn deletions_of_everything_are_held() {
    let folder = tempdir().expect("a folder");
    let server = publisher(|follow, id| {
        let link =
            |seq| json!({"seq": seq, "path": format!("link-{seq}"), "type": "link", "target": "x", "mtime": [7, 8]});
        let there: Vec<_> = (1..=5).map(link).collect();
        vec![match follow {
            0 => page(id, 9, true, &there),
            // All at once, and by a full state that lacks them.
            1 => {
                let gone = (1..=5).map(|seq| json!({"seq": seq, "path": format!("link-{seq}"), "type": "gone"}));
                page(id, 9, true, &gone.collect::<Vec<_>>())
            }
            _ => page(id, 9, true, &[]),
        }]
    });
    follow(&server, folder.path(), &[]).expect_code(0);
    for _ in 0..2 {
        let outcome = follow(&server, folder.path(), &[]).expect_code(3);
        assert!(outcome.stderr.contains("5 deletions are held"), "{}", outcome.stderr);
        assert_eq!(contents(folder.path()).len(), 5);
    }
}

#[test]
fn endless_pages_cost_no_memory() {
    const PAGES: u64 = 500;
    let folder = tempdir().expect("a folder");
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = WireServer::start(move |wire| {
        let mut seq = 0;
        converse(wire, &mut |id| {
            let paths: Vec<_> = (1..=100).map(|at| format!("{at:0>100}")).collect();
            let gone = paths.iter().map(|path| {
                seq += 1;
                json!({"seq": seq, "path": path, "type": "gone"})
            });
            let gone = gone.collect::<Vec<_>>();
            counted.fetch_add(1, Ordering::Relaxed);
            vec![page(id, seq, false, &gone)]
        })
    });
    let url = format!("tcp://127.0.0.1:{}/", server.port);
    let follower = Process::start(&mut tow(["follow", &url, folder.path().to_str().expect("UTF-8")]));
    wait_until("many pages are sent", || sent.load(Ordering::Relaxed) as u64 >= PAGES / 10);
    let before = follower.peak_memory();
    wait_until("more pages are sent", || sent.load(Ordering::Relaxed) as u64 >= PAGES);
    let after = follower.peak_memory();
    assert!(after < before + (4 << 20), "it grew from {before} to {after} bytes");
    follower.signal(Signal::INT);
    follower.finish();
}

/// Follows from the beginning again and again, asks for pages without end, and reads nothing; and follows without credit.
#[test]
fn greedy_followers_cost_little_and_hold_nobody_up() {
    const FOLLOWERS: usize = 8;
    let mut pair = Pair::start();
    for index in 0..1500 {
        write(&pair.source().join(format!("{index:0>150}")), b"x");
    }
    pair.serve();
    let port = pair.server().port();
    let mut first = Wire::dealer(port);
    first.request(&json!({"op": "follow", "id": 1, "path": ""})).expect("send");
    wait_until("everything is published", || {
        let reply = first.control();
        first.request(&json!({"op": "more", "id": 1})).expect("send");
        reply["live"] == true
    });
    let before = pair.server().resident_kib();
    let mut greedy: Vec<_> = (0..FOLLOWERS).map(|_| Wire::dealer(port)).collect();
    for wire in &mut greedy {
        for id in 0..16 {
            wire.request(&json!({"op": "follow", "id": id, "path": ""})).expect("send");
            for _ in 0..8 {
                wire.request(&json!({"op": "more", "id": id})).expect("send");
            }
        }
        // Without credit.
        wire.send(&[b"follow".as_slice(), b""]).expect("send");
        for _ in 0..3 {
            wire.request(&json!({"op": "cancel", "id": 0})).expect("send");
            wire.request(&json!({"op": "follow", "id": 0, "path": ""})).expect("send");
        }
    }
    pair.once(&[]).expect_code(0);
    assert_eq!(contents(&pair.source()), contents(&pair.copy()));
    let grown = pair.server().resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024 * FOLLOWERS as u64, "it grew by {grown} KiB");
    drop(greedy);
}
