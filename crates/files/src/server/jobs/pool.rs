//! Does the jobs of sessions in the pool, and brings back what came of them.

use super::extents::layout;
use super::hash::Hashing;
use super::list::{Lister, Listing, start_of};
use super::load::Piece;
use super::prepare::{Preparing, plain_path};
use crate::digest::{Digest, DigestCache, Digested, FileHasher, FileKey, HashError, SmallDigests, wall_clock};
use crate::limits::LEAVES_PAGE_MAX;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{FetchRequest, FileAnswer, LeavesReply, LeavesRequest, ListRequest};
use crate::server::Failure;
use crate::server::chunks::Layout;
use crate::server::open_file::OpenFile;
use crate::server::quota::copies::{Copies, Cut, Wanted};
use crate::server::quota::small_files::SmallFiles;
use crate::server::session::{LeavesAnswer, LoadHow, Loaded, Page, Prepared, Slot, Ticket};
use crate::server::snapshot::{RootSnapshot, RootWatch};
use crate::server::storage::Storage;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_blocking::{BlockingPool, JobStep, PoolLimits};
use towpath_quota::Quota;
use towpath_sockets::page_cache::Residency;
use towpath_sockets::{PeerId, Waker};

/// Threads of each lane. Most of the time they wait for a disk; hashing and compressing need processors, and a large file takes
/// its time.
const FILES_LANE: PoolLimits = PoolLimits { name: "tow-files", threads_max: 4, hung_max: 28, per_group_max: 2 };
const LIST_LANE: PoolLimits = PoolLimits { name: "tow-list", threads_max: 2, hung_max: 14, per_group_max: 1 };
const WARM_LANE: PoolLimits = PoolLimits { name: "tow-warm", threads_max: 8, hung_max: 8, per_group_max: 2 };
const HASHING_HANGING_MAX: usize = 4;
const COMPRESSING_HANGING_MAX: usize = 8;

/// What came of a job.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) peer: PeerId,
    pub(crate) ticket: Ticket,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Prepared(Vec<Prepared<OpenFile>>),
    Loaded(Slot, Result<Loaded, Failure>),
    /// The file is the one of this number in its fetch.
    LookedAt(u32, Result<Layout, Failure>),
    /// The listing comes back with its page, for the next one.
    Listed(Result<(Page, Box<Listing>), Failure>),
    Leaves(Result<LeavesAnswer, Failure>),
    Opened(Result<(OpenFile, u64), Failure>),
    /// For all that waited for this file; the peer and ticket are those of the first.
    Hashed {
        key: FileKey,
        run: u64,
        result: Result<Digest, Failure>,
    },
}

/// Who asked for a job.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    pub(crate) peer: PeerId,
    pub(crate) ticket: Ticket,
    /// The client: its jobs take turns with those of others.
    pub(crate) key: u64,
}

impl Requester {
    /// Its own group, in lanes where other groups are devices: no device has so large a number.
    fn group(self) -> u64 {
        Requester::group_of(self.key)
    }

    fn group_of(key: u64) -> u64 {
        !key
    }
}

/// The lanes, and what jobs need.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    files: BlockingPool,
    list: BlockingPool,
    warm: BlockingPool,
    hash: BlockingPool,
    compress: BlockingPool,
    copies: Copies<Piece>,
    /// Devices of file systems that are mounted below the root, so far as they were groups. There are few.
    mounts: BTreeSet<u64>,
    sender: Sender<Done>,
}

/// What a listing needs of its client.
pub(crate) struct ForListing {
    pub(crate) view: Arc<RootSnapshot>,
    pub(crate) names: Arc<Quota>,
    pub(crate) given_up: Arc<AtomicBool>,
}

struct Shared {
    current: RootWatch,
    hashing: Hashing,
    small_digests: SmallDigests,
    small_files: Arc<SmallFiles>,
    storage: Box<dyn Storage>,
    waker: Waker,
}

