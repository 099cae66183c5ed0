//! Admission: which requests are taken, which are refused, and which stock clients have to wait.

use super::requests::REQUEST_BYTES;
use super::service::WaitingSums;
use super::settings::{Millis, Settings};
use super::tenants::{NOBODY, left_of_share};
use super::{Action, Core, Peer, Role, ServiceKey, SessionKey, StockEnvelope, TenantKey};
use bytes::Bytes;
use std::collections::VecDeque;
use towpath_quota::FairQueue;
use towpath_requests::body::Body;
use towpath_requests::is_built_in;
use towpath_requests::numbered::{Status, Token};

pub(super) const TOO_MANY_SERVICES: &str = "the broker has as many services as it can hold, or of this user or address";

/// Why a request is refused, and when to try again.
pub(super) struct Refusal {
    pub status: Status,
    pub retry_ms: u32,
    pub reason: &'static str,
}

/// Level of use of the shared memory. Decides whether large messages are read, whose senders can't act on a refusal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MemoryPressure {
    /// At least half is free.
    Low,
    /// Less than half is free: large messages one at a time.
    High,
    /// More than half is output that peers haven't read. Some never will.
    Backlog,
    /// Nothing is free.
    Full,
}

/// Refuses what would be journalled.
pub(super) const NO_JOURNAL: Refusal = Refusal {
    status: Status::NO_STORAGE,
    retry_ms: 1_000,
    reason: "the journal can't be written; see the broker's log",
};

/// Refusal of a request while the log of a cell can't be reached.
const NO_LOG: Refusal = Refusal {
    status: Status::UNAVAILABLE,
    retry_ms: 1_000,
    reason: "the cell's log can't be reached; see the broker's log",
};

/// Why the journal, or the log in its place, takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageFailure {
    /// There is no space, or the disk fails.
    NoSpace,
    /// The log can't be reached.
    Unreachable,
}

impl StorageFailure {
    pub(super) fn refusal(self) -> Refusal {
        match self {
            StorageFailure::NoSpace => NO_JOURNAL,
            StorageFailure::Unreachable => NO_LOG,
        }
    }
}

const fn retry_in(retry_ms: u32, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { status: Status::UNAVAILABLE, retry_ms, reason })
}

/// Whether `length` is below a fraction of `most`. A limit of one request has no half.
fn below(length: usize, most: usize, divisor: usize) -> bool {
    length < (most / divisor).max(1)
}

/// Whether requests of all clients were refused for lack of space. Kept for a while, since an operator looks now and then.
#[derive(Debug, Default)]
pub(super) struct FullMark {
    pub is_since_look: bool,
    pub was_before: bool,
}

impl FullMark {
    /// Some time has passed.
    pub fn age(&mut self) {
        self.was_before = std::mem::take(&mut self.is_since_look);
    }
}

/// Paused clients that are looked at in one tick.
const LOOKS_PER_TICK: usize = 64;

/// Stock clients that aren't read, because they can't act on a refusal.
#[derive(Debug, Default)]
pub(super) struct PausedClients {
    /// With the service whose queue each waits for. By name, since keys are reused.
    queue: FairQueue<TenantKey, SessionKey, Bytes>,
    /// Memory was freed, or a client resumed, since the clients were last looked at from the first one on.
    pub memory_freed: bool,
    /// Clients left for the next ticks to look at, in the order of turns. Some may have gone.
    unseen: VecDeque<SessionKey>,
    /// Clients looked at.
    #[cfg(test)]
    pub looks: usize,
}

impl PausedClients {
    /// Whether memory was freed that a paused client may use.
    #[inline]
    fn may_resume(&self) -> bool {
        (self.memory_freed || !self.unseen.is_empty()) && !self.queue.is_empty()
    }

    pub fn remove(&mut self, key: SessionKey) {
        self.queue.remove(key);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.firsts().count()
    }
}

