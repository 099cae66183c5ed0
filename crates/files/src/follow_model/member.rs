//! A follower, its connection and its destination.

use super::checks::is_of_person;
use super::source::{Digests, What};
use crate::client::follow::simulated::{FOLLOW_ID, SimulatedFollower};
use crate::client::follow::{Excludes, FollowEvent, FollowOptions};
use crate::client::{Error, Source};
use crate::digest::Digest;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{FollowState, Reply, Request};
use crate::protocol::follow::{Cursor, FollowFrom};
use crate::server::simulated::{SimulatedServer, SimulatedSession};
use crate::transfer::tests::server::SimServer;
use crate::transfer::tests::world::{Draw, Faults, noise};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Deletions at a time, unless a person allows more.
pub const MAX_DELETE: u64 = 3;

pub struct Member {
    /// The followed path.
    pub below: &'static str,
    pub mirrors: bool,
    pub dir: PathBuf,
    pub excludes: bool,
    /// Whether another filter was used before, so that not all that is there is this follower's.
    pub is_mixed: bool,
    pub max_delete: u64,
    /// Bytes that its disk has space for.
    pub capacity: u64,
    pub follower: Option<SimulatedFollower>,
    pub session: Option<SimulatedSession>,
    /// The server of contents.
    pub files: SimServer,
    inbox: VecDeque<Inbound>,
    expects_full: bool,
    /// Paths that a person changed, and nothing was put to since.
    pub personal: HashSet<String>,
    /// Contents of a person that must stay.
    pub kept: HashSet<Digest>,
    /// Directories that a person has moved away, with what was in them: nobody writes there any more.
    pub moved: Vec<(PathBuf, BTreeMap<String, What>)>,
    /// Directory to move them to, outside of the destination.
    pub outside: PathBuf,
    pub persons: u64,
    /// The last number with which it was up to date.
    pub up_to_date: Option<u64>,
    pub stalls: usize,
}

impl Member {
    pub fn new(below: &'static str, mirrors: bool, dir: PathBuf, outside: PathBuf) -> Member {
        fs::create_dir(&outside).unwrap();
        let mut files = SimServer::default();
        files.window_bytes = 8 << 20;
        Member {
            below,
            mirrors,
            dir,
            excludes: false,
            is_mixed: false,
            max_delete: MAX_DELETE,
            capacity: u64::MAX,
            follower: None,
            session: None,
            files,
            inbox: VecDeque::new(),
            expects_full: false,
            personal: HashSet::new(),
            kept: HashSet::new(),
            moved: Vec::new(),
            outside,
            persons: 0,
            up_to_date: None,
            stalls: 0,
        }
    }

    pub fn start(&mut self, now: Instant) -> Result<(), String> {
        let mut options = FollowOptions::new(Source::Path(self.below.parse().unwrap()), self.dir.clone());
        options.mirror = self.mirrors;
        options.max_delete = Some(self.max_delete);
        options.window_bytes = 8 << 20;
        if self.excludes {
            options.exclude = Excludes::new(["b".to_owned()]).unwrap();
        }
        self.follower = Some(SimulatedFollower::start(options, now).map_err(|error| error.to_string())?);
        self.up_to_date = None;
        Ok(())
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.follower = None;
        self.hang_up();
    }

    fn hang_up(&mut self) {
        (self.session, self.expects_full) = (None, false);
        self.files.cut();
        self.inbox.clear();
    }

    pub fn connect(&mut self, now: Instant) -> Result<(), String> {
        if self.follower.is_none() {
            self.start(now)?;
        }
        self.session = Some(SimulatedSession::new());
        self.run(now, |follower| follower.connected())
    }

    /// The connection is lost.
    pub fn cut(&mut self, now: Instant) -> Result<(), String> {
        if self.session.is_some() {
            self.hang_up();
            self.run(now, |follower| follower.lost())?;
        }
        Ok(())
    }

