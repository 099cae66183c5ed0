//! Crashes of either side and lost connections, and resuming after them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::process::{Process, Server, get, get_command, run, tow};
use crate::support::proxy::Proxy;
use crate::support::random::Random;
use crate::support::tree::{assert_same, digest, mixed, random_file, write};
use crate::support::{DEADLINE, wait_until};

/// Bytes that may be transferred twice around an interruption: those in flight, and those not recorded yet.
const MOVED_TWICE: u64 = 16 << 20;

#[test]
fn get_interrupted_by_ctrl_c_resumes() {
    const SIZE: u64 = 96 << 20;
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("big.bin");
    random_file(&source, SIZE as usize, 1);
    let server = Server::start(&source);
    let proxy = Proxy::start(server.port());
    let copies = folder.path().join("copies");
    fs::create_dir(&copies).expect("mkdir");
    let copy = copies.join("copy");
    proxy.hold_after(64 << 20);
    let mut client = Process::start(&mut get_command(&proxy.url("big.bin"), &copy));
    proxy.wait_held(&mut client);
    client.signal(Signal::INT);
    let outcome = client.finish().expect_signal(Signal::INT);
    // The summary says how much arrived.
    assert!((1..SIZE).contains(&outcome.number("bytes")), "{}", outcome.summary());
    assert!(outcome.number("received_bytes") >= outcome.number("bytes"), "{}", outcome.summary());
    assert!(!copy.exists());
    assert!(outcome.stderr.contains("run the same command again to resume"), "{}", outcome.stderr);
    assert_eq!(outcome.summary()["failures"], serde_json::json!([]));

    proxy.release();
    let outcome = get(&proxy.url("big.bin"), &copy).expect_code(0);
    assert_eq!(digest(&copy), digest(&source));
    let received = outcome.number("received_bytes");
    assert!(received < SIZE - (64 << 20) + MOVED_TWICE, "{}", outcome.summary());
    assert!(outcome.number("resumed_bytes") >= (64 << 20) - MOVED_TWICE, "{}", outcome.summary());
    assert_eq!(fs::read_dir(&copies).expect("read").count(), 1, "something is left over");
}

/// On a link where the smallest piece takes many seconds, nothing times out while bytes arrive.
#[test]
fn slow_transfer_keeps_what_arrived() {
    const SIZE: u64 = 3_000_000;
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("slow.bin");
    random_file(&source, SIZE as usize, 1);
    let server = Server::start(&source);
    for (copy, signal) in [("one", Signal::INT), ("two", Signal::KILL)] {
        let proxy = Proxy::start(server.port());
        proxy.slow_down(200_000);
        proxy.hold_after(300_000);
        let copy = folder.path().join(copy);
        let mut client = Process::start(get_command(&proxy.url("slow.bin"), &copy).args(["--timeout", "1"]));
        proxy.wait_held(&mut client);
        client.signal(signal);
        let outcome = client.finish();
        assert!(!outcome.status.success(), "{outcome:?}");
        if signal == Signal::INT {
            assert!(outcome.number("received_bytes") <= 300_000, "{}", outcome.summary());
        }
        let outcome = get(&server.url("slow.bin"), &copy).expect_code(0);
        assert_eq!(digest(&copy), digest(&source));
        assert!(outcome.number("resumed_bytes") >= 150_000, "{}", outcome.summary());
        assert!(outcome.number("received_bytes") <= SIZE - 150_000, "{}", outcome.summary());
    }
}

/// A message of many listing entries or small files may take longer than the idle timeout.
#[test]
fn slow_message_does_not_time_out() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for index in 0..3_000 {
        write(&served.join(format!("{index:0150}")), b"");
    }
    for index in 0..60 {
        random_file(&served.join(format!("small {index}")), 10_000, index);
    }
    let server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    proxy.slow_down(400_000);
    run(&mut tow(["ls", &proxy.url(""), "--timeout", "1"])).expect_code(0);
    let copy = folder.path().join("copy");
    run(get_command(&proxy.url(""), &copy).args(["--timeout", "1"])).expect_code(0);
    assert_same(&served, &copy);
}

/// A small file is installed in one step, though it arrives in more pieces than there are buffers.
#[test]
fn slow_small_file_arrives() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("small.bin");
    random_file(&source, 600_000, 1);
    let server = Server::start(&source);
    let proxy = Proxy::start(server.port());
    proxy.slow_down(80_000);
    let copy = folder.path().join("copy");
    run(get_command(&proxy.url(""), &copy).args(["--timeout", "1"])).expect_code(0);
    assert_eq!(digest(&copy), digest(&source));
}

/// timeout(1) signals the process and its group.
#[test]
fn two_signals_at_once_count_as_one() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("big.bin");
    random_file(&source, 16 << 20, 1);
    let server = Server::start(&source);
    for copy in ["one", "two", "three"] {
        let proxy = Proxy::start(server.port());
        proxy.hold_after(8 << 20);
        let mut client = Process::start(&mut get_command(&proxy.url("big.bin"), &folder.path().join(copy)));
        proxy.wait_held(&mut client);
        client.signal(Signal::INT);
        std::thread::sleep(std::time::Duration::from_millis(2));
        client.signal(Signal::INT);
        let outcome = client.finish().expect_signal(Signal::INT);
        assert_eq!(outcome.summary()["error"], "interrupted");
    }
}

#[test]
fn changed_file_is_not_resumed_from_the_old_version() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("big.bin");
    random_file(&source, 32 << 20, 1);
    let server = Server::start(&source);
    let proxy = Proxy::start(server.port());
    let copy = folder.path().join("copy");
    proxy.hold_after(16 << 20);
    let mut client = Process::start(&mut get_command(&proxy.url("big.bin"), &copy));
    proxy.wait_held(&mut client);
    client.signal(Signal::KILL);
    drop(client);
    random_file(&source, 32 << 20, 2);
    proxy.release();
    get(&proxy.url("big.bin"), &copy).expect_code(0);
    assert_eq!(digest(&copy), digest(&source));
}

