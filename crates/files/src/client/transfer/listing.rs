//! The listing: asked for page by page while its files are fetched, and every path in it checked.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use super::command::{DiskCommand, FileKey, Output, Version};
use super::file::{FileTask, Phase};
use super::outcome::TransferError;
use super::{FILES_UNDER_WAY_MAX, Placement, Source, Transfer};
use crate::client::names;
use crate::digest::LeafSize;
use crate::path::{Escaped, RelPath};
use crate::protocol::control::{
    Base, DirStat, EntryKind, LinkTarget, ListEntry, ListPage, ListRequest, ListTarget, Request,
};
use crate::root::Timestamp;

/// Entries of one listing; about 2^20 files are what people really have in a tree.
const LIST_ENTRIES_MAX: usize = 1 << 22;

/// Until a server that has no room for a listing is asked again.
pub(in crate::client) const LISTING_BUSY_WAIT: Duration = Duration::from_secs(1);

/// A directory whose mode and time are set at the end.
#[derive(Debug)]
pub(super) struct ListedDir {
    pub(super) local: RelPath,
    pub(super) mode: u32,
    pub(super) modified: Timestamp,
}

/// Where the listing is.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Of the request, while it is open.
    id: Option<u32>,
    /// A page is on its way.
    awaiting: bool,
    complete: bool,
    /// When it is asked for again, and since when the server has had no room for it.
    again_at: Option<Instant>,
    busy_since: Option<Instant>,
    base: Option<Base>,
    /// Entries that nothing was done for yet.
    entries: VecDeque<ListEntry>,
    /// Hashes of the paths that were taken, so that a listing that is begun again after a cut, or names a path twice, does
    /// nothing twice. Keyed at random: a server cannot choose paths that collide.
    seen: HashSet<u64>,
    hasher: RandomState,
    /// What was left out last, with all below it.
    left_out: Option<RelPath>,
    /// By how deep they are.
    dirs: BTreeMap<usize, Vec<ListedDir>>,
}

impl Listing {
    pub(super) fn open_id(&self) -> Option<&u32> {
        self.id.as_ref()
    }

    pub(super) fn first_entry(&self) -> Option<&ListEntry> {
        self.entries.front()
    }

    /// All entries are known, and something was done for each.
    pub(super) fn is_complete(&self) -> bool {
        self.complete && self.entries.is_empty()
    }

    pub(super) fn interrupted(&mut self) {
        self.id = None;
        self.awaiting = false;
        self.again_at = None;
    }

    /// The server has no room for it now. Whether it is worth asking again.
    pub(super) fn is_asked_for_later(&mut self, now: Instant, patience: Duration) -> bool {
        self.interrupted();
        let since = *self.busy_since.get_or_insert(now);
        let is_early = now.saturating_duration_since(since) < patience;
        self.again_at = is_early.then(|| now + LISTING_BUSY_WAIT);
        is_early
    }

    pub(super) fn again_at(&self) -> Option<Instant> {
        self.again_at
    }

    /// Whether it is time to ask again.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.again_at.take_if(|at| *at <= now).is_some()
    }

    /// The directories that are deepest, of those that were not taken yet.
    pub(super) fn take_deepest_dirs(&mut self) -> Option<Vec<ListedDir>> {
        Some(self.dirs.pop_last()?.1)
    }

    /// Whether this path comes for the first time.
    fn is_new(&mut self, path: &RelPath) -> bool {
        self.seen.insert(self.hasher.hash_one(path))
    }
}

impl Transfer {
    /// Asks for the listing, or for its next page.
    pub(super) fn pump_listing(&mut self) {
        if self.listing.complete || self.listing.awaiting || self.listing.again_at.is_some() {
            return;
        }
        match self.listing.id {
            None => {
                let id = self.fresh_id();
                let target = match &self.options.source {
                    Source::Path(path) => ListTarget::Path(path.into()),
                    Source::Glob(glob) => ListTarget::Glob { glob: glob.clone() },
                };
                let recursive = !self.options.in_order;
                self.send(Request::List(ListRequest { id, target, recursive, digest: false }));
                self.listing.id = Some(id);
            }
            // Directories and links wait for the disk as files do.
            Some(id)
                if self.listing.entries.is_empty() && self.files.len() + self.entries_pending < FILES_UNDER_WAY_MAX =>
            {
                self.send(Request::More { id });
            }
            Some(_) => return,
        }
        self.listing.awaiting = true;
    }

