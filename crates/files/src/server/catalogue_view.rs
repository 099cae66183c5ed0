//! An operator's view of a catalogue, which answers without the event loop.

use super::versions::{Versions, newer_versions};
use super::watch::{CatalogueStats, SharedCatalogue};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::relay::{HolderStats, Holders};
use crate::root::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_sockets::{Page, PeerId};

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
    /// How many follow versions and have another one in place.
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

    /// How many have said what is in place.
    pub fn holder_count(&self) -> usize {
        self.holders().count()
    }

    /// Holders that aren't connected: relays reported them, or they were connected before.
    pub fn holders_elsewhere(&self, from: u32) -> Page<HolderStats> {
        self.holders().elsewhere(from)
    }

    /// The same who lack the newest number, so many at most, those who lack most first.
    pub fn last_elsewhere(&self, most: usize) -> Vec<HolderStats> {
        let CatalogueStats { epoch, head, .. } = self.stats();
        self.holders().elsewhere_without(epoch, head, most)
    }

    /// Those who have an older version than the newest of its path, so many at most, those first who have lacked a newer one longest: with the
    /// connection by which each speaks for itself, the number of the version after theirs, and the label of the newest.
    pub fn with_old_versions(&self, most: usize) -> Vec<(Option<PeerId>, HolderStats, u64, String)> {
        let newer = self.versions.as_ref().map(|_| newer_versions(&self.published)).unwrap_or_default();
        self.holders().with_old_version(|digest| newer.get(&digest).cloned(), most)
    }

    /// The published versions, the oldest first. May wait for the disk.
    pub fn versions(&self) -> Vec<VersionStats> {
        let Some(versions) = &self.versions else { return Vec::new() };
        let listed = versions.listed(&self.published);
        let mut counts = HashMap::new();
        self.holders().versions().for_each(|version| *counts.entry(version).or_insert(0) += 1);
        let all: usize = counts.values().sum();
        let holders = |version: &VersionStats| counts.get(&version.digest).copied().unwrap_or(0);
        // A holder of another path's version lacks none of this path.
        let mut elsewhere: HashMap<RelPath, usize> = HashMap::new();
        for of in listed.iter().map(|version| &version.of).collect::<HashSet<_>>() {
            let others = listed.iter().filter(|version| version.of != *of).map(&holders).sum();
            elsewhere.insert(of.clone(), others);
        }
        let with_holders = |version: VersionStats| {
            let (holders, others) = (holders(&version), elsewhere.get(&version.of).copied().unwrap_or(0));
            VersionStats { holders, missing: all.saturating_sub(holders + others), ..version }
        };
        listed.into_iter().map(with_holders).collect()
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
