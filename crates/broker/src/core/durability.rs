//! Durability: what goes into the journal, what waits until it is on the disk, and what comes back after a restart.

use super::admission::{NO_JOURNAL, Refusal};
use super::dead_letter::{self, Letter};
use super::letter::LetterDetails;
use super::requests::State;
use super::service::Place;
use super::session::Session;
use super::settings::{Millis, NEVER};
use super::tenants::NOBODY;
use super::{Action, Core, SessionKey};
use bytes::Bytes;
use std::collections::{HashSet, VecDeque};
use towpath_requests::body::{Body, RequestChecksum};
use towpath_requests::numbered::{ClientId, Status};

/// Reason of a request that has become a dead letter before the broker was restarted.
const KEPT_BEFORE: &str = "given up, and kept as a dead letter";

/// Reason of a failure.
const ENTRY_TOO_LARGE: &str = "larger than the journal takes";

/// An entry to append to the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A request was taken. For the service without a name: a mark of the broker's own.
    Accepted {
        /// Its id in the journal, never reused.
        id: u64,
        /// Its client.
        client: ClientId,
        /// Its number there.
        number: u64,
        /// Its service.
        service: Bytes,
        /// When it expires.
        expires: Millis,
        /// Checksum of what its client sent.
        checksum: RequestChecksum,
        /// Set for a dead letter: the client and the number are those of the request that it is a copy of.
        letter: Option<Box<LetterDetails>>,
        /// The request.
        body: Body,
    },
    /// A dead letter is one for another service now.
    Moved {
        /// Its id in the journal.
        id: u64,
        /// The number of this move.
        moves: u32,
        /// Its details from now on.
        letter: Box<LetterDetails>,
        /// The service.
        service: Bytes,
    },
    /// A request has an outcome.
    Finished {
        /// Its id in the journal.
        id: u64,
        /// Its status.
        status: Status,
        /// The reply or the reason.
        body: Body,
    },
    /// Nothing of a request is needed any more.
    Forgotten {
        /// Its id in the journal.
        id: u64,
    },
}

impl Entry {
    /// The id in the journal of the request that it is about.
    pub fn id(&self) -> u64 {
        let (Entry::Accepted { id, .. }
        | Entry::Moved { id, .. }
        | Entry::Finished { id, .. }
        | Entry::Forgotten { id }) = *self;
        id
    }
}

/// More of a dead letter that was recovered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoredLetter {
    /// Moves so far.
    pub moves: u32,
    /// Its details.
    pub details: Box<LetterDetails>,
}

/// A request that was recovered from the journal.
#[derive(Debug, Clone)]
pub struct Restored {
    /// Its id in the journal.
    pub id: u64,
    /// Its client.
    pub client: ClientId,
    /// Its number there.
    pub number: u64,
    /// Its service.
    pub service: Bytes,
    /// When it expires.
    pub expires: Millis,
    /// For how long it has been expired by now.
    pub overdue_ms: Millis,
    /// Checksum of what its client sent.
    pub checksum: RequestChecksum,
    /// Set for a dead letter: the client and the number are those of the request that it is a copy of.
    pub letter: Option<RestoredLetter>,
    /// The request. Ignored if there is an outcome.
    pub body: Body,
    /// Its outcome, if it has one.
    pub outcome: Option<(Status, Body)>,
}

/// An effect of an entry that waits until it is on the disk, with the slot and generation of its request.
#[derive(Debug, Clone, Copy)]
enum Awaiting {
    /// Acknowledge the request.
    Accepted(u32, u32),
    /// Send the outcome.
    Finished(u32, u32),
    Nothing,
}

/// Entries on their way to the journal, and what waits for them to be on the disk.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Entries that the driver hasn't taken yet.
    entries: Vec<Entry>,
    /// One for each entry that isn't on the disk yet.
    awaiting: VecDeque<Awaiting>,
    /// Entries on the disk.
    durable: u64,
    last_id: u64,
    /// The last id of an earlier process.
    restored_id: u64,
}

impl Durability {
    /// Whether every entry is on the disk.
    pub fn is_settled(&self) -> bool {
        self.awaiting.is_empty()
    }

    /// The id of the next request.
    pub fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// The number of entries on the disk.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The number of entries so far, on the disk or not.
    pub fn appended(&self) -> u64 {
        self.durable + self.awaiting.len() as u64
    }

    /// Whether an id is that of an earlier process.
    pub fn is_restored(&self, id: u64) -> bool {
        (1..=self.restored_id).contains(&id)
    }

