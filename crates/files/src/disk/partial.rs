//! A partial file: `.tow-….part` beside its target, with its state in `.tow-….state`. Several threads write to it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::cancel::Cancelled;
use super::destination::Destination;
use super::inspect::{clear_away, rehash};
use super::lock::{self, Unclaimed, claim, open_own};
use super::state::{self, Header, State};
use crate::digest::{Digest, LEAF_BYTES_MIN, Leaf};
use crate::path::RelPath;
use crate::root::{Dir, FileStat, RootError};
use crate::transfer::names::partial_names;
use crate::transfer::{ContentSpec, DiskError};

/// Mode of partial files: private until they are complete.
pub(super) const PARTIAL_MODE: u32 = 0o600;

/// The content of a file while it is received. Opened by the first thread that has something to write.
#[derive(Debug)]
pub(super) struct PartialFile {
    pub(super) spec: ContentSpec,
    pub(super) destination: Arc<Destination>,
    opened: Mutex<Opened>,
}

#[derive(Debug)]
enum Opened {
    NotYet,
    Open(Arc<OpenPartial>),
    Failed(DiskError),
    Abandoned,
}

/// An open partial file, locked against other processes.
#[derive(Debug)]
pub(super) struct OpenPartial {
    pub(super) dir: Arc<Dir>,
    pub(super) name: Vec<u8>,
    pub(super) part_name: Vec<u8>,
    pub(super) state_name: Vec<u8>,
    pub(super) file: File,
    /// The end of what was written. A sparse file has its length from the beginning.
    written_to: AtomicU64,
    length_min: u64,
    /// All of its space was there when it was opened. That becomes less if the file is cut off, however it is written
    /// on.
    is_reserved: bool,
    log: Option<Mutex<Log>>,
    writing: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Log {
    file: File,
    end: u64,
}

impl Log {
    /// Begins a state with what is known now, replacing one that is there.
    pub(super) fn write(dir: &Dir, state_name: &[u8], state: &State) -> Result<Self, DiskError> {
        let cannot = |error: RootError| root_error("cannot create the state of a partial file", &error);
        match dir.remove_file(state_name) {
            Ok(()) | Err(RootError::NotFound) => {}
            Err(error) => return Err(cannot(error)),
        }
        let file = dir.create_file(state_name, PARTIAL_MODE).map_err(cannot)?;
        let bytes = state.encode();
        file.write_all_at(&bytes, 0).map_err(|error| io_error("cannot write the state", &error))?;
        Ok(Self { file, end: bytes.len() as u64 })
    }
}

impl PartialFile {
    pub(super) fn new(spec: ContentSpec, destination: Arc<Destination>) -> Self {
        Self { spec, destination, opened: Mutex::new(Opened::NotYet) }
    }

    /// The open file.
    pub(super) fn open(&self) -> Result<Arc<OpenPartial>, DiskError> {
        let mut opened = self.lock();
        if let Opened::NotYet = &*opened {
            *opened = match OpenPartial::open(&self.spec, &self.destination) {
                Ok(open) => Opened::Open(Arc::new(open)),
                Err(error) => Opened::Failed(error),
            };
        }
        match &*opened {
            Opened::Open(open) => Ok(Arc::clone(open)),
            Opened::Failed(error) => Err(error.clone()),
            Opened::NotYet | Opened::Abandoned => Err(DiskError { full: false, message: "cancelled".to_owned() }),
        }
    }

    /// Removes the file; nobody can open it any more.
    pub(super) fn abandon(&self) {
        let opened = std::mem::replace(&mut *self.lock(), Opened::Abandoned);
        match opened {
            Opened::Open(open) => open.remove_names(),
            // What there was space for.
            Opened::Failed(DiskError { full: true, .. }) => {
                let Some((parent, name)) = self.spec.local.split() else { return };
                if let Ok(Some(dir)) = self.destination.existing_dir(&parent) {
                    clear_away(&self.destination, &dir, &self.spec.version, name);
                }
            }
            Opened::NotYet | Opened::Failed(_) | Opened::Abandoned => {}
        }
    }

