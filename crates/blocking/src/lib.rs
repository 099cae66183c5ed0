//! Thread pools for calls that may block: bounded, and fair between clients.
//!
//! Each kind of work has a pool of its own, so that hashing a terabyte doesn't keep anybody from opening a file. Every job has a group: the
//! device that it reads from, where that is known. Groups take turns, and a limited number of jobs of one group run at a time: a disk that
//! hangs occupies no more threads than that. Tenants take turns, with the groups that they have jobs in, and so do the clients of a tenant: nobody
//! waits behind all jobs of another one, however many connections that one makes.
//!
//! The disk of a path may be unknown until it is opened, and opening may hang like reading. So while jobs wait, a thread that has been
//! running one for long is taken to be hung, and is replaced by another one, up to a limit.

mod cancel;
mod drop_offload;

pub use cancel::CancelToken;
pub use drop_offload::DropOffload;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_quota::{FairQueue, Order, Turns};

/// Duration of a job after which its thread is taken to be hung.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// Whether a job is done after a step.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum JobStep {
    /// The job is done.
    Done,
    /// The job goes on when others have had their turn.
    Continue,
}

/// Whom a job is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct JobOwner {
    /// Tenants take turns.
    pub tenant: u64,
    /// So do the clients of a tenant. No two tenants have the same client.
    pub client: u64,
    /// So do the requests of a client, by which jobs can be cancelled.
    pub request: u64,
}

/// A queued job, to be run step by step on the pool's threads.
trait Job: Send {
    fn owner(&self) -> JobOwner;

    fn run(&mut self) -> JobStep;
}

/// A job and its owner in one allocation, which keeps the queues small: their memory is scattered among the requests that wait, and keeps
/// the allocator from reusing what those free.
struct Owned<F> {
    owner: JobOwner,
    job: F,
}

impl<F: FnMut() -> JobStep + Send> Job for Owned<F> {
    fn owner(&self) -> JobOwner {
        self.owner
    }

    fn run(&mut self) -> JobStep {
        (self.job)()
    }
}

/// Limits of a pool.
#[derive(Copy, Clone, Debug)]
pub struct PoolLimits {
    /// Name of the threads.
    pub name: &'static str,
    /// Maximum threads that are not hung. They are started when needed, except for the first one of [`BlockingPool::started`].
    pub threads_max: usize,
    /// Maximum hung threads that are replaced.
    pub hung_max: usize,
    /// Maximum jobs of one group that run at the same time.
    pub per_group_max: usize,
}

/// Use of a pool at one moment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLoad {
    /// As in [`PoolLimits`].
    pub name: &'static str,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
    /// Threads that seem to hang.
    pub hung: usize,
}

