//! Another source than a directory: in memory, by pages and pieces, with answers that fail and files that are replaced.

mod model;
mod push;

use super::*;
use crate::client::follow::{FollowEvent, FollowOptions};
use crate::client::{ConnectOptions, Destination, FileClient, GetOptions, Source as Wanted};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::RootError;
use crate::server::client_root::ClientRoot;
use crate::server::open_file::OpenFile;
use crate::server::source::memory::{Call, Memory};
use crate::server::source::{Attributes, Content, Listed, Opened, OpenedDir, Pages, Source};
use crate::server::{CatalogueStats, Failure, PushOptions, ServeError, WatchOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use towpath_rules::{Origin, Rules};
use towpath_sockets::page_cache::Residency;

/// Bytes that a read of the store gives at most: no divisor of anything.
const READ_BYTES: usize = 10_007;

fn filled() -> (Memory, BTreeMap<String, Vec<u8>>) {
    let memory = Memory::new(7, READ_BYTES, Duration::from_millis(1));
    let mut tree: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for number in 0..60 {
        tree.insert(format!("small/{number:02}"), bytes(number * 50));
    }
    tree.insert("top".to_owned(), b"at the top".to_vec());
    tree.insert("large/two".to_owned(), bytes((2 << 20) + 7));
    tree.insert("large/deep/compressible".to_owned(), vec![7; 300_000]);
    for (path, content) in &tree {
        memory.put(path, content.clone());
    }
    (memory, tree)
}

fn start(memory: &Memory) -> TestServer {
    TestServer::start_as(ServerOptions::from_source(Arc::new(memory.clone())), Box::new(PageCache))
}

fn get_all(server: &TestServer, into: &Path) -> crate::client::Summary {
    let mut options = GetOptions::new(Wanted::Path(Default::default()));
    options.destination = Destination::Path(Some(into.to_owned()));
    FileClient::new(ConnectOptions::new(server.endpoint.clone())).get(options, &mut |_| {}).unwrap()
}

fn read_tree(top: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn a_client_gets_the_tree_of_another_source() {
    let (memory, tree) = filled();
    let (server, folder) = (start(&memory), TempDir::new().unwrap());
    let summary = get_all(&server, folder.path());
    assert_eq!((summary.files, summary.failures.len()), (tree.len() as u64, 0));
    assert!(read_tree(folder.path()) == tree);
    // What is as it was isn't fetched again, but for what was replaced.
    memory.put("large/two", bytes(1 << 20));
    let summary = get_all(&server, folder.path());
    assert_eq!(summary.skipped, tree.len() as u64 - 1);
    assert!(read_tree(folder.path())["large/two"] == bytes(1 << 20));
}

#[test]
fn pieces_that_are_in_local_files_are_sent_from_there() {
    let (memory, tree) = filled();
    memory.keep_in_files();
    let reads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reads);
    memory.fail(move |call, path| {
        let is_large = path.as_os_str() == "large/two";
        count.fetch_add(usize::from(is_large && matches!(call, Call::Read(_))), Ordering::Relaxed);
        None
    });
    let (server, folder) = (start(&memory), TempDir::new().unwrap());
    let mut client = server.client();
    client.send(&[b"fetch", b"large/two", b"5", b"1000000"]);
    assert!(client.receive()[0][..] == tree["large/two"][5..1_000_005]);
    assert_eq!(reads.load(Ordering::Relaxed), 0, "the plain dialect hashes nothing");
    get_all(&server, folder.path());
    assert!(read_tree(folder.path()) == tree);
}

/// A disk that can't be read.
struct BadDisk;

impl Storage for BadDisk {
    fn probe(&self, _: &OpenFile, _: u64, _: u64) -> Residency {
        Residency::Uncached
    }

    fn prefetch(&self, _: &OpenFile, _: u64, _: u64) -> Result<(), Failure> {
        Err(Failure::io(&std::io::Error::other("the disk is broken")))
    }
}

#[test]
fn pieces_whose_local_files_cannot_be_read_come_from_the_source() {
    let (memory, tree) = filled();
    memory.keep_in_files();
    let server = TestServer::start_as(ServerOptions::from_source(Arc::new(memory)), Box::new(BadDisk));
    let folder = TempDir::new().unwrap();
    get_all(&server, folder.path());
    assert!(read_tree(folder.path()) == tree);
}

#[test]
fn the_plain_dialect_reads_another_source() {
    let (memory, tree) = filled();
    let server = start(&memory);
    let mut client = server.client();
    client.send(&[b"fetch", b"large/two", b"5", b"1000000"]);
    assert!(client.receive()[0][..] == tree["large/two"][5..1_000_005]);
    client.send(&[b"fetch", b"missing"]);
    assert_eq!(&client.receive()[0][..], b"error");
}

#[test]
fn a_source_that_is_busy_is_asked_again_and_other_errors_are_of_one_file() {
    let (memory, mut tree) = filled();
    let (server, folder) = (start(&memory), TempDir::new().unwrap());
    let (mut busy, mut reads) = (2, 0);
    memory.fail(move |call, path| match call {
        Call::Open if path.as_os_str() == "top" => {
            Some(RootError::Io(std::io::Error::other("the credentials have expired")))
        }
        Call::Open | Call::List if busy > 0 => {
            busy -= 1;
            Some(RootError::Busy("503 slow down".to_owned()))
        }
        // In the middle of a file.
        Call::Read(_) if path.as_os_str() == "large/two" => {
            reads += 1;
            (reads == 50).then(|| RootError::Busy("503 slow down".to_owned()))
        }
        _ => None,
    });
    let summary = get_all(&server, folder.path());
    let [failure] = &summary.failures[..] else { panic!("{:?}", summary.failures) };
    assert!(failure.reason.contains("the credentials have expired"), "{failure:?}");
    tree.remove("top");
    assert!(read_tree(folder.path()) == tree);
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_fetched_again() {
    let (memory, _) = filled();
    let (server, folder) = (start(&memory), TempDir::new().unwrap());
    let (store, reads) = (memory.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&reads);
    memory.fail(move |call, path| {
        let is_read = matches!(call, Call::Read(_)) && path.as_os_str() == "large/two";
        // In the middle of it.
        if is_read && count.fetch_add(1, Ordering::Relaxed) == 100 {
            store.put("large/two", vec![9; 2 << 20]);
        }
        None
    });
    let summary = get_all(&server, folder.path());
    assert!(summary.failures.is_empty(), "{:?}", summary.failures);
    assert!(reads.load(Ordering::Relaxed) > 200, "it was replaced, and read again");
    assert!(read_tree(folder.path())["large/two"] == vec![9; 2 << 20]);
}

/// A store that keeps what was opened in files of this machine, as a cache does.
#[derive(Debug)]
struct Cached {
    store: Memory,
    folder: TempDir,
}

impl Source for Cached {
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        self.store.stat(path)
    }

    fn open(&self, path: &RelPath) -> Result<Opened, RootError> {
        let Opened { attributes, content } = self.store.open(path)?;
        let Content::Pieces(pieces) = content else { panic!("it has no descriptors") };
        let mut bytes = vec![0; attributes.size as usize];
        let mut at = 0;
        while at < bytes.len() {
            at += pieces.read_at(&mut bytes[at..], at as u64)?;
        }
        let name = self.folder.path().join(Digest::of(path.as_bytes()).to_string());
        std::fs::write(&name, bytes).map_err(RootError::Io)?;
        let file = std::fs::File::open(name).map_err(RootError::Io)?;
        Ok(Opened { attributes, content: Content::File(file) })
    }

    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError> {
        self.store.open_dir(path)
    }
}

#[test]
fn another_source_may_give_descriptors() {
    let (store, tree) = filled();
    let (source, folder) = (Cached { store, folder: TempDir::new().unwrap() }, TempDir::new().unwrap());
    let server = TestServer::start_as(ServerOptions::from_source(Arc::new(source)), Box::new(PageCache));
    assert!(get_all(&server, folder.path()).failures.is_empty());
    assert!(read_tree(folder.path()) == tree);
}

/// A store with keys that are no paths.
#[derive(Debug)]
struct Hostile(Memory);

#[derive(Debug)]
struct HostilePages(Option<Vec<Listed>>);

impl Source for Hostile {
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        self.0.stat(path)
    }

    fn open(&self, path: &RelPath) -> Result<Opened, RootError> {
        self.0.open(path)
    }

    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError> {
        let attributes = self.0.stat(&"top".parse().unwrap())?;
        let names = ["", "..", "../top", "/etc", "a/b", "nul\0", ".tow-x", "top"];
        let listed = |name: &str| Listed { name: name.as_bytes().into(), attributes, unreadable: None };
        let names = if path.is_root() { names.map(listed).to_vec() } else { Vec::new() };
        Ok(OpenedDir::Pages(Box::new(HostilePages(Some(names)))))
    }
}

