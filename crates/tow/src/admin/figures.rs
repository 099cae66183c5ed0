//! All figures of servers, a line for each. `/metrics`, the numbers of the status, and what should be zero follow from these tables; a test
//! compares them with the documentation.

mod snapshot;

pub use self::snapshot::{Number, Sample, Snapshot, json};
use super::problems::{Kind as Problem, Problems};
use std::fmt;
use std::time::Duration;
use towpath_blocking::PoolLoad;
use towpath_broker::core::ServiceInfo;
use towpath_broker::{CellFigures, JournalFigures, MemberFigures, Role};
use towpath_files::server::source::CacheStats;
use towpath_files::server::{CatalogueStats, QuotaStats, WatchStats};
use towpath_sockets::{HubStats, RelayStats};

/// Whether a figure only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sum since the start.
    Counter,
    /// A value at the moment.
    Gauge,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Seconds,
    /// 1 or 0; `true` or `false` in JSON.
    Flag,
}
use Unit::{Bytes, Count, Flag, Seconds};

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Count => "",
            Bytes => "bytes",
            Seconds => "seconds",
            Flag => "0 or 1",
        })
    }
}

/// Description of a figure.
#[derive(Debug)]
pub struct About {
    /// Its metric's, without `towpath_` and `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub help: &'static str,
    /// Its label, if it has several values.
    pub label: &'static str,
    /// Set for a figure that should be zero.
    zero: Option<Zero>,
}

/// Texts about a figure that should be zero.
#[derive(Debug)]
struct Zero {
    /// The value of its label, if it has one.
    of: &'static str,
    title: &'static str,
    about: &'static str,
}

type Text = &'static str;

/// Reads a value.
type Read<S> = fn(&S) -> Number;

/// Values of a label, each with its member in JSON, and how it is read.
type By<S> = &'static [(Text, Text, Read<S>)];

/// A figure that is read from an `S`.
pub struct Figure<S: 'static> {
    about: About,
    values: Values<S>,
}

enum Values<S: 'static> {
    /// Its member in JSON, empty if it has none, and how it is read.
    One(Text, Read<S>),
    /// The same for each value of its label.
    By(By<S>),
}

impl<S> Figure<S> {
    const fn new(kind: Kind, name: Text, unit: Unit, help: Text, label: Text, values: Values<S>) -> Figure<S> {
        Figure { about: About { name, kind, unit, help, label, zero: None }, values }
    }
}

/// A figure that should be zero, with a title for people.
const fn zero<S>(title: Text, figure: Figure<S>) -> Figure<S> {
    zero_of("", title, figure.about.help, figure)
}

/// A figure of which the one of this label's value should be zero.
const fn zero_of<S>(of: Text, title: Text, about: Text, mut figure: Figure<S>) -> Figure<S> {
    figure.about.zero = Some(Zero { of, title, about });
    figure
}

const fn counter<S>(name: Text, unit: Unit, help: Text, member: Text, read: Read<S>) -> Figure<S> {
    Figure::new(Kind::Counter, name, unit, help, "", Values::One(member, read))
}

const fn gauge<S>(name: Text, unit: Unit, help: Text, member: Text, read: Read<S>) -> Figure<S> {
    Figure::new(Kind::Gauge, name, unit, help, "", Values::One(member, read))
}

const fn counters<S>(name: Text, unit: Unit, help: Text, label: Text, values: By<S>) -> Figure<S> {
    Figure::new(Kind::Counter, name, unit, help, label, Values::By(values))
}

const fn gauges<S>(name: Text, unit: Unit, help: Text, label: Text, values: By<S>) -> Figure<S> {
    Figure::new(Kind::Gauge, name, unit, help, label, Values::By(values))
}

/// A server, whatever it does.
pub struct Server {
    pub started: u64,
    pub is_ready: bool,
}

/// A catalogue and its followers.
pub struct Catalogue {
    pub sums: CatalogueStats,
    pub followers: usize,
    pub behind: u64,
    pub behind_time: Duration,
    pub holders: usize,
}

/// The queues of a broker.
pub struct Queues {
    pub waiting: usize,
    pub oldest_seconds: f64,
}

