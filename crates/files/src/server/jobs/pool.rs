//! The threads that jobs run on.

use super::hash::{HashRuns, Hashed};
use super::hasher::Hasher;
use super::load::Load;
use super::{Answer, PushUpdate};
use crate::digest::DigestCache;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::server::Failure;
use crate::server::open_file::OpenFile;
use crate::server::push::Pushes;
use crate::server::quota::copies::Copies;
use crate::server::quota::small_files::SmallFiles;
use crate::server::session::Ticket;
use crate::server::snapshot::{RootSnapshot, Served};
use crate::server::storage::Storage;
use crate::server::versions::Versions;
use crate::server::watch::SharedCatalogue;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
#[cfg(test)]
use std::sync::{Mutex, PoisonError};
use towpath_blocking::{BlockingPool, JobOwner, JobStep, PoolLimits, PoolLoad};
use towpath_sockets::{PeerId, Waker};

/// Most of the time these threads wait for a disk.
const FILES: PoolLimits = PoolLimits { name: "tow-files", threads_max: 4, hung_max: 28, per_group_max: 2 };
const LIST: PoolLimits = PoolLimits { name: "tow-list", threads_max: 2, hung_max: 14, per_group_max: 1 };
const PREFETCH: PoolLimits = PoolLimits { name: "tow-prefetch", threads_max: 8, hung_max: 8, per_group_max: 2 };
/// Hashing and compressing need processors, and a large file takes its time.
const HASH_HUNG_MAX: usize = 4;
const COMPRESS_HUNG_MAX: usize = 8;

/// A job that is over.
#[derive(Debug)]
pub(crate) enum Done {
    Answer(Requester, Answer<OpenFile>),
    /// For all that wait for the file.
    Hashed(Hashed),
}

/// The request that a job is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    pub(crate) peer: PeerId,
    pub(crate) ticket: Ticket,
    /// The client's tenant: its jobs take turns with those of other tenants.
    pub(crate) tenant: u64,
    /// The client: its jobs take turns with those of other clients of the tenant.
    pub(crate) key: u64,
}

impl Requester {
    /// The client's own group, where other groups are devices: no device has so large a number.
    fn group(self) -> u64 {
        Requester::group_of(self.key)
    }

    fn group_of(key: u64) -> u64 {
        !key
    }
}

/// The threads, by kind of work, and what jobs need.
pub(crate) struct Pool {
    pub(super) context: Arc<Context>,
    pub(super) files: BlockingPool,
    pub(super) list: BlockingPool,
    pub(super) prefetch: BlockingPool,
    pub(super) hash: BlockingPool,
    pub(super) compress: BlockingPool,
    pub(super) copies: Copies<(Requester, Load<OpenFile>)>,
    pub(super) hash_runs: HashRuns,
    /// The receiver of pushes, if the server takes any.
    pub(super) pushes: Option<Pushes>,
    /// Devices of file systems mounted below the root that were groups. There are few.
    mounts: BTreeSet<u64>,
    sender: Sender<Done>,
    /// Tests run the jobs themselves, in an order of their own.
    #[cfg(test)]
    pub(in crate::server) held: Option<Mutex<Vec<HeldJob>>>,
}

/// A job that a test runs, step by step.
#[cfg(test)]
pub(in crate::server) type HeldJob = Box<dyn FnMut() -> JobStep + Send>;

/// State that all jobs share.
pub(in crate::server) struct Context {
    pub(in crate::server) served: Served,
    pub(in crate::server) hasher: Hasher,
    /// The catalogue, if the directory is watched.
    pub(in crate::server) published: Option<Arc<SharedCatalogue>>,
    /// Versions of it, if any are kept.
    pub(in crate::server) versions: Option<Arc<Versions>>,
    pub(super) small_files: Arc<SmallFiles>,
    pub(super) storage: Box<dyn Storage>,
    waker: Waker,
}

#[cfg(test)]
impl Context {
    /// The context of a watcher, without threads.
    pub(in crate::server) fn watching(served: Served, published: Arc<SharedCatalogue>, waker: Waker) -> Arc<Context> {
        Arc::new(Context {
            served,
            hasher: Hasher::new(DigestCache::new(1 << 20)),
            published: Some(published),
            versions: None,
            small_files: SmallFiles::new(0),
            storage: Box::new(crate::server::storage::PageCache),
            waker,
        })
    }
}

