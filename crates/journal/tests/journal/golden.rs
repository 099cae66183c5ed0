//! A journal that an earlier build has written is read, as long as its format's number says that it can be.

use super::{bytes_of, options, state_of};
use std::path::{Path, PathBuf};
use towpath_journal::{Entry, Expiry, InspectedKind, Journal, JournalOptions, Letter, RecoveredLetter, inspect};
use towpath_requests::Body;
use towpath_spool::Spool;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/journal-6")
}

fn letter(attempts: u16) -> Letter<'static> {
    let (reason, client, worker) = (b"a worker failed it", b"user ann", b"192.0.2.1");
    Letter { attempts, kept_unix_ms: 1_700_000_000_000, reason, client, worker }
}

/// To make them for a new format: `cargo test -p towpath-journal --test journal make_golden -- --ignored`.
#[test]
#[ignore = "writes the files that the other test reads"]
fn make_golden() {
    let dir = golden();
    let options = JournalOptions { segment_bytes: 4096, ..options() };
    let spool = Spool::new(std::env::temp_dir()).expect("a spool");
    let (mut journal, _) = Journal::open(&dir, options, || {}).expect("no journal so far");
    let mut large = spool.create().expect("a file");
    large.write(&[b'L'; 1000]).expect("space");
    let frames = ["one", "", "three"].map(|frame| bytes::Bytes::from_static(frame.as_bytes()));
    let bodies =
        [Body::from("first"), Body::of_frames(frames), Body::large(large.finish()), Body::from(vec![b'x'; 3600])];
    for (id, body) in (1..).zip(&bodies) {
        let expires = if id == 2 { Expiry { unix_ms: 1_800_000_000_000, left_ms: 60_000 } } else { Expiry::NEVER };
        let (client, number, letter) = ([id as u8; 16], 100 + id, (id == 3).then(|| letter(5)));
        let entry = Entry::Accepted { id, client, number, service: b"golden", expires, checksum: 7, letter, body };
        let lsn = journal.append(&entry).expect("space");
        while journal.durable() <= lsn {
            std::thread::yield_now();
        }
    }
    journal.append(&Entry::Moved { id: 3, moves: 1, letter: letter(6), service: b"dlq.golden" }).expect("space");
    journal.append(&Entry::Finished { id: 1, status: 200, body: &Body::from("reply") }).expect("space");
    journal.append(&Entry::Forgotten { id: 4 }).expect("space");
    journal.close().expect("space");
    std::fs::remove_file(dir.join("lock")).expect("its lock");
}

#[test]
fn a_journal_of_an_earlier_build_is_read() {
    let copy = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(copy.path().join("bodies")).expect("a directory");
    for below in [".", "bodies"] {
        for entry in std::fs::read_dir(golden().join(below)).expect("the golden files") {
            let entry = entry.expect("a file");
            if entry.path().is_file() {
                std::fs::copy(entry.path(), copy.path().join(below).join(entry.file_name())).expect("a copy");
            }
        }
    }
    let mut kinds = Vec::new();
    let (segments, cut) = inspect(copy.path(), |record| kinds.push(record.kind)).expect("a journal");
    assert_eq!((segments.len(), cut), (2, None));
    assert_eq!(kinds.iter().filter(|kind| matches!(kind, InspectedKind::Accepted { .. })).count(), 4);

    let (_journal, recovered) = Journal::open(copy.path(), options(), || {}).expect("a journal");
    assert_eq!((recovered.next_id, &recovered.cut), (5, &None));
    let state = state_of(&recovered);
    assert_eq!(state.len(), 3);
    assert_eq!(state[&1], (Vec::new(), Some((200, b"reply".to_vec()))));
    assert_eq!(state[&3], (vec![b'L'; 1000], None));
    let (two, three) = (&recovered.requests[1], &recovered.requests[2]);
    let Letter { attempts, kept_unix_ms, .. } = letter(6);
    let [reason, client, worker] =
        [&b"a worker failed it"[..], b"user ann", b"192.0.2.1"].map(bytes::Bytes::from_static);
    let moved = RecoveredLetter { attempts, moves: 1, kept_unix_ms, reason, client, worker };
    assert_eq!(three.letter, Some(moved));
    assert_eq!((&three.service[..], three.number, two.checksum), (&b"dlq.golden"[..], 103, 7));
    assert_eq!((two.id, two.client, two.number, two.expires.unix_ms), (2, [2; 16], 102, 1_800_000_000_000));
    assert_eq!(&two.service[..], b"golden");
    assert_eq!(two.body.frames().map(|frames| frames.len()), Some(3));
    assert_eq!(bytes_of(&two.body), b"onethree");
}
