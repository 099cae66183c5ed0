//! Statistics: counters, services and workers.

use super::letter::LetterDetails;
use super::listed::{FIRST_BYTES, first_bytes};
use super::requests::{REQUEST_BYTES, State};
use super::settings::Millis;
use super::worker::Worker;
use super::{Core, Kind, Peer, Role, ServiceKey};
use bytes::Bytes;

/// Dead letters of a service among which the oldest is looked for.
const LETTERS_FOR_AGE: usize = 64;

/// Events since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests accepted.
    pub accepted: u64,
    /// Requests that were repeated and recognised.
    pub duplicates: u64,
    /// Requests refused: no space, the journal couldn't be written, or the broker was stopping.
    pub refused: u64,
    /// Attempts: requests given to workers, each time.
    pub dispatched: u64,
    /// Requests put back into their queue because their worker went or returned them.
    pub requeued: u64,
    /// Requests that ended with a worker's reply.
    pub replied: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Replies to requests that had ended.
    pub late_replies: u64,
    /// Parts of replies whose client was absent.
    pub lost_parts: u64,
    /// Requests dropped because their client was gone.
    pub given_up: u64,
    /// Outcomes dropped because their client was gone.
    pub outcomes_dropped: u64,
    /// Requests ended, and dead letters removed, by an operator.
    pub purged: u64,
    /// Requests kept as dead letters.
    pub dead_letters: u64,
}

/// Events of a service since it was added: while it has neither workers nor requests it is forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Requests accepted.
    pub accepted: u64,
    /// Requests that ended with a worker's reply.
    pub replied: u64,
    /// Requests that ended otherwise, but for those that an operator ended.
    pub failed: u64,
}

/// A service and its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceInfo {
    /// The name.
    pub name: Bytes,
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Bytes of memory of the waiting requests.
    pub waiting_bytes: usize,
    /// Bytes of memory of all its requests, in whatever state, and of their outcomes.
    pub bytes: usize,
    /// Bytes of the waiting requests that aren't in memory.
    pub waiting_large_bytes: u64,
    /// Requests in all, in whatever state.
    pub live: usize,
    /// Workers.
    pub workers: usize,
    /// When the one that has waited longest was taken, or last given to a worker, if any waits.
    pub oldest_since: Option<Millis>,
    /// An operator has paused it.
    pub is_paused: bool,
    /// Dead letters for it.
    pub letters: usize,
    /// When the oldest of these was kept; negative: before the core's time began.
    pub letters_since: Option<i64>,
    /// Milliseconds within which 19 of 20 replies came lately, rounded up to a power of two.
    pub usual_ms: Option<Millis>,
    /// The same of half of the replies.
    pub median_ms: Option<Millis>,
    /// Events since it was added.
    pub counters: ServiceCounters,
    /// Requests that workers have.
    pub in_flight: usize,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterInfo {
    /// Its id in the journal.
    pub id: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// Its first bytes, if they are in memory.
    pub first: Option<Vec<u8>>,
    /// Its state.
    pub state: LetterState,
    /// The number of the request at its client.
    pub number: u64,
    /// Why it was given up, after how many attempts, and when.
    pub details: LetterDetails,
}

/// State of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterState {
    /// In its queue.
    Waiting,
    /// A worker has it.
    Worker,
    /// A worker failed it, or went. It is queued again soon.
    Failed,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The connection.
    pub peer: Peer,
    /// The service.
    pub service: Bytes,
    /// The protocol.
    pub kind: Kind,
    /// Requests that it takes at a time.
    pub credit: u32,
    /// Requests that it has.
    pub held: usize,
    /// Until when it is given nothing, as it has given a request back.
    pub rests_until: Option<Millis>,
    /// Why it has given one back, if it hasn't done such a request since.
    pub gave_back: Option<Bytes>,
    /// How often it has given some back since then.
    pub gave_back_in_a_row: u8,
    /// Requests that it failed, or that expired while it had them, since its last other reply.
    pub failed_in_a_row: u16,
    /// When it was given the oldest of its requests, or sent the last part of the reply.
    pub oldest_since: Option<Millis>,
    /// How long its service usually takes: [`ServiceInfo::usual_ms`].
    pub usual_ms: Option<Millis>,
}

impl Core {
    pub(super) fn service_info(&self, key: ServiceKey) -> ServiceInfo {
        let service = self.services.at(key);
        // One that was sent again and came back has a low number.
        let first = service.letters.iter().take(LETTERS_FOR_AGE);
        let letters_since = first.filter_map(|number| Some(self.dead_letters.details(*number)?.kept)).min();
        ServiceInfo {
            name: service.name.clone(),
            waiting: service.waiting.sums().requests,
            waiting_bytes: service.waiting.sums().bytes + service.waiting.sums().requests * REQUEST_BYTES,
            bytes: service.bytes,
            waiting_large_bytes: service.waiting.sums().large_bytes,
            live: service.live,
            workers: service.workers,
            oldest_since: self.services.oldest_since(&self.requests, key),
            is_paused: service.is_paused,
            letters: service.letters.len(),
            letters_since,
            usual_ms: service.usual.usual_ms(),
            median_ms: service.usual.median_ms(),
            counters: service.counters,
            in_flight: service.in_flight,
        }
    }

