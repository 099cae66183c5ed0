//! Threads for what may block: bounded, in lanes, fair within a lane.
//!
//! A lane is a kind of work with its own threads, so that hashing a terabyte doesn't keep anybody from opening a file. Within a
//! lane every job has a group (the device that it reads from, where that is known). Groups take turns, and of one group only so
//! many jobs run at a time: a disk that hangs occupies no more threads than that. Within a group the askers, which are
//! clients, take turns, so that nobody waits behind all that another one wants.
//!
//! Which disk a path leads to is known before it was opened only so far as its names are in memory, and opening may hang as reading
//! may. So while work waits, a thread
//! that has been at one job for long is taken for one that hangs, and another one is started in its place, up to a bound.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A job that takes longer is taken for one that hangs.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// A job, run once on one of the lane's threads.
type Job = Box<dyn FnOnce() + Send>;

/// How much of a lane runs at a time.
#[derive(Copy, Clone, Debug)]
pub(super) struct LaneLimits {
    /// For the threads' names.
    pub(super) name: &'static str,
    /// Threads that do not hang. They are started when first needed.
    pub(super) threads_max: usize,
    /// Threads that are replaced when they seem to hang.
    pub(super) hanging_max: usize,
    /// Jobs of one group that run at the same time.
    pub(super) per_group_max: usize,
}

/// One lane of the pool. Dropping it ends its threads once they finish what they run; what waits is dropped.
#[derive(Debug)]
pub(super) struct Lane {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: LaneLimits,
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
    waiting: HashMap<u64, VecDeque<Job>>,
    /// Askers with jobs, in the order of their turns, each once.
    turns: VecDeque<u64>,
    running: usize,
    is_ready: bool,
}

impl Lane {
    pub(super) fn new(limits: LaneLimits) -> Lane {
        let shared = Shared { limits, state: Mutex::default(), work: Condvar::new() };
        Lane { shared: Arc::new(shared) }
    }

