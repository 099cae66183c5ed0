//! Files whose size isn't known before they are read: those of /proc and /sys.

use std::path::Path;

use serde_json::json;
use tempfile::tempdir;

use crate::support::process::{Server, get, run, tow};
use crate::support::skip;
use crate::support::tree::{Entry, snapshot, write};
use crate::support::wire::Wire;

/// Such files, below the root. Those of /proc say that they have 0 bytes, and those of /sys 4,096.
fn names() -> Vec<&'static str> {
    let (found, missing): (Vec<_>, Vec<_>) =
        ["proc/version", "sys/kernel/uevent_seqnum"].into_iter().partition(|name| Path::new("/").join(name).exists());
    if !missing.is_empty() {
        skip(&format!("{missing:?} missing below /"));
    }
    found
}

#[test]
fn a_file_of_unknown_size_fails_and_others_arrive() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("a"), b"content");
    let server = Server::start(Path::new("/"));
    let folder_name = folder.path().display().to_string();
    let names = names();
    for name in &names {
        let copy = folder.path().join("copy");
        let failed = get(&server.url(name), &copy).expect_code(1);
        assert!(failed.stderr.contains("size isn't known"), "{name}: {}", failed.stderr);
        assert!(!copy.exists(), "{name}");
    }
    let glob = format!("{{{},{}/a}}", names.join(","), folder_name.trim_start_matches('/'));
    let copies = folder.path().join("copies");
    let summary = get(&server.url(&glob), &copies).expect_code(1).summary();
    assert_eq!(summary["failed"], json!(names.len()), "{summary}");
    let files: Vec<_> = snapshot(&copies).into_iter().filter(|(_, entry)| matches!(entry, Entry::File(..))).collect();
    assert!(matches!(&files[..], [(path, Entry::File(7, ..))] if path.ends_with("a")), "{files:?}");
}

#[test]
fn unknown_sizes_are_errors_in_digests_and_in_the_plain_dialect() {
    let server = Server::start(Path::new("/"));
    let mut dealer = Wire::dealer(server.port());
    for name in names() {
        let listed = run(&mut tow(["ls", &server.url(name), "--digest", "--json"])).expect_code(1);
        let entry = listed.summary();
        assert_eq!(entry["type"], "error", "{entry}");
        assert!(entry["message"].as_str().is_some_and(|text| text.contains("size isn't known")), "{entry}");
        for operands in [&[name.as_bytes()][..], &[name.as_bytes(), b"0", b"100"]] {
            dealer.send(&[&[&b"fetch"[..]], operands].concat()).expect("send");
            let answer = dealer.receive().expect("an answer");
            let is_right = match &answer[..] {
                [word, reason] => word == b"error" && String::from_utf8_lossy(reason).contains("size isn't known"),
                // A range of what is there can be read.
                [content] => operands.len() == 3 && !content.is_empty(),
                _ => false,
            };
            assert!(is_right, "{name}: {answer:?}");
        }
    }
}
