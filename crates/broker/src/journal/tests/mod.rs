#![allow(clippy::unwrap_used)]

mod basics;
mod crashes;
mod damage;
mod disk;
mod freeing;
mod model;
mod place;

use super::*;
use crate::body::Body;
use std::time::{Duration, Instant};

/// Small segments, so that there are many.
fn small() -> JournalOptions {
    JournalOptions { segment_bytes: 16 * 1024, pending_bytes: 1 << 20, gives_up: false }
}

fn open(dir: &Path) -> (Journal, Recovered) {
    Journal::open(dir, small(), || {}).unwrap()
}

fn accepted(id: u64, body: &Body) -> Entry<'_> {
    Entry::Accepted { id, client: [id as u8; 16], number: id + 1000, service: b"echo", expires_unix_ms: id * 7, body }
}

/// A journal on a disk of which operations fail, one in `fault_in`, and what opens it again after its process was killed.
pub(crate) fn on_faulty_disk(fault_in: u64) -> impl Fn() -> (Journal, Recovered) {
    let disk = disk::Disk::new(fault_in);
    move || {
        disk.kill();
        disk.world().fault_in = 0;
        let opened = Journal::open_on(disk.clone(), &JournalOptions::default(), None, || {}).unwrap();
        disk.world().fault_in = fault_in;
        opened
    }
}

/// Until all that was appended is durable.
fn wait_for(journal: &Journal, lsn: Lsn) {
    let start = Instant::now();
    while journal.durable() <= lsn {
        assert!(start.elapsed() < Duration::from_secs(20), "not durable: {:?}", journal.status());
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn ids(recovered: &Recovered) -> Vec<u64> {
    recovered.requests.iter().map(|request| request.id).collect()
}
