//! Files for bodies of requests that are too large for memory.
//!
//! A body is an unnamed file that disappears with its last owner, or with the process. A quota limits the bytes and files of all bodies.

#![warn(missing_debug_implementations)]

mod folder;
mod quota;
mod shared;
mod writing;

pub use folder::{default_spool_folder, make_dir};
pub use quota::{BodyKind, NoSpace, SpoolQuota, SpoolShare};
pub use shared::{BodyName, BodyPlace, FreshBody, SharedBodies, SharedDir};
pub use towpath_quota::Permit;
pub use writing::{PendingWrite, Writing};

use folder::{Folder, PREFIX};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use shared::COPY_BYTES;
use std::any::Any;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use towpath_blocking::{BlockingPool, DropOffload, PoolLimits};
use towpath_requests::body::{Body, LargeBody};
use towpath_sockets::{ComingFile, FileRange, OpenFile};

/// Closing the last descriptor of an unnamed file frees its space, which takes 0.1 to 0.2 s a GiB, or for ever if the disk
/// hangs, and the last owner is often the event thread. Finding out the disk of a file could block as well, so all are one
/// group.
const CLOSE_LANE: PoolLimits = PoolLimits { name: "spool-close", threads_max: 1, hung_max: 7, per_group_max: 8 };
static CLOSING: LazyLock<BlockingPool> = LazyLock::new(|| BlockingPool::new(CLOSE_LANE));

/// Open file of a body.
type Shared = DropOffload<Arc<File>>;

fn shared(file: Arc<File>) -> Shared {
    DropOffload::new(file, &CLOSING, 0)
}

fn offloaded(fresh: FreshBody) -> DropOffload<Arc<FreshBody>> {
    DropOffload::new(Arc::new(fresh), &CLOSING, 0)
}

/// A directory for bodies while they are in use. Files disappear with their last owner, or with the process.
///
/// Bodies that a journal keeps are linked if the spool is on the journal's file system, and copied otherwise.
#[derive(Debug)]
pub struct Spool {
    folder: Arc<Folder>,
    is_in_memory: bool,
    unnamed: AtomicBool,
}

/// Number of the next named file of this process, whichever directory it is in.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Spool {
    /// Opens a directory, made if needed, and removes leftovers of killed processes.
    pub fn new(dir: impl AsRef<Path>) -> io::Result<Spool> {
        Spool::open(Some(dir.as_ref()))
    }

    /// The same. `None`: a directory that only this user can use, below the system's for temporary files.
    pub fn open(dir: Option<&Path>) -> io::Result<Spool> {
        let folder = dir.map_or_else(Folder::by_default, Folder::named)?;
        folder.remove_left_over()?;
        let is_in_memory = is_in_memory(&folder);
        Ok(Spool { folder: Arc::new(folder), is_in_memory, unnamed: AtomicBool::new(true) })
    }

    /// Path of the directory when it was opened.
    pub fn directory(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes free on the directory's file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let system = rustix::fs::fstatvfs(&*self.folder)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Refuses a body that the file system has no space for.
    pub fn check_space(&self, length: u64) -> io::Result<()> {
        let free = self.free_bytes()?;
        if length <= free {
            return Ok(());
        }
        let why = format!("it has {length} bytes, and there is space for {free}");
        Err(io::Error::new(io::ErrorKind::StorageFull, why))
    }

    /// Creates a file for a body.
    pub fn create(&self) -> io::Result<SpoolWriter> {
        let mode = Mode::RUSR | Mode::WUSR;
        if self.unnamed.load(Ordering::Relaxed) {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
            match openat(&*self.folder, ".", flags, mode) {
                Ok(descriptor) => return Ok(self.writer(File::from(descriptor), None)),
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => self.unnamed.store(false, Ordering::Relaxed),
                Err(errno) => return Err(errno.into()),
            }
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&*self.folder, &name, flags, mode)?);
        // Marks the file as in use. Without locks, leftovers stay.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(self.writer(file, Some(Named { folder: Arc::clone(&self.folder), name })))
    }

    fn writer(&self, file: File, named: Option<Named>) -> SpoolWriter {
        SpoolWriter { file, named, length: 0, stays_in_memory: self.is_in_memory, permits: Vec::new() }
    }
}