impl Core {
    /// Whether a request of this many bytes is admitted. `key`: its session; `None`: there is none yet.
    pub(super) fn admit(
        &mut self,
        tenant: TenantKey,
        key: Option<SessionKey>,
        service: &[u8],
        bytes: usize,
        journalled: bool,
    ) -> Result<(), Refusal> {
        let settings = &self.settings;
        if bytes > settings.client_bytes_max.min(settings.bytes_max).min(settings.service_bytes_max) {
            let reason = "larger than the memory limit of a client or a service";
            return Err(Refusal { status: Status::TOO_LARGE, retry_ms: 0, reason });
        }
        if let Some(reason) = self.refuses_all(service) {
            return retry_in(1_000, reason);
        }
        let settings = &self.settings;
        // Volatile requests need no journal.
        if let Some(failure) = self.storage_failure.filter(|_| journalled) {
            return Err(failure.refusal());
        }
        if let Some(session) = key.map(|key| &self.sessions[key])
            && (session.requests.len() >= settings.client_requests_max
                || session.bytes + bytes > settings.client_bytes_max)
        {
            return retry_in(50, "this client has too much outstanding; confirm replies, or wait");
        }
        if key.is_some() && self.has_its_outcomes(tenant) {
            return retry_in(
                200,
                "of this user or address the broker keeps all the outcomes that it can; confirm them",
            );
        }
        self.admit_shared(tenant, service, bytes)
    }

    /// Whether a tenant's request fits into the memory and its service's queue, and into the tenant's shares of both.
    pub(super) fn admit_shared(&mut self, tenant: TenantKey, service: &[u8], bytes: usize) -> Result<(), Refusal> {
        let settings = &self.settings;
        let (all_requests, all_bytes) = self.used();
        if all_bytes + bytes > settings.bytes_max || all_requests >= settings.requests_max {
            self.full.is_since_look = true;
            return retry_in(200, "the broker has all that it can hold");
        }
        let (requests_left, bytes_left) = self.left_of_all(tenant);
        if requests_left == 0 || bytes > bytes_left {
            return retry_in(200, "of this user or address the broker has all that it can hold");
        }
        let Some(service) = self.services.find(service) else {
            return if self.exceeds_services(tenant, service) { retry_in(1_000, TOO_MANY_SERVICES) } else { Ok(()) };
        };
        let (requests_left, bytes_left) = self.left_of_queue(tenant, service);
        if requests_left == 0 || bytes > bytes_left {
            return retry_in(200, "the service's queue is full");
        }
        Ok(())
    }

    /// Requests, and bytes of memory, but for the outcomes that clients haven't confirmed: those have a budget of their own.
    #[inline]
    pub(super) fn used(&self) -> (usize, usize) {
        let outcomes = self.replies.of_clients();
        (self.requests.len() - outcomes.count, self.bytes - outcomes.bytes)
    }

    /// Whether a tenant has its share of unconfirmed outcomes, so that its clients are to confirm some before they ask for more.
    #[inline]
    fn has_its_outcomes(&self, tenant: TenantKey) -> bool {
        let own = if tenant == NOBODY { 0 } else { self.tenants.at(tenant).outcomes.bytes };
        left_of_share(self.settings.bytes_max, self.replies.of_clients().bytes, own) == 0
    }

    /// Requests, and bytes of a body, that a tenant may have beside those that it has.
    #[inline]
    fn left_of_all(&self, tenant: TenantKey) -> (usize, usize) {
        let Settings { requests_max, bytes_max, .. } = self.settings;
        let (all_requests, all_bytes) = self.used();
        match tenant {
            NOBODY => (requests_max.saturating_sub(all_requests), bytes_max.saturating_sub(all_bytes)),
            _ => {
                let own = self.tenants.at(tenant);
                let requests = left_of_share(requests_max, all_requests, own.requests - own.outcomes.count);
                let bytes = left_of_share(bytes_max, all_bytes, own.bytes - own.outcomes.bytes);
                // Requests without a body use up the memory as well.
                (requests.min(bytes / REQUEST_BYTES), bytes.saturating_sub(REQUEST_BYTES))
            }
        }
    }

