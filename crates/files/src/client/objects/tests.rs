//! Files that go to an object store in memory, whose requests fail.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::client::{ConnectOptions, Destination, FileClient, GetOptions, Source, Summary};
use crate::server::{Handle, Server, ServerOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use tempfile::TempDir;

/// Bytes of two parts and a bit.
const LARGE: usize = (16 << 20) + 1001;

type Fault = Box<dyn FnMut(Call) -> Option<ObjectError> + Send>;

/// A request to the store.
#[derive(Debug)]
enum Call {
    List,
    Head,
    Put,
    Begin,
    Part(u32),
    Complete,
    Abort,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Bytes, ObjectAttributes)>,
    /// Keys of uploads that are neither complete nor aborted.
    open: BTreeSet<String>,
    heads: usize,
    part_lengths: BTreeSet<usize>,
}

struct Store {
    state: Mutex<State>,
    fault: Mutex<Fault>,
}

#[derive(Clone)]
struct Memory(Arc<Store>);

impl Memory {
    fn new() -> Memory {
        Memory(Arc::new(Store { state: Mutex::default(), fault: Mutex::new(Box::new(|_| None)) }))
    }

    fn fail(&self, fault: impl FnMut(Call) -> Option<ObjectError> + Send + 'static) {
        *self.0.fault.lock().unwrap() = Box::new(fault);
    }

    fn ask(&self, call: Call) -> Result<std::sync::MutexGuard<'_, State>, ObjectError> {
        let failed = (self.0.fault.lock().unwrap())(call);
        failed.map_or_else(|| Ok(self.0.state.lock().unwrap()), Err)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().objects.iter().map(|(key, (content, _))| (key.clone(), content.to_vec())).collect()
    }
}

impl Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl ObjectStore for Memory {
    fn is_empty(&self, prefix: &str) -> Result<bool, ObjectError> {
        Ok(!self.ask(Call::List)?.objects.keys().any(|key| key.starts_with(prefix)))
    }

    fn head(&self, key: &str) -> Result<Option<(u64, ObjectAttributes)>, ObjectError> {
        let mut state = self.ask(Call::Head)?;
        state.heads += 1;
        Ok(state.objects.get(key).map(|(content, attributes)| (content.len() as u64, *attributes)))
    }

    fn put(&self, key: &str, content: Bytes, attributes: &ObjectAttributes) -> Result<(), ObjectError> {
        self.ask(Call::Put)?.objects.insert(key.to_owned(), (content, *attributes));
        Ok(())
    }

    fn begin(&self, key: &str, attributes: &ObjectAttributes) -> Result<Arc<dyn ObjectUpload>, ObjectError> {
        self.ask(Call::Begin)?.open.insert(key.to_owned());
        let (store, key, attributes) = (self.clone(), key.to_owned(), *attributes);
        Ok(Arc::new(InMemory { store, key, attributes, parts: Mutex::default() }))
    }
}

#[derive(Debug)]
struct InMemory {
    store: Memory,
    key: String,
    attributes: ObjectAttributes,
    parts: Mutex<BTreeMap<u32, Bytes>>,
}

impl ObjectUpload for InMemory {
    fn put_part(&self, index: u32, content: Bytes) -> Result<(), ObjectError> {
        self.store.ask(Call::Part(index))?.part_lengths.insert(content.len());
        self.parts.lock().unwrap().insert(index, content);
        Ok(())
    }

    fn complete(&self) -> Result<(), ObjectError> {
        let mut state = self.store.ask(Call::Complete)?;
        let parts = self.parts.lock().unwrap();
        assert!(parts.keys().copied().eq(0..parts.len() as u32), "a part is missing");
        let content: Vec<u8> = parts.values().flat_map(|part| part.to_vec()).collect();
        assert!(state.open.remove(&self.key), "it was aborted");
        state.objects.insert(self.key.clone(), (content.into(), self.attributes));
        Ok(())
    }

    fn abort(&self) -> Result<(), ObjectError> {
        self.store.ask(Call::Abort)?.open.remove(&self.key);
        Ok(())
    }
}

fn error(is_for_all: bool, message: &str) -> ObjectError {
    ObjectError { is_for_all, message: message.to_owned() }
}

