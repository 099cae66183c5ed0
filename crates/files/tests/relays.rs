//! Followers, relays, and who has what: servers and followers in one process.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use towpath_files::client::follow::{FollowEnd, FollowEvent, FollowOptions};
use towpath_files::client::{CancelToken, ConnectOptions, Error, FileClient, Source};
use towpath_files::path::RelPath;
use towpath_files::protocol::control::{HolderName, HoldersWanted};
use towpath_files::relay::Relay;
use towpath_files::server::{Handle, Server, ServerOptions, WatchOptions};
use towpath_sockets::{Endpoint, Wanted};

/// Long enough for any machine; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server on a thread of its own.
struct Running {
    endpoint: Endpoint,
    handle: Handle,
    relay: Option<Relay>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(options: ServerOptions) -> Running {
        let server = Server::bind(options.listen("tcp://127.0.0.1:0".parse().unwrap())).unwrap();
        let (endpoint, handle, relay) = (server.endpoints()[0].clone(), server.handle(), server.relay());
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Running { endpoint, handle, relay, thread }
    }

    fn origin(root: &Path) -> Running {
        let mut options = ServerOptions::new(root);
        options.watch = Some(WatchOptions { settle: Duration::from_millis(200), ..WatchOptions::default() });
        Running::start(options)
    }

    fn relay(root: &Path) -> Running {
        let mut options = ServerOptions::new(root);
        options.is_relay = true;
        Running::start(options)
    }

    fn holding(&self, seq: u64) -> u32 {
        let client = FileClient::new(ConnectOptions::new(self.endpoint.clone()));
        let holding = client.holding(HoldersWanted::Seq(seq), true).unwrap();
        assert_eq!(holding.holders.iter().filter(|known| known.holds).count(), holding.holding as usize);
        holding.holding
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// A follower on a thread of its own.
struct Follower {
    destination: PathBuf,
    events: Receiver<FollowEvent>,
    cancel: CancelToken,
    thread: Option<JoinHandle<Result<FollowEnd, Error>>>,
}

impl Follower {
    fn start(of: &Running, destination: &Path, through: Option<&Running>) -> Follower {
        let source = Source::Path(RelPath::root());
        let mut options = FollowOptions::new(source, destination.to_owned());
        options.mirror = true;
        options.name = HolderName::near(&destination.file_name().unwrap().to_string_lossy());
        options.relay = through.and_then(|server| server.relay.clone());
        let (sender, events) = channel();
        let client = FileClient::new(ConnectOptions::new(of.endpoint.clone()));
        let cancel = client.options().cancel.clone();
        let thread = std::thread::spawn(move || {
            let on_event = &mut |event| {
                // Nobody may look at the events any more.
                let _ = sender.send(event);
                Ok(())
            };
            client.follow_with(&options, on_event)
        });
        Follower { destination: destination.to_owned(), events, cancel, thread: Some(thread) }
    }

    /// Waits until it has what there is, and returns the number.
    fn wait_same(&self, wanted: &BTreeMap<PathBuf, Vec<u8>>) -> u64 {
        let until = Instant::now() + DEADLINE;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(FollowEvent::UpToDate { seq }) if contents(&self.destination) == *wanted => return seq,
                Ok(_) => {}
                Err(_) => panic!("{} isn't the same", self.destination.display()),
            }
        }
    }

