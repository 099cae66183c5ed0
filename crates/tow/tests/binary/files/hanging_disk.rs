//! Disks that hang, or fail to sync. No timing is involved: they hang until released.

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
/// Bytes of the file after which the disk hangs.
const TAKEN_BYTES: u64 = 2 << 20;
/// Verified files are written by one thread, unverified ones by others.
const WHO_WRITES: [&[&str]; 2] = [&[], &["--no-verify"]];

/// Disk mounted on this folder. `None`, and the test is skipped, without /dev/fuse.
pub fn disk_in(folder: &Path) -> Option<WritableDisk> {
    fs::create_dir(folder).expect("mkdir");
    let disk = WritableDisk::mount(folder);
    disk.inspect_err(|error| println!("skipped: no FUSE file system can be mounted here: {error}")).ok()
}

#[test]
fn interrupted_get_ends_though_its_disk_hangs() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("file");
    random_file(&served, FILE_BYTES, 1);
    let server = Server::start(&served);
    for (index, arguments) in WHO_WRITES.iter().enumerate() {
        let mount = folder.path().join(index.to_string());
        let Some(disk) = disk_in(&mount) else { return };
        disk.hang_after(TAKEN_BYTES);
        let mut client = Process::start(get_command(&server.url("file"), &mount.join("copy")).args(*arguments));
        assert!(disk.await_hang(DEADLINE), "{}", client.log());
        assert!(!client.ended(), "{}", client.log());
        client.signal(Signal::INT);
        let outcome = client.finish().expect_signal(Signal::INT);
        assert_eq!(outcome.summary()["error"], "interrupted");
        assert!(outcome.stderr.contains(": interrupted\n"), "{}", outcome.stderr);
        disk.release();
        // The transfer resumes.
        Process::start(&mut get_command(&server.url("file"), &mount.join("copy"))).finish().expect_code(0);
        assert!(fs::read(mount.join("copy")).expect("read") == fs::read(&served).expect("read"));
    }
}

#[test]
fn get_fails_when_its_disk_hangs_too_long() {
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
        assert!(disk.await_hang(DEADLINE), "{}", client.log());
        let outcome = client.finish().expect_code(1);
        assert!(outcome.stderr.contains("the disk hangs"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(mount.to_str().expect("UTF-8")), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("run the same command again to resume"), "{}", outcome.stderr);
        let error = outcome.summary()["error"].as_str().expect("an error").to_owned();
        assert!(error.contains("the disk hangs"), "{error}");
    }
}

/// Entries not on the disk were never acknowledged, so the broker doesn't wait for them.
#[test]
fn broker_ends_though_its_journal_disk_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--journal", mount.to_str().expect("UTF-8")]);
    // The disk takes the next record and hangs before it is synced.
    disk.hang_after(1);
    let caller = Process::start(&mut call(&[&broker], &["nobody", "a request"]));
    assert!(disk.await_hang(DEADLINE), "{}", broker.log());
    broker.signal(Signal::TERM);
    let outcome = broker.finish().expect_code(1);
    assert!(outcome.stderr.contains("the disk hangs"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(mount.to_str().expect("UTF-8")), "{}", outcome.stderr);
    drop(caller);
}

