//! A broker as its operator sees it.

use super::{List, Refusal, View, add_name, extend, gone_json, hub_json, peer_json};
use crate::admin::metrics::{self, label};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::cmp::Reverse;
use towpath_broker::core::{Counters, Kind, LetterAction, LetterInfo, LetterState, Millis, ServiceInfo};
use towpath_broker::server::{Handle, Operator, OperatorError};
use towpath_broker::{
    JournalFigures, LISTED_MAX, PeerStats, Stats, WorkerStats, listed_name, queue_json, seconds, spool_json,
    worker_json,
};
use towpath_requests::shown;
use towpath_sockets::{PAGE_MAX, Page, PeerId, Wanted};

/// Services with a label of their own in the metrics, those with the longest queues; the others are one.
const LABELLED_SERVICES_MAX: usize = 500;

/// Name of the others.
const OTHER_SERVICES: &str = "_other";

/// A broker.
pub struct BrokerView {
    /// Of the broker.
    pub handle: Handle,
    /// Of the same.
    pub operator: Operator,
}

impl BrokerView {
    fn stats(&self, wanted: Wanted) -> Result<Stats, Refusal> {
        self.handle.snapshot(wanted).ok_or(Refusal::NoAnswer)
    }

    /// All services, but for the built-in ones; some of them if there are very many.
    fn services(&self) -> Result<Vec<ServiceInfo>, Refusal> {
        let (mut services, mut next) = (Vec::new(), Some(0));
        for _ in 0..LISTED_MAX.div_ceil(PAGE_MAX) {
            let Some(from) = next else { break };
            let page = self.stats(Wanted::Services(from))?.services;
            services.extend(page.entries.into_iter().map(|(_, service)| service).filter(is_listed));
            next = page.next;
        }
        Ok(services)
    }
}

/// Built-in services aren't listed, as in `mmi.queue`.
fn is_listed(service: &ServiceInfo) -> bool {
    !service.name.starts_with(b"mmi.")
}