// Name, unit, help, member of the JSON, how it is read.

#[rustfmt::skip]
pub static SERVER: &[Figure<Server>] = &[
    gauge("start_time_seconds", Seconds, "When the server was started, since 1970", "started", |s| s.started.into()),
    gauge("ready", Flag, "1 from its start until it stops, also while it is drained", "", |s| s.is_ready.into()),
];

/// Problems at the moment.
#[rustfmt::skip]
pub static PROBLEMS: &[Figure<Problems>] = &[
    gauges("problems", Count, "Problems at the moment", "kind", &[
        ("no_worker", "", |p| p.count(Problem::NoWorker).into()),
        ("journal_failed", "", |p| p.count(Problem::JournalFailed).into()),
        ("cell_stopped", "", |p| p.count(Problem::CellStopped).into()),
        ("no_leader", "", |p| p.count(Problem::NoLeader).into()),
        ("queue_settings", "", |p| p.count(Problem::QueueSettings).into()),
        ("bodies_away", "", |p| p.count(Problem::BodiesAway).into()),
        ("full", "", |p| p.count(Problem::Full).into()),
        ("source_away", "", |p| p.count(Problem::SourceAway).into()),
        ("catalogue_full", "", |p| p.count(Problem::CatalogueFull).into()),
        ("waiting_long", "", |p| p.count(Problem::WaitingLong).into()),
        ("worker_busy", "", |p| p.count(Problem::WorkerBusy).into()),
        ("worker_silent", "", |p| p.count(Problem::WorkerSilent).into()),
        ("worker_fails", "", |p| p.count(Problem::WorkerFails).into()),
        ("dead_letters", "", |p| p.count(Problem::DeadLetters).into()),
        ("journal_slow", "", |p| p.count(Problem::JournalSlow).into()),
        ("standby_missing", "", |p| p.count(Problem::StandbyMissing).into()),
        ("standby_behind", "", |p| p.count(Problem::StandbyBehind).into()),
        ("replica_behind", "", |p| p.count(Problem::ReplicaBehind).into()),
        ("clock_skew", "", |p| p.count(Problem::ClockSkew).into()),
        ("refused", "", |p| p.count(Problem::Refused).into()),
        ("large_client", "", |p| p.count(Problem::LargeClient).into()),
        ("paused", "", |p| p.count(Problem::Paused).into()),
        ("follower_failing", "", |p| p.count(Problem::FollowerFailing).into()),
        ("version_missing", "", |p| p.count(Problem::VersionMissing).into()),
        ("follower_behind", "", |p| p.count(Problem::FollowerBehind).into()),
        ("follower_gone", "", |p| p.count(Problem::FollowerGone).into()),
        ("held_deletions", "", |p| p.count(Problem::HeldDeletions).into()),
        ("unread", "", |p| p.count(Problem::Unread).into()),
        ("unwatched", "", |p| p.count(Problem::Unwatched).into()),
        ("cache_broken", "", |p| p.count(Problem::CacheBroken).into()),
        ("always_written", "", |p| p.count(Problem::AlwaysWritten).into()),
        ("threads_hang", "", |p| p.count(Problem::ThreadsHang).into()),
        ("nearly_full", "", |p| p.count(Problem::NearlyFull).into()),
        ("log_suppressed", "", |p| p.count(Problem::LogSuppressed).into()),
    ]),
];

