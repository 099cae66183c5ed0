//! The disk that large bodies may take together.

use super::Spool;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::sync::Arc;
use towpath_quota::{Permit, Quota};

/// Kind of a body. Requests leave the last quarter of the quota to replies: whatever waits for workers, what they have done can be
/// told, and its space is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyOf {
    /// A request's.
    Request,
    /// A reply's.
    Reply,
}

/// Why there is no room for a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// Other bodies have it for now.
    Now,
    /// The body is larger than the quota.
    Ever,
}

/// Quota of large bodies, in bytes and in files.
///
/// Bytes count when they arrive, not when they are announced: else a peer that announces much and sends nothing would keep out all
/// others. Each body has one file; connections need descriptors too.
#[derive(Debug)]
pub struct SpoolQuota {
    bytes: Arc<Quota>,
    files: Arc<Quota>,
}

impl SpoolQuota {
    /// A quota of this many bytes in this many files.
    pub fn new(bytes: u64, files: u64) -> Arc<SpoolQuota> {
        Arc::new(SpoolQuota { bytes: Quota::new(bytes), files: Quota::new(files) })
    }

    /// Half of the descriptors that this process may have.
    pub fn half_of_files() -> u64 {
        getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2
    }

    /// Half of the free space of a spool's file system, with `kept` bytes that bodies have there already: the other half is for the
    /// journal and other programs.
    pub fn half_of(spool: &Spool, kept: u64) -> io::Result<u64> {
        Ok(spool.free_bytes()?.saturating_add(kept) / 2)
    }

    /// Bytes that all bodies may have for one of this kind to be admitted.
    pub fn most_of(&self, kind: BodyOf) -> u64 {
        part_of(self.bytes.max(), kind)
    }

    /// Files that all bodies may have for one of this kind to be admitted.
    pub fn most_files_of(&self, kind: BodyOf) -> u64 {
        part_of(self.files.max(), kind)
    }

    /// Bytes in use.
    pub fn taken(&self) -> u64 {
        self.bytes.used()
    }

    /// Files in use.
    pub fn files(&self) -> u64 {
        self.files.used()
    }

    /// Acquires bytes that have arrived.
    pub fn try_acquire(&self, kind: BodyOf, bytes: u64) -> Result<Permit, NoRoom> {
        try_acquire(&self.bytes, kind, bytes)
    }

    /// Acquires an empty file.
    pub fn try_acquire_file(&self, kind: BodyOf) -> Result<Permit, NoRoom> {
        try_acquire(&self.files, kind, 1)
    }

    /// Acquires the bytes and the file of a body that is on the disk already, whatever the limits.
    pub fn acquire(&self, bytes: u64) -> [Permit; 2] {
        [self.files.acquire(1), self.bytes.acquire(bytes)]
    }
}

fn part_of(max: u64, kind: BodyOf) -> u64 {
    match kind {
        BodyOf::Request => max - max / 4,
        BodyOf::Reply => max,
    }
}

fn try_acquire(quota: &Arc<Quota>, kind: BodyOf, units: u64) -> Result<Permit, NoRoom> {
    let limit = part_of(quota.max(), kind);
    let no_room = if units > limit { NoRoom::Ever } else { NoRoom::Now };
    quota.try_acquire_below(limit, units).ok_or(no_room)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_leave_a_quarter_of_the_bytes_to_replies() {
        let quota = SpoolQuota::new(1000, 8);
        assert_eq!(quota.try_acquire(BodyOf::Request, 751).unwrap_err(), NoRoom::Ever);
        let requests = [quota.try_acquire(BodyOf::Request, 700), quota.try_acquire(BodyOf::Request, 50)];
        assert!(requests.iter().all(Result::is_ok));
        assert_eq!(quota.try_acquire(BodyOf::Request, 1).unwrap_err(), NoRoom::Now);
        let reply = quota.try_acquire(BodyOf::Reply, 250).unwrap();
        assert_eq!(quota.try_acquire(BodyOf::Reply, 1).unwrap_err(), NoRoom::Now);
        assert_eq!(quota.try_acquire(BodyOf::Reply, 1001).unwrap_err(), NoRoom::Ever);
        drop((requests, reply));
        assert_eq!(quota.taken(), 0);
        assert_eq!(SpoolQuota::new(0, 8).try_acquire(BodyOf::Reply, 1).unwrap_err(), NoRoom::Ever);
    }

    #[test]
    fn bodies_of_an_earlier_process_count_beyond_the_limit() {
        let quota = SpoolQuota::new(1000, 8);
        let kept = quota.acquire(2000);
        assert_eq!((quota.taken(), quota.files()), (2000, 1));
        assert_eq!(quota.try_acquire(BodyOf::Reply, 0).unwrap_err(), NoRoom::Now);
        drop(kept);
        assert!(quota.try_acquire(BodyOf::Reply, 1000).is_ok());
        assert_eq!((quota.taken(), quota.files()), (0, 0));
    }

    #[test]
    fn requests_leave_a_quarter_of_the_files_to_replies() {
        let quota = SpoolQuota::new(1000, 8);
        let requests: Vec<_> = (0..6).map(|_| quota.try_acquire_file(BodyOf::Request).unwrap()).collect();
        assert_eq!(quota.try_acquire_file(BodyOf::Request).unwrap_err(), NoRoom::Now);
        let replies = [quota.try_acquire_file(BodyOf::Reply).unwrap(), quota.try_acquire_file(BodyOf::Reply).unwrap()];
        assert_eq!(quota.try_acquire_file(BodyOf::Reply).unwrap_err(), NoRoom::Now);
        drop((requests, replies));
        assert_eq!(quota.files(), 0);
        assert_eq!(SpoolQuota::new(1000, 0).try_acquire_file(BodyOf::Reply).unwrap_err(), NoRoom::Ever);
    }
}
