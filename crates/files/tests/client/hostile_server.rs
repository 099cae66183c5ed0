//! Hostile servers, each written with a bare ROUTER. Whatever they say, nothing is written outside of the destination,
//! and nothing wrong is installed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use towpath_files::client::{ConnectOptions, Destination, Error, FileClient, ListOptions};
use towpath_files::digest::{Digest, LeafSize, TreeHasher};
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::*;
use towpath_files::protocol::data::{Body, DataEntry, DataHeader};
use towpath_files::root::Timestamp;
use towpath_sockets::{Endpoint, Event, Hub, HubOptions, Message, PeerId, SocketType, Waker};

use crate::support::*;

/// A ROUTER in a thread that answers each request by `answer`.
pub struct HostileServer {
    pub endpoint: Endpoint,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// The messages that answer a request, as frames.
pub type Answer = Vec<Vec<Bytes>>;

impl HostileServer {
    pub fn start(answer: impl FnMut(Request) -> Answer + Send + 'static) -> Self {
        Self::start_talking(answer, Duration::from_secs(1), Vec::new)
    }

    /// Sends more to a client that has requested something, at an interval.
    fn start_talking(
        mut answer: impl FnMut(Request) -> Answer + Send + 'static,
        each: Duration,
        mut more: impl FnMut() -> Answer + Send + 'static,
    ) -> Self {
        let mut hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let endpoint = hub.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), hub.waker());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut asking = None;
            while !stopped.load(Ordering::Acquire) {
                hub.poll(Some(each)).unwrap();
                if let Some(peer) = asking {
                    more().into_iter().for_each(|frames| send(&mut hub, peer, frames));
                }
                while let Some(event) = hub.next_event() {
                    if let Event::Message { peer, frames, .. } = event
                        && let Ok(request) = Request::decode(&frames[1])
                    {
                        asking = Some(peer);
                        answer(request).into_iter().for_each(|frames| send(&mut hub, peer, frames));
                    }
                }
            }
        });
        Self { endpoint, stop, waker, thread: Some(thread) }
    }
}

fn send(hub: &mut Hub, peer: PeerId, frames: Vec<Bytes>) {
    // The client may be gone.
    let _ = hub.send(peer, frames.into_iter().collect::<Message>());
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub fn reply(reply: &Reply) -> Vec<Bytes> {
    reply.to_frames().to_vec()
}

fn entry(path: &str, kind: EntryKind, size: u64) -> ListEntry {
    ListEntry {
        path: path.as_bytes().to_vec().into(),
        kind,
        size,
        mtime: Timestamp::default(),
        mode: 0o644,
        allocated: None,
        hard_link: None,
        target: None,
        digest: None,
        message: None,
    }
}

fn link(path: &str, target: &str) -> ListEntry {
    ListEntry { target: Some(target.as_bytes().to_vec().into()), ..entry(path, EntryKind::Link, 0) }
}

fn page(id: u32, entries: Vec<ListEntry>) -> Vec<Bytes> {
    reply(&Reply::List(ListPage { id, base: Base::Dir, dir: None, entries, more: false }))
}

pub fn metadata(n: u32, content: &[u8]) -> FileAnswer {
    FileAnswer::Metadata(FileMetadata {
        n,
        size: content.len() as u64,
        mtime: Timestamp::default(),
        mode: 0o644,
        digest: Some(Digest::of(content)),
        leaf_bytes: 1 << 20,
        sparse: false,
    })
}

pub fn piece(n: u32, offset: u64, length: u64, end: bool) -> DataEntry {
    DataEntry { n, end, body: Body::Plain, offset, length, body_length: length }
}

pub fn data(id: u32, entry: DataEntry, body: &[u8]) -> Vec<Bytes> {
    let header = DataHeader { id, entries: vec![entry] }.encode().unwrap();
    vec![header.into(), Bytes::copy_from_slice(body)]
}

/// The files of a fetch with this content, as an honest server would send them.
fn honest(fetch: &FetchRequest, content: &[u8]) -> Answer {
    let count = u32::try_from(fetch.files.len()).unwrap();
    let files = (0..count).map(|n| metadata(n, content)).collect();
    let mut answer = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files }))];
    answer.extend((0..count).map(|n| data(fetch.id, piece(n, 0, content.len() as u64, true), content)));
    answer.push(reply(&Reply::Done { id: fetch.id }));
    answer
}

