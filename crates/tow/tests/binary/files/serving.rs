//! Start, endpoints, logins and end of `tow serve`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::process::{Process, Server, get, get_command, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{digest, random_file, write, write_secret};
use crate::support::wait_until;
use crate::support::wire::Wire;

#[test]
fn serve_ends_cleanly_on_sigterm_and_sigint() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempdir().expect("a folder");
        write(&folder.path().join("a"), b"a");
        let server = Server::start(folder.path());
        // Neither an idle client nor one in the handshake keeps the server from ending.
        let _idle = Wire::connect(server.port());
        let _ready = Wire::dealer(server.port());
        get(&server.url("a"), &folder.path().join("copy")).expect_code(0);
        let outcome = server.stop(signal).expect_code(0);
        assert!(outcome.seconds < 10.0, "it took {} s", outcome.seconds);
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    }
}

#[test]
fn serve_ends_cleanly_during_a_transfer() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 32 << 20, 1);
    let server = Server::start(folder.path());
    let proxy = Proxy::start(server.port());
    proxy.hold_after(4 << 20);
    let mut client = Process::start(&mut get_command(&proxy.url("a"), &folder.path().join("copy")));
    proxy.wait_held(&mut client);
    server.stop(Signal::TERM).expect_code(0);
}

#[test]
fn confirmed_files_are_logged() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("a"), b"a");
    let server = Server::start(folder.path());
    let times = 30;
    for copy in 0..times {
        get(&server.url("a"), &folder.path().join(copy.to_string())).expect_code(0);
    }
    wait_until("all clients are gone", || server.log().matches(" gone").count() == times);
    assert_eq!(server.log().matches("confirmed a ").count(), times, "{}", server.log());
}

#[test]
fn serve_listens_on_all_endpoints() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("a.bin");
    random_file(&source, 300_000, 1);
    let ipc = format!("ipc://{}", folder.path().join("socket").display());
    for (index, endpoint) in ["tcp://[::1]:0", &ipc].into_iter().enumerate() {
        let mut command = tow([OsStr::new("serve"), source.as_ref()]);
        let server = Server::from_command(command.args(["--bind", endpoint]));
        let expected = endpoint.trim_end_matches('0');
        assert!(server.endpoint().starts_with(expected), "{}", server.endpoint());
        assert!(!server.endpoint().ends_with(":0"), "{}", server.endpoint());
        if endpoint.starts_with("tcp") {
            let copy = folder.path().join(format!("copy{index}"));
            get(&server.url("a.bin"), &copy).expect_code(0);
            assert_eq!(digest(&copy), digest(&source));
        }
    }
}

#[test]
fn serve_refuses_what_it_cannot_serve_or_bind() {
    let folder = tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let outcome =
        run(tow([OsStr::new("serve"), missing.as_ref()]).args(["--bind", "tcp://127.0.0.1:0"])).expect_code(4);
    assert!(outcome.stderr.contains("missing: not found"), "{}", outcome.stderr);
    assert!(outcome.stdout.is_empty());

    let server = Server::start(folder.path());
    let taken = tow([OsStr::new("serve"), folder.path().as_ref()]);
    for mut command in [taken, tow(["broker"])] {
        let outcome = run(command.args(["--bind", server.endpoint()])).expect_code(1);
        let is_named = outcome.stderr.contains(server.endpoint()) && outcome.stderr.contains("; ss -ltnp shows which");
        assert!(is_named, "{}", outcome.stderr);
    }

    let (served, state) = (folder.path().join("served"), folder.path().join("state"));
    std::fs::create_dir(&served).expect("mkdir");
    let serve = |state: &std::path::Path| {
        let mut command = tow(["serve", "--watch", "--bind", "tcp://127.0.0.1:0"]);
        command.arg(&served).arg("--state").arg(state);
        command
    };
    let _server = Server::from_command(&mut serve(&state));
    for (state, why) in [(&state, "another server is using it: end that one"), (&served, "is what is served")] {
        let outcome = run(&mut serve(state)).expect_code(if *state == served { 2 } else { 1 });
        assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
    }
}

