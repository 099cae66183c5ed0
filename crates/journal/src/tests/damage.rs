//! Files that something else has written to: an end is cut, anything before it stops the start.

use super::model::{Model, apply, entry_of, model_of, random_op};
use super::*;
use crate::faulty_disk::{Disk, Random};
use proptest::prelude::*;
use std::collections::BTreeMap;
use towpath_spool::Spool;

type Files = BTreeMap<String, Vec<u8>>;

/// The files of a journal, what it holds after each of its blocks in the last segment, and where those begin.
struct Written {
    files: Files,
    last: String,
    starts: Vec<usize>,
    /// One more than starts: before the first block, and after each.
    states: Vec<Model>,
    /// Where the end mark begins.
    mark: usize,
}

const SMALL: u64 = 4096;
/// As much as a test writes.
const ENOUGH: u64 = 1 << 16;

fn options() -> JournalOptions {
    JournalOptions { segment_bytes: SMALL, pending_bytes: 1 << 20, repairs: false, gives_up: false }
}

/// A journal of one block an entry. Bodies are in memory, since what is lost of a file isn't this journal's doing.
fn written(seed: u64, entries: u64, segment_bytes: u64) -> Written {
    let mut random = seed | 1;
    let disk = Disk::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::new(dir.path()).unwrap();
    let options = JournalOptions { segment_bytes, ..options() };
    let (mut journal, _) = Journal::open_on(disk.clone(), &options, None, || {}).unwrap();
    let mut models = vec![Model::new()];
    let mut next_id = 1;
    for _ in 0..entries {
        let mut op = random_op(&mut random, models.last().unwrap(), &mut next_id);
        op.large = false;
        let lsn = journal.append(&entry_of(&op, &op.body(&spool))).unwrap();
        wait_for(&journal, lsn);
        let mut next = models.last().unwrap().clone();
        apply(&mut next, &op);
        models.push(next);
    }
    journal.close().unwrap();
    let files = disk.segments();
    let (last, bytes) = files.last_key_value().unwrap();
    let header = block::SegmentHeader::decode(bytes).unwrap();
    let file = Storage::open(&disk, last).unwrap();
    let mut reader = read::Reader::new(file, &header, bytes.len() as u64);
    let (mut starts, mut mark) = (Vec::new(), None);
    while let read::Next::Block { start, records, .. } = reader.next().unwrap() {
        mark = (records == 0).then_some(start as usize);
        if records > 0 {
            starts.push(start as usize);
        }
    }
    let mark = mark.unwrap();
    let states = models.split_off(models.len() - starts.len() - 1);
    Written { last: last.clone(), files, starts, states, mark }
}

