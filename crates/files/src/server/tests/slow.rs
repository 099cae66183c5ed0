//! A cold disk stalls only those who read from it. Without timing: the slow file waits at a gate.

use super::*;
use crate::protocol::control::{Cancelled, DigestWish, FollowLinks, LeavesRequest, ListRequest, ListTarget};
use crate::server::Failure;
use crate::server::open_file::OpenFile;
use std::sync::{Arc, Condvar, Mutex};
use towpath_sockets::page_cache::Residency;

/// Files of this size are cold and stay so until the gate opens; all others are as the page cache has them.
struct GatedStorage {
    slow_size: u64,
    gate: Arc<Gate>,
    inner: PageCache,
}

#[derive(Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(is_open, _)| !*is_open).unwrap());
    }

    /// Until as many wait at the gate.
    fn await_waiting(&self, count: usize) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |(_, waiting)| *waiting < count).unwrap());
    }
}

impl Storage for GatedStorage {
    fn probe(&self, source: &OpenFile, offset: u64, length: u64) -> Residency {
        if source.attributes.size == self.slow_size {
            Residency::Uncached
        } else {
            self.inner.probe(source, offset, length)
        }
    }

    fn prefetch(&self, source: &OpenFile, offset: u64, length: u64) -> Result<(), Failure> {
        if source.attributes.size == self.slow_size {
            self.gate.pass();
        }
        self.inner.prefetch(source, offset, length)
    }
}

#[test]
fn a_cached_transfer_is_not_blocked_by_a_slow_disk() {
    let slow = bytes((3 << 20) + 1);
    let cached = bytes(20 << 20);
    let temp = root_with(&[("slow", &slow), ("cached", &cached), ("small", b"abc")]);
    let gate = Arc::new(Gate::default());
    let slow_size = slow.len() as u64;
    let storage = GatedStorage { slow_size, gate: Arc::clone(&gate), inner: PageCache };
    let server = TestServer::start_with(temp.path(), Box::new(storage));
    let plain = |id, paths: &[&str]| FetchRequest { digest: DigestWish::None, ..fetch_of(id, paths) };

    let mut waits = server.client();
    waits.request(&Request::Fetch(plain(1, &["slow"])));
    let mut slow_fetched = Fetched::default();
    assert!(!slow_fetched.take(1, waits.receive()));
    gate.await_waiting(1);

    // Another client gets everything, cached files by native and plain requests, and listings.
    let mut other = server.client();
    let fetched = other.fetch(FetchRequest { digest: DigestWish::Later, ..fetch_of(1, &["cached", "small"]) });
    assert!(fetched.bodies[&0] == cached);
    assert_eq!(fetched.bodies[&1], b"abc");
    other.send(&[b"fetch", b"cached", b"5", b"1000000"]);
    assert!(other.receive()[0][..] == cached[5..1_000_005]);

    // So does the same client, by another request.
    waits.request(&Request::Fetch(plain(2, &["cached"])));
    let mut cached_fetched = Fetched::default();
    while !cached_fetched.take(2, waits.receive()) {}
    assert!(cached_fetched.bodies[&0] == cached);
    assert!(slow_fetched.bodies.is_empty());

    // One that gives up is answered at once, though its disk hangs.
    let mut gives_up = server.client();
    gives_up.request(&Request::Fetch(plain(1, &["slow"])));
    assert!(!Fetched::default().take(1, gives_up.receive()));
    gives_up.request(&Request::Cancel { id: 1 });
    assert_eq!(gives_up.reply(), Reply::Cancelled(Cancelled { id: 1 }));

    gate.open();
    while !slow_fetched.take(1, waits.receive()) {}
    assert!(slow_fetched.bodies[&0] == slow);
}

#[test]
fn a_cancelled_request_keeps_no_file_open_though_its_disk_hangs() {
    let slow = bytes((3 << 20) + 7);
    let temp = root_with(&[("slow", &slow)]);
    let path = temp.path().join("slow").canonicalize().unwrap();
    let gate = Arc::new(Gate::default());
    let slow_size = slow.len() as u64;
    let storage = GatedStorage { slow_size, gate: Arc::clone(&gate), inner: PageCache };
    let server = TestServer::start_with(temp.path(), Box::new(storage));
    let mut client = server.client();
    for id in 1..=20 {
        client.request(&Request::Fetch(FetchRequest { digest: DigestWish::None, ..fetch_of(id, &["slow"]) }));
        assert!(!Fetched::default().take(id, client.receive()));
        client.request(&Request::Cancel { id });
        assert_eq!(client.reply(), Reply::Cancelled(Cancelled { id }));
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter(|entry| std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to == path));
    // Those that are being read, of which there are no more than a device may have at a time.
    assert!(open.count() <= 2);
    gate.open();
    assert!(client.fetch(fetch_of(21, &["slow"])).bodies[&0] == slow);
}