/// A server that lists these entries and sends this content for each file.
fn listing(entries: Vec<ListEntry>, content: &'static [u8]) -> HostileServer {
    HostileServer::start(move |request| match request {
        Request::List(list) => vec![page(list.id, entries.clone())],
        Request::Fetch(fetch) => honest(&fetch, content),
        _ => Vec::new(),
    })
}

/// The names in a directory.
fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn paths_that_lead_out_write_nothing_outside() {
    let temp = tempfile::tempdir().unwrap();
    let outside = temp.path().join("stolen");
    let file = |path: &str| entry(path, EntryKind::File, 4);
    let entries = vec![
        file("../stolen"),
        file("a/../../stolen"),
        file(outside.to_str().unwrap()),
        file("good"),
        entry("../dir", EntryKind::Dir, 0),
        link("up", ".."),
        link("a/up", "../../.."),
        link("absolute", "/tmp"),
    ];
    let server = listing(entries, b"evil");
    let summary = fetch(&server.endpoint, "", &temp.path().join("destination")).unwrap();
    assert_eq!((summary.files, summary.failed, summary.warnings.len()), (1, 4, 3), "{summary:?}");
    assert_eq!(names_in(temp.path()), ["destination"]);
    assert_eq!(names_in(&temp.path().join("destination")), ["good"]);
}

/// Each stays inside by its names, if they were those of directories.
#[test]
fn links_do_not_lead_out_through_other_links() {
    let temp = tempfile::tempdir().unwrap();
    let destination = temp.path().join("destination");
    fs::write(temp.path().join("secret"), b"secret").unwrap();
    for is_there in [false, true] {
        assert_eq!(destination.exists(), is_there);
        let entries = vec![
            link("s", "."),
            link("q", "s/../secret"),
            // In what would be a directory.
            link("s/up", "../secret"),
            link("s/deeper/up", "../../secret"),
            entry("a", EntryKind::Dir, 0),
            link("a/s", ".."),
            link("a/q", "../s/../secret"),
            link("a/r", "../a/s"),
            entry("good", EntryKind::File, 4),
        ];
        let server = listing(entries, b"good");
        let summary = fetch(&server.endpoint, "", &destination).unwrap();
        assert_eq!((summary.files, summary.warnings.len()), (1, 2), "{summary:?}");
        for name in ["q", "s/up", "s/deeper/up", "up", "a/q"] {
            assert!(fs::read(destination.join(name)).is_err(), "{name}");
        }
        let inside = destination.canonicalize().unwrap();
        for name in ["s", "a/s", "a/r"] {
            assert_eq!(destination.join(name).canonicalize().unwrap(), inside, "{name}");
        }
    }
    assert_eq!(fs::read(temp.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn files_are_not_written_through_links() {
    let temp = tempfile::tempdir().unwrap();
    let destination = temp.path().join("destination");
    fs::create_dir_all(temp.path().join("outside")).unwrap();
    fs::create_dir_all(&destination).unwrap();
    // One link that the server makes, which stays inside, and one that was there and does not.
    std::os::unix::fs::symlink("../outside", destination.join("was-there")).unwrap();
    let entries = vec![
        entry("real", EntryKind::Dir, 0),
        link("link", "real"),
        entry("link/f", EntryKind::File, 4),
        entry("was-there/f", EntryKind::File, 4),
    ];
    let server = listing(entries, b"evil");
    let summary = fetch(&server.endpoint, "", &destination).unwrap();
    assert_eq!(summary.files + summary.failed, 2, "{summary:?}");
    assert!(summary.failed >= 1, "{summary:?}");
    assert_eq!(names_in(&temp.path().join("outside")), Vec::<String>::new());
    assert!(names_in(&destination.join("real")).is_empty());
}

#[test]
fn content_with_the_wrong_digest_is_never_installed() {
    for size in [100usize, 200_000, (1 << 20) + 5] {
        let destination = tempfile::tempdir().unwrap();
        let server = HostileServer::start(move |request| match request {
            Request::List(list) => vec![page(list.id, vec![entry("f", EntryKind::File, size as u64)])],
            Request::Fetch(fetch) => {
                let files = vec![metadata(0, &vec![1; size])];
                let mut answer = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files }))];
                let whole = vec![Range { offset: 0, length: size as u64 }];
                for range in fetch.files[0].ranges.clone().unwrap_or(whole) {
                    let (offset, mut left) = (range.offset, range.length);
                    while left > 0 {
                        let now = left.min(fetch.chunk_bytes);
                        let at = offset + range.length - left;
                        left -= now;
                        answer.push(data(fetch.id, piece(0, at, now, false), &vec![2; now as usize]));
                    }
                }
                answer.push(reply(&Reply::End { id: fetch.id, n: 0 }));
                answer.push(reply(&Reply::Done { id: fetch.id }));
                answer
            }
            // Leaves of other content: they don't merge to the digest.
            Request::Leaves(leaves) => {
                let counts = LeavesReply { id: leaves.id, from: 0, count: 2, total: 2 };
                let mut frames = reply(&Reply::Leaves(counts));
                frames.push(Bytes::from(vec![3; 64]));
                vec![frames]
            }
            _ => Vec::new(),
        });
        let summary = fetch(&server.endpoint, "", destination.path()).unwrap();
        assert_eq!((summary.files, summary.failed), (0, 1), "{size}: {summary:?}");
        assert!(summary.failures[0].reason.contains("digest"), "{summary:?}");
        assert!(!destination.path().join("f").exists());
    }
}

