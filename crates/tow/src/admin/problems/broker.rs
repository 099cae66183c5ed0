//! Problems of a broker.

use super::cell::of_cell;
use super::process::nearly_full;
use super::{Found, Kind, Subject, number, time, verb};
use crate::cli::progress::human_bytes;
use serde_json::json;
use std::time::Duration;
use towpath_broker::core::{Millis, ServiceInfo, WorkerInfo};
use towpath_broker::{Concerns, Stats, WorkerStats};
use towpath_requests::is_built_in;

/// A worker that connects again is there within this time.
const NO_WORKER: Duration = Duration::from_secs(3);

/// Wait of the oldest request of a service that has workers.
const WAITING_LONG: Duration = Duration::from_secs(5 * 60);

/// Time that a worker may take in any case; as many times as long as usual; and if that isn't known.
const BUSY: Duration = Duration::from_secs(60);
const TIMES_USUAL: u64 = 10;
const BUSY_IF_UNKNOWN: Duration = Duration::from_secs(10 * 60);

/// Heartbeats that a worker may miss, and time that it may be silent in any case.
const HEARTBEATS: u32 = 3;
const SILENT: Duration = Duration::from_secs(5);

/// Failures in a row.
const FAILURES: u16 = 5;

/// Time of one write of the journal.
const SLOW_WRITE: Duration = Duration::from_secs(1);

/// Time since the last refusal.
const REFUSED: Duration = Duration::from_secs(30);

/// Problems of a broker.
pub fn of_broker(stats: &Stats, concerns: &Concerns) -> Vec<Found> {
    let mut found = Vec::new();
    found.extend(concerns.services.iter().filter_map(|service| of_service(service, concerns.now)));
    found.extend(concerns.workers.iter().flat_map(|worker| of_worker(worker, concerns)));
    found.extend(of_journal(stats));
    found.extend(stats.cell.iter().flat_map(|cell| of_cell(cell, stats.has_storage_failed)));
    found.extend(of_memory(stats, concerns));
    found
}

/// Workers that seem to hang, and why.
pub fn stuck_workers(concerns: &Concerns) -> impl Iterator<Item = (&WorkerStats, String)> {
    concerns.workers.iter().filter_map(|worker| {
        let stuck = |found: &Found| matches!(found.kind, Kind::WorkerBusy | Kind::WorkerSilent);
        Some((worker, of_worker(worker, concerns).into_iter().find(stuck)?.cause))
    })
}

fn since(then: Millis, now: Millis) -> Duration {
    Duration::from_millis(now.saturating_sub(then))
}

fn of_service(service: &ServiceInfo, now: Millis) -> Option<Found> {
    if let Some(name) = service.name.strip_prefix(b"dlq.") {
        let letters = service.letters as u64;
        let age = i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(service.letters_since?);
        let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
        return Some(Found {
            kind: Kind::DeadLetters,
            subject: Subject::Service(name.to_vec()),
            cause: format!(
                "{} {} kept, the oldest for {}",
                number(letters),
                verb(letters, "dead letter is", "dead letters are"),
                time(age)
            ),
            evidence: json!({ "letters": letters, "oldest_seconds": age.as_secs() }),
            age: Some(age),
            weight: letters,
        });
    }
    if is_built_in(&service.name) {
        return None;
    }
    let (waiting, workers) = (service.waiting as u64, service.workers as u64);
    let age = since(service.oldest_since?, now);
    let oldest = format!("{} {}, oldest {}", number(waiting), verb(waiting, "waits", "wait"), time(age));
    let (kind, cause) = match workers {
        _ if service.is_paused => (Kind::Paused, format!("paused; {oldest}")),
        0 if age > NO_WORKER => (Kind::NoWorker, format!("no worker; {oldest}")),
        1.. if age > WAITING_LONG => {
            (Kind::WaitingLong, format!("{oldest}; {} {}", number(workers), verb(workers, "worker", "workers")))
        }
        _ => return None,
    };
    Some(Found {
        kind,
        subject: Subject::Service(service.name.to_vec()),
        cause,
        evidence: json!({ "waiting": waiting, "oldest_seconds": age.as_secs(), "workers": workers }),
        age: Some(age),
        weight: waiting,
    })
}

fn of_worker(stats: &WorkerStats, concerns: &Concerns) -> Vec<Found> {
    let worker = &stats.worker;
    let peer = stats.id.map(|id| id.to_string());
    let subject = Subject::Worker { peer, service: worker.service.to_vec() };
    let busy = worker.oldest_since.map(|then| since(then, concerns.now));
    let mut found = Vec::new();
    if let Some(busy) = busy.filter(|busy| is_too_long(worker, *busy)) {
        let usual = worker.usual_ms.map(Duration::from_millis);
        let compared = usual.map_or("its service has answered nothing yet".to_owned(), |usual| {
            format!("usual is {}", if usual < Duration::from_secs(1) { "under 1 s".to_owned() } else { time(usual) })
        });
        found.push(Found {
            kind: Kind::WorkerBusy,
            subject: subject.clone(),
            cause: match worker.held {
                ..2 => format!("busy with one request for {}; {compared}", time(busy)),
                held => format!("it has {}, one for {}; {compared}", requests(held), time(busy)),
            },
            evidence: json!({
                "busy_seconds": busy.as_secs(),
                "usual_seconds": usual.map(|usual| usual.as_secs_f64()),
                "held": worker.held,
            }),
            age: Some(busy),
            weight: busy.as_secs(),
        });
    }
    let limit = (concerns.heartbeat * HEARTBEATS).max(SILENT);
    if let Some(silent) = stats.silent_for.filter(|silent| *silent > limit && busy.is_some() && answers_pings(worker)) {
        found.push(Found {
            kind: Kind::WorkerSilent,
            subject: subject.clone(),
            cause: format!("nothing has come from it for {}; it has {}", time(silent), requests(worker.held)),
            evidence: json!({ "silent_seconds": silent.as_secs(), "held": worker.held }),
            age: Some(silent),
            weight: silent.as_secs(),
        });
    }
    let gave_back = u16::from(worker.gave_back_in_a_row);
    if worker.failed_in_a_row.max(gave_back) >= FAILURES {
        let reason = worker.gave_back.as_deref().map(String::from_utf8_lossy);
        let cause = match reason.filter(|_| gave_back >= FAILURES) {
            Some(reason) => format!("it has given requests back {gave_back} times in a row: {reason}"),
            None => format!("its last {} requests failed, or expired while it had them", worker.failed_in_a_row),
        };
        found.push(Found {
            kind: Kind::WorkerFails,
            subject,
            cause,
            evidence: json!({ "failed_in_a_row": worker.failed_in_a_row, "gave_back_in_a_row": gave_back }),
            age: None,
            weight: worker.failed_in_a_row.max(gave_back).into(),
        });
    }
    found
}

