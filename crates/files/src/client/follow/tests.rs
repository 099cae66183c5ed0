//! A follower step by step: what is recorded between two of them, and what somebody changes there.

use super::simulated::{FOLLOW_ID, SimulatedFollower};
use super::{FollowEvent, FollowOptions};
use crate::client::{Error, Source};
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    Cancelled, Change, ChangeContent, ChangesReply, FollowState, FollowingReply, LinkTarget, Reply, Request,
};
use crate::protocol::follow::{Cursor, Epoch};
use crate::root::Timestamp;
use crate::transfer::names::partial_names;
use crate::transfer::tests::server::{SimFile, SimServer};
use crate::transfer::tests::world::{Draw, Faults, noise};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

/// Copied if it is there, and not fetched.
const LARGE: usize = 70_000;

struct Steps {
    temp: TempDir,
    follower: SimulatedFollower,
    files: SimServer,
    now: Instant,
    seq: u64,
    events: Vec<FollowEvent>,
}

impl Steps {
    /// A mirror that is to get the full state.
    fn begin() -> Steps {
        let (temp, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let mut options = FollowOptions::new(Source::Path("".parse().unwrap()), temp.path().join("copy"));
        (options.mirror, options.max_delete) = (true, Some(100));
        let mut follower = SimulatedFollower::start(options, now).unwrap();
        follower.connected().unwrap();
        let mut files = SimServer::default();
        files.window_bytes = 8 << 20;
        let mut steps = Steps { temp, follower, files, now, seq: 0, events: Vec::new() };
        steps.following();
        steps
    }

    fn following(&mut self) {
        let cursor = Cursor { epoch: Epoch([7; 16]), seq: 0 };
        let following = FollowingReply { id: FOLLOW_ID, state: FollowState::Full, cursor, head: 100, server: None };
        self.say(&Reply::Following(following)).unwrap();
    }

    fn say(&mut self, reply: &Reply) -> Result<(), Error> {
        let inbound = Inbound::Control { json: reply.encode().into(), attachment: None };
        self.follower.inbound(inbound, self.now)
    }

    /// A page comes. Nothing of it is done yet.
    fn page(&mut self, live: bool, changes: Vec<(&str, ChangeContent)>) {
        self.try_page(live, changes).unwrap();
    }

    fn try_page(&mut self, live: bool, changes: Vec<(&str, ChangeContent)>) -> Result<(), Error> {
        let changes = changes.into_iter().map(|(path, content)| {
            self.seq += 1;
            Change { seq: self.seq, path: path.as_bytes().to_vec().into(), content }
        });
        let changes: Vec<_> = changes.collect();
        let cursor = Cursor { epoch: Epoch([7; 16]), seq: self.seq };
        self.say(&Reply::Changes(ChangesReply {
            id: FOLLOW_ID,
            cursor,
            head: 100,
            live,
            changes,
            unread: Vec::new(),
            unread_more: 0,
        }))
    }

    /// Another follower begins where this one was killed.
    fn restart(&mut self) {
        let mut options = FollowOptions::new(Source::Path("".parse().unwrap()), self.copy());
        (options.mirror, options.max_delete) = (true, Some(100));
        // The record is locked by the first one.
        let (elsewhere, now) = (self.temp.path().join("elsewhere"), self.now);
        let other = SimulatedFollower::start(FollowOptions::new(options.source.clone(), elsewhere), now).unwrap();
        drop(std::mem::replace(&mut self.follower, other));
        self.follower = SimulatedFollower::start(options, now).unwrap();
        self.follower.connected().unwrap();
        let files = std::mem::take(&mut self.files.files);
        self.files = SimServer::default();
        (self.files.files, self.files.window_bytes) = (files, 8 << 20);
        self.seq = 0;
        self.following();
    }

    /// Everything that can be done is done.
    fn run(&mut self) {
        while self.step() {}
    }

    /// Does one thing, if there is one.
    fn step(&mut self) -> bool {
        let (mut draw, mut faults) = (Draw::new(1), Faults::default());
        {
            let mut did = self.follower.has_commands();
            self.follower.disk_step(self.now).unwrap();
            while let Some(request) = self.follower.requests.pop_front() {
                match request {
                    Request::Hello | Request::Follow(_) | Request::More { id: FOLLOW_ID } => {}
                    Request::Cancel { id: FOLLOW_ID } => {
                        self.say(&Reply::Cancelled(Cancelled { id: FOLLOW_ID })).unwrap();
                    }
                    request => self.files.requests.push_back(request),
                }
            }
            let mut sent = match self.files.requests.pop_front() {
                Some(request) => {
                    did = true;
                    self.files.take(request, &mut draw)
                }
                None => Vec::new(),
            };
            sent.extend(self.files.send_some(&mut draw, &mut faults));
            did |= !sent.is_empty();
            sent.into_iter().for_each(|inbound| self.follower.inbound(inbound, self.now).unwrap());
            self.events.extend(self.follower.take_events());
            did
        }
    }

    /// A file of the server, and the change that says so.
    fn file(&mut self, path: &str, content: Vec<u8>, modified: i64) -> ChangeContent {
        let mut file = SimFile::new(content);
        file.modified = modified;
        let (size, digest) = (file.content.len() as u64, file.digest);
        self.files.files.insert(path.to_owned(), file);
        ChangeContent::File { size, mtime: Timestamp { seconds: modified, nanoseconds: 1 }, mode: 0o644, digest }
    }

    fn copy(&self) -> PathBuf {
        self.temp.path().join("copy")
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.copy()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with(".tow-")).collect();
        names.sort_unstable();
        names
    }