impl View for BrokerView {
    fn sums(&self) -> Result<Value, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let own = json!({
            "requests": stats.requests,
            "memory_bytes": stats.bytes,
            "outcomes": stats.outcomes.0,
            "outcome_bytes": stats.outcomes.1,
            "full": stats.is_full,
            "memory_bytes_max": stats.bytes_max,
            "services": stats.service_count,
            "workers": stats.worker_count,
            "journal": match (stats.is_journalled, stats.has_storage_failed) {
                (false, _) => None,
                (true, false) => Some("ok"),
                (true, true) => Some("failed"),
            },
            "draining": stats.is_draining,
            "left": stats.left,
            "dead_letters": stats.dead_letters,
            "paused": stats.paused.iter().map(|name| listed_name(name)).collect::<Vec<_>>(),
            "counters": counters_json(&stats.counters),
            "spool": spool_json(&stats.spool),
        });
        Ok(extend(hub_json(&stats.hub), own))
    }

    fn trouble(&self) -> Result<Option<&'static str>, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let troubles = [
            (stats.has_storage_failed, "the journal can't be written"),
            (stats.is_draining, "draining"),
            (stats.is_full, "new requests are refused: the broker has all that it can hold"),
        ];
        Ok(troubles.into_iter().find(|(is_so, _)| *is_so).map(|(_, trouble)| trouble))
    }

    fn page(&self, list: List, from: u32) -> Result<Page<Value>, Refusal> {
        match list {
            List::Peers => Ok(self.stats(Wanted::Peers(from))?.peers.flat_map(|peer| [of_peer(&peer)])),
            List::Gone => Ok(self.stats(Wanted::Gone(from))?.gone.flat_map(|gone| [gone_json(&gone)])),
            List::Services => {
                let Stats { services, now, .. } = self.stats(Wanted::Services(from))?;
                Ok(services.flat_map(|service| is_listed(&service).then(|| queue_json(&service, now))))
            }
            List::DeadLetters => {
                let Stats { services, now, .. } = self.stats(Wanted::Services(from))?;
                Ok(services.flat_map(|service| of_letters(&service, now)))
            }
            List::Workers => {
                let Stats { workers, now, .. } = self.stats(Wanted::Workers(from))?;
                Ok(workers.flat_map(|worker| [of_worker(&worker, now)]))
            }
            List::Transfers | List::Followers | List::Versions | List::Failures => Err(Refusal::NoList),
        }
    }

    fn register(&self, registry: &mut Registry, per_service: bool) -> Result<(), Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let services = self.services()?;
        metrics::of_hub(registry, &stats.hub);
        let Counters { accepted, duplicates, refused, dispatched, requeued, replied, failed, .. } = stats.counters;
        let Counters { late_replies, lost_parts, given_up, dead_letters, purged, outcomes_dropped, .. } =
            stats.counters;
        let outcomes = [("accepted", accepted), ("duplicate", duplicates), ("refused", refused)];
        metrics::counters(registry, "requests", "Requests of clients", "outcome", outcomes);
        let outcomes = [("replied", replied), ("failed", failed), ("given_up", given_up), ("purged", purged)];
        metrics::counters(registry, "requests_ended", "Requests that ended", "outcome", outcomes);
        for (name, help, value) in [
            ("requests_dispatched", "Attempts: requests given to workers", dispatched),
            ("requests_requeued", "Requests that workers went with or returned", requeued),
            ("replies_late", "Replies to requests that had ended", late_replies),
            ("reply_parts_lost", "Parts of replies whose client was absent", lost_parts),
            ("dead_letters", "Requests kept as dead letters", dead_letters),
            ("outcomes_dropped", "Outcomes dropped, as their client was absent", outcomes_dropped),
        ] {
            metrics::counter(registry, name, help, value);
        }
        let waiting: usize = services.iter().map(|service| service.waiting).sum();
        for (name, help, value) in [
            ("requests_held", "Requests without a confirmed outcome", stats.requests as u64),
            ("requests_waiting", "Requests that wait for a worker", waiting as u64),
            ("memory_bytes", "Memory of requests and replies", stats.bytes as u64),
            ("outcomes_held", "Outcomes that nobody has confirmed", stats.outcomes.0 as u64),
            ("outcomes_bytes", "Memory of these", stats.outcomes.1 as u64),
            ("full", "1 while requests of all are refused for want of room", u64::from(stats.is_full)),
            ("memory_limit_bytes", "Limit of this memory", stats.bytes_max as u64),
            ("spool_bytes", "Large bodies on the disk", stats.spool.bytes),
            ("spool_limit_bytes", "Limit of these", stats.spool.bytes_max),
            ("services", "Services with workers or requests", stats.service_count as u64),
            ("workers", "Workers", stats.worker_count as u64),
            ("services_paused", "Services that an operator has paused", stats.paused.len() as u64),
            ("journal_failed", "1 while the journal can't be written", u64::from(stats.has_storage_failed)),
            ("dead_letters_held", "Dead letters that are here", stats.dead_letters as u64),
            ("draining", "1 while no more requests are taken", u64::from(stats.is_draining)),
            (
                "requests_left",
                "Requests without an outcome, not counting dead letters in their queue",
                stats.left as u64,
            ),
        ] {
            metrics::gauge(registry, name, help, value);
        }
        let oldest = services.iter().filter_map(|service| service.oldest_since).min();
        let age = oldest.map_or(0.0, |since| seconds(since, stats.now));
        metrics::gauge_f64(
            registry,
            "oldest_waiting_seconds",
            "Since the oldest request that waits for a worker was taken",
            age,
        );
        if let Some((figures, _)) = &stats.journal {
            register_journal(registry, figures);
        }
        if per_service {
            register_services(registry, services);
        }
        Ok(())
    }

    fn pause(&self, service: &[u8], paused: bool) -> Result<(), Refusal> {
        self.operator.pause(service, paused).map_err(refusal)
    }

    fn purge(&self, service: &[u8], expected: Option<usize>) -> Result<usize, Refusal> {
        self.operator.purge(service, expected).map_err(refusal)
    }

    fn drop_outcomes(&self) -> Result<usize, Refusal> {
        self.operator.drop_outcomes().map_err(refusal)
    }

    fn letters(&self, service: &[u8], from: u32) -> Result<Page<Value>, Refusal> {
        let (page, now) = self.operator.list_letters(service, from).ok_or(Refusal::NoAnswer)?;
        Ok(page.flat_map(|letter| [of_letter(&letter, now)]))
    }

    fn act_on_letters(&self, service: &[u8], action: LetterAction, expected: usize) -> Result<usize, Refusal> {
        self.operator.letters(service, action, expected).map_err(refusal)
    }

    fn journal(&self) -> Result<Value, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let journal = stats.journal.map(|(figures, failure)| of_journal(&figures, failure, stats.has_storage_failed));
        Ok(json!({ "journal": journal, "spool": spool_json(&stats.spool) }))
    }

    fn drain(&self, on: bool) -> Result<(), Refusal> {
        self.operator.drain(on).map_err(refusal)
    }

    fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.handle.disconnect(peer, reason)
    }
}

/// The dead letters of a service, if it is a dead-letter queue that has some.
fn of_letters(queue: &ServiceInfo, now: Millis) -> Option<Value> {
    let service = queue.name.strip_prefix(b"dlq.").filter(|_| queue.letters > 0)?;
    let mut listed = json!({
        "letters": queue.letters,
        "workers": queue.workers,
        "oldest_seconds": queue.letters_since.map(|since| seconds(since, now)),
    });
    add_name(&mut listed, "service", service);
    Some(listed)
}

