//! Problems of a file server.

use super::{Found, Kind, Subject, number, verb};
use serde_json::json;
use towpath_files::server::{Stats, WatchStats};

/// Paths that a cause names.
const NAMED_MAX: usize = 3;

/// Problems of a file server, but for those of its followers.
pub fn of_files(stats: &Stats, watch: Option<&WatchStats>) -> Vec<Found> {
    let mut found: Vec<Found> = watch.into_iter().flat_map(of_watch).collect();
    for pool in stats.pools.iter().filter(|pool| pool.hung > 0) {
        let hung = pool.hung as u64;
        found.push(Found {
            kind: Kind::ThreadsHang,
            subject: Subject::Part(pool.name.strip_prefix("tow-").unwrap_or(pool.name)),
            cause: format!(
                "{} {} in the system; {} jobs wait",
                number(hung),
                verb(hung, "thread hangs", "threads hang"),
                number(pool.waiting as u64)
            ),
            evidence: json!({ "hung": pool.hung, "running": pool.running, "waiting": pool.waiting }),
            age: None,
            weight: hung,
        });
    }
    if let Some(outage) = &stats.outage {
        found.push(Found {
            kind: Kind::SourceAway,
            subject: Subject::Part("source of the files"),
            cause: outage.reason.clone(),
            evidence: json!({}),
            age: Some(outage.age),
            weight: 0,
        });
    }
    if let Some(cache) = stats.cache.filter(|cache| cache.is_broken) {
        found.push(Found {
            kind: Kind::CacheBroken,
            subject: Subject::Part("cache"),
            cause: "its disk takes nothing".to_owned(),
            evidence: json!({ "bytes": cache.bytes, "bytes_max": cache.bytes_max, "bypassed": cache.bypassed }),
            age: None,
            weight: 0,
        });
    }
    found
}

fn of_watch(watch: &WatchStats) -> Vec<Found> {
    let mut found = Vec::new();
    let mut add = |kind, cause, evidence| {
        let subject = Subject::Part("published directory");
        found.push(Found { kind, subject, cause, evidence, age: None, weight: 0 });
    };
    if watch.is_full {
        add(Kind::CatalogueFull, "too many paths: the others aren't published".to_owned(), json!({}));
    }
    if let Some((count, reason)) = watch.held {
        let cause = format!("{} {} held: {reason}", number(count), verb(count, "deletion is", "deletions are"));
        add(Kind::HeldDeletions, cause, json!({ "held_deletions": count }));
    }
    if watch.unread > 0 {
        let count = watch.unread as u64;
        let cause = format!(
            "{} {} be read: {}",
            number(count),
            verb(count, "path can't", "paths can't"),
            first(&watch.unread_paths, watch.unread)
        );
        add(Kind::Unread, cause, json!({ "unread_count": count, "unread_paths": watch.unread_paths }));
    }
    if watch.is_blind {
        add(
            Kind::Unwatched,
            "some directories can't be watched: everything is read again every 30 s".to_owned(),
            json!({}),
        );
    }
    if watch.written > 0 {
        let count = watch.written as u64;
        let cause = format!(
            "{} {} written to all the time: {}",
            number(count),
            verb(count, "file is", "files are"),
            first(&watch.written_paths, watch.written)
        );
        add(Kind::AlwaysWritten, cause, json!({ "written_files": count, "written_paths": watch.written_paths }));
    }
    found
}

/// The first few of some paths.
fn first(paths: &[String], all: usize) -> String {
    let named = paths.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if all > NAMED_MAX { format!("{named} ...") } else { named }
}