/// A server that answers the fetch of one file of four bytes like this.
fn liar(answer: impl Fn(&FetchRequest) -> Answer + Send + 'static) -> HostileServer {
    HostileServer::start(move |request| match request {
        Request::List(list) => vec![page(list.id, vec![entry("f", EntryKind::File, 4)])],
        Request::Fetch(fetch) => {
            let files = vec![metadata(0, b"true")];
            let mut messages = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files }))];
            messages.extend(answer(&fetch));
            messages
        }
        _ => Vec::new(),
    })
}

#[test]
fn wrong_lengths_end_the_transfer() {
    let raw = |mut bytes: Vec<u8>, at: usize, byte: u8| {
        bytes[at] = byte;
        Bytes::from(bytes)
    };
    type Lie = Box<dyn Fn(&FetchRequest) -> Answer + Send>;
    let header = move |fetch: &FetchRequest| DataHeader { id: fetch.id, entries: vec![piece(0, 0, 4, true)] };
    let lies: Vec<(&str, Lie)> = vec![
        ("a longer body", Box::new(|fetch| vec![data(fetch.id, piece(0, 0, 4, true), b"longer")])),
        ("a shorter body", Box::new(|fetch| vec![data(fetch.id, piece(0, 0, 4, true), b"s")])),
        ("a body of 5 MiB", Box::new(|fetch| vec![data(fetch.id, piece(0, 0, 4, true), &vec![0; 5 << 20])])),
        ("no body", Box::new(move |fetch| vec![vec![header(fetch).encode().unwrap().into()]])),
        ("past the end", Box::new(|fetch| vec![data(fetch.id, piece(0, 4, 4, true), b"more")])),
        ("another file", Box::new(|fetch| vec![data(fetch.id, piece(3, 0, 4, true), b"true")])),
        ("another request", Box::new(|fetch| vec![data(fetch.id + 9, piece(0, 0, 4, true), b"true")])),
        ("an absurd count", Box::new(move |fetch| vec![vec![raw(header(fetch).encode().unwrap(), 6, 0xff)]])),
        ("an unknown flag", Box::new(move |fetch| vec![vec![raw(header(fetch).encode().unwrap(), 16, 0x80)]])),
        ("done too early", Box::new(|fetch| vec![reply(&Reply::Done { id: fetch.id })])),
        ("ended too early", Box::new(|fetch| vec![reply(&Reply::End { id: fetch.id, n: 0 })])),
        ("no dialect", Box::new(|_| vec![vec![Bytes::from_static(b"hello")]])),
        ("a huge JSON", Box::new(|_| vec![vec![Bytes::from_static(b"TOW1"), Bytes::from(vec![b' '; 2 << 20])]])),
        ("not JSON", Box::new(|_| vec![vec![Bytes::from_static(b"TOW1"), Bytes::from_static(b"\xff{")]])),
    ];
    for (name, lie) in lies {
        let destination = tempfile::tempdir().unwrap();
        let server = liar(lie);
        let result = fetch(&server.endpoint, "", destination.path());
        // What ZMTP's own limits forbid ends the connection, again and again.
        let refused = matches!(result, Err(Error::Protocol(_) | Error::Breaking { .. }));
        assert!(refused, "{name}: {result:?}");
        assert!(!destination.path().join("f").exists(), "{name}");
    }
}

