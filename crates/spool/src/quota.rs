//! The disk that large bodies may take together.

use super::Spool;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::sync::Arc;
use towpath_quota::{Permit, Quota};

/// A holder may have this many times what is free for requests of all holders: all that one may have, if it is the only one.
const TIMES_FREE: u64 = 6;

/// Kind of a body. Requests leave the last quarter of the quota to replies: however many wait for workers, their outcomes can be
/// reported, and its space is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// A request's.
    Request,
    /// A reply's.
    Reply,
}

/// Why there is no space for a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSpace {
    /// Other bodies have it for now.
    Now,
    /// The holder has its share.
    Share,
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

/// One holder's share of a quota. It may have all that is for requests; an eighth more is for others.
#[derive(Debug)]
pub struct SpoolShare {
    bytes: Arc<Quota>,
    files: Arc<Quota>,
}

impl SpoolShare {
    /// Whether any body has something of it.
    pub fn is_in_use(&self) -> bool {
        self.files.used() > 0 || self.bytes.used() > 0
    }
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
    pub fn most_of(&self, kind: BodyKind) -> u64 {
        part_of(self.bytes.max(), kind)
    }

    /// Bytes that all bodies may have for a request of another holder to be admitted.
    pub fn most_with_others(&self) -> u64 {
        part_with_others(self.bytes.max())
    }

