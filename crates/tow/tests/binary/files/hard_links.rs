//! Hard links within a tree: sent once, and made again at the destination.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::tempdir;

use crate::support::process::{Server, get};
use crate::support::tree::{assert_same, random_file};

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").ino()
}

#[test]
fn hard_links_are_sent_once_and_made_anew() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let (small, large) = (70_000, (3 << 20) + 5);
    random_file(&served.join("a/small"), small, 1);
    random_file(&served.join("a/large"), large, 2);
    random_file(&served.join("a/alone"), small, 3);
    for (from, to) in [("a/small", "b/c/small"), ("a/large", "z"), ("a/large", "b/large")] {
        fs::create_dir_all(served.join("b/c")).expect("make a folder");
        fs::hard_link(served.join(from), served.join(to)).expect("link");
    }
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let first = get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
    assert_eq!((first.number("files"), first.number("skipped")), (6, 0));
    assert_eq!(first.number("received_bytes"), (2 * small + large) as u64);
    assert_eq!(first.number("bytes"), (3 * small + 3 * large) as u64);
    assert_eq!(first.summary()["verified"], true);
    let linked = |from: &str, to: &str| inode(&copy.join(from)) == inode(&copy.join(to));
    assert!(linked("a/small", "b/c/small") && linked("a/large", "z") && linked("a/large", "b/large"));
    assert!(!linked("a/small", "a/alone"));

    // What is missing, or a copy of its own, becomes a link without being sent.
    fs::remove_file(copy.join("z")).expect("remove");
    fs::remove_file(copy.join("b/large")).expect("remove");
    random_file(&copy.join("b/large"), 100, 4);
    let second = get(&server.url(""), &copy).expect_code(0);
    assert_eq!((second.number("files"), second.number("received_bytes")), (6, 0));
    assert_same(&served, &copy);
    assert!(linked("a/large", "z") && linked("a/large", "b/large"));
}

#[test]
fn a_name_whose_first_name_is_elsewhere_is_fetched() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let bytes = random_file(&served.join("a/file"), 5000, 1);
    fs::create_dir(served.join("b")).expect("make a folder");
    fs::hard_link(served.join("a/file"), served.join("b/file")).expect("link");
    let server = Server::start(&served);
    for (path, copied) in [("b", "tree/file"), ("b/file", "file")] {
        let copy = folder.path().join(copied);
        let destination = if path == "b" { copy.parent().expect("a folder") } else { &copy };
        assert_eq!(get(&server.url(path), destination).expect_code(0).number("received_bytes"), 5000);
        assert_eq!(fs::read(&copy).expect("a file"), bytes);
    }
}
