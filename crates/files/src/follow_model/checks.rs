//! Invariants.

use super::member::Member;
use super::source::What;
use super::world::World;
use crate::catalogue::{Content, Entry};
use crate::protocol::follow::Cursor;
use std::collections::{BTreeMap, HashSet};

impl World {
    /// Checks the changes of the catalogue by a scan or by finished files.
    pub fn check_published(&mut self, before: &BTreeMap<String, Entry>) -> Result<(), String> {
        let after = self.server.live();
        let there: HashSet<_> = after.values().map(|entry| (entry.identity.device, entry.identity.inode)).collect();
        let gone: Vec<_> = before.iter().filter(|(path, _)| !after.contains_key(*path)).collect();
        let lost: Vec<_> =
            gone.iter().filter(|(_, entry)| !there.contains(&(entry.identity.device, entry.identity.inode))).collect();
        if !gone.is_empty() && !self.is_released {
            let paths = || gone.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>();
            if !self.was_accepted {
                return Err(format!("deleted because another root has less: {:?}", paths()));
            }
            if lost.len() as u64 > self.max_delete && lost.len() * 10 > before.len() {
                return Err(format!("more deletions than may be: {:?} of {}", paths(), before.len()));
            }
            if after.is_empty() && std::fs::read_dir(&self.source.dir).unwrap().next().is_none() {
                return Err(format!("deleted because the root is empty: {:?}", paths()));
            }
        }
        let lost = |path: &str| self.source.devices.lost.contains(path) && !self.is_released;
        if let Some((path, _)) = gone.iter().find(|(path, _)| lost(path)) {
            return Err(format!("deleted because its file system isn't mounted: {path}"));
        }
        for (path, entry) in gone {
            // Something may be there by now that isn't published yet.
            let same = |what: &std::fs::Metadata| match entry.content {
                Content::Dir { .. } => what.is_dir(),
                Content::Link { .. } => what.is_symlink(),
                _ => what.is_file(),
            };
            // Through a link, something else is there.
            let above = path.match_indices('/').map(|(at, _)| self.source.dir.join(&path[..at]));
            let leads_elsewhere = above.into_iter().any(|above| above.is_symlink());
            if !leads_elsewhere && self.source.dir.join(path).symlink_metadata().is_ok_and(|what| same(&what)) {
                return Err(format!("deleted, and it is there: {path}"));
            }
        }
        let epoch = self.server.epoch();
        for (path, entry) in self.server.entries() {
            let known =
                self.numbers.entry((epoch.0, entry.seq)).or_insert_with(|| (path.clone(), entry.content.clone()));
            if *known != (path.clone(), entry.content.clone()) {
                return Err(format!("number {} means {known:?} and {path} {:?}", entry.seq, entry.content));
            }
        }
        Ok(())
    }

    /// After a look at everything, and with nothing held, what is published is what is there.
    pub fn check_catalogue(&mut self) -> Result<(), String> {
        let published = self.server.live().into_iter().filter_map(|(path, entry)| {
            let what = match entry.content {
                Content::File { digest, .. } => What::File(digest),
                Content::Dir { .. } => What::Dir,
                Content::Link { target, .. } => What::Link(target.into()),
                Content::Gone => return None,
            };
            Some((path, what))
        });
        let (published, truth): (BTreeMap<_, _>, _) = (published.collect(), self.digests.scan(&self.source.dir));
        if published == truth { Ok(()) } else { Err(format!("{published:?} is published, and not {truth:?}")) }
    }

    /// Everything up to a cursor is in place.
    pub fn check_in_place(&mut self, index: usize, cursor: Cursor) -> Result<(), String> {
        if cursor.epoch != self.server.epoch() || cursor.seq < self.known_from {
            return Ok(());
        }
        let there = self.digests.scan(&self.members[index].dir);
        let member = &self.members[index];
        for (remote, entry) in self.server.entries() {
            let Some(local) = member.local(&remote).filter(|_| entry.seq <= cursor.seq) else { continue };
            if member.personal.contains(&local) {
                continue;
            }
            let found = there.get(&local);
            let is_there = match (&entry.content, found) {
                (Content::File { digest, .. }, Some(What::File(found))) => digest == found,
                (Content::Dir { .. }, _) if local == remote && local == member.below => true,
                (Content::Dir { .. }, Some(What::Dir)) => true,
                (Content::Link { target, .. }, Some(What::Link(found))) => **target == **found,
                (Content::Gone, None) => true,
                (Content::Gone, Some(_)) => !member.mirrors || member.is_mixed || is_of_person(member, &there, &local),
                _ => false,
            };
            if !is_there {
                let Cursor { seq, .. } = cursor;
                return Err(format!(
                    "{:?} says that it has {seq}; {local} is {found:?}, and not {entry:?}",
                    member.below
                ));
            }
        }
        Ok(())
    }

    /// Checks that no unfinished or unverified file has a final name, and that nothing is written to where a person has moved a directory.
    pub fn check_contents(&mut self) -> Result<(), String> {
        for member in &self.members {
            for (place, before) in &member.moved {
                let now = self.digests.scan(place);
                if now != *before {
                    return Err(format!(
                        "{} was moved there by a person, with {before:?}, and has {now:?}",
                        place.display()
                    ));
                }
            }
        }
        for member in &self.members {
            for (path, what) in self.digests.scan(&member.dir) {
                if let What::File(digest) = what
                    && !self.source.complete.contains(&digest)
                    && !member.kept.contains(&digest)
                {
                    return Err(format!("{path} of {:?} has a content that nobody had complete", member.below));
                }
            }
        }
        Ok(())
    }

    /// All is quiet: every follower has what the source has.
    pub fn check_quiet(&mut self) -> Result<(), String> {
        let truth = self.digests.scan(&self.source.dir);
        for member in &self.members {
            let (expected, there) = (member.expected(&truth), self.digests.scan(&member.dir));
            for (path, what) in &expected {
                if there.get(path) != Some(what) && !member.personal.contains(path) {
                    return Err(format!("{path} of {:?} is {:?}, not {what:?}", member.below, there.get(path)));
                }
            }
            let extra = there.keys().filter(|path| !expected.contains_key(*path));
            for path in extra.filter(|_| member.mirrors && !member.is_mixed) {
                if !is_of_person(member, &there, path) {
                    return Err(format!("{path} of {:?} should be gone", member.below));
                }
            }
            let moved = member.moved.iter().flat_map(|(_, there)| there.values());
            let contents: HashSet<_> = there.values().chain(moved).collect();
            if member.kept.iter().any(|digest| !contents.contains(&What::File(*digest))) {
                return Err(format!("what a person wrote in {:?} is lost", member.below));
            }
        }
        self.check_contents()
    }
}

/// Whether something is a person's, or has something of a person in it.
pub fn is_of_person(member: &Member, there: &BTreeMap<String, What>, path: &str) -> bool {
    let is_own =
        |path: &String| path.contains("mine-") || path.contains(".tow-conflict-") || member.personal.contains(path);
    let is_below =
        |other: &&String| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    there.keys().filter(is_below).any(is_own)
}
