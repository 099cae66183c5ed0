//! A broker as its operator sees it.

use super::cell::cell_json;
use super::{List, Refusal, View, add_name, add_principal, extend, gone_json, peer_json};
use crate::admin::figures::{self, Queues, Snapshot};
use crate::admin::history::Sample;
use crate::admin::problems::{self, Found};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use towpath_broker::core::{
    Kind, LetterAction, LetterInfo, LetterState, Millis, NotDone, NotEnded, RequestKey, RestartCost, ServiceInfo,
};
use towpath_broker::server::{Handle, Operator, OperatorError};
use towpath_broker::{
    Concerns, JournalFigures, LISTED_MAX, PeerStats, Questions, Role, Stats, WorkerStats, listed_name, queue_json,
    request_json, seconds, spool_json, worker_json,
};
use towpath_requests::{Body, shown};
use towpath_sockets::{PAGE_MAX, Page, PeerId, Wanted};

/// Services with a label of their own in the metrics, those with the longest queues; the others are one.
const LABELLED_SERVICES_MAX: usize = 500;

/// Bytes of a dead letter in one reply.
/// In base64 it fits a message of NATS, which takes it from the leader of a cell to a standby.
const PART_BYTES: usize = 1 << 19;

/// Name of the others.
const OTHER_SERVICES: &str = "_other";

/// Services and workers that are listed as never ending.
const LEFT_NEVER_MAX: usize = 100;

