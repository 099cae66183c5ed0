//! Random changes of a bucket that is served and followed by processes that are killed, stopped and cut off at random, while its store fails at
//! random. A few seconds by default; TOWPATH_TORTURE_MINUTES for longer.
//!
//! Holds at all times: no file of a copy has content that its object never had. Holds each time that the bucket rests: all copies become as it is.

use super::server::{Fault, Request, Store};
use super::support::process::{Process, Server, run, tow};
use super::support::proxy::Proxy;
use super::support::random::Random;
use super::support::wait_until;
use super::{PIECE, serve};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long changes and faults go on before the bucket rests.
const ROUND: Duration = Duration::from_secs(4);
/// Objects that there may be.
const NAMES: u64 = 60;

/// Contents of an object.
#[derive(Default)]
struct Had {
    now: Option<Vec<u8>>,
    /// Digests of all that it had so far.
    ever: BTreeSet<[u8; 32]>,
}

struct Torture {
    folder: TempDir,
    random: Random,
    store: Arc<Store>,
    /// Of a thousand requests to the store, how many fail.
    failing: Arc<AtomicU64>,
    objects: BTreeMap<String, Had>,
    server: Server,
    proxies: Vec<Proxy>,
    followers: Vec<Process>,
    /// Those that were stopped.
    stopped: Vec<rustix::process::Pid>,
}

fn start_server(folder: &Path, store: &Store) -> Server {
    let state = folder.join("state");
    let arguments = ["--watch", "--rescan", "1s", "--max-delete", "1000000", "--state", state.to_str().unwrap()];
    Server::from_command(&mut serve(store, Some(&folder.join("cache")), &arguments))
}

/// A fault of a store that has trouble.
fn fault(random: &mut Random, request: &Request) -> Fault {
    match random.below(6) {
        0 => Fault::Status(503, "SlowDown"),
        1 => Fault::Status(500, "InternalError"),
        2 => Fault::Status(403, "AccessDenied"),
        3 => Fault::Status(400, "ExpiredToken"),
        4 if request.query.contains_key("list-type") => Fault::EmptyPage,
        _ => Fault::Cut(random.below(100_000) as usize),
    }
}

impl Torture {
    fn new(seed: u64) -> Torture {
        let folder = TempDir::new().unwrap();
        let (store, failing) = (Store::start(), Arc::new(AtomicU64::new(0)));
        store.put("tree/first", *b"x");
        let server = start_server(folder.path(), &store);
        let (mut random, of_faults) = (Random::new(seed ^ 0xfa_0175), Arc::clone(&failing));
        store.fail(move |request| {
            (random.below(1000) < of_faults.load(Ordering::Relaxed)).then(|| fault(&mut random, request))
        });
        let objects = BTreeMap::from([("first".to_owned(), Had::default())]);
        let proxies: Vec<Proxy> = (0..2).map(|_| Proxy::start(server.port())).collect();
        let mut torture = Torture {
            folder,
            random: Random::new(seed),
            store,
            failing,
            objects,
            server,
            proxies,
            followers: Vec::new(),
            stopped: Vec::new(),
        };
        torture.put("first", b"x".to_vec());
        torture.followers = (0..2).map(|index| torture.follow(index)).collect();
        torture
    }