impl Pool {
    pub(crate) fn new(
        current: RootWatch,
        cache: DigestCache,
        small_files: Arc<SmallFiles>,
        storage: Box<dyn Storage>,
        waker: Waker,
    ) -> std::io::Result<(Pool, Receiver<Done>)> {
        let (sender, receiver) = channel();
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        // A device that hangs must not keep files of others from being hashed.
        let hash_threads = processors.clamp(2, 4);
        let hash = PoolLimits {
            name: "tow-hash",
            threads_max: hash_threads,
            hung_max: HASHING_HANGING_MAX,
            per_group_max: hash_threads - 1,
        };
        // It reads as well: a device that hangs must not keep files of others from being compressed. So one thread is more than
        // one device can have, and each can have all processors.
        let compress_threads = processors.min(8);
        let compress = PoolLimits {
            name: "tow-zstd",
            threads_max: compress_threads + 1,
            hung_max: COMPRESSING_HANGING_MAX,
            per_group_max: compress_threads,
        };
        let copies_waker = waker.clone();
        let pool = Pool {
            shared: Arc::new(Shared {
                current,
                hashing: Hashing::new(cache),
                small_digests: SmallDigests::default(),
                small_files,
                storage,
                waker,
            }),
            // Where the system gives no threads, that is told at the start, and not by the first request that needs one.
            files: BlockingPool::started(FILES_LANE)?,
            list: BlockingPool::started(LIST_LANE)?,
            warm: BlockingPool::started(WARM_LANE)?,
            hash: BlockingPool::started(hash)?,
            compress: BlockingPool::started(compress)?,
            copies: Copies::new(move || copies_waker.wake()),
            mounts: BTreeSet::new(),
            sender,
        };
        Ok((pool, receiver))
    }

    /// The mounted file system that a path leads to, and the group of a job that begins there: those of one that hangs have only its
    /// share of a lane, however many clients ask for them. Where there is none, or it can't be told, each client is a group.
    fn group(&mut self, requester: Requester, view: &RootSnapshot, path: Option<&RelPath>) -> (Option<u64>, u64) {
        let mount = path.and_then(|path| view.likely(&self.shared.current).mounted_below(path));
        self.mounts.extend(mount);
        (mount, mount.unwrap_or(requester.group()))
    }

    pub(crate) fn prepare(
        &mut self,
        requester: Requester,
        view: Arc<RootSnapshot>,
        request: Arc<FetchRequest>,
        from: usize,
        open_max: usize,
    ) {
        let path = request.files.get(from).and_then(|file| file.path.to_rel_path().ok());
        let (mount, group) = self.group(requester, &view, path.as_ref());
        // What is behind the first file is asked for again, in a job of its own.
        let failed = move |Failure { code, message }| {
            let answer = FileAnswer::Error { n: u32::try_from(from).unwrap_or(u32::MAX), code, message };
            Outcome::Prepared(vec![Prepared::Answer(answer)])
        };
        self.run(&self.files, group, requester, failed, move |shared| {
            let (began, request) = (wall_clock(), &request);
            let Shared { current, hashing, small_digests, small_files, .. } = shared;
            let (root, cache) = (&view.root(current), &hashing.cache);
            let preparing = Preparing { root, cache, small_digests, began, small_files, request, mount, open_max };
            Outcome::Prepared(preparing.batch(from))
        });
    }

    /// Opens a file: at once, if that can't block. Small files are asked for one by one in the plain
    /// dialect, and two changes of threads would take longer than all the rest.
    pub(crate) fn open(
        &mut self,
        requester: Requester,
        path: Option<&[u8]>,
    ) -> Option<Result<(OpenFile, u64), Failure>> {
        let with_size = |source: OpenFile| (source.clone(), source.stat.size);
        if let Some(root) = self.shared.current.look_in_memory() {
            match plain_path(&root, path).and_then(|path| OpenFile::open_cached(&root, &path)) {
                Ok(None) => {}
                opened => return opened.map(|source| source.map(with_size)).transpose(),
            }
        }
        let view = RootSnapshot::default();
        let group = {
            let path = path.and_then(|path| RelPath::new(path).ok());
            self.group(requester, &view, path.as_ref()).1
        };
        let path = path.map(<[u8]>::to_vec);
        self.run(
            &self.files,
            group,
            requester,
            |failure| Outcome::Opened(Err(failure)),
            move |shared| {
                let root = view.root(&shared.current);
                let opened = plain_path(&root, path.as_deref()).and_then(|path| OpenFile::open(&root, &path));
                Outcome::Opened(opened.map(with_size))
            },
        );
        None
    }