#[test]
fn unknown_congestion_control_is_logged_and_ignored() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("a"), b"a");
    for (name, complains) in [("none-of-ours", true), ("reno", false), ("auto", false), ("system", false)] {
        let mut command = tow([OsStr::new("serve"), folder.path().as_ref()]);
        let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0", "--congestion", name]));
        get(&server.url("a"), &folder.path().join(format!("copy-{name}"))).expect_code(0);
        let log = server.stop(Signal::TERM).expect_code(0).stderr;
        let warning = log.lines().find(|line| line.contains("WARN"));
        assert_eq!(warning.is_some(), complains, "{log}");
        assert!(
            warning.is_none_or(
                |line| line.contains("the kernel doesn't have this congestion control") && line.contains(name)
            )
        );
    }
}

#[test]
fn refused_client_fails_at_once() {
    let folder = tempdir().expect("a folder");
    let passwords = folder.path().join("passwords");
    write_secret(&passwords, "ann:secret\n");
    let source = folder.path().join("a");
    write(&source, b"a");
    let mut command = tow([OsStr::new("serve"), source.as_ref(), "--plain-passwords".as_ref(), passwords.as_ref()]);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
    let url = server.url("a");
    for arguments in [&["ls", &url][..], &["get", &url, "-"], &["get", &url, "copy"]] {
        for (user, password, hint) in [(&[][..], "", "--user"), (&["--user", "ann"], "wrong", "TOW_PASSWORD")] {
            let outcome = run(tow(arguments).args(user).env("TOW_PASSWORD", password).current_dir(folder.path()));
            let outcome = outcome.expect_code(5);
            assert!(outcome.stderr.contains("does not let this client in"), "{}", outcome.stderr);
            assert!(outcome.stderr.contains(hint), "{}", outcome.stderr);
            assert!(outcome.seconds < 4.0, "{} s", outcome.seconds);
        }
    }
    let outcome = run(tow(["get", &url, "-", "--user", "ann"]).env("TOW_PASSWORD", "secret")).expect_code(0);
    assert_eq!(outcome.stdout, b"a");
    assert_eq!(server.log().matches("handshake failed").count(), 6, "{}", server.log());
}

#[test]
fn get_without_a_server_fails() {
    let folder = tempdir().expect("a folder");
    // A port without a listener: it was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    drop(listener);
    let outcome = get(&format!("tcp://127.0.0.1:{port}/a"), &folder.path().join("copy")).expect_code(6);
    assert!(!outcome.stderr.is_empty());
    assert!(!folder.path().join("copy").exists());
}

#[test]
fn get_and_ls_work_over_ipc() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("served/sub/a.bin");
    write(&source, b"");
    random_file(&source, 3_000_000, 1);
    let endpoint = format!("ipc://{}", folder.path().join("socket").display());
    let mut command = tow([OsStr::new("serve"), folder.path().join("served").as_ref()]);
    let server = Server::from_command(command.args(["--bind", &endpoint]));
    assert_eq!(server.endpoint(), endpoint);
    let copy = folder.path().join("copy");
    get(&format!("{endpoint}:/sub/a.bin"), &copy).expect_code(0);
    assert_eq!(digest(&copy), digest(&source));
    let listing = run(&mut tow(["ls", &format!("{endpoint}:/sub")])).expect_code(0);
    assert!(String::from_utf8_lossy(&listing.stdout).contains("a.bin"));
}

