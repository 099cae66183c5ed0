use super::*;
use std::path::Path;
use towpath_broker::core::{Kind as Protocol, LargestClient, LastRefusal, ServiceCounters, ServiceInfo, WorkerInfo};
use towpath_broker::{Concerns, JournalFigures, Stats, WorkerStats};
use towpath_files::server::source::{CacheStats, Outage};
use towpath_files::server::{Stats as FilesStats, WatchStats};
use towpath_sockets::{PeerId, Principal, Tenant};

const MINUTE: u64 = 60_000;

/// The core's time in these tests.
const NOW: u64 = 100 * MINUTE;

fn service(name: &str) -> ServiceInfo {
    ServiceInfo {
        name: name.to_owned().into(),
        waiting: 0,
        waiting_bytes: 0,
        bytes: 0,
        waiting_large_bytes: 0,
        live: 0,
        workers: 0,
        oldest_since: None,
        is_paused: false,
        letters: 0,
        letters_since: None,
        usual_ms: None,
        median_ms: None,
        counters: ServiceCounters::default(),
        in_flight: 0,
    }
}

/// A service for which so many have waited, the first for so long.
fn waiting(count: usize, age_ms: u64, workers: usize) -> ServiceInfo {
    ServiceInfo { waiting: count, oldest_since: Some(NOW - age_ms), workers, ..service("reports") }
}

fn worker() -> WorkerInfo {
    WorkerInfo {
        peer: 3,
        service: "reports".into(),
        kind: Protocol::Numbered,
        credit: 1,
        held: 1,
        rests_until: None,
        gave_back: None,
        gave_back_in_a_row: 0,
        failed_in_a_row: 0,
        oldest_since: Some(NOW),
        usual_ms: None,
    }
}

/// A worker that has had a request for so long, of a service that usually takes so long.
fn busy(for_ms: u64, usual_ms: Option<u64>) -> WorkerInfo {
    WorkerInfo { oldest_since: Some(NOW - for_ms), usual_ms, ..worker() }
}

fn concerns() -> Concerns {
    let mut concerns = Concerns::default();
    (concerns.now, concerns.heartbeat) = (NOW, Duration::from_secs(2));
    concerns
}

fn of_service(service: ServiceInfo) -> Vec<Found> {
    let mut concerns = concerns();
    concerns.services = vec![service];
    of_broker(&Stats::default(), &concerns)
}

fn of_worker(worker: WorkerInfo, silent_seconds: u64) -> Vec<Found> {
    let mut concerns = concerns();
    let silent_for = Some(Duration::from_secs(silent_seconds));
    concerns.workers = vec![WorkerStats {
        id: Some(PeerId::new(3, 0)),
        worker,
        address: None,
        principal: Principal::Anonymous,
        silent_for,
    }];
    of_broker(&Stats::default(), &concerns)
}

fn of_stats(change: impl FnOnce(&mut Stats)) -> Vec<Found> {
    let mut stats = Stats::default();
    change(&mut stats);
    of_broker(&stats, &concerns())
}

fn of_watch(change: impl FnOnce(&mut WatchStats)) -> Vec<Found> {
    let mut watch = WatchStats::default();
    change(&mut watch);
    of_files(&FilesStats::default(), Some(&watch))
}

/// The only problem: its kind, and what is said of it.
fn only(found: &[Found]) -> (Kind, String) {
    let [found] = found else { panic!("not one problem: {found:?}") };
    (found.kind, format!("{}: {}", found.subject, found.cause))
}

fn said(kind: Kind, text: &str) -> (Kind, String) {
    (kind, text.to_owned())
}

#[test]
fn a_service_without_a_worker() {
    let found = of_service(waiting(100_000, 8 * MINUTE, 0));
    assert_eq!(only(&found), said(Kind::NoWorker, "reports: no worker; 100,000 wait, oldest 8 min"));
    assert!(of_service(waiting(1, 2_000, 0)).is_empty(), "a worker that connects again has some time");
    assert!(of_service(waiting(100_000, 4 * MINUTE, 1)).is_empty());
    assert!(of_service(service("reports")).is_empty());
}