    /// Makes a piece ready: at once if it is in memory, of a file on a local disk, and needn't be compressed. Otherwise None.
    pub(crate) fn load(&mut self, piece: Piece) -> Option<Result<Loaded, Failure>> {
        let Piece { requester, slot, ref source, offset, length, how } = piece;
        if !source.is_local {
            // A piece of more bytes than memory can have waits for ever; there is none.
            let bytes = usize::try_from(length).unwrap_or(usize::MAX);
            let cut = match how {
                // The plain dialect has asked for one frame, of all of it.
                LoadHow::AsItIs => Cut::Never,
                LoadHow::Unchanged | LoadHow::Compressed => Cut::May,
                LoadHow::Rest => Cut::Was,
            };
            let Requester { key: client, ticket: Ticket(request), .. } = requester;
            let device = source.stat.device;
            self.copies.push(Wanted { client, request, device, bytes, cut, what: piece });
            self.copy_on();
            return None;
        }
        let failed = move |failure| Outcome::Loaded(slot, Err(failure));
        let device = source.stat.device;
        if how == LoadHow::Compressed {
            self.run(&self.compress, device, requester, failed, move |_| Outcome::Loaded(slot, piece.pack()));
            return None;
        }
        if how != LoadHow::AsItIs
            && let Err(failure) = source.check()
        {
            return Some(Err(failure));
        }
        if self.shared.storage.probe(source, offset, length) == Residency::Cached {
            return Some(Ok(Loaded::InPlace));
        }
        self.run(&self.warm, device, requester, failed, move |shared| {
            let warmed = shared.storage.warm(&piece.source, offset, length);
            Outcome::Loaded(slot, warmed.map(|()| Loaded::InPlace))
        });
        None
    }

    /// Has pieces read that waited for memory, as far as there is some. To be called after the waker was woken.
    pub(crate) fn copy_on(&mut self) {
        while let Some((piece, room)) = self.copies.next() {
            let Piece { requester, slot, how, .. } = piece;
            let lane = if how == LoadHow::Compressed { &self.compress } else { &self.warm };
            let failed = move |failure| Outcome::Loaded(slot, Err(failure));
            let device = piece.source.stat.device;
            self.run(lane, device, requester, failed, move |_| Outcome::Loaded(slot, piece.copy(room)));
        }
    }

    /// Finds out where a file has data and where holes.
    pub(crate) fn look(&self, requester: Requester, n: u32, source: OpenFile, from: u64) {
        let failed = move |failure| Outcome::LookedAt(n, Err(failure));
        self.run(&self.warm, source.stat.device, requester, failed, move |_| {
            Outcome::LookedAt(n, layout(&source, from))
        });
    }

    /// Hashes the file, unless it is taken away before it is its turn.
    pub(crate) fn hash(
        &self,
        requester: Requester,
        key: FileKey,
        device: u64,
        run: u64,
        file: Arc<Mutex<Option<OpenFile>>>,
        given_up: Arc<AtomicBool>,
    ) {
        let failed = move |failure| Outcome::Hashed { key, run, result: Err(failure) };
        let mut progress = None;
        self.run_in_slices(&self.hash, device, requester, failed, move |shared| {
            let lock = || file.lock().unwrap_or_else(PoisonError::into_inner);
            let source = lock().take();
            let result = match source {
                Some(source) => match shared.hash_on(&source, &mut progress, &given_up) {
                    Ok(None) => {
                        let mut file = lock();
                        // Whoever gives it up says so first, and then takes the file.
                        if !given_up.load(Ordering::Relaxed) {
                            *file = Some(source);
                        }
                        return None;
                    }
                    Ok(Some(digested)) => Ok(digested.digest),
                    Err(failure) => Err(failure),
                },
                None => {
                    if let Some(progress) = progress.take() {
                        shared.hashing.keep(progress);
                    }
                    Err(hash_failure(&HashError::GivenUp))
                }
            };
            Some(Outcome::Hashed { key, run, result })
        });
    }

