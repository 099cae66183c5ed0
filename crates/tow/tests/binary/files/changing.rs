//! Files that change while they are sent. The client never installs a mixture: under the final name is one complete
//! version.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use crate::support::process::{Outcome, Process, Server, get_command};
use crate::support::proxy::Proxy;
use crate::support::tree::{digest, random_file};
use crate::support::wait_until;
use crate::support::wire::Wire;

const SIZE: usize = 64 << 20;

/// Transfer of one large file, held after a few MiB.
struct Held {
    folder: TempDir,
    source: PathBuf,
    copy: PathBuf,
    old: blake3::Hash,
    server: Server,
    proxy: Proxy,
    client: Process,
}

impl Held {
    fn new() -> Self {
        let folder = tempdir().expect("a folder");
        let source = folder.path().join("served.bin");
        random_file(&source, SIZE, 1);
        let server = Server::start(&source);
        let proxy = Proxy::start(server.port());
        let copy = folder.path().join("copies/copy");
        fs::create_dir(folder.path().join("copies")).expect("mkdir");
        proxy.hold_after(5 << 20);
        let mut client = Process::start(&mut get_command(&proxy.url("served.bin"), &copy));
        proxy.wait_held(&mut client);
        let old = digest(&source);
        Self { folder, source, copy, old, server, proxy, client }
    }

    /// Lets the transfer end, and checks what holds after any change: the copy, if there is one, is one
    /// of the versions; success means that there is one; a failure is explained. The server lives.
    #[track_caller]
    fn end(mut self, versions: &[blake3::Hash]) -> Outcome {
        assert!(!self.copy.exists(), "the file had its final name before it was whole");
        self.proxy.release();
        let outcome = self.client.finish();
        match outcome.status.code() {
            Some(0) => assert!(versions.contains(&digest(&self.copy)), "the copy is none of the versions"),
            // It failed, or what the source has become is not found (4) or refused (5).
            Some(1 | 4 | 5) => {
                assert!(!self.copy.exists(), "a file was installed by a get that failed");
                assert!(!outcome.stderr.is_empty());
            }
            _ => panic!("{outcome:?}"),
        }
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        self.server.expect_alive();
        drop(self.folder);
        outcome
    }
}

fn says_changed(outcome: &Outcome) -> bool {
    outcome.stderr.contains("chang") || outcome.stderr.contains("shr") || outcome.stderr.contains("replaced")
}

#[test]
fn file_that_shrinks_while_sent() {
    let held = Held::new();
    File::options().write(true).open(&held.source).and_then(|file| file.set_len(1 << 20)).expect("truncate");
    let new = digest(&held.source);
    let outcome = held.end(&[new]);
    assert!(says_changed(&outcome), "{}", outcome.stderr);
}

#[test]
fn file_emptied_while_sent() {
    let held = Held::new();
    File::create(&held.source).expect("truncate");
    let new = digest(&held.source);
    let outcome = held.end(&[new]);
    assert!(says_changed(&outcome), "{}", outcome.stderr);
}

#[test]
fn file_that_grows_while_sent() {
    let held = Held::new();
    let mut file = File::options().append(true).open(&held.source).expect("open");
    file.write_all(&[7; 1 << 20]).expect("append");
    let new = digest(&held.source);
    let outcome = held.end(&[new]);
    assert!(says_changed(&outcome), "{}", outcome.stderr);
}

#[test]
fn file_overwritten_in_place_while_sent() {
    let held = Held::new();
    let file = File::options().write(true).open(&held.source).expect("open");
    // Before and after the bytes already sent.
    for offset in [1 << 20, (SIZE - (1 << 20)) as u64] {
        file.write_all_at(&[7; 4096], offset).expect("write");
    }
    let new = digest(&held.source);
    let outcome = held.end(&[new]);
    assert!(says_changed(&outcome), "{}", outcome.stderr);
}

#[test]
fn file_replaced_while_sent() {
    let held = Held::new();
    let other = held.folder.path().join("other");
    random_file(&other, SIZE / 2, 9);
    let new = digest(&other);
    fs::rename(&other, &held.source).expect("rename");
    // The server still has the old version open: either is right.
    let old = held.old;
    held.end(&[old, new]);
}

#[test]
fn file_deleted_while_sent() {
    let held = Held::new();
    fs::remove_file(&held.source).expect("remove");
    let old = held.old;
    held.end(&[old]);
}

#[test]
fn file_that_becomes_a_directory_while_sent() {
    let held = Held::new();
    fs::remove_file(&held.source).expect("remove");
    fs::create_dir(&held.source).expect("mkdir");
    let old = held.old;
    held.end(&[old]);
}

/// The client may give up, but never installs a mixture.
#[test]
fn file_that_always_changes_is_complete_or_given_up() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("restless");
    random_file(&source, 16 << 20, 1);
    let mut server = Server::start(&source);
    let proxy = Proxy::start(server.port());
    proxy.slow_down(16 << 20);
    let copy = folder.path().join("copy");
    let mut client = Process::start(&mut get_command(&proxy.url("restless"), &copy));
    let file = File::options().write(true).open(&source).expect("open");
    let mut versions = vec![digest(&source)];
    let mut stamp = 0_u64;
    wait_until("the client ends", || {
        stamp += 1;
        file.write_all_at(&stamp.to_be_bytes(), 0).expect("write");
        versions.push(digest(&source));
        client.ended()
    });
    let outcome = client.finish();
    match outcome.status.code() {
        Some(0) => assert!(versions.contains(&digest(&copy)), "the copy is none of {} versions", versions.len()),
        Some(1) => {
            assert!(says_changed(&outcome), "{}", outcome.stderr);
            assert!(!copy.exists());
        }
        _ => panic!("{outcome:?}"),
    }
    server.expect_alive();
}

/// The plain dialect can't report a change: the connection ends before a frame with wrong bytes is complete, or the whole
/// old content arrives.
#[test]
fn plain_dialect_does_not_send_a_shrunken_file_as_complete() {
    const NEW_SIZE: u64 = 1 << 20;
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("shrinking");
    let bytes = random_file(&source, SIZE, 1);
    let mut server = Server::start(&source);
    let mut wire = Wire::dealer(server.port());
    wire.send(&[b"fetch"]).expect("send");
    let mut received = wire.receive().expect("the first chunk").remove(0);
    shrink(&source, NEW_SIZE);
    let ended_by_close = loop {
        match wire.receive() {
            Ok(frames) if frames[0] == b"error" => break true,
            Ok(frames) if frames[0].is_empty() => break false,
            Ok(frames) => received.extend_from_slice(&frames[0]),
            Err(_) => break true,
        }
    };
    assert!(ended_by_close, "{} bytes came and then a regular end", received.len());
    // Pages queued by the kernel when the file was cut may have become zeros, so the connection ends.
    let wrong = bytes.iter().zip(&received).position(|(sent, got)| sent != got && *got != 0);
    assert_eq!(wrong, None, "bytes came that never were in the file");
    let kept = NEW_SIZE as usize;
    assert!(received.len() < kept || received[..kept] == bytes[..kept], "what stayed in the file came wrong");
    wait_until("the log has the reason", || {
        let log = server.log();
        ["shr", "short", "chang"].iter().any(|word| log.contains(word))
    });
    server.expect_alive();
}

fn shrink(path: &Path, size: u64) {
    File::options().write(true).open(path).and_then(|file| file.set_len(size)).expect("truncate");
}
