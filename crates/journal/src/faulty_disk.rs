//! A disk in memory that fails on command, and that forgets, when the machine crashes, what was not synced: any part of it.

#![allow(clippy::unwrap_used, reason = "for tests")]
#![cfg_attr(not(test), allow(dead_code, reason = "other crates use a part of it"))]

use crate::storage::{Storage, StorageFile};
use crate::{Journal, JournalOptions, Recovered};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard};
use towpath_spool::SpooledBody;

/// Page that reaches the disk as a whole or not at all. Smaller than a real one, so that records span more pages.
const PAGE: usize = 64;

#[derive(Clone, Default)]
pub(crate) struct Inode {
    /// Content in the page cache.
    pub(crate) cached: Vec<u8>,
    durable: Vec<u8>,
    /// Pages that differ, or are thought to.
    dirty: BTreeSet<usize>,
}

impl Inode {
    fn persist(&mut self, page: usize) {
        let (from, to) = (page * PAGE, self.cached.len().min((page + 1) * PAGE));
        if from < to {
            let length = self.durable.len().max(to);
            self.durable.resize(length, 0);
            self.durable[from..to].copy_from_slice(&self.cached[from..to]);
        }
    }
}

/// An operation on names that isn't durable yet.
#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    /// From, to, and what is renamed: that it was made is never later than this.
    Rename(String, String, usize),
    Remove(String),
}

/// One kind of operation that always fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    /// To open a segment.
    Open,
    /// To take a segment's name away.
    Removal,
    /// Every second time, to make that durable.
    SyncOfRemoval,
    /// Every second time, to use a spare.
    Reuse,
    /// There is no space for the last bytes of a long write.
    EndOfWrite,
}

#[derive(Default)]
pub(crate) struct World {
    random: u64,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    changes: Vec<NameChange>,
    pub(crate) bodies: BTreeMap<String, Vec<u8>>,
    durable_bodies: BTreeMap<String, Vec<u8>>,
    /// Names of bodies that a sync has failed to bring to the disk: none brings them there any more, unless they are made again.
    lost_bodies: BTreeSet<String>,
    /// Operations until the machine crashes.
    pub(crate) crash_in: Option<u64>,
    pub(crate) crashed: bool,
    /// One operation in this many fails; 0 is none.
    pub(crate) fault_in: u64,
    pub(crate) failing: Option<Failing>,
    /// Operations that were due to fail; every second one does.
    failures: u64,
    /// Bytes that files may have together.
    pub(crate) space: Option<usize>,
}

#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<World>>);

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        let disk = Disk::default();
        disk.world().random = seed | 1;
        disk
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Restarts the process: the page cache keeps everything.
    pub(crate) fn kill(&self) {
        let mut world = self.world();
        (world.crashed, world.crash_in) = (false, None);
    }

    /// Restarts the machine: only synced content is certain.
    pub(crate) fn restart(&self) {
        let mut world = self.world();
        let world = &mut *world;
        for change in std::mem::take(&mut world.changes) {
            if world.random.chance(2) {
                apply(&mut world.durable_names, &change);
            }
        }
        world.names = world.durable_names.clone();
        for inode in &mut world.inodes {
            for page in std::mem::take(&mut inode.dirty) {
                if world.random.chance(2) {
                    inode.persist(page);
                }
            }
            inode.cached = inode.durable.clone();
        }
        let named: BTreeSet<String> = world.bodies.keys().chain(world.durable_bodies.keys()).cloned().collect();
        for name in named.into_iter().filter(|_| world.random.chance(2)) {
            match world.bodies.get(&name) {
                Some(body) => drop(world.durable_bodies.insert(name, body.clone())),
                None => drop(world.durable_bodies.remove(&name)),
            }
        }
        world.bodies = world.durable_bodies.clone();
        world.lost_bodies.clear();
        (world.crashed, world.crash_in) = (false, None);
    }

    /// The segments' names and bytes.
    pub(crate) fn segments(&self) -> BTreeMap<String, Vec<u8>> {
        let world = self.world();
        let segment = |(name, inode): (&String, &usize)| (name.clone(), world.inodes[*inode].cached.clone());
        world.names.iter().filter(|(name, _)| name.ends_with(".log")).map(segment).collect()
    }

    /// Files that wait to be segments again, or that nobody thinks of any more.
    pub(crate) fn spares(&self) -> usize {
        self.world().names.keys().filter(|name| name.ends_with(".spare")).count()
    }

    /// A disk with these files, all of them durable.
    pub(crate) fn holding(files: &BTreeMap<String, Vec<u8>>) -> Disk {
        let disk = Disk::new(1);
        for (name, bytes) in files {
            let mut world = disk.world();
            let inode = world.inodes.len();
            world.inodes.push(Inode { cached: bytes.clone(), durable: bytes.clone(), ..Inode::default() });
            world.names.insert(name.clone(), inode);
            world.durable_names.insert(name.clone(), inode);
        }
        disk
    }
}