impl Pages for HostilePages {
    fn next(&mut self) -> Result<Option<Vec<Listed>>, RootError> {
        Ok(self.0.take())
    }
}

#[test]
fn names_that_are_no_paths_are_reported_and_the_others_fetched() {
    let (store, folder) = (filled().0, TempDir::new().unwrap());
    let server = TestServer::start_as(ServerOptions::from_source(Arc::new(Hostile(store))), Box::new(PageCache));
    let summary = get_all(&server, folder.path());
    assert_eq!(read_tree(folder.path()).into_keys().collect::<Vec<_>>(), ["top"]);
    let left_out = summary.failures.iter().filter(|failure| failure.reason.contains("is left out"));
    assert_eq!(left_out.count(), 6, "{:?}", summary.failures);
}

#[test]
fn rules_hold_for_another_source() {
    let (memory, _) = filled();
    let rules = "allow anyone to read large/**\nallow anyone to list top\n";
    let permissions = Rules::parse(rules).unwrap().permissions(None, Origin::Local);
    let root = ClientRoot::new(Arc::new(memory), permissions);
    assert!(root.open_file(&"large/two".parse().unwrap()).is_ok() && root.stat(&"top".parse().unwrap()).is_ok());
    assert!(matches!(root.open_file(&"top".parse().unwrap()), Err(RootError::NotAllowed)));
    for hidden in ["small/01", "small", "nothing", "large/.tow-x"] {
        let path = hidden.parse().unwrap();
        assert!(matches!(root.open_file(&path), Err(RootError::NotFound)), "{hidden}");
        assert!(matches!(root.stat(&path), Err(RootError::NotFound)), "{hidden}");
        assert!(matches!(root.open_dir(&path), Err(RootError::NotFound)), "{hidden}");
    }
}