    /// The same of a service's queue. One tenant may have all of it. A third more is for others.
    #[inline]
    fn left_of_queue(&self, tenant: TenantKey, service: ServiceKey) -> (usize, usize) {
        let Settings { service_requests_max, service_bytes_max, .. } = self.settings;
        let all = self.services.at(service).waiting.sums();
        let left = |most: usize, used: usize, own: usize| {
            let share = if tenant == NOBODY { usize::MAX } else { left_of_share(most + most.div_ceil(3), used, own) };
            most.saturating_sub(own).min(share)
        };
        let own = self.waiting_of(tenant, service);
        (left(service_requests_max, all.requests, own.requests), left(service_bytes_max, all.bytes, own.bytes))
    }

    /// The waiting requests of a tenant for a service. For nobody: those of all.
    fn waiting_of(&self, tenant: TenantKey, service: ServiceKey) -> WaitingSums {
        match tenant {
            NOBODY => self.services.at(service).waiting.sums(),
            _ => self.services.waiting_of(service, tenant),
        }
    }

    /// Whether a request would add a service beyond the number that requests, or those of its tenant, may add.
    pub(super) fn exceeds_services(&mut self, tenant: TenantKey, service: &[u8]) -> bool {
        let (most, all) = (self.settings.asked_services_max(), self.services.len());
        let left = match tenant {
            NOBODY => most.saturating_sub(all),
            _ => left_of_share(most, all, self.tenants.at(tenant).services),
        };
        left == 0 && self.services.find(service).is_none() && !is_built_in(service)
    }

    /// Whether a stock client is below the limits, so that it may be read. `own`, `shared`: whether it is even below that
    /// fraction of its own limits, and of the shared ones.
    pub(super) fn is_below_limits(
        &self,
        key: SessionKey,
        service: Option<ServiceKey>,
        own: usize,
        shared: usize,
    ) -> bool {
        let settings = &self.settings;
        let session = &self.sessions[key];
        let is_left = |(requests, bytes): (usize, usize)| requests > 0 && bytes > 0;
        below(session.requests.len(), settings.client_requests_max, own)
            && below(session.bytes, settings.client_bytes_max, own)
            && self.is_below_shared_limits(shared)
            && is_left(self.left_of_all(session.tenant))
            && service.is_none_or(|service| {
                let waiting = self.waiting_of(session.tenant, service);
                below(waiting.requests, settings.service_requests_max, shared)
                    && below(waiting.bytes, settings.service_bytes_max, shared)
                    && is_left(self.left_of_queue(session.tenant, service))
            })
    }

    /// Whether memory and requests are below a fraction of their limits.
    fn is_below_shared_limits(&self, divisor: usize) -> bool {
        let (requests, bytes) = self.used();
        below(bytes, self.settings.bytes_max, divisor) && below(requests, self.settings.requests_max, divisor)
    }

    /// The memory pressure while this many bytes are queued for peers. They count once more, since the replies to requests that are
    /// here may be as large.
    pub fn memory_pressure(&self, waiting_bytes: usize) -> MemoryPressure {
        let Settings { bytes_max, requests_max, .. } = self.settings;
        let (requests, bytes) = self.used();
        let (half, has_half) = (bytes_max / 2, below(requests, requests_max, 2));
        if !self.is_below_shared_limits(1) {
            MemoryPressure::Full
        } else if waiting_bytes > half {
            MemoryPressure::Backlog
        } else if has_half && bytes.saturating_add(waiting_bytes) <= half {
            MemoryPressure::Low
        } else {
            MemoryPressure::High
        }
    }

    /// Pauses reading from a stock client until it is below its own limits, the shared ones, and those of this service's queue.
    pub(super) fn pause_client(&mut self, key: SessionKey, service: Bytes) {
        let session = &mut self.sessions[key];
        if let (false, Some(peer)) = (session.paused, session.peer) {
            session.paused = true;
            self.paused.queue.push(&session.tenant, key, service);
            self.actions.push(Action::Pause { peer, paused: true });
        }
    }