    /// A page arrived.
    pub(super) fn list_page(&mut self, page: ListPage) -> Result<(), TransferError> {
        let listing = &mut self.listing;
        listing.busy_since = None;
        if listing.id != Some(page.id) || !listing.awaiting {
            return Err(TransferError::Protocol("a page of a listing that was not asked for".to_owned()));
        }
        if page.more && page.entries.is_empty() {
            return Err(TransferError::Protocol("an empty page, and more to come".to_owned()));
        }
        if listing.seen.len() + page.entries.len() > LIST_ENTRIES_MAX {
            return Err(TransferError::Protocol(format!("a listing of more than {LIST_ENTRIES_MAX} entries")));
        }
        listing.awaiting = false;
        if !page.more {
            listing.id = None;
            listing.complete = true;
        }
        let base_is_new = listing.base.is_none();
        listing.base = Some(page.base);
        let dir = page.dir.filter(|_| page.base == Base::Dir);
        listing.entries.extend(page.entries);
        if base_is_new {
            if let Some(DirStat { mode, mtime: modified }) = dir {
                listing.dirs.entry(0).or_default().push(ListedDir { local: RelPath::root(), mode, modified });
            }
            self.ask_for_destination(page.base, dir)?;
        } else if self.placement.is_some() {
            self.take_listed_entries()?;
        }
        Ok(())
    }

    fn ask_for_destination(&mut self, base: Base, dir: Option<DirStat>) -> Result<(), TransferError> {
        let is_glob = matches!(self.options.source, Source::Glob(_));
        if is_glob != (base == Base::Glob) {
            return Err(TransferError::Protocol("a listing of something else than was asked for".to_owned()));
        }
        if is_glob && self.listing.entries.is_empty() {
            return Err(TransferError::nothing_matches());
        }
        if self.options.in_order {
            self.check_is_file(base)?;
        }
        let name = match base {
            Base::File | Base::Link => Some(self.own_name()?),
            Base::Dir | Base::Glob => None,
        };
        self.outputs.push_back(Output::OpenDestination { base, name, dir });
        Ok(())
    }

    /// The name of a source that is one file: its path's last name. A server that serves one file lists it as its root.
    fn own_name(&self) -> Result<RelPath, TransferError> {
        let entry = self.listing.entries.front().and_then(|entry| entry.path.to_rel_path().ok());
        let Source::Path(source) = &self.options.source else { return Ok(RelPath::root()) };
        let path = entry.filter(|path| source.is_root() || path == source);
        let name = path.as_ref().and_then(RelPath::name).and_then(|name| RelPath::new(name).ok());
        name.ok_or_else(|| TransferError::Protocol("a file is listed under another path".to_owned()))
    }

    /// Goes through the entries that came.
    pub(super) fn take_listed_entries(&mut self) -> Result<(), TransferError> {
        while let Some(entry) = self.listing.entries.pop_front() {
            if let Err(reason) = self.take_entry(&entry) {
                if self.options.in_order {
                    return Err(TransferError::unmet(reason));
                }
                self.totals.fail(Escaped(entry.path.as_bytes()).to_string(), reason);
            }
        }
        Ok(())
    }

    fn take_entry(&mut self, entry: &ListEntry) -> Result<(), String> {
        let remote = entry.path.to_rel_path().map_err(|error| format!("refused: {error}"))?;
        if entry.kind == EntryKind::Error {
            // Also if it is of a directory that was listed before: there is something in it that won't be.
            return Err(entry.message.clone().unwrap_or_else(|| "the server could not read it".to_owned()));
        }
        let local = self.local_path(&remote)?;
        if self.options.in_order && (entry.kind != EntryKind::File || self.totals.listed_files > 0) {
            return Err("refused: it is not the one file that was asked for".to_owned());
        }
        if !self.listing.is_new(&remote) {
            return Ok(());
        }
        if let Some(depth) = local.names().position(names::is_reserved) {
            let below = local.names().count() - depth - 1;
            // Of a directory that has such a name all is left out, and said once.
            let partial = std::iter::successors(Some(remote), RelPath::parent).nth(below).unwrap_or_default();
            if self.listing.left_out.as_ref() == Some(&partial) {
                return Ok(());
            }
            self.listing.left_out = Some(partial.clone());
            return self.leave_out(&partial, "it has the name of a partial file of another transfer");
        }
        match entry.kind {
            EntryKind::File => self.take_file(remote, local, entry),
            EntryKind::Dir => self.take_dir(local, entry)?,
            EntryKind::Link => self.take_link(&remote, local, entry)?,
            EntryKind::Other => self.leave_out(&remote, "it is neither a file, a directory nor a link")?,
            EntryKind::Error => {}
        }
        Ok(())
    }

