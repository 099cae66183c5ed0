//! Ordinary use: files, trees and patterns, repeatedly, from the real server.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};

use towpath_files::client::{ConnectOptions, Destination, Error, FileClient, ListOptions, Source};
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::{Base, Compression};
use towpath_files::server::{ServeError, Server, ServerOptions};
use towpath_files::{MechanismConfig, SocketError};

use crate::support::*;

#[test]
fn file_arrives_with_content_mode_and_time() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, size) in [("empty", 0), ("small", 100), ("medium", 300_000), ("leaf", MIB), ("large", 5 * MIB + 17)] {
        let path = source.path().join(name);
        write(&path, &noise(size, 1));
        set_mode(&path, 0o640);
        set_time(&path, 1_700_000_000, 123_456_789);
    }
    let server = TestServer::start(source.path());
    for name in ["empty", "small", "medium", "leaf", "large"] {
        let summary = fetch(&server.endpoint, name, destination.path()).unwrap();
        assert_eq!((summary.files, summary.failed, summary.verified), (1, 0, true), "{name}: {summary:?}");
        assert_eq!(summary.bytes, fs::metadata(source.path().join(name)).unwrap().len());
        assert_eq!(summary.received_bytes, summary.bytes);
    }
    assert_eq!(describe(destination.path()), describe(source.path()));
}

#[test]
fn tree_arrives_unchanged() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = source.path();
    for index in 0..300 {
        write(&root.join(format!("many/{:02}/{index}", index % 7)), &noise(index * 37, index as u64));
    }
    write(&root.join("big/file"), &noise(3 * MIB + 1, 9));
    write(&root.join(OsStr::from_bytes(b"odd/\xff\xfe name")), b"not UTF-8");
    write(&root.join("odd/new\nline \u{202e} \"quoted\""), b"control characters");
    fs::create_dir_all(root.join("empty/below")).unwrap();
    symlink("../big/file", root.join("odd/link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("/etc/passwd", root.join("leads-out")).unwrap();
    set_mode(&root.join("empty"), 0o711);
    set_time(&root.join("empty/below"), 1_600_000_000, 5);
    set_time(&root.join("empty"), 1_500_000_000, 6);
    let server = TestServer::start(root);
    let summary = fetch(&server.endpoint, "", destination.path()).unwrap();
    assert_eq!((summary.files, summary.failed, summary.verified), (303, 0, true), "{summary:?}");
    assert_eq!(summary.warnings.len(), 1, "{:?}", summary.warnings);
    fs::remove_file(root.join("leads-out")).unwrap();
    // A link that was left out was removed, which changes only the time of the root itself.
    assert_eq!(describe(destination.path()), describe(root));

    let again = fetch(&server.endpoint, "", destination.path()).unwrap();
    assert_eq!((again.files, again.skipped, again.received_bytes), (303, 303, 0), "{again:?}");
}

#[test]
fn sparse_files_keep_their_holes() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = fs::File::create(source.path().join("sparse")).unwrap();
    file.write_all_at(&noise(100_000, 3), 5_000_000).unwrap();
    file.write_all_at(&noise(10_000, 4), 40 * MIB as u64 + 77).unwrap();
    file.set_len(64 * MIB as u64 + 3).unwrap();
    let server = TestServer::start(source.path());
    let summary = fetch(&server.endpoint, "sparse", destination.path()).unwrap();
    assert!(summary.verified && summary.received_bytes < 2 * MIB as u64, "{summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));
    let allocated = fs::metadata(destination.path().join("sparse")).unwrap().blocks() * 512;
    assert!(allocated < 2 * MIB as u64, "{allocated} bytes are allocated");
}

/// Hashing takes longer than anything else may.
#[test]
fn hashing_a_large_existing_file_is_no_stall() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (folder, time) in [(&source, 1_500_000_000), (&destination, 1_600_000_000)] {
        let path = folder.path().join("large");
        fs::File::create(&path).unwrap().set_len(2 << 30).unwrap();
        set_time(&path, time, 0);
    }
    let server = TestServer::start(source.path());
    // The server has hashed it before: only this side takes its time.
    let client = FileClient::connect(ConnectOptions::new(server.endpoint.clone())).unwrap();
    let listing = ListOptions { digest: true, ..ListOptions::new(path_source("large")) };
    assert_eq!(client.list(listing).unwrap().map(Result::unwrap).count(), 1);
    let mut options = options(&server.endpoint, path_source("large"), destination.path());
    options.connect.idle_timeout = std::time::Duration::from_secs(1);
    let summary = run(options).unwrap();
    assert_eq!((summary.files, summary.skipped, summary.received_bytes), (1, 1, 0), "{summary:?}");
}

