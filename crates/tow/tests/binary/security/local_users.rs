//! Places in the file system that others can reach too: sockets and temporary files.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::process::{Signal, geteuid};
use tempfile::tempdir;

use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, Server, run, tow};
use crate::support::tree::{random_file, write};
use crate::support::wait_until;

#[test]
fn server_removes_only_its_own_socket() {
    let folder = tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let endpoint = format!("ipc://{}", socket.display());
    let first = Broker::with(&["--bind", &endpoint]);
    std::fs::remove_file(&socket).expect("remove");
    wait_until("the first one says so", || first.log().contains("was removed"));
    let second = Broker::with(&["--bind", &endpoint]);
    first.signal(Signal::TERM);
    first.finish().expect_code(0);
    let _echo = work(&[&second], &["echo", "--echo"]);
    assert_eq!(run(&mut call(&[&second], &["echo", "hello"])).expect_code(0).stdout, b"hello");

    // Another one is put in its place at once.
    let third = folder.path().join("third");
    let _third = std::os::unix::net::UnixListener::bind(&third).expect("bind");
    std::fs::rename(&third, &socket).expect("rename");
    wait_until("the second one says so", || second.log().contains("was replaced"));
    second.signal(Signal::TERM);
    second.finish().expect_code(0);
    assert!(socket.exists());

    let mut serve = tow(["serve", folder.path().to_str().expect("letters"), "--bind"]);
    let file_socket = folder.path().join("files");
    let server = Server::from_command(serve.arg(format!("ipc://{}", file_socket.display())));
    std::fs::remove_file(&file_socket).expect("remove");
    wait_until("the file server says so", || server.log().contains("was removed"));
}

/// Uses the spool of a broker, a worker and a client, which is below this directory.
fn use_spools(temporary: &Path) -> String {
    let below = |command: &mut std::process::Command| {
        command.env("TMPDIR", temporary);
    };
    let mut command = tow(["broker", "--bind", "tcp://127.0.0.1:0", "--grace", "0.1"]);
    below(&mut command);
    let broker = Broker::from_command(&mut command);
    let mut command = tow(["work", "cat", "--connect", broker.endpoint(), "--", "cat"]);
    below(&mut command);
    let worker = Process::start(&mut command);
    let question = temporary.join("question");
    let bytes = random_file(&question, 3 << 20, 1);
    let mut command = call(&[&broker], &["cat"]);
    below(command.stdin(File::open(&question).expect("open")));
    let outcome = run(&mut command).expect_code(0);
    assert!(outcome.stdout == bytes);
    format!("{}{}{}", broker.log(), worker.log(), outcome.stderr)
}

#[test]
fn spool_in_a_shared_directory_is_ours_alone() {
    let name = format!("towpath-{}", geteuid().as_raw());
    let precious = tempdir().expect("a folder");
    let file = precious.path().join("spool-precious");
    write(&file, b"precious");
    for what in ["nothing", "a link", "a directory of everybody", "a file"] {
        let temporary = tempdir().expect("a folder");
        let default = temporary.path().join(&name);
        match what {
            "a link" => symlink(precious.path(), &default).expect("link"),
            "a directory of everybody" => {
                std::fs::create_dir(&default).expect("make it");
                std::fs::set_permissions(&default, std::fs::Permissions::from_mode(0o777)).expect("set the mode");
                symlink(&file, default.join("spool-1-0")).expect("link");
            }
            "a file" => write(&default, b""),
            _ => {}
        }
        let log = use_spools(temporary.path());
        assert_eq!(log.contains("not using"), what != "nothing", "{what}: {log}");
        assert_eq!(std::fs::read(&file).expect("it is there"), b"precious", "{what}");
    }
}