/// A served directory.
struct Served {
    folder: TempDir,
    endpoint: crate::Endpoint,
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn new() -> Served {
        let folder = TempDir::new().unwrap();
        let options = ServerOptions::new(folder.path()).listen("tcp://127.0.0.1:0".parse().unwrap());
        let server = Server::bind(options).unwrap();
        let (endpoint, handle) = (server.endpoints()[0].clone(), server.handle());
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Served { folder, endpoint, handle, thread }
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn options(&self, path: &str, memory: &Memory, prefix: &str) -> GetOptions {
        let mut options = GetOptions::new(Source::Path(path.parse().unwrap()));
        let (store, prefix) = (Arc::new(memory.clone()), prefix.to_owned());
        options.destination = Destination::Objects { store, prefix, into: false, place: "s3://bucket/".to_owned() };
        options
    }

    fn get(&self, options: GetOptions) -> Result<Summary, Error> {
        FileClient::new(ConnectOptions::new(self.endpoint.clone())).get(options, &mut |_| {})
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.handle.shutdown();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 700 % 251) as u8).collect()
}

/// A tree of each kind of file, and what it is in a store.
fn tree(served: &Served) -> BTreeMap<String, Vec<u8>> {
    let mut tree = BTreeMap::new();
    for number in 0..50 {
        tree.insert(format!("small/{number}"), bytes(number * 100));
    }
    for (name, length) in [("large", LARGE), ("parts", 16 << 20), ("one part", 3 << 20), ("empty", 0)] {
        tree.insert(format!("in/{name}"), bytes(length));
    }
    tree.iter().for_each(|(path, content)| served.write(path, content));
    tree.into_iter().map(|(path, content)| (format!("to/{path}"), content)).collect()
}

#[test]
fn a_tree_becomes_objects_which_are_left_alone_afterwards() {
    let (served, memory) = (Served::new(), Memory::new());
    let mut tree = tree(&served);
    std::os::unix::fs::symlink("empty", served.folder.path().join("in/link")).unwrap();
    std::fs::hard_link(served.folder.path().join("in/large"), served.folder.path().join("in/other name")).unwrap();
    tree.insert("to/in/other name".to_owned(), bytes(LARGE));
    let get = || served.get(served.options("", &memory, "to")).unwrap();
    let summary = get();
    assert_eq!((summary.files, summary.failed, summary.skipped), (tree.len() as u64, 0, 0), "{summary:?}");
    assert!(summary.verified && summary.warned == 1 && summary.warnings[0].contains("link"), "{summary:?}");
    assert!(memory.contents() == tree);
    {
        let state = memory.state();
        assert_eq!(
            (state.heads, state.open.len()),
            (0, 0),
            "what is put below a prefix without objects isn't looked for"
        );
        assert_eq!(state.part_lengths, BTreeSet::from([8 << 20, 1001]));
        for (key, (content, attributes)) in &state.objects {
            let path = served.folder.path().join(key.strip_prefix("to/").unwrap());
            let metadata = std::fs::metadata(path).unwrap();
            use std::os::unix::fs::MetadataExt;
            let modified = Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 };
            assert_eq!((attributes.modified, attributes.mode.is_some()), (Some(modified), true));
            assert_eq!(attributes.digest, Some(Digest::of(content)), "{key}");
        }
    }
    let again = get();
    assert_eq!((again.skipped, again.received_bytes), (tree.len() as u64, 0), "{again:?}");
    // Another time, and the same content: found out by digest. Other contents: put again.
    let touched = std::fs::File::options().write(true).open(served.folder.path().join("in/parts")).unwrap();
    touched.set_modified(std::time::SystemTime::now() - Duration::from_secs(9)).unwrap();
    served.write("in/one part", &bytes(2 << 20));
    let third = get();
    assert_eq!((third.skipped, third.received_bytes), (tree.len() as u64 - 1, 2 << 20), "{third:?}");
    tree.insert("to/in/one part".to_owned(), bytes(2 << 20));
    assert!(memory.contents() == tree);
    let mut options = served.options("", &memory, "to");
    options.check = true;
    assert_eq!(served.get(options).unwrap().skipped, tree.len() as u64);
}

#[test]
fn a_file_gets_a_key_without_a_directory() {
    let (served, memory) = (Served::new(), Memory::new());
    served.write("a", b"content");
    for (prefix, key) in [("x/y", "x/y"), ("x/", "x/a"), ("", "a")] {
        served.get(served.options("a", &memory, prefix)).unwrap();
        assert_eq!(memory.contents().get(key).unwrap(), b"content");
    }
    assert_eq!(memory.contents().len(), 3);
}