/// A broker.
pub struct BrokerView {
    /// Of the broker.
    pub handle: Handle,
    /// Of the same.
    pub operator: Operator,
    /// The road to the leader of its cell, if it is in one.
    pub questions: Option<Questions>,
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
        let mut figures = Snapshot::default();
        figures.add(figures::HUB, &stats.hub);
        figures.add(figures::BROKER, &stats);
        if stats.cell.is_some() {
            figures.add(figures::RELAY, &stats.hub.relay);
        }
        let own = json!({
            "journal": match (stats.is_journalled, stats.has_storage_failed) {
                (false, _) => None,
                (true, false) => Some("ok"),
                (true, true) => Some("failed"),
            },
            "cell": stats.cell.as_ref().map(cell_json),
            "paused": stats.paused.iter().map(|name| listed_name(name)).collect::<Vec<_>>(),
            "spool": spool_json(&stats.spool),
            "restart": restart(&stats),
        });
        let mut sums = extend(figures.json(), own);
        if let Some((journal, _)) = &stats.journal {
            figures.add(figures::JOURNAL, journal);
        }
        sums["should_be_zero"] = figures.should_be_zero();
        Ok(sums)
    }

    fn trouble(&self) -> Result<Option<&'static str>, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let troubles = [
            (stats.has_storage_failed, "the journal can't be written"),
            (stats.cell.is_some_and(|cell| cell.role != Some(Role::Leading)), "another broker of the cell leads"),
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
                Ok(services.flat_map(|service| is_listed(&service).then(|| of_service(&service, now))))
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

    fn figures(&self, to: &mut Snapshot, per_service: bool) -> Result<(), Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let services = self.services()?;
        to.add(figures::HUB, &stats.hub);
        to.add(figures::BROKER, &stats);
        if stats.cell.is_some() {
            to.add(figures::RELAY, &stats.hub.relay);
        }
        let oldest = services.iter().filter_map(|service| service.oldest_since).min();
        let queues =
            Queues { waiting: stats.waiting, oldest_seconds: oldest.map_or(0.0, |since| seconds(since, stats.now)) };
        to.add(figures::QUEUES, &queues);
        if let Some((journal, _)) = &stats.journal {
            to.add(figures::JOURNAL, journal);
        }
        if let Some(cell) = &stats.cell {
            to.add(figures::CELL, cell);
            for member in &cell.members {
                to.add_labelled(figures::MEMBER, &[("member", &member.endpoint)], member);
            }
        }
        if per_service {
            add_services(to, services);
        }
        Ok(())
    }

    fn problems(&self) -> Result<Vec<Found>, Refusal> {
        let concerns = self.operator.look().ok_or(Refusal::NoAnswer)?;
        Ok(problems::of_broker(&self.stats(Wanted::Sums)?, &concerns))
    }

    fn sample(&self, is_long: bool) -> Result<Sample, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let counters = &stats.counters;
        let totals = [
            ("requests_in", counters.accepted),
            ("requests_out", counters.replied),
            ("requests_failed", counters.failed),
            ("waiting", stats.waiting as u64),
            ("requests", stats.requests as u64),
            ("received_bytes", stats.hub.traffic.bytes_in),
            ("sent_bytes", stats.hub.traffic.bytes_out),
            ("peers", stats.hub.peers as u64),
            ("workers", stats.worker_count as u64),
        ];
        let of_service = |service: ServiceInfo| {
            let counters = service.counters;
            let values = [counters.accepted, counters.replied, counters.failed, service.waiting as u64];
            (service.name.to_vec(), values.map(|value| value as f64))
        };
        let services = is_long.then(|| self.services()).transpose()?;
        Ok(Sample {
            totals: totals.map(|(name, value)| (name, value as f64)).to_vec(),
            things: services.map(|services| services.into_iter().map(of_service).collect()),
        })
    }

    fn service(&self, service: &[u8]) -> Result<Option<Value>, Refusal> {
        let service = self.operator.service(service).ok_or(Refusal::NoAnswer)?;
        let service = service.filter(|service| is_listed(&service.info));
        Ok(service.map(|of| extend(of_service(&of.info, of.now), json!({ "clients": of.clients }))))
    }

    fn pause(&self, service: &[u8], paused: bool) -> Result<(), Refusal> {
        self.operator.pause(service, paused).map_err(refusal)
    }

    fn purge(&self, service: &[u8], expected: Option<usize>) -> Result<usize, Refusal> {
        self.operator.purge(service, expected).map_err(refusal)
    }

    fn requests(&self, service: &[u8], from: u32) -> Result<Page<Value>, Refusal> {
        let (page, now) = self.operator.list_requests(service, from).ok_or(Refusal::NoAnswer)?;
        Ok(page.flat_map(|request| [request_json(&request, now)]))
    }

    fn end_request(&self, service: &[u8], request: RequestKey) -> Result<(), Refusal> {
        self.operator.end_request(service, request).map_err(refusal)
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

    fn act_on_letter(&self, service: &[u8], id: u64, action: LetterAction) -> Result<(), Refusal> {
        self.operator.letter(service, id, action).map_err(refusal)
    }

    fn letter_part(&self, service: &[u8], id: u64, offset: u64) -> Result<Value, Refusal> {
        let body = self.operator.letter_body(service, id).map_err(refusal)?;
        let part = part_of(&body, offset).map_err(|error| Refusal::Conflict(format!("its body: {error}")))?;
        let next = offset.saturating_add(part.len() as u64);
        Ok(json!({
            "id": id,
            "bytes": body.length(),
            "part_b64": STANDARD.encode(&part),
            "next": (next < body.length() && !part.is_empty()).then_some(next),
        }))
    }

    fn journal(&self) -> Result<Value, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let journal = stats.journal.map(|(figures, failure)| of_journal(&figures, failure, stats.has_storage_failed));
        Ok(json!({ "journal": journal, "spool": spool_json(&stats.spool) }))
    }

    fn left_never(&self) -> Result<Vec<Value>, Refusal> {
        Ok(left_never(&self.operator.look().ok_or(Refusal::NoAnswer)?))
    }

    fn drain(&self, on: bool) -> Result<(), Refusal> {
        self.operator.drain(on).map_err(refusal)
    }

    fn questions(&self) -> Option<Questions> {
        self.questions.clone()
    }

    fn end_blocked(&self) -> Option<usize> {
        self.handle.end_blocked()
    }

    fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.handle.disconnect(peer, reason)
    }
}

/// Consequences of a restart at once.
fn restart(stats: &Stats) -> Value {
    let RestartCost { stock, away, again } = stats.restart;
    let mut why = Vec::new();
    if stats.has_storage_failed {
        why.push(
            "the journal can't be written: what isn't on the disk yet would be lost, or executed again".to_owned(),
        );
    }
    if stock > 0 {
        why.push(format!("{stock} of stock clients, which don't ask again"));
    }
    if away > 0 {
        why.push(format!("{away} of clients that are away, in no journal"));
    }
    if again > 0 {
        why.push(format!("{again} with workers"));
    }
    let safe = why.is_empty();
    match (stats.requests, stats.is_journalled) {
        _ if !safe => {}
        (0, _) => why.push("nothing is held".to_owned()),
        (_, true) => why.push("what is held is in the journal, or its clients ask again".to_owned()),
        (_, false) => why.push("the clients of all that is held ask again".to_owned()),
    }
    json!({ "safe": safe, "lost": stock + away, "again": again, "why": why.join("; ") })
}