#[test]
fn a_request_that_waits_long() {
    let found = of_service(waiting(1, 6 * MINUTE, 2));
    assert_eq!(only(&found), said(Kind::WaitingLong, "reports: 1 waits, oldest 6 min; 2 workers"));
    assert!(of_service(waiting(1, 5 * MINUTE, 2)).is_empty());
}

#[test]
fn a_paused_service() {
    let paused = |count, is_paused| ServiceInfo { is_paused, ..waiting(count, 1_000, 1) };
    assert_eq!(only(&of_service(paused(2, true))), said(Kind::Paused, "reports: paused; 2 wait, oldest 1 s"));
    assert!(of_service(paused(2, false)).is_empty());
    assert!(of_service(ServiceInfo { is_paused: true, ..service("reports") }).is_empty());
}

#[test]
fn a_worker_that_is_busy_for_too_long() {
    let text = "worker 3.0 of reports: busy with one request for 3 min; usual is under 1 s";
    assert_eq!(only(&of_worker(busy(3 * MINUTE, Some(8)), 0)), said(Kind::WorkerBusy, text));
    assert!(of_worker(busy(MINUTE, Some(8)), 0).is_empty());
    assert!(of_worker(busy(3 * MINUTE, Some(20_000)), 0).is_empty(), "it is usually slow");
    let text = "worker 3.0 of reports: busy with one request for 11 min; its service has answered nothing yet";
    assert_eq!(only(&of_worker(busy(11 * MINUTE, None), 0)), said(Kind::WorkerBusy, text));
    assert!(of_worker(busy(3 * MINUTE, None), 0).is_empty());
    assert!(of_worker(worker(), 0).is_empty());
}

#[test]
fn a_silent_worker() {
    let text = "worker 3.0 of reports: nothing has come from it for 7 s; it has 1 request";
    assert_eq!(only(&of_worker(worker(), 7)), said(Kind::WorkerSilent, text));
    assert!(of_worker(worker(), 6).is_empty());
    assert!(of_worker(WorkerInfo { oldest_since: None, ..worker() }, 7).is_empty(), "it has nothing to do");
    assert!(of_worker(WorkerInfo { kind: Protocol::Stock, ..worker() }, 7).is_empty(), "it may be unable to");
}

#[test]
fn a_worker_that_fails_again_and_again() {
    let failed = |count| WorkerInfo { failed_in_a_row: count, ..worker() };
    let text = "worker 3.0 of reports: its last 5 requests failed, or expired while it had them";
    assert_eq!(only(&of_worker(failed(5), 0)), said(Kind::WorkerFails, text));
    assert!(of_worker(failed(4), 0).is_empty());
    let gave_back = |times| WorkerInfo { gave_back_in_a_row: times, gave_back: Some("disk full".into()), ..worker() };
    let text = "worker 3.0 of reports: it has given requests back 6 times in a row: disk full";
    assert_eq!(only(&of_worker(gave_back(6), 0)), said(Kind::WorkerFails, text));
    assert!(of_worker(gave_back(1), 0).is_empty());
}

#[test]
fn dead_letters() {
    let letters = |count: usize| ServiceInfo {
        letters: count,
        letters_since: (count > 0).then_some(NOW as i64 - 90_000),
        ..ServiceInfo { name: "dlq.reports".into(), ..waiting(count, 90_000, 0) }
    };
    let text = "reports: 10 dead letters are kept, the oldest for 90 s";
    assert_eq!(only(&of_service(letters(10))), said(Kind::DeadLetters, text));
    assert!(of_service(letters(0)).is_empty());
}

#[test]
fn a_journal_that_fails_or_is_slow() {
    let journal = |failed: bool, writing: u64| {
        of_stats(|stats| {
            let figures = JournalFigures {
                writing: Duration::from_millis(writing),
                sync_last: Duration::from_millis(2),
                errors: 7,
                ..JournalFigures::default()
            };
            stats.has_storage_failed = failed;
            stats.journal = Some((figures, failed.then(|| "no space left".to_owned())));
        })
    };
    assert_eq!(only(&journal(true, 0)), said(Kind::JournalFailed, "journal: it can't be written: no space left"));
    let text = "journal: a write has taken 3 s so far; the last one took 2 ms";
    assert_eq!(only(&journal(false, 3_100)), said(Kind::JournalSlow, text));
    assert!(journal(false, 900).is_empty(), "former errors are no problem");
}