/// Whether a directory is on a file system in memory, whose pages are always cached unless they are swapped out.
fn is_in_memory(folder: &Folder) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58F6;
    // The field is signed and of platform-dependent width; the magic numbers have 32 bits.
    rustix::fs::fstatfs(folder).is_ok_and(|system| [TMPFS, RAMFS].contains(&(system.f_type as u32)))
}

/// A file name that is removed when dropped.
#[derive(Debug)]
struct Named {
    folder: Arc<Folder>,
    name: String,
}

impl Drop for Named {
    fn drop(&mut self) {
        self.folder.remove(&self.name);
    }
}

/// A body that is being spooled.
#[derive(Debug)]
pub struct SpoolWriter {
    file: File,
    named: Option<Named>,
    length: u64,
    stays_in_memory: bool,
    permits: Vec<Permit>,
}

impl SpoolWriter {
    /// Keeps a permit for the file, or for some of its bytes, as long as the body lives.
    pub fn add_permit(&mut self, mut permit: Permit) {
        for held in &mut self.permits {
            match held.merge(permit) {
                Ok(()) => return,
                Err(other) => permit = other,
            }
        }
        self.permits.push(permit);
    }

    /// Appends bytes. After an error (such as a full disk) the body must not be used.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Bytes written.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Finishes the body without syncing it: see [`SpooledBody::sync`].
    pub fn finish(self) -> Arc<SpooledBody> {
        let SpoolWriter { file, named, length, stays_in_memory, permits } = self;
        let file = shared(Arc::new(file));
        Arc::new(SpooledBody { named, stays_in_memory, _permits: permits, ..SpooledBody::of_file(file, length) })
    }
}

/// A body in a file.
#[derive(Debug)]
pub struct SpooledBody {
    file: Shared,
    named: Option<Named>,
    length: u64,
    /// On a file system in memory.
    stays_in_memory: bool,
    /// Where the brokers of a cell have it.
    place: Option<BodyPlace>,
    /// Set until it is known whether a record names it.
    fresh: Option<DropOffload<Arc<FreshBody>>>,
    /// The file isn't all there yet.
    coming: Option<Arc<dyn ComingFile>>,
    /// Released with the last owner of the body, though its file may be closed a moment later.
    _permits: Vec<Permit>,
}

impl SpooledBody {
    /// A body in a file that the journal keeps.
    pub fn kept(file: File, length: u64) -> Arc<SpooledBody> {
        Arc::new(SpooledBody::of_file(shared(Arc::new(file)), length))
    }

    /// A body that all brokers of a cell have, in a file.
    fn placed(file: File, place: BodyPlace, fresh: Option<FreshBody>) -> Arc<SpooledBody> {
        let body = SpooledBody::of_file(shared(Arc::new(file)), place.length);
        Arc::new(SpooledBody { place: Some(place), fresh: fresh.map(offloaded), ..body })
    }

    /// A body that all brokers of a cell have, as it comes into a file of this one.
    pub fn coming(file: Arc<File>, place: BodyPlace, coming: Arc<dyn ComingFile>) -> Arc<SpooledBody> {
        let body = SpooledBody::of_file(shared(file), place.length);
        Arc::new(SpooledBody { place: Some(place), coming: Some(coming), ..body })
    }

    /// The same body, which was brought to a place that all brokers of a cell have.
    pub fn brought_to(&self, place: BodyPlace, fresh: FreshBody) -> Arc<SpooledBody> {
        let body = SpooledBody::of_file(shared(Arc::clone(&self.file)), place.length);
        let (place, fresh, stays_in_memory) = (Some(place), Some(offloaded(fresh)), self.stays_in_memory);
        Arc::new(SpooledBody { place, fresh, stays_in_memory, ..body })
    }

    fn of_file(file: Shared, length: u64) -> SpooledBody {
        SpooledBody {
            file,
            named: None,
            length,
            stays_in_memory: false,
            place: None,
            fresh: None,
            coming: None,
            _permits: Vec::new(),
        }
    }

    /// Where the brokers of a cell have a body, if they do.
    pub fn place_of(body: &Body) -> Option<BodyPlace> {
        SpooledBody::of(body)?.place
    }

