//! Against a model: whatever the disk does, what was durable is there after a crash, and nothing is that wasn't appended.

use super::model::{Model, apply, entry_of, model_of, random_op};
use super::*;
use crate::faulty_disk::{Disk, Failing, Random};
use proptest::prelude::*;
use towpath_spool::Spool;

/// A journal's life over some crashes. Between two it takes what `random` gives, with faults; each time it has to come back with what
/// was durable and a beginning of what was appended later.
fn live(seed: u64, faults: bool, crashes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::new(dir.path()).unwrap();
    let mut random = seed | 1;
    let disk = Disk::new(seed ^ 0x5555);
    // With faults some disks are full at times, and some owners want requests given up then.
    let options = JournalOptions {
        segment_bytes: 4096,
        pending_bytes: 1 << 20,
        repairs: false,
        gives_up: faults && random.chance(2),
    };
    // Acceptable states: a model for each prefix that may have become durable.
    let mut possible = vec![Model::new()];
    let mut next_id = 1;
    for crash in 0..crashes {
        let opened = {
            // Opening is a write like any other, and may meet faults and crashes.
            disk.world().fault_in = if faults && random.chance(3) { 20 } else { 0 };
            disk.world().crash_in = random.chance(4).then(|| random.below(12));
            Journal::open_on(disk.clone(), &options, None, || {})
        };
        let (mut journal, recovered) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                assert!(matches!(error, JournalError::Io { .. }), "{crash}: {error}");
                start_again(&disk, &mut random);
                continue;
            }
        };
        let found = model_of(&recovered);
        assert!(possible.contains(&found), "seed {seed}, crash {crash}: {found:?} of {} possible", possible.len());
        assert!(recovered.next_id >= next_id, "{} {next_id}", recovered.next_id);
        next_id = recovered.next_id;

        disk.world().fault_in = if faults { 25 } else { 0 };
        disk.world().crash_in = (crash + 1 < crashes).then(|| random.below(300));
        let mut states = vec![found];
        let mut given = next_id;
        'append: for _ in 0..random.below(400) {
            let op = random_op(&mut random, states.last().unwrap(), &mut given);
            let body = op.body(&spool);
            loop {
                let given_up = journal.take_given_up();
                if given_up.is_some_and(|ids| without(&mut states, &ids).contains(&op.id)) {
                    break;
                }
                match journal.append(&entry_of(&op, &body)) {
                    Ok(lsn) => {
                        let mut next = states.last().unwrap().clone();
                        apply(&mut next, &op);
                        states.push(next);
                        // So that there are blocks of one record and of many.
                        while random.chance(5) && journal.durable() <= lsn && !disk.world().crashed {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        break;
                    }
                    Err(JournalError::Failing(_)) if disk.world().crashed => break 'append,
                    Err(JournalError::Failing(_)) => std::thread::sleep(Duration::from_micros(200)),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let shared = journal.shared.clone();
        if random.chance(4) {
            disk.world().crash_in = None;
            disk.world().fault_in = 0;
            let closed = journal.close();
            without(&mut states, &shared.queue().given_up.take().unwrap_or_default());
            if !disk.world().crashed {
                closed.unwrap();
                states.drain(..states.len() - 1);
            }
        } else {
            drop(journal);
            without(&mut states, &shared.queue().given_up.take().unwrap_or_default());
            let durable = shared.durable.load(Ordering::Acquire);
            // Of ids only those are promised that became durable.
            states.drain(..usize::try_from(durable).unwrap());
        }
        possible = states;
        next_id = possible[0].keys().max().map_or(next_id, |id| next_id.max(id + 1));
        start_again(&disk, &mut random);
    }
}

/// Leaves out what was given up: it may never be found, whatever happens.
fn without<'a>(states: &mut [Model], ids: &'a [u64]) -> &'a [u64] {
    states.iter_mut().for_each(|state| state.retain(|id, _| !ids.contains(id)));
    ids
}

