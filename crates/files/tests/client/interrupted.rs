//! Connections that are cut, servers that restart, and damaged partial files.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use towpath_files::client::{CancelToken, Destination, Error, Progress};
use towpath_files::protocol::control::Compression;
use towpath_sockets::Endpoint;

use crate::support::*;

/// A relay in front of a server that cuts its first connections after so many bytes from the server.
pub fn cutting_proxy(server: &Endpoint, cuts: Vec<usize>) -> (Endpoint, Arc<AtomicUsize>) {
    let Endpoint::Tcp { host, port } = server.clone() else { panic!("tcp only") };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://127.0.0.1:{}", listener.local_addr().unwrap().port()).parse().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    // It ends with the test's process; each of its connections ends with its two ends.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect((host.as_str(), port))) else { return };
            let index = counted.fetch_add(1, Ordering::AcqRel);
            let limit = cuts.get(index).copied().unwrap_or(usize::MAX);
            let (client_in, server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || relay(client_in, server_out, usize::MAX));
            std::thread::spawn(move || relay(server, client, limit));
        }
    });
    (endpoint, connections)
}

fn relay(mut from: TcpStream, mut to: TcpStream, limit: usize) {
    let (mut buffer, mut left) = (vec![0; 64 << 10], limit);
    while left > 0 {
        let most = left.min(buffer.len());
        match from.read(&mut buffer[..most]) {
            Ok(count @ 1..) if to.write_all(&buffer[..count]).is_ok() => left -= count,
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn repeated_cuts_lose_little() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("large"), &noise(12 * MIB + 5, 1));
    for index in 0..50 {
        write(&source.path().join(format!("small/{index}")), &noise(index * 911, index as u64));
    }
    let server = TestServer::start(source.path());
    let cuts = vec![10, 300, 2_000, 9_999, 100_000, 1_500_000, 3_000_001, 64 * 1024, 5_000_000];
    let (endpoint, connections) = cutting_proxy(&server.endpoint, cuts.clone());
    let summary = fetch(&endpoint, "", destination.path()).unwrap();
    assert_eq!((summary.files, summary.failed, summary.verified), (51, 0, true), "{summary:?}");
    assert!(connections.load(Ordering::Acquire) > cuts.len());
    assert_eq!(describe(destination.path()), describe(source.path()));
    // What was in flight when a connection was cut is sent again: at most the window, each time.
    assert!(summary.received_bytes <= summary.bytes + cuts.iter().sum::<usize>() as u64, "{summary:?}");
}

/// Many small files share a message, and a compressed piece is of no use before it is complete.
#[test]
fn connections_that_break_early_still_make_progress() {
    let source = tempfile::tempdir().unwrap();
    for index in 0..400 {
        write(&source.path().join(format!("small/{index}")), &noise(4096, index));
    }
    let halves: Vec<u8> = noise(1 << 20, 1).into_iter().flat_map(|byte| [byte, 0]).collect();
    write(&source.path().join("compressible"), &halves);
    let server = TestServer::start(source.path());
    for (path, cut) in [("small", 600_000), ("compressible", 300_000)] {
        let (endpoint, _) = cutting_proxy(&server.endpoint, vec![cut; 60]);
        let destination = tempfile::tempdir().unwrap();
        let mut breaking = options(&endpoint, path_source(path), &destination.path().join(path));
        breaking.get.compress = Some(Compression::Zstd);
        let summary = run(breaking).unwrap();
        assert!(summary.failed == 0 && summary.verified, "{path}: {summary:?}");
    }
}

#[test]
fn output_gets_every_byte_once_in_spite_of_cuts() {
    let source = tempfile::tempdir().unwrap();
    let content = noise(9 * MIB + 5, 12);
    write(&source.path().join("f"), &content);
    let server = TestServer::start(source.path());
    for window_bytes in [8 * MIB as u64, MIB as u64] {
        let cuts = vec![100, 700, 1_500_000, 900, 3_000_000, 2_000_000];
        let most = content.len() + cuts.iter().sum::<usize>();
        let (endpoint, connections) = cutting_proxy(&server.endpoint, cuts);
        let output = Shared::default();
        let mut to_writer = options(&endpoint, path_source("f"), source.path());
        to_writer.get.destination = Destination::Writer(Box::new(output.clone()));
        to_writer.get.window_bytes = window_bytes;
        let summary = run(to_writer).unwrap();
        assert!(output.content() == content, "the output differs");
        assert!(connections.load(Ordering::Acquire) > 6 && summary.verified, "{summary:?}");
        assert!(summary.received_bytes <= most as u64, "{summary:?}");
    }
}

#[test]
fn transfer_continues_when_the_server_is_back() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let endpoint = format!("ipc://{}", source.path().join("socket").display());
    write(&source.path().join("files/f"), &noise(24 * MIB, 2));
    let server = TestServer::start_at(&source.path().join("files"), &endpoint);
    let mut slow = options(&server.endpoint, path_source("f"), destination.path());
    (slow.get.window_bytes, slow.get.chunk_bytes) = (64 << 10, 16 << 10);
    let mut server = Some(server);
    let mut restarted = false;
    let mut restart_when_begun = |progress: Progress| {
        if progress.bytes_done > 0 && !restarted {
            restarted = true;
            server.take();
            server = Some(TestServer::start_at(&source.path().join("files"), &endpoint));
        }
    };
    let summary = slow.run(&mut restart_when_begun).unwrap();
    assert!(restarted && summary.verified, "{summary:?}");
    assert!(summary.received_bytes < 25 * MIB as u64, "{summary:?}");
    assert_eq!(describe(destination.path()), describe(&source.path().join("files")));
}

