//! Normal use, on a real directory.

use super::*;
use crate::SpooledBody;
use bytes::Bytes;
use std::any::Any;
use std::fs::File;
use std::os::unix::fs::FileExt;
use towpath_requests::LargeBody;
use towpath_spool::Spool;

#[test]
fn requests_that_are_not_forgotten_are_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = open(dir.path());
    assert!(recovered.requests.is_empty() && recovered.cut.is_none());
    assert_eq!(recovered.next_id, 1);

    let small = Body::copied(b"small");
    let frames = Body::of_frames([Bytes::from_static(b"one"), Bytes::new(), Bytes::from(vec![3; 5000])]);
    let large = Body::from(vec![9; 200_000]);
    let empty = Body::default();
    for (id, body) in [(1, &small), (2, &frames), (3, &large), (4, &empty), (5, &small)] {
        journal.append(&accepted(id, body)).unwrap();
    }
    journal.append(&Entry::Finished { id: 1, status: 200, body: &frames }).unwrap();
    journal.append(&Entry::Finished { id: 5, status: 500, body: &small }).unwrap();
    let last = journal.append(&Entry::Forgotten { id: 5 }).unwrap();
    wait_for(&journal, last);
    journal.close().unwrap();

    // Twice, since opening writes too.
    for _ in 0..2 {
        let (journal, recovered) = open(dir.path());
        assert_eq!(ids(&recovered), [1, 2, 3, 4]);
        assert_eq!(recovered.next_id, 6);
        let [one, two, three, four] = &recovered.requests[..] else { panic!() };
        assert_eq!((one.client, one.number, &one.service[..], one.expires.unix_ms), ([1; 16], 1001, &b"echo"[..], 7));
        assert_eq!(one.outcome, Some((200, frames.clone())));
        assert_eq!(one.body, empty, "the request of an outcome isn't needed");
        assert_eq!((&two.body, &two.outcome), (&frames, &None));
        assert_eq!(three.body, large);
        assert_eq!(four.body, empty);
        assert_eq!(journal.figures().requests, 4);
        journal.close().unwrap();
    }
}

