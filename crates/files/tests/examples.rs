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

#[test]
fn fetch_gets_and_resumes_what_serve_serves() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir_all(served.join("sub")).unwrap();
    std::fs::write(served.join("a"), vec![b'a'; 3 << 20]).unwrap();
    std::fs::write(served.join("sub/b"), b"b").unwrap();

    let mut serve = example("serve");
    let serve = serve.arg(&served).arg("tcp://127.0.0.1:0").stdout(Stdio::piped());
    let mut server = KillOnDrop(serve.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let endpoint = line.trim().rsplit(' ').next().unwrap();

    let copy = folder.path().join("copy");
    for counts in ["2 verified, 0 already there", "0 verified, 2 already there"] {
        let output = example("fetch").args([endpoint, ""]).arg(&copy).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("2 files, 3145729 bytes; {counts}\n"));
        assert_eq!(std::fs::read(copy.join("sub/b")).unwrap(), b"b");
    }
    let missing = example("fetch").args([endpoint, "missing"]).arg(&copy).output().unwrap();
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("not found"), "{missing:?}");
}