    /// An edit that size and time don't show.
    fn edit(&self, name: &str) -> Vec<u8> {
        let path = self.copy().join(name);
        let before = fs::metadata(&path).unwrap();
        let content = noise(before.len() as usize, 99);
        fs::write(&path, &content).unwrap();
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        content
    }
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())).collect()
}

#[test]
fn directory_made_for_what_is_in_it_is_removed_with_it() {
    for (becomes_a_file, has_part) in [(false, false), (true, false), (true, true)] {
        let mut steps = Steps::begin();
        let file = steps.file("d/e/f", noise(10, 1), 5);
        steps.page(false, vec![("d/e/f", file)]);
        steps.run();
        assert!(steps.copy().join("d/e/f").exists());
        if has_part {
            // Of a file that was given up.
            let (part, state) = partial_names(b"g");
            fs::create_dir(steps.copy().join("d/h")).unwrap();
            for dir in ["d", "d/h"] {
                fs::write(steps.copy().join(dir).join(OsStr::from_bytes(&part)), b"a part").unwrap();
                fs::write(steps.copy().join(dir).join(OsStr::from_bytes(&state)), b"its state").unwrap();
            }
        }
        let mut changes =
            vec![("d/e/f", ChangeContent::Gone), ("d/e", ChangeContent::Gone), ("d", ChangeContent::Gone)];
        if becomes_a_file {
            changes[2].1 = steps.file("d", noise(10, 2), 6);
        }
        steps.page(true, changes);
        steps.run();
        let expected: &[&str] = if becomes_a_file { &["d"] } else { &[] };
        assert_eq!(steps.names(), expected);
        assert_eq!(steps.copy().join("d").is_file(), becomes_a_file);
    }
}

/// Its own change comes later, and is reported as usual.
#[test]
fn directory_made_for_its_content_is_reported_when_it_comes() {
    let mut steps = Steps::begin();
    let file = steps.file("d/f", noise(10, 1), 5);
    steps.page(false, vec![("d/f", file)]);
    steps.run();
    steps.page(true, vec![("d", ChangeContent::Dir { mode: 0o755 })]);
    steps.run();
    let is_reported =
        |event: &FollowEvent| matches!(event, FollowEvent::Put { path, is_new: true, .. } if path.to_string() == "d");
    assert_eq!(steps.events.iter().filter(|event| is_reported(event)).count(), 1, "{:?}", steps.events);
}