impl Pool {
    pub(crate) fn new(
        served: Served,
        cache: DigestCache,
        small_files: Arc<SmallFiles>,
        storage: Box<dyn Storage>,
        (published, versions): (Option<Arc<SharedCatalogue>>, Option<Arc<Versions>>),
        waker: Waker,
    ) -> std::io::Result<(Pool, Receiver<Done>)> {
        let (sender, receiver) = channel();
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        // A device that hangs must not keep files of others from being hashed.
        let hash_threads = processors.clamp(2, 4);
        let hash = PoolLimits {
            name: "tow-hash",
            threads_max: hash_threads,
            hung_max: HASH_HUNG_MAX,
            per_group_max: hash_threads - 1,
        };
        // It reads as well: a device that hangs must not keep files of others from being compressed. So one thread is more than
        // one device can have, and each can have all processors.
        let compress_threads = processors.min(8);
        let compress = PoolLimits {
            name: "tow-zstd",
            threads_max: compress_threads + 1,
            hung_max: COMPRESS_HUNG_MAX,
            per_group_max: compress_threads,
        };
        let copies_waker = waker.clone();
        let pool = Pool {
            context: Arc::new(Context {
                served,
                hasher: Hasher::new(cache),
                published,
                versions,
                small_files,
                storage,
                waker,
            }),
            // Where the system gives no threads, the start fails, and not the first request that needs one.
            files: BlockingPool::started(FILES)?,
            list: BlockingPool::started(LIST)?,
            prefetch: BlockingPool::started(PREFETCH)?,
            hash: BlockingPool::started(hash)?,
            compress: BlockingPool::started(compress)?,
            copies: Copies::new(move || copies_waker.wake()),
            hash_runs: HashRuns::default(),
            pushes: None,
            mounts: BTreeSet::new(),
            sender,
            #[cfg(test)]
            held: None,
        };
        Ok((pool, receiver))
    }

    /// State that all jobs share.
    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// Takes pushes from now on. `start` gets what answers for them.
    pub(crate) fn take_pushes<E>(
        &mut self,
        start: impl FnOnce(Box<dyn Fn(Requester, PushUpdate) + Send>) -> Result<Pushes, E>,
    ) -> Result<(), E> {
        let (context, sender) = (self.context(), self.sender.clone());
        let send_update = move |requester, update| {
            // Fails if the server has ended meanwhile.
            let _ = sender.send(Done::Answer(requester, Answer::Push(update)));
            context.waker.wake();
        };
        self.pushes = Some(start(Box::new(send_update))?);
        Ok(())
    }

    /// Whether the server takes pushes.
    pub(crate) fn takes_pushes(&self) -> bool {
        self.pushes.is_some()
    }

    pub(crate) fn load(&self) -> Vec<PoolLoad> {
        [&self.files, &self.list, &self.prefetch, &self.hash, &self.compress].map(BlockingPool::load).into()
    }

    /// Whether jobs of a request wait for a thread, and none of them runs.
    pub(crate) fn keeps_waiting(&self, key: u64, Ticket(request): Ticket) -> bool {
        let mut groups = self.mounts.iter().copied().chain([Requester::group_of(key)]);
        // In the others the groups are devices, and files of a bucket: all are searched.
        groups.any(|group| self.files.keeps_waiting(key, request, Some(group)))
            || [&self.prefetch, &self.compress, &self.hash].iter().any(|pool| pool.keeps_waiting(key, request, None))
    }

    /// Hands the answers of a job that is over to those who asked.
    pub(crate) fn finish(&mut self, done: Done, mut deliver: impl FnMut(Requester, Answer<OpenFile>)) {
        match done {
            Done::Answer(requester, answer) => deliver(requester, answer),
            Done::Hashed(hashed) => self.hash_runs.finish(hashed, deliver),
        }
    }

