//! Why a transfer is slow: each cause is brought about with real processes.

use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use towpath_far_link::{End, FAR, FarLink, Link};
use towpath_slow_disk::{Pace, SlowDisk, WritableDisk};

use crate::operator::status::Place;
use crate::support::process::{Process, Server, get_command, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::random_file;
use crate::support::wait_until;

const LARGE: usize = 64 << 20;

/// A server's place, and a folder with what it serves, a large file.
fn large_file() -> (Place, TempDir) {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    fs::create_dir_all(folder.path().join("served/in")).expect("mkdir");
    random_file(&folder.path().join("served/large"), LARGE, 1);
    (place, folder)
}

fn serve(place: &Place, folder: &TempDir, options: &[&str]) -> Server {
    let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0"]);
    command.arg(folder.path().join("served")).args(options);
    Server::from_command(command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY"))
}

fn fetch(url: &str, folder: &TempDir, name: &str, options: &[&str]) -> Process {
    Process::start(get_command(url, &folder.path().join(name)).args(options))
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).expect("open");
    file.write_all(bytes).expect("write");
}

/// Waits until the only transfer is slow for this reason, or isn't slow (""), and gives it.
#[track_caller]
fn await_cause(place: &Place, cause: &str) -> Value {
    let is_it = |of: &Value| !of["bytes_per_second"].is_null() && of["waits_for"].as_str().unwrap_or("") == cause;
    let (mut found, mut seen) = (None, Vec::new());
    let is_found = catch_unwind(AssertUnwindSafe(|| {
        wait_until(&format!("the cause is {cause:?}"), || {
            let transfers = place.json(&["transfers"]);
            found = transfers.iter().find(|of| is_it(of)).cloned();
            seen = if transfers.is_empty() { std::mem::take(&mut seen) } else { transfers };
            found.is_some()
        });
    }));
    is_found.unwrap_or_else(|_| panic!("the cause isn't {cause:?}: {seen:?}"));
    found.expect("it was there")
}

#[test]
fn a_client_limits_itself() {
    let (place, folder) = large_file();
    let server = serve(&place, &folder, &["--accept-push", "in"]);
    let client = fetch(&server.url("large"), &folder, "copy", &["--bwlimit", "100K"]);
    let transfer = await_cause(&place, "client_rate");
    assert_eq!((&transfer["all_total_bytes"], &transfer["path"]), (&LARGE.into(), &"large".into()));
    let table = String::from_utf8(place.tow(&["transfers"]).expect_code(0).stdout).expect("UTF-8");
    let peer = transfer["peer"].as_str().expect("an id");
    assert!(table.contains(&format!("\n{peer} ")) && table.contains("  limits itself "), "{table}");
    // A stopped one has no credit either.
    client.signal(Signal::STOP);
    await_cause(&place, "frozen");
    client.signal(Signal::CONT);
    await_cause(&place, "client_rate");
    drop(client);
    let mut push = tow(["push", "--bwlimit", "100K"]);
    push.arg(folder.path().join("served/large")).arg(server.url("in/"));
    let pushing = Process::start(&mut push);
    let transfer = await_cause(&place, "client_rate");
    assert_eq!(transfer["kind"], "push");
    pushing.signal(Signal::STOP);
    await_cause(&place, "frozen");
    pushing.signal(Signal::CONT);
}

#[test]
fn the_server_limits_its_clients() {
    let (place, folder) = large_file();
    let server = serve(&place, &folder, &["--bwlimit", "200K"]);
    let _clients = ["a", "b"].map(|name| fetch(&server.url("large"), &folder, name, &[]));
    await_cause(&place, "server_rate");
}

#[test]
fn a_client_that_takes_nothing_and_is_silent_is_frozen() {
    let (place, folder) = large_file();
    let server = serve(&place, &folder, &[]);
    let proxy = Proxy::start(server.port());
    proxy.hold_after(8 << 20);
    let mut client = fetch(&proxy.url("large"), &folder, "copy", &[]);
    proxy.wait_held(&mut client);
    // It answers.
    await_cause(&place, "receiver");
    client.signal(Signal::STOP);
    let transfer = await_cause(&place, "frozen");
    let stalled = transfer["stalled_seconds"].as_f64();
    assert!(stalled >= Some(5.0), "{transfer}");
    let done = transfer["all_done_bytes"].as_u64().expect("a number");
    assert!((8 << 20..=LARGE as u64).contains(&done), "{transfer}");
    client.signal(Signal::CONT);
    proxy.release();
    client.finish().expect_code(0);
}

/// A side that takes little isn't frozen.
#[test]
fn a_client_reads_slowly() {
    let (place, folder) = large_file();
    let server = serve(&place, &folder, &[]);
    let proxy = Proxy::start(server.port());
    proxy.slow_down(1 << 20);
    let _client = fetch(&proxy.url("large"), &folder, "copy", &[]);
    await_cause(&place, "receiver");
}

#[test]
fn a_fast_transfer_has_no_cause() {
    let (place, folder) = large_file();
    let one = fs::read(folder.path().join("served/large")).expect("read");
    let larger = folder.path().join("served/larger");
    (0..8).for_each(|_| append(&larger, &one));
    let server = serve(&place, &folder, &[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One that fetches again and again, as a single fetch is soon over.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut command = tow(["get", &server.url("larger"), "-"]);
                Process::with_output(&mut command, Stdio::null()).finish().expect_code(0);
            }
        });
        let found = catch_unwind(AssertUnwindSafe(|| await_cause(&place, "")));
        stop.store(true, Ordering::Relaxed);
        found.expect("it goes at full speed");
    });
}