    pub(crate) fn list(&mut self, requester: Requester, request: ListRequest, of: ForListing) {
        let (_, group) = self.group(requester, &of.view, start_of(&request).as_ref());
        let hashes = request.digest;
        self.make_page(hashes, group, requester, of, move |lister| lister.begin(&request).map(Box::new));
    }

    pub(crate) fn list_more(&mut self, requester: Requester, listing: Box<Listing>, of: ForListing) {
        let (_, group) = self.group(requester, &of.view, listing.place());
        self.make_page(listing.hashes(), group, requester, of, move |_| Ok(listing));
    }

    fn make_page(
        &self,
        hashes: bool,
        group: u64,
        requester: Requester,
        of: ForListing,
        begin: impl FnOnce(&Lister) -> Result<Box<Listing>, Failure> + Send + 'static,
    ) {
        let lane = if hashes { &self.hash } else { &self.list };
        let (mut begin, mut begun) = (Some(begin), None);
        let failed = |failure| Outcome::Listed(Err(failure));
        self.run_in_slices(lane, group, requester, failed, move |shared| {
            let ForListing { view, names, given_up } = &of;
            let root = &view.root(&shared.current);
            let lister = Lister { root, hashing: &shared.hashing, names, given_up };
            let mut listing = match begin.take() {
                Some(begin) => match begin(&lister) {
                    Ok(listing) => listing,
                    Err(failure) => return Some(failed(failure)),
                },
                None => begun.take()?,
            };
            match lister.page(&mut listing) {
                Ok(Some(page)) => Some(Outcome::Listed(Ok((page, listing)))),
                Ok(None) => {
                    begun = Some(listing);
                    None
                }
                Err(failure) => Some(failed(failure)),
            }
        });
    }

    pub(crate) fn leaves(
        &mut self,
        requester: Requester,
        view: Arc<RootSnapshot>,
        request: LeavesRequest,
        given_up: Arc<AtomicBool>,
    ) {
        let (_, group) = self.group(requester, &view, request.path.to_rel_path().ok().as_ref());
        let mut begun = None;
        self.run_in_slices(
            &self.hash,
            group,
            requester,
            |failure| Outcome::Leaves(Err(failure)),
            move |shared| shared.leaves(&view, &request, &mut begun, &given_up).transpose().map(Outcome::Leaves),
        );
    }

    /// Drops what a client that is gone has waiting, or what it has for a request that is over: with it the files that are open for it,
    /// and the names that it asked for. Of what hashes, others may wait for the same; and it is given up otherwise.
    pub(crate) fn forget(&mut self, key: u64, ticket: Option<Ticket>) {
        let request = ticket.map(|Ticket(number)| number);
        self.copies.forget(key, request);
        for group in self.mounts.iter().copied().chain([Requester::group_of(key)]) {
            self.files.cancel(key, request, Some(group));
            self.list.cancel(key, request, Some(group));
        }
        // Here the groups are devices, of which there are few.
        self.warm.cancel(key, request, None);
        self.compress.cancel(key, request, None);
    }

    /// Has a job done in a lane. One that panics, or for which there is no thread, is a `failed` one: nobody waits for ever.
    fn run(
        &self,
        lane: &BlockingPool,
        group: u64,
        requester: Requester,
        failed: impl FnOnce(Failure) -> Outcome + Send + Clone + 'static,
        job: impl FnOnce(&Shared) -> Outcome + Send + 'static,
    ) {
        let mut job = Some(job);
        // It is asked once, as it is through then.
        self.run_in_slices(lane, group, requester, failed, move |shared| job.take().map(|job| job(shared)));
    }