    /// Clients with requests in the queue of a service; `None` if there are more than `most`, or no such service.
    pub fn waiting_clients(&self, service: &[u8], most: usize) -> Option<usize> {
        self.services.waiting_clients(self.services.find_by_name(service)?, most)
    }

    /// Requests of all services that wait for a worker.
    pub fn waiting(&self) -> usize {
        self.services.waiting_count
    }

    /// Dead letters of a service by number, the oldest first, from this one on.
    pub fn letters_from(&self, service: &[u8], number: u32) -> impl Iterator<Item = (u32, Option<LetterInfo>)> + '_ {
        let letters = self.letter_queue(service).map(|(_, key)| self.services.at(key).letters.range(number..));
        letters.into_iter().flatten().map(|number| (*number, self.letter(*number)))
    }

    fn letter(&self, number: u32) -> Option<LetterInfo> {
        let request = self.requests.at(self.slot_of_letter(number)?);
        let (_, origin) = self.dead_letters.origin(number)?;
        Some(LetterInfo {
            id: request.journal_id,
            bytes: request.body.length(),
            first: first_bytes(&request.body, FIRST_BYTES),
            number: origin,
            details: self.dead_letters.details(number)?.clone(),
            state: match request.state {
                State::Held(..) => LetterState::Worker,
                State::Parked | State::Postponed => LetterState::Failed,
                State::Waiting | State::Detached | State::Settled | State::Free => LetterState::Waiting,
            },
        })
    }

    /// The number of dead letters of all services.
    pub fn dead_letters(&self) -> usize {
        self.dead_letters.len()
    }

    /// The number of dead letters of a service.
    pub fn letters(&self, service: &[u8]) -> usize {
        self.letter_queue(service).map_or(0, |(_, key)| self.services.at(key).letters.len())
    }

    /// Entries for the journal since the start, and how many of them are on the disk.
    pub fn entries(&self) -> (u64, u64) {
        (self.durability.appended(), self.durability.durable())
    }

    /// Services by number, from this one on.
    pub fn services_from(&self, number: u32) -> impl Iterator<Item = (u32, ServiceInfo)> + '_ {
        self.services.iter_from(number).map(|(key, _)| (key, self.service_info(key)))
    }

    /// Workers by number, from this one on.
    pub fn workers_from(&self, number: u32) -> impl Iterator<Item = (u32, WorkerInfo)> + '_ {
        self.workers.iter_from(number).map(|(key, worker)| (key, self.worker_info(worker)))
    }

    /// The worker of a connection, if it is one.
    pub fn worker(&self, peer: Peer) -> Option<WorkerInfo> {
        match self.roles.get(peer) {
            Role::Worker(key) => self.workers.get(key).map(|worker| self.worker_info(worker)),
            Role::None | Role::Client(_) => None,
        }
    }

    /// When a worker was given its oldest request. A stock worker is busy with one that has ended until it replies.
    pub(super) fn oldest_of(&self, worker: &Worker) -> Option<Millis> {
        let held = worker.held.first().map(|slot| self.requests.at(slot).since);
        worker.abandoned.iter().map(|(_, since)| *since).chain(held).min()
    }

    pub(super) fn worker_info(&self, worker: &Worker) -> WorkerInfo {
        let service = self.services.at(worker.service);
        WorkerInfo {
            peer: worker.peer,
            service: service.name.clone(),
            kind: worker.kind,
            credit: worker.credit,
            held: worker.held.len,
            rests_until: worker.rest.until,
            gave_back: (worker.rest.in_a_row > 0).then(|| worker.rest.reason.clone()),
            gave_back_in_a_row: worker.rest.in_a_row,
            failed_in_a_row: worker.failed_in_a_row,
            oldest_since: self.oldest_of(worker),
            usual_ms: service.usual.usual_ms(),
        }
    }

    /// Numbers of services and of workers.
    pub fn counts(&self) -> (usize, usize) {
        (self.services.len(), self.workers.len())
    }

    /// Whether the journal can't be written at the moment.
    pub fn has_storage_failed(&self) -> bool {
        self.storage_failure.is_some()
    }

    /// Outcomes that clients haven't confirmed, with stored ones, and their bytes of memory.
    pub fn outcomes(&self) -> (usize, usize) {
        (self.replies.kept().count, self.replies.kept().bytes)
    }

    /// Whether all new requests are refused for lack of space.
    pub fn is_full(&self) -> bool {
        let (requests, bytes) = self.used();
        let has_space = requests < self.settings.requests_max && bytes < self.settings.bytes_max;
        self.full.is_since_look || self.full.was_before || !has_space
    }

    /// Events since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// All services.
    pub fn services(&self) -> impl Iterator<Item = ServiceInfo> + '_ {
        self.services.iter().map(|(key, _)| self.service_info(key))
    }

    /// One service.
    pub fn service(&self, name: &[u8]) -> Option<ServiceInfo> {
        self.services.find_by_name(name).map(|key| self.service_info(key))
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerInfo> + '_ {
        self.workers.iter().map(|(_, worker)| self.worker_info(worker))
    }

    /// The number of requests, in whatever state, and the bytes of memory of all requests and replies.
    pub fn load(&self) -> (usize, usize) {
        (self.requests.len(), self.bytes)
    }
}