/// Of connections.
#[rustfmt::skip]
pub static HUB: &[Figure<HubStats>] = &[
    gauges("peers", Count, "Connections", "state", &[
        ("ready", "peers", |s| s.peers.into()),
        ("handshake", "handshakes", |s| s.handshakes.into()),
    ]),
    zero_of("protocol", "Protocol errors", "Connections that were ended because the peer broke the protocol", counters("peers_gone", Count, "Connections that have ended", "reason", &[
        ("closed", "gone.closed", |s| s.ends.closed.into()),
        ("protocol", "gone.protocol", |s| s.ends.protocol.into()),
        ("other", "gone.other", |s| s.ends.other.into()),
        ("handshake", "gone.handshake", |s| s.ends.handshake.into()),
        ("blocked", "gone.blocked", |s| s.ends.blocked.into()),
    ])),
    counters("network_bytes", Bytes, "Bytes received and sent, with all framing", "direction", &[
        ("in", "received_bytes", |s| s.traffic.bytes_in.into()),
        ("out", "sent_bytes", |s| s.traffic.bytes_out.into()),
    ]),
    counter("sendfile_bytes", Bytes, "Bytes sent by sendfile(2), of all that were sent", "sendfile_bytes", |s| s.traffic.sendfile_bytes.into()),
    counters("network_messages", Count, "Messages received and sent", "direction", &[
        ("in", "received_messages", |s| s.traffic.messages_in.into()),
        ("out", "sent_messages", |s| s.traffic.messages_out.into()),
    ]),
    gauge("queued_bytes", Bytes, "Memory of what is queued for peers", "queued_bytes", |s| s.queued_bytes.into()),
    counters("event_loop_slow_rounds", Count, "Rounds of the event loop that took longer than this", "over", &[
        ("2ms", "", |s| s.slow_rounds[0].into()),
        ("20ms", "", |s| s.slow_rounds[1].into()),
        ("200ms", "", |s| s.slow_rounds[2].into()),
        ("2s", "", |s| s.slow_rounds[3].into()),
    ]),
];

/// Of a file server.
#[rustfmt::skip]
pub static FILES: &[Figure<towpath_files::server::Stats>] = &[
    counter("peers_connected", Count, "Connections whose handshake was completed", "counters.connected", |s| s.counters.connected.into()),
    zero_of("malformed", "Malformed", "Requests that can't be understood", counters("requests", Count, "Requests of clients", "outcome", &[
        ("understood", "counters.requests", |s| s.counters.requests.into()),
        ("malformed", "counters.malformed", |s| s.counters.malformed.into()),
    ])),
    zero_of("void", "Void files", "Files that changed while they were sent", counters("files", Count, "Files asked for, by how they ended", "outcome", &[
        ("refused", "counters.files_refused", |s| s.counters.files_refused.into()),
        ("void", "counters.files_void", |s| s.counters.files_void.into()),
        ("confirmed", "counters.files_confirmed", |s| s.counters.files_confirmed.into()),
    ])),
    zero_of("failed", "Failed pushes", "Pushes that were refused, or failed", counters("pushes", Count, "Files that clients pushed, by how that ended", "outcome", &[
        ("pushed", "counters.pushed", |s| s.counters.pushed.into()),
        ("failed", "counters.pushes_failed", |s| s.counters.pushes_failed.into()),
    ])),
    gauge("draining", Flag, "1 while nothing new is taken", "draining", |s| s.is_draining.into()),
];

/// Of a pool of threads.
#[rustfmt::skip]
pub static POOL: &[Figure<PoolLoad>] = &[
    gauges("pool_jobs", Count, "Jobs that may block", "state", &[
        ("running", "running", |s| s.running.into()),
        ("waiting", "waiting", |s| s.waiting.into()),
    ]),
    zero("Hung threads", gauge("pool_threads_hung", Count, "Threads that seem to hang in the system", "hung", |s| s.hung.into())),
];

/// Of what clients share.
#[rustfmt::skip]
pub static QUOTA: &[Figure<QuotaStats>] = &[
    gauges("quota", Count, "What clients share", "value", &[
        ("used", "used", |s| s.used.into()),
        ("max", "max", |s| s.max.into()),
    ]),
];

/// Of a catalogue.
#[rustfmt::skip]
pub static CATALOGUE: &[Figure<Catalogue>] = &[
    gauge("followers", Count, "Follows of connected clients", "catalogue.followers", |s| s.followers.into()),
    gauge("follow_lag_changes", Count, "Changes that the last follower lacks", "catalogue.behind", |s| s.behind.into()),
    gauge("follow_lag_seconds", Seconds, "Age of the first change that the last follower lacks", "catalogue.behind_seconds", |s| s.behind_time.into()),
    gauge("holders", Count, "Copies that have reported what they have in place", "catalogue.holders", |s| s.holders.into()),
    gauge("versions", Count, "Published versions", "catalogue.versions", |s| s.sums.versions.into()),
    gauge("catalogue_paths", Count, "Paths that are published", "catalogue.paths", |s| s.sums.paths.into()),
    gauge("catalogue_seq", Count, "The newest sequence number", "catalogue.seq", |s| s.sums.head.into()),
    gauge("catalogue_complete", Flag, "1 if the directory was read once, as a whole", "catalogue.complete", |s| s.sums.is_complete.into()),
];

