//! Statistics of a broker, and their rendering in JSON.

use crate::core::{Counters, Kind, ServiceInfo, WorkerInfo};
use crate::store::SpoolUsage;
use serde_json::{Value, json};
use towpath_sockets::{Address, PeerId};

/// A broker at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that aren't confirmed, in whatever state.
    pub requests: usize,
    /// Bytes of memory that they hold.
    pub bytes: usize,
    /// All connections.
    pub connections: Vec<ConnectionStats>,
    /// Counters since the start.
    pub counters: Counters,
    /// The spool for large bodies.
    pub spool: SpoolUsage,
    /// Services, with their queues; at most [`LISTED_MAX`].
    pub services: Vec<ServiceInfo>,
    /// Workers; at most [`LISTED_MAX`].
    pub workers: Vec<WorkerStats>,
}

/// Services, or workers, in one list: more would hold up everybody while they are listed.
pub const LISTED_MAX: usize = 10_000;

/// A connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// For [`Handle::disconnect`](crate::server::Handle::disconnect).
    pub id: PeerId,
    /// Where it really is.
    pub address: Option<Address>,
    /// Bytes of memory queued for it.
    pub queued_bytes: usize,
}

/// A worker, and where it is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerStats {
    /// State of the worker.
    pub worker: WorkerInfo,
    /// Where it really is.
    pub address: Option<Address>,
}

impl Stats {
    /// As one JSON object. Services, workers and the spool are as `mmi.queue`, `mmi.workers` and `mmi.spool` tell them.
    pub fn to_json(&self) -> Value {
        let Counters {
            accepted,
            duplicates,
            refused,
            dispatched,
            requeued,
            replied,
            failed,
            late_replies,
            lost_parts,
            given_up,
            dead_letters,
        } = self.counters;
        json!({
            "requests": self.requests,
            "bytes": self.bytes,
            "connections": self.connections.iter().map(connection_json).collect::<Vec<_>>(),
            "counters": {
                "accepted": accepted,
                "duplicates": duplicates,
                "refused": refused,
                "dispatched": dispatched,
                "requeued": requeued,
                "replied": replied,
                "failed": failed,
                "late_replies": late_replies,
                "lost_parts": lost_parts,
                "given_up": given_up,
                "dead_letters": dead_letters,
            },
            "spool": spool_json(&self.spool),
            "services": self.services.iter().map(queue_json).collect::<Vec<_>>(),
            "workers": self.workers.iter().map(worker_json).collect::<Vec<_>>(),
        })
    }
}

fn connection_json(connection: &ConnectionStats) -> Value {
    json!({
        "peer": connection.id.to_string(),
        "address": connection.address.as_ref().map(|address| address.to_string()),
        "queued_bytes": connection.queued_bytes,
    })
}

/// A service and its queue.
pub(crate) fn queue_json(service: &ServiceInfo) -> Value {
    json!({
        "service": String::from_utf8_lossy(&service.name),
        "waiting": service.waiting,
        "waiting_bytes": service.waiting_bytes,
        "waiting_spooled_bytes": service.waiting_large_bytes,
        "unconfirmed": service.live,
        "workers": service.workers,
    })
}

/// A worker.
pub(crate) fn worker_json(WorkerStats { worker, address }: &WorkerStats) -> Value {
    json!({
        "service": String::from_utf8_lossy(&worker.service),
        "address": address.as_ref().map(|address| address.to_string()),
        "credit": worker.credit,
        "held": worker.held,
        "numbered": worker.kind == Kind::Numbered,
    })
}

/// The room for large bodies.
pub(crate) fn spool_json(usage: &SpoolUsage) -> Value {
    json!({
        "bytes": usage.bytes,
        "most": usage.bytes_max,
        "most_for_requests": usage.request_bytes_max,
        "files": usage.files,
        "most_files": usage.files_max,
        "most_files_for_requests": usage.request_files_max,
    })
}
