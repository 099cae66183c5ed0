//! Threads for what may block: bounded, in lanes, fair within a lane.
//!
//! A lane is a kind of work with its own threads, so that hashing a terabyte doesn't keep anybody from opening a file. Within a
//! lane every job has a group (the device that it reads from, where that is known). Groups take turns, and of one group only so
//! many jobs run at a time: a disk that hangs occupies no more threads than that. Within a group the askers, which are
//! clients, take turns, so that nobody waits behind all that another one wants.
//!
//! Which disk a path leads to is known before it was opened only so far as its names are in memory, and opening may hang as reading
//! may. So while work waits, a thread that has been at one job for long is taken for one that hangs, and another one is started in its
//! place, up to a bound.

mod drop_offload;

pub use drop_offload::DropOffload;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A job that takes longer is taken for one that hangs.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// Whether a job is through.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum JobStep {
    /// It is through.
    Done,
    /// It took its time, and goes on when others had their turn.
    Continue,
}

/// A job that waits, to be run on one of the lane's threads until it is through.
trait Job: Send {
    /// What it is for.
    fn request(&self) -> u64;

    fn run(&mut self) -> JobStep;
}

/// One allocation with all of a job, so that the queues stay small: what they take is strewn among the requests that wait, and keeps
/// the allocator from using what those leave.
struct ForRequest<F> {
    request: u64,
    job: F,
}

impl<F: FnMut() -> JobStep + Send> Job for ForRequest<F> {
    fn request(&self) -> u64 {
        self.request
    }

    fn run(&mut self) -> JobStep {
        (self.job)()
    }
}

/// How much of a lane runs at a time.
#[derive(Copy, Clone, Debug)]
pub struct PoolLimits {
    /// For the threads' names.
    pub name: &'static str,
    /// Threads that do not hang. They are started when first needed, but for the first one of [`BlockingPool::started`].
    pub threads_max: usize,
    /// Threads that are replaced when they seem to hang.
    pub hung_max: usize,
    /// Jobs of one group that run at the same time.
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

/// One lane of the pool. Dropping it ends its threads once they finish what they run; what waits is dropped.
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
    /// Groups with a job that may start now, in the order of their turns, each once.
    ready: VecDeque<u64>,
    idle: usize,
    threads: usize,
    /// Since when each running job runs, by the number of its thread.
    since: HashMap<u64, Instant>,
    /// Threads ever started.
    started: u64,
    /// A thread looks from time to time for others that hang.
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
    /// By asker; none of them is empty.
    waiting: HashMap<u64, VecDeque<Box<dyn Job>>>,
    /// Askers with jobs, in the order of their turns, each once.
    turns: VecDeque<u64>,
    running: usize,
    is_ready: bool,
}

impl BlockingPool {
    /// A lane without threads, so far.
    pub fn new(limits: PoolLimits) -> BlockingPool {
        let shared = Shared { limits, state: Mutex::default(), work: Condvar::new() };
        BlockingPool { shared: Arc::new(shared) }
    }

    /// A lane that has its first thread: whatever the system gives later, all jobs are done, if one after the other.
    pub fn started(limits: PoolLimits) -> std::io::Result<BlockingPool> {
        let lane = BlockingPool::new(limits);
        lane.shared.start(&mut lane.shared.lock())?;
        Ok(lane)
    }

    /// Queues a job behind those of the same group and asker. Never waits. Fails only if the system gives no first thread.
    pub fn submit(&self, group: u64, asker: u64, job: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let mut job = Some(job);
        self.submit_steps(0, group, asker, move || {
            if let Some(job) = job.take() {
                job();
            }
            JobStep::Done
        })
    }

