//! Directories of the origin: each is listed as a whole, kept for a moment, and given to clients by pages.

use super::known::FRESH_TIME;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use towpath_files::client::{Entries, Error, FileClient, ListOptions, Source};
use towpath_files::digest::Validator;
use towpath_files::path::RelPath;
use towpath_files::protocol::control::{Base, EntryKind, FollowLinks, ListEntry};
use towpath_files::root::{FileKind, RootError, Timestamp};
use towpath_files::server::source::{Attributes, Listed, Pages};
use towpath_quota::{Permit, Quota};

/// Directories that are kept.
const KEPT_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Most entries of a directory.
const ENTRIES_MAX: usize = 1 << 20;
/// Memory of all listings, those that clients are in the middle of included, in bytes.
const BYTES_MAX: u64 = 256 << 20;
/// Bytes that are counted at a time.
const BYTES_STEP: u64 = 1 << 20;
/// Allocator overhead of a name, in bytes.
const ALLOCATED_EXTRA: usize = 16;
/// Mode of a directory whose own isn't known.
const DIR_MODE: u32 = 0o755;
/// Entries of a page.
const PAGE_ENTRIES: usize = 1000;

/// The entry at a path that was listed.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Dir(Arc<Directory>),
    File(Attributes),
}

/// All that is in a directory, in the order of the names' bytes.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) attributes: Attributes,
    entries: Vec<Entry>,
    _memory: Permit,
}

#[derive(Debug)]
struct Entry {
    name: Box<[u8]>,
    kind: FileKind,
    size: u64,
    modified: Timestamp,
    mode: u32,
}

/// Directories that were listed a moment ago.
#[derive(Debug)]
pub(super) struct Directories {
    kept: Mutex<LruCache<RelPath, (Arc<Directory>, Instant)>>,
    memory: Arc<Quota>,
}

/// Why a directory can't be listed.
pub(super) enum Unlisted {
    Origin(Error),
    Here(RootError),
}