/// Of the watching of a directory.
#[rustfmt::skip]
pub static WATCH: &[Figure<WatchStats>] = &[
    gauge("unfinished_files", Count, "Files that are published when they are finished", "catalogue.watch.waiting_files", |s| s.waiting.into()),
    zero("Files always written to", gauge("written_files", Count, "Unfinished files that are written to all the time", "catalogue.watch.written_files", |s| s.written.into())),
    zero("Held deletions", gauge("held_deletions", Count, "Deletions that a person has to release by SIGUSR1", "catalogue.watch.held_deletions", |s| s.held.map_or(0, |(count, _)| count).into())),
    zero("Unread paths", gauge("unread_paths", Count, "Directories and files that can't be read", "catalogue.watch.unread_count", |s| s.unread.into())),
    zero("Unwatched", gauge("unwatched", Flag, "1 if some directories can't be watched", "catalogue.watch.unwatched", |s| s.is_blind.into())),
    zero("Catalogue full", gauge("catalogue_full", Flag, "1 if there are too many paths: the others aren't published", "catalogue.watch.full", |s| s.is_full.into())),
    gauge("rescan_age_seconds", Seconds, "Time since the whole directory was last read", "catalogue.watch.looked_seconds", |s| s.looked.map(|(at, _)| at.elapsed()).into()),
    gauge("rescan_seconds", Seconds, "How long the last read of the whole directory took", "catalogue.watch.look_seconds", |s| s.looked.map(|(_, took)| took).into()),
    counter("event_overflows", Count, "Overflows of the kernel's queue of events", "catalogue.watch.overflows", |s| s.overflows.into()),
];

/// Of the cache of a served bucket.
#[rustfmt::skip]
pub static CACHE: &[Figure<CacheStats>] = &[
    gauge("cache_bytes", Bytes, "Bytes of pieces in the cache", "cache.bytes", |s| s.bytes.into()),
    gauge("cache_limit_bytes", Bytes, "Limit on them", "cache.bytes_max", |s| s.bytes_max.into()),
    counter("cache_hits", Count, "Pieces that were in the cache when they were wanted", "cache.hits", |s| s.hits.into()),
    counter("cache_fetched", Count, "Pieces that were fetched into the cache", "cache.fetched", |s| s.fetched.into()),
    counter("cache_fetched_bytes", Bytes, "Bytes of these pieces", "cache.fetched_bytes", |s| s.fetched_bytes.into()),
    counter("cache_evicted", Count, "Pieces that were evicted", "cache.evicted", |s| s.evicted.into()),
    zero("Past the cache", counter("cache_bypassed", Count, "Reads past the cache, since nothing could be kept", "cache.bypassed", |s| s.bypassed.into())),
    zero("Cache broken", gauge("cache_broken", Flag, "1 while nothing can be kept", "cache.broken", |s| s.is_broken.into())),
];