#[test]
fn a_full_broker_says_who_has_the_most() {
    let largest = |bytes| Some(LargestClient { tenant: Tenant::User("ann".into()), requests: 12_000, bytes });
    let look = |full: bool, largest: Option<LargestClient>| {
        let mut stats = Stats::default();
        (stats.is_full, stats.requests, stats.bytes, stats.bytes_max) = (full, 12_345, 100 << 20, 120 << 20);
        let mut concerns = concerns();
        concerns.largest = largest;
        of_broker(&stats, &concerns)
    };
    let text = "broker: it has all the requests that it can hold (12,345 requests, 100.00 MiB of 120.00 MiB); who has the most, \
        user ann, has 12,000 requests and 30.00 MiB";
    assert_eq!(only(&look(true, largest(30 << 20))), said(Kind::Full, text));
    let text = "user ann: it has 12,000 requests and 90.00 MiB of the 120.00 MiB for all";
    assert_eq!(only(&look(false, largest(90 << 20))), said(Kind::LargeClient, text));
    assert!(look(false, largest(60 << 20)).is_empty());
}

#[test]
fn a_refusal_is_a_problem_for_half_a_minute() {
    let look = |ago_ms| {
        let mut concerns = concerns();
        let tenant = Some(Tenant::User("ann".into()));
        concerns.refusal = Some(LastRefusal { at: NOW - ago_ms, tenant, reason: "the service's queue is full" });
        of_broker(&Stats::default(), &concerns)
    };
    assert_eq!(
        only(&look(29_000)),
        said(Kind::Refused, "user ann: a request was refused: the service's queue is full")
    );
    assert!(look(30_000).is_empty());
}

fn person(peer: Option<&str>, via: Option<&str>) -> Person {
    Person {
        peer: peer.map(str::to_owned),
        name: "box".to_owned(),
        via: via.map(str::to_owned),
        is_gone: peer.is_none() && via.is_none(),
        error: None,
        said: Some(Duration::from_secs(90)),
        waits_for: None,
    }
}

fn full_disk() -> Option<(String, u32, Duration)> {
    Some(("no space left: 700 bytes are needed, 20 are free".to_owned(), 9, Duration::from_secs(12 * 60)))
}

#[test]
fn followers_that_lack_something() {
    let lacking = |peer: Option<&str>, via: Option<&str>, changes, minutes: u64| Lacking {
        person: person(peer, via),
        changes,
        age: Duration::from_secs(60 * minutes),
        version: None,
    };
    let look = |lacking| of_followers(&Followers { lacking: vec![lacking], ..Followers::default() });
    let text = "follower box: it lacks 122 changes, for 18 min; last report 90 s ago";
    assert_eq!(only(&look(lacking(Some("3.0"), None, 122, 18))), said(Kind::FollowerBehind, text));
    let text = "follower box: it lacks 1 change, for 18 min, via relay; last report 90 s ago";
    assert_eq!(only(&look(lacking(None, Some("relay"), 1, 18))), said(Kind::FollowerBehind, text));
    let text = "follower box: it isn't connected, and lacks 122 changes, for 18 min; last report 90 s ago";
    assert_eq!(only(&look(lacking(None, None, 122, 18))), said(Kind::FollowerGone, text));
    let old = Lacking { version: Some("v42".to_owned()), ..lacking(Some("3.0"), None, 1, 18) };
    let text = "follower box: it lacks version v42, for 18 min; last report 90 s ago";
    assert_eq!(only(&look(old)), said(Kind::FollowerBehind, text));
    let mut limited = lacking(Some("3.0"), None, 2, 18);
    limited.person.waits_for = Some("client_rate");
    let text =
        "follower box: it lacks 2 changes, for 18 min; its transfers are slow: limits itself; last report 90 s ago";
    assert_eq!(only(&look(limited)), said(Kind::FollowerBehind, text));
    for peer in [None, Some("3.0")] {
        assert!(look(lacking(peer, None, 122, 5)).is_empty(), "it may catch up yet");
        assert!(look(lacking(peer, None, 0, 0)).is_empty());
    }
}

