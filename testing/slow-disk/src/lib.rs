//! Slow disks for tests and benchmarks, as FUSE file systems.
//!
//! [`SlowDisk`] has one file, [`UNCACHED_FILE`], whose reads are answered at a set rate or hang until released. Opening the file evicts it
//! from the page cache. [`WritableDisk`] can be written, and hangs or fails on command.
//!
//! Mounting takes root, or fusermount3.

mod writable;

pub use writable::WritableDisk;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request,
};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Name of the file.
pub const UNCACHED_FILE: &str = "cold";

const UNCACHED_INODE: INodeNo = INodeNo(2);
/// How long the kernel may cache attributes.
const TTL: Duration = Duration::from_secs(86_400);

/// When a read is answered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// One after another at this rate; at least 1.
    BytesPerSecond(u64),
    /// After [`SlowDisk::release`], until [`SlowDisk::hold`].
    Held,
    /// Like `Held`; closing the file hangs too.
    HeldAtClose,
    /// At once; opening the file hangs.
    HeldAtOpen,
}

/// Mounted slow disk. Released and unmounted on drop.
#[derive(Debug)]
pub struct SlowDisk {
    mount: Option<BackgroundSession>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl SlowDisk {
    /// Mounts a disk with a file of `size` bytes on an empty folder.
    ///
    /// # Errors
    ///
    /// Fails where no FUSE file system may be mounted.
    pub fn mount(folder: &Path, size: u64, pace: Pace) -> io::Result<SlowDisk> {
        let shared = Arc::new(Shared::default());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("slow-disk".to_owned())];
        let files = Files {
            root: attributes(INodeNo::ROOT, 0),
            file: attributes(UNCACHED_INODE, size),
            pace,
            shared: Arc::clone(&shared),
        };
        let mount = fuser::spawn_mount(files, folder, &config)?;
        let moving = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("slow-disk".to_owned()).spawn(move || moving.answer(size, pace))?;
        Ok(SlowDisk { mount: Some(mount), shared, thread: Some(thread) })
    }

    /// Waits until a read waits for an answer; false after the timeout.
    pub fn await_read(&self, at_most: Duration) -> bool {
        let reads =
            self.shared.changed.wait_timeout_while(self.shared.lock(), at_most, |reads| reads.waiting.is_empty());
        !reads.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits until a close of the file hangs; false after the timeout.
    pub fn await_close(&self, at_most: Duration) -> bool {
        let reads =
            self.shared.changed.wait_timeout_while(self.shared.lock(), at_most, |reads| reads.closing.is_empty());
        !reads.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits until an open of the file hangs; false after the timeout.
    pub fn await_open(&self, at_most: Duration) -> bool {
        let reads =
            self.shared.changed.wait_timeout_while(self.shared.lock(), at_most, |reads| reads.opening.is_empty());
        !reads.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Hangs again, as its pace says.
    pub fn hold(&self) {
        self.shared.lock().released = false;
    }

    /// Answers everything from now on.
    pub fn release(&self) {
        let mut reads = self.shared.lock();
        reads.released = true;
        for closing in reads.closing.drain(..) {
            closing.ok();
        }
        reads.opening.drain(..).for_each(opened);
        drop(reads);
        self.shared.changed.notify_all();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.release();
        if let Some(mount) = self.mount.take() {
            // Busy while a process has the file open; unmounted with the last of them.
            let _ = mount.umount_and_join();
        }
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Content of the file at an offset.
pub fn content(offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(byte).collect()
}

/// Byte at a position; no two parts of a file of some MiB are equal.
fn byte(at: u64) -> u8 {
    ((at / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (8 * (at % 8))) as u8
}

/// Requests that wait for an answer.
#[derive(Default, Debug)]
struct Requests {
    waiting: VecDeque<Read>,
    /// Closes that hang.
    closing: Vec<ReplyEmpty>,
    /// Opens that hang.
    opening: Vec<ReplyOpen>,
    released: bool,
    ended: bool,
}

#[derive(Debug)]
struct Read {
    offset: u64,
    length: u32,
    reply: ReplyData,
}

/// State shared with the thread that answers reads.
#[derive(Default, Debug)]
struct Shared {
    reads: Mutex<Requests>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, size: u64, pace: Pace) {
        let held = matches!(pace, Pace::Held | Pace::HeldAtClose);
        loop {
            let mut reads = self
                .changed
                .wait_while(self.lock(), |reads| {
                    !reads.ended && (reads.waiting.is_empty() || (held && !reads.released))
                })
                .unwrap_or_else(PoisonError::into_inner);
            let Some(read) = reads.waiting.pop_front() else { return };
            let released = reads.released;
            drop(reads);
            let length = size.saturating_sub(read.offset).min(u64::from(read.length));
            if let Pace::BytesPerSecond(rate) = pace
                && !released
            {
                std::thread::sleep(Duration::from_secs_f64(length as f64 / rate.max(1) as f64));
            }
            read.reply.data(&content(read.offset, length as usize));
        }
    }
}

struct Files {
    root: FileAttr,
    file: FileAttr,
    pace: Pace,
    shared: Arc<Shared>,
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == UNCACHED_FILE {
            reply.entry(&TTL, &self.file, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match inode {
            INodeNo::ROOT => reply.attr(&TTL, &self.root),
            UNCACHED_INODE => reply.attr(&TTL, &self.file),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut reads = self.shared.lock();
        if reads.released || self.pace != Pace::HeldAtOpen {
            opened(reply);
        } else {
            reads.opening.push(reply);
            self.shared.changed.notify_all();
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.shared.lock().waiting.push_back(Read { offset, length, reply });
        self.shared.changed.notify_all();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let mut reads = self.shared.lock();
        if reads.released || self.pace != Pace::HeldAtClose {
            reply.ok();
        } else {
            reads.closing.push(reply);
            self.shared.changed.notify_all();
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode == INodeNo::ROOT && offset == 0 {
            // The offset is that of the next entry. One name fits any buffer.
            let _full = reply.add(UNCACHED_INODE, 1, FileType::RegularFile, UNCACHED_FILE);
        }
        reply.ok();
    }
}

/// Files are opened without a handle.
fn opened(reply: ReplyOpen) {
    reply.opened(FileHandle(0), FopenFlags::empty());
}

fn attributes(inode: INodeNo, size: u64) -> FileAttr {
    let kind = if inode == INodeNo::ROOT { FileType::Directory } else { FileType::RegularFile };
    let then = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: inode,
        size,
        blocks: size.div_ceil(512),
        atime: then,
        mtime: then,
        ctime: then,
        crtime: then,
        kind,
        perm: if kind == FileType::Directory { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_held_comes_when_it_is_let_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let Ok(disk) = SlowDisk::mount(folder.path(), 300_000, Pace::Held) else {
            eprintln!("skipped: no FUSE file system can be mounted here");
            return;
        };
        let path = folder.path().join(UNCACHED_FILE);
        let names: Vec<_> =
            fs::read_dir(folder.path()).expect("a listing").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, [UNCACHED_FILE]);
        assert_eq!(fs::metadata(&path).expect("its metadata").len(), 300_000);
        let reader = std::thread::spawn(move || fs::read(path).expect("its content"));
        assert!(disk.await_read(Duration::from_secs(60)));
        assert!(!reader.is_finished());
        disk.release();
        assert!(reader.join().expect("no panic") == content(0, 300_000));
    }
}