#[test]
fn unverified_files_have_no_digest_and_are_put_again() {
    let (served, memory) = (Served::new(), Memory::new());
    served.write("a", &bytes(LARGE));
    for _ in 0..2 {
        let mut options = served.options("", &memory, "");
        options.verify = false;
        assert_eq!(served.get(options).unwrap().skipped, 0);
    }
    assert!(memory.contents()["a"] == bytes(LARGE));
    assert_eq!(memory.state().objects["a"].1.digest, None);
}

#[test]
fn a_failed_request_fails_a_file_and_its_parts_are_removed() {
    type IsIt = fn(&Call) -> bool;
    let calls: [IsIt; 3] = [
        |call| matches!(call, Call::Part(1)),
        |call| matches!(call, Call::Begin),
        |call| matches!(call, Call::Complete),
    ];
    for is_it in calls {
        let (served, memory) = (Served::new(), Memory::new());
        served.write("large", &bytes(LARGE));
        served.write("small", b"small");
        memory.fail(move |call| is_it(&call).then(|| error(false, "internal error")));
        let summary = served.get(served.options("", &memory, "")).unwrap();
        assert_eq!((summary.files, summary.failed), (1, 1), "{summary:?}");
        assert!(summary.failures[0].reason.contains("internal error"), "{summary:?}");
        assert_eq!(memory.contents().into_keys().collect::<Vec<_>>(), ["small"]);
        assert!(memory.state().open.is_empty(), "parts are left");
    }
}

#[test]
fn what_fails_for_all_objects_ends_the_transfer() {
    let (served, memory) = (Served::new(), Memory::new());
    served.write("large", &bytes(LARGE));
    memory.fail(|call| matches!(call, Call::Part(1)).then(|| error(true, "the credentials have expired")));
    let failure = served.get(served.options("", &memory, "")).unwrap_err();
    assert!(failure.to_string().contains("s3://bucket/: the credentials have expired"), "{failure}");
    assert!(memory.state().open.is_empty() && memory.contents().is_empty());
    // Before anything is asked of the server.
    memory.fail(|_| Some(error(true, "there is no such bucket")));
    let failure = served.get(served.options("", &memory, "")).unwrap_err();
    assert!(failure.to_string().contains("there is no such bucket"), "{failure}");
}

#[test]
fn a_cancelled_transfer_removes_its_parts() {
    let (served, memory) = (Served::new(), Memory::new());
    served.write("large", &bytes(LARGE));
    let cancel = crate::client::CancelToken::new();
    let handle = cancel.clone();
    memory.fail(move |call| {
        if matches!(call, Call::Part(1)) {
            handle.cancel();
        }
        None
    });
    let connect = ConnectOptions { cancel, ..ConnectOptions::new(served.endpoint.clone()) };
    let failure = FileClient::new(connect).get(served.options("", &memory, ""), &mut |_| {}).unwrap_err();
    assert_eq!(failure, Error::Cancelled);
    assert!(memory.state().open.is_empty(), "{:?}", memory.state().open);
    // The other parts may have been on their way: then it is complete.
    assert!(memory.contents().values().all(|object| object.len() == LARGE), "a part of it is put");
}

#[test]
fn a_slow_store_keeps_the_server_waiting_rather_than_memory() {
    let (served, memory) = (Served::new(), Memory::new());
    let parts = 12;
    served.write("large", &bytes(parts << 23));
    let held = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let in_store = Arc::clone(&held);
    let (begun, has_begun) = channel();
    memory.fail(move |call| {
        if matches!(call, Call::Part(_)) {
            let _ = begun.send(());
        }
        None
    });
    // The first request waits for all that the transfer hands over without it.
    let slow = Slow { memory: memory.clone(), held: in_store };
    let mut options = served.options("", &memory, "");
    options.destination = Destination::Objects {
        store: Arc::new(slow),
        prefix: String::new(),
        into: false,
        place: "s3://bucket/".to_owned(),
    };
    let endpoint = served.endpoint.clone();
    let get = std::thread::spawn(move || FileClient::new(ConnectOptions::new(endpoint)).get(options, &mut |_| {}));
    let mut count = 0;
    while has_begun.recv_timeout(Duration::from_secs(if count < 9 { 60 } else { 2 })).is_ok() {
        count += 1;
    }
    // 64 MiB are eight parts; one more may be whole when that is noticed, and the pieces before the next.
    assert!((8..=10).contains(&count), "{count} parts were handed over");
    *held.0.lock().unwrap() = true;
    held.1.notify_all();
    assert_eq!(get.join().unwrap().unwrap().files, 1);
    assert!(memory.contents()["large"] == bytes(parts << 23));
}

