//! Pieces of what is far away, such as objects of a bucket, on a local disk: each is fetched once.
//!
//! A piece is a file that is complete when it gets its name, so processes share a directory, and a restart loses nothing. A reader that wants a piece that isn't
//! there waits for its one request, with all others. What can't be kept, as on a full disk, is asked for by each reader alone.

#![warn(missing_debug_implementations)]

mod evict;
mod store;

use evict::Evictor;
use lru::LruCache;
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::{Directory, Id};

/// Bytes of a piece, but the last of an object.
pub const PIECE_BYTES: u64 = 8 << 20;
/// Smallest cache, in bytes.
pub const CACHE_BYTES_MIN: u64 = 32 * PIECE_BYTES;
/// Pieces that are fetched at the same time.
const FETCHES_MAX: usize = 8;
/// Pieces that wait to be fetched although nobody waits for them.
const AHEAD_WAITING_MAX: usize = 512;
/// Largest version that is fetched together with others, in bytes.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Pieces that are fetched ahead of a reader.
const AHEAD_MAX: u64 = 4;
/// Pieces that stay open, and part of the cache that they may have: their space isn't free once they are evicted.
const OPEN_MAX: u64 = 256;
const OPEN_PART: u64 = 4;
/// Time without a byte from anywhere, though something was asked for, after which nobody waits for a piece: longer than an answer may take.
const WAIT_MAX: Duration = Duration::from_secs(150);
/// Time for which nothing is kept after the disk failed.
const BROKEN_TIME: Duration = Duration::from_secs(10);

/// One version of a thing, such as an object of a bucket: its bytes never change.
pub trait Version: Debug + Send + Sync + Sized + 'static {
    /// A failed request.
    type Error: Clone + Debug + Send;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Identifies the version: those with other bytes have other IDs.
    fn id(&self) -> [u8; 32];

    /// Reads a range within its size, and hands over the bytes in their order. Ends early once `take` returns false. Fails if there are too few
    /// bytes, or if they are another version's. Blocks, and ends by itself.
    fn read(&self, range: Range<u64>, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Self::Error>;

    /// Most versions that [`Version::read_together`] takes.
    const TOGETHER_MAX: usize = 1;

    /// Reads all of several small versions, which have at most [`PIECE_BYTES`] together, and hands over each content, or why there is none, with
    /// its index. Those that are left out are read one by one. Blocks, and ends by itself.
    fn read_together(versions: &[&Self], each: &mut Each<'_, Self::Error>) {
        let _ = (versions, each);
    }
}

/// Called with the index of one of several versions, and its content.
pub type Each<'a, E> = dyn FnMut(usize, Result<&[u8], E>) + 'a;

/// The pieces of a directory. Cheap to clone.
#[derive(Debug)]
pub struct Cache<V: Version>(Arc<Inner<V>>);