    /// Has files inspected once there is nothing that may still stand in the place of a directory of theirs.
    pub(super) fn pump_inspections(&mut self) {
        if self.entries_pending > 0 {
            return;
        }
        for file in std::mem::take(&mut self.to_inspect) {
            if let Some(FileTask { local, version, .. }) = self.files.get(&file) {
                let (local, listed) = (local.clone(), *version);
                self.command(DiskCommand::Inspect { file, local, listed });
            }
        }
    }

    /// Where an entry goes. That it is below what was asked for is checked here; that no link leads out, when it is written.
    fn local_path(&self, remote: &RelPath) -> Result<RelPath, String> {
        let stripped = match (&self.placement, &self.options.source) {
            (Some(Placement::As(local)), Source::Path(source)) => {
                return if source.is_root() || source == remote {
                    Ok(local.clone())
                } else {
                    Err("refused: it is not what was asked for".to_owned())
                };
            }
            (_, Source::Path(source)) => remote.below(source),
            (_, Source::Glob(glob)) => remote.below(&names::glob_base(glob)),
        };
        stripped
            .filter(|local| !local.is_root())
            .ok_or_else(|| "refused: it is not below what was asked for".to_owned())
    }

    /// Where it came from, for people.
    pub(super) fn remote_path(&self, local: &RelPath) -> String {
        let base = match (&self.placement, &self.options.source) {
            // Of a server that serves one thing, it is the thing's own name.
            (Some(Placement::As(_)), Source::Path(path)) if path.is_root() => return local.to_string(),
            (Some(Placement::As(_)), Source::Path(path)) => return path.to_string(),
            (_, Source::Path(path)) => path.clone(),
            (_, Source::Glob(glob)) => names::glob_base(glob),
        };
        if base.is_root() { local.to_string() } else { format!("{base}/{local}") }
    }

    fn take_file(&mut self, remote: RelPath, local: RelPath, entry: &ListEntry) {
        let version = Version { size: entry.size, modified: entry.mtime, mode: entry.mode, sparse: false };
        let key = FileKey(self.fresh_key());
        self.totals.listed_files += 1;
        self.totals.listed_bytes = self.totals.listed_bytes.saturating_add(entry.size);
        let phase = if self.fresh {
            self.waiting.push_back(key);
            Phase::Waiting
        } else {
            self.inspecting += 1;
            self.to_inspect.push(key);
            Phase::Inspecting
        };
        let task = FileTask {
            remote,
            local,
            version,
            allocated: entry.allocated.unwrap_or(u64::MAX),
            leaves: LeafSize::for_file(version.size),
            digest: None,
            values: None,
            delivered: false,
            local_digest: None,
            content: None,
            phase,
            asked: (0, 0),
            digest_may_come: false,
            restarts: 0,
            bad_rounds: 0,
        };
        self.files.insert(key, task);
    }

    fn take_dir(&mut self, local: RelPath, entry: &ListEntry) -> Result<(), String> {
        if matches!(self.placement, Some(Placement::As(_))) {
            return Err("refused: a directory, where a file was listed".to_owned());
        }
        self.entries_pending += 1;
        self.command(DiskCommand::MakeDir { local: local.clone() });
        let dir = ListedDir { local, mode: entry.mode, modified: entry.mtime };
        self.listing.dirs.entry(dir.local.names().count()).or_default().push(dir);
        Ok(())
    }

    fn take_link(&mut self, remote: &RelPath, local: RelPath, entry: &ListEntry) -> Result<(), String> {
        let target = entry.target.as_ref().map(LinkTarget::as_bytes).unwrap_or_default();
        if !names::link_stays_inside(&local, target) {
            return self
                .leave_out(remote, &format!("a link to {}, which may lead out of the destination", Escaped(target)));
        }
        if matches!(self.placement, Some(Placement::As(_))) {
            self.warn(format!("{remote}: it is a link to {}, and only the link is copied", Escaped(target)));
        }
        self.entries_pending += 1;
        self.command(DiskCommand::MakeLink { local, target: target.to_vec(), modified: entry.mtime });
        Ok(())
    }

    /// Says that an entry isn't taken. Where it is all that was asked for, the transfer has failed.
    fn leave_out(&mut self, remote: &RelPath, why: &str) -> Result<(), String> {
        if matches!(self.placement, Some(Placement::As(_))) {
            return Err(format!("left out, {why}"));
        }
        self.warn(format!("{remote}: left out, {why}"));
        Ok(())
    }

    pub(super) fn warn(&mut self, text: String) {
        self.outputs.push_back(Output::Warn(text));
    }
}