/// A storage that doesn't say what is resident, as where RWF_NOWAIT is missing: everything goes through the pool.
struct SilentStorage(PageCache);

impl Storage for SilentStorage {
    fn probe(&self, _: &OpenFile, _: u64, _: u64) -> Residency {
        Residency::Uncached
    }

    fn prefetch(&self, source: &OpenFile, offset: u64, length: u64) -> Result<(), Failure> {
        self.0.prefetch(source, offset, length)
    }
}

#[test]
fn uncached_files_are_prefetched_and_arrive() {
    let content = bytes(9_999_999);
    let temp = root_with(&[("a", &content)]);
    let server = TestServer::start_with(temp.path(), Box::new(SilentStorage(PageCache)));
    let mut client = server.client();
    assert!(client.fetch(fetch_of(1, &["a"])).bodies[&0] == content);
    client.send(&[b"fetch", b"a"]);
    let mut received = Vec::new();
    loop {
        let frames = client.receive();
        if frames[0].is_empty() {
            break;
        }
        received.extend_from_slice(&frames[0]);
    }
    assert!(received == content);
}

/// A storage with a mistake in it, for files of one size.
struct BrokenStorage(u64);

impl Storage for BrokenStorage {
    fn probe(&self, _: &OpenFile, _: u64, _: u64) -> Residency {
        Residency::Uncached
    }

    fn prefetch(&self, source: &OpenFile, _: u64, _: u64) -> Result<(), Failure> {
        if source.attributes.size == self.0 {
            // As a panic does, but for the message.
            std::panic::resume_unwind(Box::new(()));
        }
        Ok(())
    }
}

#[test]
fn a_panicking_job_fails_its_request_only() {
    let (broken, fine) = (bytes(2_000_001), bytes(2_000_000));
    let temp = root_with(&[("broken", &broken), ("fine", &fine)]);
    let server = TestServer::start_with(temp.path(), Box::new(BrokenStorage(2_000_001)));
    let mut client = server.client();
    let fetched = client.fetch(fetch_of(1, &["broken", "fine"]));
    assert!(fetched.void[&0].contains("its log has more"), "{:?}", fetched.void);
    assert!(fetched.bodies[&1] == fine);
    // The plain dialect has no word for it but the end of the connection; others go on.
    client.send(&[b"fetch", b"broken"]);
    let mut other = server.client();
    assert!(other.fetch(fetch_of(1, &["fine"])).bodies[&0] == fine);
}

#[test]
fn a_file_that_hashes_slowly_blocks_no_others() {
    let content = bytes(2 << 20);
    let temp = root_with(&[("small", &content), ("tree/small", b"abc")]);
    let names = ["huge0", "huge1", "huge2", "huge3", "tree/huge"];
    for name in names {
        // More zeros than this test has time for.
        std::fs::File::create(temp.path().join(name)).unwrap().set_len(1 << 40).unwrap();
    }
    let server = TestServer::start(temp.path());
    let mut greedy = server.client();
    let mut request = fetch_of(1, &names[..4]);
    // Digests alone; what the files are is sent before.
    request.files.iter_mut().for_each(|file| file.ranges = Some(Vec::new()));
    greedy.request(&Request::Fetch(request));
    let mut answers = 0;
    while answers < 4 {
        let Reply::Files(files) = greedy.reply() else { panic!("what the files are comes first") };
        answers += files.files.len();
    }
    let target = ListTarget::Path(WirePath::from(b"tree".to_vec()));
    let mut lists = server.client();
    lists.request(&Request::List(ListRequest {
        id: 1,
        target,
        recursive: false,
        digest: true,
        follow: FollowLinks::None,
    }));

    let mut other = server.client();
    let fetched = other.fetch(FetchRequest { digest: DigestWish::Now, ..fetch_of(1, &["small"]) });
    assert_eq!(fetched.metadata(0).digest, Some(crate::digest::Digest::of(&content)));
    let (path, digest) = (WirePath::from(b"small".to_vec()), crate::digest::Digest::of(&content));
    other.request(&Request::Leaves(LeavesRequest { id: 2, path, digest, from: 0, count: 9 }));
    assert!(matches!(other.reply(), Reply::Leaves(leaves) if leaves.total == 2));
}
