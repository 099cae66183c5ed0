//! A hanging disk stalls only clients that read from it. No timing is involved: it hangs until released.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tempfile::tempdir;
use towpath_slow_disk::{Pace, SlowDisk, UNCACHED_FILE, content};

use crate::support::process::{Process, Server, get, get_command, run, tow};
use crate::support::tree::{digest, random_file};
use crate::support::wire::Wire;
use crate::support::{DEADLINE, wait_until};

const COLD_BYTES: u64 = 6 << 20;

/// Disk on this folder that hangs from the start. `None`, and the test is skipped, without FUSE.
fn hanging(folder: &Path, pace: Pace) -> Option<SlowDisk> {
    disk_of(folder, COLD_BYTES, pace)
}

fn disk_of(folder: &Path, bytes: u64, pace: Pace) -> Option<SlowDisk> {
    fs::create_dir(folder).expect("mkdir");
    match SlowDisk::mount(folder, bytes, pace) {
        Ok(disk) => Some(disk),
        // Skipped in CI too: not every container has /dev/fuse, and tests of `files` cover the same without it.
        Err(error) => {
            println!("skipped: no FUSE file system can be mounted here: {error}");
            None
        }
    }
}

#[test]
fn cached_files_are_served_while_a_disk_hangs() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let cached = served.join("cached");
    let copies = folder.path().join("copies");
    fs::create_dir(&served).expect("mkdir");
    fs::create_dir(&copies).expect("mkdir");
    random_file(&cached, 48 << 20, 1);
    let Some(disk) = hanging(&served.join("disk"), Pace::Held) else { return };
    let server = Server::start(&served);
    // Released first if the test fails: a process that waits for a disk can't be killed.
    let disk = disk;
    let url = server.url("disk/cold");

    // Six of them, more than a pool of two processors has threads: verified or not, and by plain requests.
    let mut verified = Process::start(&mut get_command(&url, &copies.join("verified")));
    assert!(disk.await_read(DEADLINE), "{}", verified.log());
    let mut others: Vec<Process> = (0..4)
        .map(|copy| Process::start(get_command(&url, &copies.join(copy.to_string())).arg("--no-verify")))
        .collect();
    let mut plain = Wire::dealer(server.port());
    plain.send(&["fetch", "disk/cold", "0", "65536"]).expect("send");

    // Cached files are available to all: with a digest, without, in a listing, in the plain dialect.
    let got = get(&server.url("cached"), &copies.join("cached")).expect_code(0);
    assert_eq!(got.summary()["verified"], true);
    assert_eq!(digest(&copies.join("cached")), digest(&cached));
    run(get_command(&server.url("cached"), &copies.join("again")).arg("--no-verify")).expect_code(0);
    run(&mut tow(["ls", &server.url("")])).expect_code(0);
    run(&mut tow(["ls", &server.url("disk")])).expect_code(0);
    let mut wire = Wire::dealer(server.port());
    wire.send(&["fetch", "cached", "5", "1000"]).expect("send");
    assert!(wire.receive().expect("an answer")[0][..] == fs::read(&cached).expect("read")[5..1005]);

    // A client that gives up doesn't wait either.
    let given_up = others.pop().expect("one");
    given_up.signal(Signal::INT);
    assert_ne!(given_up.finish().status.code(), Some(0));
    assert!(!verified.ended() && others.iter_mut().all(|other| !other.ended()));

    disk.release();
    let whole = content(0, COLD_BYTES as usize);
    verified.finish().expect_code(0);
    assert!(fs::read(copies.join("verified")).expect("read") == whole);
    for (copy, other) in others.into_iter().enumerate() {
        other.finish().expect_code(0);
        assert!(fs::read(copies.join(copy.to_string())).expect("read") == whole);
    }
    assert!(plain.receive().expect("an answer")[0][..] == whole[..65_536]);
    server.stop(Signal::TERM).expect_code(0);
}

/// close(2) hangs too if the file system hangs.
#[test]
fn closing_a_file_on_a_hanging_disk_stalls_no_one() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    random_file(&served.join("cached"), 1 << 20, 1);
    let Some(disk) = hanging(&served.join("disk"), Pace::HeldAtClose) else { return };
    let server = Server::start(&served);
    let disk = disk;
    // Nothing need be read at the end of the file, which the server keeps open.
    let mut plain = Wire::dealer(server.port());
    plain.send(&["fetch", "disk/cold", &COLD_BYTES.to_string(), "1000"]).expect("send");
    assert!(plain.receive().expect("an answer")[0].is_empty());
    drop(plain);
    assert!(disk.await_close(DEADLINE));
    get(&server.url("cached"), &folder.path().join("copy")).expect_code(0);
    disk.release();
    server.stop(Signal::TERM).expect_code(0);
}

