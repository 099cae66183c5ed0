//! Problems of followers.

use super::{Found, Kind, Subject, number, time, verb};
use crate::cli::escape::Line;
use serde_json::json;
use std::time::Duration;
use towpath_files::path::RelPath;

/// How long a follower may lack something, or one that is to be there may never have been.
const BEHIND: Duration = Duration::from_secs(5 * 60);

/// Time since the last report after which a follower is silent: one that is well reports every minute.
const SILENT: Duration = Duration::from_secs(3 * 60);

/// Followers that a cause names.
const NAMED_MAX: usize = 5;

/// Characters of an error in a list of followers.
const ERROR_CHARS_MAX: usize = 80;

/// Followers that fail or lack something.
#[derive(Clone, Debug, Default)]
pub struct Followers {
    /// Those with an error.
    pub failing: Vec<Person>,
    /// Those that lack something, and have no error.
    pub lacking: Vec<Lacking>,
    /// Names of those that are to be there, and have never been.
    pub never_seen: Vec<String>,
    /// For how long it has been known who is there.
    pub up: Duration,
    /// The newest versions that not all have.
    pub versions: Vec<Version>,
}

/// A follower.
#[derive(Clone, Debug, Default)]
pub struct Person {
    /// The id of its connection, if it is connected.
    pub peer: Option<String>,
    /// As it calls itself, or its address.
    pub name: String,
    /// The relay that it follows.
    pub via: Option<String>,
    /// Whether its connection has ended, and not because it was to.
    pub is_gone: bool,
    /// Its error, how many times it has failed in a row, and since when.
    pub error: Option<(String, u32, Duration)>,
    /// How long ago it last said something of itself.
    pub said: Option<Duration>,
    /// Why its transfers are slow, as `tow transfers` has it.
    pub waits_for: Option<&'static str>,
}

/// A follower that lacks something.
#[derive(Clone, Debug)]
pub struct Lacking {
    pub person: Person,
    /// Changes that it lacks.
    pub changes: u64,
    /// For how long it has lacked the first of them.
    pub age: Duration,
    /// The label of the newest version, if it is this that it lacks.
    pub version: Option<String>,
}

/// A version that not all have.
#[derive(Clone, Debug)]
pub struct Version {
    /// The path that it is of.
    pub of: RelPath,
    pub label: String,
    pub digest: String,
    /// How many have it, and how many are to have it.
    pub holding: usize,
    pub expected: usize,
    /// How many of the others have an error.
    pub failing: usize,
    /// For how long somebody has lacked it.
    pub age: Duration,
    /// Some of them: first those with an error, then those that are gone.
    pub lacking: Vec<Person>,
    /// Some that have never been seen.
    pub never_seen: Vec<String>,
}

/// The cause of a transfer's slowness, from its name in JSON, in a few words.
pub fn cause_of(waits_for: &str) -> &str {
    match waits_for {
        "client_rate" => "limits itself",
        "server_rate" => "server's --bwlimit",
        "frozen" => "client is frozen",
        "network" => "slow network",
        "send_buffer" => "our send buffer",
        "receive_buffer" => "its receive buffer",
        "client_disk" => "client's disk",
        "credit" => "no credit",
        "receiver" => "client reads slowly",
        "sender" => "client sends slowly",
        "disk" => "our disk",
        "hash" => "server hashes",
        "open_files" => "too many open files",
        "pool" => "no free thread",
        other => other,
    }
}

/// Problems of followers.
pub fn of_followers(followers: &Followers) -> Vec<Found> {
    let Followers { failing, lacking, never_seen, up, versions } = followers;
    let mut found: Vec<Found> = failing.iter().filter_map(of_failing).collect();
    found.extend(lacking.iter().filter_map(of_lacking));
    if *up > BEHIND {
        found.extend(never_seen.iter().map(|name| Found {
            kind: Kind::FollowerGone,
            subject: Subject::Follower { peer: None, name: name.clone() },
            cause: format!("it is to be there, and has not been since the server was started {} ago", time(*up)),
            evidence: json!({ "never_seen": true }),
            age: Some(*up),
            weight: up.as_secs(),
        }));
    }
    found.extend(versions.iter().filter_map(of_version));
    found
}

