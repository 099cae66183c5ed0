//! A disk as slow as a test or a benchmark wants it: a FUSE file system with one file, [`COLD_FILE`], whose bytes come at a set
//! rate, or not before they are let go. What has been read stays in the page cache until the file is opened again.
//!
//! [`WritableDisk`] is another one, that can be written, and hangs or fails when it is told to.
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

/// The name of the file.
pub const COLD_FILE: &str = "cold";

const COLD_INODE: INodeNo = INodeNo(2);
/// How long the kernel may believe what it was told of the file: for ever.
const TTL: Duration = Duration::from_secs(86_400);

/// When a read is answered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// One after the other, so many bytes a second; at least 1.
    BytesPerSecond(u64),
    /// Not before [`SlowDisk::release`], then at once, until [`SlowDisk::hold`].
    Held,
    /// So it is, and with closing the file too.
    HeldWithClosing,
    /// So it is with opening the file, and with nothing else.
    HeldAtOpening,
}

/// A mounted slow disk. Dropping it answers what waits, and unmounts it.
#[derive(Debug)]
pub struct SlowDisk {
    mount: Option<BackgroundSession>,
    arm: Arc<Arm>,
    thread: Option<JoinHandle<()>>,
}

impl SlowDisk {
    /// Mounts it on an empty folder. The file has so many bytes.
    ///
    /// # Errors
    ///
    /// Where no FUSE file system may be mounted.
    pub fn mount(folder: &Path, size: u64, pace: Pace) -> io::Result<SlowDisk> {
        let arm = Arc::new(Arm::default());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("slow-disk".to_owned())];
        let files = Files {
            root: attributes(INodeNo::ROOT, 0),
            cold: attributes(COLD_INODE, size),
            pace,
            arm: Arc::clone(&arm),
        };
        let mount = fuser::spawn_mount(files, folder, &config)?;
        let moving = Arc::clone(&arm);
        let thread =
            std::thread::Builder::new().name("slow-disk".to_owned()).spawn(move || moving.answer(size, pace))?;
        Ok(SlowDisk { mount: Some(mount), arm, thread: Some(thread) })
    }

    /// Waits until the disk has something to read; false where that takes longer.
    pub fn await_read(&self, at_most: Duration) -> bool {
        let reads = self.arm.changed.wait_timeout_while(self.arm.lock(), at_most, |reads| reads.waiting.is_empty());
        !reads.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits until somebody closes the file and is held; false where that takes longer.
    pub fn await_closing(&self, at_most: Duration) -> bool {
        let reads = self.arm.changed.wait_timeout_while(self.arm.lock(), at_most, |reads| reads.closing.is_empty());
        !reads.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits until somebody opens the file and is held; false where that takes longer.
    pub fn await_opening(&self, at_most: Duration) -> bool {
        let reads = self.arm.changed.wait_timeout_while(self.arm.lock(), at_most, |reads| reads.opening.is_empty());
        !reads.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// From now on what its pace holds waits again.
    pub fn hold(&self) {
        self.arm.lock().released = false;
    }

    /// From now on nothing waits.
    pub fn release(&self) {
        let mut reads = self.arm.lock();
        reads.released = true;
        for closing in reads.closing.drain(..) {
            closing.ok();
        }
        reads.opening.drain(..).for_each(opened);
        drop(reads);
        self.arm.changed.notify_all();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.release();
        if let Some(mount) = self.mount.take() {
            // Busy, if somebody has the file open still; it goes with the last of them.
            let _ = mount.umount_and_join();
        }
        self.arm.lock().ended = true;
        self.arm.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The bytes of the file from an offset on.
pub fn content(offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(byte).collect()
}

/// No two pieces of a file of some MiB are alike.
fn byte(at: u64) -> u8 {
    ((at / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (8 * (at % 8))) as u8
}

/// What the disk has to do.
#[derive(Default, Debug)]
struct Reads {
    waiting: VecDeque<Read>,
    /// Those that close the file and are held.
    closing: Vec<ReplyEmpty>,
    /// Those that open it and are held.
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

/// What moves from one read to the next.
#[derive(Default, Debug)]
struct Arm {
    reads: Mutex<Reads>,
    changed: Condvar,
}

impl Arm {
    fn lock(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, size: u64, pace: Pace) {
        let held = matches!(pace, Pace::Held | Pace::HeldWithClosing);
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
    cold: FileAttr,
    pace: Pace,
    arm: Arc<Arm>,
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == COLD_FILE {
            reply.entry(&TTL, &self.cold, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match inode {
            INodeNo::ROOT => reply.attr(&TTL, &self.root),
            COLD_INODE => reply.attr(&TTL, &self.cold),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut reads = self.arm.lock();
        if reads.released || self.pace != Pace::HeldAtOpening {
            opened(reply);
        } else {
            reads.opening.push(reply);
            self.arm.changed.notify_all();
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
        self.arm.lock().waiting.push_back(Read { offset, length, reply });
        self.arm.changed.notify_all();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let mut reads = self.arm.lock();
        if reads.released || self.pace != Pace::HeldWithClosing {
            reply.ok();
        } else {
            reads.closing.push(reply);
            self.arm.changed.notify_all();
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode == INodeNo::ROOT && offset == 0 {
            // The offset is that of the next entry. One name fits any buffer.
            let _full = reply.add(COLD_INODE, 1, FileType::RegularFile, COLD_FILE);
        }
        reply.ok();
    }
}

/// Nothing need be known of who has the file open.
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
        let path = folder.path().join(COLD_FILE);
        let names: Vec<_> =
            fs::read_dir(folder.path()).expect("a listing").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, [COLD_FILE]);
        assert_eq!(fs::metadata(&path).expect("its metadata").len(), 300_000);
        let reader = std::thread::spawn(move || fs::read(path).expect("its content"));
        assert!(disk.await_read(Duration::from_secs(60)));
        assert!(!reader.is_finished());
        disk.release();
        assert!(reader.join().expect("no panic") == content(0, 300_000));
    }
}
