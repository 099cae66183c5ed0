//! The real session and the real jobs on a store whose answers fail, in any order that a seed decides: without threads, sockets and time.
//!
//! Each run has some seeds that are always the same. TOWPATH_SEEDS=N adds N random ones, and prints them; TOWPATH_SEED=N runs one again.

use super::super::*;
use super::READ_BYTES;
use crate::digest::{Digest, DigestCache, merge_leaves};
use crate::protocol::ErrorCode;
use crate::protocol::control::{
    Compression, DigestWish, EntryKind, ErrorReply, FollowLinks, LeavesRequest, ListEntry, ListRequest, ListTarget,
    Range, Unless,
};
use crate::root::RootError;
use crate::server::jobs::{Done, Job, Pool, RequestState, Requester};
use crate::server::open_file::OpenFile;
use crate::server::quota::Quotas;
use crate::server::quota::small_files::SmallFiles;
use crate::server::session::{Action, Outgoing, Part, Session, Ticket};
use crate::server::snapshot::{RootSnapshot, Served};
use crate::server::source::memory::Memory;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use towpath_blocking::JobStep;
use towpath_rules::Permissions;
use towpath_sockets::{Principal, Waker};

/// Numbers that follow from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % bound.max(1)
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// Requests to the store and refused ones, and how often it refuses: one in this many; 0: never.
#[derive(Default)]
struct Faults {
    one_in: usize,
    chance: Option<Chance>,
    made: HashSet<(String, ErrorCode)>,
}

struct Fetching {
    request: FetchRequest,
    fetched: Fetched,
    is_over: bool,
    /// Changes of the store and of its faults when it began.
    began: usize,
}

struct Listing {
    request: ListRequest,
    entries: Vec<ListEntry>,
    failed: Option<ErrorReply>,
    is_over: bool,
    /// Changes when it began, and the paths that there were.
    began: usize,
    there: BTreeSet<String>,
    /// There was no change until its end.
    is_undisturbed: bool,
}

/// A session on the store, without threads and sockets.
struct World {
    chance: Chance,
    memory: Memory,
    faults: Arc<Mutex<Faults>>,
    /// Each content that a path ever had, by its time of modification.
    history: HashMap<(String, u64), Arc<[u8]>>,
    now: BTreeMap<String, u64>,
    /// Paths that were replaced or removed, in order.
    changes: Vec<String>,
    session: Session<OpenFile>,
    quotas: Quotas,
    pool: Pool,
    done: Receiver<Done>,
    states: HashMap<Ticket, Arc<RequestState>>,
    fetches: BTreeMap<u32, Fetching>,
    listings: BTreeMap<u32, Listing>,
    leaves: BTreeMap<u32, (String, Digest)>,
    leaves_found: usize,
    cancelled: BTreeSet<u32>,
    next_id: u32,
}

const CLIENT: u64 = 1;
const NAMES: [&str; 12] = [
    "a",
    "b.txt",
    "dir/a",
    "dir/b.txt",
    "dir/c.txt",
    "dir/deep/a",
    "dir/deep/b.txt",
    "dir2/a",
    "dir2/b",
    "dir2/c",
    "dir2/d",
    "z",
];
const SIZES: [usize; 8] = [0, 1, 4000, 4096, 5000, READ_BYTES, 70_000, (1 << 20) + 5];

impl World {
    fn new(seed: u64, waker: &Waker) -> World {
        let mut chance = Chance(seed);
        let memory = Memory::new(1 + chance.below(4), READ_BYTES, Duration::ZERO);
        let faults = Arc::new(Mutex::new(Faults { chance: Some(Chance(!seed)), ..Faults::default() }));
        let of_store = Arc::clone(&faults);
        memory.fail(move |_, path| {
            let mut faults = of_store.lock().unwrap();
            let one_in = faults.one_in;
            let number = faults.chance.as_mut().filter(|_| one_in > 0)?.below(2 * one_in);
            let (code, error) = match number {
                0 => (ErrorCode::Busy, RootError::Busy("503 slow down".to_owned())),
                1 => (ErrorCode::Io, RootError::Io(std::io::Error::other("the credentials have expired"))),
                _ => return None,
            };
            faults.made.insert((path.to_string(), code));
            Some(error)
        });
        let served = Served::Source(Arc::new(memory.clone()));
        let storage = Box::new(PageCache);
        let (mut pool, done) = Pool::new(
            served,
            DigestCache::new(1 << 20),
            SmallFiles::new(if chance.one_in(4) { 0 } else { 8 << 20 }),
            storage,
            (None, None),
            waker.clone(),
        )
        .unwrap();
        pool.held = Some(Mutex::default());
        let quotas = Quotas::new([1, 8][chance.below(2)]).client();
        let mut world = World {
            chance,
            memory,
            faults,
            history: HashMap::new(),
            now: BTreeMap::new(),
            changes: Vec::new(),
            session: Session::new(Principal::Anonymous, quotas.clone()),
            quotas,
            pool,
            done,
            states: HashMap::new(),
            fetches: BTreeMap::new(),
            listings: BTreeMap::new(),
            leaves: BTreeMap::new(),
            leaves_found: 0,
            cancelled: BTreeSet::new(),
            next_id: 1,
        };
        NAMES.iter().for_each(|name| world.put(name));
        world.changes.clear();
        world
    }