    /// The same for one that gives way to others, and goes on, as often as it returns None.
    fn run_in_slices(
        &self,
        lane: &BlockingPool,
        group: u64,
        requester: Requester,
        failed: impl FnOnce(Failure) -> Outcome + Send + Clone + 'static,
        mut job: impl FnMut(&Shared) -> Option<Outcome> + Send + 'static,
    ) {
        let (shared, sender) = (Arc::clone(&self.shared), self.sender.clone());
        let if_refused = failed.clone();
        let Requester { peer, ticket, key } = requester;
        let submitted = lane.submit_steps(ticket.0, group, key, move || {
            let outcome = match catch_unwind(AssertUnwindSafe(|| job(&shared))) {
                Ok(Some(outcome)) => outcome,
                Ok(None) => return JobStep::Continue,
                Err(_) => {
                    tracing::error!("a job panicked, and fails");
                    failed.clone()(Failure::new(ErrorCode::Io, "the server failed over it; its log has more"))
                }
            };
            // The server may have ended meanwhile: then nobody wants to know.
            let _ = sender.send(Done { peer, ticket, outcome });
            shared.waker.wake();
            JobStep::Done
        });
        if let Err(error) = submitted {
            let outcome = if_refused(Failure::no_thread(&error));
            let _ = self.sender.send(Done { peer, ticket, outcome });
            self.shared.waker.wake();
        }
    }
}

fn hash_failure(error: &HashError) -> Failure {
    match error {
        HashError::Changed => Failure::changed(error.to_string()),
        HashError::Io(error) => Failure::io(error),
        HashError::GivenUp => Failure::new(ErrorCode::Other, error.to_string()),
    }
}

impl Shared {
    /// See [`Hashing::slice`].
    fn hash_on(
        &self,
        source: &OpenFile,
        progress: &mut Option<FileHasher>,
        given_up: &AtomicBool,
    ) -> Result<Option<Arc<Digested>>, Failure> {
        let slice = self.hashing.slice(&source.file, &source.stat, progress, || given_up.load(Ordering::Relaxed));
        slice.map_err(|error| hash_failure(&error))
    }

    /// None if the file isn't hashed yet: this is to be called again with the same `begun`, which was None before.
    fn leaves(
        &self,
        view: &RootSnapshot,
        request: &LeavesRequest,
        begun: &mut Option<(OpenFile, Option<FileHasher>)>,
        given_up: &AtomicBool,
    ) -> Result<Option<LeavesAnswer>, Failure> {
        let (source, progress) = match begun {
            Some(begun) => begun,
            None => {
                let path = request.path.to_rel_path();
                let path = path.map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
                begun.insert((OpenFile::open(&view.root(&self.current), &path)?, None))
            }
        };
        let Some(digested) = self.hash_on(source, progress, given_up)? else { return Ok(None) };
        if digested.digest != request.digest {
            return Err(Failure::changed("the file has another digest now"));
        }
        // A file of one leaf has none: its digest is enough.
        let leaves = if digested.leaves.len() > 1 { &*digested.leaves } else { &[] };
        let from = usize::try_from(request.from).unwrap_or(usize::MAX).min(leaves.len());
        let count = request.count.min(LEAVES_PAGE_MAX) as usize;
        let wanted: Vec<_> = leaves.iter().skip(from).take(count).collect();
        let as_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let reply = LeavesReply {
            id: request.id,
            from: as_u32(from),
            count: as_u32(wanted.len()),
            total: as_u32(leaves.len()),
        };
        let attachment = wanted.into_iter().flatten().copied().collect::<Vec<u8>>().into();
        Ok(Some(LeavesAnswer { reply, attachment }))
    }
}