/// Numbers that only have to be different from one another.
pub(crate) trait Random {
    fn below(&mut self, end: u64) -> u64;

    fn chance(&mut self, in_: u64) -> bool {
        self.below(in_) == 0
    }
}

impl Random for u64 {
    fn below(&mut self, end: u64) -> u64 {
        *self ^= *self << 13;
        *self ^= *self >> 7;
        *self ^= *self << 17;
        (*self >> 11) % end
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Set(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error())
}

impl World {
    fn operation(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.crash_in {
            self.crashed |= *left == 0;
            *left = left.saturating_sub(1);
        }
        if self.crashed {
            return Err(io::Error::other("the machine is off"));
        }
        if self.fault_in > 0 && self.random.chance(self.fault_in) {
            return Err(if self.random.chance(2) { full() } else { io::Error::other("a fault") });
        }
        Ok(())
    }

    fn fail(&mut self, what: Failing) -> io::Result<()> {
        if self.failing != Some(what) {
            return Ok(());
        }
        self.failures += 1;
        let always = matches!(what, Failing::Open | Failing::Removal);
        if always || self.failures % 2 == 1 { Err(io::Error::other("a fault")) } else { Ok(()) }
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    fn space_for(&self, more: usize) -> io::Result<()> {
        let used: usize = self.names.values().map(|inode| self.inodes[*inode].cached.len()).sum();
        if self.space.is_some_and(|space| used + more > space) { Err(full()) } else { Ok(()) }
    }
}

pub(crate) struct DiskFile {
    disk: Disk,
    inode: usize,
}

impl StorageFile for DiskFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.world().inodes[self.inode].cached.len() as u64)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operation()?;
        let inode = &mut world.inodes[self.inode];
        inode.cached.truncate(length as usize);
        // Durable at once, which is as good as at any time later.
        inode.durable.truncate(length as usize);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        let short = world.random.below(bytes.len() as u64 + 1).max(1) as usize;
        let rest = world.inodes[self.inode].cached.get(offset as usize..).unwrap_or_default();
        let count = bytes.len().min(rest.len()).min(short);
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        const END: usize = 16;
        let written = match world.failing {
            Some(Failing::EndOfWrite) if bytes.len() == END => return Err(full()),
            Some(Failing::EndOfWrite) if bytes.len() > 2 * END => bytes.len() - END,
            Some(Failing::EndOfWrite) => bytes.len(),
            _ => bytes.len().min(1 + world.random.below(bytes.len() as u64 * 2) as usize),
        };
        world.operation()?;
        let end = offset as usize + written;
        let length = world.inodes[self.inode].cached.len();
        world.space_for(end.saturating_sub(length))?;
        let inode = &mut world.inodes[self.inode];
        inode.cached.resize(length.max(end), 0);
        inode.cached[offset as usize..end].copy_from_slice(&bytes[..written]);
        inode.dirty.extend(offset as usize / PAGE..end.div_ceil(PAGE));
        Ok(written)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operation()?;
        let old = world.inodes[self.inode].cached.len();
        world.space_for((length as usize).saturating_sub(old))?;
        let inode = &mut world.inodes[self.inode];
        inode.cached.resize(length as usize, 0);
        inode.dirty.extend(old / PAGE..(length as usize).div_ceil(PAGE));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        let done = world.operation();
        let mut random = world.random;
        let inode = &mut world.inodes[self.inode];
        // Pages count as clean also after a failure: what of them didn't reach the disk is lost, and may be read for a while.
        for page in std::mem::take(&mut inode.dirty) {
            if done.is_ok() || random.chance(2) {
                inode.persist(page);
            }
        }
        if done.is_err() && random.chance(2) {
            inode.cached = inode.durable.clone();
        }
        world.random = random;
        done
    }
}

