//! Older versions at the destination: what the new one has in common with them isn't sent.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::tempdir;

use crate::support::process::{Process, Server, get, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{digest, random_file, write};
use crate::support::wait_until;

const MIB: usize = 1 << 20;
/// Leaves of the large file.
const LEAVES: usize = 64;
/// Messages beside leaves and their values, with those of a connection.
const OVERHEAD: u64 = 8 << 10;

/// A file of [`LEAVES`] MiB, each of them another one.
fn large_file(path: &Path) {
    let mut leaf = random_file(path, MIB, 1);
    let mut file = File::create(path).expect("create");
    for index in 0..LEAVES {
        leaf[..8].copy_from_slice(&index.to_le_bytes());
        file.write_all(&leaf).expect("write");
    }
}

fn flip_two_bytes(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    for offset in [17 * MIB as u64 + 5, 50 * MIB as u64] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("read");
        file.write_all_at(&[byte[0] ^ 1], offset).expect("write");
    }
}

/// The most that two changed leaves may cost on the wire.
const TWO_LEAVES: u64 = 2 * MIB as u64 + LEAVES as u64 * 32 + OVERHEAD;

#[test]
fn get_of_two_changed_bytes_costs_two_leaves() {
    let folder = tempdir().expect("a folder");
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    large_file(&source);
    let server = Server::start(&source);
    get(&server.url("source"), &copy).expect_code(0);
    flip_two_bytes(&source);
    let proxy = Proxy::start(server.port());
    let outcome = get(&proxy.url("source"), &copy).expect_code(0);
    assert!(proxy.passed() <= TWO_LEAVES, "{} bytes on the wire", proxy.passed());
    assert_eq!(outcome.number("received_bytes"), 2 * MIB as u64);
    assert_eq!(outcome.number("reused_bytes"), (LEAVES - 2) as u64 * MIB as u64);
    assert!(outcome.summary()["verified"].as_bool() == Some(true), "{}", outcome.summary());
    assert_eq!(digest(&source), digest(&copy));
}

#[test]
fn followed_file_with_two_changed_bytes_costs_two_leaves() {
    let folder = tempdir().expect("a folder");
    let (source, next, copy) = (folder.path().join("served"), folder.path().join("next"), folder.path().join("copy"));
    fs::create_dir(&source).expect("mkdir");
    large_file(&source.join("large"));
    fs::copy(source.join("large"), &next).expect("copy");
    flip_two_bytes(&next);
    let words = ["serve", source.to_str().expect("UTF-8"), "--watch", "--settle", "200ms"];
    let server = Server::from_command(tow(words).args(["--bind", "tcp://127.0.0.1:0"]));
    let proxy = Proxy::start(server.port());
    let follower = Process::start(&mut tow(["follow", &proxy.url(""), copy.to_str().expect("UTF-8")]));
    wait_until("the first version is there", || follower.output().contains("up to date"));
    let before = proxy.passed();
    // In place of the other, as careful writers do.
    fs::rename(&next, source.join("large")).expect("rename");
    wait_until("the second version is there", || follower.output().contains("~ large"));
    wait_until("it is up to date again", || follower.output().matches("up to date").count() == 2);
    let passed = proxy.passed() - before;
    assert!(passed <= TWO_LEAVES, "{passed} bytes on the wire");
    assert_eq!(digest(&source.join("large")), digest(&copy.join("large")));
}

#[test]
fn what_was_appended_is_all_that_is_sent() {
    let folder = tempdir().expect("a folder");
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    let mut bytes = random_file(&source, 9 * MIB + 77, 1);
    let server = Server::start(&source);
    get(&server.url("source"), &copy).expect_code(0);
    bytes.extend_from_slice(&[7; MIB]);
    write(&source, &bytes);
    let outcome = get(&server.url("source"), &copy).expect_code(0);
    // The last leaf of the older version wasn't whole.
    assert_eq!(outcome.number("received_bytes"), MIB as u64 + 77);
    assert_eq!(outcome.number("reused_bytes"), 9 * MIB as u64);
    assert_eq!(digest(&source), digest(&copy));
    // Cut off again, and shorter than it was.
    write(&source, &bytes[..5 * MIB]);
    let outcome = get(&server.url("source"), &copy).expect_code(0);
    assert_eq!((outcome.number("received_bytes"), outcome.number("reused_bytes")), (0, 5 * MIB as u64));
    assert_eq!(digest(&source), digest(&copy));
}

#[test]
fn file_with_a_byte_inserted_at_its_beginning_is_sent_as_a_whole() {
    let folder = tempdir().expect("a folder");
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    let bytes = random_file(&source, 9 * MIB, 1);
    let server = Server::start(&source);
    get(&server.url("source"), &copy).expect_code(0);
    write(&source, &[&[1], &bytes[..]].concat());
    let outcome = get(&server.url("source"), &copy).expect_code(0);
    assert_eq!(outcome.number("received_bytes"), 9 * MIB as u64 + 1);
    assert_eq!(outcome.number("reused_bytes"), 0);
    assert_eq!(digest(&source), digest(&copy));
    assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 2, "a partial file was left");
}

#[test]
fn older_copy_that_is_written_to_meanwhile_does_no_harm() {
    let folder = tempdir().expect("a folder");
    let (source, copy, older) = (folder.path().join("source"), folder.path().join("copy"), folder.path().join("older"));
    let bytes = random_file(&source, 8 * MIB, 1);
    let right = digest(&source);
    let server = Server::start(&source);
    for _ in 0..10 {
        // Of another size, so that nothing is hashed before it is copied.
        write(&older, &bytes[..7 * MIB + 5]);
        fs::rename(&older, &copy).expect("rename");
        let writer = OpenOptions::new().write(true).open(&copy).expect("open");
        let is_over = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The first leaf is right and wrong by turns.
                let mut wrong = 0;
                while !is_over.load(Ordering::Relaxed) {
                    wrong ^= 1;
                    writer.write_all_at(&[bytes[MIB - 1] ^ wrong], MIB as u64 - 1).expect("write");
                }
            });
            let outcome = get(&server.url("source"), &copy);
            is_over.store(true, Ordering::Relaxed);
            outcome
        });
        let outcome = outcome.expect_code(0);
        assert_eq!(digest(&copy), right);
        assert!(outcome.number("reused_bytes") >= 6 * MIB as u64, "{}", outcome.summary());
    }
}
