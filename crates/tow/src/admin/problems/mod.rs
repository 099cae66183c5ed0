//! A list of problems of a server at the moment, in words, from what is known of it. Pure: the time is an argument.
//!
//! Each problem is about the present, and is gone with its cause. What only happened is counted by the figures.

mod broker;
mod cell;
mod files;
mod followers;
mod mutes;
mod process;

pub use self::broker::{of_broker, stuck_workers};
pub use self::files::of_files;
pub use self::followers::{Followers, Lacking, Person, Version, cause_of, of_followers};
use self::mutes::Mutes;
pub use self::mutes::{MUTES_MAX, Mute};
pub use self::process::{Process, Suppressed, of_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use towpath_broker::add_name;
use towpath_files::path::{Escaped, RelPath};

/// Problems of one kind that are listed, the gravest first. All are counted.
const LISTED_MAX: usize = 20;

/// Problems whose beginnings are remembered.
const REMEMBERED_MAX: usize = 50_000;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something fails for users, or is about to.
    Critical,
    /// A person should look at it soon.
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        }
    }
}

macro_rules! kinds {
    ($($kind:ident $name:literal $severity:ident $means:literal $advice:literal)*) => {
        /// A kind of problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($kind),*
        }

        pub const ALL: &[Kind] = &[$(Kind::$kind),*];

        /// All kinds, in the order in which they are shown.
        pub static KINDS: &[About] = &[
            $(About { name: $name, severity: Severity::$severity, means: $means, advice: $advice }),*
        ];
    };
}

/// Texts about a kind.
#[derive(Debug)]
pub struct About {
    /// Its name in JSON and metrics.
    pub name: &'static str,
    pub severity: Severity,
    /// For the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the guide"))]
    means: &'static str,
    /// Advice, in which SERVICE and PEER stand for those that it is about.
    advice: &'static str,
}