fn of_failing(person: &Person) -> Option<Found> {
    let (text, tries, age) = person.error.as_ref()?;
    let via = person.via.as_ref().map(|relay| format!(", via {relay}")).unwrap_or_default();
    let gone = if person.is_gone { "; it isn't connected" } else { "" };
    Some(Found {
        kind: Kind::FollowerFailing,
        subject: Subject::Follower { peer: person.peer.clone(), name: person.name.clone() },
        cause: format!("{}; {}, for {}{via}{gone}", Line(text), tries_of(*tries), time(*age)),
        evidence: json!({
            "error": text,
            "tries": tries,
            "error_seconds": age.as_secs(),
            "said_seconds": person.said.map(|said| said.as_secs()),
        }),
        age: Some(*age),
        weight: age.as_secs(),
    })
}

fn tries_of(tries: u32) -> String {
    format!("{} {}", number(tries.into()), verb(tries.into(), "try", "tries"))
}

fn of_lacking(lacking: &Lacking) -> Option<Found> {
    let Lacking { person, changes, age, version } = lacking;
    if *changes == 0 || *age <= BEHIND {
        return None;
    }
    let lacks = match version {
        Some(label) => format!("version {label}, for {}", time(*age)),
        None => format!("{} {}, for {}", number(*changes), verb(*changes, "change", "changes"), time(*age)),
    };
    let said = person.said.map(|said| format!("; last report {} ago", time(said))).unwrap_or_default();
    let slow =
        person.waits_for.map(|cause| format!("; its transfers are slow: {}", cause_of(cause))).unwrap_or_default();
    let (kind, cause) = match &person.via {
        _ if person.is_gone => (Kind::FollowerGone, format!("it isn't connected, and lacks {lacks}{said}")),
        None => (Kind::FollowerBehind, format!("it lacks {lacks}{slow}{said}")),
        Some(relay) => (Kind::FollowerBehind, format!("it lacks {lacks}, via {relay}{said}")),
    };
    Some(Found {
        kind,
        subject: Subject::Follower { peer: person.peer.clone(), name: person.name.clone() },
        cause,
        evidence: json!({
            "behind": changes,
            "behind_seconds": age.as_secs(),
            "said_seconds": person.said.map(|said| said.as_secs()),
        }),
        age: Some(*age),
        weight: age.as_secs(),
    })
}

/// One that fails is a problem at once, one that is only slow after a while.
fn of_version(version: &Version) -> Option<Found> {
    let Version { of, label, digest, holding, expected, failing, age, lacking, never_seen } = version;
    if *failing == 0 && *age <= BEHIND {
        return None;
    }
    let all = expected.saturating_sub(*holding);
    let named = lacking.iter().map(reason).chain(never_seen.iter().map(|name| format!("{}: never seen", Line(name))));
    let named: Vec<String> = named.take(NAMED_MAX).collect();
    let more = match all.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!("; and {} more", number(more as u64)),
    };
    Some(Found {
        kind: Kind::VersionMissing,
        subject: Subject::Versions(of.clone()),
        cause: format!(
            "{} of {} {} {label}; {}{more}",
            number(*holding as u64),
            number(*expected as u64),
            verb(*holding as u64, "has", "have"),
            named.join("; ")
        ),
        evidence: json!({
            "label": label,
            "version": digest,
            "holding": holding,
            "expected": expected,
            "lacking": lacking.iter().map(|person| &person.name).chain(never_seen).collect::<Vec<_>>(),
        }),
        age: None,
        weight: all as u64,
    })
}

/// A follower, and why it lacks something.
fn reason(person: &Person) -> String {
    let name = Line(&person.name).to_string();
    let silent =
        person.said.filter(|said| person.is_gone || *said > SILENT).map(|said| format!("silent {}", time(said)));
    let error = person.error.as_ref().map(|(text, tries, _)| {
        let mut short: String = text.chars().take(ERROR_CHARS_MAX).collect();
        if short.len() < text.len() {
            short.push_str("...");
        }
        format!("{}, {}", Line(&short), tries_of(*tries))
    });
    match (error, silent) {
        (Some(error), Some(silent)) => format!("{name}: {silent}, {error}"),
        (Some(why), None) | (None, Some(why)) => format!("{name}: {why}"),
        // Whether anything is on its way to it isn't known here: one that is stopped may still be connected.
        (None, None) => {
            let slow = person.waits_for.map(|cause| format!(" {},", cause_of(cause))).unwrap_or_default();
            match person.said {
                Some(said) => format!("{name}:{slow} last report {} ago", time(said)),
                None => format!("{name}:{slow} no report yet"),
            }
        }
    }
}
