//! That segments are freed also after something about it has failed.

use super::*;
use crate::faulty_disk::{Disk, Failing};

/// A journal on a disk, and what was done with it.
struct Busy {
    disk: Disk,
    journal: Journal,
    next: u64,
}

impl Busy {
    /// One request stays, so that segments have to be cleaned.
    fn new() -> Busy {
        let disk = Disk::new(1);
        let (mut journal, _) = Journal::open_on(disk.clone(), &small(), None, || {}).unwrap();
        journal.append(&accepted(1, &Body::from("stays"))).unwrap();
        Busy { disk, journal, next: 2 }
    }

    /// So many segments' worth of requests that are forgotten at once.
    fn write(&mut self, segments: u64) {
        let body = Body::from(vec![7; 500]);
        for _ in 0..segments * 16 * 1024 / 600 {
            let id = self.next;
            self.append(&accepted(id, &body));
            let last = self.append(&Entry::Forgotten { id });
            self.next += 1;
            wait_for(&self.journal, last);
        }
    }

    fn append(&mut self, entry: &Entry) -> Lsn {
        let start = Instant::now();
        loop {
            match self.journal.append(entry) {
                Ok(lsn) => return lsn,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn segments(&self) -> u64 {
        self.disk.segments().len() as u64
    }

    /// Until there are as few segments as there should be, though nothing is written.
    fn wait_until_freed(&self, after: Failing) {
        let start = Instant::now();
        while self.segments() > 6 {
            assert!(start.elapsed() < Duration::from_secs(20), "{after:?}: {} segments", self.segments());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_fault_during_compaction_is_retried() {
    for failing in [Failing::Removal, Failing::Open] {
        let mut busy = Busy::new();
        busy.disk.world().failing = Some(failing);
        busy.write(12);
        assert!(busy.segments() > 10, "{failing:?} keeps {} segments", busy.segments());
        busy.disk.world().failing = None;
        busy.wait_until_freed(failing);
        busy.write(12);
        busy.wait_until_freed(failing);
        busy.journal.close().unwrap();
    }
}

#[test]
fn faults_leave_no_files_behind() {
    for failing in [Failing::SyncOfRemoval, Failing::Reuse] {
        let mut busy = Busy::new();
        busy.disk.world().failing = Some(failing);
        busy.write(30);
        busy.disk.world().failing = None;
        busy.write(6);
        busy.wait_until_freed(failing);
        let spares = busy.disk.spares();
        assert!(spares <= 2, "{failing:?} leaves {spares}");
        busy.journal.close().unwrap();
    }
}