    /// Queues a job behind those of the same group and asker. Never waits. Fails only if the system gives no first thread.
    pub(super) fn submit(&self, group: u64, asker: u64, job: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.groups.entry(group).or_default().push(asker, Box::new(job));
        state.update(group, &self.shared.limits);
        if let Err(error) = self.shared.staff(&mut state) {
            // With fewer threads it is slower, no more than that; without any, nothing would ever be done.
            if state.threads == 0 {
                state.groups.clear();
                state.ready.clear();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Drops what this asker has waiting: in one group, where it has no jobs in others. What runs goes on.
    pub(super) fn forget(&self, asker: u64, group: Option<u64>) {
        let mut dropped = Vec::new();
        let mut state = self.shared.lock();
        let all = || state.groups.keys().copied().collect();
        for group in group.map_or_else(all, |group| vec![group]) {
            dropped.extend(state.forget(asker, group));
        }
        // Not under the lock: who knows what it takes to drop them.
        drop(state);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            state.groups.clear();
            state.ready.clear();
        }
        self.shared.work.notify_all();
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
        let hanging = state.hanging(Instant::now()).min(self.limits.hanging_max);
        if state.threads < self.limits.threads_max + hanging {
            let shared = Arc::clone(self);
            let number = state.started;
            std::thread::Builder::new().name(self.limits.name.into()).spawn(move || shared.run(number))?;
            state.threads += 1;
            state.started += 1;
        } else if !state.watched && hanging < self.limits.hanging_max {
            let shared = Arc::clone(self);
            // Without this thread the lane is as slow as its slowest jobs, no more than that.
            let watch = std::thread::Builder::new().name(self.limits.name.into()).spawn(move || shared.watch());
            state.watched = watch.is_ok();
        }
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
            let Some(job) = state.take(group, &self.limits) else { continue };
            state.since.insert(number, Instant::now());
            // The group may have more that can run beside this one. If no thread can be had for it, this one comes back to it.
            let _ = self.staff(&mut state);
            drop(state);
            // That it failed is for the job itself to tell; the lane goes on.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!(lane = self.limits.name, "a job panicked");
            }
            state = self.lock();
            state.since.remove(&number);
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

    fn take(&mut self, group: u64, limits: &LaneLimits) -> Option<Job> {
        let entry = self.groups.get_mut(&group)?;
        entry.is_ready = false;
        let job = entry.pop()?;
        entry.running += 1;
        self.update(group, limits);
        Some(job)
    }

    fn finished(&mut self, group: u64, limits: &LaneLimits) {
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.running = entry.running.saturating_sub(1);
        }
        self.update(group, limits);
    }

    fn forget(&mut self, asker: u64, group: u64) -> Option<VecDeque<Job>> {
        let entry = self.groups.get_mut(&group)?;
        let jobs = entry.waiting.remove(&asker)?;
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
    fn update(&mut self, group: u64, limits: &LaneLimits) {
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
    fn push(&mut self, asker: u64, job: Job) {
        let waiting = self.waiting.entry(asker).or_default();
        if waiting.is_empty() {
            self.turns.push_back(asker);
        }
        waiting.push_back(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let asker = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&asker)?;
        let job = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&asker);
        } else {
            self.turns.push_back(asker);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LIMITS: LaneLimits = LaneLimits { name: "test", threads_max: 2, hanging_max: 0, per_group_max: 1 };

    #[test]
    fn a_group_that_hangs_occupies_no_more_than_its_share() {
        let lane = Lane::new(LIMITS);
        let (gate, closed) = mpsc::channel::<()>();
        let closed = Arc::new(Mutex::new(closed));
        let (done, finished) = mpsc::channel();
        for number in 0..3 {
            let (closed, done) = (Arc::clone(&closed), done.clone());
            lane.submit(7, 0, move || {
                let _ = closed.lock().unwrap().recv();
                done.send(number).unwrap();
            })
            .unwrap();
        }
        for number in 10..20 {
            let done = done.clone();
            lane.submit(8, 0, move || done.send(number).unwrap()).unwrap();
        }
        // All of the other group's jobs end, in order, while the first group hangs.
        assert_eq!(finished.iter().take(10).collect::<Vec<_>>(), (10..20).collect::<Vec<_>>());
        drop(gate);
        assert_eq!(finished.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn threads_that_hang_are_replaced_up_to_a_bound() {
        let lane = Lane::new(LaneLimits { hanging_max: 3, ..LIMITS });
        let (gate, closed) = mpsc::channel::<()>();
        let closed = Arc::new(Mutex::new(closed));
        let (done, finished) = mpsc::channel();
        // Four groups hang, of which two are more than the lane has threads.
        for group in 0..4 {
            let (closed, done) = (Arc::clone(&closed), done.clone());
            lane.submit(group, 0, move || {
                let _ = closed.lock().unwrap().recv();
                done.send(group).unwrap();
            })
            .unwrap();
        }
        for number in 10..20 {
            let done = done.clone();
            lane.submit(9, 0, move || done.send(number).unwrap()).unwrap();
        }
        assert_eq!(finished.iter().take(10).collect::<Vec<_>>(), (10..20).collect::<Vec<_>>());
        assert_eq!(lane.shared.lock().threads, 5);
        drop(gate);
        assert_eq!(finished.iter().take(4).count(), 4);
        // Of five threads there are two again, as soon as one more job has woken those that are too many.
        let (done, finished) = mpsc::channel();
        while lane.shared.lock().threads > 2 {
            let done = done.clone();
            lane.submit(9, 0, move || done.send(()).unwrap()).unwrap();
            finished.recv().unwrap();
        }
    }

    #[test]
    fn groups_and_askers_take_turns() {
        for asker_of in [|number: u64| (number, 0), |number: u64| (0, number)] {
            let lane = Lane::new(LaneLimits { threads_max: 1, ..LIMITS });
            let (gate, closed) = mpsc::channel::<()>();
            let (begun, has_begun) = mpsc::channel();
            lane.submit(0, 0, move || {
                begun.send(()).unwrap();
                closed.recv().unwrap_or(());
            })
            .unwrap();
            has_begun.recv().unwrap();
            let (done, finished) = mpsc::channel();
            for number in [1, 1, 1, 2, 2, 3] {
                let done = done.clone();
                let (group, asker) = asker_of(number);
                lane.submit(group, asker, move || done.send(number).unwrap()).unwrap();
            }
            drop(gate);
            assert_eq!(finished.iter().take(6).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 1]);
        }
    }

    #[test]
    fn jobs_of_a_group_run_side_by_side_as_far_as_allowed() {
        for _ in 0..100 {
            let lane = Lane::new(LaneLimits { threads_max: 3, per_group_max: 2, ..LIMITS });
            // Each of the two waits for the other: one after the other, they would never end.
            let barrier = Arc::new(std::sync::Barrier::new(2));
            let (done, finished) = mpsc::channel();
            // The thread of this job soon waits for more. Then just one is woken for the two that come at once.
            let primed = done.clone();
            lane.submit(1, 0, move || primed.send(()).unwrap()).unwrap();
            finished.recv().unwrap();
            for _ in 0..2 {
                let (barrier, done) = (Arc::clone(&barrier), done.clone());
                lane.submit(1, 0, move || {
                    barrier.wait();
                    done.send(()).unwrap();
                })
                .unwrap();
            }
            assert_eq!(finished.iter().take(2).count(), 2);
        }
    }

    #[test]
    fn what_waits_for_an_asker_that_is_gone_is_dropped() {
        let lane = Lane::new(LaneLimits { threads_max: 1, ..LIMITS });
        let (gate, closed) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        lane.submit(1, 1, move || {
            begun.send(()).unwrap();
            closed.recv().unwrap_or(());
        })
        .unwrap();
        has_begun.recv().unwrap();
        let (done, finished) = mpsc::channel();
        for (group, asker) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)] {
            let done = done.clone();
            lane.submit(group, asker, move || done.send((group, asker)).unwrap()).unwrap();
        }
        drop(done);
        lane.forget(1, None);
        drop(gate);
        lane.forget(2, Some(9));
        let mut left: Vec<_> = finished.iter().collect();
        left.sort_unstable();
        assert_eq!(left, [(1, 2), (2, 2)]);
        wait_for_no_groups(&lane);
    }

    fn wait_for_no_groups(lane: &Lane) {
        while !lane.shared.lock().groups.is_empty() {
            std::thread::yield_now();
        }
        assert!(lane.shared.lock().ready.is_empty());
    }

    #[test]
    fn a_panic_ends_one_job_only() {
        let lane = Lane::new(LaneLimits { threads_max: 1, ..LIMITS });
        let (done, finished) = mpsc::channel();
        lane.submit(1, 0, || std::panic::resume_unwind(Box::new(()))).unwrap();
        lane.submit(1, 0, move || done.send(()).unwrap()).unwrap();
        finished.recv().unwrap();
    }

    /// A thread that goes, because those that hung are back, leaves what is ready to others; these may hang as well.
    #[test]
    fn what_a_thread_that_goes_leaves_is_done_though_the_others_hang() {
        let lane = Lane::new(LaneLimits { threads_max: 1, hanging_max: 4, ..LIMITS });
        let (release_first, first) = mpsc::channel::<()>();
        let (_release_second, second) = mpsc::channel::<()>();
        let (done, finished) = mpsc::channel();
        let (begun, has_begun) = mpsc::channel();
        lane.submit(1, 0, move || first.recv().unwrap_or(())).unwrap();
        let last = done.clone();
        // Of the same group: not ready before the first is through.
        lane.submit(1, 0, move || last.send(1).unwrap()).unwrap();
        lane.submit(2, 0, move || {
            begun.send(()).unwrap();
            second.recv().unwrap_or(());
        })
        .unwrap();
        // Another thread was started for it, as the first hangs.
        has_begun.recv().unwrap();
        std::thread::sleep(HANGS_AFTER / 2);
        drop(release_first);
        assert_eq!(finished.recv_timeout(HANGS_AFTER * 5), Ok(1));
    }
}
