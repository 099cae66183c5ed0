//! Statistics of a broker, and their rendering in JSON.

use crate::core::{
    Counters, Kind, LargestClient, LastRefusal, Millis, RequestInfo, RequestState, RestartCost, ServiceInfo, WorkerInfo,
};
use crate::store::SpoolUsage;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;
use towpath_cell::CellFigures;
use towpath_journal::JournalFigures;
use towpath_sockets::{Address, GonePeer, HubStats, Page, PeerId, PeerInfo, Principal};

/// A broker at one moment, with a page of a list.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that aren't confirmed, in whatever state.
    pub requests: usize,
    /// Bytes of memory that they hold.
    pub bytes: usize,
    /// Bytes of memory that they may hold.
    pub bytes_max: usize,
    /// Sums of all connections.
    pub hub: HubStats,
    /// Outcomes that nobody has confirmed, and their bytes of memory.
    pub outcomes: (usize, usize),
    /// Whether all new requests are refused for lack of space.
    pub is_full: bool,
    /// Counters since the start.
    pub counters: Counters,
    /// The spool for large bodies.
    pub spool: SpoolUsage,
    /// The number of services.
    pub service_count: usize,
    /// The number of workers.
    pub worker_count: usize,
    /// Requests are written to a journal.
    pub is_journalled: bool,
    /// The journal can't be written at the moment.
    pub has_storage_failed: bool,
    /// Names of services that an operator has paused.
    pub paused: Vec<Bytes>,
    /// Whether it is being drained.
    pub is_draining: bool,
    /// Requests of all services that wait for a worker.
    pub waiting: usize,
    /// Requests without an outcome, not counting dead letters that wait in their queue.
    pub left: usize,
    /// Consequences of a restart at once.
    pub restart: RestartCost,
    /// Dead letters.
    pub dead_letters: usize,
    /// The moment, in the core's time.
    pub now: Millis,
    /// Figures of the journal, if there is one, and why it can't be written at the moment.
    pub journal: Option<(JournalFigures, Option<String>)>,
    /// Its part in a cell, if it is in one.
    pub cell: Option<CellFigures>,
    /// Connections: [`Wanted::Peers`](towpath_sockets::Wanted::Peers).
    pub peers: Page<PeerStats>,
    /// Connections that have ended: [`Wanted::Gone`](towpath_sockets::Wanted::Gone).
    pub gone: Page<GonePeer>,
    /// Services, with their queues: [`Wanted::Services`](towpath_sockets::Wanted::Services).
    pub services: Page<ServiceInfo>,
    /// Workers: [`Wanted::Workers`](towpath_sockets::Wanted::Workers).
    pub workers: Page<WorkerStats>,
}

/// Services, or workers, in one list: more would hold up everybody while they are listed.
pub const LISTED_MAX: usize = 10_000;

/// A connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerStats {
    /// The connection itself.
    pub info: PeerInfo,
    /// Its activity.
    pub activity: Activity,
}

/// Activity of a connection.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Activity {
    /// Its protocol, or dialect of Majordomo; `None` before its first message.
    pub protocol: Option<String>,
    /// Whether it has introduced itself as a client or a worker.
    pub has_role: bool,
    /// Of a client: requests whose outcome it hasn't confirmed.
    pub requests: usize,
    /// Of a worker.
    pub worker: Option<WorkerInfo>,
}

/// A worker, and where it is.
#[derive(Debug, Clone)]
pub struct WorkerStats {
    /// Its connection.
    pub id: Option<PeerId>,
    /// State of the worker.
    pub worker: WorkerInfo,
    /// Its real address.
    pub address: Option<Address>,
    /// Who it is.
    pub principal: Principal,
    /// For how long nothing came from it, if that was asked for.
    pub silent_for: Option<Duration>,
}

/// A request, and where it is.
#[derive(Debug, Clone)]
pub struct RequestStats {
    /// State of the request.
    pub request: RequestInfo,
    /// The client's connection, if it is connected.
    pub peer: Option<PeerId>,
    /// The client's real address, if it is connected.
    pub address: Option<Address>,
    /// The connection of the worker that has it.
    pub worker: Option<PeerId>,
    /// The worker's real address.
    pub worker_address: Option<Address>,
}

/// A service, and who waits in its queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServiceStats {
    /// The service itself.
    pub info: ServiceInfo,
    /// Clients with requests in its queue, if they are at most 1,000.
    pub clients: Option<usize>,
    /// The moment, in the core's time.
    pub now: Millis,
}

