//! A source in memory, for tests: as an object store is, it has files alone, lists by pages, and each of its answers may fail.

use super::{
    Attributes, Content, Listed, NewContent, NewFile, Opened, OpenedDir, Pages, Pieces, Put, Replaced, Source,
    Store as TakesFiles, Stored,
};
use crate::digest::{Digest, Validator};
use crate::path::RelPath;
use crate::root::{FileKind, RootError, Timestamp};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A request to the store.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum Call {
    Stat,
    Open,
    /// Of this many bytes.
    Read(usize),
    /// For a local file.
    File,
    List,
    Put,
}

/// Decides whether a request fails, and may change the store before it is answered.
type Fault = Box<dyn FnMut(Call, &RelPath) -> Option<RootError> + Send>;

/// Offset of a content in its local file.
const IN_FILE_AT: u64 = 3;

/// The store.
#[derive(Clone)]
pub(in crate::server) struct Memory(Arc<Store>);

struct Store {
    state: Mutex<State>,
    fault: Mutex<Fault>,
    /// Entries of a page, and bytes that a read gives at most.
    page_entries: usize,
    read_bytes: usize,
    latency: Duration,
    /// Whether contents are in local files, too, behind [`IN_FILE_AT`] other bytes.
    has_files: AtomicBool,
    takes_files: AtomicBool,
}

struct State {
    files: BTreeMap<RelPath, Version>,
    next_version: u64,
}

#[derive(Clone)]
struct Version {
    number: u64,
    content: Arc<[u8]>,
    /// Known to the store.
    digest: Option<Digest>,
}

impl Memory {
    /// An empty store, each of whose answers takes this long.
    pub(in crate::server) fn new(page_entries: usize, read_bytes: usize, latency: Duration) -> Memory {
        let state = Mutex::new(State { files: BTreeMap::new(), next_version: 1 });
        let fault: Mutex<Fault> = Mutex::new(Box::new(|_, _| None));
        let [has_files, takes_files] = [false; 2].map(AtomicBool::new);
        Memory(Arc::new(Store { state, fault, page_entries, read_bytes, latency, has_files, takes_files }))
    }

    /// Puts a file, or another one in its place, and returns the number of its version. Its time of modification has as many seconds.
    pub(in crate::server) fn put(&self, path: &str, content: impl Into<Arc<[u8]>>) -> u64 {
        self.0.lock().put(path.parse().unwrap(), content.into(), None)
    }

    /// Takes files from now on.
    pub(in crate::server) fn take_files(&self) {
        self.0.takes_files.store(true, Ordering::Relaxed);
    }

    pub(in crate::server) fn content(&self, path: &str) -> Option<Arc<[u8]>> {
        self.0.lock().files.get(&path.parse().unwrap()).map(|version| Arc::clone(&version.content))
    }

    /// Has contents in local files from now on.
    pub(in crate::server) fn keep_in_files(&self) {
        self.0.has_files.store(true, Ordering::Relaxed);
    }

    pub(in crate::server) fn remove(&self, path: &str) {
        self.0.lock().files.remove(&path.parse().unwrap());
    }

    /// Decides from now on which requests fail.
    pub(in crate::server) fn fail(&self, fault: impl FnMut(Call, &RelPath) -> Option<RootError> + Send + 'static) {
        *self.0.fault.lock().unwrap() = Box::new(fault);
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Takes its time, and may fail.
    fn answer(&self, call: Call, path: &RelPath) -> Result<MutexGuard<'_, State>, RootError> {
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
        }
        let error = (self.fault.lock().unwrap())(call, path);
        error.map_or_else(|| Ok(self.lock()), Err)
    }
}

impl State {
    fn put(&mut self, path: RelPath, content: Arc<[u8]>, digest: Option<Digest>) -> u64 {
        let number = self.next_version;
        self.next_version += 1;
        self.files.insert(path, Version { number, content, digest });
        number
    }

    fn attributes(&self, path: &RelPath) -> Result<Attributes, RootError> {
        if let Some(version) = self.files.get(path) {
            return Ok(version.attributes(path));
        }
        let is_dir = path.is_root() || self.files.keys().any(|file| file != path && file.below(path).is_some());
        if is_dir { Ok(directory(path)) } else { Err(RootError::NotFound) }
    }

    /// Names in a directory, behind one of them.
    fn names(&self, dir: &RelPath, behind: Option<&[u8]>, most: usize) -> Vec<Box<[u8]>> {
        let below = self.files.keys().filter_map(|file| file.below(dir));
        let mut names: Vec<Box<[u8]>> = below.filter_map(|below| below.names().next().map(Box::from)).collect();
        names.sort();
        names.dedup();
        names.into_iter().filter(|name| behind.is_none_or(|behind| &**name > behind)).take(most).collect()
    }
}

impl Version {
    fn attributes(&self, path: &RelPath) -> Attributes {
        Attributes {
            kind: FileKind::File,
            size: self.content.len() as u64,
            modified: Timestamp { seconds: self.number as i64, nanoseconds: 0 },
            mode: 0o644,
            validator: Validator::of(&[path.as_bytes(), &self.number.to_le_bytes()]),
            local: None,
        }
    }
}

