//! How much of the disk large bodies may take together.

use rustix::process::{Resource, getrlimit};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a body is. Requests leave the last quarter of the room to replies: whatever waits for workers, what they have done can
/// be told, and the room becomes free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyOf {
    /// Of a request.
    Request,
    /// Of a reply.
    Reply,
}

/// Why there is no room for a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// Others have it for now.
    Now,
    /// It is larger than all the room that there is.
    Ever,
}

/// The room for large bodies, in bytes: what has come of each takes its part until the file is closed. What is only announced
/// takes none, or whoever announces much and sends nothing would keep all others out. And in files, of which each has one: connections
/// need descriptors too.
#[derive(Debug)]
pub struct Room {
    most: u64,
    taken: AtomicU64,
    most_files: u64,
    files: AtomicU64,
}

impl Room {
    /// Room for so many bytes, in so many files.
    pub fn new(most: u64, most_files: u64) -> Arc<Room> {
        Arc::new(Room { most, taken: AtomicU64::new(0), most_files, files: AtomicU64::new(0) })
    }

    /// Half of the files that this process may have open.
    pub fn half_of_files() -> u64 {
        getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2
    }

    /// Half of what a directory's file system has room for, with `kept` bytes that bodies have there already: other programs that
    /// write to it, and the journal, have the other half.
    pub fn half_of(directory: &Path, kept: u64) -> io::Result<u64> {
        let system = rustix::fs::statvfs(directory)?;
        Ok((system.f_bavail.saturating_mul(system.f_frsize).saturating_add(kept)) / 2)
    }

    /// How much a body may have at most, and all others of its kind have left it.
    pub fn most_of(&self, kind: BodyOf) -> u64 {
        part_of(self.most, kind)
    }

    /// How many files bodies of a kind may be in, with all others.
    pub fn most_files_of(&self, kind: BodyOf) -> u64 {
        part_of(self.most_files, kind)
    }

    /// How much is taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// In how many files bodies are.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Takes room for some bytes.
    pub fn claim(self: &Arc<Room>, kind: BodyOf, bytes: u64) -> Result<Claim, NoRoom> {
        take(&self.taken, bytes, self.most_of(kind))?;
        Ok(Claim { room: self.clone(), bytes, files: 0 })
    }

    /// Takes room for a file with nothing in it.
    pub fn claim_file(self: &Arc<Room>, kind: BodyOf) -> Result<Claim, NoRoom> {
        take(&self.files, 1, self.most_files_of(kind))?;
        Ok(Claim { room: self.clone(), bytes: 0, files: 1 })
    }

    /// Takes room for a body that is on the disk already.
    pub fn claim_anyway(self: &Arc<Room>, bytes: u64) -> Claim {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        self.files.fetch_add(1, Ordering::Relaxed);
        Claim { room: self.clone(), bytes, files: 1 }
    }
}

fn part_of(most: u64, kind: BodyOf) -> u64 {
    match kind {
        BodyOf::Request => most - most / 4,
        BodyOf::Reply => most,
    }
}

fn take(taken: &AtomicU64, more: u64, most: u64) -> Result<(), NoRoom> {
    let left = most.checked_sub(more).ok_or(NoRoom::Ever)?;
    let with_it = |taken: u64| (taken <= left).then(|| taken + more);
    taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_it).map(|_| ()).map_err(|_| NoRoom::Now)
}

/// The room that a body has. It is free again when this is dropped.
#[derive(Debug)]
pub struct Claim {
    room: Arc<Room>,
    bytes: u64,
    files: u64,
}

impl Claim {
    /// Takes over what another one has of the same room.
    pub fn absorb(&mut self, mut other: Claim) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.files += std::mem::take(&mut other.files);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.room.files.fetch_sub(self.files, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_leave_a_quarter_to_replies_and_what_ends_leaves_its_room() {
        let room = Room::new(1000, 8);
        assert_eq!(room.claim(BodyOf::Request, 751).unwrap_err(), NoRoom::Ever);
        let requests = [room.claim(BodyOf::Request, 700).unwrap(), room.claim(BodyOf::Request, 50).unwrap()];
        assert_eq!(room.claim(BodyOf::Request, 1).unwrap_err(), NoRoom::Now);
        let mut reply = room.claim(BodyOf::Reply, 250).unwrap();
        assert_eq!(room.claim(BodyOf::Reply, 1).unwrap_err(), NoRoom::Now);
        assert_eq!(room.claim(BodyOf::Reply, 1001).unwrap_err(), NoRoom::Ever);
        drop(requests);
        reply.absorb(room.claim(BodyOf::Reply, 750).unwrap());
        assert_eq!(room.taken(), 1000);
        assert_eq!(room.claim(BodyOf::Request, 0).unwrap_err(), NoRoom::Now);
        drop(reply);
        assert_eq!(room.taken(), 0);
        // What an earlier process has left may be more than there is room for by now.
        let kept = room.claim_anyway(2000);
        assert_eq!(room.claim(BodyOf::Reply, 0).unwrap_err(), NoRoom::Now);
        drop(kept);
        assert!(room.claim(BodyOf::Reply, 1000).is_ok());
        assert_eq!(room.taken(), 0);
        assert_eq!(Room::new(0, 8).claim(BodyOf::Reply, 1).unwrap_err(), NoRoom::Ever);
    }

    #[test]
    fn files_are_bounded_as_bytes_are() {
        let room = Room::new(1000, 8);
        let mut requests: Vec<_> = (0..6).map(|_| room.claim_file(BodyOf::Request).unwrap()).collect();
        assert_eq!(room.claim_file(BodyOf::Request).unwrap_err(), NoRoom::Now);
        let replies = [room.claim_file(BodyOf::Reply).unwrap(), room.claim_file(BodyOf::Reply).unwrap()];
        assert_eq!(room.claim_file(BodyOf::Reply).unwrap_err(), NoRoom::Now);
        // What is in one belongs to it.
        requests[0].absorb(room.claim(BodyOf::Request, 100).unwrap());
        drop(replies);
        drop(requests);
        assert_eq!((room.taken(), room.files()), (0, 0));
        let kept = room.claim_anyway(10);
        assert_eq!((room.taken(), room.files()), (10, 1));
        drop(kept);
        assert_eq!(Room::new(1000, 0).claim_file(BodyOf::Reply).unwrap_err(), NoRoom::Ever);
    }
}