    /// An error if another file has its name now, or the path doesn't lead to its directory any more: then nothing of it stays there.
    pub(super) fn check_place(&self, open: &OpenPartial) -> Result<(), DiskError> {
        // The name is what is renamed: it must not be that of an incomplete file.
        open.check_name()?;
        let parent = self.spec.local.parent().unwrap_or_default();
        match self.destination.root().leads_to(&parent, &open.dir) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.abandon();
                Err(DiskError { full: false, message: "its directory was moved or replaced meanwhile".to_owned() })
            }
            Err(error) => Err(root_error("cannot open its directory", &error)),
        }
    }

    /// The error that the file got shorter. What else it lost is unknown, so nothing of it is kept for a later
    /// transfer.
    pub(super) fn shortened(&self) -> DiskError {
        self.abandon();
        DiskError { full: false, message: "its partial file was shortened by another program".to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenPartial {
    fn open(spec: &ContentSpec, destination: &Destination) -> Result<Self, DiskError> {
        let (dir, name) = destination.parent_of(&spec.local)?;
        let dir = Arc::new(dir);
        let (file, (part_name, state_name)) = if spec.resume {
            let names = partial_names(&name);
            (reopen(destination, &spec.local, &dir, &names.0)?, names)
        } else {
            lock::create(destination, &dir, &name)?
        };
        let size = spec.version.size;
        if !spec.version.sparse && size > 0 {
            reserve(&dir, &file, size)?;
        }
        // A file of one leaf is not worth a state: all of it is fetched again.
        let log = if size > LEAF_BYTES_MIN { open_log(destination, spec, &dir, &state_name)? } else { None };
        let log = log.map(Mutex::new);
        let FileStat { size: length, allocated, .. } = stat_of(&file)?;
        let is_reserved = !spec.version.sparse && allocated >= size;
        let length_min = if spec.version.sparse { size } else { 0 };
        if length < length_min {
            // A trailing hole would have no length, and look as if the file had been cut off.
            file.set_len(size).map_err(|error| io_error("cannot set its length", &error))?;
        }
        Ok(Self {
            dir,
            name,
            part_name,
            state_name,
            file,
            written_to: AtomicU64::new(length),
            length_min,
            is_reserved,
            writing: Mutex::new(()),
            log,
        })
    }

    /// The end of what was written.
    pub(super) fn written_to(&self) -> u64 {
        self.written_to.load(Ordering::Acquire)
    }

    /// Held to write much: the kernel lets one thread at a time write a file, and keeps a processor busy with each
    /// that waits.
    pub(super) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that bytes were written up to here.
    pub(super) fn wrote(&self, end: u64) {
        self.written_to.fetch_max(end, Ordering::AcqRel);
    }

    /// Whether it is as long as what was written. Asked before more is written, which would make it long again.
    pub(super) fn is_long_enough(&self) -> Result<bool, DiskError> {
        // In this order: others may be writing.
        let expected = self.written_to().max(self.length_min);
        Ok(stat_of(&self.file)?.size >= expected)
    }

    /// Whether a completely written file takes so little space that it was cut off meanwhile, and made long again. Few
    /// file systems take less for other reasons, so the file is read and hashed again if that can show it.
    pub(super) fn was_cut(&self, stat: &FileStat, cancelled: &Cancelled) -> Result<bool, DiskError> {
        if !self.is_reserved || stat.allocated >= stat.size {
            return Ok(false);
        }
        let Some(log) = &self.log else { return Ok(false) };
        let log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let cannot = |error: std::io::Error| io_error("cannot read a partial file again", &error);
        let Some(mut state) = state::read(&log.file).map_err(cannot)? else { return Ok(true) };
        if !state.header.verified {
            return Ok(false);
        }
        rehash(&self.file, &mut state, true, cancelled).map_err(cannot)?;
        Ok((state.whole.len() as u64) < state.header.leaves.count())
    }

    /// Records that leaves are complete, after they were written.
    pub(super) fn note_leaves(&self, leaves: &[(u64, Leaf)]) -> Result<(), DiskError> {
        let records: Vec<u8> = leaves.iter().flat_map(|(leaf, value)| state::leaf_record(*leaf, value)).collect();
        self.append(&records)
    }

    /// Forgets leaves that are wrong, for every later transfer: one that doesn't verify, and one that knows no more of
    /// this log than which leaves are in it. The log is therefore rewritten without them.
    pub(super) fn forget_leaves(&self, bad: &[u64]) -> Result<(), DiskError> {
        let Some(log) = &self.log else { return Ok(()) };
        self.check_name()?;
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let state = state::read(&log.file).map_err(|error| io_error("cannot read the state", &error))?;
        let Some(mut state) = state else {
            return Err(DiskError {
                full: false,
                message: "the state of its partial file was replaced by another program".to_owned(),
            });
        };
        state.whole.retain(|leaf, _| bad.binary_search(leaf).is_err());
        *log = Log::write(&self.dir, &self.state_name, &state)?;
        Ok(())
    }

    /// Records the digest of the whole file.
    pub(super) fn note_digest(&self, digest: Digest) -> Result<(), DiskError> {
        self.append(&state::digest_record(digest))
    }

    fn append(&self, records: &[u8]) -> Result<(), DiskError> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.file.write_all_at(records, log.end).map_err(|error| io_error("cannot write the state", &error))?;
        log.end += records.len() as u64;
        Ok(())
    }

    /// An error if another file has its name now, whose state then has the state's name.
    pub(super) fn check_name(&self) -> Result<(), DiskError> {
        if lock::has_name(&self.dir, &self.part_name, &self.file)? { Ok(()) } else { Err(lock::lost()) }
    }

    /// Removes the state of a file that was installed.
    pub(super) fn remove_state(&self) {
        match self.dir.remove_file(&self.state_name) {
            Ok(()) | Err(RootError::NotFound) => {}
            Err(error) => tracing::warn!(%error, "cannot remove the state of a partial file"),
        }
    }

    /// Removes the file and its state, as far as they exist and are its own.
    fn remove_names(&self) {
        if self.check_name().is_err() {
            return;
        }
        // The state first: once the file has no name, both names are free for another transfer.
        for name in [&self.state_name, &self.part_name] {
            if let Err(error) = self.dir.remove_file(name)
                && !matches!(error, RootError::NotFound)
            {
                tracing::warn!(%error, "cannot remove a partial file");
            }
        }
    }
}

/// Opens a partial file that was found by inspecting. It wasn't locked since: it must be as it was.
fn reopen(destination: &Destination, local: &RelPath, dir: &Dir, part_name: &[u8]) -> Result<File, DiskError> {
    let file = claim(destination, dir, part_name).map_err(|unclaimed| match unclaimed {
        Unclaimed::Closed(error) => root_error("cannot open the partial file", &error),
        Unclaimed::Foreign => lock::lost(),
        Unclaimed::Taken(error) => error,
    })?;
    let (found, now) = (destination.take_partial(local), stat_of(&file)?);
    if found.is_some_and(|found| !now.same_content(&found)) {
        return Err(DiskError { full: false, message: "another program has written to its partial file".to_owned() });
    }
    Ok(file)
}

pub(super) fn stat_of(file: &File) -> Result<FileStat, DiskError> {
    FileStat::try_from(file).map_err(|error| root_error("cannot stat the partial file", &error))
}

/// Reserves space without changing the length, which says how far the file was written.
fn reserve(dir: &Dir, file: &File, size: u64) -> Result<(), DiskError> {
    if dir.copies_on_write() {
        // What is reserved there isn't written to, and isn't compressed.
        let needed = size.saturating_sub(stat_of(file)?.allocated);
        return match dir.free_bytes() {
            Ok(free) if free < needed => {
                Err(DiskError { full: true, message: format!("{needed} bytes are needed, {free} are free") })
            }
            _ => Ok(()),
        };
    }
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(DiskError {
            full: errno != Errno::FBIG,
            message: format!("cannot reserve {size} bytes: {}", std::io::Error::from(errno)),
        }),
        // Not every file system can.
        _ => Ok(()),
    }
}

