//! Encrypted connections with somebody in the middle who leaves out, doubles, delays and changes frames: each ends and is made again, and nothing
//! wrong comes of it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::security::keys::Keys;
use crate::support::broker::Broker;
use crate::support::middle::{Deed, Middle, To};
use crate::support::process::{Process, Server, run, tow};
use crate::support::tree::{digest, random_file, write};
use crate::support::{skip, wait_until};

const DEEDS: [Deed; 4] = [Deed::LeaveOut, Deed::Double, Deed::Delay, Deed::Flip];

fn serve(source: &Path, keys: &Keys, options: &[&str]) -> Server {
    let mut command = tow(["serve".as_ref(), source.as_os_str()]);
    Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]).args(options).args(keys.server()))
}

/// The same command without AES-256-GCM, so with CURVE's own cipher.
fn with_cipher(mut command: Command, aes: bool) -> Command {
    if !aes {
        command.env("TOW_WITHOUT_AES", "1");
    }
    command
}

#[test]
fn files_are_fetched_as_they_are_whatever_is_done_to_a_frame() {
    let keys = Keys::new();
    let source = keys.path("served");
    random_file(&source.join("large"), 9 << 20, 1);
    write(&source.join("small"), b"small");
    let server = serve(&source, &keys, &[]);
    // Behind the greeting and the handshake: the request, credit; the list, pieces.
    for (number, (to, behind)) in
        [(To::Server, 3), (To::Server, 4), (To::Client, 3), (To::Client, 6)].into_iter().enumerate()
    {
        for deed in DEEDS {
            let middle = Middle::start(server.port());
            middle.arm(to, behind, deed);
            let copy = keys.path("copy");
            let mut get = tow(["get", &format!("tcp://127.0.0.1:{}/", middle.port())]);
            get.arg(&copy).args(keys.client("alice"));
            let got = run(&mut with_cipher(get, number % 2 == 0));
            assert!(got.status.success(), "{deed:?} {behind} to the {to:?}: {}", got.stderr);
            assert_eq!(digest(&copy.join("large")), digest(&source.join("large")), "{deed:?} {behind} to the {to:?}");
            assert!(middle.is_done() && middle.connections() == 2, "{deed:?} {behind} to the {to:?}: {}", got.stderr);
            fs::remove_dir_all(&copy).expect("it is there");
        }
    }
}

#[test]
fn followers_get_what_was_left_out_on_the_way() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source.join("first"), b"1");
    let server = serve(&source, &keys, &["--watch", "--settle", "200ms", "--heartbeat", "200ms"]);
    for (number, deed) in DEEDS.into_iter().enumerate() {
        let middle = Middle::start(server.port());
        let copy = keys.path(&format!("copy {number}"));
        let mut follow = tow(["follow", &format!("tcp://127.0.0.1:{}/", middle.port())]);
        let follower = Process::start(follow.arg(&copy).args(keys.client("alice")));
        wait_until("the follower is up to date", || follower.output().contains("up to date at "));
        middle.arm(To::Client, number % 2, deed);
        write(&source.join(format!("{deed:?}")), b"2");
        let is_there = || fs::read(copy.join(format!("{deed:?}"))).is_ok_and(|text| text == b"2");
        wait_until("the copy has what came behind", is_there);
        wait_until("the connection is made again", || middle.is_done() && middle.connections() == 2);
    }
}

#[test]
fn calls_get_the_right_reply_whatever_is_done_to_a_frame() {
    let keys = Keys::new();
    let options = keys.server();
    let broker = Broker::with(&options.each_ref().map(String::as_str));
    let alice = keys.client("alice");
    let body = keys.path("body");
    random_file(&body, 700_000, 2);
    let bytes = fs::read(&body).expect("it is there");
    let mut worker = tow(["work", "echo", "--connect", broker.endpoint()]);
    let worker = Process::start(worker.args(&alice).args(["--", "cat"]));
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    for (number, (to, behind)) in
        [(To::Server, 3), (To::Server, 4), (To::Client, 3), (To::Client, 5)].into_iter().enumerate()
    {
        for deed in DEEDS {
            let middle = Middle::start(broker.port());
            middle.arm(to, behind, deed);
            let mut call = tow(["call", "echo", "--connect", &format!("tcp://127.0.0.1:{}", middle.port())]);
            call.args(&alice).stdin(File::open(&body).expect("open"));
            let got = run(&mut with_cipher(call, number % 2 == 0));
            assert!(got.status.success(), "{deed:?} {behind} to the {to:?}: {}", got.stderr);
            assert!(got.stdout == bytes, "{deed:?} {behind} to the {to:?}: another reply");
        }
    }
}

#[test]
fn workers_are_given_whole_requests_whatever_is_done_to_a_frame() {
    let keys = Keys::new();
    let options = keys.server();
    let broker = Broker::with(&options.each_ref().map(String::as_str));
    let alice = keys.client("alice");
    let (body, given) = (keys.path("body"), keys.path("given"));
    random_file(&body, 700_000, 3);
    fs::create_dir(&given).expect("mkdir");
    let bytes = fs::read(&body).expect("it is there");
    let keep = "f=$(mktemp ./XXXXXX); cat > $f; cat $f";
    for (to, behind) in [(To::Client, 0), (To::Client, 2), (To::Server, 0)] {
        for deed in DEEDS {
            let middle = Middle::start(broker.port());
            let mut worker = tow(["work", "keep", "--connect", &format!("tcp://127.0.0.1:{}", middle.port())]);
            let worker = Process::start(worker.args(&alice).args(["--", "sh", "-c", keep]).current_dir(&given));
            wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
            middle.arm(to, behind, deed);
            let mut call = tow(["call", "keep", "--connect", broker.endpoint()]);
            let got = run(call.args(&alice).stdin(File::open(&body).expect("open")));
            assert!(got.status.success(), "{deed:?} {behind} to the {to:?}: {}", got.stderr);
            assert!(got.stdout == bytes, "{deed:?} {behind} to the {to:?}: another reply");
        }
    }
    for file in fs::read_dir(&given).expect("it is there") {
        let path = file.expect("an entry").path();
        assert!(fs::read(&path).expect("it is there") == bytes, "the worker was given something else");
    }
}

#[test]
fn processes_with_a_key_leave_no_core_dump() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source.join("file"), b"content");
    let is_dumped = |options: &[String]| {
        let mut command = Command::new("sh");
        let tow = tow(["serve"]);
        command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]).arg(tow.get_program()).args(tow.get_args());
        command.args([".", "--bind", "tcp://127.0.0.1:0"]).args(options).current_dir(&source);
        let server = Server::from_command(&mut command);
        std::os::unix::process::ExitStatusExt::core_dumped(&server.stop(Signal::ABORT).status)
    };
    if !is_dumped(&[]) {
        return skip("this system makes no core dumps");
    }
    assert!(!is_dumped(&keys.server()));
}
