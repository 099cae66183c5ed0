//! Sudden ends of either side and of the connection, and going on from there.

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

/// What may be moved twice around an interruption: pieces under way, and what wasn't recorded yet.
const MOVED_TWICE: u64 = 16 << 20;

#[test]
fn interrupted_by_ctrl_c_then_resumed() {
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
    let outcome = client.finish();
    assert!(matches!(outcome.status.code(), Some(1 | 130)), "{outcome:?}");
    // It says how far it came.
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

/// Over a link on which the smallest piece takes many seconds, no more is lost, and nothing is given up while bytes come.
#[test]
fn what_comes_slowly_is_kept_too() {
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

/// Pages of a listing, and small files, come many in a message: that message may take longer than nothing may take.
#[test]
fn a_message_that_takes_long_is_waited_for() {
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

/// Such a file is put in place in one go, and comes in more pieces than there are buffers for them.
#[test]
fn a_small_file_that_takes_long_arrives() {
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

/// As timeout(1) does it: one signal to the process, and one to its group.
#[test]
fn two_signals_at_once_are_one_wish() {
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
        let outcome = client.finish().expect_code(1);
        assert_eq!(outcome.summary()["error"], "interrupted");
    }
}

#[test]
fn a_changed_file_is_not_resumed_with_old_pieces() {
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
fn connections_cut_at_random_bytes_end_in_the_same_tree() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 200, 6);
    let server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    let mut random = Random::new(11);
    // In the greeting, the handshake, the listing, headers and bodies.
    let mut cuts: Vec<u64> = vec![0, 1, 9, 10, 11, 63, 64, 65, 80, 107, 108, 200];
    cuts.extend((0..20).map(|_| random.below(20_000)));
    cuts.extend((0..20).map(|_| random.below(3 << 20)));
    let count = cuts.len() as u64;
    proxy.cut_after(cuts);
    let copy = folder.path().join("copy");
    let mut gets = 0;
    // A get may go on over several cuts, or give up; either way the next one goes on from there.
    wait_until("the cuts are used up and the tree is whole", || {
        gets += 1;
        let outcome = get(&proxy.url(""), &copy);
        assert!(matches!(outcome.status.code(), Some(0 | 1)), "{outcome:?}");
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

/// Each file in the copy under a name of the source is whole.
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

/// Fifty times, at moments that nobody chose, one side or the other is killed without a word.
#[test]
fn fifty_kills_of_either_side_end_in_the_same_tree() {
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
        // A random moment is what is tested here: this sleep stands for no condition.
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

/// TCP's checksum is weak, disks and memory fail: what arrives is not always what was sent.
#[test]
fn a_bad_chunk_is_asked_for_again() {
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
    // To a pipe nothing can be taken back: the bad chunk is asked for again before it is written.
    let server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    proxy.corrupt_among(b'a');
    let outcome = run(&mut tow(["get", &proxy.url("large"), "-"]));
    assert!(proxy.has_corrupted());
    assert!(outcome.stdout.iter().all(|byte| *byte == b'a'), "wrong bytes were written");
    assert_eq!(outcome.status.success(), outcome.stdout.len() == 12 << 20, "{}", outcome.stderr);
}

/// The cost of resuming doesn't grow with what is there: nothing is read again, nor asked for.
#[test]
fn a_server_that_dies_and_returns_is_met_again_by_the_same_get() {
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
