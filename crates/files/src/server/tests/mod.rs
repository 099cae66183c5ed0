//! The server on real sockets, with a hub as its client.

mod admission;
mod fetch;
mod handle;
mod holding;
mod list;
mod opening;
mod plain;
mod push;
mod replaced;
mod slow;
mod source;

use super::storage::{PageCache, Storage};
use super::{Handle, Server, ServerOptions};
use crate::protocol::CONTROL_TAG;
use crate::protocol::control::{FetchFile, FetchRequest, FileAnswer, FileMetadata, Reply, Request, WirePath};
use crate::protocol::data::{Body, DataEntry, DataHeader};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use towpath_sockets::{Endpoint, Event, Hub, HubOptions, Message, PeerId, SocketType};

/// Long enough for any machine; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

struct TestServer {
    endpoint: Endpoint,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    fn start(root: &Path) -> TestServer {
        TestServer::start_with(root, Box::new(PageCache))
    }

    fn start_with(root: &Path, storage: Box<dyn Storage>) -> TestServer {
        TestServer::start_as(ServerOptions::new(root), storage)
    }

    fn start_as(options: ServerOptions, storage: Box<dyn Storage>) -> TestServer {
        let options = options.listen("tcp://127.0.0.1:0".parse().unwrap());
        let server = Server::bind_with(options, storage).unwrap();
        let endpoint = server.endpoints()[0].clone();
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        TestServer { endpoint, handle, thread }
    }

    fn client(&self) -> TestClient {
        let mut hub = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        hub.connect(&self.endpoint).unwrap();
        let until = Instant::now() + DEADLINE;
        let peer = loop {
            assert!(Instant::now() < until, "no handshake");
            hub.poll(Some(Duration::from_millis(100))).unwrap();
            if let Some(Event::Ready { peer }) = hub.next_event() {
                break peer;
            }
        };
        TestClient { hub, peer, inbox: VecDeque::new(), gone: None }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.shutdown();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

struct TestClient {
    hub: Hub,
    peer: PeerId,
    inbox: VecDeque<Vec<Bytes>>,
    gone: Option<String>,
}

impl TestClient {
    fn send(&mut self, frames: &[&[u8]]) {
        let message: Message = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        self.hub.send(self.peer, message).unwrap();
    }

    fn request(&mut self, request: &Request) {
        self.hub.send(self.peer, request.to_frames().into_iter().collect()).unwrap();
    }

    fn turn(&mut self) {
        self.hub.poll(Some(Duration::from_millis(100))).unwrap();
        while let Some(event) = self.hub.next_event() {
            match event {
                Event::Message { frames, .. } => self.inbox.push_back(frames.into_iter().collect()),
                Event::Gone { reason, .. } => self.gone = Some(reason),
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> Vec<Bytes> {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return message;
            }
            assert!(self.gone.is_none(), "gone: {:?}", self.gone);
            assert!(Instant::now() < until, "nothing came");
            self.turn();
        }
    }

    fn reply(&mut self) -> Reply {
        let frames = self.receive();
        assert_eq!(&frames[0][..], CONTROL_TAG);
        Reply::decode(&frames[1]).unwrap()
    }

    /// Runs a fetch to its `done`.
    fn fetch(&mut self, fetch: FetchRequest) -> Fetched {
        let id = fetch.id;
        self.request(&Request::Fetch(fetch));
        let mut fetched = Fetched::default();
        while !fetched.take(id, self.receive()) {}
        fetched
    }
}

/// The replies to a fetch, checked for the specified order.
#[derive(Default)]
struct Fetched {
    answers: BTreeMap<u32, FileAnswer>,
    bodies: BTreeMap<u32, Vec<u8>>,
    digests: BTreeMap<u32, crate::digest::Digest>,
    ended: Vec<u32>,
    void: BTreeMap<u32, String>,
    entries: Vec<DataEntry>,
    messages: usize,
    spent: u64,
}

impl Fetched {
    /// True with the last message.
    fn take(&mut self, id: u32, frames: Vec<Bytes>) -> bool {
        if &frames[0][..] != CONTROL_TAG {
            self.take_data(id, &frames);
            return false;
        }
        match Reply::decode(&frames[1]).unwrap() {
            Reply::Files(files) => {
                assert_eq!(files.id, id);
                for answer in files.files {
                    let n = match &answer {
                        FileAnswer::Metadata(metadata) => metadata.n,
                        FileAnswer::Same { n } | FileAnswer::Error { n, .. } => *n,
                    };
                    assert_eq!(n as usize, self.answers.len(), "answers in order");
                    self.answers.insert(n, answer);
                }
            }
            Reply::Digest(digest) => {
                assert!(!self.ended.contains(&digest.n));
                self.digests.insert(digest.n, digest.digest);
            }
            Reply::End { n, .. } => self.ended.push(n),
            Reply::Void(void) => {
                self.void.insert(void.n, format!("{}: {}", void.code, void.message));
            }
            Reply::Done { id: done } => {
                assert_eq!(done, id);
                return true;
            }
            other => panic!("{other:?}"),
        }
        false
    }

    fn take_data(&mut self, id: u32, frames: &[Bytes]) {
        self.messages += 1;
        let header = DataHeader::decode(&frames[0]).unwrap();
        assert_eq!(header.id, id);
        assert_eq!(frames.len(), header.entries.len() + 1);
        for (entry, bytes) in header.entries.iter().zip(&frames[1..]) {
            assert!(self.answers.contains_key(&entry.n), "metadata before data");
            assert!(!self.ended.contains(&entry.n), "nothing after the end");
            assert_eq!(entry.body_length, bytes.len() as u64);
            self.spent += entry.cost();
            let body = self.bodies.entry(entry.n).or_default();
            let size = self.answers.get(&entry.n).and_then(metadata).unwrap().size;
            body.resize(size as usize, 0);
            let target = &mut body[entry.offset as usize..(entry.offset + entry.length) as usize];
            match entry.body {
                Body::Plain => target.copy_from_slice(bytes),
                Body::Zstd => target.copy_from_slice(&zstd::bulk::decompress(bytes, entry.length as usize).unwrap()),
                Body::Hole => target.fill(0),
            }
            if entry.end {
                self.ended.push(entry.n);
            }
            self.entries.push(*entry);
        }
    }

    fn metadata(&self, n: u32) -> FileMetadata {
        *metadata(&self.answers[&n]).unwrap()
    }
}

fn metadata(answer: &FileAnswer) -> Option<&FileMetadata> {
    if let FileAnswer::Metadata(metadata) = answer { Some(metadata) } else { None }
}

fn files(paths: &[&str]) -> Vec<FetchFile> {
    let file = |path: &&str| FetchFile { path: WirePath::from(path.as_bytes().to_vec()), ranges: None, unless: None };
    paths.iter().map(file).collect()
}

fn fetch_of(id: u32, paths: &[&str]) -> FetchRequest {
    FetchRequest {
        id,
        chunk_bytes: 1 << 20,
        compress: None,
        digest: Default::default(),
        credit_bytes: 1 << 40,
        files: files(paths),
    }
}

/// Bytes that differ from place to place.
fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

fn root_with(files: &[(&str, &[u8])]) -> TempDir {
    let temp = TempDir::new().unwrap();
    for (name, content) in files {
        let path = temp.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    temp
}
