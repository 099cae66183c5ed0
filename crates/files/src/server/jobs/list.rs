//! Listings, page by page: a resumable walk through directories.

mod entries;
mod level;

use super::hasher::{Hasher, SLICE_BYTES};
use super::pool::{Pool, Requester};
use super::{Answer, RequestState};
use crate::digest::FileHasher;
use crate::limits::LIST_PAGE_ENTRIES_MAX;
use crate::path::{PATH_BYTES_MAX, PathError, RelPath, is_reserved};
use crate::protocol::ErrorCode;
use crate::protocol::control::{Base, DirStat, EntryKind, FollowLinks, ListEntry, ListRequest, ListTarget, PageWriter};
use crate::root::{DirEntry, FileKind, RootError};
use crate::server::Failure;
use crate::server::client_root::{ClientRoot, SeenDir};
use crate::server::glob::{Glob, literal_beginning};
use crate::server::open_file::OpenFile;
use crate::server::resource_errors::Shortage;
use crate::server::source::OpenedDir;
use bytes::Bytes;
use entries::{entry, failed, look, not_followed, unreadable};
use level::{Level, LevelError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_quota::Quota;

/// Allocator overhead of a name, and its smallest block, in bytes.
const ALLOCATED_EXTRA: usize = 8;
const ALLOCATED_MIN: usize = 32;
/// Least memory of a name, in bytes.
const NAME_BYTES_MIN: usize = size_of::<DirEntry>() + ALLOCATED_MIN;

/// Names that a listing keeps in memory, for all directories on its path.
const NAMES_MAX: usize = 1 << 20;
/// Directories that stay open while a page is made. Those above are reopened when the walk returns to them.
const OPEN_LEVELS_MAX: usize = 16;
/// Entries of the first page.
pub(crate) const FIRST_PAGE_ENTRIES: usize = 512;
/// Entries of later pages. Fewer than the protocol allows, since a client receives nothing while it processes a page.
pub(crate) const PAGE_ENTRIES_MAX: usize = 1024;
const _: () = assert!(PAGE_ENTRIES_MAX <= LIST_PAGE_ENTRIES_MAX);
/// Time after which a walk that hasn't filled its page gives way to others, and goes on later.
const SLICE_TIME: Duration = Duration::from_millis(20);
/// Bytes hashed for a page before it is sent, so that the client sees progress.
const PAGE_HASHED_BYTES: u64 = 1 << 30;

/// Makes the next page of a listing, or the first one of a new listing.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) begin: Option<ListRequest>,
}

/// A page of a listing: the JSON of the reply.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) json: Bytes,
    pub(crate) more: bool,
}

/// A listing before its next page.
enum Walk {
    New(ListRequest),
    Begun(Box<Listing>),
}

impl List {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester, request: &Arc<RequestState>) {
        let (walk, path, hashes) = match self.begin {
            Some(begin) => {
                let (path, hashes) = (start_of(&begin), begin.digest);
                (Walk::New(begin), path, hashes)
            }
            None => {
                let Some(listing) = request.listing().take() else { return };
                let (path, hashes) = (listing.levels.last().map(|level| level.path.clone()), listing.digest);
                (Walk::Begun(listing), path, hashes)
            }
        };
        let (_, group) = pool.group(requester, &request.snapshot, path.as_ref());
        let threads = if hashes { &pool.hash } else { &pool.list };
        let failed = |failure| Answer::List(Err(failure));
        let (request, mut walk) = (Arc::clone(request), Some(walk));
        pool.run_steps(threads, group, requester, failed, move |context| {
            let root = &request.root(context);
            let (hasher, names, cancel) = (&context.hasher, &request.list_names, &request.cancel);
            let lister = Lister { root, hasher, names, cancel, slice: SLICE_TIME };
            let listing = match walk.take()? {
                Walk::New(begin) => lister.begin(&begin).map(Box::new),
                Walk::Begun(listing) => Ok(listing),
            };
            let page = listing.and_then(|mut listing| Ok((lister.page(&mut listing)?, listing)));
            let page = match page {
                Ok((None, listing)) => {
                    walk = Some(Walk::Begun(listing));
                    return None;
                }
                Ok((Some(page), listing)) => {
                    *request.listing() = Some(listing).filter(|_| page.more);
                    Ok(page)
                }
                Err(failure) => Err(failure),
            };
            Some(Answer::List(page))
        });
    }
}