/// Callers share a lock with the task that reads from the broker; it is never held during disk I/O.
#[test]
fn client_answers_while_its_spool_disk_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::start();
    let _worker = work(&[&broker], &["echo", "--echo"]);
    let mut options = ClientOptions::default();
    options.link.spool_folder = Some(mount.join("spool"));
    let endpoints = [broker.endpoint().parse().expect("an endpoint")];
    let (report, reports) = channel();
    let (go, goes_on) = tokio::sync::oneshot::channel();
    let caller = thread::spawn(move || {
        // On one thread, a task that waited for the disk would block all others.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::connect(&endpoints, options).expect("a client");
            let large = client.send("echo", vec![7; FILE_BYTES], CallOptions::default()).await.expect("sent");
            goes_on.await.expect("it fails since the disk hangs");
            let small = client.send("echo", "small", CallOptions::default()).await.expect("sent");
            assert!(client.cancel(small));
            report.send(client.status().outstanding).expect("somebody waits");
            let cancelled = client.receive().await.expect("an outcome");
            assert_eq!((cancelled.number, cancelled.status), (small, Status::CANCELLED));
            let reply = client.receive().await.expect("an outcome");
            assert_eq!((reply.number, reply.body.length()), (large, FILE_BYTES as u64));
        });
    });
    disk.hang_after(TAKEN_BYTES);
    assert!(disk.await_hang(DEADLINE), "{}", broker.log());
    go.send(()).expect("it waits");
    assert!(reports.recv_timeout(DEADLINE).is_ok(), "the caller hangs with the disk");
    disk.release();
    caller.join().expect("the large reply comes when the disk does");
}

/// The kernel reports a failed sync once; the next one succeeds though the bytes are lost.
#[test]
fn file_with_a_failed_sync_is_neither_installed_nor_resumed() {
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

/// A directory name that isn't synced loses everything below it.
#[test]
fn fsync_covers_names_of_all_directories() {
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
    // The listing has none of the directories.
    get("a/*/deep/x").expect_code(0);
    assert!(synced(&["", "new", "new/deep", "there", "there/deep"]), "{:?}", disk.synced_folders());
    // The listing has this directory, but not its parent.
    get("a/*/deep/empty").expect_code(0);
    assert!(synced(&["there/deep/empty", "there/deep"]), "{:?}", disk.synced_folders());
}

/// Files already there may have been written a moment ago without a sync.
#[test]
fn fsync_covers_files_already_there() {
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
    // It has the right time now, so the server isn't asked about it.
    File::options().write(true).open(&copy).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("touch");
    disk.fail_syncing(false);
    assert_eq!(get().expect_code(0).number("skipped"), 1);
    assert!(disk.synced_folders().contains(&fs::metadata(&mount).expect("stat").ino()));
}

#[test]
fn worker_continues_while_a_reply_waits_for_a_hanging_disk() {
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
    assert!(disk.await_hang(DEADLINE), "{}", large.log());
    for _ in 0..3 {
        let small = run(&mut call(&[&broker], &["zeros", "small"])).expect_code(0);
        assert_eq!(small.stdout, b"small\n");
    }
    assert!(!large.ended(), "{}", large.log());
    disk.release();
    assert!(large.finish().expect_code(0).stdout == vec![0; LARGE]);
}

/// Uncached ranges are prefetched; no one else waits for them.
#[test]
fn broker_serves_others_while_its_spool_disk_hangs() {
    let folder = tempdir().expect("a folder");
    let mount = folder.path().join("disk");
    let Some(disk) = disk_in(&mount) else { return };
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0", "--spool", mount.to_str().expect("UTF-8")]);
    let _others = work(&[&broker], &["others", "--echo"]);
    let large = folder.path().join("large");
    random_file(&large, FILE_BYTES, 1);
    let caller = Process::start(call(&[&broker], &["large"]).stdin(File::open(&large).expect("open")));
    let answers = |service: &str, what: &str| {
        let report = run(&mut call(&[&broker], &[service, "large"])).expect_code(0).stdout;
        String::from_utf8_lossy(&report).contains(what)
    };
    wait_until("the broker has it", || answers("mmi.queue", "\"waiting\":1"));
    disk.hang();
    let _worker = work(&[&broker], &["large", "--echo"]);
    wait_until("it is on its way", || answers("mmi.workers", "\"held\":1"));
    for _ in 0..10 {
        assert_eq!(run(&mut call(&[&broker], &["others", "far"])).expect_code(0).stdout, b"far");
    }
    disk.release();
    let reply = caller.finish().expect_code(0).stdout;
    assert!(reply == fs::read(&large).expect("read"));
}