#[test]
fn a_follower_that_fails_says_why() {
    let look = |person| of_followers(&Followers { failing: vec![person], ..Followers::default() });
    let fails = |peer| Person { error: full_disk(), ..person(peer, None) };
    let text = "follower box: no space left: 700 bytes are needed, 20 are free; 9 tries, for 12 min";
    assert_eq!(only(&look(fails(Some("3.0")))), said(Kind::FollowerFailing, text));
    let text = format!("{text}; it isn't connected");
    assert_eq!(only(&look(fails(None))), said(Kind::FollowerFailing, &text));
    let hostile = Person { error: Some(("a\u{202e}\nb".to_owned(), 1, Duration::ZERO)), ..fails(None) };
    let (_, text) = only(&look(hostile));
    assert!(!text.contains('\n') && !text.contains('\u{202e}') && text.contains("1 try, for 0 s"), "{text}");
}

#[test]
fn a_follower_that_has_never_been_seen() {
    let look = |seconds| {
        let up = Duration::from_secs(seconds);
        of_followers(&Followers { never_seen: vec!["db-3".to_owned()], up, ..Followers::default() })
    };
    let text = "follower db-3: it is to be there, and has not been since the server was started 6 min ago";
    assert_eq!(only(&look(360)), said(Kind::FollowerGone, text));
    assert!(look(300).is_empty());
}

#[test]
fn a_version_that_some_lack() {
    let version = |failing, minutes: u64, lacking: Vec<Person>, never_seen: &[&str]| Version {
        of: "models".parse().unwrap(),
        label: "v42".to_owned(),
        digest: "ab".to_owned(),
        holding: 38,
        expected: 38 + lacking.len() + never_seen.len(),
        failing,
        age: Duration::from_secs(60 * minutes),
        lacking,
        never_seen: never_seen.iter().map(|name| (*name).to_owned()).collect(),
    };
    let look = |version| of_followers(&Followers { versions: vec![version], ..Followers::default() });
    let named = |name: &str, person: Person| Person { name: name.to_owned(), ..person };
    let full = named("db-3", Person { error: full_disk(), ..person(Some("3.0"), None) });
    let silent = named("edge-7", Person { said: Some(Duration::from_secs(14 * 60)), ..person(None, None) });
    let text = "versions of /models: 38 of 41 have v42; db-3: no space left: 700 bytes are needed, 20 are free, 9 tries; \
        edge-7: silent 14 min; db-9: never seen";
    // One that fails is said at once.
    let both = || vec![full.clone(), silent.clone()];
    assert_eq!(only(&look(version(1, 0, both(), &["db-9"]))), said(Kind::VersionMissing, text));
    assert!(look(version(0, 5, vec![silent.clone()], &[])).is_empty(), "it may get it yet");
    let text = "versions of /models: 38 of 39 have v42; edge-7: silent 14 min";
    assert_eq!(only(&look(version(0, 6, vec![silent.clone()], &[]))), said(Kind::VersionMissing, text));
    // Of those that are connected, only what is known.
    let stopped = named("db-4", person(Some("4.0"), None));
    let slow = named("db-5", Person { waits_for: Some("client_rate"), ..person(Some("5.0"), None) });
    let text =
        "versions of /models: 38 of 40 have v42; db-4: last report 90 s ago; db-5: limits itself, last report 90 s ago";
    assert_eq!(only(&look(version(0, 6, vec![stopped, slow], &[]))), said(Kind::VersionMissing, text));
    let (_, text) = only(&look(version(0, 6, vec![silent; 9], &[])));
    assert!(text.ends_with("edge-7: silent 14 min; and 4 more"), "{text}");
}

