//! Runs the examples against each other.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test says what it expects by unwrapping")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// An example, which cargo puts beside the tests. Cargo has built it unless this test runs alone.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let path: PathBuf = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    if !path.exists() {
        let mut build = Command::new(env!("CARGO"));
        let built = build.args(["build", "--quiet", "--package", "towpath-files", "--examples"]);
        assert!(built.status().unwrap().success());
    }
    Command::new(path)
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A served tree, and the server.
fn serve() -> (tempfile::TempDir, KillOnDrop, String) {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir_all(served.join("sub")).unwrap();
    std::fs::create_dir_all(served.join("in")).unwrap();
    std::fs::write(served.join("a"), vec![b'a'; 3 << 20]).unwrap();
    std::fs::write(served.join("sub/b"), b"some text").unwrap();
    let mut serve = example("serve");
    let serve = serve.arg(&served).arg("tcp://127.0.0.1:0").stdout(Stdio::piped());
    let mut server = KillOnDrop(serve.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let endpoint = line.trim().rsplit(' ').next().unwrap().to_owned();
    (folder, server, endpoint)
}

/// Runs an example to its end, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn get_gets_and_resumes_what_serve_serves() {
    let (folder, _server, endpoint) = serve();
    let copy = folder.path().join("copy");
    for counts in ["2 verified, 0 already there", "0 verified, 2 already there"] {
        let printed = run(example("get").args([&endpoint, ""]).arg(&copy));
        assert_eq!(printed, format!("2 files, 3145737 bytes; {counts}\n"));
        assert_eq!(std::fs::read(copy.join("sub/b")).unwrap(), b"some text");
    }
    let missing = example("get").args([&endpoint, "missing"]).arg(&copy).output().unwrap();
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("not found"), "{missing:?}");
}

#[test]
fn list_and_read_show_what_is_there() {
    let (_folder, _server, endpoint) = serve();
    let listed = run(example("list").args([&endpoint, ""]));
    let names: Vec<_> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(names, ["a", "in", "sub", "sub/b"]);
    assert_eq!(run(example("read").args([&endpoint, "sub/b", "5", "3"])), "tex");
    assert_eq!(run(example("read").args([&endpoint, "a", "3145720", "100"])), "aaaaaaaa");
}

#[test]
fn push_puts_files_there_and_follow_gets_them() {
    let (folder, _server, endpoint) = serve();
    let (tree, copy) = (folder.path().join("tree"), folder.path().join("copy"));
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("d/x"), b"x").unwrap();
    for printed in ["in/tree/d/x 1 bytes\n", "in/tree/d/x 1 bytes, there before\n"] {
        assert_eq!(run(example("push").arg(&endpoint).arg(&tree).arg("in/tree")), printed);
    }
    let mut input = example("push");
    let input = input.args([&endpoint, "-", "in/stream"]).stdin(std::fs::File::open(tree.join("d/x")).unwrap());
    assert_eq!(run(input), "in/stream 1 bytes\n");
    let followed = run(example("follow").args([&endpoint, "in"]).arg(&copy).arg("--once"));
    assert!(followed.contains("new in/tree/d/x\n") && followed.contains("up to date at "), "{followed}");
    assert_eq!(std::fs::read(copy.join("tree/d/x")).unwrap(), b"x");
    assert_eq!(std::fs::read(copy.join("stream")).unwrap(), b"x");
}
