//! Large bodies on their way to files, and the space that they have there.

use crate::store::{LostBody, SpoolUsage};
use bytes::Bytes;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use towpath_requests::assembler::BodySink;
use towpath_requests::body::Body;
use towpath_sockets::{Tenant, Waker};
use towpath_spool::{BodyKind, NoSpace, PendingWrite, Spool, SpoolQuota, SpoolShare, Writing};

/// How often the log says that there is no space.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Rate above which the rest of an incoming body is counted as needed, after a moment to start.
const PACE_BYTES_PER_S: u64 = 256 * 1024;
const PACE_BEGINS_AFTER: Duration = Duration::from_millis(250);

/// Shares that are kept without a look at whether they are in use.
const SHARES_MIN: usize = 64;

/// A body on its way to a file. Dropped before it is finished, it was in vain.
#[derive(Debug)]
pub struct SpoolTicket {
    body: PendingWrite,
    kind: BodyKind,
    quota: Arc<SpoolQuota>,
    /// Of a request's tenant.
    share: Option<Arc<SpoolShare>>,
    coming: Arc<Coming>,
}

/// Progress of a body.
#[derive(Debug)]
struct Coming {
    length: u64,
    come: AtomicU64,
    since: Instant,
}

impl Coming {
    /// Bytes that it still needs, if it is on its way at all.
    fn expected(&self) -> u64 {
        let come = self.come.load(Ordering::Relaxed);
        let paced_ms = self.since.elapsed().saturating_sub(PACE_BEGINS_AFTER).as_millis() as u64;
        if come >= paced_ms * PACE_BYTES_PER_S / 1000 { self.length - come.min(self.length) } else { 0 }
    }
}

impl BodySink for SpoolTicket {
    type Lost = LostBody;

    fn number(&self) -> u64 {
        self.body.number()
    }

    fn write(&mut self, bytes: Bytes) -> Result<(), LostBody> {
        let length = bytes.len() as u64;
        let permit = self.quota.try_acquire(self.kind, self.share.as_deref(), length).map_err(LostBody::NoSpace)?;
        self.coming.come.fetch_add(length, Ordering::Relaxed);
        self.body.write(bytes, Some(permit));
        Ok(())
    }

    fn finish(self) {
        self.body.finish();
    }
}

/// The thread that writes large bodies to files, and the space that they have there.
#[derive(Debug)]
pub(super) struct Spooler {
    writing: Writing,
    /// Directory of bodies, for people.
    directory: PathBuf,
    quota: Arc<SpoolQuota>,
    /// Of tenants with bodies of requests.
    shares: HashMap<Tenant, Arc<SpoolShare>>,
    /// How many of them were in use when they were last looked at.
    shares_in_use: usize,
    /// Bodies that are coming in, with the shares of requests.
    coming: Vec<(Weak<Coming>, Option<Arc<SpoolShare>>)>,
    said: Option<Instant>,
}

impl Spooler {
    /// Bodies go to a spool, where they may have this many bytes (default: half of the free space). `kept`: bytes that
    /// an earlier process has left in the journal. `sync`: see [`Writing::to`].
    pub fn start(spool: Spool, bytes_max: Option<u64>, kept: u64, sync: bool, waker: Waker) -> io::Result<Spooler> {
        if let Err(error) = spool.create()
            && !matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        {
            // A full disk may have space when the first large body comes. Other failures are better reported now.
            return Err(error);
        }
        let most = bytes_max.map_or_else(|| SpoolQuota::half_of(&spool, kept), Ok)?;
        let files = SpoolQuota::half_of_files();
        let directory = spool.directory().display();
        tracing::info!(%directory, mib = most >> 20, kept_mib = kept >> 20, files, "space for large bodies");
        Spooler::with_quota(spool, SpoolQuota::new(most, files), sync, waker)
    }

    fn with_quota(spool: Spool, quota: Arc<SpoolQuota>, sync: bool, waker: Waker) -> io::Result<Spooler> {
        let directory = spool.directory().to_owned();
        Ok(Spooler {
            writing: Writing::to(spool, sync, waker)?,
            directory,
            quota,
            shares: HashMap::new(),
            shares_in_use: SHARES_MIN,
            coming: Vec::new(),
            said: None,
        })
    }