/// A pool of threads. Dropping it drops queued jobs, and ends the threads when they finish what they run.
#[derive(Debug)]
pub struct BlockingPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: PoolLimits,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    groups: HashMap<u64, Group>,
    /// Groups with a job that may start now, each once, with the tenant of that job.
    ready: FairQueue<u64, u64, ()>,
    /// Groups in `ready`.
    ready_count: usize,
    idle: usize,
    threads: usize,
    /// Start and owner of each running job, by the number of its thread.
    since: HashMap<u64, (Instant, JobOwner)>,
    /// Threads ever started.
    started: u64,
    /// A thread checks from time to time for hung ones.
    watched: bool,
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("groups", &self.groups.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Group {
    /// Queued jobs by tenant and client; none of the queues is empty.
    waiting: Turns<u64, u64, VecDeque<Box<dyn Job>>>,
    order: Order,
    running: usize,
    is_ready: bool,
}

impl BlockingPool {
    /// A pool without threads as yet.
    pub fn new(limits: PoolLimits) -> BlockingPool {
        let shared = Shared { limits, state: Mutex::default(), work: Condvar::new() };
        BlockingPool { shared: Arc::new(shared) }
    }

    /// A pool with its first thread: all jobs will be done, one after the other if the system gives no more threads.
    pub fn started(limits: PoolLimits) -> std::io::Result<BlockingPool> {
        let pool = BlockingPool::new(limits);
        pool.shared.start(&mut pool.shared.lock())?;
        Ok(pool)
    }

    /// Queues a job behind those of the same group and client, which is a tenant of its own. Never blocks. Fails only if the first thread can't
    /// be started.
    pub fn submit(&self, group: u64, client: u64, job: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let mut job = Some(job);
        self.submit_steps(JobOwner { tenant: client, client, request: 0 }, group, move || {
            if let Some(job) = job.take() {
                job();
            }
            JobStep::Done
        })
    }

    /// Queues a job. It runs step by step: between two steps, other tenants, other clients and other requests of this one have their turns.
    pub fn submit_steps(
        &self,
        owner: JobOwner,
        group: u64,
        job: impl FnMut() -> JobStep + Send + 'static,
    ) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.groups.entry(group).or_default().push(Box::new(Owned { owner, job }));
        state.update(group, &self.shared.limits);
        if let Err(error) = self.shared.staff(&mut state) {
            // With fewer threads the pool is slower; without any, nothing would ever be done.
            if state.threads == 0 {
                let dropped = state.take_groups();
                // Not under the lock: dropping jobs may take long.
                drop(state);
                drop(dropped);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl BlockingPool {
    /// Jobs that run and wait.
    pub fn load(&self) -> PoolLoad {
        let state = self.shared.lock();
        let waiting = state.groups.values().flat_map(|group| group.waiting.iter(&group.order));
        let waiting = waiting.map(|(_, jobs)| jobs.len()).sum();
        let (name, hung) = (self.shared.limits.name, state.hanging(Instant::now()));
        PoolLoad { name, running: state.since.len(), waiting, hung }
    }

    /// Whether jobs for a client's request are queued and none of them runs; `group`: the only one in which it has any.
    pub fn keeps_waiting(&self, client: u64, request: u64, group: Option<u64>) -> bool {
        let is_its = |owner: JobOwner| (owner.client, owner.request) == (client, request);
        let waits =
            |group: &Group| group.waiting.get(client).is_some_and(|jobs| jobs.iter().any(|job| is_its(job.owner())));
        let state = self.shared.lock();
        let is_queued = match group {
            Some(group) => state.groups.get(&group).is_some_and(waits),
            None => state.groups.values().any(waits),
        };
        is_queued && !state.since.values().any(|(_, owner)| is_its(*owner))
    }

    /// Drops queued jobs of a client, or only those for one of its requests; `group`: the only one in which it has any. A running step goes on.
    pub fn cancel(&self, client: u64, request: Option<u64>, group: Option<u64>) {
        let mut dropped = Vec::new();
        let mut state = self.shared.lock();
        let all = || state.groups.keys().copied().collect();
        for group in group.map_or_else(all, |group| vec![group]) {
            dropped.extend(state.cancel(client, request, group));
        }
        // Not under the lock: dropping jobs may take long.
        drop(state);
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        let dropped = {
            let mut state = self.shared.lock();
            state.closed = true;
            state.take_groups()
        };
        self.shared.work.notify_all();
        drop(dropped);
        // Not joined: a thread may be hung, and it holds nothing that others need.
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run without the lock, so a panic in one leaves the state as it should be.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a thread for what is ready, or starts one if all are busy and there may be more.
    fn staff(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        if state.ready.is_empty() {
            return Ok(());
        }
        self.work.notify_one();
        if state.idle >= state.ready_count {
            return Ok(());
        }
        let hanging = state.hanging(Instant::now()).min(self.limits.hung_max);
        if state.threads < self.limits.threads_max + hanging {
            self.start(state)?;
        } else if !state.watched && hanging < self.limits.hung_max {
            let shared = Arc::clone(self);
            // Without this thread the pool is as slow as its slowest jobs.
            let watch = std::thread::Builder::new().name(self.limits.name.into()).spawn(move || shared.watch());
            state.watched = watch.is_ok();
        }
        Ok(())
    }

    fn start(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        let number = state.started;
        std::thread::Builder::new().name(self.limits.name.into()).spawn(move || shared.run(number))?;
        state.threads += 1;
        state.started += 1;
        Ok(())
    }

    /// Replaces hung threads as long as jobs wait.
    fn watch(self: Arc<Self>) {
        loop {
            std::thread::sleep(HANGS_AFTER / 4);
            let mut state = self.lock();
            if state.closed || state.ready.is_empty() || self.staff(&mut state).is_err() {
                state.watched = false;
                return;
            }
        }
    }

    fn run(self: Arc<Self>, number: u64) {
        let mut state = self.lock();
        // A replacement ends when hung threads are back.
        while !state.closed && state.threads <= self.limits.threads_max + state.hanging(Instant::now()) {
            let Some(group) = state.next_ready() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let Some(mut job) = state.take_job(group, &self.limits) else { continue };
            state.since.insert(number, (Instant::now(), job.owner()));
            // The group may have more jobs that can run now. If no thread can be started for them, this one comes back to them.
            let _ = self.staff(&mut state);
            drop(state);
            // The job reports its failure itself; the pool goes on.
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run()));
            if ran.is_err() {
                tracing::error!(pool = self.limits.name, "a job panicked");
            }
            let goes_on = if matches!(ran, Ok(JobStep::Continue)) {
                Some(job)
            } else {
                // Not under the lock.
                drop(job);
                None
            };
            state = self.lock();
            state.since.remove(&number);
            if let Some(job) = goes_on.filter(|_| !state.closed) {
                state.put_back(group, job);
            }
            state.finished(group, &self.limits);
        }
        state.threads -= 1;
        // What it was woken for, or leaves, is for another thread, or for one that is started if all others hang.
        let _ = self.staff(&mut state);
    }
}

impl State {
    fn hanging(&self, now: Instant) -> usize {
        self.since.values().filter(|(since, _)| now.saturating_duration_since(*since) >= HANGS_AFTER).count()
    }

    fn take_groups(&mut self) -> HashMap<u64, Group> {
        (self.ready, self.ready_count) = (FairQueue::default(), 0);
        std::mem::take(&mut self.groups)
    }

    fn next_ready(&mut self) -> Option<u64> {
        let (group, ()) = self.ready.pop_next()?;
        self.ready_count -= 1;
        Some(group)
    }

    fn take_job(&mut self, group: u64, limits: &PoolLimits) -> Option<Box<dyn Job>> {
        let entry = self.groups.get_mut(&group)?;
        entry.is_ready = false;
        let taken = entry.pop()?;
        entry.running += 1;
        self.update(group, limits);
        Some(taken)
    }

    /// Queues a job that goes on later.
    fn put_back(&mut self, group: u64, job: Box<dyn Job>) {
        self.groups.entry(group).or_default().put_back(job);
    }

    fn finished(&mut self, group: u64, limits: &PoolLimits) {
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.running = entry.running.saturating_sub(1);
        }
        self.update(group, limits);
    }

    fn cancel(&mut self, client: u64, request: Option<u64>, group: u64) -> Option<VecDeque<Box<dyn Job>>> {
        let entry = self.groups.get_mut(&group)?;
        let (waiting, ()) = entry.waiting.get_mut(client)?;
        let waited = std::mem::take(waiting).into_iter();
        let (jobs, kept): (_, VecDeque<_>) =
            waited.partition(|job| request.is_none_or(|request| job.owner().request == request));
        if !kept.is_empty() {
            *waiting = kept;
            return Some(jobs);
        }
        entry.waiting.remove(&mut entry.order, client);
        if entry.order.is_empty() {
            if std::mem::take(&mut entry.is_ready) {
                self.ready.remove(group);
                self.ready_count -= 1;
            }
            if entry.running == 0 {
                self.groups.remove(&group);
            }
        }
        Some(jobs)
    }

    /// Makes the group ready if one of its jobs may start, and removes it if nothing of it is left.
    fn update(&mut self, group: u64, limits: &PoolLimits) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        let next = entry.waiting.first(&entry.order).and_then(|(_, jobs)| jobs.front());
        let Some(next) = next.map(|job| job.owner()) else {
            if entry.running == 0 {
                self.groups.remove(&group);
            }
            return;
        };
        if !entry.is_ready && entry.running < limits.per_group_max {
            entry.is_ready = true;
            self.ready.push(&next.tenant, group, ());
            self.ready_count += 1;
        }
    }
}

impl Group {
    fn jobs_of(&mut self, owner: JobOwner) -> &mut VecDeque<Box<dyn Job>> {
        self.waiting.line(&mut self.order, &owner.tenant, owner.client).0
    }

    fn push(&mut self, job: Box<dyn Job>) {
        self.jobs_of(job.owner()).push_back(job);
    }

    /// Queues a job behind those of other requests, and before later ones of its own, which keep their order.
    fn put_back(&mut self, job: Box<dyn Job>) {
        let owner = job.owner();
        let waiting = self.jobs_of(owner);
        let (same, others): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|other| other.owner().request == owner.request);
        waiting.extend(others.into_iter().chain([job]).chain(same));
    }

    fn pop(&mut self) -> Option<Box<dyn Job>> {
        let (client, _) = self.waiting.first(&self.order)?;
        let (waiting, ()) = self.waiting.get_mut(client)?;
        let (job, is_last) = (waiting.pop_front(), waiting.is_empty());
        self.waiting.end_turn(&mut self.order, client);
        if is_last {
            self.waiting.remove(&mut self.order, client);
        }
        job
    }
}

#[cfg(test)]
mod tests;