#[test]
fn what_was_renamed_ahead_is_known_though_the_rest_failed() {
    let mut steps = Steps::begin();
    let old = steps.file("f", noise(LARGE, 1), 5);
    steps.page(true, vec![("f", old)]);
    steps.run();
    let new = steps.file("g", noise(LARGE, 1), 6);
    steps.files.files.clear();
    steps.page(true, vec![("f", ChangeContent::Gone), ("g", new)]);
    steps.run();
    assert_eq!(steps.names(), ["g"]);
    steps.page(true, vec![("g", ChangeContent::Gone)]);
    steps.run();
    assert_eq!(steps.names(), [""; 0]);
    // The rename was never reported.
    let gone = |event: &FollowEvent| match event {
        FollowEvent::Gone { path, kept: false, .. } => Some(path.to_string()),
        _ => None,
    };
    assert_eq!(steps.events.iter().filter_map(gone).collect::<Vec<_>>(), ["g", "f"]);
}

/// Changes that a killed follower put in place are reported by the next one, however often that is killed too.
#[test]
fn what_was_put_and_not_reported_is_reported_after_a_kill() {
    for kills in [1, 2] {
        let mut steps = Steps::begin();
        let changes = ["d/f", "g"].map(|path| (path, steps.file(path, noise(LARGE, path.len() as u64), 5)));
        for _ in 0..kills {
            steps.page(true, changes.to_vec());
            // One is in place, and the page isn't over.
            let is_there = |steps: &Steps| ["d/f", "g"].iter().any(|name| steps.copy().join(name).exists());
            while !is_there(&steps) {
                steps.step();
            }
            assert!(steps.follower.is_busy() && steps.events.is_empty());
            steps.restart();
        }
        steps.page(true, changes.to_vec());
        steps.run();
        let is_put = |wanted: &str| {
            let is_it =
                |event: &&FollowEvent| matches!(event, FollowEvent::Put { path, .. } if path.to_string() == wanted);
            steps.events.iter().filter(is_it).count()
        };
        assert_eq!((is_put("d/f"), is_put("g")), (1, 1), "{:?}", steps.events);
        // Nothing is reported again later.
        steps.events.clear();
        steps.restart();
        steps.page(true, changes.to_vec());
        steps.run();
        assert!(!steps.events.iter().any(|event| matches!(event, FollowEvent::Put { .. })), "{:?}", steps.events);
    }
}

#[test]
fn what_is_edited_while_a_new_version_comes_is_kept() {
    for size in [10, LARGE] {
        let mut steps = Steps::begin();
        let first = steps.file("f", noise(size, 1), 5);
        steps.page(true, vec![("f", first)]);
        steps.run();
        let second = steps.file("f", noise(size, 2), 6);
        steps.page(true, vec![("f", second)]);
        // It is planned with, and nothing of it has come.
        let edited = steps.edit("f");
        steps.run();
        let there = contents(&steps.copy());
        assert_eq!(there["f"], noise(size, 2));
        assert!(
            there.iter().any(|(name, content)| name.starts_with("f.tow-conflict-") && *content == edited),
            "{size}"
        );
    }
}