    /// A body begins to come. It does so if all of it will have space, with all others that are on their way, and a request's is within its
    /// tenant's share.
    pub fn begin(&mut self, kind: BodyKind, tenant: Option<&Tenant>, length: u64) -> Result<SpoolTicket, NoSpace> {
        self.coming.retain(|(coming, _)| coming.strong_count() > 0);
        let share = tenant.filter(|_| kind == BodyKind::Request).map(|tenant| self.share_of(tenant));
        let (mut others, mut own) = (0_u64, 0_u64);
        for (coming, of) in &self.coming {
            let is_own = of.as_ref().zip(share.as_ref()).is_some_and(|(of, share)| Arc::ptr_eq(of, share));
            let sum = if is_own { &mut own } else { &mut others };
            *sum = sum.saturating_add(coming.upgrade().map_or(0, |coming| coming.expected()));
        }
        let (taken, expected, most) = (self.quota.taken(), others.saturating_add(own), self.quota.most_of(kind));
        if length > most {
            return Err(NoSpace::Ever);
        }
        let limit = if share.is_some() { self.quota.most_with_others() } else { most };
        let is_full = taken.saturating_add(expected).saturating_add(length) > limit;
        let is_within = |share: &SpoolShare| self.quota.is_within_share(share, length, (others, own));
        let file = match share.as_deref() {
            _ if is_full => Err(NoSpace::Now),
            Some(share) if !is_within(share) => return Err(NoSpace::Share),
            share => self.quota.try_acquire_file(kind, share),
        };
        let file = file.inspect_err(|_| {
            if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
                self.said = Some(Instant::now());
                let files = self.quota.files();
                tracing::warn!(?kind, length, taken, expected, most, files, "there is no space for a large body");
            }
        })?;
        let body = self.writing.begin(length, Some(file));
        let coming = Arc::new(Coming { length, come: AtomicU64::new(0), since: Instant::now() });
        self.coming.push((Arc::downgrade(&coming), share.clone()));
        Ok(SpoolTicket { body, kind, quota: self.quota.clone(), share, coming })
    }

    /// The share of a tenant's bodies.
    fn share_of(&mut self, tenant: &Tenant) -> Arc<SpoolShare> {
        if let Some(share) = self.shares.get(tenant) {
            return Arc::clone(share);
        }
        if self.shares.len() >= 2 * self.shares_in_use {
            self.shares.retain(|_, share| share.is_in_use());
            self.shares_in_use = self.shares.len().max(SHARES_MIN);
        }
        let share = self.quota.share();
        self.shares.insert(tenant.clone(), Arc::clone(&share));
        share
    }

    /// One that is in its file, or can't be.
    pub fn next_finished(&self) -> Option<(u64, io::Result<Body>)> {
        let (number, body) = self.writing.next_finished()?;
        let body = body.map(|body| Body::large(body)).inspect_err(|error| {
            let directory = self.directory.display();
            tracing::error!(%directory, %error, "cannot write a large body to disk");
        });
        Some((number, body))
    }

    pub fn quota(&self) -> &Arc<SpoolQuota> {
        &self.quota
    }

    pub fn usage(&self) -> SpoolUsage {
        SpoolUsage {
            bytes: self.quota.taken(),
            bytes_max: self.quota.most_of(BodyKind::Reply),
            request_bytes_max: self.quota.most_of(BodyKind::Request),
            files: self.quota.files(),
            files_max: self.quota.most_files_of(BodyKind::Reply),
            request_files_max: self.quota.most_files_of(BodyKind::Request),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_sockets::{Hub, HubOptions, SocketType};

    #[test]
    fn requests_leave_files_to_replies_and_all_bodies_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let quota = SpoolQuota::new(1 << 30, 8);
        let mut spooler = Spooler::with_quota(Spool::new(folder.path()).unwrap(), quota, false, hub.waker()).unwrap();
        let body = |spooler: &mut Spooler, kind| {
            let mut ticket = spooler.begin(kind, None, 4)?;
            ticket.write(Bytes::from_static(b"body")).unwrap();
            ticket.finish();
            let start = Instant::now();
            let (_, body) = loop {
                if let Some(finished) = spooler.next_finished() {
                    break finished;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "it isn't written");
                std::thread::yield_now();
            };
            Ok::<_, NoSpace>(body.unwrap())
        };
        let mut bodies: Vec<_> = (0..6).map(|_| body(&mut spooler, BodyKind::Request).unwrap()).collect();
        assert_eq!(body(&mut spooler, BodyKind::Request).unwrap_err(), NoSpace::Now);
        // One that is on its way has its file already.
        let begun = spooler.begin(BodyKind::Reply, None, 4).unwrap();
        bodies.push(body(&mut spooler, BodyKind::Reply).unwrap());
        assert_eq!(body(&mut spooler, BodyKind::Reply).unwrap_err(), NoSpace::Now);
        bodies.truncate(5);
        bodies.push(body(&mut spooler, BodyKind::Reply).unwrap());
        drop(begun);
        drop(bodies);
        // The thread closes what was in vain.
        let start = Instant::now();
        while spooler.quota().files() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{} files are open", spooler.quota().files());
            std::thread::yield_now();
        }
        body(&mut spooler, BodyKind::Request).unwrap();
    }
}
