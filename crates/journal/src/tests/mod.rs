#![allow(clippy::unwrap_used)]

mod basics;
mod crashes;
mod damage;
mod freeing;
mod model;
mod place;

use super::*;
use std::time::{Duration, Instant};
use towpath_requests::body::Body;

/// Small segments, so that there are many.
fn small() -> JournalOptions {
    JournalOptions { segment_bytes: 16 * 1024, pending_bytes: 1 << 20, repairs: false, gives_up: false }
}

fn open(dir: &Path) -> (Journal, Recovered) {
    Journal::open(dir, small(), || {}).unwrap()
}

fn accepted(id: u64, body: &Body) -> Entry<'_> {
    let (client, number, letter) = ([id as u8; 16], id + 1000, is_letter(id).then(|| letter(9)));
    // A dead letter never expires.
    let expires = if letter.is_some() { Expiry::NEVER } else { Expiry { unix_ms: id * 7, left_ms: id * 5 } };
    Entry::Accepted { id, client, number, service: b"echo", expires, checksum: id as u32 * 3, letter, body }
}

/// More of a dead letter after so many attempts. Its texts are of different lengths.
fn letter(attempts: u16) -> Letter<'static> {
    let reason = &b"a reason why it was given up"[..usize::from(attempts) % 28];
    Letter { attempts, kept_unix_ms: 1_000 * u64::from(attempts), reason, client: b"a client", worker: b"" }
}

/// Whether the request of this id is a dead letter.
fn is_letter(id: u64) -> bool {
    id % 5 == 4
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