fn reopened(files: &Files) -> Result<(Recovered, Disk), JournalError> {
    let disk = Disk::holding(files);
    let (journal, recovered) = Journal::open_on(disk.clone(), &options(), None, || {})?;
    drop(journal);
    Ok((recovered, disk))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Cut off anywhere, the last segment gives what was in its whole blocks; and once more when it is opened again.
    #[test]
    fn a_truncated_segment_yields_its_whole_blocks(seed: u64) {
        // In one segment, so that nothing was moved: what was moved isn't where it was.
        let written = written(seed, 30, ENOUGH);
        let mut random = seed | 1;
        for _ in 0..40 {
            let mut files = written.files.clone();
            let file = files.get_mut(&written.last).unwrap();
            let end = written.starts.last().map_or(64, |last| last + 200).min(file.len());
            let length = 64 + random.below(end as u64 - 63) as usize;
            file.truncate(length);
            let (recovered, disk) = reopened(&files).unwrap();
            let found = model_of(&recovered);
            let whole = written.states.iter().rposition(|state| *state == found);
            let begun = written.starts.iter().filter(|start| **start < length).count();
            prop_assert!(whole.is_some(), "nothing is invented");
            let state = &written.states[begun];
            // Either the last block that was begun is whole, or it was cut, and that was said.
            let cut_short = begun > 0 && found == written.states[begun - 1];
            prop_assert!(found == *state || cut_short && recovered.cut.is_some());
            let again = reopened(&disk.segments()).unwrap().0;
            prop_assert_eq!(model_of(&again), found);
            prop_assert!(again.cut.is_none());
        }
    }

    /// One byte that is wrong in a journal that was closed is of no consequence, or it stops the start; then it can be repaired, and all is there
    /// that wasn't in that block.
    #[test]
    fn a_flipped_byte_is_detected(seed: u64) {
        let written = written(seed, 120, SMALL);
        let mut random = seed | 1;
        let whole = written.states.last().unwrap();
        for _ in 0..60 {
            let mut files = written.files.clone();
            let which = random.below(files.len() as u64) as usize;
            let (name, file) = files.iter_mut().nth(which).unwrap();
            let name = name.clone();
            let at = random.below(file.len() as u64) as usize;
            file[at] ^= 1 << random.below(8);
            let is_behind = name == written.last && at >= written.mark;
            match reopened(&files) {
                Ok((recovered, _)) => prop_assert_eq!(&model_of(&recovered), whole, "{} {}", name, at),
                Err(JournalError::Damaged { path, .. }) => {
                    prop_assert!(!is_behind, "{name} {at}");
                    prop_assert!(path.starts_with("/disk"));
                    if at < 64 {
                        continue;
                    }
                    let disk = Disk::holding(&files);
                    let repairs = JournalOptions { repairs: true, ..options() };
                    let repaired = Journal::open_on(disk.clone(), &repairs, None, || {}).unwrap();
                    let found = model_of(&repaired.1);
                    drop(repaired);
                    // Once is enough.
                    prop_assert_eq!(model_of(&reopened(&disk.segments()).unwrap().0), found);
                }
                Err(JournalError::UnknownVersion { .. }) => prop_assert!((8..12).contains(&at)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Any bytes as a segment's blocks: nothing panics, nothing large is allocated.
    #[test]
    fn arbitrary_bytes_do_not_panic(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_segment(&data);
    }
}

#[test]
fn damage_in_the_middle_is_refused_without_changes() {
    let written = written(5, 60, ENOUGH);
    let mut files = written.files.clone();
    let at = written.starts[0] + 40;
    files.get_mut(&written.last).unwrap()[at] ^= 0xff;
    let disk = Disk::holding(&files);
    let error = Journal::open_on(disk.clone(), &options(), None, || {}).unwrap_err();
    let text = error.to_string();
    let JournalError::Damaged { path, offset, .. } = error else { panic!("{text}") };
    assert!(path.ends_with(&written.last) && offset == written.starts[0] as u64, "{text}");
    assert!(text.contains("move its directory away"), "{text}");
    assert_eq!(disk.segments(), files);

    // A page that became zeros looks like an end, but for what follows.
    let mut files = written.files.clone();
    files.get_mut(&written.last).unwrap()[written.starts[0]..written.starts[1]].fill(0);
    assert!(matches!(reopened(&files), Err(JournalError::Damaged { what: "blocks are missing", .. })));
}

#[test]
fn missing_segments_and_unknown_versions_are_errors() {
    let written = written(9, 120, SMALL);
    assert!(written.files.len() >= 3);
    let mut files = written.files.clone();
    let middle = files.keys().nth(1).unwrap().clone();
    files.remove(&middle);
    let error = reopened(&files).map(drop).unwrap_err().to_string();
    assert!(error.contains("the segment behind this one is missing"), "{error}");

    let mut files = written.files.clone();
    files.get_mut(&written.last).unwrap()[8] = 1;
    let error = reopened(&files).map(drop).unwrap_err();
    assert!(matches!(error, JournalError::UnknownVersion { version: 1, .. }));
    assert!(error.to_string().contains(&format!("this build knows format {}", block::VERSION)), "{error}");
}

#[test]
fn the_length_of_a_cut_tail_is_reported() {
    let mut written = written(5, 30, ENOUGH);
    let start = *written.starts.last().unwrap();
    let file = written.files.get_mut(&written.last).unwrap();
    // As it is when it wasn't closed, and wasn't idle.
    file[written.mark..].fill(0);
    let used = file.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    file[start + block::BLOCK_HEADER_BYTES] ^= 1;
    let cut = reopened(&written.files).unwrap().0.cut.unwrap();
    assert_eq!((cut.offset, cut.bytes), (start as u64, (used - start) as u64));
    assert!(CutTail::MEANING.contains("acknowledged"));
}

#[test]
fn the_last_block_of_an_idle_journal_is_not_taken_for_torn() {
    let disk = Disk::new(9);
    let (mut journal, _) = Journal::open_on(disk.clone(), &options(), None, || {}).unwrap();
    let lsn = journal.append(&accepted(1, &Body::from("acknowledged"))).unwrap();
    wait_for(&journal, lsn);
    let start = Instant::now();
    let flipped = loop {
        let mut files = disk.segments();
        let file = files.values_mut().next().unwrap();
        // The block with the request begins behind the header of the segment.
        file[64 + block::BLOCK_HEADER_BYTES + 20] ^= 1;
        // Until the end mark is there, it may have been torn.
        if reopened(&files).is_err() {
            break files;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "its end isn't marked");
        std::thread::sleep(Duration::from_millis(2));
    };
    let error = reopened(&flipped).map(drop).unwrap_err().to_string();
    assert!(error.contains("--repair-journal"), "{error}");
    let repairs = JournalOptions { repairs: true, ..options() };
    let (mut repaired, recovered) = Journal::open_on(Disk::holding(&flipped), &repairs, None, || {}).unwrap();
    assert_eq!(ids(&recovered), []);
    let next = repaired.append(&accepted(2, &Body::from("goes on"))).unwrap();
    wait_for(&repaired, next);
}

#[test]
fn the_journal_recovers_from_a_full_disk() {
    let disk = Disk::new(3);
    let (mut journal, _) = Journal::open_on(disk.clone(), &options(), None, || {}).unwrap();
    disk.world().space = Some(20_000);
    let body = Body::from(vec![5; 500]);
    let mut durable = 0;
    let mut taken = 0;
    for id in 1..1000 {
        match journal.append(&accepted(id, &body)) {
            Ok(_) => taken = id,
            Err(JournalError::Failing(why)) => {
                assert!(why.contains("No space left"), "{why}");
                break;
            }
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_micros(300));
        durable = journal.durable().0;
    }
    assert!(durable > 10 && taken < 999);
    assert!(matches!(journal.status(), Status::Failing(_)));

    // All that was acknowledged is there if the machine crashes now, on a copy of the disk.
    disk.world().space = None;
    wait_for(&journal, Lsn(taken - 1));
    assert_eq!(journal.status(), Status::Working);
    let lsn = journal.append(&accepted(5000, &body)).unwrap();
    wait_for(&journal, lsn);
    drop(journal);
    let (_, recovered) = Journal::open_on(disk, &options(), None, || {}).unwrap();
    assert_eq!(ids(&recovered), (1..=taken).chain([5000]).collect::<Vec<_>>());
    assert!(recovered.cut.is_none());
}
