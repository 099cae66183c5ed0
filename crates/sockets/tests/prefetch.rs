//! Uncached files delay only the peers to whom they are sent. Without timing: their disk waits at a gate.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use support::*;
use towpath_sockets::page_cache::{Residency, probe};
use towpath_sockets::{ComingFile, Event, FileRange, Hub, Message, OpenFile, SocketType};

/// A file of a disk that hangs for all threads but one, which must not wait for it, as long as the gate is locked.
#[derive(Debug)]
struct Hanging {
    file: File,
    gate: Arc<Mutex<()>>,
    never_waits: ThreadId,
}

impl AsFd for Hanging {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if std::thread::current().id() != self.never_waits {
            drop(self.gate.lock().unwrap());
        }
        self.file.as_fd()
    }
}

impl OpenFile for Hanging {}

/// A file whose bytes are written when they are waited for, up to a point.
#[derive(Debug)]
struct Slow {
    file: File,
    bytes: Vec<u8>,
    ends_at: u64,
    there: AtomicU64,
    never_waits: ThreadId,
}

impl AsFd for Slow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl OpenFile for Slow {
    fn coming(&self) -> Option<&dyn ComingFile> {
        Some(self)
    }
}

impl ComingFile for Slow {
    fn there(&self) -> u64 {
        self.there.load(Ordering::Acquire)
    }

    fn wait_for(&self, bytes: u64) -> std::io::Result<()> {
        assert!(std::thread::current().id() != self.never_waits, "the hub's thread waits");
        let to = bytes.min(self.ends_at);
        let from = self.there();
        if from < to {
            self.file.write_all_at(&self.bytes[from as usize..to as usize], from)?;
            self.there.store(to, Ordering::Release);
        }
        if to < bytes { Err(std::io::Error::other("no more comes")) } else { Ok(()) }
    }
}

#[test]
fn a_file_that_is_not_all_there_is_waited_for_elsewhere_and_none_of_it_is_made_up() {
    let bytes = noise(3_000_001);
    let length = bytes.len() as u64;
    for ends_at in [length, 2_000_000] {
        let (file, never_waits) = (tempfile::tempfile().unwrap(), std::thread::current().id());
        let slow = Slow { file, bytes: bytes.clone(), ends_at, there: AtomicU64::new(0), never_waits };
        let mut server = Hub::new(options(SocketType::Router)).unwrap();
        let endpoint = server.bind(&anywhere()).unwrap();
        let mut client = Hub::new(options(SocketType::Dealer)).unwrap();
        client.connect(&endpoint).unwrap();
        let peer = ready(&mut [&mut server, &mut client])[0];
        server.send(peer, Message::new().with(FileRange::new(Arc::new(slow), 0, length).close_if_short())).unwrap();
        let came = until(&mut [&mut server, &mut client], |_, event| match event {
            Event::Message { frames, .. } => Some(Some(frames)),
            Event::Gone { .. } => Some(None),
            _ => None,
        });
        assert_eq!(came.is_some(), ends_at == length);
        assert!(came.is_none_or(|frames| frames[0] == bytes));
    }
}

/// A file with these bytes, none of which are in memory. `None` where its file system keeps them there.
fn cold_file(bytes: &[u8]) -> Option<File> {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let is_cold = probe(&file, 0, bytes.len() as u64) == Residency::Uncached;
    if !is_cold {
        println!("skipped: the file system of the build directory keeps its files in memory");
    }
    is_cold.then_some(file)
}

#[test]
fn peers_sent_cached_files_do_not_wait_for_a_disk() {
    let bytes = noise(3_000_001);
    let Some(file) = cold_file(&bytes) else { return };
    let gate = Arc::new(Mutex::new(()));
    let file = Arc::new(Hanging { file, gate: Arc::clone(&gate), never_waits: std::thread::current().id() });
    let length = bytes.len() as u64;

    let mut server = Hub::new(options(SocketType::Router)).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let mut clients = [(); 3].map(|()| Hub::new(options(SocketType::Dealer)).unwrap());
    let mut peers = Vec::new();
    for client in &mut clients {
        client.connect(&endpoint).unwrap();
        peers.push(ready(&mut [&mut server, client])[0]);
    }
    let [waits, other, leaves] = &mut clients;

    let hangs = gate.lock().unwrap();
    for peer in [peers[0], peers[2]] {
        server.send(peer, Message::new().with(FileRange::new(file.clone(), 0, length).tagged(1)).with("tail")).unwrap();
    }
    for number in 0..100 {
        server.send(peers[1], text(&number.to_string())).unwrap();
        let frames = until(&mut [&mut server, other, waits], |_, event| match event {
            Event::Message { frames, .. } => Some(frames),
            Event::FileSent { .. } => panic!("a file was sent that can't be read"),
            _ => None,
        });
        assert_eq!(frames[0], number.to_string().as_bytes());
    }
    assert!(peers.iter().map(|peer| server.is_prefetching(*peer)).eq([true, false, true]));
    // Nobody waits for the disk to end a connection either.
    server.disconnect(peers[2], "enough");
    until(&mut [&mut server, leaves], |_, event| matches!(event, Event::Gone { .. }).then_some(()));
    drop(hangs);

    let mut is_whole = false;
    let frames = until(&mut [&mut server, waits], |_, event| match event {
        Event::FileSent { whole, .. } => {
            is_whole = whole;
            None
        }
        Event::Message { frames, .. } => Some(frames),
        _ => None,
    });
    assert!(is_whole && frames.len() == 2 && frames[0] == bytes && frames[1] == b"tail"[..]);
    let info = server.peer(peers[0]).unwrap();
    assert!(info.sendfile_bytes == length, "it left by sendfile when it was there");
}

#[test]
fn close_waits_for_prefetched_files() {
    let bytes = noise(2_500_000);
    let Some(file) = cold_file(&bytes) else { return };
    let mut pair = pair(options(SocketType::Router), options(SocketType::Dealer));
    let range = FileRange::new(Arc::new(file), 0, bytes.len() as u64);
    pair.server.send(pair.at_server, Message::new().with(range)).unwrap();
    let mut client = pair.client;
    let received = std::thread::spawn(move || {
        until(&mut [&mut client], |_, event| match event {
            Event::Message { frames, .. } => Some(frames[0].clone()),
            _ => None,
        })
    });
    assert!(pair.server.close(std::time::Duration::MAX).unwrap().is_empty());
    assert!(received.join().unwrap() == bytes);
}