#[test]
fn matches_and_directories_go_into_the_destination() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["src/a.c", "src/b.h", "src/deep/c.c", "doc/d.c"] {
        write(&source.path().join(name), name.as_bytes());
    }
    let server = TestServer::start(source.path());
    let globbed = destination.path().join("globbed");
    let summary = run(options(&server.endpoint, Source::Glob("src/**/*.c".to_owned()), &globbed)).unwrap();
    assert_eq!(summary.files, 2, "{summary:?}");
    assert_eq!(fs::read(globbed.join("deep/c.c")).unwrap(), b"src/deep/c.c");
    assert!(globbed.join("a.c").exists() && !globbed.join("b.h").exists());

    let directory = destination.path().join("directory");
    assert_eq!(fetch(&server.endpoint, "src/deep", &directory).unwrap().files, 1);
    assert!(directory.join("c.c").exists());

    let nothing = run(options(&server.endpoint, Source::Glob("*.none".to_owned()), destination.path()));
    assert!(matches!(nothing, Err(Error::Unmet { code: ErrorCode::NotFound, .. })));
    let missing = fetch(&server.endpoint, "missing", destination.path());
    assert!(matches!(missing, Err(Error::Refused { code: ErrorCode::NotFound, .. })));
}

#[test]
fn server_of_one_file_serves_it() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("only.bin"), &noise(70_000, 5));
    let server = TestServer::start(&source.path().join("only.bin"));
    assert_eq!(fetch(&server.endpoint, "", destination.path()).unwrap().files, 1);
    assert_eq!(fetch(&server.endpoint, "only.bin", &destination.path().join("b")).unwrap().files, 1);
    assert_eq!(fs::read(destination.path().join("only.bin")).unwrap(), fs::read(destination.path().join("b")).unwrap());
}

#[test]
fn files_of_the_same_content_are_not_fetched_again() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, ours) = (source.path().join("f"), destination.path().join("f"));
    write(&theirs, &noise(2 * MIB, 6));
    let server = TestServer::start(source.path());
    fetch(&server.endpoint, "f", destination.path()).unwrap();

    set_time(&theirs, 1_400_000_000, 0);
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!((summary.files, summary.skipped, summary.received_bytes), (1, 1, 0), "only the time: {summary:?}");
    set_mode(&theirs, 0o600);
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!((summary.skipped, summary.received_bytes), (1, 0), "only the mode: {summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));

    let mut changed = noise(2 * MIB, 6);
    changed[77] ^= 1;
    write(&theirs, &changed);
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!((summary.skipped, summary.received_bytes), (0, 2 * MIB as u64), "{summary:?}");
    assert_eq!(fs::read(&ours).unwrap(), changed);

    write(&theirs, b"shorter");
    fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!(fs::read(&ours).unwrap(), b"shorter");
}

#[test]
fn compression_and_odd_chunk_sizes_work() {
    let source = tempfile::tempdir().unwrap();
    let text = b"all work and no play makes a dull file. ".repeat(100_000);
    write(&source.path().join("text"), &text);
    write(&source.path().join("noise"), &noise(3 * MIB, 7));
    let server = TestServer::start(source.path());
    for chunk_bytes in [4096, 100_001, 1 << 20, 4 << 20] {
        let destination = tempfile::tempdir().unwrap();
        let mut options = options(&server.endpoint, path_source(""), destination.path());
        (options.get.compress, options.get.chunk_bytes, options.get.window_bytes) =
            (Some(Compression::Zstd), chunk_bytes, 5 << 20);
        let summary = run(options).unwrap();
        assert!(summary.verified && summary.failed == 0, "{summary:?}");
        assert!(summary.received_bytes < 4 * MIB as u64, "{summary:?}");
        assert_eq!(describe(destination.path()), describe(source.path()));
    }
}

#[test]
fn unverified_and_discarded_transfers_work() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("d/large"), &noise(4 * MIB, 8));
    write(&source.path().join("d/small"), b"small");
    let server = TestServer::start(source.path());
    let mut unverified = options(&server.endpoint, path_source("d"), destination.path());
    unverified.get.verify = false;
    let summary = run(unverified).unwrap();
    assert!(!summary.verified && summary.files == 2, "{summary:?}");
    assert_eq!(describe(destination.path()), describe(&source.path().join("d")));
    let mut discarded = options(&server.endpoint, path_source("d"), destination.path());
    discarded.get.destination = Destination::Discard;
    let summary = run(discarded).unwrap();
    assert_eq!((summary.files, summary.bytes), (2, 4 * MIB as u64 + 5));
}