    pub fn take_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds an entry that nothing waits for.
    pub fn push_unawaited(&mut self, entry: Entry) {
        self.push(entry, Awaiting::Nothing);
    }

    fn push(&mut self, entry: Entry, awaiting: Awaiting) {
        self.entries.push(entry);
        self.awaiting.push_back(awaiting);
    }

    /// The effect of the next entry, if that is among the first `entries`.
    fn next_durable(&mut self, entries: u64) -> Option<Awaiting> {
        if self.durable >= entries {
            return None;
        }
        let awaiting = self.awaiting.pop_front()?;
        self.durable += 1;
        Some(awaiting)
    }

    /// Drops the acknowledgements of those requests for which `is_lost` returns true, and returns the requests.
    fn drop_accepted(&mut self, is_lost: impl Fn(u32, u32) -> bool) -> Vec<(u32, u32)> {
        let mut dropped = Vec::new();
        for awaiting in &mut self.awaiting {
            if let Awaiting::Accepted(slot, generation) = *awaiting
                && is_lost(slot, generation)
            {
                *awaiting = Awaiting::Nothing;
                dropped.push((slot, generation));
            }
        }
        dropped
    }
}

impl Core {
    /// Moves the entries to write to the journal to the end of `entries`, in order.
    pub fn take_entries(&mut self, entries: &mut Vec<Entry>) {
        entries.append(&mut self.durability.entries);
    }

    pub(super) fn journal_accepted(&mut self, slot: u32) {
        let id = self.durability.take_id();
        let request = self.requests.at_mut(slot);
        request.journal_id = id;
        let key = request.session;
        self.remove_fragile(key);
        let session = &mut self.sessions[key];
        session.is_journalled = true;
        session.journalled += 1;
        let request = self.requests.at(slot);
        let origin = self.dead_letters.origin(session.letter);
        let (client, number) = origin.unwrap_or((session.client.unwrap_or_default(), request.number));
        let entry = Entry::Accepted {
            id,
            client,
            number,
            service: self.services.at(request.service).name.clone(),
            expires: request.expires,
            checksum: request.checksum,
            letter: self.dead_letters.details(session.letter).cloned().map(Box::new),
            body: request.body.clone(),
        };
        self.durability.push(entry, Awaiting::Accepted(slot, request.generation));
    }

    /// A dead letter of this id was moved. If the disk is full, that waits for space.
    pub(super) fn journal_moved(&mut self, id: u64, moves: u32, letter: Box<LetterDetails>, service: Bytes) {
        self.durability.push_unawaited(Entry::Moved { id, moves, letter, service });
    }

    pub(super) fn journal_finished(&mut self, slot: u32) {
        let request = self.requests.at_mut(slot);
        request.may_send_outcome = false;
        let entry = Entry::Finished { id: request.journal_id, status: request.status, body: request.body.clone() };
        self.durability.push(entry, Awaiting::Finished(slot, request.generation));
    }

    pub(super) fn journal_forgotten(&mut self, slot: u32) {
        let id = self.requests.at(slot).journal_id;
        self.stored.cancel_answer(id);
        self.durability.push_unawaited(Entry::Forgotten { id });
    }

    /// The first `entries` entries, counted from the start, are on the disk. Acknowledges requests and sends outcomes that waited for it.
    pub fn persisted(&mut self, entries: u64) {
        let mut run: Option<(SessionKey, u64, u32)> = None;
        while let Some(awaiting) = self.durability.next_durable(entries) {
            match awaiting {
                Awaiting::Accepted(slot, generation) if self.requests.find(slot, generation).is_some() => {
                    let request = self.requests.at_mut(slot);
                    request.is_durable = true;
                    let (session, number, id) = (request.session, request.number, request.journal_id);
                    match &mut run {
                        Some((of, first, count)) if *of == session && *first + u64::from(*count) == number => {
                            *count += 1
                        }
                        _ => self.send_accepted(run.replace((session, number, 1))),
                    }
                    if let Some((token, answer)) = self.stored.take_answer(id) {
                        self.built_in_reply(&token, Status::OK, answer);
                    }
                }
                Awaiting::Finished(slot, generation)
                    if self.requests.find(slot, generation).is_some_and(|request| request.journal_id != 0) =>
                {
                    self.send_accepted(run.take());
                    self.requests.at_mut(slot).may_send_outcome = true;
                    self.send_outcome(slot);
                }
                _ => {}
            }
        }
        self.send_accepted(run);
        self.answer_closed();
    }