    /// Whether [`Core::resume_clients`] may have something to do.
    #[inline]
    pub(super) fn may_resume(&self) -> bool {
        self.paused.may_resume() && !self.drain.is_stopping()
    }

    /// Resumes stock clients below half of their own limits, in turn: all of them if the shared memory is half free, otherwise one in
    /// each tick.
    ///
    /// A tick looks at some clients and leaves the others to the next ones: thousands may wait for one queue, or for the share of one tenant,
    /// and each request that ends frees memory.
    pub(super) fn resume_clients(&mut self) {
        let PausedClients { queue, memory_freed, unseen, .. } = &mut self.paused;
        let from_first = unseen.is_empty();
        let keys: Vec<SessionKey> = if from_first {
            *memory_freed = false;
            queue.firsts().map(|(key, _)| key).take(LOOKS_PER_TICK).collect()
        } else {
            unseen.drain(..unseen.len().min(LOOKS_PER_TICK)).collect()
        };
        let (mut resumed, mut has_space) = (Vec::new(), true);
        for key in keys {
            let shared = if resumed.is_empty() { 1 } else { 2 };
            has_space = self.is_below_shared_limits(shared);
            if !has_space {
                break;
            }
            let Some(service) = self.paused.queue.first(key) else { continue };
            #[cfg(test)]
            {
                self.paused.looks += 1;
            }
            if self.is_below_limits(key, self.services.find_by_name(service), 2, shared) {
                resumed.push(key);
            }
        }
        let PausedClients { queue, memory_freed, unseen, .. } = &mut self.paused;
        if !has_space {
            unseen.clear();
            *memory_freed = false;
        } else if from_first {
            unseen.extend(queue.firsts().map(|(key, _)| key).skip(LOOKS_PER_TICK));
        }
        for &key in &resumed {
            queue.pop(key);
            let session = &mut self.sessions[key];
            session.paused = false;
            if let Some(peer) = session.peer {
                self.actions.push(Action::Pause { peer, paused: false });
            }
        }
        // The resumed client may send nothing: then it is the next one's turn.
        *memory_freed |= !resumed.is_empty() && !queue.is_empty();
    }

    /// The driver couldn't take in a numbered client's request. `retry_ms`: when the client may try again; 0: never.
    pub fn refuse(
        &mut self,
        now: Millis,
        peer: Peer,
        number: u64,
        status: Status,
        retry_ms: u32,
        reason: &'static str,
    ) {
        let Some(key) = self.numbered_session(peer) else {
            return self.disconnect(now, peer, "a request before HELLO");
        };
        // A request that was accepted before isn't refused when it is repeated.
        if !self.is_duplicate(key, number, peer, None) {
            self.note_refusal(now, self.sessions[key].tenant, status, reason);
            self.actions.push(Action::Refused { peer, number, status, retry_ms, reason });
            self.leave_when_done(peer);
        }
    }

    /// The driver couldn't take in a part of a worker's reply. Ends the request; the rest of the reply is late.
    pub fn reject_part(&mut self, now: Millis, peer: Peer, token: &Token, status: Status, reason: &'static str) {
        let held = match self.roles.get(peer) {
            Role::Worker(key) => self.find_held(key, token),
            Role::None | Role::Client(_) => None,
        };
        match held {
            Some(slot) => {
                self.withdraw(now, slot);
                self.settle(slot, status, Body::from(reason).into());
            }
            None => self.worker_reply(now, peer, token, status, Some(0), Body::from(reason)),
        }
    }

    /// The driver couldn't take in a stock client's request.
    pub fn stock_refuse(
        &mut self,
        now: Millis,
        peer: Peer,
        envelope: StockEnvelope,
        service: &[u8],
        status: Status,
        reason: &'static str,
    ) {
        if let Some(key) = self.stock_session(now, peer) {
            self.note_refusal(now, self.sessions[key].tenant, status, reason);
            let (service, body) = (Bytes::copy_from_slice(service), Body::from(reason));
            self.actions.push(Action::StockReply { peer, envelope, service, status, partial: false, body });
        }
    }
}