/// Context of the listings of a request.
pub(crate) struct Lister<'a> {
    pub(crate) root: &'a ClientRoot,
    pub(crate) hasher: &'a Hasher,
    /// The client's share of [`Quotas::list_names`](crate::server::quota::Quotas::list_names).
    pub(crate) names: &'a Arc<Quota>,
    pub(crate) cancel: &'a CancelToken,
    /// Time after which a walk gives way to others.
    pub(crate) slice: Duration,
}

/// The time of a walk until it gives way to others. It always gets on by a step.
struct Slice {
    ends: Instant,
    is_begun: bool,
}

impl Slice {
    fn is_over(&mut self) -> bool {
        std::mem::replace(&mut self.is_begun, true) && Instant::now() >= self.ends
    }
}

/// Why a walk doesn't go on now.
enum Stop {
    /// Gives way to others.
    Later,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// A listing: the position of the walk. Holds no descriptors between two pages.
#[derive(Debug)]
pub(crate) struct Listing {
    id: u32,
    base: Base,
    /// Metadata of the listed directory, for the first page.
    dir: Option<DirStat>,
    digest: bool,
    recursive: bool,
    follow: FollowLinks,
    glob: Option<Glob>,
    /// From the listed directory downwards.
    levels: Vec<Level>,
    /// An entry for which the page had no space.
    held_back: Option<ListEntry>,
    /// Entries in the next page. The first is short, so that the client can begin while the next is made.
    page_entries: usize,
    /// The page in progress between two slices, and the bytes hashed for it.
    page: Option<PageWriter>,
    hashed: u64,
    /// The file of `held_back` while it is being hashed.
    hashing: Option<(OpenFile, Option<FileHasher>)>,
}

impl Lister<'_> {
    /// Begins a listing.
    pub(crate) fn begin(&self, request: &ListRequest) -> Result<Listing, Failure> {
        let mut listing = Listing {
            id: request.id,
            base: Base::Glob,
            dir: None,
            digest: request.digest,
            recursive: request.recursive,
            follow: request.follow,
            glob: None,
            levels: Vec::new(),
            held_back: None,
            page_entries: FIRST_PAGE_ENTRIES,
            page: None,
            hashed: 0,
            hashing: None,
        };
        match &request.target {
            ListTarget::Glob { glob } => self.begin_glob(&mut listing, glob)?,
            ListTarget::Path(path) => {
                let path = path.to_rel_path().map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
                self.begin_path(&mut listing, &path)?;
            }
        }
        Ok(listing)
    }

    fn begin_path(&self, listing: &mut Listing, path: &RelPath) -> Result<(), Failure> {
        let mut stat = self.root.stat(path)?;
        if stat.kind == FileKind::Link && listing.follow != FollowLinks::None {
            stat = match self.root.stat_followed(path) {
                Ok(stat) => stat,
                Err(error) if Shortage::is_why(&error) => return Err(error.into()),
                Err(error) => {
                    let message = not_followed(&self.root.read_link(path)?, &error);
                    return Err(Failure::new(Failure::from(error).code, message));
                }
            };
        }
        // A root that is one file lists as that file, under its name.
        let path = if path.is_root() { self.root.only_file().unwrap_or(path) } else { path };
        listing.base = match stat.kind {
            FileKind::Dir => Base::Dir,
            FileKind::Link => Base::Link,
            FileKind::File | FileKind::Other => Base::File,
        };
        if stat.kind == FileKind::Dir {
            listing.dir = Some(DirStat { mode: stat.mode, mtime: stat.modified });
            listing.levels.push(self.open_level(path, NAMES_MAX, true)?);
        } else {
            let target = if stat.kind == FileKind::Link { Some(self.root.read_link(path)?) } else { None };
            listing.held_back = Some(entry(path, &stat, target));
        }
        Ok(())
    }