#[test]
fn another_source_takes_no_pushes_and_is_no_relay() {
    let (memory, _) = filled();
    let push = |options: &mut ServerOptions| options.push = Some(PushOptions::new(Default::default()));
    let relay = |options: &mut ServerOptions| options.is_relay = true;
    for change in [push, relay] as [fn(&mut ServerOptions); 2] {
        let mut options = ServerOptions::from_source(Arc::new(memory.clone()));
        change(&mut options);
        assert!(matches!(Server::bind(options), Err(ServeError::NotLocal(_))));
    }
}

#[test]
fn another_source_is_followed_by_listing_it_again() {
    let (memory, mut tree) = filled();
    let mut options = ServerOptions::from_source(Arc::new(memory.clone()));
    options.watch = Some(WatchOptions { rescan: Duration::from_millis(20), ..WatchOptions::default() });
    let server = TestServer::start_as(options, Box::new(PageCache));
    let folder = TempDir::new().unwrap();
    let mut options = FollowOptions::new(Wanted::Path(Default::default()), folder.path().join("copy"));
    options.mirror = true;
    let client = FileClient::new(ConnectOptions::new(server.endpoint.clone()));
    let mut events = client.follow(options).unwrap().map(Result::unwrap);
    let mut wait_for = |tree: &BTreeMap<String, Vec<u8>>| {
        let copy = || {
            let mut copy = read_tree(&folder.path().join("copy"));
            // What the follower remembers.
            copy.retain(|path, _| !path.starts_with(".tow"));
            copy
        };
        while copy() != *tree {
            assert!(events.any(|event| matches!(event, FollowEvent::UpToDate { .. })), "the follow ended");
        }
    };
    std::fs::create_dir_all(folder.path().join("copy")).unwrap();
    wait_for(&tree);
    // A listing that fails shows nothing that is gone.
    let mut failures = 0;
    memory.fail(move |call, path| {
        failures += usize::from(call == Call::List);
        let fails = call == Call::List && path.as_os_str() == "small" && failures < 20;
        fails.then(|| RootError::Io(std::io::Error::other("not now")))
    });
    memory.put("top", b"another".to_vec());
    tree.insert("top".to_owned(), b"another".to_vec());
    memory.put("new/file", bytes(70_000));
    tree.insert("new/file".to_owned(), bytes(70_000));
    wait_for(&tree);
    memory.remove("large/two");
    memory.remove("large/deep/compressible");
    tree.retain(|path, _| !path.starts_with("large/"));
    memory.put("large", b"a file now".to_vec());
    tree.insert("large".to_owned(), b"a file now".to_vec());
    wait_for(&tree);
}

