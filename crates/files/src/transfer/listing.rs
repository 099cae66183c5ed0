//! The listing as a source of entries: requested page by page while files are fetched, and every path in it checked.
//!
//! A source knows nothing of fetches and of the disk. The transfer calls, in this order: [`Listing::next_request`] whenever it has space for
//! more entries, [`Listing::page`] with each answer, [`Listing::place`] once it is known where the files go, and [`Listing::next_entry`]
//! until there is none. Entries that were not requested here come by [`Listing::feed`].

use crate::error::Error;
use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use super::command::Version;
use super::entries::{Entry, Unusable};
use super::{Placement, Source};
use crate::filter::Filter;
use crate::path::{Escaped, RelPath};
use crate::protocol::ErrorCode;
use crate::protocol::control::{
    Base, DirStat, EntryKind, FollowLinks, LinkTarget, ListEntry, ListPage, ListRequest, ListTarget, Request,
};
use crate::transfer::names;

/// Entries of one listing, at most and by default; about 2^20 files are what people really have in a tree.
pub const LIST_ENTRIES_MAX: usize = 1 << 22;

/// Until a server that has no space for a listing is asked again.
pub(crate) const LISTING_BUSY_WAIT: Duration = Duration::from_secs(1);

/// A listing, and how far it is.
#[derive(Debug)]
pub(super) struct Listing {
    source: Source,
    follow: FollowLinks,
    /// Only a single file is wanted.
    single_file: bool,
    /// Entries that it may have.
    entries_max: usize,
    /// Entries that came since it was last requested, also those that are left out or came twice.
    came: usize,
    /// The open request.
    id: Option<u32>,
    /// A page was requested and hasn't come.
    awaiting: bool,
    /// The last page has come.
    complete: bool,
    retry_at: Option<Instant>,
    /// When the server first had no space for it.
    busy_since: Option<Instant>,
    /// The first page has come.
    opened: bool,
    placement: Option<Placement>,
    /// Entries that weren't yielded yet.
    entries: VecDeque<ListEntry>,
    /// Hashes of the paths that were yielded, so that a listing that is requested again after a cut, or names a path twice, yields
    /// nothing twice. Keyed at random: a server can't choose paths that collide.
    seen: HashSet<u64>,
    hasher: RandomState,
    filter: Filter,
    /// The entry that was left out last, with all below it.
    left_out: Option<RelPath>,
    /// Entries that the filter has left out.
    filtered: u64,
    /// Files that were yielded.
    files: u64,
    /// Entries come by [`Listing::feed`].
    is_fed: bool,
}

/// The source, as its first page describes it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) base: Base,
    /// Its name, if it is a file or a link.
    pub(super) name: Option<RelPath>,
    /// Its mode and time, if it is a directory and the server sent them.
    pub(super) dir: Option<DirStat>,
}

impl Listing {
    pub(super) fn new(
        source: Source,
        follow: FollowLinks,
        single_file: bool,
        entries_max: usize,
        filter: Filter,
    ) -> Self {
        Self {
            source,
            follow,
            single_file,
            entries_max: entries_max.min(LIST_ENTRIES_MAX),
            came: 0,
            id: None,
            awaiting: false,
            complete: false,
            retry_at: None,
            busy_since: None,
            opened: false,
            placement: None,
            entries: VecDeque::new(),
            seen: HashSet::new(),
            hasher: RandomState::new(),
            filter,
            left_out: None,
            filtered: 0,
            files: 0,
            is_fed: false,
        }
    }

    /// Requests nothing: entries come by [`Listing::feed`].
    pub(super) fn expect_entries(&mut self) {
        (self.complete, self.opened, self.placement) = (true, true, Some(Placement::Below));
        self.is_fed = true;
    }

    /// Takes entries that weren't requested here.
    pub(super) fn feed(&mut self, entries: Vec<ListEntry>) {
        self.seen.clear();
        self.left_out = None;
        self.entries.extend(entries);
    }