/// Of a broker.
#[rustfmt::skip]
pub static BROKER: &[Figure<towpath_broker::Stats>] = &[
    counters("requests", Count, "Requests of clients", "outcome", &[
        ("accepted", "counters.accepted", |s| s.counters.accepted.into()),
        ("duplicate", "counters.duplicates", |s| s.counters.duplicates.into()),
        ("refused", "counters.refused", |s| s.counters.refused.into()),
    ]),
    counters("requests_ended", Count, "Requests that ended", "outcome", &[
        ("replied", "counters.replied", |s| s.counters.replied.into()),
        ("failed", "counters.failed", |s| s.counters.failed.into()),
        ("given_up", "counters.given_up", |s| s.counters.given_up.into()),
        ("purged", "counters.purged", |s| s.counters.purged.into()),
    ]),
    counter("requests_dispatched", Count, "Attempts: requests given to workers", "counters.dispatched", |s| s.counters.dispatched.into()),
    zero("Requeued", counter("requests_requeued", Count, "Requests whose workers went, or returned them", "counters.requeued", |s| s.counters.requeued.into())),
    zero("Late replies", counter("replies_late", Count, "Replies to requests that had ended", "counters.late_replies", |s| s.counters.late_replies.into())),
    zero("Lost parts", counter("reply_parts_lost", Count, "Parts of replies whose client was absent", "counters.lost_parts", |s| s.counters.lost_parts.into())),
    counter("dead_letters", Count, "Requests that were given up after all attempts, and kept", "counters.dead_letters", |s| s.counters.dead_letters.into()),
    counter("outcomes_dropped", Count, "Outcomes dropped, as their client was absent", "counters.outcomes_dropped", |s| s.counters.outcomes_dropped.into()),
    gauge("requests_held", Count, "Requests without a confirmed outcome", "requests", |s| s.requests.into()),
    gauge("memory_bytes", Bytes, "Memory of requests and replies", "memory_bytes", |s| s.bytes.into()),
    gauge("memory_limit_bytes", Bytes, "Limit of the memory of requests and replies", "memory_bytes_max", |s| s.bytes_max.into()),
    gauge("outcomes_held", Count, "Outcomes that nobody has confirmed", "outcomes", |s| s.outcomes.0.into()),
    gauge("outcomes_bytes", Bytes, "Memory of outcomes that nobody has confirmed", "outcome_bytes", |s| s.outcomes.1.into()),
    zero("Full", gauge("full", Flag, "1 while requests of all are refused for want of space", "full", |s| s.is_full.into())),
    gauge("spool_bytes", Bytes, "Large bodies on the disk", "", |s| s.spool.bytes.into()),
    gauge("spool_limit_bytes", Bytes, "Limit of large bodies on the disk", "", |s| s.spool.bytes_max.into()),
    gauge("spool_files", Count, "Files of large bodies on the disk", "", |s| s.spool.files.into()),
    gauge("services", Count, "Services with workers or requests", "services", |s| s.service_count.into()),
    gauge("workers", Count, "Workers", "workers", |s| s.worker_count.into()),
    zero("Paused services", gauge("services_paused", Count, "Services that an operator has paused", "", |s| s.paused.len().into())),
    zero("Journal failed", gauge("journal_failed", Flag, "1 while the journal can't be written: nothing is acknowledged", "", |s| s.has_storage_failed.into())),
    zero("Dead letters", gauge("dead_letters_held", Count, "Dead letters that are here", "dead_letters", |s| s.dead_letters.into())),
    gauge("draining", Flag, "1 while nothing new is taken", "draining", |s| s.is_draining.into()),
    gauge("requests_left", Count, "Requests without an outcome, not counting dead letters in their queue", "left", |s| s.left.into()),
];

/// Of a broker's queues, which are all listed for them.
#[rustfmt::skip]
pub static QUEUES: &[Figure<Queues>] = &[
    gauge("requests_waiting", Count, "Requests that wait for a worker", "", |s| s.waiting.into()),
    gauge("oldest_waiting_seconds", Seconds, "Time since the oldest request that waits for a worker was taken", "", |s| s.oldest_seconds.into()),
];

/// Of a journal. The members are those of the object `journal`.
#[rustfmt::skip]
pub static JOURNAL: &[Figure<JournalFigures>] = &[
    gauge("journal_bytes", Bytes, "Bytes of the journal's files", "bytes", |s| s.log_bytes.into()),
    gauge("journal_needed_bytes", Bytes, "Bytes of the journal that a restart would read", "needed_bytes", |s| s.needed_bytes.into()),
    gauge("journal_requests", Count, "Requests that a restart would read", "requests", |s| s.requests.into()),
    gauge("journal_segments", Count, "Files of the journal", "segments", |s| s.segments.into()),
    gauge("journal_pending_bytes", Bytes, "Bytes that wait for the disk", "pending_bytes", |s| s.pending_bytes.into()),
    gauge("journal_writing_seconds", Seconds, "Age of the write in progress; 0 if there is none", "writing_seconds", |s| s.writing.into()),
    gauge("journal_sync_seconds_last", Seconds, "How long the last write took until it was on the disk", "sync_seconds_last", |s| s.sync_last.into()),
    gauge("journal_sync_seconds_max", Seconds, "How long the longest write took until it was on the disk", "sync_seconds_max", |s| s.sync_max.into()),
    counter("journal_sync_seconds", Seconds, "Time of writes until they were on the disk", "sync_seconds", |s| s.sync_sum.into()),
    counter("journal_syncs", Count, "Writes that are on the disk", "syncs", |s| s.commits.into()),
    counter("journal_written_bytes", Bytes, "Bytes written to the journal's files", "written_bytes", |s| s.written_bytes.into()),
    zero("Journal errors", counter("journal_errors", Count, "Writes of the journal that failed", "errors", |s| s.errors.into())),
];