/// As one that was killed leaves it, which had made it for a file that hadn't come.
#[test]
fn a_directory_without_files_gives_its_name_to_a_file() {
    let mut steps = Steps::begin();
    fs::create_dir_all(steps.copy().join("d/deep")).unwrap();
    fs::create_dir(steps.copy().join("e")).unwrap();
    fs::write(steps.copy().join("e/mine"), "work").unwrap();
    let changes = ["d", "e"].map(|path| (path, steps.file(path, noise(10, 1), 5)));
    steps.page(true, changes.into_iter().collect());
    steps.run();
    let there = contents(&steps.copy());
    assert_eq!((&there["d"], &there["e"]), (&noise(10, 1), &noise(10, 1)));
    let kept: Vec<_> = fs::read_dir(steps.copy()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let kept: Vec<_> = kept.iter().filter(|name| name.to_string_lossy().contains("conflict")).collect();
    assert!(matches!(kept[..], [name] if name.to_string_lossy().starts_with("e.tow-conflict-")), "{kept:?}");
}

#[test]
fn what_is_moved_away_while_following_comes_again() {
    let mut steps = Steps::begin();
    let changes = ["d/1", "d/2"].map(|path| (path, steps.file(path, noise(10, 1), 5)));
    steps.page(true, changes.into_iter().collect());
    steps.run();
    let (d, elsewhere) = (steps.copy().join("d"), steps.temp.path().join("elsewhere"));
    fs::rename(&d, &elsewhere).unwrap();
    // Another one in its place doesn't hide that.
    fs::create_dir(&d).unwrap();
    let third = steps.file("d/3", noise(10, 3), 6);
    steps.page(true, vec![("d/3", third)]);
    steps.run();
    assert_eq!(contents(&elsewhere).into_keys().collect::<Vec<_>>(), ["1", "2"]);
    assert!(steps.follower.cursor().is_none(), "not all is in place: {:?}", steps.events);
    steps.following();
    steps.seq = 0;
    let changes = ["d/1", "d/2", "d/3"].map(|path| {
        let file = steps.files.files[path].clone();
        (path, steps.file(path, file.content, file.modified))
    });
    steps.page(true, changes.into_iter().collect());
    steps.run();
    assert_eq!(contents(&d).into_keys().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(steps.follower.cursor().map(|cursor| cursor.seq), Some(3));
}

/// Matches of a glob come without the directories above them.
#[test]
fn directory_that_is_not_listed_stays_with_its_content() {
    let mut steps = Steps::begin();
    let file = steps.file("d/e/f", noise(10, 1), 5);
    steps.page(true, vec![("d/e/f", file)]);
    steps.run();
    steps.files.cut();
    steps.follower.lost().unwrap();
    steps.follower.connected().unwrap();
    steps.following();
    let file = steps.file("d/f", noise(10, 1), 6);
    steps.seq = 0;
    steps.page(true, vec![("d/f", file)]);
    steps.run();
    assert_eq!(steps.names(), ["d"]);
    assert_eq!(fs::read_dir(steps.copy().join("d")).unwrap().count(), 1);
    let is_kept = |event: &FollowEvent| matches!(event, FollowEvent::Gone { kept: true, .. });
    assert!(!steps.events.iter().any(is_kept), "{:?}", steps.events);
}

#[test]
fn a_destination_that_was_moved_ends_the_follow() {
    for replaced in [false, true] {
        let mut steps = Steps::begin();
        let (copy, elsewhere) = (steps.copy(), steps.temp.path().join("elsewhere"));
        fs::rename(&copy, &elsewhere).unwrap();
        if replaced {
            fs::create_dir(&copy).unwrap();
        }
        let file = steps.file("f", noise(10, 1), 5);
        let error = steps.try_page(true, vec![("f", file)]).unwrap_err().to_string();
        assert!(error.contains("it was moved, or another directory has taken its place"), "{error}");
        assert!(!elsewhere.join("f").exists());
    }
}

#[test]
fn a_link_that_somebody_changed_is_kept() {
    let mut steps = Steps::begin();
    let link = |target: &str| ChangeContent::Link {
        target: LinkTarget::from(target.as_bytes().to_vec()),
        mtime: Timestamp { seconds: 5, nanoseconds: 1 },
    };
    steps.page(true, vec![("l", link("a"))]);
    steps.run();
    fs::remove_file(steps.copy().join("l")).unwrap();
    std::os::unix::fs::symlink("mine", steps.copy().join("l")).unwrap();
    let file = steps.file("l", noise(10, 1), 6);
    steps.page(true, vec![("l", file)]);
    steps.run();
    let kept = steps.copy().join("l.tow-conflict-2");
    assert_eq!((steps.names().len(), fs::read_link(kept).unwrap()), (2, "mine".into()));
}

#[test]
fn a_failure_is_said_once() {
    let mut steps = Steps::begin();
    fs::create_dir(steps.copy().join("x")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(steps.copy().join("s")).unwrap();
    for seed in 1..5 {
        let (s, f) = (steps.file("s", noise(10, 1), 5), steps.file("f", noise(10, seed), seed as i64));
        let changes = if seed == 1 { vec![("s", s), ("f", f)] } else { vec![("f", f)] };
        steps.page(true, changes);
        steps.run();
    }
    let failed = steps.events.iter().filter(|event| matches!(event, FollowEvent::Failed { .. })).count();
    assert_eq!(failed, 1, "{:?}", steps.events);
}
