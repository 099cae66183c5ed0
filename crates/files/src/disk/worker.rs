//! A thread that hashes and writes. All bytes of a leaf come to the same worker, in order.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use towpath_buffers::PageBuffer;

use super::cancel::Cancelled;
use super::destination::Destination;
use super::hard_link::hard_link;
use super::inspect::{inspect, read_range};
use super::install;
use super::partial::{OpenPartial, PartialFile, io_error};
use super::put;
use super::reuse::reuse;
use crate::digest::{Digest, Leaf, LeafHasher, LeafSize};
use crate::path::RelPath;
use crate::protocol::control::Expected;
use crate::root::{Dir, Timestamp};
use crate::transfer::{ContentKey, DiskError, DiskReport, FileKey, Part, SmallFile, Version};

/// The value of a leaf that isn't verified.
const UNVERIFIED: Leaf = [0; 32];
/// Reports of short jobs that are sent together.
const UNANNOUNCED_MAX: usize = 64;
const ZEROS: &[u8] = &[0; 64 << 10];
/// Bytes written by one call. For larger writes the kernel looks for larger blocks of free memory, and a virtual machine's host may have
/// taken those away: 512 KiB at a time took four times the processor time of 256 KiB.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// A job of a worker.
#[derive(Debug)]
pub(super) enum Job {
    Inspect {
        file: FileKey,
        local: RelPath,
        listed: Version,
        digest: Option<Digest>,
    },
    Small(Vec<SmallFile>),
    Write {
        content: Arc<PartialFile>,
        part: Part,
        data: Bytes,
    },
    Zeros {
        content: Arc<PartialFile>,
        leaf: u64,
        offset: u64,
        length: u64,
        credit: u64,
    },
    Reuse {
        content: Arc<PartialFile>,
        leaves: Vec<(u64, Leaf)>,
    },
    Install {
        file: FileKey,
        content: Arc<PartialFile>,
    },
    Check {
        file: FileKey,
        local: RelPath,
        expected: Expected,
    },
    Put {
        file: FileKey,
        content: Arc<PartialFile>,
        expected: Expected,
        durable: bool,
    },
    PutSmall {
        file: FileKey,
        content: Arc<PartialFile>,
        data: Bytes,
        expected: Expected,
        durable: bool,
    },
    Touch {
        file: FileKey,
        local: RelPath,
        version: Version,
    },
    HardLink {
        file: FileKey,
        local: RelPath,
        first: RelPath,
        version: Version,
    },
    MakeDir {
        local: RelPath,
    },
    MakeLink {
        local: RelPath,
        target: Vec<u8>,
        modified: Timestamp,
    },
    FinishDir {
        local: RelPath,
        mode: u32,
        modified: Timestamp,
    },
    FinishTop {
        /// `None` if it keeps its own.
        mode: Option<u32>,
        modified: Timestamp,
    },
    /// Nothing more follows for this content.
    Forget(ContentKey),
}

impl Job {
    /// Whether it takes hardly longer than waking the transfer.
    fn is_short(&self) -> bool {
        matches!(self, Job::MakeDir { .. } | Job::FinishDir { .. } | Job::Forget(_))
    }
}

/// A leaf that is being written.
#[derive(Debug)]
struct OpenLeaf {
    /// `None` if nothing is verified.
    hasher: Option<LeafHasher>,
    /// Offset of its next byte in the file.
    position: u64,
    end: u64,
}

pub(super) struct Worker {
    destination: Arc<Destination>,
    cancelled: Cancelled,
    reports: Sender<DiskReport>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Bytes in memory that are queued for workers.
    queued_bytes: Arc<AtomicU64>,
    /// Jobs of small files that are queued for this worker.
    small_jobs: Arc<AtomicUsize>,
    leaves: HashMap<(ContentKey, u64), OpenLeaf>,
    /// Buffer for reading back.
    buffer: PageBuffer,
}