/// Of connections that a broker of a cell relays to the one that leads.
#[rustfmt::skip]
pub static RELAY: &[Figure<RelayStats>] = &[
    gauge("relayed_connections", Count, "Connections that are relayed to the broker that leads", "relay.connections", |s| s.connections.into()),
    counters("connections_relayed", Count, "Connections for the broker that leads, by whether they could be relayed", "outcome", &[
        ("relayed", "relay.relayed", |s| s.relayed.into()),
        ("failed", "relay.failed", |s| s.failed.into()),
    ]),
    counters("relayed_bytes", Bytes, "Bytes of relayed connections, from peers and to them", "direction", &[
        ("in", "relay.received_bytes", |s| s.bytes_in.into()),
        ("out", "relay.sent_bytes", |s| s.bytes_out.into()),
    ]),
];

/// Of a cell, as this member sees it.
#[rustfmt::skip]
pub static CELL: &[Figure<CellFigures>] = &[
    gauge("cell_leading", Flag, "1 while this broker leads", "", |s| (s.role == Some(Role::Leading)).into()),
    gauge("cell_epoch", Count, "The current term: one more each time that a broker takes the lead", "", |s| s.leader.as_ref().map_or(0, |(epoch, _)| *epoch).into()),
    gauge("cell_members", Count, "Members that are there", "", |s| s.members.iter().filter(|member| member.is_there).count().into()),
    gauge("cell_behind_messages", Count, "Messages of the log that this broker hasn't read", "", |s| s.behind.into()),
    gauge("cell_queue_bytes", Bytes, "Bytes of the stream in NATS", "", |s| s.nats.stream.bytes.into()),
    gauge("cell_queue_limit_bytes", Bytes, "Limit of the stream in NATS", "", |s| s.nats.stream.bytes_max.into()),
    gauge("cell_replicas_current", Count, "Replicas of the stream that are current", "", |s| s.nats.current().into()),
    gauge("cell_replicas", Count, "Replicas that the stream should have", "", |s| s.nats.stream.replicas.into()),
];

/// Of each member of a cell, as this one sees it.
#[rustfmt::skip]
pub static MEMBER: &[Figure<MemberFigures>] = &[
    gauge("cell_member_up", Flag, "1 while the member is there", "", |s| s.is_there.into()),
    gauge("cell_member_behind_messages", Count, "Messages of the log that the member hasn't read", "", |s| s.behind.into()),
    gauge("cell_member_skew_seconds", Seconds, "Clock of the member less the one of this machine", "", |s| (s.skew_ms as f64 / 1000.0).into()),
];

/// Of a service, with `?per=service`.
#[rustfmt::skip]
pub static SERVICE: &[Figure<ServiceInfo>] = &[
    gauge("service_requests_waiting", Count, "Requests of the service that wait for a worker", "", |s| s.waiting.into()),
    gauge("service_waiting_bytes", Bytes, "Memory of requests of the service that wait for a worker", "", |s| s.waiting_bytes.into()),
    gauge("service_memory_bytes", Bytes, "Memory of all requests of the service, and of their outcomes", "", |s| s.bytes.into()),
    gauge("service_requests_held", Count, "Requests of the service without a confirmed outcome", "", |s| s.live.into()),
    gauge("service_workers", Count, "Workers of the service", "", |s| s.workers.into()),
];

#[cfg(test)]
mod tests;