/// Fetches a file until so much of it is there, and leaves the rest.
fn interrupt(server: &Endpoint, source: &str, destination: &Path, bytes: u64) {
    let cancel = CancelToken::new();
    let mut cancel_when_there = |progress: Progress| {
        if progress.bytes_done >= bytes {
            cancel.cancel();
        }
    };
    let mut slow = options(server, path_source(source), destination);
    (slow.get.window_bytes, slow.get.chunk_bytes) = (32 << 10, 16 << 10);
    slow.connect.cancel = cancel.clone();
    let result = slow.run(&mut cancel_when_there);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
}

#[test]
fn state_with_a_torn_end_is_resumed() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), &noise(96 * MIB, 3));
    let server = TestServer::start(source.path());
    interrupt(&server.endpoint, "f", destination.path(), 3 * MIB as u64);
    let state = destination.path().join(&partial_names(destination.path())[1]);
    let length = fs::metadata(&state).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&state).unwrap();
    file.set_len(length - 5).unwrap();
    file.write_all_at(b"garbage that is longer than a record, and no record, whatever one does", length - 5).unwrap();
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert!(summary.verified && summary.resumed_bytes > MIB as u64, "{summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));
}

#[test]
fn invalid_state_starts_anew() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), &noise(96 * MIB, 4));
    let server = TestServer::start(source.path());
    interrupt(&server.endpoint, "f", destination.path(), 3 * MIB as u64);
    let state = destination.path().join(&partial_names(destination.path())[1]);
    fs::write(&state, b"TOWPART1 but nothing more").unwrap();
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!((summary.verified, summary.resumed_bytes), (true, 0), "{summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));
}

#[test]
fn file_that_changed_meanwhile_is_fetched_anew() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), &noise(96 * MIB, 5));
    let server = TestServer::start(source.path());
    interrupt(&server.endpoint, "f", destination.path(), 3 * MIB as u64);
    write(&source.path().join("f"), &noise(96 * MIB, 6));
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert_eq!((summary.verified, summary.resumed_bytes), (true, 0), "{summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));
}

#[test]
fn change_with_the_same_size_and_time_is_repaired() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = source.path().join("f");
    let mut content = noise(96 * MIB, 7);
    write(&path, &content);
    set_time(&path, 1_700_000_000, 0);
    let server = TestServer::start(source.path());
    interrupt(&server.endpoint, "f", destination.path(), 3 * MIB as u64);
    content[5] ^= 1;
    write(&path, &content);
    set_time(&path, 1_700_000_000, 0);
    let summary = fetch(&server.endpoint, "f", destination.path()).unwrap();
    assert!(summary.verified, "{summary:?}");
    assert_eq!(describe(destination.path()), describe(source.path()));
}

#[test]
fn concurrent_transfers_of_a_file_exclude_each_other() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), &noise(96 * MIB, 8));
    let server = TestServer::start(source.path());
    let cancel = CancelToken::new();
    let mut refused = None;
    let mut second = |progress: Progress| {
        if progress.bytes_done > 0 && refused.is_none() {
            refused = Some(fetch(&server.endpoint, "f", destination.path()).unwrap());
            cancel.cancel();
        }
    };
    let mut slow = options(&server.endpoint, path_source("f"), destination.path());
    (slow.get.window_bytes, slow.get.chunk_bytes) = (32 << 10, 16 << 10);
    slow.connect.cancel = cancel.clone();
    let _ = slow.run(&mut second);
    let refused = refused.unwrap();
    assert_eq!((refused.files, refused.failed), (0, 1), "{refused:?}");
    assert!(refused.failures[0].reason.contains("another transfer"), "{refused:?}");
}

#[test]
fn lost_server_is_reported() {
    let (source, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&source.path().join("f"), &noise(96 * MIB, 9));
    let mut server = Some(TestServer::start(source.path()));
    let mut slow = options(&server.as_ref().unwrap().endpoint, path_source("f"), destination.path());
    (slow.get.window_bytes, slow.get.chunk_bytes) = (32 << 10, 16 << 10);
    slow.connect.idle_timeout = Duration::from_millis(800);
    let mut stop_when_begun = |progress: Progress| {
        if progress.bytes_done > 0 {
            server.take();
        }
    };
    let result = slow.run(&mut stop_when_begun);
    assert!(matches!(result, Err(Error::Connect { .. })), "{result:?}");
    assert_eq!(partial_names(destination.path()).len(), 2);
}
