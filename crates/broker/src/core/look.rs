//! Services, workers and clients that an operator may have to look at.

use super::settings::Millis;
use super::stats::{ServiceInfo, WorkerInfo};
use super::{Core, TenantKey};
use towpath_requests::numbered::Status;
use towpath_sockets::Tenant;

/// Services, or workers, that are looked at in one step.
const LOOKED_AT_MAX: usize = 1_000;

/// Of these, services and workers that are listed.
const FOUND_MAX: usize = 64;

/// Workers whose oldest request is younger than this aren't listed for it.
const SOON_MS: Millis = 1_000;

/// Where a look goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookAt {
    /// At services from this number on; then at the workers.
    Services(u32),
    /// At workers from this number on.
    Workers(u32),
}

/// A step of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look<W = WorkerInfo> {
    /// Services for which something waits, or that have dead letters.
    pub services: Vec<ServiceInfo>,
    /// Workers that are busy for a while, or failed lately.
    pub workers: Vec<W>,
    /// Where to go on, if this isn't all.
    pub next: Option<LookAt>,
}

/// The client, or the clients of one user or address, with the most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargestClient {
    /// The user or address.
    pub tenant: Tenant,
    /// Requests without an outcome.
    pub requests: usize,
    /// Bytes of memory of these.
    pub bytes: usize,
}

/// The last request that was refused for want of memory, disk, or places in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRefusal {
    /// When.
    pub at: Millis,
    /// Its client, if that is known.
    pub tenant: Option<Tenant>,
    /// The reason, as sent to the client.
    pub reason: &'static str,
}

impl Core {
    /// A step of a look at all services and workers.
    pub fn look(&self, now: Millis, at: LookAt) -> Look {
        let mut look = Look { services: Vec::new(), workers: Vec::new(), next: None };
        let mut looked_at = 0;
        // Whether the step goes on after the entries so far.
        let mut goes_on = |found: usize| {
            looked_at += 1;
            looked_at <= LOOKED_AT_MAX && found < FOUND_MAX
        };
        match at {
            LookAt::Services(from) => {
                for (key, service) in self.services.iter_from(from) {
                    if !goes_on(look.services.len()) {
                        look.next = Some(LookAt::Services(key));
                        return look;
                    }
                    if service.waiting.sums().requests > 0 || !service.letters.is_empty() {
                        look.services.push(self.service_info(key));
                    }
                }
                look.next = Some(LookAt::Workers(0));
            }
            LookAt::Workers(from) => {
                for (key, worker) in self.workers.iter_from(from) {
                    if !goes_on(look.workers.len()) {
                        look.next = Some(LookAt::Workers(key));
                        return look;
                    }
                    let is_busy = || self.oldest_of(worker).is_some_and(|since| now.saturating_sub(since) > SOON_MS);
                    if worker.rest.in_a_row > 0 || worker.failed_in_a_row > 0 || is_busy() {
                        look.workers.push(self.worker_info(worker));
                    }
                }
            }
        }
        look
    }

    /// The tenant with the most memory, or if none has any, requests. Looks at all of them.
    pub fn largest_client(&self) -> Option<LargestClient> {
        let holdings = self.tenants.iter().filter_map(|holdings| {
            let (requests, bytes) =
                (holdings.requests - holdings.outcomes.count, holdings.bytes - holdings.outcomes.bytes);
            Some((bytes, requests, holdings.tenant.as_ref()?))
        });
        let (bytes, requests, tenant) = holdings.max_by_key(|(bytes, requests, _)| (*bytes, *requests))?;
        Some(LargestClient { tenant: tenant.clone(), requests, bytes })
    }

    /// A request was refused. Noted if it would have been taken if there had been enough memory, disk, or places in a queue.
    #[cold]
    pub(super) fn note_refusal(&mut self, at: Millis, tenant: TenantKey, status: Status, reason: &'static str) {
        self.counters.refused += 1;
        if matches!(status, Status::UNAVAILABLE | Status::NO_STORAGE) && self.drain.reason().is_none() {
            self.last_refusal = Some(LastRefusal { at, tenant: self.tenants.at(tenant).tenant.clone(), reason });
        }
    }

    /// The last request that was refused for want of memory, disk, or places in a queue.
    pub fn last_refusal(&self) -> Option<&LastRefusal> {
        self.last_refusal.as_ref()
    }
}
