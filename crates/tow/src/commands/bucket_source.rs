//! Objects of a bucket as the files of a server.

use super::bucket_push::Budget;
use super::cache_args::cache_stats;
use super::outage::{Outages, Tried};
use lru::LruCache;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use towpath_cache::{Cache, Content, PIECE_BYTES};
use towpath_files::digest::Validator;
use towpath_files::path::RelPath;
use towpath_files::root::{FileKind, RootError, Timestamp};
use towpath_files::server::source::{
    self, Attributes, CacheStats, Listed, Opened, OpenedDir, Outage, Pages, Pieces, Source, Store,
};
use towpath_objects::{Bucket, Error, Kind, Page, Version};

/// Objects whose attributes are remembered from listings and questions, so that they needn't be asked for when they are opened.
const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(16 << 10).unwrap();
/// Time for which they are. If an object is replaced meanwhile, reading it fails as changed, unless all of it is in the cache.
const KNOWN_TIME: Duration = Duration::from_secs(60);
/// Objects that are fetched before they are opened.
const AHEAD_MAX: usize = 32;
/// Longest name of a file: longer ones are no names of directories to ask for either.
const NAME_BYTES_MAX: usize = 255;
/// Permission bits, which objects don't have.
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// A bucket as a source.
#[derive(Clone, Debug)]
pub struct BucketSource(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bucket: Bucket,
    cache: Option<Cache<Version>>,
    /// Memory of parts of pushed files.
    pub(super) parts: Budget,
    known: Mutex<LruCache<String, (Version, Instant)>>,
    outage: Outages,
}

impl BucketSource {
    /// Fails if the bucket can't be listed.
    pub fn open(bucket: Bucket, cache: Option<Cache<Version>>) -> Result<BucketSource, Error> {
        bucket.check()?;
        let (parts, known) = (Budget::default(), Mutex::new(LruCache::new(KNOWN_MAX)));
        Ok(BucketSource(Arc::new(Shared { bucket, cache, parts, known, outage: Outages::default() })))
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, LruCache<String, (Version, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, version: Version) {
        self.known().put(version.path.clone(), (version, Instant::now()));
    }

    /// An error as clients get it; the operator gets the whole of it. One that may concern everything is looked into.
    pub(super) fn failed(&self, error: Error) -> RootError {
        let kind = error.kind;
        if !matches!(kind, Kind::NotFound | Kind::Changed | Kind::Archived | Kind::SlowDown) {
            let bucket = self.bucket.clone();
            self.outage.begin(None, move || {
                bucket.check().map_or_else(|error| Tried::Failed(error.to_string()), |()| Tried::Reached)
            });
        }
        match kind {
            Kind::NotFound => return RootError::NotFound,
            Kind::Changed => return RootError::Changed,
            _ => tracing::warn!("{error}"),
        }
        match kind {
            Kind::Denied => RootError::Denied,
            kind if kind.is_passing() => RootError::Busy(kind.words().to_owned()),
            _ => RootError::Io(io::Error::other(kind.words())),
        }
    }

    pub(super) fn is_directory(&self, path: &str) -> Result<bool, RootError> {
        self.bucket.is_directory(path).map_err(|error| self.failed(error))
    }

    fn list(&self, path: &str, after: Option<&str>) -> Result<Page, RootError> {
        self.bucket.list(path, after).map_err(|error| self.failed(error))
    }

    /// The version that the store has now.
    fn head(&self, path: &str) -> Result<Version, Error> {
        self.bucket.head(path).map(|object| self.noted(path, &object))
    }

    /// The version of an object that the store has now.
    pub(super) fn noted(&self, path: &str, object: &towpath_objects::Object) -> Version {
        let (bucket, path, e_tag) = (self.bucket.clone(), path.to_owned(), object.e_tag.clone());
        let version = Version { bucket, path, size: object.size, modified: object.modified, e_tag };
        self.remember(version.clone());
        version
    }

    /// Forgets what is known of an object: another one may be there.
    pub(super) fn forget(&self, path: &str) {
        self.known().pop(path);
    }

    pub(super) fn attributes(&self, version: &Version) -> Attributes {
        let modified = timestamp(version.modified);
        let key = self.bucket.url().key(&version.path);
        let tag = version.e_tag.as_deref().unwrap_or_default();
        let parts =
            [self.bucket.endpoint().as_bytes(), key.as_bytes(), tag.as_bytes(), &modified.seconds.to_le_bytes()];
        Attributes {
            kind: FileKind::File,
            size: version.size,
            modified,
            mode: FILE_MODE,
            validator: Validator::of(&parts),
            local: None,
        }
    }

    fn directory(&self, path: &str) -> Attributes {
        let key = self.bucket.url().key(path);
        Attributes {
            kind: FileKind::Dir,
            size: 0,
            modified: Timestamp::default(),
            mode: DIR_MODE,
            validator: Validator::of(&[self.bucket.endpoint().as_bytes(), key.as_bytes()]),
            local: None,
        }
    }
}

impl Source for BucketSource {
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        let shared = &*self.0;
        let path = text(path)?;
        if path.is_empty() {
            return Ok(shared.directory(path));
        }
        match shared.head(path) {
            Ok(version) => Ok(shared.attributes(&version)),
            Err(Error { kind: Kind::NotFound, .. }) if shared.is_directory(path)? => Ok(shared.directory(path)),
            Err(error) => Err(shared.failed(error)),
        }
    }