#[test]
fn what_keeps_files_from_being_published() {
    let paths = || ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let held = of_watch(|watch| watch.held = Some((700, "over half of all")));
    assert_eq!(only(&held), said(Kind::HeldDeletions, "published directory: 700 deletions are held: over half of all"));
    let unread = of_watch(|watch| (watch.unread, watch.unread_paths) = (4, paths()));
    assert_eq!(only(&unread), said(Kind::Unread, "published directory: 4 paths can't be read: a, b, c ..."));
    let written = of_watch(|watch| (watch.written, watch.written_paths) = (1, vec!["log".to_owned()]));
    let text = "published directory: 1 file is written to all the time: log";
    assert_eq!(only(&written), said(Kind::AlwaysWritten, text));
    assert_eq!(only(&of_watch(|watch| watch.is_blind = true)).0, Kind::Unwatched);
    assert_eq!(only(&of_watch(|watch| watch.is_full = true)).0, Kind::CatalogueFull);
    assert!(of_watch(|watch| watch.overflows = 3).is_empty());
}

#[test]
fn threads_that_hang() {
    let limits = towpath_blocking::PoolLimits { name: "tow-list", threads_max: 1, hung_max: 1, per_group_max: 1 };
    let mut load = towpath_blocking::BlockingPool::new(limits).load();
    let mut stats = FilesStats::default();
    stats.pools = vec![load];
    assert!(of_files(&stats, None).is_empty());
    (load.hung, load.waiting) = (2, 5);
    stats.pools = vec![load];
    let text = "list: 2 threads hang in the system; 5 jobs wait";
    assert_eq!(only(&of_files(&stats, None)), said(Kind::ThreadsHang, text));
}

#[test]
fn files_that_are_elsewhere() {
    let mut stats = FilesStats::default();
    stats.cache = Some(CacheStats { is_broken: true, ..CacheStats::default() });
    assert_eq!(only(&of_files(&stats, None)), said(Kind::CacheBroken, "cache: its disk takes nothing"));
    stats.cache = Some(CacheStats::default());
    stats.outage = Some(Outage { reason: "no route".to_owned(), age: Duration::from_secs(7) });
    let found = of_files(&stats, None);
    assert_eq!(only(&found), said(Kind::SourceAway, "source of the files: no route"));
    assert_eq!(found[0].age, Some(Duration::from_secs(7)));
}

#[test]
fn what_is_nearly_full() {
    let of = |descriptors, disk| of_process(&Process { descriptors, disk, suppressed: None });
    assert_eq!(only(&of(Some((925, 1_024)), None)).0, Kind::NearlyFull, "rounded down, it is 90 %");
    let text = "file descriptors: 97 % used: 1,000 of 1,024";
    assert_eq!(only(&of(Some((1_000, 1_024)), None)), said(Kind::NearlyFull, text));
    let text = "disk of the state: 95 % used: 95.00 GiB of 100.00 GiB";
    assert_eq!(only(&of(None, Some((95 << 30, 100 << 30)))), said(Kind::NearlyFull, text));
    assert!(of(Some((900, 1_024)), Some((90 << 30, 100 << 30))).is_empty());
    assert!(of(None, Some((0, 0))).is_empty());
    let of = |used| {
        of_stats(|stats| {
            (stats.bytes, stats.bytes_max) = (used, 100);
            (stats.spool.bytes, stats.spool.request_bytes_max) = (used as u64, 100);
            (stats.spool.files, stats.spool.request_files_max) = (used as u64, 100);
        })
    };
    let mut subjects: Vec<_> = of(91).into_iter().map(|found| (found.kind, found.subject.to_string())).collect();
    subjects.sort();
    let expected = ["files of the spool", "memory for requests", "spool for requests"];
    assert_eq!(subjects, expected.map(|what| (Kind::NearlyFull, what.to_owned())));
    assert!(of(90).is_empty());
}