/// Whether a worker has had a request for longer than is likely.
fn is_too_long(worker: &WorkerInfo, busy: Duration) -> bool {
    match worker.usual_ms {
        Some(usual) => busy > BUSY && busy > Duration::from_millis(usual.saturating_mul(TIMES_USUAL)),
        None => busy > BUSY_IF_UNKNOWN,
    }
}

/// A stock worker may be unable to say anything while it works.
fn answers_pings(worker: &WorkerInfo) -> bool {
    worker.kind == towpath_broker::core::Kind::Numbered
}

fn requests(count: usize) -> String {
    format!("{} {}", number(count as u64), verb(count as u64, "request", "requests"))
}

fn of_journal(stats: &Stats) -> Option<Found> {
    let (figures, failure) = stats.journal.as_ref()?;
    let of = |kind, cause, age: Option<Duration>| Found {
        kind,
        subject: Subject::Part("journal"),
        cause,
        evidence: json!({
            "pending_bytes": figures.pending_bytes,
            "writing_seconds": figures.writing.as_secs_f64(),
            "last_sync_seconds": figures.sync_last.as_secs_f64(),
        }),
        age,
        weight: 0,
    };
    if stats.has_storage_failed && stats.cell.is_none() {
        let why = failure.as_deref().unwrap_or("the log says why");
        return Some(of(Kind::JournalFailed, format!("it can't be written: {why}"), None));
    }
    let is_slow = figures.writing > SLOW_WRITE;
    is_slow.then(|| {
        let cause = format!(
            "a write has taken {} so far; the last one took {} ms",
            time(figures.writing),
            figures.sync_last.as_millis()
        );
        of(Kind::JournalSlow, cause, Some(figures.writing))
    })
}

fn of_memory(stats: &Stats, concerns: &Concerns) -> Vec<Found> {
    let mut found = Vec::new();
    let memory = format!("{} of {}", human_bytes(stats.bytes as u64), human_bytes(stats.bytes_max as u64));
    let largest = concerns.largest.as_ref();
    let most = largest
        .map(|most| format!("{}, has {} and {}", most.tenant, requests(most.requests), human_bytes(most.bytes as u64)));
    let evidence =
        json!({ "memory_bytes": stats.bytes, "memory_bytes_max": stats.bytes_max, "requests": stats.requests });
    if stats.is_full {
        let most = most.as_deref().map(|most| format!("; who has the most, {most}")).unwrap_or_default();
        found.push(Found {
            kind: Kind::Full,
            subject: Subject::Part("broker"),
            cause: format!("it has all the requests that it can hold ({}, {memory}){most}", requests(stats.requests)),
            evidence: evidence.clone(),
            age: None,
            weight: 0,
        });
    }
    if let Some(refusal) = concerns.refusal.as_ref().filter(|refusal| since(refusal.at, concerns.now) < REFUSED) {
        let who = refusal.tenant.as_ref().map_or("a client".to_owned(), |tenant| tenant.to_string());
        found.push(Found {
            kind: Kind::Refused,
            subject: Subject::Client(who),
            cause: format!("a request was refused: {}", refusal.reason),
            evidence: json!({ "refused": stats.counters.refused }),
            age: None,
            weight: 0,
        });
    }
    if let Some(most) = largest.filter(|most| most.bytes > stats.bytes_max / 2) {
        found.push(Found {
            kind: Kind::LargeClient,
            subject: Subject::Client(most.tenant.to_string()),
            cause: format!(
                "it has {} and {} of the {} for all",
                requests(most.requests),
                human_bytes(most.bytes as u64),
                human_bytes(stats.bytes_max as u64)
            ),
            evidence: json!({ "requests": most.requests, "bytes": most.bytes, "memory_bytes_max": stats.bytes_max }),
            age: None,
            weight: most.bytes as u64,
        });
    }
    let spool = &stats.spool;
    if !stats.is_full {
        found.extend(nearly_full("memory for requests", stats.bytes as u64, stats.bytes_max as u64, human_bytes));
    }
    // The rest is for replies.
    found.extend(nearly_full("spool for requests", spool.bytes, spool.request_bytes_max, human_bytes));
    found.extend(nearly_full("files of the spool", spool.files, spool.request_files_max, number));
    found
}
