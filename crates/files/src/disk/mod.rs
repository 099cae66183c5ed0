//! The disk: a few threads that hash, write and install what the transfer commands.

mod cancel;
mod destination;
mod hard_link;
mod inspect;
mod install;
mod installed;
mod ledger;
mod lock;
mod metadata;
mod notices;
mod partial;
mod put;
mod reuse;
mod state;
mod tree_lock;
mod worker;

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use cancel::Cancelled;
use destination::Destination;
pub(crate) use destination::OWNER_MODE;
pub(crate) use ledger::Ledger;
pub(crate) use lock::remove_left_over;
pub use metadata::Modes;
pub(crate) use metadata::{DIR_BITS, Metadata, SET_GROUP_ID};
pub(crate) use notices::Notices;
use partial::PartialFile;
use worker::{Job, Worker};

#[cfg(fuzzing)]
pub use state::fuzz_body as fuzz_partial_state;

use crate::path::RelPath;
use crate::protocol::control::Expected;
use crate::root::{FileStat, Root, RootError};
use crate::transfer::{ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, FileKey, Part, SmallFile, Source};

/// Small files in one job: enough that waking a worker costs nothing, few enough that all workers are busy.
const SMALL_JOB_FILES: usize = 64;

/// Leaves between those of the same worker when leaves are copied.
const REUSED_LEAVES_APART: u64 = 64;

/// Jobs of small files that a worker is given ahead; beyond it files are collected until it gets to them.
const SMALL_JOBS_AHEAD: usize = 2;

/// Options of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskOptions {
    /// Sync files and directories.
    pub(crate) durable: bool,
    /// Hash leaves.
    pub(crate) verify: bool,
    /// Compare what is there by digest, not by size and time.
    pub(crate) check: bool,
    /// Modes and times that are set.
    pub(crate) metadata: Metadata,
    /// Workers, at least one.
    pub(crate) workers: usize,
    /// The destination is empty.
    pub(crate) fresh: bool,
    /// The destination was made for this transfer, and gets the mode of what it is a copy of.
    pub(crate) made: bool,
    /// Name of the destination in errors, if its path is nobody's business.
    pub(crate) place: Option<&'static str>,
}

impl DiskOptions {
    /// Options for pushed files: verified, and compared with what is there by digest.
    pub(crate) fn of_pushes(workers: usize) -> DiskOptions {
        DiskOptions { verify: true, check: true, workers, place: Some("on the server"), ..DiskOptions::default() }
    }
}

/// A content that is complete, in its partial file.
#[derive(Debug)]
pub(crate) struct Staged(Arc<PartialFile>);

impl Staged {
    /// Does something with the file. Blocks.
    pub(crate) fn with_file<T>(&self, work: impl FnOnce(&File) -> T) -> Result<T, DiskError> {
        self.0.open().map(|open| work(&open.file))
    }
}

/// The disk's side of a transfer.
#[derive(Debug)]
pub(crate) struct Disk {
    options: DiskOptions,
    destination: Arc<Destination>,
    jobs: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    cancelled: Cancelled,
    reports: Receiver<DiskReport>,
    /// Sends the reports of this thread itself.
    own_reports: Sender<DiskReport>,
    /// The workers have woken the transfer since their reports were last looked at.
    awake: Arc<AtomicBool>,
    contents: HashMap<ContentKey, Arc<PartialFile>>,
    /// Small files that aren't handed over yet, of each worker.
    small: Vec<Vec<SmallFile>>,
    /// Jobs of small files that a worker hasn't done, of each worker.
    small_jobs: Vec<Arc<AtomicUsize>>,
    hasher: RandomState,
    /// Bytes in memory that were handed over and not written yet.
    queued_bytes: Arc<AtomicU64>,
}

