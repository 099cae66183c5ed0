//! Disks that hang as a whole, or fail to sync what they are given. Without timing: they hang until they are let go.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::SystemTime;

use rustix::process::Signal;
use tempfile::tempdir;
use towpath_client::client::{CallOptions, Client, ClientOptions};
use towpath_requests::numbered::Status;
use towpath_slow_disk::WritableDisk;

use crate::support::DEADLINE;
use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, Server, get_command, run};
use crate::support::tree::{random_file, write};
use crate::support::wait_until;

const FILE_BYTES: usize = 16 << 20;
/// It hangs when it has so much of the file.
const TAKEN_BYTES: u64 = 2 << 20;
/// The thread that receives writes what is verified, others what isn't.
const WHO_WRITES: [&[&str]; 2] = [&[], &["--no-verify"]];

/// A disk in this folder. `None`, and the test is skipped, where none can be mounted: a container has /dev/fuse or not.
pub fn disk_in(folder: &Path) -> Option<WritableDisk> {
    fs::create_dir(folder).expect("mkdir");
    let disk = WritableDisk::mount(folder);
    disk.inspect_err(|error| println!("skipped: no FUSE file system can be mounted here: {error}")).ok()
}

#[test]
fn a_get_onto_a_hanging_disk_ends_when_it_is_interrupted() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("file");
    random_file(&served, FILE_BYTES, 1);
    let server = Server::start(&served);
    for (index, arguments) in WHO_WRITES.iter().enumerate() {
        let mount = folder.path().join(index.to_string());
        let Some(disk) = disk_in(&mount) else { return };
        disk.hang_after(TAKEN_BYTES);
        let mut client = Process::start(get_command(&server.url("file"), &mount.join("copy")).args(*arguments));
        assert!(disk.await_hanging(DEADLINE), "{}", client.log());
        assert!(!client.ended(), "{}", client.log());
        client.signal(Signal::INT);
        let outcome = client.finish().expect_code(1);
        assert_eq!(outcome.summary()["error"], "interrupted");
        assert!(outcome.stderr.contains(": interrupted\n"), "{}", outcome.stderr);
        disk.release();
        // What it has goes on from there.
        Process::start(&mut get_command(&server.url("file"), &mount.join("copy"))).finish().expect_code(0);
        assert!(fs::read(mount.join("copy")).expect("read") == fs::read(&served).expect("read"));
    }
}

#[test]
fn a_get_onto_a_disk_that_hangs_for_too_long_says_so() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("file");
    random_file(&served, FILE_BYTES, 1);
    let server = Server::start(&served);
    for (index, arguments) in WHO_WRITES.iter().enumerate() {
        let mount = folder.path().join(index.to_string());
        let Some(disk) = disk_in(&mount) else { return };
        disk.hang_after(TAKEN_BYTES);
        let mut command = get_command(&server.url("file"), &mount.join("copy"));
        let client = Process::start(command.args(["--timeout", "1"]).args(*arguments));
        assert!(disk.await_hanging(DEADLINE), "{}", client.log());
        let outcome = client.finish().expect_code(1);
        assert!(outcome.stderr.contains("the disk hangs"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(mount.to_str().expect("UTF-8")), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("run the same command again to resume"), "{}", outcome.stderr);
        let error = outcome.summary()["error"].as_str().expect("an error").to_owned();
        assert!(error.contains("the disk hangs"), "{error}");
    }
}

/// What is on its way to the disk was never acknowledged: nobody has to wait for it.
#[test]
fn a_broker_ends_though_the_disk_of_its_journal_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--journal", mount.to_str().expect("UTF-8")]);
    // It takes the record that comes next, and hangs before that is synced.
    disk.hang_after(1);
    let caller = Process::start(&mut call(&[&broker], &["nobody", "a request"]));
    assert!(disk.await_hanging(DEADLINE), "{}", broker.log());
    broker.signal(Signal::TERM);
    let outcome = broker.finish().expect_code(1);
    assert!(outcome.stderr.contains("the disk hangs"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(mount.to_str().expect("UTF-8")), "{}", outcome.stderr);
    drop(caller);
}

/// Its callers share a lock with the task that hears the broker, and nobody waits for the disk with it.
#[test]
fn a_client_answers_its_callers_while_the_disk_of_its_large_bodies_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::start();
    let _worker = work(&[&broker], &["echo", "--echo"]);
    let mut options = ClientOptions::default();
    options.link.spool_folder = mount.join("spool");
    let endpoints = [broker.endpoint().parse().expect("an endpoint")];
    let (told, hears) = channel();
    let (go, goes_on) = tokio::sync::oneshot::channel();
    let caller = thread::spawn(move || {
        // One thread: a task that waits for the disk would be all that it runs.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::connect(&endpoints, options).expect("a client");
            let large = client.send("echo", vec![7; FILE_BYTES], CallOptions::default()).await.expect("sent");
            goes_on.await.expect("it is told that the disk hangs");
            let small = client.send("echo", "small", CallOptions::default()).await.expect("sent");
            assert!(client.cancel(small));
            told.send(client.status().outstanding).expect("somebody waits");
            let cancelled = client.receive().await.expect("an outcome");
            assert_eq!((cancelled.number, cancelled.status), (small, Status::CANCELLED));
            let reply = client.receive().await.expect("an outcome");
            assert_eq!((reply.number, reply.body.length()), (large, FILE_BYTES as u64));
        });
    });
    disk.hang_after(TAKEN_BYTES);
    assert!(disk.await_hanging(DEADLINE), "{}", broker.log());
    go.send(()).expect("it waits");
    assert!(hears.recv_timeout(DEADLINE).is_ok(), "the caller hangs with the disk");
    disk.release();
    caller.join().expect("the large reply comes when the disk does");
}

