//! The journal on real disks and in real processes, which are killed and run out of space.

mod child;
mod golden;

use child::{Child, Mode, state_after};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use towpath_journal::{Journal, JournalError, JournalOptions, Recovered};
use towpath_requests::Body;
use towpath_spool::SpooledBody;

/// By id: the request's body, and the outcome.
type State = BTreeMap<u64, (Vec<u8>, Option<(u16, Vec<u8>)>)>;

fn options() -> JournalOptions {
    JournalOptions { segment_bytes: 64 * 1024, pending_bytes: 1 << 20, repairs: false, gives_up: false }
}

fn bytes_of(body: &Body) -> Vec<u8> {
    let Some(large) = body.as_large() else { return body.frames().into_iter().flatten().flatten().copied().collect() };
    let any: &dyn std::any::Any = &**large;
    let spooled = any.downcast_ref::<SpooledBody>().expect("a spooled body");
    let mut bytes = vec![0; large.length() as usize];
    std::os::unix::fs::FileExt::read_exact_at(spooled.file(), &mut bytes, 0).expect("a readable body");
    bytes
}

fn state_of(recovered: &Recovered) -> State {
    let outcome = |outcome: &Option<(u16, Body)>| outcome.as_ref().map(|(status, body)| (*status, bytes_of(body)));
    recovered
        .requests
        .iter()
        .map(|request| (request.id, (bytes_of(&request.body), outcome(&request.outcome))))
        .collect()
}

fn recovered(dir: &Path) -> Recovered {
    Journal::open(dir, options(), || {}).expect("a journal").1
}

#[test]
fn durable_records_survive_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut state = State::new();
    let mut next_id = 1;
    for round in 0..12_u64 {
        let child = Child::start(Mode::Append, dir.path(), &[]);
        let durable = child.kill_after(Duration::from_millis(10 + 17 * (round % 5)));
        let recovered = recovered(dir.path());
        // The operations are the same each time, so that the last id shows how far they came, except for outcomes of earlier requests.
        let found = state_of(&recovered);
        let accepted = recovered.next_id - next_id;
        let ends = if accepted == 0 { 0..1 } else { 3 * accepted - 2..3 * accepted + 1 };
        let came = ends.into_iter().find(|end| state_after(&state, next_id, *end) == found);
        let came = came.unwrap_or_else(|| panic!("round {round}: not what a beginning of the operations gives"));
        let entries = child::entries_before(next_id, came);
        assert!(entries >= durable, "round {round}: {entries} are there, {durable} were durable");
        state = found;
        next_id = recovered.next_id;
    }
    assert!(next_id > 100, "the test came to something: {next_id}");
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = Child::start(Mode::Hold, dir.path(), &[]);
    assert_eq!(child.line(), "open");
    let error = Journal::open(dir.path(), options(), || {}).expect_err("it is in use");
    assert!(matches!(error, JournalError::Locked { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains(&format!("(process {})", child.id())), "{message}");
    child.kill_after(Duration::ZERO);
    recovered(dir.path());
}

/// A limit on the size of files, which is lifted while the process runs.
#[test]
fn a_file_size_limit_is_reported_and_recovered_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let limited = ["bash", "-c", "trap '' XFSZ; ulimit -S -f 128; exec \"$@\"", "limited"];
    let child = Child::start(Mode::Fill, dir.path(), &limited);
    let failing = child.line();
    assert!(failing.starts_with("failing:") && failing.contains("File too large"), "{failing}");
    child.lift_file_limit();
    assert_eq!(child.line(), "working");
    assert_eq!(child.line(), "closed");
    child.wait();
    let ids: Vec<u64> = state_of(&recovered(dir.path())).into_keys().collect();
    assert_eq!(ids.len() as u64, ids.last().copied().unwrap_or(0), "none is missing");
    assert!(ids.len() > 10);
}

/// A file system of one MiB, which root may mount, and others in a user namespace of their own. Where neither works this tests
/// nothing, but in CI that is a failure.
#[test]
fn a_full_disk_is_reported_and_recovered_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let works = |flags: &&str| {
        let probe = Command::new("unshare").args([*flags, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]).output();
        probe.is_ok_and(|output| output.status.success())
    };
    let Some(flags) = ["-m", "-rm"].into_iter().find(works) else {
        let why = "no file system can be mounted here, neither by unshare -m nor in a user namespace";
        let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!in_ci, "{why}, and in CI that may not be skipped");
        println!("skipped: {why}");
        return;
    };
    let script =
        "mount -t tmpfs -o size=1m tmpfs \"$TOW_JOURNAL_DIR\" && touch \"$TOW_JOURNAL_DIR\"/mounted && exec \"$@\"";
    let child = Child::start(Mode::FillAndFree, dir.path(), &["unshare", flags, "sh", "-c", script, "mounted"]);
    let failing = child.line();
    assert!(failing.starts_with("failing:") && failing.contains("No space left"), "{failing}");
    assert_eq!(child.line(), "working");
    assert_eq!(child.line(), "all there");
    child.wait();
}
