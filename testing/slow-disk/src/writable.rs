//! Disk in memory that can be written, and hangs, fails to sync, is full or refuses metadata on command. It may take several names for one,
//! and give each of these an inode number of its own.
//!
//! A hanging disk reads no more requests from the kernel, like a network disk whose server is gone. A killed process can give up a request
//! that the disk hasn't read; after that the kernel lets it wait for the answer.

mod nodes;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nodes::Nodes;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// The kernel caches no attributes, so every access reaches the disk.
const TTL: Duration = Duration::ZERO;
const BLOCK_BYTES: u32 = 4096;
/// Size of the disk in blocks: 64 GiB.
const BLOCKS: u64 = 16 << 20;
/// Name that [`WritableDisk::hang`] looks up; it never exists.
const MISSING: &str = "missing";

/// Mounted writable disk. Released and unmounted on drop.
#[derive(Debug)]
pub struct WritableDisk {
    mount: Option<BackgroundSession>,
    folder: PathBuf,
    shared: Arc<Shared>,
    /// Lookups of [`WritableDisk::hang`], which keep the disk from being unmounted.
    lookups: Mutex<Vec<JoinHandle<()>>>,
}

impl WritableDisk {
    /// Mounts a disk on an empty folder.
    ///
    /// # Errors
    ///
    /// Fails where no FUSE file system may be mounted.
    pub fn mount(folder: &Path) -> io::Result<WritableDisk> {
        Self::mount_folding(folder, OsStr::to_os_string)
    }

    /// Mounts a disk for which names are one if `fold` makes them equal: one that ignores case, say. It keeps the spelling of the first.
    ///
    /// # Errors
    ///
    /// As [`WritableDisk::mount`].
    pub fn mount_folding(folder: &Path, fold: fn(&OsStr) -> OsString) -> io::Result<WritableDisk> {
        Self::mount_nodes(folder, Nodes::new(fold))
    }

    /// The same with an inode number for each spelling, as by sshfs.
    ///
    /// # Errors
    ///
    /// As [`WritableDisk::mount`].
    pub fn mount_unstable(folder: &Path, fold: fn(&OsStr) -> OsString) -> io::Result<WritableDisk> {
        Self::mount_nodes(folder, Nodes::unstable(fold))
    }

    fn mount_nodes(folder: &Path, nodes: Nodes) -> io::Result<WritableDisk> {
        let shared = Arc::new(Shared::default());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("writable-disk".to_owned())];
        let files = Files { nodes: Mutex::new(nodes), shared: Arc::clone(&shared) };
        let mount = fuser::spawn_mount(files, folder, &config)?;
        let disk = WritableDisk { mount: Some(mount), folder: folder.to_owned(), shared, lookups: Mutex::default() };
        // At the first close of a file the kernel asks whether the disk supports flush. On a hanging disk that request would keep a killed
        // process alive.
        let first = folder.join(MISSING);
        std::fs::write(&first, b"").and_then(|()| std::fs::remove_file(&first))?;
        Ok(disk)
    }

    /// Hangs from now on.
    pub fn hang(&self) {
        self.shared.lock().written_max = Some(0);
        // The disk checks after each request whether to hang, so make one; another one may come first.
        let path = self.folder.join(MISSING);
        let asks = std::thread::spawn(move || drop(std::fs::symlink_metadata(path)));
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner).push(asks);
        let hangs = self.shared.changed.wait_while(self.shared.lock(), |state| !state.hangs);
        drop(hangs.unwrap_or_else(PoisonError::into_inner));
    }

    /// Hangs after this many more bytes were written.
    pub fn hang_after(&self, bytes: u64) {
        self.shared.lock().written_max = Some(bytes);
    }

    /// Waits until the disk hangs; false after the timeout.
    pub fn await_hang(&self, at_most: Duration) -> bool {
        let state = self.shared.changed.wait_timeout_while(self.shared.lock(), at_most, |state| !state.hangs);
        !state.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Makes syncs fail, or succeed again. Written bytes are kept, as by a real disk.
    pub fn fail_syncing(&self, fails: bool) {
        self.shared.lock().sync_fails = fails;
    }

    /// Has space for this many bytes from now on.
    pub fn limit(&self, bytes: u64) {
        self.shared.lock().bytes_max = Some(bytes);
    }

    /// Makes setting modes and times fail, as on FAT or a network share.
    pub fn refuse_metadata(&self) {
        self.shared.lock().refuses_metadata = true;
    }

    /// Number of failed syncs.
    pub fn failed_syncs(&self) -> u64 {
        self.shared.lock().failed_syncs
    }

    /// Inodes of synced folders.
    pub fn synced_folders(&self) -> BTreeSet<u64> {
        self.shared.lock().synced_folders.clone()
    }

    /// Stops hanging.
    pub fn release(&self) {
        self.shared.lock().written_max = None;
        self.shared.changed.notify_all();
    }
}

impl Drop for WritableDisk {
    fn drop(&mut self) {
        self.release();
        for asks in self.lookups.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = asks.join();
        }
        if let Some(mount) = self.mount.take() {
            // Busy while a process has a file open; unmounted with the last of them.
            let _ = mount.umount_and_join();
        }
    }
}

/// State of the disk, and the faults to make.
#[derive(Default, Debug)]
struct State {
    /// Bytes that may be written before the disk hangs; `None`: any number.
    written_max: Option<u64>,
    hangs: bool,
    sync_fails: bool,
    /// Bytes that all files may have.
    bytes_max: Option<u64>,
    refuses_metadata: bool,
    failed_syncs: u64,
    synced_folders: BTreeSet<u64>,
}