impl Worker {
    pub(super) fn new(
        destination: Arc<Destination>,
        cancelled: Cancelled,
        reports: Sender<DiskReport>,
        wake: Arc<dyn Fn() + Send + Sync>,
        queued_bytes: Arc<AtomicU64>,
        small_jobs: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            destination,
            cancelled,
            reports,
            wake,
            queued_bytes,
            small_jobs,
            leaves: HashMap::new(),
            buffer: PageBuffer::default(),
        }
    }

    /// Works until no jobs can come any more, or nobody can receive reports.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        let mut unannounced = 0;
        while let Some(job) = self.next_job(jobs, &mut unannounced) {
            let is_short = job.is_short();
            for report in self.work(job) {
                if self.reports.send(report).is_err() {
                    return;
                }
                unannounced += 1;
            }
            if !is_short || unannounced >= UNANNOUNCED_MAX {
                self.wake_for(&mut unannounced);
            }
        }
    }

    /// The next job. Wakes the transfer for earlier reports before a job that may take long, and when there is none.
    fn next_job(&self, jobs: &Receiver<Job>, unannounced: &mut usize) -> Option<Job> {
        match jobs.try_recv() {
            Ok(job) => {
                if !job.is_short() {
                    self.wake_for(unannounced);
                }
                Some(job)
            }
            Err(TryRecvError::Empty) => {
                self.wake_for(unannounced);
                jobs.recv().ok()
            }
            Err(TryRecvError::Disconnected) => None,
        }
    }

    fn wake_for(&self, unannounced: &mut usize) {
        if std::mem::take(unannounced) > 0 {
            (self.wake)();
        }
    }

    fn work(&mut self, job: Job) -> Vec<DiskReport> {
        let report = match job {
            Job::Inspect { file, local, listed, digest } => {
                let found = inspect(&self.destination, &local, &listed, digest, &self.cancelled);
                DiskReport::Inspected { file, found }
            }
            Job::Small(files) => {
                let mut reports = Vec::with_capacity(files.len());
                for small in &files {
                    let report = self.small(small);
                    reports.push(self.with_place(report));
                }
                self.small_jobs.fetch_sub(1, Ordering::AcqRel);
                return reports;
            }
            Job::Write { content, part, data } => {
                let result = self.write(&content, part, &data);
                self.queued_bytes.fetch_sub(data.len() as u64, Ordering::Relaxed);
                part.written(content.spec.content, result)
            }
            Job::Zeros { content, leaf, offset, length, credit } => {
                let result = self.zeros(&content, leaf, offset, length);
                DiskReport::Written { content: content.spec.content, offset, length, credit, result }
            }
            Job::Reuse { content, leaves } => {
                let result = reuse(&content, &leaves, &mut self.buffer, &self.cancelled);
                DiskReport::Reused { content: content.spec.content, result }
            }
            Job::Install { file, content } => {
                let result = content.open().and_then(|open| install::install(&content, &open, &self.cancelled));
                DiskReport::Installed { file, result }
            }
            Job::Check { file, local, expected } => {
                DiskReport::Checked { file, result: put::check(&self.destination, &local, expected, &self.cancelled) }
            }
            Job::Put { file, content, expected, durable } => {
                let put = |open: Arc<OpenPartial>| put::put(&content, &open, expected, durable, &self.cancelled);
                DiskReport::Put { file, result: content.open().and_then(put) }
            }
            Job::PutSmall { file, content, data, expected, durable } => {
                let result = put::put_small(&content, &data, expected, durable, &self.cancelled);
                DiskReport::Put { file, result }
            }
            Job::Touch { file, local, version } => {
                let result = install::touch(&self.destination, &local, &version);
                DiskReport::Installed { file, result }
            }
            Job::HardLink { file, local, first, version } => {
                DiskReport::Installed { file, result: hard_link(&self.destination, &local, &first, &version) }
            }
            Job::MakeDir { local } => {
                let result = self.in_parent(&local, |destination, dir, name| destination.make_dir(dir, name, &local));
                DiskReport::Entry { local, result }
            }
            Job::MakeLink { local, target, modified } => {
                let result = install::make_link(&self.destination, &local, &target, modified);
                DiskReport::Entry { local, result }
            }
            Job::FinishDir { local, mode, modified } => {
                let result = self.in_parent(&local, |destination, dir, name| {
                    install::finish_dir(destination, dir, name, &local, mode, modified)
                });
                // The name of an empty directory wasn't synced yet.
                let result = result.and_then(|()| self.destination.sync_names(&local));
                DiskReport::Entry { local, result }
            }
            Job::FinishTop { mode, modified } => {
                let result = self.destination.finish(mode, modified);
                DiskReport::Entry { local: RelPath::root(), result }
            }
            Job::Forget(content) => {
                self.leaves.retain(|(of, _), _| *of != content);
                return Vec::new();
            }
        };
        vec![self.with_place(report)]
    }

    /// Adds the place to an error: the file's name alone doesn't say which disk, or whose permissions.
    fn with_place(&self, mut report: DiskReport) -> DiskReport {
        if let Some(error) = report.error_mut() {
            error.message = format!("{} ({})", error.message, self.destination.place);
        }
        report
    }

    fn small(&self, small: &SmallFile) -> DiskReport {
        let result = self
            .in_parent(&small.local, |destination, dir, name| install::install_small(destination, dir, name, small));
        self.queued_bytes.fetch_sub(small.bytes(), Ordering::Relaxed);
        DiskReport::Small { file: small.file, credit: small.credit, result }
    }

    /// Does something in the parent of a path, which is made if it is missing. It is opened each time: other programs move and remove
    /// directories, and finding out whether one that is open is still there takes as long.
    fn in_parent<T>(
        &self,
        local: &RelPath,
        work: impl FnOnce(&Destination, &Dir, &[u8]) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let (parent, name) = local.split().unwrap_or_default();
        work(&self.destination, &self.destination.dir(&parent)?, name)
    }

    fn write(&mut self, content: &PartialFile, part: Part, data: &[u8]) -> Result<Vec<(u64, Leaf)>, DiskError> {
        let open = content.open()?;
        let mut state = self.leaf_at(content, &open, part.leaf, part.offset)?;
        if let Some(hasher) = &mut state.hasher {
            // Before they are written, while they are in the processor's cache from being received.
            hasher.update(data).map_err(|error| leaf_error(&error))?;
        }
        let writing = open.writing();
        if !open.is_long_enough()? {
            return Err(content.shortened());
        }
        let mut offset = part.offset;
        for piece in data.chunks(WRITE_BYTES_MAX) {
            open.file.write_all_at(piece, offset).map_err(|error| io_error("cannot write", &error))?;
            offset += piece.len() as u64;
        }
        open.wrote(part.offset + part.length);
        drop(writing);
        state.position += part.length;
        let whole = self.put_back(content, part.leaf, state)?;
        open.note_leaves(&whole)?;
        Ok(whole)
    }

    fn zeros(
        &mut self,
        content: &PartialFile,
        leaf: u64,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, Leaf)>, DiskError> {
        let open = content.open()?;
        if !open.is_long_enough()? {
            return Err(content.shortened());
        }
        punch(&open, offset, length)?;
        if !content.spec.version.sparse {
            // The server didn't announce holes: the length has to show that these bytes are there.
            open.file.write_all_at(&[0], offset + length - 1).map_err(|error| io_error("cannot write", &error))?;
            open.wrote(offset + length);
        }
        let (mut at, end, mut leaf, mut whole) = (offset, offset + length, leaf, Vec::new());
        while at < end {
            let mut state = self.leaf_at(content, &open, leaf, at)?;
            let now = end.min(state.end) - at;
            if let Some(hasher) = &mut state.hasher {
                hash_zeros(hasher, now, &self.cancelled)?;
            }
            state.position += now;
            at += now;
            whole.extend(self.put_back(content, leaf, state)?);
            leaf += 1;
        }
        open.note_leaves(&whole)?;
        Ok(whole)
    }

    /// The state of a leaf at an offset. What is there of it and wasn't hashed by this worker is read back: at most
    /// one leaf.
    fn leaf_at(
        &mut self,
        content: &PartialFile,
        open: &OpenPartial,
        leaf: u64,
        offset: u64,
    ) -> Result<OpenLeaf, DiskError> {
        if let Some(state) = self.leaves.remove(&(content.spec.content, leaf))
            && state.position == offset
        {
            return Ok(state);
        }
        let leaves: LeafSize = content.spec.leaves;
        let (start, length) = leaves.range(leaf).map_err(|error| leaf_error(&error))?;
        let mut hasher = if content.spec.verify {
            Some(LeafHasher::new(leaves, leaf).map_err(|error| leaf_error(&error))?)
        } else {
            None
        };
        if let Some(hasher) = &mut hasher
            && offset > start
        {
            self.read_back(hasher, content, open, start, offset - start)?;
        }
        Ok(OpenLeaf { hasher, position: offset, end: start + length })
    }

    /// Hashes what was written.
    fn read_back(
        &mut self,
        hasher: &mut LeafHasher,
        content: &PartialFile,
        open: &OpenPartial,
        offset: u64,
        length: u64,
    ) -> Result<(), DiskError> {
        read_range(&open.file, offset, length, &mut self.buffer, |bytes| {
            let _ = hasher.update(bytes);
            self.cancelled.count_piece()
        })
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => content.shortened(),
            _ => io_error("cannot read back", &error),
        })
    }

    /// Keeps a leaf for its next bytes, or finishes it.
    fn put_back(&mut self, content: &PartialFile, leaf: u64, state: OpenLeaf) -> Result<Vec<(u64, Leaf)>, DiskError> {
        if state.position < state.end {
            self.leaves.insert((content.spec.content, leaf), state);
            return Ok(Vec::new());
        }
        let value = match state.hasher {
            Some(hasher) => hasher.finish().map_err(|error| leaf_error(&error))?,
            None => UNVERIFIED,
        };
        Ok(vec![(leaf, value)])
    }
}