/// The disk of a path is known before it is opened, from names in memory.
#[test]
fn opening_files_on_a_hanging_disk_stalls_no_one() {
    // More than the server's threads that open files, with replacements of hung ones.
    const CLIENTS: usize = 40;
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    random_file(&served.join("cached"), 1 << 20, 1);
    fs::write(served.join("small"), "small").expect("write");
    let Some(disk) = hanging(&served.join("disk"), Pace::HeldAtOpen) else { return };
    let server = Server::start(&served);
    let disk = disk;

    let fetch = |paths: &[&str]| {
        let files: Vec<_> = paths.iter().map(|path| json!({ "path": path })).collect();
        json!({ "op": "fetch", "id": 1, "digest": "none", "credit_bytes": 1 << 30, "files": files })
    };
    let mut clients: Vec<Wire> = (0..CLIENTS).map(|_| Wire::dealer(server.port())).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        if number % 2 == 0 {
            client.send(&["fetch", "disk/cold", "0", "1"]).expect("send");
        } else {
            client.request(&fetch(&["disk/cold"])).expect("send");
        }
        // Earlier requests have begun when this one is answered.
        assert_eq!(client.ask(&json!({ "op": "hello" }))["re"], "hello");
    }
    assert!(disk.await_open(DEADLINE));
    get(&server.url("cached"), &folder.path().join("copy")).expect_code(0);
    run(&mut tow(["ls", &server.url("")])).expect_code(0);

    // A fetch gets the files before the one that can't be opened.
    let mut both = Wire::dealer(server.port());
    let answer = both.ask(&fetch(&["small", "disk/cold"]));
    assert_eq!((&answer["re"], &answer["files"][0]["size"]), (&json!("files"), &json!(5)));
    assert_eq!(both.receive().expect("its data")[1], b"small");

    disk.release();
    for (number, mut client) in clients.into_iter().enumerate() {
        let answer = client.receive().expect("an answer");
        if number % 2 == 0 {
            assert_eq!(answer, [content(0, 1)]);
        } else {
            assert_eq!(answer[0], b"TOW1");
        }
    }
    assert_eq!(both.control()["files"][0]["size"], COLD_BYTES);
    server.stop(Signal::TERM).expect_code(0);
}

/// Pages for a slow client may have been evicted when it reads on, and the disk may hang by then.
#[test]
fn bytes_read_before_a_disk_hangs_are_sent() {
    // Far more than socket buffers hold.
    const BYTES: u64 = 16 << 20;
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    random_file(&served.join("cached"), 1 << 20, 1);
    let Some(disk) = disk_of(&served.join("disk"), BYTES, Pace::Held) else { return };
    let server = Server::start(&served);
    let disk = disk;
    disk.release();
    let mut plain = Wire::dealer(server.port());
    plain.send(&["fetch", "disk/cold", "0", &BYTES.to_string()]).expect("send");
    // Sending begins when the whole piece is ready.
    plain.await_bytes().expect("an answer");
    disk.hold();
    // Opening the file evicts its pages.
    drop(fs::File::open(served.join("disk").join(UNCACHED_FILE)).expect("open"));
    let reader = std::thread::spawn(move || plain.receive().expect("an answer"));
    get(&server.url("cached"), &folder.path().join("copy")).expect_code(0);
    assert!(reader.join().expect("no panic")[0] == content(0, BYTES as usize));
    disk.release();
    server.stop(Signal::TERM).expect_code(0);
}

/// Copies of files on network disks take memory, and clients that don't read hold all of it.
#[test]
fn client_progresses_though_others_hold_all_copy_memory() {
    const BYTES: u64 = 16 << 20;
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_of(&mount, BYTES, Pace::Held) else { return };
    disk.release();
    let server = Server::start(&mount);
    let disk = disk;
    let mut hogs: Vec<Wire> = (0..3).map(|_| Wire::dealer(server.port())).collect();
    for (number, hog) in hogs.iter_mut().enumerate() {
        hog.send(&["fetch", UNCACHED_FILE, "0", &BYTES.to_string()]).expect("send");
        // The budget fits two of them.
        if number < 2 {
            hog.await_bytes().expect("an answer");
        }
    }
    let url = server.url(UNCACHED_FILE);
    for option in ["--no-verify", "--zstd"] {
        let copy = folder.path().join(option);
        run(get_command(&url, &copy).arg(option)).expect_code(0);
        assert!(fs::read(&copy).expect("read") == content(0, BYTES as usize));
    }
    for mut hog in hogs {
        assert!(hog.receive().expect("an answer")[0] == content(0, BYTES as usize));
    }
    server.stop(Signal::TERM).expect_code(0);
    drop(disk);
}

#[test]
fn serve_ends_though_its_disk_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = hanging(&mount, Pace::Held) else { return };
    let server = Server::start(&mount);
    let disk = disk;
    let client = Process::start(&mut get_command(&server.url(UNCACHED_FILE), &folder.path().join("copy")));
    assert!(disk.await_read(DEADLINE));
    wait_until("the server has logged its client", || server.log().contains("connected"));
    server.stop(Signal::TERM).expect_code(0);
    drop(client);
}