    fn open(&self, path: &RelPath) -> Result<Opened, RootError> {
        let shared = &*self.0;
        let path = text(path)?;
        if path.is_empty() {
            return Err(RootError::NotAFile);
        }
        let known = shared.known().get(path).filter(|(_, since)| since.elapsed() < KNOWN_TIME).cloned();
        let version = match known {
            Some((version, _)) => version,
            None => match shared.head(path) {
                Err(Error { kind: Kind::NotFound, .. }) if shared.is_directory(path)? => {
                    return Err(RootError::NotAFile);
                }
                version => version.map_err(|error| shared.failed(error))?,
            },
        };
        let attributes = shared.attributes(&version);
        let content = Content::new(shared.cache.clone(), version);
        Ok(Opened {
            attributes,
            content: source::Content::Pieces(Arc::new(Object { content, shared: Arc::clone(&self.0) })),
        })
    }

    fn store(&self) -> Option<&dyn Store> {
        Some(self)
    }

    fn cache(&self) -> Option<CacheStats> {
        self.0.cache.as_ref().map(cache_stats)
    }

    fn outage(&self) -> Option<Outage> {
        self.0.outage.get()
    }

    fn will_open(&self, paths: &mut dyn Iterator<Item = &RelPath>) {
        let Some(cache) = &self.0.cache else { return };
        for path in paths.take(AHEAD_MAX).filter_map(|path| text(path).ok()) {
            let known = self.0.known().peek(path).cloned();
            let small = known.filter(|(version, since)| version.size <= PIECE_BYTES && since.elapsed() < KNOWN_TIME);
            if let Some((version, _)) = small {
                Content::new(Some(cache.clone()), version).begin();
            }
        }
    }

    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError> {
        let path = text(path)?;
        // The first page shows whether there is one.
        let first = self.0.list(path, None)?;
        if !path.is_empty() && first.objects.is_empty() && first.prefixes.is_empty() {
            return Err(RootError::NotFound);
        }
        Ok(OpenedDir::Pages(Box::new(Listing {
            shared: Arc::clone(&self.0),
            path: path.to_owned(),
            first: Some(first),
            mark: None,
            is_over: false,
            asked: BTreeMap::new(),
            ahead: BTreeSet::new(),
        })))
    }
}

/// An object of one version.
#[derive(Debug)]
struct Object {
    content: Content<Version>,
    shared: Arc<Shared>,
}

impl Object {
    fn outcome<T>(&self, outcome: Result<T, Error>) -> Result<T, RootError> {
        outcome.map_err(|error| {
            if error.kind == Kind::Changed {
                self.shared.forget(&self.content.version().path);
            }
            self.shared.failed(error)
        })
    }
}

impl Pieces for Object {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError> {
        self.outcome(self.content.read_at(buffer, offset))
    }

    fn file_at(&self, offset: u64, length: u64, may_wait: bool) -> Result<Option<(Arc<File>, u64)>, RootError> {
        self.outcome(self.content.file_at(offset, length, may_wait))
    }
}

/// A directory of a bucket. The store has keys in their order, in which `a.txt` comes before `a/`; a listing has names in theirs, in which `a`
/// comes before `a.txt`. So at the end of each page the directories are asked for that it may have to have.
#[derive(Debug)]
struct Listing {
    shared: Arc<Shared>,
    path: String,
    first: Option<Page>,
    mark: Option<String>,
    is_over: bool,
    /// Whether directories that may come later are there.
    asked: BTreeMap<String, bool>,
    /// Directories that were listed before the store's listing had them.
    ahead: BTreeSet<String>,
}

impl Pages for Listing {
    fn next(&mut self) -> Result<Option<Vec<Listed>>, RootError> {
        if self.is_over {
            return Ok(None);
        }
        if self.first.is_none() {
            self.first = Some(self.shared.list(&self.path, self.mark.as_deref())?);
        }
        let last =
            self.first.as_ref().and_then(|page| page.next.as_ref().and_then(|_| last_name(page, self.prefix_length())));
        let found = last.map(|last| self.directories_ahead(&last)).transpose()?.unwrap_or_default();
        // Nothing below fails: a page that failed can be asked for again.
        let Some(page) = self.first.take() else { return Ok(None) };
        self.mark.clone_from(&page.next);
        self.is_over = self.mark.is_none();
        Ok(Some(self.entries(page, found)))
    }
}