    /// The same for a request of the asker, by which [`BlockingPool::cancel`] can find it, and slice by slice: between two of them other askers,
    /// and other requests of this one, have their turns.
    pub fn submit_steps(
        &self,
        request: u64,
        group: u64,
        asker: u64,
        job: impl FnMut() -> JobStep + Send + 'static,
    ) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.groups.entry(group).or_default().push(asker, Box::new(ForRequest { request, job }));
        state.update(group, &self.shared.limits);
        if let Err(error) = self.shared.staff(&mut state) {
            // With fewer threads it is slower, no more than that; without any, nothing would ever be done.
            if state.threads == 0 {
                let dropped = std::mem::take(&mut state.groups);
                state.ready.clear();
                // Not under the lock: who knows what it takes to drop them.
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
        let waiting = state.groups.values().flat_map(|group| group.waiting.values()).map(VecDeque::len).sum();
        let (name, hung) = (self.shared.limits.name, state.hanging(Instant::now()));
        PoolLoad { name, running: state.since.len(), waiting, hung }
    }

    /// Drops what this asker has waiting, or only what is for one request of it: in one group, where it has no jobs in others. What
    /// runs goes on.
    pub fn cancel(&self, asker: u64, request: Option<u64>, group: Option<u64>) {
        let mut dropped = Vec::new();
        let mut state = self.shared.lock();
        let all = || state.groups.keys().copied().collect();
        for group in group.map_or_else(all, |group| vec![group]) {
            dropped.extend(state.cancel(asker, request, group));
        }
        // Not under the lock: who knows what it takes to drop them.
        drop(state);
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        let dropped = {
            let mut state = self.shared.lock();
            state.closed = true;
            state.ready.clear();
            std::mem::take(&mut state.groups)
        };
        self.shared.work.notify_all();
        drop(dropped);
        // Not joined: a thread may hang on a disk that never answers, and it holds nothing that others need.
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run without the lock, so a panic in one leaves the state as it should be.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that somebody takes what is ready: wakes a thread, or starts one if all are busy and there may be more.
    fn staff(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        if state.ready.is_empty() {
            return Ok(());
        }
        self.work.notify_one();
        if state.idle >= state.ready.len() {
            return Ok(());
        }
        let hanging = state.hanging(Instant::now()).min(self.limits.hung_max);
        if state.threads < self.limits.threads_max + hanging {
            self.start(state)?;
        } else if !state.watched && hanging < self.limits.hung_max {
            let shared = Arc::clone(self);
            // Without this thread the lane is as slow as its slowest jobs, no more than that.
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

    /// Replaces threads that hang, as long as anything waits for one.
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
        // One of those that took the place of others goes when these are back.
        while !state.closed && state.threads <= self.limits.threads_max + state.hanging(Instant::now()) {
            let Some(group) = state.ready.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let Some((asker, mut job)) = state.take(group, &self.limits) else { continue };
            state.since.insert(number, Instant::now());
            // The group may have more that can run beside this one. If no thread can be had for it, this one comes back to it.
            let _ = self.staff(&mut state);
            drop(state);
            // That it failed is for the job itself to tell; the lane goes on.
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run()));
            if ran.is_err() {
                tracing::error!(lane = self.limits.name, "a job panicked");
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
                state.put_back(group, asker, job);
            }
            state.finished(group, &self.limits);
        }
        state.threads -= 1;
        // What it was woken for, or leaves, is for another one, and should all others come to hang, for one that is started then.
        let _ = self.staff(&mut state);
    }
}

impl State {
    fn hanging(&self, now: Instant) -> usize {
        self.since.values().filter(|since| now.saturating_duration_since(**since) >= HANGS_AFTER).count()
    }

    fn take(&mut self, group: u64, limits: &PoolLimits) -> Option<(u64, Box<dyn Job>)> {
        let entry = self.groups.get_mut(&group)?;
        entry.is_ready = false;
        let taken = entry.pop()?;
        entry.running += 1;
        self.update(group, limits);
        Some(taken)
    }

    /// A job that was taken goes on later.
    fn put_back(&mut self, group: u64, asker: u64, job: Box<dyn Job>) {
        self.groups.entry(group).or_default().put_back(asker, job);
    }

    fn finished(&mut self, group: u64, limits: &PoolLimits) {
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.running = entry.running.saturating_sub(1);
        }
        self.update(group, limits);
    }

    fn cancel(&mut self, asker: u64, request: Option<u64>, group: u64) -> Option<VecDeque<Box<dyn Job>>> {
        let entry = self.groups.get_mut(&group)?;
        let waiting = entry.waiting.remove(&asker)?;
        let (jobs, kept) = waiting.into_iter().partition(|job| request.is_none_or(|request| job.request() == request));
        if !VecDeque::is_empty(&kept) {
            entry.waiting.insert(asker, kept);
            return Some(jobs);
        }
        entry.turns.retain(|of| *of != asker);
        if entry.turns.is_empty() {
            if std::mem::take(&mut entry.is_ready) {
                self.ready.retain(|of| *of != group);
            }
            if entry.running == 0 {
                self.groups.remove(&group);
            }
        }
        Some(jobs)
    }

    /// Gives the group its turn if it may have one, forgets it if nothing of it is left.
    fn update(&mut self, group: u64, limits: &PoolLimits) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        if entry.turns.is_empty() {
            if entry.running == 0 {
                self.groups.remove(&group);
            }
        } else if !entry.is_ready && entry.running < limits.per_group_max {
            entry.is_ready = true;
            self.ready.push_back(group);
        }
    }
}

impl Group {
    fn push(&mut self, asker: u64, job: Box<dyn Job>) {
        let waiting = self.waiting.entry(asker).or_default();
        if waiting.is_empty() {
            self.turns.push_back(asker);
        }
        waiting.push_back(job);
    }

    /// Behind what is for other requests, and before what is for the same one, which is wanted in its order.
    fn put_back(&mut self, asker: u64, job: Box<dyn Job>) {
        let waiting = self.waiting.entry(asker).or_default();
        if waiting.is_empty() {
            self.turns.push_back(asker);
        }
        let (same, others): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|other| other.request() == job.request());
        waiting.extend(others.into_iter().chain([job]).chain(same));
    }

    fn pop(&mut self) -> Option<(u64, Box<dyn Job>)> {
        let asker = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&asker)?;
        let job = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&asker);
        } else {
            self.turns.push_back(asker);
        }
        Some((asker, job?))
    }
}

#[cfg(test)]
mod tests;
