//! A journal whose directory is moved, removed or replaced while it is open.

use super::*;

/// Until an attempt to write has failed, and this many more have; returns why.
fn wait_until_failing(journal: &Journal, failures: &std::sync::mpsc::Receiver<()>, more: usize) -> String {
    let start = Instant::now();
    let mut left = more;
    loop {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not fail");
        let Ok(()) = failures.recv_timeout(Duration::from_secs(20)) else { panic!("it does not fail") };
        match journal.status() {
            Status::Failing(why) if left == 0 => return why,
            Status::Failing(_) => left -= 1,
            Status::Working => left = more,
        }
    }
}

fn open_with_failures(dir: &Path) -> (Journal, std::sync::mpsc::Receiver<()>) {
    let (sender, woken) = std::sync::mpsc::channel();
    let wake = move || {
        let _ = sender.send(());
    };
    (Journal::open(dir, small(), wake).unwrap().0, woken)
}

#[test]
fn a_moved_journal_refuses_entries_until_it_is_back() {
    let parent = tempfile::tempdir().unwrap();
    let [dir, away, other] = ["journal", "away", "other"].map(|name| parent.path().join(name));
    let (mut journal, woken) = open_with_failures(&dir);
    let body = Body::from(vec![7; 10_000]);
    let last = journal.append(&accepted(1, &body)).unwrap();
    wait_for(&journal, last);

    std::fs::rename(&dir, &away).unwrap();
    let last = journal.append(&accepted(2, &body)).unwrap();
    let why = wait_until_failing(&journal, &woken, 0);
    assert!(why.contains("moved") && why.contains("restarted"), "{why}");
    assert!(matches!(journal.append(&accepted(3, &body)), Err(JournalError::Failing(_))));
    assert!(matches!(Journal::open(&away, small(), || {}), Err(JournalError::Locked { .. })));

    // Another one in its place is left alone, also when it has come as far.
    let mut second = open(&dir).0;
    for id in 100..110 {
        let last = second.append(&accepted(id, &body)).unwrap();
        wait_for(&second, last);
    }
    wait_until_failing(&journal, &woken, 3);
    second.close().unwrap();
    assert_eq!(ids(&open(&dir).1), (100..110).collect::<Vec<_>>());

    std::fs::rename(&dir, &other).unwrap();
    std::fs::rename(&away, &dir).unwrap();
    wait_for(&journal, last);
    // Reported a moment later.
    let start = Instant::now();
    while journal.status() != Status::Working {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", journal.status());
        std::thread::yield_now();
    }
    journal.close().unwrap();
    assert_eq!(ids(&open(&dir).1), [1, 2]);
}

#[test]
fn a_journal_that_was_removed_does_not_go_on_in_another_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("journal");
    let (mut journal, woken) = open_with_failures(&dir);
    let body = Body::from("small");
    let last = journal.append(&accepted(1, &body)).unwrap();
    wait_for(&journal, last);

    std::fs::remove_dir_all(&dir).unwrap();
    journal.append(&accepted(2, &body)).unwrap();
    wait_until_failing(&journal, &woken, 0);
    std::fs::create_dir_all(dir.join("bodies")).unwrap();
    wait_until_failing(&journal, &woken, 3);
    assert!(matches!(journal.close(), Err(JournalError::Moved { .. })));
    let found = std::fs::read_dir(&dir).unwrap().chain(std::fs::read_dir(dir.join("bodies")).unwrap());
    assert_eq!(found.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(), ["bodies"]);
}

#[test]
fn foreign_segments_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, woken) = open_with_failures(dir.path());
    let theirs = dir.path().join("00000002.log");
    std::fs::write(&theirs, "theirs").unwrap();
    let body = Body::from(vec![7; 10_000]);
    for id in 1..=2 {
        journal.append(&accepted(id, &body)).unwrap();
    }
    let why = wait_until_failing(&journal, &woken, 1);
    assert!(why.contains("00000002.log"), "{why}");
    assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
    std::fs::remove_file(&theirs).unwrap();
    journal.close().unwrap();
    assert_eq!(ids(&open(dir.path()).1), [1, 2]);
}