#[test]
fn file_is_written_to_an_output() {
    let source = tempfile::tempdir().unwrap();
    for (name, size) in [("empty", 0), ("small", 100), ("leaf", MIB), ("large", 9 * MIB + 17)] {
        write(&source.path().join(name), &noise(size, 10));
    }
    let file = fs::File::create(source.path().join("sparse")).unwrap();
    file.write_all_at(b"end", 5_000_000).unwrap();
    let server = TestServer::start(source.path());
    for verify in [true, false] {
        for name in ["empty", "small", "leaf", "large", "sparse"] {
            let output = Shared::default();
            let mut options = options(&server.endpoint, path_source(name), source.path());
            options.get.destination = Destination::Writer(Box::new(output.clone()));
            options.get.verify = verify;
            let summary = run(options).unwrap();
            let content = fs::read(source.path().join(name)).unwrap();
            assert!(output.content() == content, "{name} differs");
            assert_eq!((summary.bytes, summary.verified), (content.len() as u64, verify));
        }
    }
    let mut directory = options(&server.endpoint, path_source(""), source.path());
    directory.get.destination = Destination::Writer(Box::new(Shared::default()));
    assert!(matches!(run(directory), Err(Error::Unmet { code: ErrorCode::NotAFile, .. })));
}

#[test]
fn listing_has_names_sizes_and_digests() {
    let source = tempfile::tempdir().unwrap();
    write(&source.path().join("a/b"), b"content");
    let server = TestServer::start(source.path());
    let client = FileClient::connect(ConnectOptions::new(server.endpoint.clone())).unwrap();
    let listing = ListOptions { recursive: true, digest: true, ..ListOptions::new(path_source("")) };
    let mut listed = client.list(listing).unwrap();
    let entries: Vec<_> = listed.by_ref().map(Result::unwrap).collect();
    assert_eq!(listed.base(), Some(Base::Dir));
    let paths: Vec<&[u8]> = entries.iter().map(|entry| entry.path.as_bytes()).collect();
    assert_eq!(paths, [&b"a"[..], b"a/b"]);
    assert_eq!((entries[1].size, entries[1].digest.unwrap().0), (7, *blake3::hash(b"content").as_bytes()));
}

#[test]
fn cancelled_transfer_is_resumed() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), &noise(64 * MIB, 11));
    let server = TestServer::start(source.path());
    let mut slow = options(&server.endpoint, path_source("f"), destination.path());
    let cancel = slow.connect.cancel.clone();
    let mut cancel_when_begun = |progress: towpath_files::client::Progress| {
        if progress.bytes_done > 0 {
            cancel.cancel();
        }
    };
    // So slow that it is cancelled before it is over, however fast the machine is.
    (slow.get.window_bytes, slow.get.chunk_bytes) = (16 << 10, 4 << 10);
    let result = slow.run(&mut cancel_when_begun);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(partial_names(destination.path()).len(), 2);
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert!(summary.resumed_bytes > 0 && summary.verified, "{summary:?}");
    assert_eq!(summary.received_bytes + summary.resumed_bytes, 64 * MIB as u64, "{summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));
}

#[test]
fn server_listens_for_other_machines_only_by_a_decision() {
    let source = tempfile::tempdir().unwrap();
    let options = || ServerOptions::new(source.path()).listen("tcp://0.0.0.0:0".parse().unwrap());
    let refused = Server::bind(options()).err();
    assert!(matches!(refused, Some(ServeError::Socket(SocketError::Open { .. }))), "{refused:?}");
    let mut open = options();
    open.open_to_all = true;
    Server::bind(open).unwrap();
    let mut known = options();
    known.hub.mechanism = MechanismConfig::PlainServer;
    Server::bind(known).unwrap();
}

#[test]
fn impossible_destinations_are_reported() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), b"file");
    write(&source.path().join("d/f"), b"file");
    let server = TestServer::start(source.path());
    write(&destination.path().join("f/in-the-way"), b"");
    let into = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!((into.files, into.failed), (0, 1), "{into:?}");
    assert!(into.failures[0].reason.contains("directory"), "{into:?}");
    assert!(fetch(&server.endpoint, "f", &destination.path().join("missing/f")).is_err());
    write(&destination.path().join("file"), b"");
    assert!(fetch(&server.endpoint, "d", &destination.path().join("file")).is_err());
    assert_eq!(fs::read(destination.path().join("file")).unwrap(), b"");
}

#[test]
fn entries_of_another_type_are_replaced() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (theirs, ours) = (source.path(), destination.path());
    write(&theirs.join("file-for-link"), b"1");
    symlink("elsewhere", ours.join("file-for-link")).unwrap();
    write(&theirs.join("dir-for-file/below"), b"2");
    write(&ours.join("dir-for-file"), b"file");
    write(&theirs.join("file-for-dir"), b"3");
    fs::create_dir(ours.join("file-for-dir")).unwrap();
    symlink("file-for-link", theirs.join("link-for-file")).unwrap();
    write(&ours.join("link-for-file"), b"file");
    fs::create_dir(theirs.join("dir-for-link")).unwrap();
    symlink("/tmp", ours.join("dir-for-link")).unwrap();
    let server = TestServer::start(theirs);
    let summary = fetch(&server.endpoint, "", ours).unwrap();
    assert_eq!((summary.failed, summary.files), (0, 3), "{summary:?}");
    assert_eq!(describe(ours), describe(theirs));
}
