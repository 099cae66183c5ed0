//! A service's lines for systemd's journal.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use tempfile::tempdir;

use crate::support::process::tow;

/// Output of a `tow serve` that can't listen, if systemd has connected this stream; `own` is the one that it writes to.
fn written(arguments: &[&str], stream: impl FnOnce(&str) -> String) -> String {
    let folder = tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("tcp://{}", taken.local_addr().expect("an address"));
    let path = folder.path().join("log");
    let log = File::create(&path).expect("a file");
    let facts = log.metadata().expect("facts");
    let mut command = tow(["serve", "--bind", &endpoint]);
    command.args(arguments).arg(folder.path()).env("RUNTIME_DIRECTORY", folder.path()).stderr(log);
    let status = command.env("JOURNAL_STREAM", stream(&format!("{}:{}", facts.dev(), facts.ino()))).status();
    assert_eq!(status.expect("a status").code(), Some(1));
    std::fs::read_to_string(&path).expect("the log")
}

#[test]
fn lines_for_the_journal_have_a_priority_and_no_time() {
    let lines = written(&[], str::to_owned);
    let (first, last) = (lines.lines().next().expect("a line"), lines.lines().last().expect("a line"));
    assert!(first.starts_with("<6> INFO ") && last.starts_with("<3>tow: "), "{lines}");
    assert!(lines.lines().all(|line| line.starts_with('<')), "{lines}");
    let json = written(&["--log-format", "json"], str::to_owned);
    let object = json.lines().next().and_then(|line| line.strip_prefix("<6>")).expect("an object");
    assert!(serde_json::from_str::<serde_json::Value>(object).is_ok_and(|object| object["level"] == "info"), "{json}");
    // Standard error isn't what systemd has connected.
    let other = written(&[], |own| format!("{own}1"));
    assert!(other.starts_with("20") && !other.contains("<6>") && other.contains("\ntow: "), "{other}");
}