impl Disk {
    /// Starts the workers, below a directory. `wake` is called from other threads when there are reports.
    pub(crate) fn start(
        path: &Path,
        options: DiskOptions,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, DiskStartError> {
        Self::of_follower(path, options, Arc::default(), wake)
    }

    /// The same for a follower, with the ledger of what may be replaced and what was put where.
    pub(crate) fn of_follower(
        path: &Path,
        options: DiskOptions,
        ledger: Arc<Ledger>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, DiskStartError> {
        let destination = Arc::new(Destination::new(path, options, ledger)?);
        let awake = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&awake);
        // Waking costs a system call: once is enough until the reports are looked at.
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            if !flag.swap(true, Ordering::AcqRel) {
                wake();
            }
        });
        let (own_reports, reports) = channel();
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let cancelled = Cancelled::default();
        let (mut jobs, mut threads, mut small_jobs) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..options.workers.max(1) {
            let (sender, receiver) = channel();
            let queued = Arc::clone(&queued_bytes);
            let small = Arc::new(AtomicUsize::new(0));
            small_jobs.push(Arc::clone(&small));
            let (destination, cancelled) = (Arc::clone(&destination), cancelled.clone());
            let worker = Worker::new(destination, cancelled, own_reports.clone(), Arc::clone(&wake), queued, small);
            let thread = std::thread::Builder::new().name(format!("disk-{index}"));
            threads.push(thread.spawn(move || worker.run(&receiver))?);
            jobs.push(sender);
        }
        let small = vec![Vec::new(); jobs.len()];
        let (contents, hasher) = (HashMap::new(), RandomState::new());
        Ok(Self {
            options,
            destination,
            jobs,
            threads,
            cancelled,
            reports,
            own_reports,
            awake,
            contents,
            small,
            small_jobs,
            hasher,
            queued_bytes,
        })
    }

    /// Locks the destination against other transfers of the same tree until this ends. The error says who has it.
    pub(crate) fn lock_tree(&self, source: &Source) -> Result<(), String> {
        self.destination.lock_tree(source)
    }

    /// The summary's notices of the destination, complete once all workers have ended.
    pub(crate) fn notices(&self) -> Arc<Notices> {
        Arc::clone(&self.destination.notices)
    }

    /// The destination.
    pub(crate) fn root(&self) -> &Root {
        self.destination.root()
    }

    /// Whether what is there was installed, or found, under another path: on a file system for which two names are one.
    pub(crate) fn is_of_another(&self, there: &FileStat, local: &RelPath) -> bool {
        self.destination.installed.is_of_another(there, local)
    }

    /// Forgets what was installed, and which names were synced, when nothing is being installed: other programs may remove and make directories.
    pub(crate) fn forget_installed(&self) {
        self.destination.forget_installed();
    }

    /// Forgets a partial file that was found under a path, and isn't resumed.
    pub(crate) fn forget_partial(&self, local: &RelPath) {
        self.destination.take_partial(local);
    }

    /// Pieces of existing files that all workers have read to hash them.
    pub(crate) fn pieces_read(&self) -> u64 {
        self.cancelled.pieces_read()
    }

    /// Carries out a command. Small files wait for [`Disk::flush`].
    pub(crate) fn command(&mut self, command: DiskCommand) {
        match command {
            DiskCommand::Inspect { file, local, listed, digest } => {
                self.send(file.0, Job::Inspect { file, local, listed, digest });
            }
            DiskCommand::CheckSpace { .. } => self.report(DiskReport::Space { free: self.destination.free_bytes() }),
            DiskCommand::MakeDir { local } => {
                // Anything in the place of a directory has to go before files below it are made: in order, then.
                let worker = if self.options.fresh { self.worker_in(&local) } else { 0 };
                self.send(worker, Job::MakeDir { local });
            }
            DiskCommand::MakeLink { local, target, modified } => {
                self.send(0, Job::MakeLink { local, target, modified });
            }
            DiskCommand::FinishDir { local, mode, modified } if local.is_root() => {
                self.send(0, Job::FinishTop { mode: Some(mode).filter(|_| self.options.made), modified });
            }
            DiskCommand::FinishDir { local, mode, modified } => {
                self.send(self.worker_in(&local), Job::FinishDir { local, mode, modified });
            }
            DiskCommand::Touch { file, local, version } => self.send(file.0, Job::Touch { file, local, version }),
            DiskCommand::HardLink { file, local, first, version } => {
                self.send(file.0, Job::HardLink { file, local, first, version });
            }
            DiskCommand::Small(small) => self.small(small),
            DiskCommand::Begin(spec) => {
                let content = PartialFile::new(spec, Arc::clone(&self.destination));
                self.contents.insert(content.spec.content, Arc::new(content));
            }
            DiskCommand::NoteDigest { content, digest } => {
                // Not by a worker: it is one small write, and rare.
                if let Some(Err(error)) = self.contents.get(&content).map(|content| content.open()?.note_digest(digest))
                {
                    tracing::warn!(%error, "cannot record the digest of a partial file");
                }
            }
            DiskCommand::ForgetLeaves { content, leaves } => {
                if let Some(content) = self.contents.get(&content)
                    && let Err(error) = content.open().and_then(|open| open.forget_leaves(&leaves))
                {
                    // Nobody may resume what is known to be wrong.
                    tracing::warn!(%error, "cannot record which leaves of a partial file are wrong");
                    content.abandon();
                }
            }
            DiskCommand::Write { content, part, data } => {
                if let Some(content) = self.contents.get(&content).map(Arc::clone) {
                    self.write(content, part, data);
                }
            }
            DiskCommand::Zeros { content, leaf, offset, length, credit } => {
                if let Some(content) = self.contents.get(&content).map(Arc::clone) {
                    self.send(worker_of(&content, leaf), Job::Zeros { content, leaf, offset, length, credit });
                }
            }
            DiskCommand::Reuse { content, leaves } => {
                if let Some(content) = self.contents.get(&content).map(Arc::clone) {
                    // Many leaves to one worker, the next ones to another.
                    let worker = leaves.first().map_or(0, |(leaf, _)| leaf / REUSED_LEAVES_APART);
                    self.send(worker, Job::Reuse { content, leaves });
                }
            }
            DiskCommand::Install { file, content } => {
                if let Some(content) = self.forget(content) {
                    self.send(file.0, Job::Install { file, content });
                }
            }
            DiskCommand::Abandon { content } => {
                if let Some(content) = self.forget(content) {
                    content.abandon();
                }
            }
            DiskCommand::Leave { content } => drop(self.forget(content)),
        }
    }

    /// Finds out whether a path is as it is expected to be. Report: [`DiskReport::Checked`].
    pub(crate) fn check(&self, file: FileKey, local: RelPath, expected: Expected) {
        self.send(file.0, Job::Check { file, local, expected });
    }

    /// A content that is complete and right, to be put elsewhere. [`DiskCommand::Abandon`] removes it.
    pub(crate) fn staged(&self, content: ContentKey) -> Option<Staged> {
        self.contents.get(&content).map(|content| Staged(Arc::clone(content)))
    }

    /// Installs a content that is complete and right, if its path is then as it is expected to be. Report: [`DiskReport::Put`].
    pub(crate) fn put(&mut self, file: FileKey, content: ContentKey, expected: Expected, durable: bool) {
        if let Some(content) = self.forget(content) {
            self.send(file.0, Job::Put { file, content, expected, durable });
        }
    }

    /// Writes a small file with the right content, and installs it as [`Disk::put`] does, likewise with its report.
    pub(crate) fn put_small(
        &self,
        file: FileKey,
        spec: ContentSpec,
        data: Bytes,
        (expected, durable): (Expected, bool),
    ) {
        let content = Arc::new(PartialFile::new(spec, Arc::clone(&self.destination)));
        self.send(file.0, Job::PutSmall { file, content, data, expected, durable });
    }

    fn write(&mut self, content: Arc<PartialFile>, part: Part, data: Bytes) {
        self.queued_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.send(worker_of(&content, part.leaf), Job::Write { content, part, data });
    }

    /// Hands collected small files over to workers that are about to be idle. Others get theirs when they report:
    /// waking a worker for a few files costs more than the files.
    pub(crate) fn flush(&mut self) {
        for index in 0..self.small.len() {
            if self.small_jobs.get(index).is_some_and(|jobs| jobs.load(Ordering::Acquire) < SMALL_JOBS_AHEAD) {
                self.hand_over_small(index);
            }
        }
    }

    fn hand_over_small(&mut self, index: usize) {
        let (Some(small), Some(count)) = (self.small.get_mut(index), self.small_jobs.get(index)) else { return };
        if !small.is_empty() {
            count.fetch_add(1, Ordering::AcqRel);
            let files = std::mem::take(small);
            self.send(index as u64, Job::Small(files));
        }
    }

    /// The next report.
    pub(crate) fn next_report(&mut self) -> Option<DiskReport> {
        self.awake.store(false, Ordering::Release);
        self.reports.try_recv().ok()
    }

    /// Waits for the next report.
    pub(crate) fn wait_report(&mut self, timeout: Duration) -> Option<DiskReport> {
        self.reports.recv_timeout(timeout).ok()
    }

    /// Bytes in memory that were handed over and not written yet.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// The worker of a directory's entries: the kernel changes a directory by one thread at a time anyhow.
    fn worker_in(&self, local: &RelPath) -> u64 {
        self.hasher.hash_one(local.parent().unwrap_or_default())
    }

    fn small(&mut self, small: SmallFile) {
        self.queued_bytes.fetch_add(small.bytes(), Ordering::Relaxed);
        let worker = self.index(self.worker_in(&small.local));
        if let Some(gathered) = self.small.get_mut(worker) {
            gathered.push(small);
            if gathered.len() >= SMALL_JOB_FILES {
                self.hand_over_small(worker);
            }
        }
    }

    /// Waits for the workers as dropping does, but only as long as there are reports at least every `timeout`. The
    /// error is the place, for people; a worker that hangs in a call to the disk is then left there.
    pub(crate) fn end(mut self, timeout: Duration) -> Result<(), String> {
        self.cancelled.set();
        self.jobs.clear();
        // The workers are then the only ones who can report.
        (self.own_reports, _) = channel();
        loop {
            match self.reports.recv_timeout(timeout) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        self.threads.clear();
        // Closing what is open there would hang this thread too.
        std::mem::forget(std::mem::take(&mut self.contents));
        Err(self.destination.place.clone())
    }

    fn forget(&mut self, content: ContentKey) -> Option<Arc<PartialFile>> {
        let partial = self.contents.remove(&content)?;
        for jobs in &self.jobs {
            let _ = jobs.send(Job::Forget(content));
        }
        Some(partial)
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number % self.jobs.len().max(1) as u64).unwrap_or(0)
    }

    fn send(&self, worker: u64, job: Job) {
        if let Some(jobs) = self.jobs.get(self.index(worker)) {
            let _ = jobs.send(job);
        }
    }

    fn report(&self, report: DiskReport) {
        let _ = self.own_reports.send(report);
    }
}

/// The worker of a leaf: all of its bytes go to one, and consecutive leaves to different ones.
fn worker_of(content: &PartialFile, leaf: u64) -> u64 {
    content.spec.content.0.wrapping_add(leaf)
}

impl Drop for Disk {
    /// Waits for the workers to write what they have, so that nobody writes below the destination after a transfer.
    /// Inspections aren't waited for.
    fn drop(&mut self) {
        self.cancelled.set();
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a disk thread panicked");
            }
        }
    }
}

/// Why a destination can't be written to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskStartError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

#[cfg(test)]
mod rivals_tests;
#[cfg(test)]
mod tests;