#[derive(Default, Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hangs the thread that answers requests, if it is time. Called after each answer.
    fn answered(&self) {
        let mut state = self.lock();
        while state.written_max == Some(0) {
            if !std::mem::replace(&mut state.hangs, true) {
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.hangs = false;
    }
}

struct Files {
    nodes: Mutex<Nodes>,
    shared: Arc<Shared>,
}

impl Files {
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn empty(&self, reply: ReplyEmpty, done: Result<(), Errno>) {
        match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
        self.shared.answered();
    }

    fn entry(&self, reply: ReplyEntry, found: Result<FileAttr, Errno>) {
        match found {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
        self.shared.answered();
    }

    fn attributes(&self, reply: ReplyAttr, found: Result<FileAttr, Errno>) {
        match found {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
        self.shared.answered();
    }

    fn synced(&self, reply: ReplyEmpty) {
        let mut state = self.shared.lock();
        let done = if state.sync_fails { Err(Errno::EIO) } else { Ok(()) };
        state.failed_syncs += u64::from(state.sync_fails);
        drop(state);
        self.empty(reply, done);
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut nodes = self.nodes();
        let found = nodes.look_up(parent, name);
        drop(nodes);
        self.entry(reply, found);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.nodes().node(inode).map(|node| node.attributes);
        self.attributes(reply, found);
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_refused =
            size.is_none() && (mode.is_some() || modified.is_some()) && self.shared.lock().refuses_metadata;
        if is_refused {
            return self.attributes(reply, Err(Errno::EPERM));
        }
        let changed = self.nodes().node(inode).map(|node| {
            size.into_iter().for_each(|size| node.resize(size));
            mode.into_iter().for_each(|mode| node.attributes.perm = (mode & 0o7777) as u16);
            node.attributes.mtime = match modified {
                Some(TimeOrNow::SpecificTime(time)) => time,
                Some(TimeOrNow::Now) => SystemTime::now(),
                None => node.attributes.mtime,
            };
            node.attributes
        });
        self.attributes(reply, changed);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let made = self.nodes().make(parent, name, FileType::Directory, mode & !umask);
        self.entry(reply, made);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        let made = self.nodes().make(parent, name, FileType::RegularFile, mode & !umask);
        match made {
            Ok(attributes) => {
                reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(errno) => reply.error(errno),
        }
        self.shared.answered();
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.nodes().unlink(parent, name);
        self.empty(reply, done);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.nodes().unlink(parent, name);
        self.empty(reply, done);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        as_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = self.nodes().rename(parent, name, to, as_name);
        self.empty(reply, done);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
        self.shared.answered();
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.nodes().node(inode).map(|node| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(node.content.len());
            let to = from.saturating_add(size as usize).min(node.content.len());
            node.content[from..to].to_vec()
        });
        match bytes {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
        self.shared.answered();
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let end = offset + data.len() as u64;
        let most = self.shared.lock().bytes_max;
        let mut nodes = self.nodes();
        let used = nodes.bytes();
        let written = nodes.node(inode).and_then(|node| {
            let grows = end.saturating_sub(node.attributes.size);
            if grows > 0 && most.is_some_and(|most| used + grows > most) {
                return Err(Errno::ENOSPC);
            }
            if end > node.attributes.size {
                node.resize(end);
            }
            if let Some(place) = node.content.get_mut(offset as usize..end as usize) {
                place.copy_from_slice(data);
            }
            Ok(())
        });
        drop(nodes);
        let mut state = self.shared.lock();
        state.written_max = state.written_max.map(|most| most.saturating_sub(data.len() as u64));
        drop(state);
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
        self.shared.answered();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.synced(reply);
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.shared.lock().synced_folders.insert(inode.0);
        self.empty(reply, Ok(()));
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut nodes = self.nodes();
        let names = nodes.node(inode).map(|node| node.names.clone()).unwrap_or_default();
        for (place, (name, inode)) in names.iter().enumerate().skip(offset as usize) {
            let Ok(node) = nodes.node(INodeNo(*inode)) else { continue };
            // The offset is that of the next entry.
            if reply.add(INodeNo(*inode), place as u64 + 1, node.attributes.kind, name) {
                break;
            }
        }
        drop(nodes);
        reply.ok();
        self.shared.answered();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let (most, used) = (self.shared.lock().bytes_max, self.nodes().bytes());
        let free = most.map_or(BLOCKS, |most| most.saturating_sub(used) / u64::from(BLOCK_BYTES));
        reply.statfs(BLOCKS, free, free, 1 << 20, 1 << 20, BLOCK_BYTES, 255, BLOCK_BYTES);
        self.shared.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_a_disk_that_hangs_and_fails_on_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let Ok(disk) = WritableDisk::mount(folder.path()) else {
            eprintln!("skipped: no FUSE file system can be mounted here");
            return;
        };
        let below = folder.path().join("below");
        fs::create_dir(&below).expect("mkdir");
        fs::write(below.join("one"), b"some bytes").expect("write");
        fs::write(below.join("two"), b"others").expect("write");
        fs::rename(below.join("one"), below.join("two")).expect("rename");
        assert_eq!(fs::read(below.join("two")).expect("read"), b"some bytes");
        let names: Vec<_> =
            fs::read_dir(&below).expect("a listing").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, ["two"]);
        fs::remove_file(below.join("two")).expect("remove");

        disk.fail_syncing(true);
        let file = fs::File::create(below.join("three")).expect("create");
        assert!(file.sync_all().is_err());
        assert_eq!(disk.failed_syncs(), 1);
        disk.fail_syncing(false);
        file.sync_all().expect("it works again");

        disk.hang();
        let writer = std::thread::spawn(move || fs::write(below.join("four"), b"late"));
        assert!(!writer.is_finished());
        disk.release();
        writer.join().expect("no panic").expect("written");
    }
}
