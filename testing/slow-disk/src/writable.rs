//! A disk in memory that can be written, and hangs as a whole, or fails to sync, when it is told to.
//!
//! It hangs by not taking any more requests: one that it has not taken yet may be given up by a process that is killed, which is how
//! most disks hang that hang at all (a server that is gone, a daemon that is stopped). For one that has been taken, the kernel lets
//! nobody go.

mod nodes;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nodes::Nodes;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Nothing is remembered by the kernel: every look at a file asks the disk.
const TTL: Duration = Duration::ZERO;
const BLOCK_BYTES: u32 = 4096;
/// What it says of its size, in blocks: 64 GiB.
const BLOCKS: u64 = 16 << 20;
/// Looked for by [`WritableDisk::hang`]; never there.
const NOBODY: &str = "nobody";

/// A mounted disk that can be written. Dropping it answers what waits, and unmounts it.
#[derive(Debug)]
pub struct WritableDisk {
    mount: Option<BackgroundSession>,
    folder: PathBuf,
    temper: Arc<Temper>,
    /// Those that have [`WritableDisk::hang`] looked at: as long as they are there, it can't be unmounted.
    asking: Mutex<Vec<JoinHandle<()>>>,
}

impl WritableDisk {
    /// Mounts it on an empty folder.
    ///
    /// # Errors
    ///
    /// Where no FUSE file system may be mounted.
    pub fn mount(folder: &Path) -> io::Result<WritableDisk> {
        let temper = Arc::new(Temper::default());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("writable-disk".to_owned())];
        let files = Files { nodes: Mutex::new(Nodes::new()), temper: Arc::clone(&temper) };
        let mount = fuser::spawn_mount(files, folder, &config)?;
        let disk = WritableDisk { mount: Some(mount), folder: folder.to_owned(), temper, asking: Mutex::default() };
        // The kernel asks at the first closing of a file whether the disk wants to hear of it: asked while it hangs, it would keep a
        // process that is killed.
        let first = folder.join(NOBODY);
        std::fs::write(&first, b"").and_then(|()| std::fs::remove_file(&first))?;
        Ok(disk)
    }

    /// It hangs from now on.
    pub fn hang(&self) {
        self.temper.lock().written_max = Some(0);
        // It looks whether it is to hang after each request that it answers. It may do so for another one before this.
        let path = self.folder.join(NOBODY);
        let asks = std::thread::spawn(move || drop(std::fs::symlink_metadata(path)));
        self.asking.lock().unwrap_or_else(PoisonError::into_inner).push(asks);
        let hangs = self.temper.changed.wait_while(self.temper.lock(), |mood| !mood.hangs);
        drop(hangs.unwrap_or_else(PoisonError::into_inner));
    }

    /// It hangs when so many more bytes have been written.
    pub fn hang_after(&self, bytes: u64) {
        self.temper.lock().written_max = Some(bytes);
    }

    /// Waits until it hangs; false where that takes longer.
    pub fn await_hanging(&self, at_most: Duration) -> bool {
        let moods = self.temper.changed.wait_timeout_while(self.temper.lock(), at_most, |mood| !mood.hangs);
        !moods.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether syncing files fails from now on. As a disk does, it keeps what it was given nevertheless.
    pub fn fail_syncing(&self, fails: bool) {
        self.temper.lock().sync_fails = fails;
    }

    /// How many syncs have failed.
    pub fn failed_syncs(&self) -> u64 {
        self.temper.lock().failed_syncs
    }

    /// The inodes of folders that were synced.
    pub fn synced_folders(&self) -> BTreeSet<u64> {
        self.temper.lock().synced_folders.clone()
    }

    /// It hangs no more.
    pub fn release(&self) {
        self.temper.lock().written_max = None;
        self.temper.changed.notify_all();
    }
}

impl Drop for WritableDisk {
    fn drop(&mut self) {
        self.release();
        for asks in self.asking.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = asks.join();
        }
        if let Some(mount) = self.mount.take() {
            // Busy, if somebody has a file open still; it goes with the last of them.
            let _ = mount.umount_and_join();
        }
    }
}

/// How the disk feels.
#[derive(Default, Debug)]
struct Mood {
    /// It hangs when no more bytes may be written.
    written_max: Option<u64>,
    hangs: bool,
    sync_fails: bool,
    failed_syncs: u64,
    synced_folders: BTreeSet<u64>,
}

#[derive(Default, Debug)]
struct Temper {
    mood: Mutex<Mood>,
    changed: Condvar,
}

impl Temper {
    fn lock(&self) -> MutexGuard<'_, Mood> {
        self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by the one thread that takes requests, when it has answered one.
    fn answered(&self) {
        let mut mood = self.lock();
        while mood.written_max == Some(0) {
            if !std::mem::replace(&mut mood.hangs, true) {
                self.changed.notify_all();
            }
            mood = self.changed.wait(mood).unwrap_or_else(PoisonError::into_inner);
        }
        mood.hangs = false;
    }
}

struct Files {
    nodes: Mutex<Nodes>,
    temper: Arc<Temper>,
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
        self.temper.answered();
    }

    fn entry(&self, reply: ReplyEntry, found: Result<FileAttr, Errno>) {
        match found {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
        self.temper.answered();
    }

    fn attributes(&self, reply: ReplyAttr, found: Result<FileAttr, Errno>) {
        match found {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
        self.temper.answered();
    }

    fn synced(&self, reply: ReplyEmpty) {
        let mut mood = self.temper.lock();
        let done = if mood.sync_fails { Err(Errno::EIO) } else { Ok(()) };
        mood.failed_syncs += u64::from(mood.sync_fails);
        drop(mood);
        self.empty(reply, done);
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut nodes = self.nodes();
        let found = nodes.find(parent, name).and_then(|inode| Ok(nodes.node(inode)?.attributes));
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
        self.temper.answered();
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
        self.temper.answered();
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
        self.temper.answered();
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
        let written = self.nodes().node(inode).map(|node| {
            let end = offset + data.len() as u64;
            if end > node.attributes.size {
                node.resize(end);
            }
            if let Some(place) = node.content.get_mut(offset as usize..end as usize) {
                place.copy_from_slice(data);
            }
        });
        let mut mood = self.temper.lock();
        mood.written_max = mood.written_max.map(|most| most.saturating_sub(data.len() as u64));
        drop(mood);
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
        self.temper.answered();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.synced(reply);
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.temper.lock().synced_folders.insert(inode.0);
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
        self.temper.answered();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, 1 << 20, 1 << 20, BLOCK_BYTES, 255, BLOCK_BYTES);
        self.temper.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_a_disk_that_hangs_and_fails_when_it_is_told_to() {
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