#[test]
fn file_too_large_for_any_disk_is_refused() {
    let destination = tempfile::tempdir().unwrap();
    let server = HostileServer::start(|request| match request {
        Request::List(list) => vec![page(list.id, vec![entry("f", EntryKind::File, 1 << 62)])],
        _ => Vec::new(),
    });
    let result = fetch(&server.endpoint, "", destination.path());
    assert!(matches!(result, Err(Error::DiskFull(_))), "{result:?}");
    assert_eq!(names_in(destination.path()), Vec::<String>::new());
}

#[test]
fn silent_server_stalls_the_transfer() {
    let destination = tempfile::tempdir().unwrap();
    let server = HostileServer::start(|_| Vec::new());
    let mut relaxed = options(&server.endpoint, path_source(""), destination.path());
    relaxed.connect.idle_timeout = Duration::from_millis(300);
    let result = run(relaxed);
    assert!(matches!(result, Err(Error::Stalled { connected: true, .. })), "{result:?}");
}

#[test]
fn refused_connection_is_reported() {
    // Bound and never listening, so that nobody else gets it.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let destination = tempfile::tempdir().unwrap();
    let endpoint: Endpoint = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let mut strict = options(&endpoint, path_source(""), destination.path());
    strict.connect.connect_timeout = Duration::from_millis(300);
    let result = run(strict);
    assert!(matches!(result, Err(Error::Connect { .. })), "{result:?}");
}