    fn begin_glob(&self, listing: &mut Listing, glob: &str) -> Result<(), Failure> {
        let pattern = Glob::new(glob)?;
        if let Some(only) = self.root.only_file() {
            match self.root.stat(only) {
                Ok(stat) if pattern.matches(only.as_bytes()) => listing.held_back = Some(entry(only, &stat, None)),
                Ok(_) | Err(RootError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
        let start = literal_beginning(glob);
        listing.glob = Some(pattern);
        match self.open_level(&start, NAMES_MAX, false) {
            Ok(level) => listing.levels.push(level),
            // A pattern that matches nothing is no error.
            Err(LevelError::Root(RootError::NotFound | RootError::NotADirectory | RootError::Outside)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn open_level(&self, path: &RelPath, names_max: usize, all: bool) -> Result<Level, LevelError> {
        let SeenDir { dir, path: real } = self.root.open_dir(path)?;
        let dir = match dir {
            OpenedDir::Local(dir) => dir,
            OpenedDir::Pages(pages) => return Level::of_pages(path, (real, pages), self.names, all),
        };
        let space = usize::try_from(self.names.available()).unwrap_or(usize::MAX) / NAME_BYTES_MIN;
        let mut names = match dir.entries(names_max.min(space)) {
            Err(RootError::TooMany(_)) if space < names_max => return Err(LevelError::no_space()),
            // The rest of the limit would mean nothing to the client.
            Err(RootError::TooMany(_)) => return Err(LevelError::Root(RootError::TooMany(NAMES_MAX))),
            names => names?,
        };
        names.shrink_to_fit();
        names.reverse();
        Level::local(path, (real, dir), names, self.names, all)
    }

    /// Makes the next page. None: a slice is done, call this again.
    pub(crate) fn page(&self, listing: &mut Listing) -> Result<Option<Page>, Failure> {
        let mut page = match listing.page.take() {
            Some(page) => page,
            None => {
                listing.hashed = 0;
                PageWriter::new(listing.id, listing.base, listing.dir.take())
            }
        };
        let entries_max = listing.page_entries;
        let slice_end = listing.hashed.saturating_add(SLICE_BYTES);
        let mut slice = Slice { ends: Instant::now() + self.slice, is_begun: false };
        loop {
            let is_full = page.entries() >= entries_max || listing.hashed >= PAGE_HASHED_BYTES;
            if is_full && (listing.held_back.is_some() || listing.is_through()) {
                break;
            }
            if self.cancel.is_cancelled() {
                if let Some((_, Some(hasher))) = listing.hashing.take() {
                    self.hasher.keep(hasher);
                }
                return Err(Failure::new(ErrorCode::Other, "cancelled"));
            }
            let mut entry = match self.held_back_or_next(listing, &mut slice) {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Later) => return Ok(listing.pause(page)),
            };
            // If the page is full just at the end, no further one must be promised.
            if is_full {
                listing.held_back = Some(entry);
                break;
            }
            if listing.hashed >= slice_end || !self.add_digest(listing, &mut entry)? {
                listing.held_back = Some(entry);
                return Ok(listing.pause(page));
            }
            if !page.push(&entry) {
                listing.held_back = Some(entry);
                break;
            }
        }
        listing.page_entries = (entries_max * 2).min(PAGE_ENTRIES_MAX);
        let more = listing.held_back.is_some() || !listing.is_through();
        listing.levels.iter_mut().for_each(|level| level.names.close());
        Ok(Some(Page { json: page.finish(more).into(), more }))
    }

    fn held_back_or_next(&self, listing: &mut Listing, slice: &mut Slice) -> Result<Option<ListEntry>, Stop> {
        match listing.held_back.take() {
            Some(entry) => Ok(Some(entry)),
            None => self.next(listing, slice),
        }
    }

    /// Walks to the next entry. Fails if the listing can't go on.
    fn next(&self, listing: &mut Listing, slice: &mut Slice) -> Result<Option<ListEntry>, Stop> {
        while let Some(level) = listing.levels.last_mut() {
            if slice.is_over() {
                return Err(Stop::Later);
            }
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            let Some((name, listed)) = level.names.pop() else {
                let path = level.path.clone();
                match level.next_page(self.names) {
                    Ok(true) => {}
                    Ok(false) => _ = listing.levels.pop(),
                    Err(LevelError::Busy(failure)) => return Err(failure.into()),
                    Err(LevelError::Root(error)) => {
                        listing.levels.pop();
                        return Ok(Some(failed(&path, error)?));
                    }
                }
                continue;
            };
            if is_reserved(&name) {
                continue;
            }
            let glob = &mut listing.glob;
            let path = match level.path.join(&name) {
                Ok(path) => path,
                Err(error) => {
                    if !self.root.may_see(&joined(&level.real, &name), FileKind::Other) {
                        continue;
                    }
                    let bytes = [level.path.as_bytes(), b"/", &name].concat();
                    if !level.all && glob.as_mut().is_some_and(|glob| !glob.reaches(&bytes)) {
                        continue;
                    }
                    // It can't be named or requested, but the client has to know that something is missing.
                    let name = name.escape_ascii();
                    let message = match error {
                        PathError::TooLong => {
                            format!("what is below is left out, its path has over {PATH_BYTES_MAX} bytes: {name}")
                        }
                        other => format!("a name is left out, {other}: {name}"),
                    };
                    return Ok(Some(unreadable(&level.path, message)));
                }
            };
            let is_listed = level.all || glob.as_ref().is_none_or(|glob| glob.matches(path.as_bytes()));
            let found = match listed {
                Some(attributes) => Ok((attributes, None)),
                None => match level.open(self.root) {
                    Ok(dir) => look(dir, &name),
                    Err(error) => {
                        // The directory was removed during the walk, with all that is in it.
                        level.names.clear();
                        if matches!(error, RootError::NotFound) {
                            continue;
                        }
                        return Ok(Some(failed(&level.path, error)?));
                    }
                },
            };
            let real = joined(&level.real, &name);
            let kind = found.as_ref().map_or(FileKind::Other, |(stat, _)| stat.kind);
            let is_secret = found.as_ref().is_ok_and(|(stat, _)| self.root.is_secret(stat));
            if is_secret || !self.root.may_see(&real, kind) {
                continue;
            }
            let (mut stat, mut target) = match found {
                Ok((stat, target)) => (self.root.shown(&real, stat), target),
                Err(RootError::NotFound) => continue,
                Err(error) => {
                    // Otherwise it can't match, and its error doesn't matter.
                    if is_listed || glob.as_mut().is_none_or(|glob| glob.may_match_below(path.as_bytes())) {
                        return Ok(Some(failed(&path, error)?));
                    }
                    continue;
                }
            };
            if let Some(link) = target.take_if(|_| listing.follow == FollowLinks::All && is_listed) {
                stat = match self.root.stat_followed(&path) {
                    Ok(stat) => stat,
                    Err(error) if Shortage::is_why(&error) => return Err(Failure::from(error).into()),
                    Err(error) => return Ok(Some(unreadable(&path, not_followed(&link, &error)))),
                };
            }
            let identity = stat.local.map(|stat| (stat.device, stat.inode));
            let is_above = |level: &Level| identity.is_some() && level.identity == identity;
            if stat.kind == FileKind::Dir && listing.follow == FollowLinks::All && listing.levels.iter().any(is_above) {
                return Ok(Some(unreadable(&path, "a loop: links lead to a directory above it".to_owned())));
            }
            if stat.kind == FileKind::Dir {
                let (all_below, is_deeper) = match glob {
                    Some(glob) => (is_listed, !is_listed && glob.may_match_below(path.as_bytes())),
                    None => (listing.recursive, false),
                };
                if all_below || is_deeper {
                    match self.descend(listing, &path, all_below) {
                        Ok(()) => {}
                        Err(LevelError::Root(RootError::NotFound)) => continue,
                        Err(LevelError::Root(error)) => return Ok(Some(failed(&path, error)?)),
                        Err(LevelError::Busy(failure)) => return Err(failure.into()),
                    }
                }
            }
            if is_listed {
                return Ok(Some(entry(&path, &stat, target)));
            }
        }
        Ok(None)
    }

    fn descend(&self, listing: &mut Listing, path: &RelPath, all: bool) -> Result<(), LevelError> {
        let kept: usize = listing.levels.iter().map(|level| level.names.len()).sum();
        listing.levels.push(self.open_level(path, NAMES_MAX.saturating_sub(kept), all)?);
        if let Some(far) = listing.levels.len().checked_sub(OPEN_LEVELS_MAX + 1)
            && let Some(level) = listing.levels.get_mut(far)
        {
            level.names.close();
        }
        Ok(())
    }

    /// Adds the digest if requested; false if it isn't known yet. A file that can't be read becomes an error entry.
    fn add_digest(&self, listing: &mut Listing, entry: &mut ListEntry) -> Result<bool, Failure> {
        if !listing.digest || entry.kind != EntryKind::File || entry.digest.is_some() {
            return Ok(true);
        }
        let begun = listing.hashing.take().map(Ok);
        let opened =
            begun.unwrap_or_else(|| Ok((OpenFile::open_quietly(self.root, &entry.path.to_rel_path()?)?, None)));
        let (file, mut hasher) = match opened {
            Ok(opened) => opened,
            // Its name may be seen, and no more.
            Err(RootError::NotAllowed) => return Ok(true),
            Err(error) => {
                *entry = failed(std::mem::take(&mut entry.path), error)?;
                return Ok(true);
            }
        };
        let stat = file.attributes;
        if let Some(known) = self.hasher.cache.lookup(&stat) {
            entry.digest = Some(known.digest);
            return Ok(true);
        }
        match self.hasher.slice(&file, &stat, &mut hasher, || self.cancel.is_cancelled()) {
            Ok(Some(digested)) => {
                entry.digest = Some(digested.digest);
                // The entry's size and time are those of the version that was hashed.
                (entry.size, entry.mtime, entry.mode) = (stat.size, stat.modified, stat.mode);
            }
            Ok(None) => {
                listing.hashing = Some((file, hasher));
                return Ok(false);
            }
            Err(error) => {
                entry.kind = EntryKind::Error;
                entry.message = Some(error.to_string());
            }
        }
        listing.hashed += stat.size;
        Ok(true)
    }
}

impl Listing {
    /// Keeps the page for the next slice. Of the directories only the lowest stays open: many listings may wait.
    fn pause(&mut self, page: PageWriter) -> Option<Page> {
        self.page = Some(page);
        if let Some((_, above)) = self.levels.split_last_mut() {
            above.iter_mut().for_each(|level| level.names.close());
        }
        None
    }

    fn is_through(&self) -> bool {
        self.levels.iter().all(|level| level.names.is_over())
    }
}

/// Bytes of memory of names, with the vector's spare capacity.
pub(crate) fn memory_bytes(names: &Vec<DirEntry>) -> u64 {
    let of_names: u64 = names.iter().map(|entry| name_bytes(&entry.name)).sum();
    (names.capacity() * size_of::<DirEntry>()) as u64 + of_names
}

/// Bytes of memory of a name.
fn name_bytes(name: &[u8]) -> u64 {
    (name.len() + ALLOCATED_EXTRA).next_multiple_of(16).max(ALLOCATED_MIN) as u64
}

fn joined(dir: &RelPath, name: &[u8]) -> Vec<u8> {
    if dir.is_root() { name.to_vec() } else { [dir.as_bytes(), b"/", name].concat() }
}

/// The path where a listing begins, if its request is valid.
pub(crate) fn start_of(request: &ListRequest) -> Option<RelPath> {
    match &request.target {
        ListTarget::Glob { glob } => Some(literal_beginning(glob)),
        ListTarget::Path(path) => path.to_rel_path().ok(),
    }
}

#[cfg(test)]
mod tests;