    /// The open request.
    pub(super) fn open_id(&self) -> Option<u32> {
        self.id
    }

    /// Whether all entries were yielded.
    pub(super) fn is_complete(&self) -> bool {
        self.complete && self.entries.is_empty()
    }

    /// The connection is lost, and the request with it.
    pub(super) fn interrupted(&mut self) {
        self.id = None;
        self.awaiting = false;
        self.retry_at = None;
    }

    /// The server has no space for it now: whether it is requested again, which it isn't after `timeout`.
    pub(super) fn retry_later(&mut self, now: Instant, timeout: Duration) -> bool {
        self.interrupted();
        let since = *self.busy_since.get_or_insert(now);
        let is_early = now.saturating_duration_since(since) < timeout;
        self.retry_at = is_early.then(|| now + LISTING_BUSY_WAIT);
        is_early
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether it is time for a retry, which is reported once.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    /// The request for the listing or its next page, if one is to be sent.
    pub(super) fn next_request(&mut self, next_id: impl FnOnce() -> u32, has_space: bool) -> Option<Request> {
        if self.complete || self.awaiting || self.retry_at.is_some() {
            return None;
        }
        let request = match self.id {
            None => {
                let id = next_id();
                let target = match &self.source {
                    Source::Path(path) => ListTarget::Path(path.into()),
                    Source::Glob(glob) => ListTarget::Glob { glob: glob.clone() },
                };
                self.id = Some(id);
                self.came = 0;
                let (recursive, follow) = (!self.single_file, self.follow);
                Request::List(ListRequest { id, target, recursive, digest: false, follow })
            }
            Some(id) if self.entries.is_empty() && has_space => Request::More { id },
            Some(_) => return None,
        };
        self.awaiting = true;
        Some(request)
    }

    /// Takes a page. The first one says what the source is.
    pub(super) fn page(&mut self, page: ListPage) -> Result<Option<Opened>, Error> {
        self.busy_since = None;
        if self.id != Some(page.id) || !self.awaiting {
            return Error::protocol("a page of a listing that wasn't requested");
        }
        if page.more && page.entries.is_empty() {
            return Error::protocol("an empty page that isn't the last");
        }
        self.came += page.entries.len();
        if self.came.max(self.seen.len()) > self.entries_max {
            let message = format!("the listing has more than {} files, directories and links", self.entries_max);
            return Err(Error::Limit(message));
        }
        self.awaiting = false;
        if !page.more {
            self.id = None;
            self.complete = true;
        }
        self.entries.extend(page.entries);
        if std::mem::replace(&mut self.opened, true) {
            return Ok(None);
        }
        self.open(page.base, page.dir).map(Some)
    }

    fn open(&self, base: Base, dir: Option<DirStat>) -> Result<Opened, Error> {
        let is_glob = matches!(self.source, Source::Glob(_));
        if is_glob != (base == Base::Glob) {
            return Error::protocol("a listing of something else than was requested");
        }
        if is_glob && self.entries.is_empty() {
            return Err(Error::nothing_matches());
        }
        if base == Base::Link && (self.single_file || self.follow != FollowLinks::None) {
            return Err(self.link_error());
        }
        if self.single_file && base != Base::File {
            let message = "not a single file".to_owned();
            return Err(Error::Unmet { code: ErrorCode::NotAFile, message });
        }
        let name = match base {
            Base::File | Base::Link => Some(self.own_name()?),
            Base::Dir | Base::Glob => None,
        };
        Ok(Opened { base, name, dir: dir.filter(|_| base == Base::Dir) })
    }

    /// The source is a link, and a file or directory is wanted.
    fn link_error(&self) -> Error {
        let target = self.entries.front().and_then(|entry| entry.target.as_ref());
        let target = Escaped(target.map(LinkTarget::as_bytes).unwrap_or_default());
        let message = match self.follow {
            FollowLinks::None => format!("a link to {target}: get its target instead"),
            _ => format!("a link to {target}, and this server doesn't follow links: get its target instead"),
        };
        Error::Unmet { code: ErrorCode::NotAFile, message }
    }

    /// The last name in the path of a source that is one file. A server that serves one file lists it as its root.
    fn own_name(&self) -> Result<RelPath, Error> {
        let entry = self.entries.front().and_then(|entry| entry.path.to_rel_path().ok());
        let Source::Path(source) = &self.source else { return Ok(RelPath::root()) };
        let path = entry.filter(|path| source.is_root() || path == source);
        path.as_ref()
            .and_then(names::own_name)
            .ok_or_else(|| Error::Protocol("a file is listed under another path".to_owned()))
    }

    /// Says where the files go: entries are yielded from now on.
    pub(super) fn place(&mut self, placement: Placement) {
        self.placement = Some(placement);
    }

    /// Whether it is known where the files go.
    pub(super) fn is_placed(&self) -> bool {
        self.placement.is_some()
    }

    /// The next entry of those that came. Entries that are left out are reported to `warn`.
    pub(super) fn next_entry(&mut self, warn: &mut dyn FnMut(String)) -> Option<Result<Entry, Unusable>> {
        self.placement.as_ref()?;
        while let Some(entry) = self.entries.pop_front() {
            match self.checked(&entry, warn) {
                Ok(Some(checked)) => return Some(Ok(checked)),
                Ok(None) => {}
                Err(reason) => {
                    return Some(Err(Unusable { path: Escaped(entry.path.as_bytes()).to_string(), reason }));
                }
            }
        }
        if self.complete && self.seen.is_empty() && self.filtered > 0 {
            warn("all that is there is left out by --exclude and --include".to_owned());
            self.filtered = 0;
        }
        None
    }

    /// Checks an entry: `None` if it is left out, or was yielded before.
    fn checked(&mut self, entry: &ListEntry, warn: &mut dyn FnMut(String)) -> Result<Option<Entry>, String> {
        let remote = entry.path.to_rel_path().map_err(|error| format!("refused: {error}"))?;
        if entry.kind == EntryKind::Error {
            // Also of a directory that was listed before: something in it won't be.
            return Err(entry.message.clone().unwrap_or_else(|| "the server could not read it".to_owned()));
        }
        let local = self.local_path(&remote)?;
        if self.single_file && (entry.kind != EntryKind::File || self.files > 0) {
            return Err("refused: it is not the one file that was requested".to_owned());
        }
        // What was asked for by name is taken in any case.
        let is_below = !matches!(self.placement, Some(Placement::As(_)));
        if is_below && !self.filter.takes(&local, entry.kind == EntryKind::Dir) {
            self.filtered += 1;
            return Ok(None);
        }
        if !self.seen.insert(self.hasher.hash_one(&remote)) {
            return Ok(None);
        }
        if let Some(depth) = local.names().position(names::is_reserved) {
            let below = local.names().count() - depth - 1;
            // All of a directory that has such a name is left out, and reported once.
            let partial = std::iter::successors(Some(remote), RelPath::parent).nth(below).unwrap_or_default();
            if self.left_out.as_ref() == Some(&partial) {
                return Ok(None);
            }
            self.left_out = Some(partial.clone());
            return self.leave_out(&partial, "it has the name of a partial file of another transfer", warn);
        }
        match entry.kind {
            EntryKind::File => {
                self.files += 1;
                let version = Version { size: entry.size, modified: entry.mtime, mode: entry.mode, sparse: false };
                // That of a listing is nothing that a file must have: it may change.
                let digest = entry.digest.filter(|_| self.is_fed);
                let (allocated, hard_link) = (entry.allocated.unwrap_or(u64::MAX), entry.hard_link);
                Ok(Some(Entry::File { remote, local, version, allocated, digest, hard_link }))
            }
            EntryKind::Dir if matches!(self.placement, Some(Placement::As(_))) => {
                Err("refused: a directory, where a file was listed".to_owned())
            }
            EntryKind::Dir => Ok(Some(Entry::Dir { local, stat: DirStat { mode: entry.mode, mtime: entry.mtime } })),
            EntryKind::Link if self.follow == FollowLinks::All => {
                Err("a link, and this server doesn't follow links".to_owned())
            }
            EntryKind::Link => self.link(&remote, local, entry, warn),
            EntryKind::Other => self.leave_out(&remote, "it is neither a file, a directory nor a link", warn),
            EntryKind::Error => Ok(None),
        }
    }

    fn link(
        &self,
        remote: &RelPath,
        local: RelPath,
        entry: &ListEntry,
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<Entry>, String> {
        let target = entry.target.as_ref().map(LinkTarget::as_bytes).unwrap_or_default();
        if !names::link_stays_inside(&local, target) {
            let why = format!("a link to {}, which may lead out of the destination", Escaped(target));
            return self.leave_out(remote, &why, warn);
        }
        Ok(Some(Entry::Link { local, target: target.to_vec(), modified: entry.mtime }))
    }

    /// Leaves an entry out: an error if it is all that was asked for.
    fn leave_out(&self, remote: &RelPath, why: &str, warn: &mut dyn FnMut(String)) -> Result<Option<Entry>, String> {
        if matches!(self.placement, Some(Placement::As(_))) {
            return Err(format!("left out, {why}"));
        }
        warn(format!("{remote}: left out, {why}"));
        Ok(None)
    }

    /// Path of an entry in the destination. That it is below what was asked for is checked here; that no link leads out, when it is written.
    fn local_path(&self, remote: &RelPath) -> Result<RelPath, String> {
        let stripped = match (&self.placement, &self.source) {
            (Some(Placement::As(local)), Source::Path(source)) => {
                return if source.is_root() || source == remote {
                    Ok(local.clone())
                } else {
                    Err("refused: it is not what was requested".to_owned())
                };
            }
            (_, Source::Path(source)) => remote.below(source),
            (_, Source::Glob(glob)) => remote.below(&names::glob_base(glob)),
        };
        let is_itself = |local: &RelPath| self.is_fed && local.is_root();
        // A file that is followed has its own name.
        let stripped = stripped.and_then(|local| if is_itself(&local) { names::own_name(remote) } else { Some(local) });
        stripped
            .filter(|local| !local.is_root())
            .ok_or_else(|| "refused: it is not below what was requested".to_owned())
    }

    /// Whether what is below the source goes below the destination, as far as that is known.
    pub(super) fn is_tree(&self) -> bool {
        !matches!(self.placement, Some(Placement::As(_)))
    }

    /// Whether an entry came that belongs at a path below the destination. Hashes may collide: then it seems so.
    pub(super) fn is_listed(&self, local: &RelPath) -> bool {
        let base = match &self.source {
            Source::Path(path) => path.clone(),
            Source::Glob(glob) => names::glob_base(glob),
        };
        let remote = local.names().try_fold(base, |at, name| at.join(name));
        remote.is_ok_and(|remote| self.seen.contains(&self.hasher.hash_one(&remote)))
    }

    /// The path on the server of what goes to a local path, for people.
    pub(super) fn remote_path(&self, local: &RelPath) -> String {
        let base = match (&self.placement, &self.source) {
            // Of a server that serves one thing, it is the thing's own name.
            (Some(Placement::As(_)), Source::Path(path)) if path.is_root() => return local.to_string(),
            (Some(Placement::As(_)), Source::Path(path)) => return path.to_string(),
            (_, Source::Path(path)) => path.clone(),
            (_, Source::Glob(glob)) => names::glob_base(glob),
        };
        if base.is_root() { local.to_string() } else { format!("{base}/{local}") }
    }
}