    /// The journal doesn't take the entry behind those that [`Core::persisted`] counts. Its request fails. From now on it counts as one of
    /// them.
    pub fn entry_rejected(&mut self, now: Millis) {
        let Some(awaiting) = self.durability.next_durable(u64::MAX) else { return };
        match awaiting {
            Awaiting::Accepted(slot, generation) if self.requests.find(slot, generation).is_some() => {
                if self.take_from_journal(now, slot, ENTRY_TOO_LARGE) {
                    return;
                }
                if self.requests.at(slot).state == State::Settled {
                    return self.replace_outcome(slot);
                }
                self.withdraw(now, slot);
                self.settle(slot, Status::TOO_LARGE, Body::from(ENTRY_TOO_LARGE).into());
            }
            Awaiting::Finished(slot, generation)
                if self.requests.find(slot, generation).is_some_and(|request| request.journal_id != 0) =>
            {
                self.replace_outcome(slot);
            }
            _ => {}
        }
    }

    /// The journal's disk is full: nothing of these requests will be in the journal. Those that no worker had are refused. The others go
    /// on as volatile ones, since it is too late to refuse them.
    pub fn journal_full(&mut self, now: Millis, ids: &HashSet<u64>) {
        let requests = &self.requests;
        let lost = self.durability.drop_accepted(|slot, generation| {
            requests.find(slot, generation).is_some_and(|request| ids.contains(&request.journal_id))
        });
        for (slot, generation) in lost {
            if self.requests.find(slot, generation).is_none() || self.take_from_journal(now, slot, NO_JOURNAL.reason) {
                continue;
            }
            let request = self.requests.at(slot);
            match request.state {
                State::Settled => self.send_outcome(slot),
                State::Waiting | State::Parked if request.attempts() == 0 => self.refuse_accepted(now, slot),
                _ => {}
            }
        }
        self.journal_marks_again(ids);
    }

    /// Refuses a request that was taken but not acknowledged, and that no worker had.
    fn refuse_accepted(&mut self, now: Millis, slot: u32) {
        self.withdraw(now, slot);
        let request = self.requests.at(slot);
        if let Some(peer) = self.sessions[request.session].peer {
            let Refusal { status, retry_ms, reason } = NO_JOURNAL;
            self.counters.refused += 1;
            self.actions.push(Action::Refused { peer, number: request.number, status, retry_ms, reason });
        }
        self.forget(slot);
    }

    /// Makes a request volatile that wasn't acknowledged. Returns whether it is removed, because without the journal it is of no use.
    fn take_from_journal(&mut self, now: Millis, slot: u32, reason: &'static str) -> bool {
        let request = self.requests.at_mut(slot);
        let id = std::mem::take(&mut request.journal_id);
        request.may_send_outcome = true;
        let session = request.session;
        if matches!(request.state, State::Waiting | State::Parked) {
            self.count_untried(slot, true);
        }
        self.sessions[session].journalled -= 1;
        self.add_fragile(session);
        let is_stored = self.fail_stored(id, reason);
        if !is_stored && !self.sessions[session].is_dead_letter() {
            return false;
        }
        self.remove_session(now, session);
        true
    }

    /// Replaces an outcome that wasn't sent by a failure.
    fn replace_outcome(&mut self, slot: u32) {
        let before = self.requests.at(slot).outcome_size();
        self.update_request(slot, |request| {
            (request.status, request.body) = (Status::TOO_LARGE, Body::from(ENTRY_TOO_LARGE))
        });
        let request = self.requests.at(slot);
        let (session, after, is_journalled) = (request.session, request.outcome_size(), request.journal_id != 0);
        self.remove_unconfirmed(session, before);
        self.add_unconfirmed(session, after);
        if is_journalled {
            self.journal_finished(slot);
        } else {
            self.send_outcome(slot);
        }
    }

    fn send_accepted(&mut self, run: Option<(SessionKey, u64, u32)>) {
        if let Some((session, first, count)) = run
            && let Some(peer) = self.sessions.get(session).and_then(|session| session.peer)
        {
            self.actions.push(Action::Accepted { peer, first, count });
        }
    }

