//! The events of a run, and their order.

use super::checks::is_of_person;
use super::member::{MAX_DELETE, Member, bytes_below, transfer_bytes_below};
use super::source::{Digests, Source};
use crate::catalogue::Content;
use crate::client::follow::simulated::SimulatedFollower;
use crate::digest::SHIFT;
use crate::protocol::follow::Cursor;
use crate::server::PAGE_ENTRIES;
use crate::server::simulated::{SimulatedServer, as_plain_user};
use crate::transfer::tests::world::{Draw, Faults};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Steps before all is quiet.
const STEPS: usize = 500;
/// Far more than it takes until all is quiet.
const QUIET_STEPS_MAX: usize = 20_000;
/// More than the state of a file takes.
const SPARE_BYTES: u64 = 10_000;

pub struct World {
    draw: Draw,
    temp: TempDir,
    now: Instant,
    pub source: Source,
    pub server: SimulatedServer,
    pub max_delete: u64,
    starts: u8,
    boots: u8,
    /// Bytes of the stored catalogue that outlast a crash of the machine, and whether that was noted since the start.
    synced: (u64, bool),
    first_head: u64,
    /// Of cursors before this one the server has forgotten what they mean.
    pub known_from: u64,
    /// The root was the published one when the server last looked.
    pub was_accepted: bool,
    /// A person has released deletions, and nothing was looked at since.
    pub is_released: bool,
    /// The server has read everything since it was started, and lost no event since.
    is_sure: bool,
    pub members: Vec<Member>,
    pub digests: Digests,
    /// The change of each number of each epoch.
    pub numbers: HashMap<([u8; 16], u64), (String, Content)>,
    faults: Faults,
    cursors: Vec<Option<Cursor>>,
    traces: bool,
}

impl Drop for World {
    fn drop(&mut self) {
        // Before the directory goes.
        self.source.unmount();
    }
}

/// Counts of what happened.
pub type Tally = BTreeMap<&'static str, usize>;

impl World {
    pub fn new(seed: u64, can_mount: bool) -> World {
        SHIFT.set(Duration::ZERO);
        let mut draw = Draw::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let temp = tempfile::tempdir().unwrap();
        let source = Source::new(temp.path().join("source"), temp.path().join("elsewhere"), can_mount);
        let max_delete = 3 + draw.below(3) as u64;
        let server = SimulatedServer::start(&source.dir, &temp.path().join("state"), 1, 1, max_delete);
        PAGE_ENTRIES.set([2, 5, 1024][draw.below(3)]);
        let member = |below, mirrors, name: &str| {
            Member::new(below, mirrors, temp.path().join(name), temp.path().join(format!("{name}-outside")))
        };
        let synced = std::fs::metadata(temp.path().join("state/catalogue")).unwrap().len();
        let members = vec![member("", true, "mirror"), member("d", false, "part")];
        World {
            draw,
            now: Instant::now(),
            source,
            server,
            max_delete,
            starts: 1,
            boots: 1,
            synced: (synced, false),
            first_head: 0,
            known_from: 0,
            was_accepted: true,
            is_released: false,
            is_sure: false,
            cursors: vec![None; members.len()],
            members,
            digests: Digests::default(),
            numbers: HashMap::new(),
            faults: Faults { cuts: 0, voids: 3, changes: 0, corruptions: 3 },
            traces: super::traces(),
            temp,
        }
    }

    fn state(&self) -> PathBuf {
        self.temp.path().join("state")
    }