/// Services, workers and clients that an operator may have to look at. Clients of one user or address count as one.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Concerns {
    /// Services for which something waits, or that have dead letters.
    pub services: Vec<ServiceInfo>,
    /// Workers that are busy for a while, or failed lately.
    pub workers: Vec<WorkerStats>,
    /// The client with the most.
    pub largest: Option<LargestClient>,
    /// The last request that was refused for want of memory, disk, or places in a queue.
    pub refusal: Option<LastRefusal>,
    /// The moment, in the core's time.
    pub now: Millis,
    /// Time between heartbeats of the connections.
    pub heartbeat: Duration,
}

/// A service and its queue, as in `mmi.queue`.
pub fn queue_json(service: &ServiceInfo, now: Millis) -> Value {
    let mut queue = json!({
        "waiting": service.waiting,
        "waiting_bytes": service.waiting_bytes,
        "memory_bytes": service.bytes,
        "waiting_spooled_bytes": service.waiting_large_bytes,
        "unconfirmed": service.live,
        "workers": service.workers,
        "paused": service.is_paused,
        "oldest_seconds": service.oldest_since.map(|since| seconds(since, now)),
        "usual_seconds": service.usual_ms.map(|usual| seconds(0, usual)),
    });
    add_name(&mut queue, "service", &service.name);
    queue
}

/// A worker, as in `mmi.workers`.
pub fn worker_json(WorkerStats { worker, address, .. }: &WorkerStats, now: Millis) -> Value {
    let mut listed = json!({
        "address": address.as_ref().map(|address| address.to_string()),
        "credit": worker.credit,
        "held": worker.held,
        "busy_seconds": worker.oldest_since.map(|since| seconds(since, now)),
        "numbered": worker.kind == Kind::Numbered,
        "rests_seconds": worker.rests_until.map(|until| seconds(now, until)),
        "gave_back": worker.gave_back.as_ref().map(|reason| String::from_utf8_lossy(reason)),
    });
    add_name(&mut listed, "service", &worker.service);
    listed
}

/// A request.
pub fn request_json(
    RequestStats { request, peer, address, worker, worker_address }: &RequestStats,
    now: Millis,
) -> Value {
    let postponed = request.state == RequestState::Postponed;
    json!({
        "id": request.key.to_string(),
        "state": match request.state {
            RequestState::Waiting => "waiting",
            RequestState::HeldBack => "held_back",
            RequestState::Postponed => "postponed",
            RequestState::Worker => "worker",
            RequestState::Answered => "answered",
            RequestState::Ended => "ended",
        },
        "seconds": seconds(if postponed { now } else { request.since }, now),
        "retry_seconds": postponed.then(|| seconds(now, request.since)),
        "expires_seconds": request.expires.map(|expires| seconds(now, expires)),
        "attempts": request.attempts,
        "bytes": request.bytes,
        "first_b64": request.first.as_ref().map(|first| STANDARD.encode(first)),
        "journalled": request.is_journalled,
        "dead_letter": request.is_letter,
        "client": request.client.as_ref().map(|client| client.to_string()),
        "peer": peer.map(|peer| peer.to_string()),
        "address": address.as_ref().map(|address| address.to_string()),
        "worker": worker.map(|worker| worker.to_string()),
        "worker_address": worker_address.as_ref().map(|address| address.to_string()),
    })
}

/// Adds a name to an object, and in base64 too if it isn't UTF-8: names that differ look alike without.
pub fn add_name(to: &mut Value, member: &str, name: &[u8]) {
    let Value::Object(to) = to else { return };
    to.insert(member.to_owned(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        to.insert(format!("{member}_b64"), STANDARD.encode(name).into());
    }
}

/// The name of a service in a list of names: text, or an object as [`add_name`] makes it if it isn't UTF-8.
pub fn listed_name(name: &[u8]) -> Value {
    match std::str::from_utf8(name) {
        Ok(name) => name.into(),
        Err(_) => {
            let mut listed = json!({});
            add_name(&mut listed, "service", name);
            listed
        }
    }
}

/// Seconds from one moment to another.
pub fn seconds(since: Millis, now: Millis) -> f64 {
    now.saturating_sub(since) as f64 / 1000.0
}

/// The spool, as in `mmi.spool`.
pub fn spool_json(usage: &SpoolUsage) -> Value {
    json!({
        "bytes": usage.bytes,
        "most": usage.bytes_max,
        "most_for_requests": usage.request_bytes_max,
        "files": usage.files,
        "most_files": usage.files_max,
        "most_files_for_requests": usage.request_files_max,
    })
}