#[test]
fn a_log_that_leaves_something_out() {
    let of = |seconds| {
        let message = "a stray worker".to_owned();
        let suppressed = Suppressed { ago: Duration::from_secs(seconds), count: 1_200, message };
        of_process(&Process { suppressed: Some(suppressed), ..Process::default() })
    };
    assert_eq!(only(&of(59)), said(Kind::LogSuppressed, "log: 1,200 more warnings like this: a stray worker"));
    assert!(of(60).is_empty());
}

#[test]
fn the_beginning_is_kept_while_the_problem_is_there() {
    let mut tracker = Tracker::default();
    let at = Duration::from_secs;
    let since = |problems: &Problems| problems.listed.iter().map(|problem| problem.since.as_secs()).collect::<Vec<_>>();
    let found = || of_service(waiting(5, 8_000, 0));
    assert_eq!(since(&tracker.update(at(100), found()).0), [92]);
    // The oldest was purged, and it goes on.
    assert_eq!(since(&tracker.update(at(200), found()).0), [92]);
    assert_eq!(since(&tracker.update(at(300), vec![]).0), [0; 0]);
    assert_eq!(since(&tracker.update(at(400), found()).0), [392]);
    // Its age is known from before the server began to count.
    assert_eq!(since(&Tracker::default().update(at(1), found()).0), [0]);
}

#[test]
fn beginnings_and_ends_are_said_once() {
    let mut tracker = Tracker::default();
    let at = Duration::from_secs;
    let mut changes = |seconds, found| {
        let (_, changes) = tracker.update(at(seconds), found);
        changes.into_iter().map(|change| (change.has_begun, change.text, change.service)).collect::<Vec<_>>()
    };
    let found = || of_service(waiting(5, 8_000, 0));
    let service = Some(b"reports".to_vec());
    assert_eq!(changes(100, found()), [(true, "reports: no worker; 5 wait, oldest 8 s".to_owned(), service.clone())]);
    assert_eq!(changes(105, found()), []);
    assert_eq!(changes(110, vec![]), [(false, "reports: no worker, ended after 18 s".to_owned(), service)]);
    assert_eq!(changes(115, vec![]), []);
}

#[test]
fn the_gravest_come_first_and_all_are_counted() {
    let mut found = of_watch(|watch| watch.is_blind = true);
    for number in 0..50 {
        let name = format!("service {number}").into();
        found.extend(of_service(ServiceInfo { name, ..waiting(number + 1, MINUTE, 0) }));
    }
    let (problems, _) = Tracker::default().update(Duration::from_secs(3600), found);
    assert_eq!(
        (problems.count(Kind::NoWorker), problems.count(Kind::Unwatched), problems.count(Kind::Full)),
        (50, 1, 0)
    );
    let reply = problems.json(Duration::from_secs(3600), 1_000_000);
    assert_eq!((&reply["critical"], &reply["warning"]), (&50.into(), &1.into()));
    let listed = reply["problems"].as_array().unwrap();
    assert_eq!(listed.len(), LISTED_MAX + 1);
    assert_eq!((&listed[0]["service"], &listed[20]["kind"]), (&"service 49".into(), &"unwatched".into()));
    assert_eq!((&listed[0]["since"], &listed[0]["seconds"]), (&1_003_540.into(), &60.into()));
}

#[test]
fn advice_names_what_can_be_copied_into_a_shell() {
    let advice = |name: &'static str, peer: Option<&str>| {
        let peer = peer.map(str::to_owned);
        let subject = Subject::Worker { peer, service: name.into() };
        let found =
            Found { kind: Kind::NoWorker, subject, cause: String::new(), evidence: json!({}), age: None, weight: 0 };
        Problem { found, since: Duration::ZERO }.advice()
    };
    assert!(advice("reports/eu-1", None).contains("`tow work reports/eu-1`"));
    for hostile in ["a; rm -rf ~", "$(reboot)", "--all", "a\nb", "ü"] {
        assert!(advice(hostile, None).contains("`tow work SERVICE`"), "{hostile}");
    }
    let mut of_worker = of_worker(busy(3 * MINUTE, Some(8)), 0);
    let problem = Problem { found: of_worker.remove(0), since: Duration::ZERO };
    assert!(problem.advice().contains("`tow kick 3.0`"), "{}", problem.advice());
}