    pub fn run(mut self, tally: &mut Tally) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step(tally)?;
        }
        self.quiet(tally)?;
        self.rename_at_last()
    }

    fn trace(&self, text: impl FnOnce() -> String) {
        if self.traces {
            println!("{}", text());
        }
    }

    fn step(&mut self, tally: &mut Tally) -> Result<(), String> {
        let passed = Duration::from_micros(self.draw.below(1000) as u64);
        self.pass(passed);
        let mut count = |what| *tally.entry(what).or_default() += 1;
        match self.draw.below(218) {
            0..16 => {
                let did = self.source.step(&mut self.draw);
                self.trace(|| format!("source: {did}"));
                self.served();
                count("changes");
            }
            16..32 => {
                let times = [1, 1, 1, 1, 1, 1, 2, 0][self.draw.below(8)];
                self.look(times)?;
            }
            32..48 => self.finish()?,
            48..54 => self.server.check(),
            54 => self.server.rescan(),
            55 => self.server.overflow(),
            56 => {
                if self.server.is_holding() {
                    count("releases");
                    self.release();
                }
            }
            57 => {
                count("crashes of the server");
                self.crash_server()?;
            }
            58 | 59 => {
                count("crashes of a follower");
                let index = self.draw.below(self.members.len());
                self.members[index].kill();
                if self.draw.one_in(8) {
                    self.members[index].excludes ^= true;
                    self.members[index].is_mixed = true;
                }
                self.members[index].max_delete = if self.draw.one_in(4) { u64::MAX } else { MAX_DELETE };
                self.trace(|| format!("follower {index} crashes"));
            }
            60 | 61 => {
                count("cuts");
                let index = self.draw.below(self.members.len());
                self.members[index].cut(self.now)?;
            }
            62 => {
                let index = self.draw.below(self.members.len());
                self.members[index].forge(self.now)?;
            }
            63..67 => {
                let index = self.draw.below(self.members.len());
                count("changes by a person");
                let (did, moved) = self.members[index].person(&mut self.draw, &mut self.digests);
                self.trace(|| format!("follower {index}: {did}"));
                // What comes next for it is for its path.
                let below = self.members[index].below;
                let moved = moved.map(|moved| if below.is_empty() { moved } else { format!("{below}/{moved}") });
                if let Some(did) = moved.and_then(|moved| self.source.write_into(&moved, &mut self.draw)) {
                    self.trace(|| format!("source: {did}"));
                    self.served();
                }
            }
            67 => {
                let passed = Duration::from_millis(self.draw.below(3000) as u64);
                self.pass(passed);
                (0..self.members.len()).try_for_each(|index| self.members[index].tick(self.now))?;
            }
            200..211 => {
                let (source, live) = (&mut self.source, self.server.live());
                let did = source.administer(&mut self.draw, |path| live.contains_key(path));
                self.trace(|| format!("administrator: {did}"));
                self.served();
                count("changes by an administrator");
            }
            211..216 => {
                if self.check_by_events()? {
                    count("checks of events");
                }
            }
            216..218 => {
                count("full disks");
                let space = [0, 5_000, 100_000][self.draw.below(3)];
                let member = self.draw.below(self.members.len());
                let member = &mut self.members[member];
                member.capacity = match member.capacity {
                    u64::MAX => bytes_below(&member.dir) + space,
                    _ => u64::MAX,
                };
            }
            _ => {
                for _ in 0..3 {
                    let index = self.draw.below(self.members.len());
                    self.member_step(index)?;
                }
            }
        }
        if self.draw.one_in(10) { self.check_contents() } else { Ok(()) }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        SHIFT.set(SHIFT.get() + time);
    }

    /// Checks that the contents that can be fetched are those of the tree.
    fn served(&mut self) {
        let Source { dir, devices, .. } = &mut self.source;
        devices.lost.retain(|path| !dir.join(path).exists());
        let files = self.source.files();
        self.members.iter_mut().for_each(|member| member.files.files.clone_from(&files));
    }

    fn look(&mut self, times: usize) -> Result<(), String> {
        let before = self.server.live();
        self.was_accepted = self.server.is_accepted();
        let was_everything = as_plain_user(|| self.server.look(times));
        self.trace(|| {
            format!("server: look {times} times, everything: {was_everything}, holds: {}", self.server.is_holding())
        });
        if times == 0 && was_everything {
            // Of these none is ever lost.
            self.server.rescan();
        }
        self.check_published(&before)?;
        if times > 0 {
            self.source.devices.looked();
        }
        if self.is_released && was_everything && times > 0 {
            self.source.devices.lost.clear();
        }
        self.is_sure = if times == 0 { self.is_sure && was_everything } else { self.is_sure || was_everything };
        self.is_released &= !was_everything || times == 0;
        self.notify();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        let before = self.server.live();
        as_plain_user(|| self.server.finish());
        self.trace(|| format!("server: finish, head {}", self.server.head()));
        self.check_published(&before)?;
        self.notify();
        Ok(())
    }

    fn notify(&mut self) {
        // The first number of a start is synced.
        if !self.synced.1 && self.server.head() > self.first_head {
            self.synced = (std::fs::metadata(self.state().join("catalogue")).unwrap().len(), true);
        }
        if self.server.has_changes() {
            self.members
                .iter_mut()
                .filter_map(|member| member.session.as_mut())
                .for_each(|session| session.published());
        }
    }

    fn release(&mut self) {
        self.trace(|| "server: a person releases what is held".to_owned());
        self.server.release();
        self.is_released = true;
    }

    /// The server is killed, or its machine is; or its catalogue is lost.
    fn crash_server(&mut self) -> Result<(), String> {
        for member in &mut self.members {
            member.cut(self.now)?;
        }
        let what = self.draw.below(5);
        self.restart_server(what);
        Ok(())
    }

    fn restart_server(&mut self, what: usize) {
        let catalogue = self.state().join("catalogue");
        // The lock goes with it.
        let elsewhere = self.temp.path().join("nothing");
        std::fs::create_dir_all(&elsewhere).unwrap();
        self.server = SimulatedServer::start(&elsewhere, &self.temp.path().join("no-state"), 0, 0, 0);
        if what == 0 {
            std::fs::remove_file(&catalogue).unwrap();
        }
        if what == 1 {
            // The last entries are lost.
            self.boots += 1;
            let file = std::fs::File::options().write(true).open(&catalogue).unwrap();
            let length = file.metadata().unwrap().len();
            file.set_len(length - self.draw.below((length - self.synced.0) as usize + 1) as u64).unwrap();
        }
        self.starts += 1;
        self.server = SimulatedServer::start(&self.source.dir, &self.state(), self.starts, self.boots, self.max_delete);
        if what < 2 {
            self.synced.0 = std::fs::metadata(&catalogue).unwrap().len();
            self.known_from = self.server.head();
        }
        (self.synced.1, self.first_head) = (false, self.server.head());
        self.trace(|| format!("server: starts again, {what}, head {}", self.server.head()));
        (self.is_released, self.is_sure) = (false, false);
    }

    /// Looks only where events say so, until there are none.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..6 {
            self.look(1)?;
            self.finish()?;
            while self.server.has_unfinished() {
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Once programs have finished what they write, what is published is what is there, or is said not to be known: without a look at
    /// everything, if no event was lost. Whether that could be checked.
    fn check_by_events(&mut self) -> Result<bool, String> {
        if !self.is_sure {
            return Ok(false);
        }
        self.source.finish_all();
        self.served();
        self.server.check();
        self.settle()?;
        let is_still = |world: &mut World| {
            world.server.is_complete() && !world.server.is_holding() && world.server.is_accepted() && world.is_sure
        };
        if !is_still(self) {
            return Ok(false);
        }
        let (unread, live) = (self.server.unread(), self.server.live());
        // The content of a file that was only renamed is known.
        let is_known =
            |path: &String| live.get(path).is_some_and(|entry| matches!(entry.content, Content::File { .. }));
        let mut hidden = self.source.hidden().into_iter().filter(|path| !is_known(path));
        if let Some(path) = hidden.find(|path| !unread.contains(path)) {
            return Err(format!("{path} can't be read, and followers don't know; they know of {unread:?}"));
        }
        self.source.reveal();
        self.settle()?;
        if !self.server.unread().is_empty() {
            // What makes a file readable under another of its names has no event: it is tried again after a while.
            self.server.look_at_unread();
            self.settle()?;
        }
        if !is_still(self) {
            return Ok(false);
        }
        let unread = self.server.unread();
        if !unread.is_empty() {
            return Err(format!("these can be read, and followers believe otherwise: {unread:?}"));
        }
        self.check_catalogue().map_err(|why| format!("events announced everything: {why}"))?;
        Ok(true)
    }

    fn member_step(&mut self, index: usize) -> Result<bool, String> {
        let now = self.now;
        let member = &mut self.members[index];
        if member.session.is_none() {
            member.connect(now)?;
        }
        let did = member.step(&self.server, &mut self.draw, &mut self.faults, now)?;
        self.check_cursors(index)?;
        Ok(did)
    }

    fn check_cursors(&mut self, index: usize) -> Result<(), String> {
        let member = &mut self.members[index];
        let said = member.session.as_mut().map(|session| std::mem::take(&mut session.said)).unwrap_or_default();
        let mut cursors: Vec<_> = said.into_iter().filter_map(|holder| holder.cursor).collect();
        let stored = member.follower.as_ref().and_then(SimulatedFollower::cursor);
        if std::mem::replace(&mut self.cursors[index], stored) != stored {
            self.trace(|| format!("follower {index}: stores {stored:?}"));
            cursors.extend(stored);
        }
        cursors.into_iter().try_for_each(|cursor| self.check_in_place(index, cursor))
    }

    /// Programs end what they write, persons release what is held, and the network works: soon all have the same.
    fn quiet(&mut self, tally: &mut Tally) -> Result<(), String> {
        self.server_quiet(tally)?;
        for index in 0..self.members.len() {
            // A person allows what is held, and begins again: whatever is missing comes.
            self.members[index].kill();
            self.members[index].max_delete = u64::MAX;
            let Member { personal, dir, .. } = &mut self.members[index];
            personal.retain(|path| dir.join(path).symlink_metadata().is_ok());
            self.members[index].stalls = 0;
            self.members[index].capacity = self.least_capacity(index);
            self.until_quiet(index)?;
        }
        self.check_quiet()
    }

    /// Space for what is to be there, beside what isn't going to be deleted: enough only if what is gone is deleted.
    fn least_capacity(&mut self, index: usize) -> u64 {
        let truth = self.digests.scan(&self.source.dir);
        let member = &self.members[index];
        if !member.mirrors || member.is_mixed {
            return u64::MAX;
        }
        let size = |dir: &Path, path: &str| dir.join(path).symlink_metadata().map_or(0, |stat| stat.len());
        let there = self.digests.scan(&member.dir);
        // A file is whole before it replaces another one, and its state takes a little.
        let (mut bytes, mut largest) = (SPARE_BYTES + transfer_bytes_below(&member.dir), 0);
        for (remote, what) in &truth {
            if let Some(local) = member.local(remote) {
                let new = size(&self.source.dir, remote);
                bytes += new.max(size(&member.dir, &local));
                largest = largest.max(if there.get(&local) == Some(what) { 0 } else { new });
            }
        }
        bytes += largest;
        // What a person has there stays.
        bytes += there
            .keys()
            .filter(|path| is_of_person(member, &there, path))
            .map(|path| size(&member.dir, path))
            .sum::<u64>();
        bytes
    }

    fn server_quiet(&mut self, tally: &mut Tally) -> Result<(), String> {
        self.source.quiet();
        self.served();
        self.trace(|| "quiet".to_owned());
        let mut left = 30;
        loop {
            self.server.check();
            self.server.rescan();
            self.look(1)?;
            self.finish()?;
            while self.server.has_unfinished() {
                self.finish()?;
            }
            if self.server.is_holding() {
                *tally.entry("releases").or_default() += 1;
                self.release();
            } else if !self.server.is_complete() {
                // It waits for a file that was there at first and is open; or for an hour, to find that it is gone.
                self.members.iter_mut().try_for_each(|member| member.cut(self.now))?;
                self.restart_server(usize::MAX);
            } else if self.server.is_accepted() {
                break;
            }
            left -= 1;
            if left == 0 {
                let (accepted, complete) = (self.server.is_accepted(), self.server.is_complete());
                return Err(format!("the server never comes to rest: root accepted: {accepted}, complete: {complete}"));
            }
        }
        self.check_catalogue()
    }

    fn until_quiet(&mut self, index: usize) -> Result<(), String> {
        // Nobody receives what it doesn't follow.
        let entries = self.server.entries();
        let wanted = entries.iter().filter(|(path, _)| self.members[index].local(path).is_some());
        let end = Cursor { epoch: self.server.epoch(), seq: wanted.map(|(_, entry)| entry.seq).max().unwrap_or(0) };
        for _ in 0..QUIET_STEPS_MAX {
            let did = self.member_step(index)?;
            let member = &mut self.members[index];
            if did || !member.is_idle() {
                continue;
            }
            let follower = member.follower.as_ref().unwrap();
            let has_all = |at: Cursor| at.epoch == end.epoch && at.seq >= end.seq;
            if follower.cursor().is_some_and(has_all) && !follower.is_incomplete() && !follower.is_busy() {
                let said = member.up_to_date;
                return if said >= Some(end.seq) {
                    Ok(())
                } else {
                    Err(format!("follower {index} has all up to {end:?}, and said {said:?}"))
                };
            }
            let wait = member.wait(self.now);
            self.pass(wait);
            self.members[index].tick(self.now)?;
            if self.members[index].stalls > 0 {
                return Err(format!("follower {index} stalls although all is quiet"));
            }
        }
        let at = self.members[index].follower.as_ref().and_then(SimulatedFollower::cursor);
        Err(format!("follower {index} is never up to date: at {at:?}, not {end:?}"))
    }

    /// Checks that renamed files aren't sent.
    fn rename_at_last(&mut self) -> Result<(), String> {
        let truth = self.digests.scan(&self.source.dir);
        let Some(from) = self.source.rename_large(&truth) else { return Ok(()) };
        let is_as_it_was = !self.members[0].personal.contains(&from) && self.members[0].local(&from).is_some();
        self.served();
        let sent = self.members[0].files.sent;
        self.quiet(&mut Tally::new())?;
        if is_as_it_was && self.members[0].files.sent != sent {
            return Err(format!("{from} was renamed, and content was sent"));
        }
        self.move_at_last()
    }

    /// Checks that moved files aren't sent, nor deletions: nobody has to allow them.
    fn move_at_last(&mut self) -> Result<(), String> {
        self.source.burst_at_last(&mut self.draw);
        self.served();
        self.quiet(&mut Tally::new())?;
        let is_as_it_was =
            !self.members[0].personal.iter().any(|path| path.starts_with("many")) && !self.members[0].is_mixed;
        let sent = self.members[0].files.sent;
        self.source.move_many();
        self.served();
        self.server_quiet(&mut Tally::new())?;
        for member in &mut self.members {
            member.kill();
            member.max_delete = MAX_DELETE;
        }
        (0..self.members.len()).try_for_each(|index| self.until_quiet(index))?;
        self.check_quiet()?;
        if is_as_it_was && self.members[0].files.sent != sent {
            return Err("a directory was moved, and content was sent".to_owned());
        }
        Ok(())
    }
}