fn of_letter(letter: &LetterInfo, now: Millis) -> Value {
    json!({
        "id": letter.id,
        "bytes": letter.bytes,
        "kept_seconds": seconds(letter.since, now),
        "state": match letter.state {
            LetterState::Waiting => "waiting",
            LetterState::Worker => "worker",
            LetterState::Failed => "failed",
        },
        "attempts": letter.attempts,
    })
}

fn of_journal(figures: &JournalFigures, failure: Option<String>, has_failed: bool) -> Value {
    let JournalFigures { segments, log_bytes, needed_bytes, requests, commits, written_bytes, .. } = *figures;
    let JournalFigures { pending_bytes, writing, sync_sum, sync_last, sync_max, errors, .. } = *figures;
    json!({
        "state": if has_failed { "failed" } else { "ok" },
        "error": failure,
        "errors": errors,
        "segments": segments,
        "bytes": log_bytes,
        "needed_bytes": needed_bytes,
        "requests": requests,
        "pending_bytes": pending_bytes,
        "writing_seconds": writing.as_secs_f64(),
        "syncs": commits,
        "sync_seconds": sync_sum.as_secs_f64(),
        "sync_seconds_last": sync_last.as_secs_f64(),
        "sync_seconds_max": sync_max.as_secs_f64(),
        "written_bytes": written_bytes,
    })
}

fn refusal(error: OperatorError) -> Refusal {
    match error {
        OperatorError::NoAnswer => Refusal::NoAnswer,
        error => Refusal::Conflict(error.to_string()),
    }
}

fn register_journal(registry: &mut Registry, figures: &JournalFigures) {
    for (name, help, value) in [
        ("journal_bytes", "Bytes of the journal's files", figures.log_bytes),
        ("journal_segments", "Files of the journal", figures.segments),
        ("journal_pending_bytes", "Bytes that wait for the disk", figures.pending_bytes),
    ] {
        metrics::gauge(registry, name, help, value);
    }
    let (sum, max) = (figures.sync_sum.as_secs_f64(), figures.sync_max.as_secs_f64());
    metrics::gauge_f64(registry, "journal_sync_seconds_max", "The longest write until it was on the disk", max);
    let writing = figures.writing.as_secs_f64();
    metrics::gauge_f64(registry, "journal_writing_seconds", "For how long the write that goes on now has", writing);
    metrics::counter_f64(registry, "journal_sync_seconds", "Time of writes until they were on the disk", sum);
    metrics::counter(registry, "journal_syncs", "Writes that are on the disk", figures.commits);
    metrics::counter(registry, "journal_errors", "Writes of the journal that failed", figures.errors);
}

/// Adds the metrics of each of the longest queues, and of all others together.
fn register_services(registry: &mut Registry, mut services: Vec<ServiceInfo>) {
    services.sort_by_key(|service| Reverse(service.waiting));
    let others = services.split_off(services.len().min(LABELLED_SERVICES_MAX));
    type Value = fn(&ServiceInfo) -> usize;
    let values: [(&str, &str, Value); 4] = [
        ("service_requests_waiting", "Requests that wait for a worker", |service| service.waiting),
        ("service_waiting_bytes", "Memory of these", |service| service.waiting_bytes),
        ("service_requests_held", "Requests without a confirmed outcome", |service| service.live),
        ("service_workers", "Workers", |service| service.workers),
    ];
    for (name, help, value) in values {
        let own = services.iter().map(|service| (label("service", shown(&service.name)), value(service) as i64));
        let sum = others.iter().map(value).sum::<usize>() as i64;
        let others = (!others.is_empty()).then(|| (label("service", OTHER_SERVICES), sum));
        metrics::gauges(registry, name, help, own.chain(others));
    }
}

fn of_peer(PeerStats { info, activity, .. }: &PeerStats) -> Value {
    let role = activity.has_role.then_some(if activity.worker.is_some() { "worker" } else { "client" });
    let mut peer = peer_json(info, activity.protocol.as_deref(), role);
    peer["requests"] = activity.requests.into();
    if let Some(worker) = &activity.worker {
        peer["requests"] = worker.held.into();
        peer["credit"] = worker.credit.into();
        add_name(&mut peer, "service", &worker.service);
    }
    peer
}

fn of_worker(worker: &WorkerStats, now: Millis) -> Value {
    let protocol = if worker.worker.kind == Kind::Numbered { "numbered" } else { "stock" };
    let peer = worker.id.map(|id| id.to_string());
    extend(worker_json(worker, now), json!({ "peer": peer, "protocol": protocol }))
}

fn counters_json(counters: &Counters) -> Value {
    let Counters { accepted, duplicates, refused, dispatched, requeued, replied, failed, .. } = *counters;
    let Counters { late_replies, lost_parts, given_up, dead_letters, purged, outcomes_dropped, .. } = *counters;
    json!({
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
        "purged": purged,
        "outcomes_dropped": outcomes_dropped,
        "dead_letters": dead_letters,
    })
}
