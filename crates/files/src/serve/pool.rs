//! Threads for what may block: bounded, in lanes, fair within a lane.
//!
//! A lane is a kind of work with its own threads, so that hashing a terabyte doesn't keep anybody from opening a file. Within a
//! lane every job has a key (the client or the device), keys take turns, and of one key only so many jobs run at a time:
//! a disk that hangs occupies no more threads than that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A job, run once on one of the lane's threads.
type Job = Box<dyn FnOnce() + Send>;

/// How much of a lane runs at a time.
#[derive(Copy, Clone, Debug)]
pub(super) struct LaneLimits {
    /// For the threads' names.
    pub(super) name: &'static str,
    /// Threads in all. They are started when first needed.
    pub(super) threads_max: usize,
    /// Jobs of one key that run at the same time.
    pub(super) per_key_max: usize,
}

/// One lane of the pool. Dropping it ends its threads once they finish what they run; what waits is dropped.
#[derive(Debug)]
pub(super) struct Lane {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    limits: LaneLimits,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    keys: HashMap<u64, Key>,
    /// Keys with a job that may start now, in the order of their turns, each once.
    ready: VecDeque<u64>,
    idle: usize,
    threads: usize,
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("keys", &self.keys.len()).field("threads", &self.threads).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Key {
    waiting: VecDeque<Job>,
    running: usize,
    is_ready: bool,
}

impl Lane {
    pub(super) fn new(limits: LaneLimits) -> Lane {
        let shared = Shared { limits, state: Mutex::default(), work: Condvar::new() };
        Lane { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Queues a job behind those of the same key. Never waits. Fails only if the system gives no first thread.
    pub(super) fn submit(&self, key: u64, job: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.keys.entry(key).or_default().waiting.push_back(Box::new(job));
        state.update(key, &self.shared.limits);
        if state.idle < state.ready.len() && state.threads < self.shared.limits.threads_max {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name(self.shared.limits.name.into()).spawn(move || shared.run()) {
                Ok(thread) => {
                    state.threads += 1;
                    self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
                }
                // With fewer threads it is slower, no more than that.
                Err(error) if state.threads == 0 => {
                    state.keys.clear();
                    state.ready.clear();
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            state.keys.clear();
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

    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some(key) = state.ready.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let Some(job) = state.take(key, &self.limits) else { continue };
            drop(state);
            // A job that panics fails its own request by never reporting; the lane goes on.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!(lane = self.limits.name, "a job panicked");
            }
            state = self.lock();
            state.finished(key, &self.limits);
        }
        state.threads -= 1;
    }
}

impl State {
    fn take(&mut self, key: u64, limits: &LaneLimits) -> Option<Job> {
        let entry = self.keys.get_mut(&key)?;
        entry.is_ready = false;
        let job = entry.waiting.pop_front()?;
        entry.running += 1;
        self.update(key, limits);
        Some(job)
    }

    fn finished(&mut self, key: u64, limits: &LaneLimits) {
        if let Some(entry) = self.keys.get_mut(&key) {
            entry.running = entry.running.saturating_sub(1);
        }
        self.update(key, limits);
    }

    /// Gives the key its turn if it may have one, forgets it if nothing of it is left.
    fn update(&mut self, key: u64, limits: &LaneLimits) {
        let Some(entry) = self.keys.get_mut(&key) else { return };
        if entry.waiting.is_empty() {
            if entry.running == 0 {
                self.keys.remove(&key);
            }
        } else if !entry.is_ready && entry.running < limits.per_key_max {
            entry.is_ready = true;
            self.ready.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LIMITS: LaneLimits = LaneLimits { name: "test", threads_max: 2, per_key_max: 1 };

    #[test]
    fn a_key_that_hangs_occupies_no_more_than_its_share() {
        let lane = Lane::new(LIMITS);
        let (gate, closed) = mpsc::channel::<()>();
        let closed = Arc::new(Mutex::new(closed));
        let (done, finished) = mpsc::channel();
        for number in 0..3 {
            let (closed, done) = (Arc::clone(&closed), done.clone());
            lane.submit(7, move || {
                let _ = closed.lock().unwrap().recv();
                done.send(number).unwrap();
            })
            .unwrap();
        }
        for number in 10..20 {
            let done = done.clone();
            lane.submit(8, move || done.send(number).unwrap()).unwrap();
        }
        // All of the other key's jobs end, in order, while the first key hangs.
        assert_eq!(finished.iter().take(10).collect::<Vec<_>>(), (10..20).collect::<Vec<_>>());
        drop(gate);
        assert_eq!(finished.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn keys_take_turns() {
        let lane = Lane::new(LaneLimits { threads_max: 1, ..LIMITS });
        let (gate, closed) = mpsc::channel::<()>();
        lane.submit(0, move || closed.recv().unwrap_or(())).unwrap();
        let (done, finished) = mpsc::channel();
        for key in [1, 1, 1, 2, 2, 3] {
            let done = done.clone();
            lane.submit(key, move || done.send(key).unwrap()).unwrap();
        }
        drop(gate);
        assert_eq!(finished.iter().take(6).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn a_panic_ends_one_job_only() {
        let lane = Lane::new(LaneLimits { threads_max: 1, ..LIMITS });
        let (done, finished) = mpsc::channel();
        lane.submit(1, || std::panic::resume_unwind(Box::new(()))).unwrap();
        lane.submit(1, move || done.send(()).unwrap()).unwrap();
        finished.recv().unwrap();
    }
}