/// Work of a drained broker that never ends by itself, the most first.
fn left_never(concerns: &Concerns) -> Vec<Value> {
    let mut left: Vec<(usize, Value)> = Vec::new();
    let mut add = |service: &[u8], kind: &str, count: usize, peer: Option<String>, reason: String| {
        let mut entry = json!({ "kind": kind, "count": count, "peer": peer, "reason": reason });
        add_name(&mut entry, "service", service);
        left.push((count, entry));
    };
    for service in concerns.services.iter().filter(|service| is_listed(service)) {
        match (service.name.strip_prefix(b"dlq."), service.workers) {
            (Some(name), _) if service.letters > 0 => {
                let reason = "dead letters stay until they are requeued or dropped";
                add(name, "dead_letters", service.letters, None, reason.to_owned());
            }
            (None, _) if service.is_paused => {
                add(&service.name, "paused", service.waiting, None, "the service is paused".to_owned());
            }
            (None, 0) => add(&service.name, "no_worker", service.waiting, None, "no worker serves it".to_owned()),
            _ => {}
        }
    }
    for (worker, why) in problems::stuck_workers(concerns) {
        let (count, peer) = (worker.worker.held, worker.id.map(|id| id.to_string()));
        add(&worker.worker.service, "worker_hangs", count, peer, why);
    }
    left.retain(|(count, _)| *count > 0);
    left.sort_by_key(|(count, _)| Reverse(*count));
    left.truncate(LEFT_NEVER_MAX);
    left.into_iter().map(|(_, entry)| entry).collect()
}

/// A service, with what `mmi.queue` doesn't have.
fn of_service(service: &ServiceInfo, now: Millis) -> Value {
    let counters = &service.counters;
    let own = json!({
        "median_seconds": service.median_ms.map(|median| seconds(0, median)),
        "accepted": counters.accepted,
        "replied": counters.replied,
        "failed": counters.failed,
        "in_flight": service.in_flight,
        "dead_letters": service.letters,
    });
    extend(queue_json(service, now), own)
}

/// The dead letters of a service, if it is a dead-letter queue that has some.
fn of_letters(queue: &ServiceInfo, now: Millis) -> Option<Value> {
    let service = queue.name.strip_prefix(b"dlq.").filter(|_| queue.letters > 0)?;
    let mut listed = json!({
        "letters": queue.letters,
        "workers": queue.workers,
        "oldest_seconds": queue.letters_since.map(|since| seconds_since(since, now)),
    });
    add_name(&mut listed, "service", service);
    Some(listed)
}

fn of_letter(letter: &LetterInfo, now: Millis) -> Value {
    json!({
        "id": letter.id,
        "bytes": letter.bytes,
        "first_b64": letter.first.as_ref().map(|first| STANDARD.encode(first)),
        "kept_seconds": seconds_since(letter.details.kept, now),
        "state": match letter.state {
            LetterState::Waiting => "waiting",
            LetterState::Worker => "worker",
            LetterState::Failed => "failed",
        },
        "number": letter.number,
        "attempts": letter.details.attempts,
        "reason": known(&letter.details.reason),
        "client": known(&letter.details.client),
        "worker": known(&letter.details.worker),
    })
}

/// A text about a dead letter; null if it is empty.
fn known(text: &[u8]) -> Option<Cow<'_, str>> {
    (!text.is_empty()).then(|| String::from_utf8_lossy(text))
}

/// Seconds since a moment that may be before the broker's start.
fn seconds_since(since: i64, now: Millis) -> f64 {
    i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(since).max(0) as f64 / 1000.0
}

