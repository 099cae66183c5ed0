//! Wrong peers: a command says at once which kind of server answers.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::broker::Broker;
use crate::support::process::{Process, Server, run, tow, unprivileged_tow};
use crate::support::wait_until;

/// The two commands that connect, with a server at this endpoint.
fn commands(endpoint: &str) -> [Command; 2] {
    [tow(["get", "--quiet", endpoint, "/nowhere"]), tow(["call", "echo", "hello", "--connect", endpoint])]
}

#[test]
fn servers_of_other_protocols_are_named() {
    for (banner, says) in [
        ("SSH-2.0-OpenSSH_9.2p1\r\n", "an SSH server"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "a web server"),
        ("\x15\x03\x01\0\x02\x02\x46", "a TLS server"),
        ("-ERR unknown command\r\n", "a Redis server"),
        ("\x01\0", "speaks ZMTP 1.0 or another protocol"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("tcp://{}", listener.local_addr().expect("an address"));
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                for _ in commands("") {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    stream.write_all(banner.as_bytes()).expect("a banner");
                    // Until the client is gone.
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
                listener.set_nonblocking(true).expect("a setting");
                assert!(listener.accept().is_err(), "a command tried again");
            });
            for mut command in commands(&endpoint) {
                let outcome = run(&mut command).expect_code(6);
                assert!(outcome.stderr.contains(says), "{banner:?}: {}", outcome.stderr);
                assert!(!outcome.stderr.contains("--user"), "{}", outcome.stderr);
            }
            server.join().expect("the server");
        });
    }
}

#[test]
fn commands_that_wait_say_after_a_moment_for_what() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("tcp://{}", silent.local_addr().expect("an address"));
    for mut command in commands(&endpoint) {
        let mut waiting = Process::start(&mut command);
        let says = format!("still trying: {endpoint}: no answer yet");
        wait_until("it says so", || waiting.log().contains(&says));
        assert!(!waiting.ended());
    }
}

#[test]
fn a_socket_that_keeps_a_user_out_is_final() {
    let folder = tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).expect("set the mode");
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o000)).expect("set the mode");
    let endpoint = format!("ipc://{}", socket.display());
    for arguments in
        [&["ls", &endpoint, "--connect-timeout", "1h"][..], &["call", "echo", "hello", "--connect", &endpoint]]
    {
        let outcome = run(&mut unprivileged_tow(folder.path(), arguments)).expect_code(6);
        assert!(outcome.stderr.contains("keeps this user out"), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("still trying"), "{}", outcome.stderr);
    }
}

#[test]
fn a_broker_and_a_file_server_are_not_taken_for_each_other() {
    let folder = tempdir().expect("a folder");
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0"]);
    let server = Server::start(folder.path());
    let [mut get, _] = commands(broker.endpoint());
    let outcome = run(&mut get).expect_code(6);
    assert!(outcome.stderr.contains("this is a broker (tow broker); files come from tow serve"), "{}", outcome.stderr);
    let [_, mut call] = commands(server.endpoint());
    let outcome = run(&mut call).expect_code(6);
    assert!(outcome.stderr.contains("no broker answers"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("this is a file server (tow serve)"), "{}", outcome.stderr);
}

#[test]
fn commands_that_print_lines_end_with_why_they_failed() {
    let folder = tempdir().expect("a folder");
    let broker = Broker::with(&["--bind", "tcp://127.0.0.1:0"]);
    let url = format!("{}/", broker.endpoint());
    let (file, copy) = (folder.path().join("file"), folder.path().join("copy"));
    std::fs::write(&file, "content").expect("a file");
    let (file, copy) = (file.display().to_string(), copy.display().to_string());
    for arguments in [
        &["ls", &url][..],
        &["follow", &url, &copy, "--once"],
        &["push", &file, &url],
        &["publish", &url, "v1"],
        &["versions", &url],
    ] {
        let outcome = run(tow(arguments).arg("--json")).expect_code(6);
        let stdout = String::from_utf8_lossy(&outcome.stdout);
        let last: Value = serde_json::from_str(stdout.lines().last().unwrap_or_default()).expect("an object");
        assert_eq!((&last["status"], &last["code"]), (&json!(6), &json!("no_server")), "{arguments:?}: {last}");
        assert!(last["error"].as_str().is_some_and(|why| why.contains("broker")), "{arguments:?}: {last}");
    }
}