    /// A record is about to name a body that all brokers of a cell have: it stays when its last owner drops it.
    pub fn set_named(body: &Body) {
        if let Some(fresh) = SpooledBody::of(body).as_ref().and_then(|body| body.fresh.as_deref()) {
            fresh.set_named();
        }
    }

    /// Whether it comes from elsewhere as it is read, and is checked then.
    pub fn is_coming(&self) -> bool {
        self.coming.is_some()
    }

    /// Reads a body that all brokers of a cell have, and says how it differs from what was written. Calls `moves` after each piece.
    pub fn damage(&self, mut moves: impl FnMut()) -> io::Result<Option<&'static str>> {
        let Some(place) = self.place.as_ref().filter(|_| self.coming.is_none()) else { return Ok(None) };
        if self.file.metadata()?.len() != place.length {
            return Ok(Some("has another length"));
        }
        let (mut hasher, mut bytes, mut done) = (blake3::Hasher::new(), vec![0; COPY_BYTES], 0);
        while let Some(read @ 1..) = Some(self.file.read_at(&mut bytes, done)?) {
            hasher.update(&bytes[..read]);
            done += read as u64;
            moves();
        }
        Ok((*hasher.finalize().as_bytes() != place.digest).then_some("has other bytes than it had"))
    }

    /// The spooled body, if this is one.
    pub fn of(body: &Body) -> Option<Arc<SpooledBody>> {
        let large: Arc<dyn Any + Send + Sync> = body.as_large()?.clone();
        large.downcast().ok()
    }

    /// The same body, counted by a quota if the journal keeps its file.
    pub fn counted(body: Body, quota: &SpoolQuota) -> Body {
        match SpooledBody::of(&body) {
            Some(kept) if kept.named.is_none() => Body::large(Arc::new(SpooledBody {
                stays_in_memory: kept.stays_in_memory,
                place: kept.place,
                fresh: kept.fresh.as_ref().map(|fresh| DropOffload::new(Arc::clone(fresh), &CLOSING, 0)),
                coming: kept.coming.clone(),
                _permits: quota.acquire(kept.length).into(),
                ..SpooledBody::of_file(shared(Arc::clone(&kept.file)), kept.length)
            })),
            _ => body,
        }
    }

    /// The file, which holds exactly the body and is no longer written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Waits until the body is on the disk. The journal syncs bodies before records that name them; a large body is better
    /// synced earlier, on a thread that may block.
    pub fn sync(&self) -> io::Result<()> {
        self.file().sync_data()
    }
}

impl AsFd for SpooledBody {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl OpenFile for SpooledBody {
    fn coming(&self) -> Option<&dyn ComingFile> {
        self.coming.as_deref()
    }
}

impl LargeBody for SpooledBody {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(coming) = &self.coming {
            coming.wait_for(self.length.min(offset.saturating_add(out.len() as u64)))?;
        }
        self.file().read_at(out, offset)
    }

    fn file_range(self: Arc<SpooledBody>) -> Option<FileRange> {
        let (length, is_cached) = (self.length, self.stays_in_memory && self.coming.is_none());
        // Never written again, so only interference from outside could shorten it, or that it doesn't come.
        let range = FileRange::new(self, 0, length).close_if_short();
        Some(if is_cached { range.assume_cached() } else { range })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(body: &SpooledBody) -> Vec<u8> {
        let mut bytes = vec![0; body.length() as usize];
        body.file().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn bodies_round_trip_through_named_and_unnamed_files() {
        let dir = tempfile::tempdir().unwrap();
        for unnamed in [true, false] {
            let spool = Spool::new(dir.path().join("spool")).unwrap();
            spool.unnamed.store(unnamed, Ordering::Relaxed);
            let mut writer = spool.create().unwrap();
            writer.write(b"one ").unwrap();
            writer.write(b"two").unwrap();
            let body = writer.finish();
            assert_eq!(read(&body), b"one two");
            // Another process that uses the directory leaves it alone.
            Spool::new(dir.path().join("spool")).unwrap();
            let names = || std::fs::read_dir(dir.path().join("spool")).unwrap().count();
            assert_eq!(names(), usize::from(!unnamed));
            drop(body);
            assert_eq!(names(), 0);
        }
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for place in [file.clone(), file.join("below")] {
            assert_eq!(Spool::new(place).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        }
        make_dir(dir.path()).unwrap();
    }
}