    /// Files that all bodies may have for one of this kind to be admitted.
    pub fn most_files_of(&self, kind: BodyKind) -> u64 {
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

    /// A holder without bodies.
    pub fn share(&self) -> Arc<SpoolShare> {
        Arc::new(SpoolShare { bytes: self.bytes.share(0, u64::MAX), files: self.files.share(0, u64::MAX) })
    }

    /// Whether a request's body of this length is within its holder's share. `expected`: bytes of others, and of the holder's own, that are
    /// on their way.
    pub fn is_within_share(&self, share: &SpoolShare, length: u64, expected: (u64, u64)) -> bool {
        let within = |quota: &Quota, used: u64, own: u64, more: u64| {
            let free = part_with_others(quota.max()).saturating_sub(used);
            let most = part_of(quota.max(), BodyKind::Request).min(free.saturating_mul(TIMES_FREE));
            more <= free && own.saturating_add(more) <= most
        };
        let (others, own) = expected;
        let bytes = self.taken().saturating_add(others).saturating_add(own);
        within(&self.bytes, bytes, share.bytes.used().saturating_add(own), length)
            && within(&self.files, self.files(), share.files.used(), 1)
    }

    /// Acquires bytes that have arrived.
    pub fn try_acquire(&self, kind: BodyKind, share: Option<&SpoolShare>, bytes: u64) -> Result<Permit, NoSpace> {
        try_acquire(&self.bytes, kind, share.map(|share| &share.bytes), bytes)
    }

    /// Acquires an empty file.
    pub fn try_acquire_file(&self, kind: BodyKind, share: Option<&SpoolShare>) -> Result<Permit, NoSpace> {
        try_acquire(&self.files, kind, share.map(|share| &share.files), 1)
    }

    /// Acquires the bytes and the file of a body that is on the disk already, whatever the limits.
    pub fn acquire(&self, bytes: u64) -> [Permit; 2] {
        [self.files.acquire(1), self.bytes.acquire(bytes)]
    }
}

fn part_of(max: u64, kind: BodyKind) -> u64 {
    match kind {
        BodyKind::Request => max - max / 4,
        BodyKind::Reply => max,
    }
}

/// The part for requests of all holders: an eighth more than one of them, and than requests without a holder.
fn part_with_others(max: u64) -> u64 {
    max - max / 8
}

fn try_acquire(quota: &Arc<Quota>, kind: BodyKind, share: Option<&Arc<Quota>>, units: u64) -> Result<Permit, NoSpace> {
    let limit = part_of(quota.max(), kind);
    if units > limit {
        return Err(NoSpace::Ever);
    }
    let limit = if share.is_some() { limit.max(part_with_others(quota.max())) } else { limit };
    // Only one thread acquires.
    let permit = match share {
        _ if quota.used().saturating_add(units) > limit => None,
        Some(share) => share.try_acquire(units),
        None => quota.try_acquire(units),
    };
    permit.ok_or(NoSpace::Now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_leave_a_quarter_of_the_bytes_to_replies() {
        let quota = SpoolQuota::new(1000, 8);
        assert_eq!(quota.try_acquire(BodyKind::Request, None, 751).unwrap_err(), NoSpace::Ever);
        let requests =
            [quota.try_acquire(BodyKind::Request, None, 700), quota.try_acquire(BodyKind::Request, None, 50)];
        assert!(requests.iter().all(Result::is_ok));
        assert_eq!(quota.try_acquire(BodyKind::Request, None, 1).unwrap_err(), NoSpace::Now);
        let reply = quota.try_acquire(BodyKind::Reply, None, 250).unwrap();
        assert_eq!(quota.try_acquire(BodyKind::Reply, None, 1).unwrap_err(), NoSpace::Now);
        assert_eq!(quota.try_acquire(BodyKind::Reply, None, 1001).unwrap_err(), NoSpace::Ever);
        drop((requests, reply));
        assert_eq!(quota.taken(), 0);
        assert_eq!(SpoolQuota::new(0, 8).try_acquire(BodyKind::Reply, None, 1).unwrap_err(), NoSpace::Ever);
    }

    #[test]
    fn bodies_of_an_earlier_process_count_beyond_the_limit() {
        let quota = SpoolQuota::new(1000, 8);
        let kept = quota.acquire(2000);
        assert_eq!((quota.taken(), quota.files()), (2000, 1));
        assert_eq!(quota.try_acquire(BodyKind::Reply, None, 0).unwrap_err(), NoSpace::Now);
        drop(kept);
        assert!(quota.try_acquire(BodyKind::Reply, None, 1000).is_ok());
        assert_eq!((quota.taken(), quota.files()), (0, 0));
    }

    #[test]
    fn requests_leave_a_quarter_of_the_files_to_replies() {
        let quota = SpoolQuota::new(1000, 8);
        let requests: Vec<_> = (0..6).map(|_| quota.try_acquire_file(BodyKind::Request, None).unwrap()).collect();
        assert_eq!(quota.try_acquire_file(BodyKind::Request, None).unwrap_err(), NoSpace::Now);
        let replies = [
            quota.try_acquire_file(BodyKind::Reply, None).unwrap(),
            quota.try_acquire_file(BodyKind::Reply, None).unwrap(),
        ];
        assert_eq!(quota.try_acquire_file(BodyKind::Reply, None).unwrap_err(), NoSpace::Now);
        drop((requests, replies));
        assert_eq!(quota.files(), 0);
        assert_eq!(SpoolQuota::new(1000, 0).try_acquire_file(BodyKind::Reply, None).unwrap_err(), NoSpace::Ever);
    }

    #[test]
    fn a_holder_leaves_space_for_others() {
        let quota = SpoolQuota::new(1600, 1000);
        let (hog, other) = (quota.share(), quota.share());
        let take = |share: &SpoolShare, bytes: u64| {
            let is_within = quota.is_within_share(share, bytes, (0, 0));
            is_within.then(|| quota.try_acquire(BodyKind::Request, Some(share), bytes).unwrap())
        };
        let held: Vec<_> = std::iter::from_fn(|| take(&hog, 100)).collect();
        assert_eq!(held.len(), 12, "all that requests may have");
        assert!(take(&other, 200).is_some() && take(&other, 201).is_none());
        assert!(!quota.is_within_share(&other, 100, (100, 100)));
        // One that has nothing may have all.
        drop(held);
        let large = take(&other, 1200);
        assert!(large.is_some() && take(&hog, 201).is_none());
        drop(large);
        assert_eq!((quota.taken(), quota.share().bytes.used()), (0, 0));
    }
}