impl<V: Version> Clone for Cache<V> {
    fn clone(&self) -> Cache<V> {
        Cache(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Inner<V: Version> {
    directory: Arc<Directory>,
    evictor: Evictor,
    state: Mutex<State<V>>,
    /// There is something to fetch.
    wanted: Condvar,
    broken_until: Mutex<Option<Instant>>,
    /// When a byte last came into the cache, or the first fetch began.
    progress: Mutex<Instant>,
    counts: Counts,
}

#[derive(Debug)]
struct State<V: Version> {
    open: LruCache<Id, Arc<Piece>>,
    flights: HashMap<Id, Arc<Flight<V::Error>>>,
    queue: VecDeque<Fetch<V>>,
    /// Threads that fetch or wait for something to fetch.
    threads: usize,
    idle: usize,
}

/// A piece that is to be fetched.
#[derive(Debug)]
struct Fetch<V: Version> {
    version: Arc<V>,
    index: u64,
    flight: Arc<Flight<V::Error>>,
    is_ahead: bool,
}

/// A request that is going on, and those who wait for it.
#[derive(Debug)]
struct Flight<E> {
    id: Id,
    outcome: Mutex<Option<Result<Outcome, E>>>,
    is_over: Condvar,
}

/// The end of a request.
#[derive(Clone, Debug)]
enum Outcome {
    Kept(Arc<Piece>),
    /// Each reads it from the store: it can't be kept.
    NotKept,
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    fetched: AtomicU64,
    fetched_bytes: AtomicU64,
    bypassed: AtomicU64,
}

/// Figures of a cache since it was opened, but for the sizes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of all pieces, as far as is known.
    pub bytes: u64,
    /// Limit on them.
    pub bytes_max: u64,
    /// Pieces that were there.
    pub hits: u64,
    /// Pieces that were fetched into it.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Pieces that were evicted.
    pub evicted: u64,
    /// Reads from the store since nothing could be kept.
    pub bypassed: u64,
    /// Whether nothing can be kept now.
    pub is_broken: bool,
}

/// A piece that is in the cache: the first bytes of a file.
#[derive(Debug)]
pub struct Piece {
    /// The file. It may have been evicted since; then it still has its content.
    pub file: Arc<File>,
    length: u64,
    /// Seconds since 1970 when its time was last set.
    used: AtomicU64,
}

impl<V: Version> Cache<V> {
    /// Opens a directory, which is this user's alone, as a cache of about this many bytes.
    pub fn open(directory: &Path, bytes_max: u64) -> Result<Cache<V>, String> {
        if bytes_max < CACHE_BYTES_MIN {
            return Err(format!("a cache of {bytes_max} bytes is too small: it needs {CACHE_BYTES_MIN}"));
        }
        let failed = |error: std::io::Error| format!("cannot use {} as a cache: {error}", directory.display());
        let directory = Arc::new(Directory::open(directory).map_err(failed)?);
        let evictor = Evictor::start(Arc::clone(&directory), bytes_max).map_err(failed)?;
        let open = (bytes_max / PIECE_BYTES / OPEN_PART).clamp(1, OPEN_MAX);
        let open = usize::try_from(open).ok().and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MIN);
        let state =
            State { open: LruCache::new(open), flights: HashMap::new(), queue: VecDeque::new(), threads: 0, idle: 0 };
        Ok(Cache(Arc::new(Inner {
            directory,
            evictor,
            state: Mutex::new(state),
            wanted: Condvar::new(),
            broken_until: Mutex::default(),
            progress: Mutex::new(Instant::now()),
            counts: Counts::default(),
        })))
    }

    /// The directory.
    pub fn directory(&self) -> PathBuf {
        self.0.directory.path().to_owned()
    }

    /// Its figures.
    pub fn figures(&self) -> Figures {
        let Inner { evictor, counts, .. } = &*self.0;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Figures {
            bytes: evictor.bytes(),
            bytes_max: evictor.bytes_max(),
            hits: of(&counts.hits),
            fetched: of(&counts.fetched),
            fetched_bytes: of(&counts.fetched_bytes),
            evicted: evictor.evicted(),
            bypassed: of(&counts.bypassed),
            is_broken: self.0.is_broken(),
        }
    }

    /// A piece, fetched if it isn't there. `None` if it can't be kept. Blocks.
    fn piece(&self, version: &Arc<V>, index: u64) -> Result<Option<Arc<Piece>>, V::Error> {
        let id = Id::of(&version.id(), index);
        if let Some(piece) = self.0.known(&id) {
            return Ok(Some(piece));
        }
        if let Some(piece) = self.0.found(&id, piece_bytes(&**version, index)) {
            return Ok(Some(piece));
        }
        if self.0.is_broken() {
            self.0.counts.bypassed.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let (flight, is_own) = self.begin(version, index, id, false);
        match self.0.wait(&flight) {
            Ok(Outcome::Kept(piece)) => Ok(Some(piece)),
            Err(error) if is_own => Err(error),
            // What another version with the same content failed for needn't be true of this one.
            Ok(Outcome::NotKept) | Err(_) => {
                self.0.counts.bypassed.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Begins to fetch a piece, if it isn't there and there is no request for it. Doesn't block.
    fn ahead(&self, version: &Arc<V>, index: u64) {
        let id = Id::of(&version.id(), index);
        let is_open = self.0.lock().open.contains(&id);
        if !is_open && !self.0.is_broken() {
            self.begin(version, index, id, true);
        }
    }

    /// The request for a piece, and whether it began with this call.
    fn begin(&self, version: &Arc<V>, index: u64, id: Id, is_ahead: bool) -> (Arc<Flight<V::Error>>, bool) {
        let mut state = self.0.lock();
        if let Some(flight) = state.flights.get(&id) {
            let flight = Arc::clone(flight);
            if !is_ahead {
                state.hurry(&id);
            }
            return (flight, false);
        }
        let flight = Arc::new(Flight { id, outcome: Mutex::default(), is_over: Condvar::new() });
        let version = Arc::clone(version);
        let fetch = Fetch { version, index, flight: Arc::clone(&flight), is_ahead };
        if is_ahead {
            if state.queue.iter().filter(|fetch| fetch.is_ahead).count() >= AHEAD_WAITING_MAX {
                return (flight, true);
            }
            state.queue.push_back(fetch);
        } else {
            let at = state.queue.iter().position(|fetch| fetch.is_ahead).unwrap_or(state.queue.len());
            state.queue.insert(at, fetch);
        }
        if state.flights.is_empty() {
            self.0.progressed();
        }
        state.flights.insert(id, Arc::clone(&flight));
        if state.idle < state.queue.len() && state.threads < FETCHES_MAX {
            self.start_thread(&mut state);
        }
        drop(state);
        self.0.wanted.notify_one();
        (flight, true)
    }

    fn start_thread(&self, state: &mut State<V>) {
        let inner = Arc::downgrade(&self.0);
        let run = move || {
            while let Some(inner) = inner.upgrade() {
                let Some(fetches) = inner.next_fetches() else { return };
                inner.fetch(fetches);
            }
        };
        match std::thread::Builder::new().name("tow-fetch".to_owned()).spawn(run) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads > 0 => tracing::debug!(%error, "no more threads to fetch pieces"),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread to fetch pieces");
                for fetch in state.queue.drain(..) {
                    fetch.flight.end(Ok(Outcome::NotKept));
                }
                state.flights.clear();
            }
        }
    }
}

impl<V: Version> Inner<V> {
    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece that is open.
    fn known(&self, id: &Id) -> Option<Arc<Piece>> {
        let piece = self.lock().open.get(id).cloned()?;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        piece.touch();
        Some(piece)
    }

    /// A piece that is in the directory.
    fn found(&self, id: &Id, length: u64) -> Option<Arc<Piece>> {
        let piece = Arc::new(self.directory.find(id, length)?);
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        piece.touch();
        self.lock().open.put(*id, Arc::clone(&piece));
        Some(piece)
    }

    /// The next piece to fetch, or several small ones; `None` after a while without one: the thread ends.
    fn next_fetches(&self) -> Option<Vec<Fetch<V>>> {
        let mut state = self.lock();
        loop {
            if let Some(fetch) = state.queue.pop_front() {
                return Some(state.with_others(fetch));
            }
            state.idle += 1;
            let waited = self.wanted.wait_timeout(state, BROKEN_TIME).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            state.idle -= 1;
            if waited.1.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }

    fn fetch(&self, fetches: Vec<Fetch<V>>) {
        let mut absent = Vec::new();
        for fetch in fetches {
            // Another process may have fetched it, or it was asked for ahead.
            match self.directory.find(&fetch.flight.id, piece_bytes(&*fetch.version, fetch.index)) {
                Some(piece) => self.end(&fetch.flight, Ok(Outcome::Kept(Arc::new(piece)))),
                None => absent.push(fetch),
            }
        }
        let fetched = catch_unwind(AssertUnwindSafe(|| match &*absent {
            [Fetch { version, index, flight, .. }] => {
                let length = piece_bytes(&**version, *index);
                let begin = index * PIECE_BYTES;
                self.end(flight, self.keep(&flight.id, length, |take| version.read(begin..begin + length, take)));
            }
            several => self.fetch_together(several),
        }));
        if fetched.is_err() {
            tracing::error!("fetching pieces for the cache panicked");
        }
        // Those who wait for them must not wait for ever.
        for fetch in absent.iter().filter(|fetch| !fetch.flight.is_over()) {
            self.end(&fetch.flight, Ok(Outcome::NotKept));
        }
    }

    fn fetch_together(&self, fetches: &[Fetch<V>]) {
        let versions: Vec<&V> = fetches.iter().map(|fetch| &*fetch.version).collect();
        V::read_together(&versions, &mut |at, content| {
            let Some(Fetch { version, flight, .. }) = fetches.get(at) else { return };
            let fill = |take: &mut dyn FnMut(&[u8]) -> bool| content.map(|bytes| _ = take(bytes));
            self.end(flight, self.keep(&flight.id, version.size(), fill));
        });
    }

    fn end(&self, flight: &Flight<V::Error>, outcome: Result<Outcome, V::Error>) {
        let mut state = self.lock();
        if let Ok(Outcome::Kept(piece)) = &outcome {
            state.open.put(flight.id, Arc::clone(piece));
        }
        state.flights.remove(&flight.id);
        drop(state);
        flight.end(outcome);
    }

    /// Keeps a piece, whose bytes are read by `fill`.
    fn keep(
        &self,
        id: &Id,
        length: u64,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> Result<(), V::Error>,
    ) -> Result<Outcome, V::Error> {
        let mut writing = match self.directory.write(id) {
            Ok(writing) => writing,
            Err(error) => return Ok(self.not_written(&error)),
        };
        let mut failed = None;
        fill(&mut |bytes| {
            failed = writing.append(bytes).err();
            self.progressed();
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Ok(self.not_written(&error));
        }
        match writing.finish(length) {
            Ok(piece) => {
                self.counts.fetched.fetch_add(1, Ordering::Relaxed);
                self.counts.fetched_bytes.fetch_add(length, Ordering::Relaxed);
                self.evictor.added(length);
                Ok(Outcome::Kept(Arc::new(piece)))
            }
            Err(error) => Ok(self.not_written(&error)),
        }
    }

    /// The disk couldn't take a piece: it may be full, of bytes or of files.
    fn not_written(&self, error: &std::io::Error) -> Outcome {
        self.broke(&error.to_string());
        self.lock().open.clear();
        self.evictor.hurry();
        Outcome::NotKept
    }

    /// Waits for the outcome of a request. If no byte comes into the cache for long, as when its disk hangs, the reader helps itself.
    fn wait(&self, flight: &Flight<V::Error>) -> Result<Outcome, V::Error> {
        let mut outcome = flight.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            let since = self.progress.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            let Some(left) = WAIT_MAX.checked_sub(since) else {
                tracing::warn!("nothing came into the cache for {} s: each read goes past it", WAIT_MAX.as_secs());
                return Ok(Outcome::NotKept);
            };
            outcome = flight.is_over.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn progressed(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// The disk couldn't read a piece.
    fn forget(&self, id: &Id, error: &std::io::Error) {
        self.lock().open.pop(id);
        self.broke(&format!("a piece can't be read: {error}"));
        self.counts.bypassed.fetch_add(1, Ordering::Relaxed);
    }

    fn is_broken(&self) -> bool {
        let until = *self.broken_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Nothing is kept for a while, and the operator knows.
    fn broke(&self, why: &str) {
        let mut until = self.broken_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if until.is_none_or(|until| until < now) {
            tracing::warn!(
                cache = %self.directory.path().display(), reason = why,
                "the cache can't keep anything now: each read goes past it. It is tried again in {} s", BROKEN_TIME.as_secs()
            );
        }
        *until = Some(now + BROKEN_TIME);
    }
}

impl<V: Version> State<V> {
    /// A piece, with others from the queue that are fetched together with it.
    fn with_others(&mut self, first: Fetch<V>) -> Vec<Fetch<V>> {
        let small = |fetch: &Fetch<V>| Some(fetch.version.size()).filter(|size| *size <= SMALL_BYTES_MAX);
        let Some(mut bytes) = small(&first) else { return vec![first] };
        let mut fetches = vec![first];
        while fetches.len() < V::TOGETHER_MAX
            && let Some(more) = self.queue.front().and_then(small)
            && bytes + more <= PIECE_BYTES
        {
            bytes += more;
            fetches.extend(self.queue.pop_front());
        }
        fetches
    }

    /// Somebody waits now for what was asked for ahead.
    fn hurry(&mut self, id: &Id) {
        let Some(at) = self.queue.iter().position(|fetch| fetch.is_ahead && fetch.flight.id == *id) else { return };
        if let Some(mut fetch) = self.queue.remove(at) {
            fetch.is_ahead = false;
            let at = self.queue.iter().position(|fetch| fetch.is_ahead).unwrap_or(self.queue.len());
            self.queue.insert(at, fetch);
        }
    }
}

impl<E> Flight<E> {
    fn end(&self, outcome: Result<Outcome, E>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.is_over.notify_all();
    }

    fn is_over(&self) -> bool {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Bytes of a piece.
fn piece_bytes(version: &impl Version, index: u64) -> u64 {
    version.size().saturating_sub(index.saturating_mul(PIECE_BYTES)).min(PIECE_BYTES)
}

/// The content of a version, read through a cache if there is one.
#[derive(Debug)]
pub struct Content<V: Version> {
    cache: Option<Cache<V>>,
    version: Arc<V>,
    /// The last piece that was asked for, plus one, and how many to fetch ahead.
    reader: Mutex<(u64, u64)>,
}

impl<V: Version> Content<V> {
    /// The content of a version, which isn't asked for yet.
    pub fn new(cache: Option<Cache<V>>, version: V) -> Content<V> {
        Content { cache, version: Arc::new(version), reader: Mutex::default() }
    }

    /// The version.
    pub fn version(&self) -> &V {
        &self.version
    }

    /// Begins to fetch the beginning, if it may be kept. Doesn't block.
    pub fn begin(&self) {
        if let Some(cache) = self.cache.as_ref().filter(|_| self.version.size() > 0) {
            cache.ahead(&self.version, 0);
        }
    }

    /// Reads bytes from an offset on; returns their number, 0 only at the end. Blocks.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, V::Error> {
        let left = self.version.size().saturating_sub(offset).min(buffer.len() as u64);
        let index = offset / PIECE_BYTES;
        let in_piece = (index + 1).saturating_mul(PIECE_BYTES).saturating_sub(offset).min(left);
        if left == 0 {
            return Ok(0);
        }
        if let (Some(cache), Some(piece)) = (&self.cache, self.piece(index)?) {
            let wanted = usize::try_from(in_piece).unwrap_or(usize::MAX).min(buffer.len());
            let space = buffer.get_mut(..wanted).unwrap_or_default();
            match piece.read_at(space, offset - index * PIECE_BYTES) {
                Ok(count) => return Ok(count),
                Err(error) => cache.0.forget(&Id::of(&self.version.id(), index), &error),
            }
        }
        self.read_direct(buffer, offset, left)
    }

    /// The file that has these bytes, and where they begin in it. `None` if they are in several. If this may wait, the piece is fetched if it isn't
    /// there, and it is `None` if it can't be kept. Otherwise it is `None` unless the piece is open, and one that isn't is begun; this doesn't block then.
    pub fn file_at(&self, offset: u64, length: u64, may_wait: bool) -> Result<Option<(Arc<File>, u64)>, V::Error> {
        let index = offset / PIECE_BYTES;
        let within = offset - index * PIECE_BYTES;
        if length == 0 || within + length > piece_bytes(&*self.version, index) {
            return Ok(None);
        }
        let piece = if may_wait { self.piece(index)? } else { self.open_piece(index) };
        Ok(piece.map(|piece| (Arc::clone(&piece.file), within)))
    }

    /// A piece that is open.
    fn open_piece(&self, index: u64) -> Option<Arc<Piece>> {
        let cache = self.cache.as_ref()?;
        for ahead in self.to_fetch_ahead(index) {
            cache.ahead(&self.version, ahead);
        }
        let open = cache.0.known(&Id::of(&self.version.id(), index));
        if open.is_none() {
            cache.ahead(&self.version, index);
        }
        open
    }

    fn piece(&self, index: u64) -> Result<Option<Arc<Piece>>, V::Error> {
        let Some(cache) = &self.cache else { return Ok(None) };
        for ahead in self.to_fetch_ahead(index) {
            cache.ahead(&self.version, ahead);
        }
        cache.piece(&self.version, index)
    }

    /// Pieces to fetch ahead: more and more of them for who reads one after the other.
    fn to_fetch_ahead(&self, index: u64) -> Range<u64> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let (behind_last, ahead) = *reader;
        if index < behind_last {
            return 0..0;
        }
        let ahead = if index == behind_last { (ahead * 2).clamp(1, AHEAD_MAX) } else { 0 };
        *reader = (index + 1, ahead);
        index + 1..(index + 1 + ahead).min(self.version.size().div_ceil(PIECE_BYTES))
    }

    fn read_direct(&self, buffer: &mut [u8], offset: u64, length: u64) -> Result<usize, V::Error> {
        let mut done = 0;
        self.version.read(offset..offset + length, &mut |bytes| {
            let Some(space) = buffer.get_mut(done..done + bytes.len()) else { return false };
            space.copy_from_slice(bytes);
            done += bytes.len();
            true
        })?;
        Ok(done)
    }
}