#[test]
fn numbers_and_times_are_for_people() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!(
        [3, 119, 120, 7_200, 200_000].map(|seconds| time(Duration::from_secs(seconds))),
        ["3 s", "119 s", "2 min", "2 h", "2 d"]
    );
}

#[test]
fn the_guide_has_each_kind_of_problem_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/operating.md");
    let text = std::fs::read_to_string(path).unwrap();
    let head = "| kind | severity | when | what to do |\n|---|---|---|---|\n";
    let (_, table) = text.split_once(head).expect("docs/guide/operating.md has a table of problems");
    let documented: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let row = |About { name, severity, means, advice }: &About| {
        format!("| `{name}` | {} | {means} | {advice} |", severity.as_str())
    };
    let expected: Vec<_> = KINDS.iter().map(row).collect();
    assert_eq!(documented, expected, "docs/guide/operating.md should have these rows:\n{}", expected.join("\n"));
    assert_eq!(KINDS.len(), ALL.len());
}

#[test]
fn the_alerts_know_which_kinds_are_critical() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/towpath.rules.yml");
    let rules = std::fs::read_to_string(path).unwrap();
    let critical = KINDS.iter().filter(|about| about.severity == Severity::Critical).map(|about| about.name);
    let critical = critical.collect::<Vec<_>>().join("|");
    for wanted in ["=~", "!~"] {
        let wanted = format!("towpath_problems{{kind{wanted}\"{critical}\"}} > 0");
        assert!(rules.contains(&wanted), "an alert should have the expression {wanted}");
    }
}

#[test]
fn what_is_muted_is_listed_until_when_and_not_counted() {
    let at = Duration::from_secs;
    let found = || [of_service(waiting(3, MINUTE, 0)), of_watch(|watch| watch.is_blind = true)].concat();
    let mute = |subject: Option<&str>, until| Mute {
        kind: Kind::NoWorker,
        subject: subject.map(str::to_owned),
        until: at(until),
        by: "ann".to_owned(),
    };
    let mut tracker = Tracker::default();
    assert_eq!(tracker.update(at(1), found()).0.number(), 2);
    for (subject, is_muted) in [(None, true), (Some("reports"), true), (Some("other"), false)] {
        assert!(tracker.mute(at(2), mute(subject, 100)));
        let (problems, changes) = tracker.update(at(3), found());
        assert_eq!((problems.number(), problems.count(Kind::NoWorker)), if is_muted { (1, 0) } else { (2, 1) });
        assert!(changes.is_empty(), "it is still there: {changes:?}");
        let json = problems.json(at(3), 1_000);
        assert_eq!((&json["critical"], &json["warning"]), (&u64::from(!is_muted).into(), &1.into()));
        assert_eq!(json["muted"].as_array().unwrap().len(), usize::from(is_muted));
        assert_eq!((&json["mutes"][0]["until"], &json["mutes"][0]["left_seconds"]), (&1_100.into(), &97.into()));
        if is_muted {
            let muted = &json["muted"][0];
            assert_eq!((&muted["subject"], &muted["mute"]["by"]), (&"reports".into(), &"ann".into()));
        }
        assert!(tracker.unmute(Kind::NoWorker, subject) && !tracker.unmute(Kind::NoWorker, subject));
    }
    // It ends by itself, and there are only so many.
    assert!(tracker.mute(at(4), mute(None, 10)) && tracker.mute(at(5), mute(None, 20)));
    assert_eq!(tracker.update(at(19), found()).0.number(), 1);
    let (problems, _) = tracker.update(at(20), found());
    assert_eq!((problems.number(), &problems.json(at(20), 0)["mutes"]), (2, &serde_json::json!([])));
    for number in 0..MUTES_MAX {
        assert!(tracker.mute(at(30), mute(Some(&number.to_string()), 100)));
    }
    assert!(!tracker.mute(at(30), mute(None, 100)) && tracker.mute(at(100), mute(None, 200)));
}