impl Directories {
    pub(super) fn new() -> Directories {
        Directories { kept: Mutex::new(LruCache::new(KEPT_MAX)), memory: Quota::new(BYTES_MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<RelPath, (Arc<Directory>, Instant)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that was listed a moment ago.
    pub(super) fn fresh(&self, path: &RelPath) -> Option<Arc<Directory>> {
        let mut kept = self.lock();
        let (directory, since) = kept.get(path)?;
        if since.elapsed() < FRESH_TIME {
            return Some(Arc::clone(directory));
        }
        kept.pop(path);
        None
    }

    /// Lists a path of the origin.
    pub(super) fn list(&self, path: &RelPath, client: &FileClient) -> Result<Found, Unlisted> {
        let listing = |follow| {
            let options = ListOptions { follow, ..ListOptions::new(Source::Path(path.clone())) };
            client.list(options).map_err(Unlisted::Origin)
        };
        let (mut entries, mut memory, mut bytes, mut only) = (Vec::new(), self.memory.acquire(0), 0, None);
        let mut listed = listing(FollowLinks::Path)?;
        for of in &mut listed {
            let of = of.map_err(Unlisted::Origin)?;
            only = Some(attributes(path, &of));
            entries.extend(entry(path, &of));
            bytes += entries.last().map_or(0, Entry::bytes);
            if entries.len() > ENTRIES_MAX {
                return Err(Unlisted::Here(RootError::TooMany(ENTRIES_MAX)));
            }
            while memory.units() < bytes {
                _ = memory.merge(self.memory_for_more()?);
            }
        }
        match (listed.base(), only) {
            (Some(Base::Dir), _) => {}
            (_, Some(file)) => return Ok(Found::File(file)),
            (_, None) => return Err(Unlisted::Here(RootError::NotFound)),
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        entries.dedup_by(|one, other| one.name == other.name);
        entries.shrink_to_fit();
        if entries.iter().any(|entry| entry.kind == FileKind::Link) {
            follow_links(path, &mut entries, listing(FollowLinks::All)?).map_err(Unlisted::Origin)?;
        }
        let (mode, modified) = listed.dir().map_or((DIR_MODE, Timestamp::default()), |dir| (dir.mode, dir.mtime));
        let validator = Validator::of(&[path.as_bytes()]);
        let attributes = Attributes { kind: FileKind::Dir, size: 0, modified, mode, validator, local: None };
        let directory = Arc::new(Directory { attributes, entries, _memory: memory });
        self.lock().put(path.clone(), (Arc::clone(&directory), Instant::now()));
        Ok(Found::Dir(directory))
    }

    /// Memory for more entries, at the cost of what is only kept.
    fn memory_for_more(&self) -> Result<Permit, Unlisted> {
        loop {
            if let Some(memory) = self.memory.try_acquire(BYTES_STEP) {
                return Ok(memory);
            }
            if self.lock().pop_lru().is_none() {
                let words = "listings that are not over keep too many names".to_owned();
                return Err(Unlisted::Here(RootError::Busy(words)));
            }
        }
    }
}

impl Entry {
    fn bytes(&self) -> u64 {
        (size_of::<Entry>() + self.name.len() + ALLOCATED_EXTRA) as u64
    }
}

/// An entry of a directory; `None` of what is elsewhere.
fn entry(directory: &RelPath, of: &ListEntry) -> Option<Entry> {
    let path = of.path.to_rel_path().ok()?;
    let below = path.below(directory)?;
    let name = match (below.as_bytes(), of.kind) {
        // Something that has no path is missing. A name that can't be in a path lets clients know.
        (b"", EntryKind::Error) => b".",
        (b"", _) => return None,
        (name, _) if name.contains(&b'/') => return None,
        (name, _) => name,
    };
    let kind = match of.kind {
        EntryKind::Dir => FileKind::Dir,
        EntryKind::Link => FileKind::Link,
        EntryKind::Other => FileKind::Other,
        // Fetching one that can't be read says why.
        EntryKind::File | EntryKind::Error => FileKind::File,
    };
    Some(Entry { name: name.into(), kind, size: of.size, modified: of.mtime, mode: of.mode })
}

/// Makes the links to files what they lead to. Those to directories aren't followed, as they may lead to one above.
fn follow_links(path: &RelPath, entries: &mut [Entry], followed: Entries) -> Result<(), Error> {
    // What came since the first listing is left out.
    for of in followed.take(ENTRIES_MAX) {
        let of = of?;
        let Some(followed) = entry(path, &of).filter(|_| of.kind == EntryKind::File) else { continue };
        let at = entries.binary_search_by(|entry| entry.name.cmp(&followed.name));
        if let Some(link) = at.ok().and_then(|at| entries.get_mut(at)).filter(|entry| entry.kind == FileKind::Link) {
            *link = followed;
        }
    }
    entries.iter_mut().filter(|entry| entry.kind == FileKind::Link).for_each(|link| link.kind = FileKind::Other);
    Ok(())
}

fn attributes(path: &RelPath, of: &ListEntry) -> Attributes {
    let kind = if of.kind == EntryKind::File { FileKind::File } else { FileKind::Other };
    listed(path.as_bytes(), kind, (of.size, of.mtime, of.mode))
}

/// Attributes without a version: opening the file gives those of the current one.
fn listed(path: &[u8], kind: FileKind, (size, modified, mode): (u64, Timestamp, u32)) -> Attributes {
    let parts = [path, &size.to_le_bytes(), &modified.seconds.to_le_bytes(), &modified.nanoseconds.to_le_bytes()];
    Attributes { kind, size, modified, mode, validator: Validator::of(&parts), local: None }
}

/// A directory, page by page.
#[derive(Debug)]
pub(super) struct DirectoryPages {
    directory: Arc<Directory>,
    next: usize,
}

impl DirectoryPages {
    pub(super) fn new(directory: Arc<Directory>) -> DirectoryPages {
        DirectoryPages { directory, next: 0 }
    }
}

impl Pages for DirectoryPages {
    fn next(&mut self) -> Result<Option<Vec<Listed>>, RootError> {
        let rest = self.directory.entries.get(self.next..).unwrap_or_default();
        let page: Vec<_> = rest
            .iter()
            .take(PAGE_ENTRIES)
            .map(|Entry { name, kind, size, modified, mode }| Listed {
                name: name.clone(),
                attributes: listed(name, *kind, (*size, *modified, *mode)),
                unreadable: None,
            })
            .collect();
        self.next += page.len();
        Ok(Some(page).filter(|page| !page.is_empty()))
    }
}