/// The log of a partial file. `None` if another user has just taken its name: the file can't be resumed then.
fn open_log(
    destination: &Destination,
    spec: &ContentSpec,
    dir: &Dir,
    state_name: &[u8],
) -> Result<Option<Log>, DiskError> {
    if spec.resume
        && let Ok(file) = open_own(destination, dir, state_name)
        && let Ok(Some(mut state)) = state::read(&file)
    {
        // True of the leaves that will be recorded, too.
        let verified = state.header.verified && spec.verify;
        let header = Header { verified, sparse: state.header.sparse || spec.version.sparse, ..state.header };
        if state.header == header {
            file.set_len(state.length).map_err(|error| io_error("cannot write the state", &error))?;
            return Ok(Some(Log { file, end: state.length }));
        }
        state.header = header;
        return Log::write(dir, state_name, &state).map(Some);
    }
    let whole = std::collections::BTreeMap::new();
    let state = State { header: header_of(spec), digest: spec.digest, whole, length: 0 };
    match Log::write(dir, state_name, &state) {
        Err(_)
            if dir
                .existing(state_name)
                .is_ok_and(|there| there.is_some_and(|there| !there.is_private_to(destination.user))) =>
        {
            Ok(None)
        }
        log => log.map(Some),
    }
}

fn header_of(spec: &ContentSpec) -> Header {
    Header {
        verified: spec.verify,
        // The length doesn't show either how far it was written when leaves are copied from all over another file.
        sparse: spec.version.sparse || spec.reuse,
        modified: spec.version.modified,
        leaves: spec.leaves,
        boot: state::boot_id(),
        path: Digest::of(spec.local.as_bytes()).0,
    }
}

pub(super) fn root_error(what: &str, error: &RootError) -> DiskError {
    match error {
        RootError::Io(error) => io_error(what, error),
        error => DiskError { full: false, message: format!("{what}: {error}") },
    }
}

pub(super) fn io_error(what: &str, error: &std::io::Error) -> DiskError {
    let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
    DiskError { full, message: format!("{what}: {error}") }
}