fn hash_zeros(hasher: &mut LeafHasher, length: u64, cancelled: &Cancelled) -> Result<(), DiskError> {
    let mut left = length;
    while left > 0 {
        cancelled.check().map_err(|error| io_error("cannot hash a hole", &error))?;
        let now = usize::try_from(left).unwrap_or(ZEROS.len()).min(ZEROS.len());
        hasher.update(ZEROS.get(..now).unwrap_or_default()).map_err(|error| leaf_error(&error))?;
        left -= now as u64;
    }
    Ok(())
}

/// Makes a range zeros, if something was written there.
fn punch(open: &OpenPartial, offset: u64, length: u64) -> Result<(), DiskError> {
    let written = open.written_to();
    if offset >= written {
        return Ok(());
    }
    match fallocate(&open.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
        Ok(()) => Ok(()),
        // Not every file system can, nor may every sandbox.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => write_zeros(open, offset, length.min(written - offset)),
        Err(errno) => Err(io_error("cannot make a hole", &errno.into())),
    }
}

fn write_zeros(open: &OpenPartial, offset: u64, length: u64) -> Result<(), DiskError> {
    let (mut at, end) = (offset, offset + length);
    while at < end {
        let now = usize::try_from(end - at).unwrap_or(ZEROS.len()).min(ZEROS.len());
        let piece = ZEROS.get(..now).unwrap_or_default();
        open.file.write_all_at(piece, at).map_err(|error| io_error("cannot write", &error))?;
        at += now as u64;
    }
    Ok(())
}

/// The error of a leaf. The transfer passes only what fits into one: anything else is a bug.
fn leaf_error(error: &crate::digest::LeafError) -> DiskError {
    DiskError { full: false, message: format!("internal error: {error}") }
}