// Name, severity, when there is such a problem, and what to do.
#[rustfmt::skip]
kinds! {
    NoWorker "no_worker" Critical
        "Requests of a service have waited for over 3 s, and it has no worker"
        "Start a worker: `tow work SERVICE`. If nobody needs the replies: `tow purge SERVICE`"
    JournalFailed "journal_failed" Critical
        "The journal can't be written: nothing is acknowledged"
        "Free space on its disk, or repair it; the broker tries again by itself. `tow journal` has the error"
    CellStopped "cell_stopped" Critical
        "Nothing can be appended to the log of a cell: NATS has no quorum, can't be reached or has no space, or the log isn't the one that was there"
        "The cause says which. `tow queue status` shows NATS. Once that is mended it goes on by itself"
    NoLeader "no_leader" Critical
        "No broker of a cell has led for over 10 s, though NATS answers"
        "The brokers' logs say why they don't lead. Start one, or put the stream back"
    QueueSettings "queue_settings" Critical
        "A setting of a cell's queue, or of a NATS server, may lose what was accepted"
        "Change it as the cause says. `tow queue check` lists all"
    BodiesAway "bodies_away" Critical
        "The directory or bucket of a cell's large bodies can't be used: requests over 16 MiB are refused"
        "Mount it again, or see why its disk hangs or the store doesn't answer; the broker goes on by itself"
    Full "full" Critical
        "The broker has all the requests that it can hold, and refuses new ones"
        "`tow services` shows what waits. Start workers, purge what nobody needs, or raise `--max-memory`"
    SourceAway "source_away" Critical
        "The server or bucket that files come from can't be used: nothing is served but what is in a cache"
        "The cause says why: start that server, or mend its network, the credentials or the bucket. It is tried every 2 s"
    CatalogueFull "catalogue_full" Critical
        "There are too many paths: the others aren't published"
        "Publish a smaller directory, or split it among several servers"
    WaitingLong "waiting_long" Warning
        "The oldest request of a service has waited for over 5 minutes, though it has workers"
        "`tow workers SERVICE` shows what they are busy with. Start more workers"
    WorkerBusy "worker_busy" Warning
        "A worker has had one request for over a minute, and over ten times as long as its service usually takes; if that isn't known, for over 10 minutes"
        "If it hangs: `tow kick PEER`, and its requests go to another worker, if there is one. `--busy-timeout` of the broker does that by itself"
    WorkerSilent "worker_silent" Warning
        "Nothing has come from a busy worker for three heartbeats, at least 5 s"
        "Its process is stopped, or its machine or network is down. It is disconnected soon, and its requests go to other workers"
    WorkerFails "worker_fails" Warning
        "Five requests in a row failed at a worker, or expired while it had them; or it has given some back five times"
        "Its log says why. `tow kick PEER` disconnects it; one that connects again gets requests again. With `--busy-timeout` the broker disconnects one that hangs"
    DeadLetters "dead_letters" Warning
        "Requests that used up their attempts are kept"
        "`tow dead-letters SERVICE` has the reason of each. Once that is mended: `tow requeue SERVICE`; or drop them: `tow requeue SERVICE --drop --expect N`"
    JournalSlow "journal_slow" Warning
        "A write to the journal has taken over a second so far"
        "Its disk is busy, or hangs. Requests wait for it"
    StandbyMissing "standby_missing" Warning
        "A broker of a cell is missing for over 10 s, and hasn't said that it ends"
        "Start it again: the fewer there are, the sooner nobody can take over. One that is gone for good is forgotten after a day"
    StandbyBehind "standby_behind" Warning
        "A standby has been over 100 messages behind, has read what is in the log already, or couldn't read it, for over 10 s"
        "Its log says why. It couldn't take over at once; it catches up by itself if its machine is fast enough"
    ReplicaBehind "replica_behind" Warning
        "A replica of a cell's queue is behind or offline"
        "Start that NATS server, or look at its log and disk. With another one gone, nothing is accepted"
    ClockSkew "clock_skew" Warning
        "The clock of a broker of the cell differs from this machine's by over 1 s"
        "Let chrony or another NTP client set the clocks: requests expire by the clock of whichever broker leads"
    Refused "refused" Warning
        "A request was refused within the last 30 s for want of memory, disk, or places in a queue"
        "The reason says which limit it is. `tow services` shows what waits, `tow peers` whose it is; `tow block` keeps a client out"
    LargeClient "large_client" Warning
        "The clients of one user or address have over half of the memory for requests"
        "`tow peers` shows them; `tow block` keeps them out. If all clients come through one proxy, let them log in"
    Paused "paused" Warning
        "An operator has paused a service, and requests wait"
        "`tow resume SERVICE`"
    FollowerFailing "follower_failing" Warning
        "A follower fails by its own words, and tries again"
        "They say why: make space on its disk, or let it write there. It goes on by itself"
    VersionMissing "version_missing" Warning
        "Not all followers of a path's versions have the newest one: one of them fails, or has lacked it for over 5 minutes"
        "`tow followers` shows what each lacks. `tow forget NAME` forgets one that is gone for good"
    FollowerBehind "follower_behind" Warning
        "A follower has lacked a change, or the newest version, for over 5 minutes"
        "If its transfers are slow, the cause says why; else look at its log and its disk"
    FollowerGone "follower_gone" Warning
        "A follower isn't connected, and has lacked a change, or the newest version, for over 5 minutes; or one of `--followers` has never been"
        "If its process runs, it hangs or its network is down; else start it again. One that is gone for good: `tow forget NAME`; by itself it is forgotten seven days after its last report"
    HeldDeletions "held_deletions" Warning
        "Deletions are held until a person releases them"
        "If they are meant: send SIGUSR1 to the server. Else bring the files back"
    Unread "unread" Warning
        "Directories or files can't be read, and aren't published"
        "Let the server's user read them"
    Unwatched "unwatched" Warning
        "Some directories can't be watched: everything is read again every 30 s"
        "Raise `fs.inotify.max_user_watches` or `max_user_instances`"
    CacheBroken "cache_broken" Warning
        "Nothing can be kept in the cache: all that is asked for is fetched again"
        "Free space on its disk, or repair it; the log has the error. It goes on by itself"
    AlwaysWritten "always_written" Warning
        "Files are written to all the time, and so never published"
        "Write to another name and rename, or don't keep logs there"
    ThreadsHang "threads_hang" Warning
        "Threads hang in a disk or mount"
        "Look for a mount that doesn't respond"
    NearlyFull "nearly_full" Warning
        "Over nine tenths are used: of the memory or spool for requests, of the queue of a cell, of file descriptors, or of the disk of the state"
        "Raise the limit, or find out who takes so much: `tow peers`, `tow services`"
    LogSuppressed "log_suppressed" Warning
        "Some warnings were not logged within the last minute, because there were too many of one kind"
        "The log has the first ones, and how many more there were"
}

impl Kind {
    pub fn about(self) -> &'static About {
        &KINDS[self as usize]
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Kind> {
        ALL.iter().copied().find(|kind| kind.about().name == name)
    }
}