    /// Has the follower do something. One that stalls begins again, as it would.
    fn run(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut SimulatedFollower) -> Result<(), Error>,
    ) -> Result<(), String> {
        let Some(follower) = &mut self.follower else { return Ok(()) };
        let before = files_below(&self.dir);
        let outcome = act(follower);
        let events = follower.take_events();
        self.on_events(events, &before)?;
        match outcome {
            Ok(()) => {}
            Err(error @ (Error::Stalled { .. } | Error::DiskFull(_))) => {
                self.stalls += usize::from(matches!(error, Error::Stalled { .. }));
                self.kill();
                return self.start(now);
            }
            Err(error) => return Err(format!("the follower of {:?} fails: {error}", self.below)),
        }
        self.send();
        Ok(())
    }

    /// `before`: the files and links that were there before. A person may have taken away what is gone.
    fn on_events(&mut self, events: Vec<FollowEvent>, before: &HashSet<String>) -> Result<(), String> {
        let is_deleted = |event: &&FollowEvent| match event {
            FollowEvent::Gone { path, kept: false, .. } => {
                self.local(&path.to_string()).is_some_and(|local| before.contains(&local))
            }
            _ => false,
        };
        let deleted = events.iter().filter(is_deleted).count();
        if deleted > 0 && (!self.mirrors || deleted as u64 > self.max_delete) {
            return Err(format!("the follower of {:?} deletes {deleted}: {events:?}", self.below));
        }
        for event in events {
            if super::traces() {
                println!("follower of {:?}: {event:?}", self.below);
            }
            let path = match event {
                FollowEvent::Put { path, .. } | FollowEvent::Renamed { to: path, .. } => path.to_string(),
                FollowEvent::UpToDate { seq } => {
                    self.up_to_date = Some(seq);
                    continue;
                }
                // What a person had there makes it a person's, for good.
                FollowEvent::Gone { path, kept: true, .. } if self.mirrors => {
                    let local = self.local(&path.to_string()).unwrap_or_default();
                    if is_of_person(self, &everything_below(&self.dir), &local) {
                        self.personal.insert(local);
                    }
                    continue;
                }
                _ => continue,
            };
            let local = self.local(&path).unwrap_or_default();
            // A person may have been quicker.
            let at = self.dir.join(&local);
            let is_persons = |bytes: Vec<u8>| self.kept.contains(&Digest::of(&bytes));
            if at.symlink_metadata().is_ok_and(|what| !what.is_file() || !fs::read(&at).is_ok_and(is_persons)) {
                self.personal.remove(&local);
            }
        }
        Ok(())
    }

    /// Passes on what the follower asks for.
    fn send(&mut self) {
        let Some(follower) = &mut self.follower else { return };
        let Some(session) = &mut self.session else { return };
        while let Some(request) = follower.requests.pop_front() {
            if super::traces() {
                println!("follower of {:?} asks: {request:?}", self.below);
            }
            match request {
                Request::Hello | Request::Follow(_) | Request::Have(_) | Request::FetchesFor(_) => {
                    session.request(request)
                }
                Request::More { id: FOLLOW_ID } | Request::Cancel { id: FOLLOW_ID } => session.request(request),
                request => self.files.requests.push_back(request),
            }
        }
    }

    /// A cursor of the future, as of a server that was put back to an older state.
    pub fn forge(&mut self, now: Instant) -> Result<(), String> {
        let Some(cursor) = self.follower.as_ref().and_then(SimulatedFollower::cursor) else { return Ok(()) };
        self.cut(now)?;
        self.session = Some(SimulatedSession::new());
        let Some(follower) = &mut self.follower else { return Ok(()) };
        follower.connected().map_err(|error| error.to_string())?;
        for request in &mut follower.requests {
            if let Request::Follow(follow) = request
                && matches!(follow.from, FollowFrom::Cursor(_))
            {
                follow.from = FollowFrom::Cursor(Cursor { seq: cursor.seq + (1 << 40), ..cursor });
                self.expects_full = true;
            }
        }
        self.send();
        Ok(())
    }

    /// One of the things that can happen next: whether it did.
    pub fn step(
        &mut self,
        server: &SimulatedServer,
        draw: &mut Draw,
        faults: &mut Faults,
        now: Instant,
    ) -> Result<bool, String> {
        match draw.below(5) {
            0 => {
                if let Some(session) = &mut self.session {
                    let did = session.has_jobs();
                    session.job(server);
                    let sent = session.sent();
                    let does = did || !sent.is_empty();
                    sent.iter().try_for_each(|inbound| self.check_state(inbound))?;
                    self.inbox.extend(sent);
                    return Ok(does);
                }
            }
            1 => {
                if let Some(request) = self.files.requests.pop_front() {
                    self.inbox.extend(self.files.take(request, draw));
                    return Ok(true);
                }
            }
            2 => {
                let sent = self.files.send_some(draw, faults);
                let does = !sent.is_empty();
                self.inbox.extend(sent);
                return Ok(does);
            }
            3 => {
                if let Some(follower) = self.follower.as_mut().filter(|follower| follower.has_commands()) {
                    follower.space = match self.capacity {
                        u64::MAX => u64::MAX,
                        capacity => capacity.saturating_sub(bytes_below(&self.dir)),
                    };
                    self.run(now, |follower| follower.disk_step(now))?;
                    return Ok(true);
                }
            }
            _ => {
                if let Some(inbound) = self.inbox.pop_front() {
                    self.run(now, |follower| follower.inbound(inbound, now))?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn check_state(&mut self, inbound: &Inbound) -> Result<(), String> {
        let Inbound::Control { json, .. } = inbound else { return Ok(()) };
        if let Ok(Reply::Following(following)) = Reply::decode(json)
            && std::mem::take(&mut self.expects_full)
            && following.state != FollowState::Full
        {
            return Err("a cursor of the future gets changes".to_owned());
        }
        Ok(())
    }

    pub fn tick(&mut self, now: Instant) -> Result<(), String> {
        self.run(now, |follower| follower.tick(now))
    }

    /// Whether only time can make a difference.
    pub fn is_idle(&self) -> bool {
        let has_commands = self.follower.as_ref().is_some_and(SimulatedFollower::has_commands);
        let has_jobs = self.session.as_ref().is_some_and(SimulatedSession::has_jobs);
        !has_commands && !has_jobs && self.inbox.is_empty() && self.files.is_idle()
    }

    /// When time makes one.
    pub fn wait(&self, now: Instant) -> Duration {
        let wait = self.follower.as_ref().and_then(|follower| follower.wait(now));
        wait.unwrap_or(Duration::from_secs(5)).clamp(Duration::from_millis(1), Duration::from_secs(11))
    }

    /// A person changes, deletes, moves or makes something where it is followed to, at any time.
    /// The directory that was moved, if one was.
    pub fn person(&mut self, draw: &mut Draw, digests: &mut Digests) -> (String, Option<String>) {
        let mut moved = None;
        let did = self.person_acts(draw, digests, &mut moved);
        (did, moved)
    }

    fn person_acts(&mut self, draw: &mut Draw, digests: &mut Digests, moved: &mut Option<String>) -> String {
        let mut there = digests.scan(&self.dir);
        there.retain(|path, _| !path.contains("mine-dir-"));
        let file = |(path, what): (&String, &What)| match what {
            What::File(digest) if !path.contains(".tow-conflict-") => Some((path.clone(), *digest)),
            _ => None,
        };
        let files: Vec<_> = there.iter().filter_map(file).collect();
        let dirs: Vec<_> = there.iter().filter(|(_, what)| **what == What::Dir).map(|(path, _)| path).collect();
        self.persons += 1;
        let new = || noise(100, 1_000_000 + self.persons);
        fs::create_dir_all(&self.dir).unwrap();
        match draw.below(12) {
            0..3 if !dirs.is_empty() => {
                let path = dirs[draw.below(dirs.len())].clone();
                *moved = Some(path.clone());
                self.person_moves(&path, draw, digests, &there)
            }
            0..6 => {
                let dir = dirs.get(draw.below(dirs.len() + 1)).map_or(String::new(), |dir| format!("{dir}/"));
                let (path, content) = (format!("{dir}mine-{}", self.persons), new());
                fs::write(self.dir.join(&path), &content).unwrap();
                self.kept.insert(Digest::of(&content));
                format!("a person writes {path}")
            }
            what if !files.is_empty() => {
                let (path, digest) = files[draw.below(files.len())].clone();
                let at = self.dir.join(&path);
                let before = fs::metadata(&at).unwrap();
                if what == 11 && before.len() == 0 {
                    return "a person does nothing".to_owned();
                }
                self.kept.remove(&digest);
                self.personal.insert(path.clone());
                if what < 8 {
                    fs::remove_file(at).unwrap();
                    return format!("a person deletes {path}");
                }
                // The last kind can't be noticed by size and time.
                let size = if what < 11 { 100 } else { before.len() };
                let content = noise(size as usize, 1_000_000 + self.persons);
                fs::write(&at, &content).unwrap();
                if what == 11 {
                    fs::File::options()
                        .append(true)
                        .open(&at)
                        .unwrap()
                        .set_modified(before.modified().unwrap())
                        .unwrap();
                }
                self.kept.insert(Digest::of(&content));
                format!("a person writes {path}, {size} bytes")
            }
            _ => "a person does nothing".to_owned(),
        }
    }

    /// A directory is moved, perhaps out of the destination, or deleted; and perhaps another one made in its place.
    fn person_moves(
        &mut self,
        path: &str,
        draw: &mut Draw,
        digests: &mut Digests,
        there: &BTreeMap<String, What>,
    ) -> String {
        let below = format!("{path}/");
        let gone: Vec<_> = there.iter().filter(|(at, _)| *at == path || at.starts_with(&below)).collect();
        self.personal.extend(gone.iter().map(|(at, _)| (*at).clone()));
        let at = self.dir.join(path);
        let to = match draw.below(3) {
            0 => self.dir.join(format!("mine-dir-{}", self.persons)),
            1 => self.outside.join(self.persons.to_string()),
            _ => {
                for (_, what) in gone {
                    if let What::File(digest) = what {
                        self.kept.remove(digest);
                    }
                }
                fs::remove_dir_all(&at).unwrap();
                return format!("a person deletes {path} and all in it");
            }
        };
        fs::rename(&at, &to).unwrap();
        self.moved.push((to.clone(), digests.scan(&to)));
        let is_replaced = draw.one_in(3);
        if is_replaced {
            fs::create_dir(at).unwrap();
        }
        format!("a person moves {path} to {}, and makes another one: {is_replaced}", to.display())
    }

    /// Local path of a path on the server.
    pub fn local(&self, remote: &str) -> Option<String> {
        let local = match remote.strip_prefix(self.below)? {
            "" => remote,
            below if self.below.is_empty() => below,
            below => below.strip_prefix('/')?,
        };
        let is_excluded = self.excludes && local.split('/').any(|name| name == "b");
        (!is_excluded && !local.is_empty()).then(|| local.to_owned())
    }

    /// The expected content.
    pub fn expected(&self, truth: &BTreeMap<String, What>) -> BTreeMap<String, What> {
        let expected = truth.iter().filter(|(path, what)| *path != self.below || **what != What::Dir);
        expected.filter_map(|(path, what)| Some((self.local(path)?, what.clone()))).collect()
    }
}

/// The files and links below a directory.
fn files_below(top: &Path) -> HashSet<String> {
    let mut found = HashSet::new();
    walk(top, &mut |path, stat| {
        if !stat.is_dir() {
            found.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
        }
    });
    found
}

/// Whatever is below a directory.
fn everything_below(top: &Path) -> BTreeMap<String, What> {
    let mut found = BTreeMap::new();
    walk(top, &mut |path, _| {
        found.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned(), What::Dir);
    });
    found
}

/// Bytes of the files below a directory, those that transfers use included.
pub fn bytes_below(top: &Path) -> u64 {
    let mut bytes = 0;
    walk(top, &mut |_, stat| bytes += if stat.is_file() { stat.len() } else { 0 });
    bytes
}

/// Bytes of the files that transfers use below a directory.
pub fn transfer_bytes_below(top: &Path) -> u64 {
    let mut bytes = 0;
    walk(top, &mut |path, stat| {
        let is_reserved = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".tow-"));
        bytes += if is_reserved && stat.is_file() { stat.len() } else { 0 };
    });
    bytes
}

fn walk(dir: &Path, each: &mut dyn FnMut(&Path, &Metadata)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, Ok(stat)) = (entry.path(), entry.metadata()) else { continue };
        each(&path, &stat);
        if stat.is_dir() {
            walk(&path, each);
        }
    }
}
