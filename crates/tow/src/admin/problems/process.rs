//! Problems that any process may have.

use super::{Found, Kind, Subject, number};
use crate::cli::progress::human_bytes;
use serde_json::json;
use std::time::Duration;

/// Time since warnings were last suppressed.
const SUPPRESSED: Duration = Duration::from_secs(60);

/// State of the process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Open file descriptors, and the limit.
    pub descriptors: Option<(u64, u64)>,
    /// Bytes used on the disk of the state, of how many.
    pub disk: Option<(u64, u64)>,
    /// Warnings that were not logged lately.
    pub suppressed: Option<Suppressed>,
}

/// Warnings of one kind that were not logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// How long ago.
    pub ago: Duration,
    pub count: u64,
    /// The first of them.
    pub message: String,
}

/// Problems of the process.
pub fn of_process(process: &Process) -> Vec<Found> {
    let mut found = Vec::new();
    found.extend(process.descriptors.and_then(|(used, most)| nearly_full("file descriptors", used, most, number)));
    found.extend(process.disk.and_then(|(used, most)| nearly_full("disk of the state", used, most, human_bytes)));
    if let Some(Suppressed { count, message, .. }) = process.suppressed.as_ref().filter(|last| last.ago < SUPPRESSED) {
        found.push(Found {
            kind: Kind::LogSuppressed,
            subject: Subject::Part("log"),
            cause: format!("{} more warnings like this: {message}", number(*count)),
            evidence: json!({ "count": count }),
            age: None,
            weight: *count,
        });
    }
    found
}

/// A problem if over nine tenths of something are used.
pub fn nearly_full(what: &'static str, used: u64, most: u64, shown: impl Fn(u64) -> String) -> Option<Found> {
    let percent = u128::from(used) * 100 / u128::from(most).max(1);
    (most > 0 && u128::from(used) * 10 > u128::from(most) * 9).then(|| Found {
        kind: Kind::NearlyFull,
        subject: Subject::Part(what),
        cause: format!("{percent} % used: {} of {}", shown(used), shown(most)),
        evidence: json!({ "used": used, "max": most }),
        age: None,
        weight: percent as u64,
    })
}