fn directory(path: &RelPath) -> Attributes {
    Attributes {
        kind: FileKind::Dir,
        size: 0,
        modified: Timestamp::default(),
        mode: 0o755,
        validator: Validator::of(&[path.as_bytes()]),
        local: None,
    }
}

impl Source for Memory {
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        self.0.answer(Call::Stat, path)?.attributes(path)
    }

    fn open(&self, path: &RelPath) -> Result<Opened, RootError> {
        let state = self.0.answer(Call::Open, path)?;
        let Some(version) = state.files.get(path) else {
            return Err(state.attributes(path).err().unwrap_or(RootError::NotAFile));
        };
        let pieces = Object { store: Arc::clone(&self.0), path: path.clone(), number: version.number };
        Ok(Opened { attributes: version.attributes(path), content: Content::Pieces(Arc::new(pieces)) })
    }

    fn store(&self) -> Option<&dyn TakesFiles> {
        self.0.takes_files.load(Ordering::Relaxed).then_some(self)
    }

    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError> {
        match self.0.answer(Call::Stat, path)?.attributes(path)?.kind {
            FileKind::Dir => {
                let prefix = Prefix { store: Arc::clone(&self.0), path: path.clone(), behind: None, is_over: false };
                Ok(OpenedDir::Pages(Box::new(prefix)))
            }
            _ => Err(RootError::NotADirectory),
        }
    }
}

impl TakesFiles for Memory {
    fn check(&self, _: &RelPath, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn look(&self, path: &RelPath) -> Result<Option<Stored>, RootError> {
        let state = self.0.answer(Call::Stat, path)?;
        let Some(there) = state.files.get(path) else {
            return if state.attributes(path).is_ok() { Err(RootError::NotAFile) } else { Ok(None) };
        };
        let tag = Some(there.number.to_string());
        Ok(Some(Stored { attributes: there.attributes(path), digest: there.digest, tag }))
    }

    fn put(
        &self,
        path: &RelPath,
        file: &NewFile<'_>,
        replaced: &Replaced,
        given_up: &(dyn Fn() -> bool + Sync),
    ) -> Result<Put, RootError> {
        assert!(!given_up(), "the server ends after its clients");
        let mut content = vec![0; file.size as usize];
        match &file.content {
            NewContent::Bytes(bytes) => content.copy_from_slice(bytes),
            NewContent::File(from) => from.read_exact_at(&mut content, 0).map_err(RootError::Io)?,
        }
        if Digest::of(&content) != file.digest {
            return Err(RootError::Changed);
        }
        let mut state = self.0.answer(Call::Put, path)?;
        let there = state.files.get(path).map(|there| there.number.to_string());
        let is_as_expected = match replaced {
            Replaced::Anything => true,
            Replaced::Nothing => there.is_none(),
            Replaced::Tag(tag) => there.as_ref() == Some(tag),
        };
        if !is_as_expected {
            return Ok(Put::NotAsExpected);
        }
        state.put(path.clone(), content.into(), Some(file.digest));
        Ok(Put::InPlace(Some(state.attributes(path)?)))
    }
}

/// An object of one version.
struct Object {
    store: Arc<Store>,
    path: RelPath,
    number: u64,
}

impl Pieces for Object {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError> {
        let state = self.store.answer(Call::Read(buffer.len()), &self.path)?;
        let version = state.files.get(&self.path).filter(|version| version.number == self.number);
        let rest = version.ok_or(RootError::Changed)?.content.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len()).min(self.store.read_bytes);
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn file_at(&self, offset: u64, _: u64, may_wait: bool) -> Result<Option<(Arc<File>, u64)>, RootError> {
        if !may_wait || !self.store.has_files.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let state = self.store.answer(Call::File, &self.path)?;
        let version = state.files.get(&self.path).filter(|version| version.number == self.number);
        let file = tempfile::tempfile().map_err(RootError::Io)?;
        file.write_all_at(&version.ok_or(RootError::Changed)?.content, IN_FILE_AT).map_err(RootError::Io)?;
        Ok(Some((Arc::new(file), IN_FILE_AT + offset)))
    }
}

/// The keys that begin with a prefix.
struct Prefix {
    store: Arc<Store>,
    path: RelPath,
    behind: Option<Box<[u8]>>,
    is_over: bool,
}

impl Pages for Prefix {
    fn next(&mut self) -> Result<Option<Vec<Listed>>, RootError> {
        if self.is_over {
            return Ok(None);
        }
        let state = self.store.answer(Call::List, &self.path)?;
        let names = state.names(&self.path, self.behind.as_deref(), self.store.page_entries);
        self.is_over = names.len() < self.store.page_entries;
        self.behind = names.last().cloned();
        let listed = |name: Box<[u8]>| {
            let attributes = state.attributes(&self.path.join(&name)?)?;
            Ok(Listed { name, attributes, unreadable: None })
        };
        names.into_iter().map(listed).collect::<Result<_, _>>().map(Some)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.number)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.path)
    }
}