/// Some bytes of a body, from an offset on: of all its frames one after the other. None at the end.
fn part_of(body: &Body, offset: u64) -> io::Result<Vec<u8>> {
    if let Some(large) = body.as_large() {
        let mut part = vec![0; PART_BYTES];
        let length = large.read_at(&mut part, offset)?;
        part.truncate(length);
        return Ok(part);
    }
    let (mut part, mut skip) = (Vec::new(), usize::try_from(offset).unwrap_or(usize::MAX));
    for frame in body.frames().into_iter().flatten() {
        let rest = frame.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(frame.len());
        part.extend_from_slice(&rest[..rest.len().min(PART_BYTES - part.len())]);
    }
    Ok(part)
}

fn of_journal(journal: &JournalFigures, failure: Option<String>, has_failed: bool) -> Value {
    let state = if has_failed { "failed" } else { "ok" };
    extend(figures::json(figures::JOURNAL, journal), json!({ "state": state, "error": failure }))
}

fn refusal(error: OperatorError) -> Refusal {
    match error {
        OperatorError::NoAnswer => Refusal::NoAnswer,
        OperatorError::NotEnded(NotEnded::Gone) | OperatorError::NotDone(NotDone::Gone) => {
            Refusal::NotFound(error.to_string())
        }
        error => Refusal::Conflict(error.to_string()),
    }
}

/// Adds the figures of each of the longest queues, and of all others together.
fn add_services(to: &mut Snapshot, mut services: Vec<ServiceInfo>) {
    services.sort_by_key(|service| Reverse(service.waiting));
    let mut labelled: BTreeMap<String, ServiceInfo> = BTreeMap::new();
    for (n, service) in services.into_iter().enumerate() {
        let label =
            if n < LABELLED_SERVICES_MAX { shown(&service.name).into_owned() } else { OTHER_SERVICES.to_owned() };
        match labelled.get_mut(&label) {
            // Names that aren't UTF-8 may look alike.
            Some(sum) => {
                sum.waiting += service.waiting;
                sum.waiting_bytes += service.waiting_bytes;
                sum.bytes += service.bytes;
                sum.live += service.live;
                sum.workers += service.workers;
            }
            None => _ = labelled.insert(label, service),
        }
    }
    for (label, service) in &labelled {
        to.add_labelled(figures::SERVICE, &[("service", label)], service);
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
    let failed = worker.worker.failed_in_a_row;
    let more = json!({ "peer": peer, "protocol": protocol, "failed_in_a_row": failed });
    let mut worker_of = extend(worker_json(worker, now), more);
    add_principal(&mut worker_of, &worker.principal);
    worker_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn services_beyond_the_longest_queues_are_one() {
        let service = |n: usize| ServiceInfo {
            name: format!("s{n}").into(),
            waiting: n,
            waiting_bytes: 10,
            bytes: 100,
            waiting_large_bytes: 0,
            live: 1,
            workers: 2,
            oldest_since: None,
            is_paused: false,
            letters: 0,
            letters_since: None,
            usual_ms: None,
            median_ms: None,
            counters: Default::default(),
            in_flight: 0,
        };
        let waiting = |count: usize| {
            let mut figures = Snapshot::default();
            add_services(&mut figures, (1..=count).map(service).collect());
            let waiting = figures.samples.iter().filter(|sample| sample.about.name == "service_requests_waiting");
            let waiting: Vec<_> = waiting.map(|sample| (&*sample.labels[0].1, sample.value.whole())).collect();
            let of = |name: &str| waiting.iter().find(|(label, _)| *label == name).map(|(_, value)| *value);
            (waiting.len(), of("s1"), of("s3"), of(OTHER_SERVICES))
        };
        assert_eq!(waiting(500), (500, Some(1), Some(3), None));
        assert_eq!(waiting(502), (501, None, Some(3), Some(3)));
    }

    #[test]
    fn parts_of_a_body_are_all_of_its_frames() {
        let frames = [vec![1; 3], Vec::new(), vec![2; PART_BYTES], vec![3; 5]].map(Bytes::from);
        let body = Body::of_frames(frames.clone());
        let (mut whole, mut parts) = (Vec::<u8>::new(), 0);
        loop {
            let part = part_of(&body, whole.len() as u64).unwrap();
            if part.is_empty() {
                break;
            }
            whole.extend(part);
            parts += 1;
        }
        assert_eq!((parts, whole), (2, frames.concat()));
        assert!(part_of(&body, u64::MAX).unwrap().is_empty() && part_of(&Body::default(), 0).unwrap().is_empty());
    }
}