    /// Restores a request from the journal of an earlier process. Called before any event.
    pub fn restore(&mut self, now: Millis, restored: Restored) {
        let Restored { id, client, number, service, expires, overdue_ms, checksum, letter, body, outcome } = restored;
        // A clock that was set back gives nothing more time than it could have had.
        let latest = now.saturating_add(self.settings.ttl_max_ms);
        let expires = if expires == NEVER { NEVER } else { expires.min(latest) };
        self.durability.last_id = self.durability.last_id.max(id);
        if service.is_empty() {
            return self.restore_mark(now, id, client, number, &body);
        }
        let origin = (client, number);
        let (client, number) = match letter {
            Some(_) => (self.dead_letter_client(id), dead_letter::NUMBER),
            None => origin,
        };
        let session = self.absent_session(now, client);
        let service = self.find_or_add_service(NOBODY, &service);
        self.services.at_mut(service).live += 1;
        let slot = self.requests.insert(session, number, service, expires, body.into());
        let request = self.requests.at_mut(slot);
        (request.journal_id, request.checksum) = (id, checksum);
        request.is_durable = true;
        request.since = now;
        // Nobody knows whether a worker had it.
        request.uncounted = letter.as_ref().map_or(0, |letter| letter.details.attempts);
        request.attempt = request.uncounted.saturating_add(1);
        let is_settled = outcome.is_some();
        if let Some((status, reply)) = outcome {
            (request.state, request.status, request.body) = (State::Settled, status, reply);
            let grace = self.settings.outcome_grace_ms.saturating_sub(overdue_ms);
            request.expires = request.expires.saturating_add(grace);
        }
        let size = request.outcome_size();
        let (bytes, large_bytes) = (request.bytes(), request.body.large_bytes());
        if !is_settled {
            self.deadlines.expires_at(request.expires);
        }
        self.sessions[session].is_journalled = true;
        self.sessions[session].is_stored = expires == NEVER && number != dead_letter::NUMBER;
        self.add_request(session, number, slot, bytes);
        self.remove_fragile(session);
        self.sessions[session].journalled += 1;
        let is_letter = letter.is_some();
        if let Some(RestoredLetter { moves, details }) = letter {
            self.mark_dead_letter(Letter { session, id, origin, moves, details }, service, bytes, large_bytes);
        }
        if is_settled {
            self.add_unconfirmed(session, size);
        } else {
            self.enqueue(slot, Place::Back);
        }
        if is_letter {
            self.end_origin(now, origin, id);
        }
    }

    /// Ends the request that a dead letter with this journal id is a copy of, if a crash came before that.
    fn end_origin(&mut self, now: Millis, (client, number): (ClientId, u64), id: u64) {
        let session = self.sessions.find(client).map(|key| &self.sessions[key]);
        let Some(slot) = session.and_then(|session| session.requests.get(number)) else { return };
        let request = self.requests.at(slot);
        if request.state != State::Settled && request.journal_id < id {
            self.withdraw(now, slot);
            self.settle(slot, Status::ATTEMPTS_USED_UP, Body::from(KEPT_BEFORE).into());
        }
    }

    /// The last id in the journal, which may be beyond those of the restored requests. Called after the last [`Core::restore`].
    pub fn restored_up_to(&mut self, last_id: u64) {
        self.durability.last_id = self.durability.last_id.max(last_id);
        self.durability.restored_id = self.durability.last_id;
    }

    /// The session of a client that isn't connected, added if need be.
    pub(super) fn absent_session(&mut self, now: Millis, client: ClientId) -> SessionKey {
        if let Some(key) = self.sessions.find(client) {
            return key;
        }
        let mut session = Session::new(Some(client), None);
        session.absent_since = now;
        // Until it connects, if it ever does, nobody takes parts.
        session.one_reply = true;
        self.sessions.insert(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_become_durable_in_order_and_no_more_than_there_are() {
        let mut durability = Durability::default();
        for slot in 0..3 {
            let id = durability.take_id();
            durability.push(Entry::Forgotten { id }, Awaiting::Accepted(slot, 0));
        }
        assert!(matches!(durability.next_durable(1), Some(Awaiting::Accepted(0, 0))));
        assert!(durability.next_durable(1).is_none());
        assert_eq!(durability.drop_accepted(|slot, _| slot == 1), [(1, 0)]);
        assert!(matches!(durability.next_durable(9), Some(Awaiting::Nothing)));
        assert!(matches!(durability.next_durable(9), Some(Awaiting::Accepted(2, 0))));
        assert!(durability.next_durable(9).is_none());
        assert_eq!((durability.durable(), durability.appended(), durability.is_settled()), (3, 3, true));
    }
}
