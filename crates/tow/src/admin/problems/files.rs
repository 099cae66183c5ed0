//! Problems of a file server.

use super::{Found, Kind, Subject, number, time, verb};
use serde_json::json;
use std::time::Duration;
use towpath_files::server::{Stats, WatchStats};

/// How long a follower may lack a change.
const BEHIND: Duration = Duration::from_secs(5 * 60);

/// Paths that a cause names.
const NAMED_MAX: usize = 3;

/// A follower that lacks something.
#[derive(Clone, Debug)]
pub struct Follower {
    /// The id of its connection, if it is connected.
    pub peer: Option<String>,
    /// As it calls itself, or its address.
    pub name: String,
    /// The relay that it follows.
    pub via: Option<String>,
    /// Changes that it lacks, and for how long it has lacked the first of them.
    pub behind: (u64, Duration),
    /// The label of the newest version, if it is this that it lacks.
    pub version: Option<String>,
    /// How long ago it last said what it has.
    pub said: Option<Duration>,
}

/// Problems of a file server. `followers`: those that lack most.
pub fn of_files(stats: &Stats, watch: Option<&WatchStats>, followers: &[Follower]) -> Vec<Found> {
    let mut found: Vec<Found> = followers.iter().filter_map(of_follower).collect();
    found.extend(watch.into_iter().flat_map(of_watch));
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
    found
}

fn of_follower(follower: &Follower) -> Option<Found> {
    let (changes, age) = follower.behind;
    if changes == 0 || age <= BEHIND {
        return None;
    }
    let lacks = match &follower.version {
        Some(label) => format!("version {label}, for {}", time(age)),
        None => format!("{} {}, for {}", number(changes), verb(changes, "change", "changes"), time(age)),
    };
    let said = follower.said.map(|said| format!("; last report {} ago", time(said))).unwrap_or_default();
    let (kind, cause) = match (&follower.peer, &follower.via) {
        (Some(_), _) => (Kind::FollowerBehind, format!("it lacks {lacks}{said}")),
        (None, Some(relay)) => (Kind::FollowerBehind, format!("it lacks {lacks}, via {relay}{said}")),
        (None, None) => (Kind::FollowerGone, format!("it isn't connected, and lacks {lacks}{said}")),
    };
    Some(Found {
        kind,
        subject: Subject::Follower { peer: follower.peer.clone(), name: follower.name.clone() },
        cause,
        evidence: json!({
            "behind": changes,
            "behind_seconds": age.as_secs(),
            "said_seconds": follower.said.map(|said| said.as_secs()),
        }),
        age: Some(age),
        weight: age.as_secs(),
    })
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