impl Listing {
    /// Bytes of keys before the names in this directory.
    fn prefix_length(&self) -> usize {
        match self.shared.bucket.url().key(&self.path).len() {
            0 => 0,
            length => length + 1,
        }
    }

    /// Names of directories that come behind a name in the store's order, and before it in ours.
    fn directories_ahead(&mut self, last: &str) -> Result<Vec<String>, RootError> {
        let mut found = Vec::new();
        let mut asked = BTreeMap::new();
        for name in names_ahead(last) {
            let is_there = match self.asked.get(name) {
                Some(is_there) => *is_there,
                None => {
                    let path = below(&self.path, name);
                    let is_there = self.shared.is_directory(&path)?;
                    found.extend(is_there.then(|| name.to_owned()));
                    is_there
                }
            };
            asked.insert(name.to_owned(), is_there);
        }
        self.asked = asked;
        Ok(found)
    }

    fn entries(&mut self, page: Page, found: Vec<String>) -> Vec<Listed> {
        let skipped = self.prefix_length();
        let mut entries: BTreeMap<Box<[u8]>, Listed> = BTreeMap::new();
        let name_of = |key: &str| key.get(skipped..).map(str::to_owned);
        for object in page.objects {
            // One without a name is the directory's own marker.
            let Some(name) = name_of(&object.key).filter(|name| !name.is_empty()) else { continue };
            let towpath_objects::Listed { size, modified, e_tag, is_archived, .. } = object;
            let (bucket, path) = (self.shared.bucket.clone(), below(&self.path, &name));
            let version = Version { bucket, path, size, modified, e_tag };
            let unreadable = match () {
                () if is_archived => Some(Kind::Archived.words()),
                () if !self.shared.bucket.may_ask(&version.path) => Some("no request can have its name"),
                () => None,
            };
            let attributes = self.shared.attributes(&version);
            entries.insert(name.as_bytes().into(), Listed { name: name.into_bytes().into(), attributes, unreadable });
            self.shared.remember(version);
        }
        let of_page: Vec<_> =
            page.prefixes.iter().filter_map(|prefix| name_of(prefix.strip_suffix('/').unwrap_or(prefix))).collect();
        for name in of_page.iter().filter(|name| !self.ahead.remove(*name)).chain(&found) {
            let path = below(&self.path, name);
            let name: Box<[u8]> = name.as_bytes().into();
            let attributes = self.shared.directory(&path);
            let listed = Listed { name: name.clone(), attributes, unreadable: None };
            // Of a key and a directory with one name, the directory is listed: it has more in it.
            if entries.insert(name, listed).is_some_and(|was| was.attributes.kind != FileKind::Dir) {
                tracing::warn!(path, "an object has the name of a directory: it isn't listed");
            }
        }
        self.ahead.extend(found.into_iter().filter(|name| !of_page.contains(name)));
        entries.into_values().collect()
    }
}

/// The name that comes last in the store's order, with a slash behind that of a directory.
fn last_name(page: &Page, skipped: usize) -> Option<String> {
    let object = page.objects.last().map(|object| object.key.as_str());
    let last = object.max(page.prefixes.last().map(String::as_str))?;
    last.get(skipped..).map(str::to_owned)
}

/// Beginnings of a name that, as directories, come behind it in the store's order.
fn names_ahead(name: &str) -> impl Iterator<Item = &str> {
    // An object's own name, too.
    let whole = (!name.ends_with('/')).then_some(name.len());
    let ends = name.char_indices().filter(|(_, next)| *next < '/').map(|(at, _)| at).chain(whole);
    ends.filter(|end| (1..=NAME_BYTES_MAX).contains(end)).filter_map(|end| name.get(..end))
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// A path as keys have it.
pub(super) fn text(path: &RelPath) -> Result<&str, RootError> {
    std::str::from_utf8(path.as_bytes()).map_err(|_| RootError::NotFound)
}

fn timestamp(time: SystemTime) -> Timestamp {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Timestamp { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanoseconds: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_come_late_are_asked_for() {
        let ahead = |name| names_ahead(name).collect::<Vec<_>>();
        assert_eq!(ahead("a.tar.gz"), ["a", "a.tar", "a.tar.gz"]);
        assert_eq!(ahead("ab"), ["ab"]);
        assert_eq!(ahead("-x"), ["-x"]);
        assert_eq!(ahead("a-b/"), ["a"]);
        assert_eq!(ahead(""), [""; 0]);
    }
}