#[test]
fn all_of_a_file_comes_once_though_its_upload_begins_late() {
    let (served, memory) = (Served::new(), Memory::new());
    let size = 5 << 23;
    served.write("large", &bytes(size));
    let (come, has_come) = channel();
    memory.fail(move |call| {
        let is_late = matches!(call, Call::Begin) && has_come.recv_timeout(Duration::from_secs(60)).is_err();
        is_late.then(|| error(true, "not all of it has come"))
    });
    let client = FileClient::new(ConnectOptions::new(served.endpoint.clone()));
    let summary = client.get(served.options("", &memory, ""), &mut |progress| {
        if progress.received_bytes >= size as u64 {
            let _ = come.send(());
        }
    });
    let summary = summary.unwrap();
    assert_eq!((summary.files, summary.received_bytes), (1, size as u64), "{summary:?}");
    assert!(memory.contents()["large"] == bytes(size));
}

/// Holds parts until they may go on.
#[derive(Debug)]
struct Slow {
    memory: Memory,
    held: Arc<(Mutex<bool>, std::sync::Condvar)>,
}

impl ObjectStore for Slow {
    fn is_empty(&self, prefix: &str) -> Result<bool, ObjectError> {
        self.memory.is_empty(prefix)
    }

    fn head(&self, key: &str) -> Result<Option<(u64, ObjectAttributes)>, ObjectError> {
        self.memory.head(key)
    }

    fn put(&self, key: &str, content: Bytes, attributes: &ObjectAttributes) -> Result<(), ObjectError> {
        self.memory.put(key, content, attributes)
    }

    fn begin(&self, key: &str, attributes: &ObjectAttributes) -> Result<Arc<dyn ObjectUpload>, ObjectError> {
        Ok(Arc::new(SlowUpload { upload: self.memory.begin(key, attributes)?, held: Arc::clone(&self.held) }))
    }
}

#[derive(Debug)]
struct SlowUpload {
    upload: Arc<dyn ObjectUpload>,
    held: Arc<(Mutex<bool>, std::sync::Condvar)>,
}

impl ObjectUpload for SlowUpload {
    fn put_part(&self, index: u32, content: Bytes) -> Result<(), ObjectError> {
        self.upload.put_part(index, content)?;
        let (may_go_on, changed) = &*self.held;
        drop(changed.wait_while(may_go_on.lock().unwrap(), |may_go_on| !*may_go_on).unwrap());
        Ok(())
    }

    fn complete(&self) -> Result<(), ObjectError> {
        self.upload.complete()
    }

    fn abort(&self) -> Result<(), ObjectError> {
        self.upload.abort()
    }
}

#[test]
fn times_round_trip_as_text() {
    for (seconds, nanoseconds, text) in [
        (1_700_000_000, 0, "1700000000"),
        (1_700_000_000, 5, "1700000000.000000005"),
        (-1, 0, "-1"),
        (-1, 500_000_000, "-0.500000000"),
        (-2, 1, "-1.999999999"),
    ] {
        let at = Timestamp { seconds, nanoseconds };
        assert_eq!(show_time(at), text);
        assert_eq!(parse_time(text), Some(at), "{text}");
    }
    assert_eq!(parse_time("5.25"), Some(Timestamp { seconds: 5, nanoseconds: 250_000_000 }));
    for wrong in ["", "x", "1.x", "--1", ".5", "1e9", "99999999999999999999", "-9223372036854775808"] {
        assert_eq!(parse_time(wrong), None, "{wrong}");
    }
    let all =
        ObjectAttributes { modified: Some(Timestamp::default()), mode: Some(0o640), digest: Some(Digest::of(b"")) };
    let pairs = all.pairs();
    assert_eq!(ObjectAttributes::parse(|name| pairs.get(name).map(String::as_str)), all);
    assert_eq!(ObjectAttributes::parse(|_| Some("\u{1F600}")), ObjectAttributes::default());
}