#[test]
fn set_user_id_bits_are_left_out() {
    use std::os::unix::fs::PermissionsExt;
    let destination = tempfile::tempdir().unwrap();
    let mut program = entry("f", EntryKind::File, 4);
    program.mode = 0o6755;
    let server = HostileServer::start(move |request| match request {
        Request::List(list) => vec![page(list.id, vec![program.clone()])],
        Request::Fetch(fetch) => {
            let FileAnswer::Metadata(metadata) = metadata(0, b"evil") else { unreachable!() };
            let files = vec![FileAnswer::Metadata(FileMetadata { mode: 0o6755, ..metadata })];
            vec![
                reply(&Reply::Files(FilesReply { id: fetch.id, files })),
                data(fetch.id, piece(0, 0, 4, true), b"evil"),
                reply(&Reply::Done { id: fetch.id }),
            ]
        }
        _ => Vec::new(),
    });
    assert_eq!(fetch(&server.endpoint, "", destination.path()).unwrap().files, 1);
    assert_eq!(fs::metadata(destination.path().join("f")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn decompression_bomb_is_refused() {
    let destination = tempfile::tempdir().unwrap();
    let server = liar(|fetch| {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        // The header's own check refuses a body that is longer than its piece; so the piece has to claim more than the file has.
        let length = bomb.len() as u64 + 10;
        let entry = DataEntry { body: Body::Zstd, length, body_length: bomb.len() as u64, ..piece(0, 0, 4, true) };
        vec![data(fetch.id, entry, &bomb)]
    });
    let result = fetch(&server.endpoint, "", destination.path());
    assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
}

#[test]
fn wrong_leaf_is_fetched_again_for_an_output() {
    const SIZE: usize = 3 * MIB + 9;
    let content = noise(SIZE, 1);
    let leaf_size = LeafSize::for_file(SIZE as u64);
    let mut tree = TreeHasher::new(leaf_size);
    tree.update(&content).unwrap();
    let (_, leaves) = tree.finish().unwrap();
    let (served, mut bad_once) = (content.clone(), true);
    let server = HostileServer::start(move |request| match request {
        Request::List(list) => {
            let entries = vec![entry("f", EntryKind::File, SIZE as u64)];
            vec![reply(&Reply::List(ListPage { id: list.id, base: Base::File, dir: None, entries, more: false }))]
        }
        Request::Leaves(request) => {
            let counts = LeavesReply { id: request.id, from: 0, count: 4, total: 4 };
            let mut frames = reply(&Reply::Leaves(counts));
            frames.push(leaves.concat().into());
            vec![frames]
        }
        Request::Fetch(fetch) => {
            let files = vec![metadata(0, &served)];
            let mut answer = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files }))];
            for range in fetch.files[0].ranges.clone().unwrap() {
                let (mut at, end) = (range.offset, range.offset + range.length);
                while at < end {
                    let now = (end - at).min(fetch.chunk_bytes);
                    let mut body = served[at as usize..(at + now) as usize].to_vec();
                    if at == MIB as u64 && std::mem::take(&mut bad_once) {
                        body[77] ^= 1;
                    }
                    answer.push(data(fetch.id, piece(0, at, now, false), &body));
                    at += now;
                }
            }
            answer.push(reply(&Reply::End { id: fetch.id, n: 0 }));
            answer.push(reply(&Reply::Done { id: fetch.id }));
            answer
        }
        _ => Vec::new(),
    });
    let output = Shared::default();
    let mut to_writer = options(&server.endpoint, path_source("f"), Path::new("."));
    to_writer.get.destination = Destination::Writer(Box::new(output.clone()));
    let summary = run(to_writer).unwrap();
    assert!(output.content() == content, "the output differs");
    assert!(summary.verified && summary.received_bytes > summary.bytes, "{summary:?}");
}

#[test]
fn wrong_content_never_reaches_an_output() {
    let server = HostileServer::start(|request| match request {
        Request::List(list) => {
            let entries = vec![entry("f", EntryKind::File, 4)];
            vec![reply(&Reply::List(ListPage { id: list.id, base: Base::File, dir: None, entries, more: false }))]
        }
        Request::Fetch(fetch) => {
            let mut answer = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files: vec![metadata(0, b"true")] }))];
            match fetch.files[0].ranges.as_deref() {
                Some([]) => answer.push(reply(&Reply::End { id: fetch.id, n: 0 })),
                _ => answer.push(data(fetch.id, piece(0, 0, 4, true), b"evil")),
            }
            answer.push(reply(&Reply::Done { id: fetch.id }));
            answer
        }
        _ => Vec::new(),
    });
    struct Untouched;
    impl std::io::Write for Untouched {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            panic!("{} bytes were written", bytes.len());
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut to_writer = options(&server.endpoint, path_source("f"), Path::new("."));
    to_writer.get.destination = Destination::Writer(Box::new(Untouched));
    let result = run(to_writer);
    assert!(matches!(result, Err(Error::Unmet { .. })), "{result:?}");
}