#[test]
fn the_same_directory_is_refused_to_a_second_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let error = Journal::open(dir.path(), small(), || {}).unwrap_err();
    assert!(matches!(error, JournalError::Locked { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(matches!(inspect(dir.path(), |_| {}), Err(JournalError::Locked { .. })));
    drop(journal);
    open(dir.path());
}

#[test]
fn removing_the_lock_file_does_not_admit_a_second_owner() {
    use rustix::fs::{FlockOperation, flock};
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let error = Journal::open(dir.path(), small(), || {}).unwrap_err();
    assert!(matches!(error, JournalError::Locked { .. }), "{error}");
    assert!(matches!(inspect(dir.path(), |_| {}), Err(JournalError::Locked { .. })));
    drop(journal);

    // An earlier build.
    drop(open(dir.path()));
    let file = File::open(dir.path().join("lock")).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = Journal::open(dir.path(), small(), || {}).unwrap_err();
    assert!(error.to_string().contains("another process is using this journal (process "), "{error}");
    assert!(matches!(inspect(dir.path(), |_| {}), Err(JournalError::Locked { .. })));
    drop(file);
    open(dir.path());
}

/// As a process has it that another thread starts at that moment.
#[test]
fn a_copy_of_the_descriptors_does_not_keep_the_lock() {
    use crate::directory;
    let dir = tempfile::tempdir().unwrap();
    let opened = directory::open(dir.path()).unwrap();
    let lock = directory::lock(dir.path(), &opened).unwrap();
    let copies = (opened.try_clone().unwrap(), lock.try_clone().unwrap());
    drop((opened, lock));
    open(dir.path());
    drop(copies);
}

#[test]
fn the_owner_is_woken_when_more_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, woken) = std::sync::mpsc::channel();
    let wake = move || {
        let _ = sender.send(());
    };
    let (mut journal, _) = Journal::open(dir.path(), JournalOptions::default(), wake).unwrap();
    assert_eq!(journal.durable(), Lsn(0));
    let lsn = journal.append(&accepted(1, &Body::default())).unwrap();
    while journal.durable() <= lsn {
        woken.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn queued_bytes_are_bounded_but_for_one_entry() {
    let dir = tempfile::tempdir().unwrap();
    let options = JournalOptions { pending_bytes: 1000, ..small() };
    let (mut journal, _) = Journal::open(dir.path(), options, || {}).unwrap();
    let lsn = journal.append(&accepted(1, &Body::from(vec![1; 10_000]))).unwrap();
    wait_for(&journal, lsn);
    // Faster than any disk.
    let body = Body::from(vec![1; 900]);
    let refused = (2..1000).find_map(|id| journal.append(&accepted(id, &body)).err());
    assert!(matches!(refused, Some(JournalError::Full)));
    assert!(journal.pending_bytes() <= 1000);
    assert_eq!(journal.status(), Status::Working);
}

#[test]
fn entries_over_the_limits_are_refused() {
    #[derive(Debug)]
    struct Elsewhere;
    impl LargeBody for Elsewhere {
        fn length(&self) -> u64 {
            5
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(dir.path());
    let elsewhere = Body::large(Arc::new(Elsewhere));
    assert!(matches!(journal.append(&accepted(1, &elsewhere)), Err(JournalError::UnknownBody)));
    let large = Body::from(vec![0; towpath_requests::limits::BODY_BYTES_MAX + 1]);
    assert!(matches!(journal.append(&accepted(1, &large)), Err(JournalError::TooLarge(_))));
    let many = Body::of_frames(std::iter::repeat_n(Bytes::new(), towpath_requests::limits::BODY_FRAMES_MAX + 1));
    assert!(matches!(journal.append(&accepted(1, &many)), Err(JournalError::TooLarge(_))));
    let body = Body::default();
    let service = vec![b's'; 256];
    let entry = Entry::Accepted {
        id: 1,
        client: [0; 16],
        number: 1,
        service: &service,
        expires: Expiry::NEVER,
        checksum: 0,
        letter: None,
        body: &body,
    };
    assert!(matches!(journal.append(&entry), Err(JournalError::TooLarge(_))));
    journal.close().unwrap();
    assert!(open(dir.path()).1.requests.is_empty());
}

#[test]
fn a_body_in_a_file_is_kept_until_it_is_not_needed() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = || std::fs::read_dir(dir.path().join("bodies")).unwrap().count();
    for elsewhere in [false, true] {
        let spool = Spool::new(dir.path().join("spool")).unwrap();
        let (mut journal, recovered) = open(dir.path());
        let id = recovered.next_id;
        let spooled = |byte: u8| {
            let mut writer = spool.create().unwrap();
            writer.write(&vec![byte; 300_000]).unwrap();
            let body = writer.finish();
            if elsewhere {
                // Linked by another way before: then it is copied.
                let name = index::body_name(id, byte == b'o');
                std::fs::write(dir.path().join("bodies").join(name), "in the way").unwrap();
            }
            Body::large(body)
        };
        let request = spooled(b'r');
        journal.append(&accepted(id, &request)).unwrap();
        journal.append(&accepted(id + 1, &Body::from("other"))).unwrap();
        journal.close().unwrap();
        drop(request);
        assert_eq!(bodies(), 1);

        let read = |body: &Body| {
            let any: &dyn Any = &**body.as_large().unwrap();
            let spooled = any.downcast_ref::<SpooledBody>().unwrap();
            let mut bytes = vec![0; spooled.length() as usize];
            spooled.file().read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let (mut journal, recovered) = open(dir.path());
        assert_eq!(read(&recovered.requests[0].body), vec![b'r'; 300_000]);
        let outcome = spooled(b'o');
        let finished = Entry::Finished { id, status: 200, body: &outcome };
        journal.append(&finished).unwrap();
        journal.close().unwrap();
        assert_eq!(bodies(), 1, "the request's is gone");
        // Owners of the body can still read it.
        assert_eq!(read(&recovered.requests[0].body), vec![b'r'; 300_000]);

        std::fs::write(dir.path().join("bodies/00000000000000ff.request"), "left over").unwrap();
        std::fs::write(dir.path().join("bodies/notes.txt"), "not ours").unwrap();
        let (mut journal, recovered) = open(dir.path());
        assert_eq!(read(&recovered.requests[0].outcome.as_ref().unwrap().1), vec![b'o'; 300_000]);
        assert_eq!(bodies(), 2);
        std::fs::remove_file(dir.path().join("bodies/notes.txt")).unwrap();
        journal.append(&Entry::Forgotten { id }).unwrap();
        journal.append(&Entry::Forgotten { id: id + 1 }).unwrap();
        journal.close().unwrap();
        assert_eq!(bodies(), 0);
    }
}

#[test]
fn segments_are_removed_and_reused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(dir.path());
    let body = Body::from(vec![7; 1000]);
    let mut last = Lsn(0);
    for id in 1..2000 {
        journal.append(&accepted(id, &body)).unwrap();
        journal.append(&Entry::Finished { id, status: 200, body: &body }).unwrap();
        last = journal.append(&Entry::Forgotten { id }).unwrap();
        if id % 3 == 0 {
            wait_for(&journal, last);
        }
    }
    wait_for(&journal, last);
    let start = Instant::now();
    while journal.figures().segments > 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "not compacted: {:?}", journal.figures());
        std::thread::sleep(Duration::from_micros(200));
    }
    journal.close().unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert!(files <= 7, "{files}");
    let (_journal, recovered) = open(dir.path());
    assert!(recovered.requests.is_empty());
    assert_eq!(recovered.next_id, 2000, "ids are not used again, even if nothing of them is left");
}

#[test]
fn a_few_long_lived_requests_do_not_keep_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(dir.path());
    let body = Body::from(vec![7; 1000]);
    let mut last = Lsn(0);
    let mut most = 0;
    for id in 1..6000 {
        journal.append(&accepted(id, &body)).unwrap();
        // Some have their outcome: then the request is kept without its body.
        if id % 100 == 50 {
            last = journal.append(&Entry::Finished { id, status: 200, body: &Body::from("done") }).unwrap();
        } else if id % 100 != 0 {
            last = journal.append(&Entry::Forgotten { id }).unwrap();
        }
        if id % 5 == 0 {
            wait_for(&journal, last);
            let figures = journal.figures();
            let allowed = 5 * figures.needed_bytes + 6 * small().segment_bytes;
            assert!(figures.log_bytes <= allowed, "{figures:?}");
            most = most.max(figures.log_bytes);
        }
    }
    assert!(most < 900_000, "{most}");
    journal.close().unwrap();
    let (_journal, recovered) = open(dir.path());
    assert_eq!(ids(&recovered), (1..6000).filter(|id| id % 50 == 0).collect::<Vec<_>>());
    for request in &recovered.requests {
        let finished = request.id % 100 == 50;
        assert_eq!(request.outcome, finished.then(|| (200, Body::from("done"))));
        assert_eq!(request.body, if finished { Body::default() } else { body.clone() });
    }
}

#[test]
fn inspect_shows_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(dir.path());
    journal.append(&accepted(1, &Body::from("body"))).unwrap();
    journal.append(&Entry::Finished { id: 1, status: 404, body: &Body::from("no") }).unwrap();
    journal.append(&Entry::Forgotten { id: 1 }).unwrap();
    journal.close().unwrap();
    let mut seen = Vec::new();
    let (segments, cut) = inspect(dir.path(), |record| seen.push(record.kind)).unwrap();
    assert!(cut.is_none() && segments.len() == 1);
    assert_eq!(segments[0].needed_bytes, 0);
    let (client, service) = ([1; 16], b"echo".to_vec());
    assert_eq!(
        seen,
        [
            InspectedKind::Accepted { client, number: 1001, service, expires_unix_ms: 7, letter: None, body_bytes: 4 },
            InspectedKind::Finished { status: 404, body_bytes: 2 },
            InspectedKind::Forgotten,
        ]
    );
}
