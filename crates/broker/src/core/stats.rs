//! Statistics: counters, services and workers.

use super::service::Service;
use super::worker::Worker;
use super::{Core, Kind, Peer, Role};
use bytes::Bytes;

/// Events since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests accepted.
    pub accepted: u64,
    /// Requests that were repeated and recognised.
    pub duplicates: u64,
    /// Requests refused: no room, the journal couldn't be written, or the broker was stopping.
    pub refused: u64,
    /// Attempts: requests given to workers, each time.
    pub dispatched: u64,
    /// Requests put back into their queue because their worker went or returned them.
    pub requeued: u64,
    /// Requests that ended with a worker's reply.
    pub replied: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Replies to requests that had ended.
    pub late_replies: u64,
    /// Parts of replies whose client was absent.
    pub lost_parts: u64,
    /// Requests dropped because their client was gone.
    pub given_up: u64,
    /// Requests kept as dead letters.
    pub dead_letters: u64,
}

/// A service and its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceInfo {
    /// The name.
    pub name: Bytes,
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Bytes of memory of the waiting requests.
    pub waiting_bytes: usize,
    /// Bytes of the waiting requests that aren't in memory.
    pub waiting_large_bytes: u64,
    /// Requests in all, in whatever state.
    pub live: usize,
    /// Workers.
    pub workers: usize,
    /// An operator has paused it.
    pub is_paused: bool,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The connection.
    pub peer: Peer,
    /// The service.
    pub service: Bytes,
    /// The protocol.
    pub kind: Kind,
    /// Requests that it takes at a time.
    pub credit: u32,
    /// Requests that it has.
    pub held: usize,
}

impl Service {
    fn info(&self) -> ServiceInfo {
        ServiceInfo {
            name: self.name.clone(),
            waiting: self.waiting.sums().requests,
            waiting_bytes: self.waiting.sums().bytes,
            waiting_large_bytes: self.waiting.sums().large_bytes,
            live: self.live,
            workers: self.workers,
            is_paused: self.is_paused,
        }
    }
}

impl Core {
    /// Services by number, from this one on.
    pub fn services_from(&self, number: u32) -> impl Iterator<Item = (u32, ServiceInfo)> + '_ {
        self.services.iter_from(number).map(|(key, service)| (key, service.info()))
    }

    /// Workers by number, from this one on.
    pub fn workers_from(&self, number: u32) -> impl Iterator<Item = (u32, WorkerInfo)> + '_ {
        self.workers.iter_from(number).map(|(key, worker)| (key, self.worker_info(worker)))
    }

    /// The worker of a connection, if it is one.
    pub fn worker(&self, peer: Peer) -> Option<WorkerInfo> {
        match self.roles.get(peer) {
            Role::Worker(key) => self.workers.get(key).map(|worker| self.worker_info(worker)),
            Role::None | Role::Client(_) => None,
        }
    }

    fn worker_info(&self, worker: &Worker) -> WorkerInfo {
        WorkerInfo {
            peer: worker.peer,
            service: self.services.at(worker.service).name.clone(),
            kind: worker.kind,
            credit: worker.credit,
            held: worker.held.len,
        }
    }

    /// Numbers of services and of workers.
    pub fn counts(&self) -> (usize, usize) {
        (self.services.len(), self.workers.len())
    }

    /// Whether the journal can't be written at the moment.
    pub fn has_storage_failed(&self) -> bool {
        self.storage_failed
    }

    /// Events since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// All services.
    pub fn services(&self) -> impl Iterator<Item = ServiceInfo> + '_ {
        self.services.iter().map(|(_, service)| service.info())
    }

    /// One service.
    pub fn service(&self, name: &[u8]) -> Option<ServiceInfo> {
        self.services.by_name(name).map(Service::info)
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerInfo> + '_ {
        self.workers.iter().map(|(_, worker)| self.worker_info(worker))
    }

    /// The number of requests, in whatever state, and the bytes of memory of all requests and replies.
    pub fn load(&self) -> (usize, usize) {
        (self.requests.len(), self.bytes)
    }
}