#[test]
fn the_disk_of_the_client_is_slow() {
    let (place, folder) = large_file();
    let server = serve(&place, &folder, &[]);
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).expect("mkdir");
    let disk = match WritableDisk::mount(&copy) {
        Ok(disk) => disk,
        Err(error) => return println!("skipped: no FUSE file system can be mounted here: {error}"),
    };
    disk.hang_after(4 << 20);
    let client = fetch(&server.url("large"), &folder, "copy/large", &[]);
    await_cause(&place, "client_disk");
    disk.release();
    client.finish().expect_code(0);
}

#[test]
fn the_disk_of_the_server_is_slow() {
    let (place, folder) = large_file();
    let below = folder.path().join("served/disk");
    fs::create_dir(&below).expect("mkdir");
    let server = serve(&place, &folder, &[]);
    let _disk = match SlowDisk::mount(&below, 16 << 20, Pace::BytesPerSecond(1 << 20)) {
        Ok(disk) => disk,
        Err(error) => return println!("skipped: no FUSE file system can be mounted here: {error}"),
    };
    let _client = fetch(&server.url("disk/cold"), &folder, "copy", &[]);
    await_cause(&place, "disk");
}

/// A link of 2 Mbit/s with a queue, in a network namespace of its own.
#[test]
fn the_network_is_slow() {
    let (place, folder) = large_file();
    let slow =
        "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 2mbit burst 16kb latency 400ms && exec \"$@\"";
    let may = Command::new("unshare").args(["--net", "sh", "-c", slow, "sh", "true"]).output();
    match may {
        Ok(done) if done.status.success() => {}
        other => return println!("skipped: no slow network can be made here: {other:?}"),
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", slow, "sh"]).arg(env!("CARGO_BIN_EXE_tow"));
    command.args(["serve", "--bind", "tcp://127.0.0.1:0"]).arg(folder.path().join("served"));
    command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY");
    let server = Server::from_command(&mut command);
    let mut client = Command::new("nsenter");
    client.arg(format!("--net=/proc/{}/ns/net", server.pid().as_raw_nonzero())).arg(env!("CARGO_BIN_EXE_tow"));
    let _client = Process::start(client.args(["get", &server.url("large")]).arg(folder.path().join("copy")));
    await_cause(&place, "network");
}

/// A server and a link of 100 ms and 100 Mbit/s with buffers of these sizes in the server's and the client's system.
fn over_far_link(buffers_max: (u64, u64)) -> Option<(Place, TempDir, FarLink, Server)> {
    let (place, folder) = large_file();
    let link = match FarLink::start(Link { buffers_max, ..Link::default() }) {
        Ok(link) => link,
        Err(error) => {
            println!("skipped: no far link can be made here: {error}");
            return None;
        }
    };
    let mut command = link.command(End::Far, env!("CARGO_BIN_EXE_tow"));
    command.args(["serve", "--bind", &format!("tcp://{FAR}:0"), "--open-to-all", "--accept-push", "in"]);
    command.arg(folder.path().join("served"));
    command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY");
    let server = Server::from_command(&mut command);
    Some((place, folder, link, server))
}

const SMALL_SEND_BUFFER: (u64, u64) = (128 << 10, 32 << 20);
const SMALL_RECEIVE_BUFFER: (u64, u64) = (32 << 20, 256 << 10);

/// A fetch for which the operator sees the cause, and its user the remedy.
fn a_far_fetch(buffers: (u64, u64), cause: &str, remedy: &str) {
    let Some((place, folder, link, server)) = over_far_link(buffers) else { return };
    let mut client = link.command(End::Near, env!("CARGO_BIN_EXE_tow"));
    client.args(["get", "-v", &server.url("large")]).arg(folder.path().join("copy"));
    let client = Process::start(&mut client);
    await_cause(&place, cause);
    wait_until(&format!("it says {remedy:?}: {}", client.log()), || client.log().contains(remedy));
    let done = || place.json(&["transfers"]).first().and_then(|of| of["all_done_bytes"].as_u64());
    let then = done().expect("a transfer");
    // Some seconds later, in each of which the server looks at the buffers.
    wait_until("it goes on", || done().is_none_or(|now| now >= then + (4 << 20)));
    assert_eq!(client.log().matches("limits the rate").count(), 1, "{}", client.log());
}

/// A push whose user sees the remedy.
fn a_far_push(buffers: (u64, u64), remedy: &str) {
    let Some((_place, folder, link, server)) = over_far_link(buffers) else { return };
    let mut client = link.command(End::Near, env!("CARGO_BIN_EXE_tow"));
    client.args(["push", "-v"]).arg(folder.path().join("served/large")).arg(server.url("in/"));
    let client = Process::start(&mut client);
    wait_until(&format!("it says {remedy:?}: {}", client.log()), || client.log().contains(remedy));
}

#[test]
fn the_send_buffer_is_small_for_a_far_client() {
    a_far_fetch(SMALL_SEND_BUFFER, "send_buffer", "on the server: sysctl -w net.ipv4.tcp_wmem='4096 16384 134217728'");
}

#[test]
fn the_receive_buffer_of_a_far_client_is_small() {
    a_far_fetch(SMALL_RECEIVE_BUFFER, "receive_buffer", "here: sysctl -w net.ipv4.tcp_rmem='4096 131072 134217728'");
}

#[test]
fn a_far_push_has_a_small_send_buffer() {
    a_far_push(SMALL_SEND_BUFFER, "here: sysctl -w net.ipv4.tcp_wmem=");
}

#[test]
fn a_far_push_has_a_small_receive_buffer() {
    a_far_push(SMALL_RECEIVE_BUFFER, "on the server: sysctl -w net.ipv4.tcp_rmem=");
}

#[test]
fn a_follower_has_the_cause_of_its_transfer() {
    let (place, folder) = large_file();
    let server = serve(&place, &folder, &["--watch", "--settle", "100ms"]);
    let mut command = tow(["follow", &server.url(""), "--name", "gpu-7", "--bwlimit", "100K"]);
    let _follower = Process::start(command.arg(folder.path().join("copy")));
    let is_slow = |of: &Value| of["name"] == "gpu-7" && of["waits_for"] == "client_rate";
    wait_until("the follower limits itself", || place.json(&["followers"]).iter().any(is_slow));
    let transfer = await_cause(&place, "client_rate");
    assert_eq!((&transfer["follower"], &transfer["path"]), (&"gpu-7".into(), &"large".into()));
    let tables = ["followers", "transfers"].map(|list| place.tow(&[list]).expect_code(0).stdout);
    for table in tables.map(|table| String::from_utf8(table).expect("UTF-8")) {
        assert!(table.contains("gpu-7 ") && table.contains(" limits itself "), "{table}");
    }
}

/// Its files come over another connection than the one on which it reports.
#[test]
fn a_follower_of_versions_has_the_cause_of_its_transfer() {
    let (place, folder) = large_file();
    let state = folder.path().join("state");
    let state = state.to_str().expect("UTF-8");
    let server = serve(&place, &folder, &["--watch", "--settle", "100ms", "--accept-publish", "--state", state]);
    run(&mut tow(["publish", &server.url(""), "v1", "--timeout", "60s"])).expect_code(0);
    let mut command = tow(["follow", "--versions", &server.url(""), "--name", "gpu-7", "--bwlimit", "100K"]);
    let _follower = Process::start(command.arg(folder.path().join("copy")));
    let is_slow = |of: &Value| of["name"] == "gpu-7" && of["waits_for"] == "client_rate";
    wait_until("the follower limits itself", || place.json(&["followers"]).iter().any(is_slow));
    assert_eq!(place.json(&["followers"]).len(), 1, "the other connection is no follower");
    let transfer = await_cause(&place, "client_rate");
    assert_eq!(transfer["follower"], "gpu-7");
    let table = String::from_utf8(place.tow(&["followers"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("gpu-7 ") && table.contains(" limits itself "), "{table}");
    // The second connection is ended by its number, as `tow transfers` shows it.
    let peer = transfer["peer"].as_str().expect("an id");
    place.tow(&["kick", peer]).expect_code(0);
    wait_until("it has connected again", || {
        place.json(&["transfers"]).iter().any(|of| of["peer"] != peer && of["follower"] == "gpu-7")
    });
}