    fn copy(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("copy-{index}"))
    }

    fn follow(&self, index: usize) -> Process {
        let mut command = tow(["follow", "--mirror", "--max-delete", "1000000", "--connect-timeout", "7days"]);
        command.args(["--name", &format!("copy-{index}"), &self.proxies[index].url("")]).arg(self.copy(index));
        Process::start(&mut command)
    }

    fn put(&mut self, path: &str, content: Vec<u8>) {
        self.store.put(&format!("tree/{path}"), content.clone());
        let had = self.objects.entry(path.to_owned()).or_default();
        had.ever.insert(*blake3::hash(&content).as_bytes());
        had.now = Some(content);
    }

    /// A change of one object.
    fn change(&mut self) {
        let number = self.random.below(NAMES);
        let path = match number % 4 {
            0 => format!("a{number}"),
            1 => format!("a{number}.d/x"),
            2 => format!("dir/\u{e4} {number}+%"),
            _ => format!("dir/below/{number}"),
        };
        match self.random.below(10) {
            0..3 => {
                self.store.remove(&format!("tree/{path}"));
                self.objects.entry(path).or_default().now = None;
            }
            kind => {
                let size = match kind {
                    3 => PIECE as u64 + self.random.below(PIECE as u64),
                    4 => 0,
                    // As large as it is, so that only its version shows that it is another one.
                    5 => self.objects.get(&path).and_then(|had| had.now.as_ref()).map_or(7, |now| now.len() as u64),
                    _ => self.random.below(50_000),
                };
                let content = self.random.bytes(size as usize);
                self.put(&path, content);
            }
        }
    }

    fn trouble(&mut self) {
        let index = self.random.below(2) as usize;
        match self.random.below(9) {
            0 | 1 => {
                self.resume();
                // A server doesn't start while it can't list the bucket.
                self.failing.store(0, Ordering::Relaxed);
                let fresh = start_server_after(&mut self.server, self.folder.path(), &self.store);
                self.proxies.iter().for_each(|proxy| proxy.lead_to(fresh.port()));
                self.server = fresh;
            }
            2 | 3 => {
                self.resume();
                self.followers[index].signal(Signal::KILL);
                wait_until("it has ended", || self.followers[index].ended());
                self.followers[index] = self.follow(index);
            }
            4 => {
                let pid = if index == 0 { self.followers[0].pid() } else { self.server.pid() };
                rustix::process::kill_process(pid, Signal::STOP).unwrap();
                self.stopped.push(pid);
            }
            5 => self.resume(),
            6 => self.proxies[index].cut_after([self.random.below(2 << 20)]),
            7 => self.failing.store(self.random.below(400), Ordering::Relaxed),
            _ => self.failing.store(0, Ordering::Relaxed),
        }
    }

    fn resume(&mut self) {
        for pid in self.stopped.drain(..) {
            rustix::process::kill_process(pid, Signal::CONT).unwrap();
        }
    }

    /// Checks that the files of a copy have content that their objects had, and returns whether they are those that there are now.
    fn is_same(&self, copy: &Path) -> bool {
        let mut found = 0;
        for (path, had) in &self.objects {
            let Ok(content) = std::fs::read(copy.join(path)) else { continue };
            assert!(had.ever.contains(blake3::hash(&content).as_bytes()), "{path} has content that it never had");
            found += usize::from(had.now.as_ref() == Some(&content));
        }
        found == self.objects.values().filter(|had| had.now.is_some()).count() && found == files(copy)
    }

    fn round(&mut self) {
        let end = Instant::now() + ROUND;
        while Instant::now() < end {
            (0..self.random.below(6)).for_each(|_| self.change());
            if self.random.below(4) == 0 {
                self.trouble();
            }
            let index = self.random.below(2) as usize;
            self.is_same(&self.copy(index));
            // The moments are random on purpose.
            std::thread::sleep(Duration::from_millis(self.random.below(100)));
        }
        self.failing.store(0, Ordering::Relaxed);
        self.resume();
        for index in 0..2 {
            let log = || format!("{}\n{}", self.server.log(), self.followers[index].log());
            wait_until(&format!("copy {index} is as the bucket; {}", log()), || self.is_same(&self.copy(index)));
            assert!(!log().contains("panicked"), "{}", log());
        }
        let once = self.folder.path().join("once");
        wait_until("a new one has all", || {
            // What changed last may not have been listed yet.
            let outcome = run(tow(["follow", "--once", "--mirror", &self.server.url("")]).arg(&once));
            assert!(outcome.status.code() == Some(0), "{}", outcome.stderr);
            self.is_same(&once)
        });
    }
}

/// Kills a server, and starts another one.
fn start_server_after(server: &mut Server, folder: &Path, store: &Store) -> Server {
    server.signal(Signal::KILL);
    start_server(folder, store)
}

/// Files below a directory, but for those in progress.
fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files(&entry.path()),
        _ => usize::from(!entry.file_name().to_string_lossy().starts_with('.')),
    };
    entries.map(count).sum()
}

#[test]
fn copies_of_a_bucket_stay_true_under_random_changes_and_faults() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().unwrap());
    let time = Duration::from_secs_f64(number("TOWPATH_TORTURE_MINUTES").map_or(8.0, |minutes| minutes * 60.0));
    let clock = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.subsec_nanos() % 1_000_000);
    let seed = number("TOWPATH_SEED").map_or(u64::from(clock), |seed| seed as u64);
    println!("torture: TOWPATH_SEED={seed}");
    let mut torture = Torture::new(seed);
    let begin = Instant::now();
    while begin.elapsed() < time {
        torture.round();
    }
}