/// The kernel tells of it once, and the next sync succeeds though the bytes are gone.
#[test]
fn a_file_that_could_not_be_synced_is_not_installed_nor_gone_on_with() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    random_file(&served.join("large"), 8 << 20, 1);
    random_file(&served.join("small"), 1000, 2);
    let server = Server::start(&served);
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    for file in ["large", "small"] {
        let (url, copy) = (server.url(file), mount.join(file));
        disk.fail_syncing(true);
        let outcome = Process::start(get_command(&url, &copy).arg("--fsync")).finish().expect_code(1);
        assert!(outcome.stderr.contains("cannot sync"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(mount.to_str().expect("UTF-8")), "{}", outcome.stderr);
        assert!(!copy.exists());
        disk.fail_syncing(false);
        let outcome = Process::start(get_command(&url, &copy).arg("--fsync")).finish().expect_code(0);
        assert_eq!(outcome.number("resumed_bytes"), 0, "{}", outcome.summary());
        assert!(fs::read(&copy).expect("read") == fs::read(served.join(file)).expect("read"));
    }
    assert_eq!(fs::read_dir(&mount).expect("a listing").count(), 2, "something is left over");
}

/// A name that is not synced takes with it all that is below it.
#[test]
fn the_names_of_all_directories_are_synced_too() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for path in ["a/new/deep/x", "a/there/deep/x"] {
        write(&served.join(path), b"content");
    }
    fs::create_dir_all(served.join("a/there/deep/empty")).expect("mkdir");
    let server = Server::start(&served);
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    fs::create_dir(mount.join("there")).expect("mkdir");
    let get = |pattern: &str| Process::start(get_command(&server.url(pattern), &mount).arg("--fsync")).finish();
    let inode = |path: &str| fs::metadata(mount.join(path)).expect("stat").ino();
    let synced = |paths: &[&str]| paths.iter().all(|path| disk.synced_folders().contains(&inode(path)));
    // None of the directories is listed.
    get("a/*/deep/x").expect_code(0);
    assert!(synced(&["", "new", "new/deep", "there", "there/deep"]), "{:?}", disk.synced_folders());
    // This one is, but not what it is in.
    get("a/*/deep/empty").expect_code(0);
    assert!(synced(&["there/deep/empty", "there/deep"]), "{:?}", disk.synced_folders());
}

/// It may have been written a moment ago, by what did not sync it.
#[test]
fn content_that_is_there_is_synced_too() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served, b"content");
    let server = Server::start(&served);
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let copy = mount.join("copy");
    write(&copy, b"content");
    disk.fail_syncing(true);
    let get = || Process::start(get_command(&server.url("served"), &copy).arg("--fsync")).finish();
    let outcome = get().expect_code(1);
    assert!(outcome.stderr.contains("cannot sync"), "{}", outcome.stderr);
    // By now it has the right time, and nothing more is said of it to the server.
    File::options().write(true).open(&copy).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("touch");
    disk.fail_syncing(false);
    assert_eq!(get().expect_code(0).number("skipped"), 1);
    assert!(disk.synced_folders().contains(&fs::metadata(&mount).expect("stat").ino()));
}

#[test]
fn a_worker_whose_reply_waits_for_a_hanging_disk_does_other_requests() {
    const LARGE: usize = 8 << 20;
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::start();
    let script = format!("if [ \"$(cat)\" = large ]; then head -c {LARGE} /dev/zero; else echo small; fi");
    let spool = mount.join("spool");
    let arguments = ["zeros", "--jobs", "2", "--spool", spool.to_str().expect("UTF-8"), "--", "sh", "-c", &script];
    let _worker = work(&[&broker], &arguments);
    disk.hang_after(2 << 20);
    let mut large = Process::start(&mut call(&[&broker], &["zeros", "large"]));
    assert!(disk.await_hanging(DEADLINE), "{}", large.log());
    for _ in 0..3 {
        let small = run(&mut call(&[&broker], &["zeros", "small"])).expect_code(0);
        assert_eq!(small.stdout, b"small\n");
    }
    assert!(!large.ended(), "{}", large.log());
    disk.release();
    assert!(large.finish().expect_code(0).stdout == vec![0; LARGE]);
}

/// What isn't in memory is read before it is sent, and nobody else waits for it.
#[test]
fn a_broker_serves_others_while_the_disk_of_its_large_bodies_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--spool", mount.to_str().expect("UTF-8")]);
    let _others = work(&[&broker], &["others", "--echo"]);
    let large = folder.path().join("large");
    random_file(&large, FILE_BYTES, 1);
    let caller = Process::start(call(&[&broker], &["large"]).stdin(File::open(&large).expect("open")));
    let tells = |service: &str, what: &str| {
        let told = run(&mut call(&[&broker], &[service, "large"])).expect_code(0).stdout;
        String::from_utf8_lossy(&told).contains(what)
    };
    wait_until("the broker has it", || tells("mmi.queue", "\"waiting\":1"));
    disk.hang();
    let _worker = work(&[&broker], &["large", "--echo"]);
    wait_until("it is on its way", || tells("mmi.workers", "\"held\":1"));
    for _ in 0..10 {
        assert_eq!(run(&mut call(&[&broker], &["others", "far"])).expect_code(0).stdout, b"far");
    }
    disk.release();
    let reply = caller.finish().expect_code(0).stdout;
    assert!(reply == fs::read(&large).expect("read"));
}