impl Storage for Disk {
    type File = DiskFile;

    fn is_in_place(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.world().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<DiskFile> {
        let mut world = self.world();
        if name.ends_with(".log") {
            world.fail(Failing::Open)?;
        }
        let inode = *world.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(DiskFile { disk: self.clone(), inode })
    }

    fn create(&self, name: &str) -> io::Result<DiskFile> {
        let mut world = self.world();
        world.operation()?;
        let inode = world.inodes.len();
        world.inodes.push(Inode::default());
        world.change(NameChange::Set(name.to_owned(), inode));
        Ok(DiskFile { disk: self.clone(), inode })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
        if from.ends_with(".log") {
            world.fail(Failing::Removal)?;
        } else if from.ends_with(".spare") {
            world.fail(Failing::Reuse)?;
        }
        let inode = *world.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        world.change(NameChange::Rename(from.to_owned(), to.to_owned(), inode));
        Ok(())
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        if self.world().names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
        if name.ends_with(".log") {
            world.fail(Failing::Removal)?;
        }
        if !world.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        world.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
        if world.changes.iter().any(|change| matches!(change, NameChange::Rename(from, ..) if from.ends_with(".log"))) {
            world.fail(Failing::SyncOfRemoval)?;
        }
        world.changes.clear();
        world.durable_names = world.names.clone();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/disk").join(name)
    }

    fn body_names(&self) -> io::Result<Vec<String>> {
        Ok(self.world().bodies.keys().cloned().collect())
    }

    fn keep_body(&self, name: &str, body: &SpooledBody, _: bool) -> io::Result<()> {
        let mut bytes = vec![0; towpath_requests::LargeBody::length(body) as usize];
        std::os::unix::fs::FileExt::read_exact_at(body.file(), &mut bytes, 0)?;
        let mut world = self.world();
        world.operation()?;
        world.bodies.insert(name.to_owned(), bytes);
        world.lost_bodies.remove(name);
        Ok(())
    }

    fn sync_bodies(&self) -> io::Result<()> {
        let mut world = self.world();
        let done = world.operation();
        let World { bodies, durable_bodies, lost_bodies, .. } = &mut *world;
        if done.is_err() {
            lost_bodies.extend(bodies.keys().filter(|name| !durable_bodies.contains_key(*name)).cloned());
            return done;
        }
        let kept = bodies.iter().filter(|(name, _)| !lost_bodies.contains(*name));
        *durable_bodies = kept.map(|(name, body)| (name.clone(), body.clone())).collect();
        Ok(())
    }

    fn open_body(&self, name: &str) -> io::Result<File> {
        let world = self.world();
        let body = world.bodies.get(name).ok_or(io::ErrorKind::NotFound)?;
        let file = tempfile::tempfile()?;
        std::os::unix::fs::FileExt::write_all_at(&file, body, 0)?;
        Ok(file)
    }

    fn remove_body(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
        world.bodies.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn body_path(&self, name: &str) -> PathBuf {
        PathBuf::from("/disk/bodies").join(name)
    }
}

/// A journal on a disk of which operations fail, one in `fault_in`, and what opens it again after its process was killed.
pub fn on_faulty_disk(fault_in: u64) -> impl Fn() -> (Journal, Recovered) {
    let disk = Disk::new(fault_in);
    move || {
        disk.kill();
        disk.world().fault_in = 0;
        let opened = Journal::open_on(disk.clone(), &JournalOptions::default(), None, || {}).unwrap();
        disk.world().fault_in = fault_in;
        opened
    }
}