/// After the machine has crashed, or only the process.
fn start_again(disk: &Disk, random: &mut u64) {
    if random.chance(3) { disk.kill() } else { disk.restart() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn durable_records_survive_crashes(seed: u64) {
        live(seed, false, 8);
    }

    #[test]
    fn durable_records_survive_crashes_and_faults(seed: u64) {
        live(seed, true, 8);
    }
}

/// Only for the zeros behind its block there was no space.
#[test]
fn given_up_requests_are_not_found_though_their_block_was_written() {
    let disk = Disk::new(7);
    let options = JournalOptions { gives_up: true, ..small() };
    let (mut journal, _) = Journal::open_on(disk.clone(), &options, None, || {}).unwrap();
    let body = Body::from("body");
    let kept = journal.append(&accepted(1, &body)).unwrap();
    wait_for(&journal, kept);
    disk.world().failing = Some(Failing::EndOfWrite);
    journal.append(&accepted(2, &body)).unwrap();
    let start = Instant::now();
    let given_up = loop {
        if let Some(given_up) = journal.take_given_up() {
            break given_up;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", journal.status());
        std::thread::sleep(Duration::from_micros(200));
    };
    assert_eq!(given_up, [2]);
    disk.world().crashed = true;
    drop(journal);
    disk.kill();
    disk.world().failing = None;
    let (mut journal, recovered) = Journal::open_on(disk, &options, None, || {}).unwrap();
    assert_eq!((ids(&recovered), &recovered.cut), (vec![1], &None));
    let next = journal.append(&accepted(2, &body)).unwrap();
    wait_for(&journal, next);
}

#[test]
fn a_full_disk_is_failing_until_something_could_be_written_though_nobody_appends() {
    let disk = Disk::new(7);
    let options = JournalOptions { gives_up: true, ..small() };
    let (mut journal, _) = Journal::open_on(disk.clone(), &options, None, || {}).unwrap();
    disk.world().failing = Some(Failing::EndOfWrite);
    journal.append(&accepted(1, &Body::from("body"))).unwrap();
    let start = Instant::now();
    let mut given_up = None;
    while given_up.is_none() || journal.figures().errors < 6 {
        given_up = given_up.or(journal.take_given_up());
        assert!(given_up.is_none() || journal.status() != Status::Working, "nothing was written");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", journal.figures());
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(journal.append(&accepted(2, &Body::from("body"))).is_err());
    disk.world().failing = None;
    while journal.status() != Status::Working {
        journal.take_given_up();
        assert!(start.elapsed() < Duration::from_secs(40), "{:?}", journal.status());
        std::thread::sleep(Duration::from_micros(200));
    }
    journal.take_given_up();
    let next = journal.append(&accepted(3, &Body::from("body"))).unwrap();
    wait_for(&journal, next);
    journal.close().unwrap();
    let (_, recovered) = Journal::open_on(disk, &options, None, || {}).unwrap();
    assert_eq!(ids(&recovered), [3]);
}

/// An outcome is written, but not synced, when the process is killed; the machine crashes while the next one starts. The request's body
/// has to be there still if the outcome isn't.
#[test]
fn a_body_is_not_removed_for_an_outcome_that_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::new(dir.path()).unwrap();
    let mut lost = 0;
    for seed in 1..400_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let disk = Disk::new(random);
        let open = || Journal::open_on(disk.clone(), &small(), None, || {});
        let (mut journal, _) = open().unwrap();
        let mut writer = spool.create().unwrap();
        writer.write(b"the request").unwrap();
        let lsn = journal.append(&accepted(1, &Body::large(writer.finish()))).unwrap();
        wait_for(&journal, lsn);
        disk.world().crash_in = Some(random.below(6));
        let outcome = Body::from("the outcome");
        let _ = journal.append(&Entry::Finished { id: 1, status: 200, body: &outcome });
        drop(journal);
        disk.kill();
        disk.world().crash_in = Some(random.below(8));
        drop(open());
        disk.restart();
        let (_, recovered) = open().unwrap();
        let request = &recovered.requests[0];
        lost += u64::from(request.outcome.is_none());
        assert!(request.outcome.is_some() || request.body.length() == 11);
    }
    assert!(lost > 20, "{lost}");
}

/// The process is killed, or fails, while it opens the journal, and the machine crashes while the next one does: whichever of the names
/// in the directory are on the disk then, no segment is missing among the others.
#[test]
fn recovery_may_be_interrupted_repeatedly() {
    let body = Body::from("body");
    let open = |disk: &Disk| Journal::open_on(disk.clone(), &small(), None, || {});
    for (first, second, seed) in
        (0..25).flat_map(|first| (0..25).flat_map(move |second| (0..4).map(move |s| (first, second, s))))
    {
        let disk = Disk::new(seed * 0x9E37_79B9 + first * 100 + second);
        let (mut journal, _) = open(&disk).unwrap();
        let lsn = journal.append(&accepted(1, &body)).unwrap();
        wait_for(&journal, lsn);
        journal.close().unwrap();
        for operations in [first, second] {
            disk.kill();
            disk.world().crash_in = Some(operations);
            drop(open(&disk));
        }
        disk.restart();
        let (_journal, recovered) = open(&disk).unwrap_or_else(|error| panic!("{first}, {second}, {seed}: {error}"));
        assert_eq!(ids(&recovered), [1]);
    }
}

/// Wherever the machine crashes while a dead letter is moved, it is in one place afterwards, whole.
#[test]
fn a_moved_letter_is_in_one_place_wherever_it_crashes() {
    let body = Body::from("the letter");
    let (mut there, mut moved) = (0, 0);
    for operations in 0..40 {
        for seed in 1..6_u64 {
            let disk = Disk::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + operations);
            let open = || Journal::open_on(disk.clone(), &small(), None, || {});
            let (mut journal, _) = open().unwrap();
            let lsn = journal.append(&accepted(4, &body)).unwrap();
            wait_for(&journal, lsn);
            disk.world().crash_in = Some(operations);
            for (moves, service) in [(1, &b"dlq.echo"[..]), (2, b"echo"), (3, b"dlq.echo")] {
                if let Ok(lsn) = journal.append(&Entry::Moved { id: 4, moves, letter: letter(9), service }) {
                    while journal.durable() <= lsn && !disk.world().crashed {
                        std::thread::yield_now();
                    }
                }
            }
            drop(journal);
            disk.restart();
            let (_, recovered) = open().unwrap();
            let [letter] = &recovered.requests[..] else { panic!("{operations}, {seed}: {recovered:?}") };
            assert_eq!((letter.id, &letter.body), (4, &body));
            there += usize::from(&letter.service[..] == b"echo");
            moved += usize::from(&letter.service[..] == b"dlq.echo");
        }
    }
    assert!(there > 10 && moved > 10, "{there} {moved}");
}