/// The subject of a problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The server, or a part of it.
    Part(&'static str),
    Service(Vec<u8>),
    /// The id of its connection, if it has one, and its service.
    Worker {
        peer: Option<String>,
        service: Vec<u8>,
    },
    /// A user or an address.
    Client(String),
    /// A broker of a cell, by its endpoint.
    Member(String),
    /// Versions of a path.
    Versions(RelPath),
    /// The id of its connection, if it is connected, and its name.
    Follower {
        peer: Option<String>,
        name: String,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Part(name) => out.write_str(name),
            Subject::Service(name) => write!(out, "{}", Escaped(name)),
            Subject::Worker { peer: Some(peer), service } => write!(out, "worker {peer} of {}", Escaped(service)),
            Subject::Worker { peer: None, service } => write!(out, "a worker of {}", Escaped(service)),
            Subject::Client(name) => write!(out, "{}", Escaped(name.as_bytes())),
            Subject::Member(endpoint) => write!(out, "member {}", Escaped(endpoint.as_bytes())),
            Subject::Versions(of) if of.is_root() => out.write_str("versions of /"),
            Subject::Versions(of) => write!(out, "versions of /{of}"),
            Subject::Follower { name, .. } => write!(out, "follower {}", Escaped(name.as_bytes())),
        }
    }
}

impl Subject {
    fn peer(&self) -> Option<&str> {
        match self {
            Subject::Worker { peer, .. } | Subject::Follower { peer, .. } => peer.as_deref(),
            Subject::Part(_) | Subject::Service(_) | Subject::Client(_) | Subject::Member(_) | Subject::Versions(_) => {
                None
            }
        }
    }

    fn service(&self) -> Option<&[u8]> {
        match self {
            Subject::Service(name) | Subject::Worker { service: name, .. } => Some(name),
            Subject::Part(_)
            | Subject::Client(_)
            | Subject::Member(_)
            | Subject::Versions(_)
            | Subject::Follower { .. } => None,
        }
    }
}

/// A problem as it is found, without its beginning.
#[derive(Clone, Debug)]
pub struct Found {
    pub kind: Kind,
    pub subject: Subject,
    /// In words, without the subject.
    pub cause: String,
    /// Numbers behind it.
    pub evidence: Value,
    /// For how long at least, if that is known.
    pub age: Option<Duration>,
    /// How grave it is among those of its kind.
    pub weight: u64,
}

/// A problem.
#[derive(Clone, Debug)]
pub struct Problem {
    found: Found,
    /// Since when, in the time of the caller.
    since: Duration,
}

impl Problem {
    fn about(&self) -> &'static About {
        self.found.kind.about()
    }

    fn advice(&self) -> String {
        let subject = &self.found.subject;
        let service = subject.service().and_then(|name| str::from_utf8(name).ok()).filter(|name| is_plain(name));
        let advice = self.about().advice;
        let advice = service.map_or(advice.to_owned(), |name| advice.replace("SERVICE", name));
        subject.peer().map_or(advice.clone(), |peer| advice.replace("PEER", peer))
    }

    /// As the API has it. `now` is in the time of the caller, and `started` when that was 0, in seconds since 1970.
    pub fn json(&self, now: Duration, started: u64) -> Value {
        let Problem { found, since } = self;
        let mut problem = json!({
            "kind": self.about().name,
            "severity": self.about().severity.as_str(),
            "subject": found.subject.to_string(),
            "peer": found.subject.peer(),
            "since": started + since.as_secs(),
            "seconds": now.saturating_sub(*since).as_secs(),
            "cause": found.cause,
            "evidence": found.evidence,
            "advice": self.advice(),
        });
        match found.subject.service() {
            Some(name) => add_name(&mut problem, "service", name),
            None => problem["service"] = Value::Null,
        }
        problem
    }
}

/// Whether a name can be copied into a shell as it is. Names come from peers.
fn is_plain(name: &str) -> bool {
    !name.starts_with('-') && name.chars().all(|one| one.is_ascii_alphanumeric() || "._-/".contains(one))
}

/// The problems of a server at one moment.
#[derive(Debug, Default)]
pub struct Problems {
    /// The first of each kind; the gravest kinds come first.
    pub listed: Vec<Problem>,
    /// Those that are muted, as many of a kind, each with its mute. They aren't counted.
    muted: Vec<(Problem, Mute)>,
    /// All mutes, also of what is no problem at the moment.
    mutes: Vec<Mute>,
    counts: BTreeMap<Kind, u64>,
}

