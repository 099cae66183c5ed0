//! An operator's view of a catalogue, which answers without the event loop.

use super::followers_look::FollowersLook;
use super::versions::{NewestVersion, Versions, newer_versions, newest_versions};
use super::watch::{CatalogueStats, SharedCatalogue};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::control::HolderName;
use crate::relay::{HolderStats, Holders, Known, Presence};
use crate::root::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use towpath_sockets::Page;

/// The catalogue of a server that watches its directory; clones show the same.
#[derive(Clone, Debug)]
pub struct CatalogueView {
    published: Arc<SharedCatalogue>,
    versions: Option<Arc<Versions>>,
    holders: Arc<Mutex<Holders>>,
}

/// A published version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionStats {
    /// The path that it is of.
    pub of: RelPath,
    /// Its label.
    pub label: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Its number.
    pub seq: u64,
    /// When it was published.
    pub published: Timestamp,
    /// Its files and their bytes, if its manifest can be read and isn't very long.
    pub size: Option<(u64, u64)>,
    /// How many have it in place.
    pub holders: usize,
    /// How many follow versions of this path, haven't ended, and have another one in place, or none.
    pub missing: usize,
}

impl CatalogueView {
    pub(super) fn new(
        published: Arc<SharedCatalogue>,
        versions: Option<Arc<Versions>>,
        holders: Arc<Mutex<Holders>>,
    ) -> CatalogueView {
        CatalogueView { published, versions, holders }
    }

    /// Sums.
    pub fn stats(&self) -> CatalogueStats {
        self.published.stats()
    }

    /// Sets the names of the followers that are to be there: those that are seen don't count any more.
    pub fn expect_followers(&self, names: BTreeSet<HolderName>) {
        self.holders().set_listed(names);
    }

    /// How many have said what is in place.
    pub fn holder_count(&self) -> usize {
        self.holders().count()
    }

    /// Holders that aren't connected: relays reported them, or they were connected before.
    pub fn holders_elsewhere(&self, from: u32) -> Page<HolderStats> {
        self.holders().elsewhere(from, Instant::now())
    }

    /// The number up to which the last of the followers has everything that aren't connected, and haven't ended; without those of versions.
    pub fn least_elsewhere(&self) -> Option<u64> {
        let CatalogueStats { epoch, .. } = self.stats();
        let holders = self.holders();
        let is_counted = |known: &Known<'_>| {
            let holder = known.holder();
            known.peer().is_none()
                && known.presence() != Presence::Ended
                && (holder.versions_of.is_none() && holder.version.is_none())
                && holders.is_expected(&holder.name)
        };
        let has = |known: Known<'_>| known.holder().cursor.filter(|at| at.epoch == epoch).map_or(0, |at| at.seq);
        holders.known(Instant::now()).filter(is_counted).map(has).min()
    }

    /// Names of followers that are to be there, from this number on, of those that have never been.
    pub fn never_seen(&self, from: u32) -> Page<String> {
        let holders = self.holders();
        let numbered = (0..).zip(holders.never_seen()).skip(from as usize);
        Page::of(numbered.map(|(number, name)| (number, Some(name.as_str().to_owned()))))
    }

    /// Forgets followers of a name that aren't there: how many, and how many are there.
    pub fn forget(&self, name: &HolderName) -> (usize, usize) {
        self.holders().forget(name, Instant::now())
    }

    /// The newest version of each path.
    pub fn newest_versions(&self) -> HashMap<RelPath, NewestVersion> {
        self.versions.as_ref().map(|_| newest_versions(&self.published)).unwrap_or_default()
    }

    /// Followers that fail or lack something, so many of each at most, and who has the newest version of each path.
    pub fn look(&self, most: usize) -> FollowersLook {
        let CatalogueStats { epoch, head, .. } = self.stats();
        let newest = self.newest_versions();
        let newer = self.versions.as_ref().map(|_| newer_versions(&self.published)).unwrap_or_default();
        FollowersLook::new(&self.holders(), (epoch, head), &newest, &newer, most, Instant::now())
    }

    /// A page of who lacks a version, or who has it, by name. Those lack it who follow versions of its path, and have another one or none.
    pub fn holders_of(&self, version: &VersionStats, has: bool, from: u32) -> Page<HolderStats> {
        let holders = self.holders();
        let numbered = (0..).zip(holders.known(Instant::now())).skip(from as usize);
        let wanted = |known: &Known<'_>| {
            let holder = known.holder();
            match holder.version == Some(version.digest) {
                true => has,
                false => !has && holder.versions_of.as_ref().is_some_and(|of| *of.path() == version.of),
            }
        };
        Page::of(numbered.map(|(number, known)| (number, wanted(&known).then(|| known.stats()))))
    }

    /// The published versions, the oldest first. May wait for the disk.
    pub fn versions(&self) -> Vec<VersionStats> {
        let Some(versions) = &self.versions else { return Vec::new() };
        let listed = versions.listed(&self.published);
        let (mut have, mut follow) = (HashMap::new(), HashMap::new());
        for known in self.holders().known(Instant::now()) {
            let holder = known.holder();
            let of = holder.versions_of.as_ref().map(|of| of.path().clone());
            if let Some(version) = holder.version {
                // By the path that each follows, since versions of several paths may be the same.
                *have.entry((version, of.clone())).or_insert(0) += 1;
            }
            if known.presence() != Presence::Ended {
                let (all, with) = follow.entry(of).or_insert_with(|| (0, HashMap::new()));
                *all += 1;
                holder.version.iter().for_each(|version| *with.entry(*version).or_insert(0) += 1);
            }
        }
        let with_holders = |version: VersionStats| {
            let of = Some(version.of.clone());
            let has = |of| have.get(&(version.digest, of)).copied().unwrap_or(0);
            let missing = follow.get(&of).map_or(0, |(all, with): &(usize, HashMap<Digest, usize>)| {
                all.saturating_sub(with.get(&version.digest).copied().unwrap_or(0))
            });
            VersionStats { holders: has(of) + has(None), missing, ..version }
        };
        listed.into_iter().map(with_holders).collect()
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