/// The server sends what nobody understands or requested, and never an answer.
#[test]
fn server_that_sends_only_useless_messages_is_given_up() {
    let nonsense = Bytes::from_static(br#"{"re":"weather","is":"fine"}"#);
    let nonsense = vec![Bytes::from_static(b"TOW1"), nonsense];
    let cancelled = reply(&Reply::Cancelled(Cancelled { id: 9 }));
    for junk in [nonsense, cancelled] {
        let mut left = 400;
        let more = move || {
            // In the end it breaks the protocol, so that a client that is still there fails in another way.
            left -= 1;
            vec![if left > 0 { junk.clone() } else { vec![Bytes::from_static(b"?")] }]
        };
        for kind in 0..3 {
            let server = HostileServer::start_talking(|_| Vec::new(), Duration::from_millis(50), more.clone());
            let destination = tempfile::tempdir().unwrap();
            let mut options = options(&server.endpoint, path_source("f"), destination.path());
            options.connect.idle_timeout = Duration::from_secs(1);
            let result = match kind {
                0 => run(options).map(drop),
                1 => {
                    options.get.destination = Destination::Writer(Box::new(Shared::default()));
                    run(options).map(drop)
                }
                _ => {
                    let mut entries =
                        FileClient::new(options.connect).list(ListOptions::new(path_source("f"))).unwrap();
                    entries.try_for_each(|entry| entry.map(drop))
                }
            };
            assert!(matches!(result, Err(Error::Stalled { .. })), "{kind}: {result:?}");
        }
    }
}

/// As a log that is always written to.
#[test]
fn file_that_changes_before_output_is_fetched_again() {
    let mut changes = 2;
    let server = HostileServer::start(move |request| match request {
        Request::List(list) => {
            let entries = vec![entry("f", EntryKind::File, 5)];
            vec![reply(&Reply::List(ListPage { id: list.id, base: Base::File, dir: None, entries, more: false }))]
        }
        Request::Fetch(fetch) if changes > 0 => {
            changes -= 1;
            let (code, message) = (ErrorCode::Changed, "it grew".to_owned());
            let files = vec![FileAnswer::Error { n: 0, code, message }];
            let answer = reply(&Reply::Files(FilesReply { id: fetch.id, files }));
            vec![answer, reply(&Reply::Done { id: fetch.id })]
        }
        // What it says then doesn't matter.
        Request::Fetch(fetch) => {
            let (code, message) = (ErrorCode::NotFound, "it is gone".to_owned());
            vec![reply(&Reply::Error(ErrorReply { id: Some(fetch.id), code, message }))]
        }
        _ => Vec::new(),
    });
    let mut options = options(&server.endpoint, path_source("f"), Path::new("."));
    options.get.destination = Destination::Writer(Box::new(Shared::default()));
    match run(options) {
        Err(Error::Refused { code, .. }) => assert_eq!(code, ErrorCode::NotFound),
        other => panic!("{other:?}"),
    }
}

/// A server may find in the middle that a listing needs more space than there is. Entries that were delivered aren't
/// delivered again.
#[test]
fn partly_delivered_listing_is_not_restarted() {
    let server = HostileServer::start(|request| match request {
        Request::List(ListRequest { id, .. }) => {
            let entries = vec![entry("f", EntryKind::File, 1)];
            vec![reply(&Reply::List(ListPage { id, base: Base::Dir, dir: None, entries, more: true }))]
        }
        Request::More { id } => {
            let message = "no space".to_owned();
            vec![reply(&Reply::Error(ErrorReply { id: Some(id), code: ErrorCode::Busy, message }))]
        }
        _ => Vec::new(),
    });
    let client = FileClient::new(ConnectOptions::new(server.endpoint.clone()));
    let mut entries = client.list(ListOptions { recursive: true, ..ListOptions::new(path_source("")) }).unwrap();
    assert_eq!(entries.next().unwrap().unwrap().path.as_bytes(), b"f");
    let result = entries.next();
    assert!(matches!(result, Some(Err(Error::Refused { code: ErrorCode::Busy, .. }))), "{result:?}");
    assert_eq!(entries.next(), None);
}