/// A server that looks at its source all the time, and isn't run.
fn watched(source: Arc<dyn Source>, watch: WatchOptions) -> Server {
    let mut options = ServerOptions::from_source(source);
    options.watch = Some(WatchOptions { rescan: Duration::from_millis(20), ..watch });
    Server::bind_with(options.listen("tcp://127.0.0.1:0".parse().unwrap()), Box::new(PageCache)).unwrap()
}

fn wait_until(server: &Server, what: impl Fn(CatalogueStats) -> bool) {
    let catalogue = server.catalogue().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while !what(catalogue.stats()) {
        assert!(Instant::now() < deadline, "{:?}", catalogue.stats());
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_cannot_be_read_does_not_keep_the_others_from_being_complete() {
    let memory = filled().0;
    let (is_denied, looks) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (denied, count) = (Arc::clone(&is_denied), Arc::clone(&looks));
    memory.fail(move |call, path| {
        count.fetch_add(usize::from(call == Call::List && path.is_root()), Ordering::Relaxed);
        let is_refused = match call {
            Call::Open => path.as_os_str() == "small/07",
            // After it was opened.
            Call::Read(_) => path.as_os_str() == "large/two",
            _ => false,
        };
        (is_refused && denied.load(Ordering::Relaxed)).then_some(RootError::Denied)
    });
    let server = watched(Arc::new(memory), WatchOptions::default());
    let unread = |stats: CatalogueStats| stats.watch.unwrap_or_default().unread_paths;
    wait_until(&server, |stats| stats.is_complete && unread(stats) == ["large/two", "small/07"]);
    let paths = server.catalogue().unwrap().stats().paths;
    // They stay listed while they are tried again.
    let before = looks.load(Ordering::Relaxed);
    wait_until(&server, |stats| {
        assert_eq!((stats.paths, unread(stats)), (paths, vec!["large/two".to_owned(), "small/07".to_owned()]));
        looks.load(Ordering::Relaxed) > before + 3
    });
    is_denied.store(false, Ordering::Relaxed);
    wait_until(&server, |stats| stats.paths == paths + 2 && unread(stats).is_empty());
}

#[test]
fn a_name_that_cannot_be_in_a_path_makes_its_directory_unread() {
    let server = watched(Arc::new(Hostile(filled().0)), WatchOptions::default());
    wait_until(&server, |stats| {
        stats.is_complete && stats.paths == 1 && stats.watch.is_some_and(|watch| watch.unread_paths == ["."])
    });
}

#[test]
fn what_is_gone_all_at_once_is_held() {
    let (memory, tree) = filled();
    let watch = WatchOptions::default();
    let release = Arc::clone(&watch.release_deletions);
    let server = watched(Arc::new(memory.clone()), watch);
    wait_until(&server, |stats| stats.is_complete);
    let paths = server.catalogue().unwrap().stats().paths;
    assert!(paths > tree.len());
    tree.keys().for_each(|path| memory.remove(path));
    wait_until(&server, |stats| stats.watch.is_some_and(|watch| watch.held.is_some()));
    assert_eq!(server.catalogue().unwrap().stats().paths, paths);
    release.store(true, Ordering::Release);
    wait_until(&server, |stats| stats.paths == 0);
}