#[test]
fn connections_cut_at_random_bytes_give_the_same_tree() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 200, 6);
    let server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    let mut random = Random::new(11);
    // Cuts in the greeting, the handshake, the listing, headers and bodies.
    let mut cuts: Vec<u64> = vec![0, 1, 9, 10, 11, 63, 64, 65, 80, 107, 108, 200];
    cuts.extend((0..20).map(|_| random.below(20_000)));
    cuts.extend((0..20).map(|_| random.below(3 << 20)));
    let count = cuts.len() as u64;
    proxy.cut_after(cuts);
    let copy = folder.path().join("copy");
    let mut gets = 0;
    // A get may survive several cuts or give up, also as if it were refused by three cuts in greetings; the next one resumes.
    wait_until("the cuts are used up and the tree is whole", || {
        gets += 1;
        let outcome = get(&proxy.url(""), &copy);
        assert!(matches!(outcome.status.code(), Some(0 | 1 | 5 | 6)), "{outcome:?}");
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        if outcome.status.success() {
            assert_same(&served, &copy);
        } else {
            assert_no_wrong_files(&served, &copy);
        }
        outcome.status.success() && proxy.connections() > count
    });
    println!("{gets} gets over {} connections", proxy.connections());
}

/// Checks that each file in the copy under a name of the source is complete.
#[track_caller]
fn assert_no_wrong_files(source: &Path, copy: &Path) {
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("read") {
            let path = entry.expect("read").path();
            let counterpart = copy.join(path.strip_prefix(source).expect("below"));
            if path.is_dir() {
                folders.push(path);
            } else if counterpart.exists() {
                assert!(digest(&path) == digest(&counterpart), "{} is not whole", counterpart.display());
            }
        }
    }
}

/// Kills one side or the other at fifty random moments.
#[test]
fn fifty_kills_of_either_side_give_the_same_tree() {
    const KILLS: u32 = 50;
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 300, 12);
    let copy = folder.path().join("copy");
    let mut random = Random::new(u64::from(std::process::id()));
    let mut server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    proxy.slow_down(25 << 20);
    let mut client = Process::start(&mut get_command(&proxy.url(""), &copy));
    let mut completed = 0;
    for kill in 0..KILLS {
        // The moment is random on purpose.
        std::thread::sleep(Duration::from_millis(random.below(400)));
        if random.below(2) == 0 {
            server.kill();
            server = Server::start(&served);
            proxy.lead_to(server.port());
        } else {
            client.signal(Signal::KILL);
        }
        if client.ended() {
            let outcome = client.finish();
            if outcome.status.success() {
                completed += 1;
                assert_same(&served, &copy);
                fs::remove_dir_all(&copy).expect("remove");
            } else if copy.exists() {
                assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
                assert_no_wrong_files(&served, &copy);
            }
            client = Process::start(&mut get_command(&proxy.url(""), &copy));
        }
        println!("kill {kill}: {} bytes passed", proxy.passed());
    }
    proxy.slow_down(1 << 30);
    let last = client.finish();
    if !last.status.success() {
        get(&proxy.url(""), &copy).expect_code(0);
    }
    println!("{completed} gets were completed between the kills");
    assert_same(&served, &copy);
}

/// TCP's checksum is weak, and disks and memory fail.
#[test]
fn corrupt_chunk_is_fetched_again() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    // One leaf, and several.
    for (name, size) in [("small", 300_000), ("large", 12 << 20)] {
        write(&served.join(name), &vec![b'a'; size]);
        let server = Server::start(&served);
        let proxy = Proxy::start(server.port());
        proxy.corrupt_among(b'a');
        let copy = folder.path().join(name);
        let outcome = get(&proxy.url(name), &copy).expect_code(0);
        assert!(proxy.has_corrupted(), "nothing was corrupted: the test did not test anything");
        assert_eq!(digest(&copy), digest(&served.join(name)));
        assert!(outcome.stderr.contains("digest"), "it doesn't say so: {}", outcome.stderr);
        let received = outcome.number("received_bytes");
        assert!(received > size as u64 && received <= size as u64 + (2 << 20), "{}", outcome.summary());
    }
    // Nothing can be taken back from a pipe, so the chunk is fetched again before it is written.
    let server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    proxy.corrupt_among(b'a');
    let outcome = run(&mut tow(["get", &proxy.url("large"), "-"]));
    assert!(proxy.has_corrupted());
    assert!(outcome.stdout.iter().all(|byte| *byte == b'a'), "wrong bytes were written");
    assert_eq!(outcome.status.success(), outcome.stdout.len() == 12 << 20, "{}", outcome.stderr);
}

/// Resuming neither reads nor fetches again what is there.
#[test]
fn get_survives_a_restart_of_the_server() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("big.bin");
    random_file(&source, 64 << 20, 3);
    let server = Server::start(&source);
    let proxy = Proxy::start(server.port());
    proxy.hold_after(24 << 20);
    let copy = folder.path().join("copy");
    let mut client = Process::start(&mut get_command(&proxy.url("big.bin"), &copy));
    proxy.wait_held(&mut client);
    server.kill();
    let server = Server::start(&source);
    proxy.lead_to(server.port());
    proxy.release();
    let outcome = client.finish().expect_code(0);
    assert_eq!(digest(&copy), digest(&source));
    assert!(outcome.number("received_bytes") < (64 << 20) + MOVED_TWICE, "{}", outcome.summary());
    assert!(outcome.seconds < DEADLINE.as_secs_f64());
}