#[test]
fn server_admits_only_users_with_passwords() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("served.bin");
    random_file(&source, 300_000, 1);
    let passwords = folder.path().join("passwords");
    write_secret(&passwords, "ada:lovelace\n");
    let mut command = tow([OsStr::new("serve"), source.as_ref(), "--plain-passwords".as_ref(), passwords.as_ref()]);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
    let copy = folder.path().join("copy");
    let as_user = |user: &[&str], password: &str| {
        let mut command = get_command(&server.url(""), &copy);
        run(command.args(user).args(["--connect-timeout", "2"]).env("TOW_PASSWORD", password))
    };
    for (user, password) in [(&["--user", "ada"][..], "byron"), (&["--user", "bob"], "lovelace"), (&[], "lovelace")] {
        let outcome = as_user(user, password).expect_code(5);
        assert!(!outcome.stderr.is_empty() && !outcome.stderr.contains("lovelace"), "{}", outcome.stderr);
        assert!(!copy.exists());
    }
    as_user(&["--user", "ada"], "lovelace").expect_code(0);
    assert_eq!(digest(&copy), digest(&source));
    assert!(!server.log().contains("lovelace"), "a password is in the log");
}

#[test]
fn switched_root_is_served_and_logged_once() {
    let folder = tempdir().expect("a folder");
    for release in ["one", "two"] {
        write(&folder.path().join(release).join("a"), release.as_bytes());
    }
    let link = folder.path().join("current");
    let switch = |to: &str| {
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(to, &link).expect("a link");
    };
    switch("one");
    let server = Server::start(&link);
    let got = || {
        let outcome = run(&mut tow(["get", &server.url("a"), "-"])).expect_code(0);
        String::from_utf8(outcome.stdout).expect("text")
    };
    assert_eq!(got(), "one");
    std::fs::remove_file(&link).expect("remove");
    assert_eq!([got(), got()], ["one", "one"]);
    switch("two");
    assert_eq!([got(), got()], ["two", "two"]);
    switch("one");
    assert_eq!([got(), got()], ["one", "one"]);
    let log = server.stop(Signal::TERM).expect_code(0).stderr;
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("the served path is gone"), count("the served path was replaced")), (1, 2), "{log}");
}

#[test]
fn digests_are_remembered_across_restarts() {
    let folder = tempdir().expect("a folder");
    let (served, remembered) = (folder.path().join("served"), folder.path().join("digests"));
    random_file(&served.join("a"), 200 << 20, 1);
    // A digest of a file changed just now isn't remembered, as its times may not show the next change.
    let long_ago = SystemTime::now() - Duration::from_secs(100);
    File::options().write(true).open(served.join("a")).and_then(|file| file.set_modified(long_ago)).expect("touch");
    let changed = std::fs::metadata(served.join("a")).expect("stat").ctime();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after it").as_secs();
    wait_until("it has changed a while ago", || now() > changed.unsigned_abs() + 3);
    let serve = || {
        let mut command = tow([OsStr::new("serve"), served.as_ref(), OsStr::new("--digest-file"), remembered.as_ref()]);
        Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]))
    };
    let ask = |server: &Server| {
        let outcome = run(&mut tow(["ls", "--digest", "--json", &server.url("")])).expect_code(0);
        (outcome.stdout, server.cpu_ticks())
    };
    let first = serve();
    let (answer, hashing) = ask(&first);
    wait_until("it is written down", || std::fs::metadata(&remembered).is_ok_and(|file| file.len() > 0));
    first.kill();
    let (again, remembering) = ask(&serve());
    assert_eq!(again, answer);
    assert!(hashing > 2 * remembering, "{hashing} ticks of a processor, and then {remembering}");
}

#[test]
fn connections_are_limited() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("a"), b"a");
    let mut command = tow([OsStr::new("serve"), folder.path().as_ref(), OsStr::new("--max-clients"), OsStr::new("2")]);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
    let (one, _two) = (Wire::dealer(server.port()), Wire::dealer(server.port()));
    Wire::connect(server.port()).expect_closed();
    drop(one);
    get(&server.url("a"), &folder.path().join("copy")).expect_code(0);
}