    /// The mounted file system that a path leads to, and the group of a job that begins there. The jobs on a file system that hangs have
    /// only its share of the threads, however many clients ask for them. Elsewhere each client is a group.
    pub(super) fn group(
        &mut self,
        requester: Requester,
        snapshot: &RootSnapshot,
        path: Option<&RelPath>,
    ) -> (Option<u64>, u64) {
        let mount = path.and_then(|path| snapshot.likely(&self.context.served).local()?.mounted_below(path));
        self.mounts.extend(mount);
        (mount, mount.unwrap_or(requester.group()))
    }

    /// Drops the waiting jobs of a client that is gone, or of a request that is over, with the files and names that they hold.
    pub(crate) fn cancel(&mut self, key: u64, ticket: Option<Ticket>) {
        let request = ticket.map(|Ticket(number)| number);
        self.copies.forget(key, request);
        if let Some(pushes) = &self.pushes {
            pushes.end(key, ticket);
        }
        self.cancel_hashing(key, ticket);
        for group in self.mounts.iter().copied().chain([Requester::group_of(key)]) {
            self.files.cancel(key, request, Some(group));
            self.list.cancel(key, request, Some(group));
        }
        // Here the groups are devices, and files of a bucket: all are searched.
        self.prefetch.cancel(key, request, None);
        self.compress.cancel(key, request, None);
    }

    /// Ends the waiting for digests of a client or of a request.
    pub(crate) fn cancel_hashing(&mut self, key: u64, ticket: Option<Ticket>) {
        self.hash_runs.cancel(|of| of.key == key && ticket.is_none_or(|ticket| of.ticket == ticket));
    }

    /// Answers a job that needs no thread.
    pub(super) fn answer(&self, done: Done) {
        let _ = self.sender.send(done);
        self.context.waker.wake();
    }

    /// Runs a job. If it panics, or there is no thread for it, the answer is `failed`: nobody waits for ever.
    pub(super) fn run(
        &self,
        threads: &BlockingPool,
        group: u64,
        requester: Requester,
        failed: impl FnOnce(Failure) -> Answer<OpenFile> + Send + Clone + 'static,
        job: impl FnOnce(&Context) -> Answer<OpenFile> + Send + 'static,
    ) {
        let mut job = Some(job);
        self.run_steps(threads, group, requester, failed, move |context| job.take().map(|job| job(context)));
    }

    /// Runs a job that gives way to others: it is called again as often as it returns None.
    pub(super) fn run_steps(
        &self,
        threads: &BlockingPool,
        group: u64,
        requester: Requester,
        failed: impl FnOnce(Failure) -> Answer<OpenFile> + Send + Clone + 'static,
        mut job: impl FnMut(&Context) -> Option<Answer<OpenFile>> + Send + 'static,
    ) {
        let done = move |answer| Done::Answer(requester, answer);
        let failed = move |failure| done(failed(failure));
        self.submit(threads, group, requester, failed, move |context| job(context).map(done));
    }

    pub(super) fn submit(
        &self,
        threads: &BlockingPool,
        group: u64,
        requester: Requester,
        failed: impl FnOnce(Failure) -> Done + Send + Clone + 'static,
        mut job: impl FnMut(&Context) -> Option<Done> + Send + 'static,
    ) {
        let (context, sender) = (Arc::clone(&self.context), self.sender.clone());
        let if_refused = failed.clone();
        let Requester { tenant, key: client, ticket: Ticket(request), .. } = requester;
        let step = move || {
            let done = match catch_unwind(AssertUnwindSafe(|| job(&context))) {
                Ok(Some(done)) => done,
                Ok(None) => return JobStep::Continue,
                Err(_) => {
                    tracing::error!("a job panicked; the request fails");
                    failed.clone()(Failure::new(ErrorCode::Io, "the server failed over it; its log has more"))
                }
            };
            // Fails if the server has ended meanwhile.
            let _ = sender.send(done);
            context.waker.wake();
            JobStep::Done
        };
        #[cfg(test)]
        if let Some(held) = &self.held {
            return held.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(step));
        }
        let submitted = threads.submit_steps(JobOwner { tenant, client, request }, group, step);
        if let Err(error) = submitted {
            self.answer(if_refused(Failure::no_thread(&error)));
        }
    }
}
