//! Details of a dead letter: why it was given up, whose it is, and which worker had it last.

use super::listed::first_bytes;
use super::requests::State;
use super::{Core, LetterNumber, Peer, WorkerKey};
use bytes::Bytes;
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// Bytes of memory that a dead letter counts for its details.
pub(super) const LETTER_BYTES: usize = 512;

/// Bytes of a reason, and of a client or worker.
const REASON_BYTES_MAX: usize = 160;
const NAME_BYTES_MAX: usize = 96;

/// Details of a dead letter, as the journal keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterDetails {
    /// Attempts until it was last kept or moved.
    pub attempts: u16,
    /// When it was last kept, in the core's time; negative: before that began.
    pub kept: i64,
    /// Reason why it was last given up.
    pub reason: Bytes,
    /// User or address of its client. Empty if that isn't known.
    pub client: Bytes,
    /// User or address of the last worker that had it. Empty if that isn't known.
    pub worker: Bytes,
}

/// Reason why a worker didn't do a request, and which worker it was.
pub(super) struct Failure {
    pub reason: Bytes,
    pub worker: Bytes,
}

/// The beginning of a text.
fn beginning(text: &[u8], most: usize) -> Bytes {
    let text = String::from_utf8_lossy(&text[..text.len().min(most)]);
    let ends = text.char_indices().map(|(at, one)| at + one.len_utf8());
    let end = ends.take_while(|end| *end <= most).last().unwrap_or(0);
    Bytes::copy_from_slice(&text.as_bytes()[..end])
}

impl Core {
    /// The user or address of a connection, for people.
    fn name_of_peer(&self, peer: Peer) -> Bytes {
        self.name_of_tenant(self.tenants.of_peer(peer))
    }

    /// A user or address, for people.
    pub(super) fn name_of_tenant(&self, tenant: super::TenantKey) -> Bytes {
        let name = self.tenants.at(tenant).tenant.as_ref().map(|tenant| tenant.to_string()).unwrap_or_default();
        beginning(name.as_bytes(), NAME_BYTES_MAX)
    }

    /// A failure of a worker, for this reason.
    pub(super) fn failure_of(&self, worker: WorkerKey, reason: &[u8]) -> Failure {
        let worker = self.workers.get(worker).map(|worker| self.name_of_peer(worker.peer));
        Failure { reason: beginning(reason, REASON_BYTES_MAX), worker: worker.unwrap_or_default() }
    }

    /// A worker has replied to a request that it failed. Noted if that is a dead letter.
    #[cold]
    pub(super) fn note_failed_letter(&mut self, worker: WorkerKey, slot: u32, status: Status, body: &Body) {
        if self.is_dead_letter(slot) {
            let said = first_bytes(body, REASON_BYTES_MAX).unwrap_or_default();
            let reason = format!("a worker failed it with status {}: {}", status.0, String::from_utf8_lossy(&said));
            let failure = self.failure_of(worker, reason.trim_end_matches([':', ' ', '\n']).as_bytes());
            self.note_failure(slot, failure);
        }
    }

    /// Notes why a dead letter wasn't done.
    pub(super) fn note_failure(&mut self, slot: u32, Failure { reason, worker }: Failure) {
        let letter = self.sessions[self.requests.at(slot).session].letter;
        if let Some(details) = self.dead_letters.details_mut(letter) {
            (details.reason, details.worker) = (reason, worker);
        }
    }

    /// The body of a dead letter with this id in the journal.
    pub fn letter_body(&self, service: &[u8], id: u64) -> Option<Body> {
        let (_, slot) = self.find_letter(service, id)?;
        Some(self.requests.at(slot).body.clone())
    }

    /// A dead letter of a service by its id in the journal: its number, and its request.
    pub(super) fn find_letter(&self, service: &[u8], id: u64) -> Option<(LetterNumber, u32)> {
        let (_, queue) = self.letter_queue(service)?;
        let number = self.dead_letters.of_id(id)?;
        let slot = self.slot_of_letter(number).filter(|slot| self.requests.at(*slot).service == queue)?;
        Some((number, slot))
    }

    /// Whether nothing but a worker keeps a request from being moved or removed.
    pub(super) fn is_letter_free(&self, slot: u32) -> bool {
        matches!(self.requests.at(slot).state, State::Waiting | State::Parked | State::Postponed)
    }
}