    fn put(&mut self, path: &str) {
        let size = SIZES[self.chance.below(SIZES.len())];
        let mut content = bytes(size);
        let seed = self.chance.below(256) as u8;
        content.iter_mut().for_each(|byte| *byte ^= seed);
        if self.chance.one_in(3) {
            content.fill(seed);
        }
        let content: Arc<[u8]> = content.into();
        let version = self.memory.put(path, Arc::clone(&content));
        self.history.insert((path.to_owned(), version), content);
        self.now.insert(path.to_owned(), version);
        self.changes.push(path.to_owned());
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn ask(&mut self, request: Request) {
        self.session.request(Vec::new(), Ok(request));
    }

    fn name(&mut self) -> String {
        if self.chance.one_in(20) { "missing".to_owned() } else { NAMES[self.chance.below(NAMES.len())].to_owned() }
    }

    fn fetch(&mut self) {
        let id = self.id();
        let names: Vec<String> = (0..1 + self.chance.below(6)).map(|_| self.name()).collect();
        let mut files = files(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for (file, name) in files.iter_mut().zip(&names) {
            if self.chance.one_in(4) {
                let (offset, length) = (self.chance.below(9000) as u64, 1 + self.chance.below(30_000) as u64);
                file.ranges = Some(vec![Range { offset, length }]);
            } else if let (0, Some(version)) = (self.chance.below(6), self.now.get(name)) {
                let content = &self.history[&(name.clone(), *version)];
                file.unless = Some(Unless::Digest { digest: Digest::of(content) });
            }
        }
        let request = FetchRequest {
            id,
            chunk_bytes: 4096 << self.chance.below(6),
            compress: self.chance.one_in(3).then_some(Compression::Zstd),
            digest: [DigestWish::Now, DigestWish::Later, DigestWish::None][self.chance.below(3)],
            credit_bytes: self.chance.below(100_000) as u64,
            files,
        };
        let began = self.changes.len();
        let fetching = Fetching { request: request.clone(), fetched: Fetched::default(), is_over: false, began };
        self.fetches.insert(id, fetching);
        self.ask(Request::Fetch(request));
    }

    fn list(&mut self) {
        let id = self.id();
        let target = match self.chance.below(5) {
            0 => ListTarget::Path(WirePath::from(b"dir".to_vec())),
            1 => ListTarget::Path(WirePath::from(b"a".to_vec())),
            2 => ListTarget::Glob { glob: "**/*.txt".into() },
            3 => ListTarget::Glob { glob: "d*/[ab]*".into() },
            _ => ListTarget::Path(WirePath::default()),
        };
        let (digest, follow) = (self.chance.one_in(3), FollowLinks::None);
        let request = ListRequest { id, target, recursive: !self.chance.one_in(4), digest, follow };
        let listing = Listing {
            request: request.clone(),
            entries: Vec::new(),
            failed: None,
            is_over: false,
            began: self.changes.len(),
            there: self.now.keys().cloned().collect(),
            is_undisturbed: false,
        };
        self.listings.insert(id, listing);
        self.ask(Request::List(request));
    }

    fn ask_leaves(&mut self) {
        let id = self.id();
        let name = NAMES[self.chance.below(NAMES.len())].to_owned();
        let Some(version) = self.now.get(&name) else { return };
        let digest = Digest::of(&self.history[&(name.clone(), *version)]);
        let path = WirePath::from(name.clone().into_bytes());
        self.leaves.insert(id, (name, digest));
        self.ask(Request::Leaves(LeavesRequest { id, path, digest, from: 0, count: 100 }));
    }

    /// A step of anything.
    fn step(&mut self) {
        match self.chance.below(40) {
            0 => self.fetch(),
            1 if self.chance.one_in(2) => self.list(),
            2 if self.chance.one_in(3) => self.ask_leaves(),
            3 if self.chance.one_in(3) => {
                let name = NAMES[self.chance.below(NAMES.len())];
                self.put(name);
            }
            4 if self.chance.one_in(10) => {
                let name = NAMES[self.chance.below(NAMES.len())];
                self.memory.remove(name);
                self.now.remove(name);
                self.changes.push(name.to_owned());
            }
            5 => self.faults.lock().unwrap().one_in = [0, 0, 0, 30, 10][self.chance.below(5)],
            6 if self.chance.one_in(8) => {
                let id = self.chance.below(self.next_id as usize + 1) as u32;
                self.cancelled.insert(id);
                self.ask(Request::Cancel { id });
            }
            7..10 => {
                let bytes = 1 + self.chance.below(300_000) as u64;
                self.ask(Request::Credit { bytes, slow: None });
            }
            _ => {}
        }
        self.turn();
        self.run_job();
    }

    /// Runs a step of one of the jobs; false if there is none.
    fn run_job(&mut self) -> bool {
        let taken = {
            let mut held = self.pool.held.as_ref().unwrap().lock().unwrap();
            let at = self.chance.below(held.len());
            (at < held.len()).then(|| held.swap_remove(at))
        };
        let Some(mut job) = taken else { return false };
        if matches!(job(), JobStep::Continue) {
            self.pool.held.as_ref().unwrap().lock().unwrap().push(job);
        }
        while let Ok(done) = self.done.try_recv() {
            let session = &mut self.session;
            self.pool.finish(done, |requester, answer| session.finish(requester.ticket, answer));
        }
        self.pool.start_copies();
        true
    }

    /// As the driver does.
    fn turn(&mut self) {
        loop {
            self.session.still_queued(0);
            while let Some(action) = self.session.next_action() {
                match action {
                    Action::Start(ticket, job) => self.start(ticket, job),
                    Action::Release { ticket, take_back } => {
                        self.states.remove(&ticket).inspect(|state| state.cancel());
                        if take_back {
                            self.pool.cancel(CLIENT, Some(ticket));
                            self.session.taken_back(ticket, 0);
                        }
                    }
                    _ => {}
                }
            }
            match self.session.next_message() {
                Some(message) => self.receive(message),
                None if self.session.has_actions() => {}
                None => break,
            }
        }
        self.session.take_waits_for_files();
    }

    fn start(&mut self, ticket: Ticket, job: Job<OpenFile>) {
        let names = &self.quotas.list_names;
        let new = || {
            let snapshot = Arc::new(RootSnapshot::default());
            Arc::new(RequestState::new(snapshot, Permissions::unrestricted(), names))
        };
        let state = Arc::clone(self.states.entry(ticket).or_insert_with(new));
        let requester = Requester { peer: PeerId::new(1, 1), ticket, tenant: CLIENT, key: CLIENT };
        if let Some(answer) = job.start(&mut self.pool, requester, &state) {
            self.session.finish(ticket, answer);
        }
    }

    fn receive(&mut self, message: Outgoing<OpenFile>) {
        let bytes = |part| match part {
            Part::Bytes(bytes) => bytes,
            Part::File { .. } => panic!("nothing here has a descriptor"),
        };
        let frames: Vec<Bytes> = message.parts.into_iter().map(bytes).collect();
        if &frames[0][..] != CONTROL_TAG {
            let id = DataHeader::decode(&frames[0]).unwrap().id;
            let over = self.fetches.get_mut(&id).unwrap().fetched.take(id, frames);
            assert!(!over);
            return;
        }
        match Reply::decode(&frames[1]).unwrap() {
            Reply::Files(reply) => self.take(reply.id, frames),
            Reply::Digest(reply) => self.take(reply.id, frames),
            Reply::End { id, .. } | Reply::Done { id } => self.take(id, frames),
            Reply::Void(reply) => self.take(reply.id, frames),
            Reply::List(page) => {
                let listing = self.listings.get_mut(&page.id).unwrap();
                listing.entries.extend(page.entries);
                listing.is_over = !page.more;
                listing.is_undisturbed = self.changes.len() == listing.began;
                if page.more {
                    self.ask(Request::More { id: page.id });
                }
            }
            Reply::Leaves(reply) => {
                let (_, digest) = self.leaves.remove(&reply.id).unwrap();
                let (leaves, rest) = frames[2].as_chunks::<32>();
                assert!(rest.is_empty() && leaves.len() as u32 == reply.total);
                assert!(leaves.is_empty() || merge_leaves(leaves).unwrap() == digest);
                self.leaves_found += 1;
            }
            Reply::Cancelled(cancelled) => {
                assert!(self.cancelled.contains(&cancelled.id));
                self.fetches.remove(&cancelled.id);
                self.listings.remove(&cancelled.id);
                self.leaves.remove(&cancelled.id);
            }
            Reply::Error(error) => {
                let id = error.id.unwrap();
                if let Some((path, _)) = self.leaves.remove(&id) {
                    return self.check_error(&path, error.code, 0, &error.message);
                }
                let listing = self.listings.get_mut(&id).unwrap_or_else(|| panic!("{error:?}"));
                (listing.is_over, listing.failed) = (true, Some(error));
            }
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, id: u32, frames: Vec<Bytes>) {
        let fetching = self.fetches.get_mut(&id).unwrap();
        fetching.is_over |= fetching.fetched.take(id, frames);
    }

    /// An error has a reason: a fault, or a change since then.
    fn check_error(&self, path: &str, code: ErrorCode, began: usize, why: &str) {
        let is_changed = self.changes[began..].iter().any(|changed| changed == path);
        let is_there = self.now.contains_key(path);
        match code {
            ErrorCode::Changed => assert!(is_changed, "{path} didn't change: {why}"),
            ErrorCode::NotFound => assert!(is_changed || !is_there, "{path} is there: {why}"),
            code => assert!(self.faults.lock().unwrap().made.contains(&(path.to_owned(), code)), "{path}: {why}"),
        }
    }

    /// No faults from now on, and everything comes to its end.
    fn settle(&mut self) {
        self.faults.lock().unwrap().one_in = 0;
        self.ask(Request::Credit { bytes: 1 << 40, slow: None });
        loop {
            self.turn();
            if !self.run_job() {
                self.turn();
                if !self.run_job() {
                    break;
                }
            }
        }
        assert!(self.fetches.values().all(|fetching| fetching.is_over), "a fetch isn't over");
        assert!(self.listings.values().all(|listing| listing.is_over) && self.leaves.is_empty());
        assert_eq!(self.quotas.open_files.used(), 0);
        assert_eq!(self.quotas.list_names.used(), 0);
    }

    fn check(&self) {
        for Fetching { request, fetched, began, .. } in self.fetches.values() {
            assert_eq!(fetched.answers.len(), request.files.len());
            for (n, file) in request.files.iter().enumerate() {
                let path = std::str::from_utf8(file.path.as_bytes()).unwrap();
                self.check_file(path, file, n as u32, fetched, *began);
            }
        }
        self.listings.values().for_each(|listing| self.check_listing(listing));
    }

    fn check_file(&self, path: &str, file: &FetchFile, n: u32, fetched: &Fetched, began: usize) {
        let metadata = match &fetched.answers[&n] {
            FileAnswer::Error { code, message, .. } => return self.check_error(path, *code, began, message),
            FileAnswer::Same { .. } => {
                let Some(Unless::Digest { digest }) = file.unless else { panic!("not asked for") };
                assert!(self.history.iter().any(|((of, _), had)| of == path && Digest::of(had) == digest));
                return;
            }
            FileAnswer::Metadata(metadata) => metadata,
        };
        if let Some(why) = fetched.void.get(&n) {
            let code = [ErrorCode::Changed, ErrorCode::Busy, ErrorCode::Io];
            let code = code.into_iter().find(|code| why.starts_with(&format!("{code}: "))).unwrap();
            return self.check_error(path, code, began, why);
        }
        assert!(fetched.ended.contains(&n));
        let content = &self.history[&(path.to_owned(), metadata.mtime.seconds as u64)];
        assert_eq!(metadata.size, content.len() as u64);
        let mut expected = content.to_vec();
        if let Some(ranges) = &file.ranges {
            for (at, byte) in expected.iter_mut().enumerate() {
                let is_wanted = |range: &Range| (range.offset..range.offset + range.length).contains(&(at as u64));
                *byte = if ranges.iter().any(is_wanted) { *byte } else { 0 };
            }
        }
        let mut body = fetched.bodies.get(&n).cloned().unwrap_or_default();
        body.resize(expected.len(), 0);
        assert!(body == expected, "{path} isn't what it was");
        let digest = metadata.digest.or(fetched.digests.get(&n).copied());
        assert!(digest.is_none_or(|digest| digest == Digest::of(content)));
    }

    fn check_listing(&self, listing: &Listing) {
        let Listing { request, entries, failed, began, there, is_undisturbed, .. } = listing;
        let start = match &request.target {
            ListTarget::Path(path) => String::from_utf8(path.as_bytes().to_vec()).unwrap(),
            ListTarget::Glob { .. } => String::new(),
        };
        let made = |code| self.faults.lock().unwrap().made.iter().any(|(_, made)| *made == code);
        if let Some(failed) = failed {
            match failed.code {
                ErrorCode::NotFound => self.check_error(&start, ErrorCode::NotFound, *began, &failed.message),
                code => assert!(made(code), "{failed:?}"),
            }
            return;
        }
        let (mut paths, mut is_whole) = (Vec::new(), *is_undisturbed);
        for entry in entries {
            let path = String::from_utf8(entry.path.as_bytes().to_vec()).unwrap();
            match entry.kind {
                EntryKind::Error => {
                    is_whole = false;
                    assert!(made(ErrorCode::Io) || self.changes.len() > *began, "{entry:?}");
                    // A directory may be there, and not all that is in it.
                    continue;
                }
                EntryKind::File => {
                    let content = &self.history[&(path.clone(), entry.mtime.seconds as u64)];
                    assert_eq!(entry.size, content.len() as u64);
                    assert!(entry.digest.is_none_or(|digest| digest == Digest::of(content)));
                    assert!(entry.digest.is_some() || !request.digest);
                }
                _ => assert_eq!(entry.kind, EntryKind::Dir),
            }
            paths.push(path);
        }
        let unique: BTreeSet<_> = paths.iter().collect();
        assert_eq!(unique.len(), paths.len());
        let is_listed = |path: &&String| match &request.target {
            ListTarget::Glob { glob } if glob == "**/*.txt" => path.ends_with(".txt"),
            ListTarget::Glob { .. } => {
                path.split_once('/').is_some_and(|(dir, name)| dir.starts_with('d') && name.starts_with(['a', 'b']))
            }
            ListTarget::Path(_) if **path == start => true,
            ListTarget::Path(_) => {
                let below = below(&start, path);
                !below.is_empty() && (request.recursive || !below.contains('/'))
            }
        };
        if is_whole {
            let found: BTreeSet<&String> = paths.iter().filter(|path| there.contains(*path)).collect();
            assert_eq!(found, there.iter().filter(is_listed).collect(), "{request:?}");
        }
    }
}

/// The rest of a path below a directory; empty if it isn't below it.
fn below<'a>(dir: &str, path: &'a str) -> &'a str {
    if dir.is_empty() { path } else { path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/')).unwrap_or("") }
}

#[test]
fn the_session_and_its_jobs_run_on_any_source() {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, count) = (RandomState::new().hash_one(0) >> 16, number("TOWPATH_SEEDS").unwrap_or(0));
    let seeds: Vec<u64> = match number("TOWPATH_SEED") {
        Some(seed) => vec![seed],
        None => (1..=30).chain(first..first + count).collect(),
    };
    println!("random seeds: {count} from {first}");
    let waker = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap().waker();
    let (mut whole, mut void, mut refused, mut listed, mut leaves) = (0, 0, 0, 0, 0);
    for seed in &seeds {
        println!("TOWPATH_SEED={seed}");
        let mut world = World::new(*seed, &waker);
        for _ in 0..500 {
            world.step();
        }
        world.settle();
        world.check();
        for fetched in world.fetches.values().map(|fetching| &fetching.fetched) {
            whole += fetched.ended.len();
            void += fetched.void.len();
            refused += fetched.answers.values().filter(|answer| matches!(answer, FileAnswer::Error { .. })).count();
        }
        listed += world.listings.values().filter(|listing| listing.failed.is_none()).count();
        leaves += world.leaves_found;
    }
    println!("{whole} whole, {void} void, {refused} refused, {listed} listed, {leaves} leaves");
    // Otherwise the checks would have had nothing to check.
    assert!(seeds.len() == 1 || whole > 500 && void > 30 && refused > 50 && listed > 50 && leaves > 30);
}