    fn outcome(&mut self) -> Result<FollowEnd, Error> {
        let thread = self.thread.take().unwrap();
        let until = Instant::now() + DEADLINE;
        while !thread.is_finished() {
            assert!(Instant::now() < until, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        thread.join().unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().unwrap().as_encoded_bytes().starts_with(b".tow-") {
                continue;
            }
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap_or_default());
            }
        }
    }
    found
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn twenty_behind_two_relays_cost_the_origin_two_and_it_knows_of_all() {
    const RELAYS: usize = 2;
    const EACH: usize = 10;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("dir")).unwrap();
    let mut bytes = 0;
    for index in 0..40_usize {
        let content = vec![index as u8; 1000 * index];
        fs::write(source.join(format!("dir/{index}")), &content).unwrap();
        bytes += content.len() as u64;
    }
    fs::write(source.join("large"), vec![9; 3 << 20]).unwrap();
    bytes += 3 << 20;
    let origin = Running::origin(&source);
    let copy = |name: &str| folder.path().join(name);
    let relays: Vec<_> = (0..RELAYS)
        .map(|index| {
            let root = copy(&format!("relay-{index}"));
            fs::create_dir(&root).unwrap();
            let server = Running::relay(&root);
            (Follower::start(&origin, &root, Some(&server)), server)
        })
        .collect();
    let mut followers: Vec<_> = (0..RELAYS * EACH)
        .map(|index| Follower::start(&relays[index % RELAYS].1, &copy(&format!("copy-{index}")), None))
        .collect();
    let wanted = contents(&source);
    followers.iter().for_each(|follower| _ = follower.wait_same(&wanted));

    // Deleted, renamed, changed and new.
    fs::remove_file(source.join("dir/3")).unwrap();
    fs::rename(source.join("large"), source.join("larger")).unwrap();
    fs::write(source.join("dir/4"), b"changed").unwrap();
    fs::write(source.join("new"), b"new").unwrap();
    let wanted = contents(&source);
    // Some may be the same before the last change, which changes nothing that they have.
    let seq = followers.iter().map(|follower| follower.wait_same(&wanted)).max().unwrap();

    let stats = origin.handle.snapshot(Wanted::Peers(0)).unwrap();
    let sent: u64 = stats.peers.entries.iter().map(|(_, peer)| peer.info.bytes_out).sum();
    assert_eq!(stats.peers.entries.len(), RELAYS);
    let (least, most) = (bytes * RELAYS as u64, bytes * RELAYS as u64 + (200 << 10));
    assert!((least..=most).contains(&sent), "{sent} of {least} to {most}");
    wait_until("the origin knows of all", || origin.holding(seq) as usize == RELAYS * (EACH + 1));
    assert_eq!(origin.holding(seq + 1), 0);

    // One that moves to the origin goes on there.
    let moved = followers.pop().unwrap();
    let destination = moved.destination.clone();
    drop(moved);
    fs::write(source.join("later"), b"later").unwrap();
    let wanted = contents(&source);
    let moved = Follower::start(&origin, &destination, None);
    let until = Instant::now() + DEADLINE;
    let mut put = Vec::new();
    while contents(&destination) != wanted || put.is_empty() {
        match moved.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(FollowEvent::Put { path, .. }) => put.push(path.to_string()),
            Ok(_) => {}
            Err(error) => panic!("it isn't the same: {error}"),
        }
    }
    assert_eq!(put, ["later"]);
}

#[test]
fn relays_in_a_loop_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let roots = ["a", "b", "c"].map(|name| folder.path().join(name));
    roots.iter().for_each(|root| fs::create_dir(root).unwrap());
    let servers: Vec<_> = roots.iter().map(|root| Running::relay(root)).collect();
    let mut followers: Vec<_> =
        (0..3).map(|index| Follower::start(&servers[(index + 1) % 3], &roots[index], Some(&servers[index]))).collect();
    // One of them notices, and the row is a row again.
    let ended = |follower: &Follower| follower.thread.as_ref().is_some_and(JoinHandle::is_finished);
    wait_until("a loop is noticed", || followers.iter().any(ended));
    let at = followers.iter().position(ended).unwrap();
    let error = followers[at].outcome().unwrap_err().to_string();
    assert!(error.contains("a loop"), "{error}");
    // Of itself at once.
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    let server = Running::relay(&own);
    let error = Follower::start(&server, &own, Some(&server)).outcome().unwrap_err().to_string();
    assert!(error.contains("a loop"), "{error}");
}