impl Problems {
    /// How many there are of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// One problem of a kind.
    #[cfg(test)]
    pub fn only(kind: Kind) -> Problems {
        Problems { counts: [(kind, 1)].into(), ..Problems::default() }
    }

    /// How many there are.
    pub fn number(&self) -> u64 {
        self.counts.values().sum()
    }

    fn count_of(&self, severity: Severity) -> u64 {
        self.counts.iter().filter(|(kind, _)| kind.about().severity == severity).map(|(_, count)| count).sum()
    }

    /// As the API has it: [`Problem::json`].
    pub fn json(&self, now: Duration, started: u64) -> Value {
        let muted = |problem: &Problem, mute: &Mute| {
            let mut problem = problem.json(now, started);
            problem["mute"] = mute.json(now, started);
            problem
        };
        json!({
            "problems": self.listed.iter().map(|problem| problem.json(now, started)).collect::<Vec<_>>(),
            "critical": self.count_of(Severity::Critical),
            "warning": self.count_of(Severity::Warning),
            "muted": self.muted.iter().map(|(problem, mute)| muted(problem, mute)).collect::<Vec<_>>(),
            "mutes": self.mutes.iter().map(|mute| mute.json(now, started)).collect::<Vec<_>>(),
        })
    }
}

/// A problem that has begun, or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub has_begun: bool,
    /// For people.
    pub text: String,
    pub service: Option<Vec<u8>>,
    pub peer: Option<String>,
}

impl Change {
    fn of(has_begun: bool, subject: &Subject, text: &str) -> Change {
        Change {
            has_begun,
            text: format!("{subject}: {text}"),
            service: subject.service().map(<[u8]>::to_vec),
            peer: subject.peer().map(str::to_owned),
        }
    }
}

/// Remembers since when each problem has been there.
#[derive(Debug, Default)]
pub struct Tracker {
    since: BTreeMap<(Kind, Subject), Duration>,
    mutes: Mutes,
}

impl Tracker {
    /// Mutes problems, in place of another mute of the same. False: too many are muted.
    pub fn mute(&mut self, now: Duration, mute: Mute) -> bool {
        self.mutes.add(now, mute)
    }

    /// Ends a mute. False: there is none of this kind and subject.
    pub fn unmute(&mut self, kind: Kind, subject: Option<&str>) -> bool {
        self.mutes.remove(kind, subject)
    }

    /// The problems at a moment, from all that were found then, and what has changed. One that isn't found any more is forgotten.
    pub fn update(&mut self, now: Duration, mut found: Vec<Found>) -> (Problems, Vec<Change>) {
        found.sort_by(|a, b| (a.kind, b.weight, &a.subject).cmp(&(b.kind, a.weight, &b.subject)));
        let before = std::mem::take(&mut self.since);
        self.mutes.remove_over(now);
        let (mut problems, mut changes) = (Problems::default(), Vec::new());
        problems.mutes = self.mutes.all().to_vec();
        for found in found {
            let key = (found.kind, found.subject.clone());
            let own = now.saturating_sub(found.age.unwrap_or_default());
            let since = before.get(&key).copied().map_or(own, |before| before.min(own));
            if self.since.len() < REMEMBERED_MAX {
                if !before.contains_key(&key) {
                    changes.push(Change::of(true, &found.subject, &found.cause));
                }
                self.since.insert(key, since);
            }
            let kind = found.kind;
            let problem = Problem { found, since };
            if let Some(mute) = self.mutes.of(kind, &problem.found.subject) {
                if problems.muted.iter().filter(|(muted, _)| muted.found.kind == kind).count() < LISTED_MAX {
                    problems.muted.push((problem, mute.clone()));
                }
                continue;
            }
            let count = problems.counts.entry(kind).or_default();
            *count += 1;
            if *count <= LISTED_MAX as u64 {
                problems.listed.push(problem);
            }
        }
        for ((kind, subject), since) in before.iter().filter(|(key, _)| !self.since.contains_key(key)) {
            let ended =
                format!("{}, ended after {}", kind.about().name.replace('_', " "), time(now.saturating_sub(*since)));
            changes.push(Change::of(false, subject, &ended));
        }
        (problems, changes)
    }
}

/// A number with separators.
fn number(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// A duration in its largest unit.
fn time(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// The verb of so many.
fn verb(count: u64, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

#[cfg(test)]
mod tests;
