//! What goes into the journal, and what comes out of it after a restart; requests that are kept for clients that come again.

use super::admission::{NO_JOURNAL, Refusal};
use super::dead_letter;
use super::requests::State;
use super::session::Session;
use super::settings::{Millis, NEVER};
use super::token::Ticket;
use super::{Action, Core, SessionKey};
use bytes::Bytes;
use std::collections::{HashMap, HashSet, VecDeque};
use towpath_requests::body::Body;
use towpath_requests::limits::BODY_BYTES_MAX;
use towpath_requests::numbered::{ClientId, Status, Token};

/// The number of the only request of a client of the built-in store-and-forward service.
const STORED_NUMBER: u64 = 1;

/// Why a request failed.
const NOT_KEPT: &str = "larger than what the journal takes";

/// What Titanic says of a request that it doesn't take: its own code, whichever ours would be.
fn failed(reason: &'static str) -> Body {
    Body::of_frames(["500", reason].map(|frame| Bytes::from_static(frame.as_bytes())))
}

/// Something to write to the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A request was taken.
    Accepted {
        /// Its name in the journal, never used again.
        id: u64,
        /// Whose it is.
        client: ClientId,
        /// Its number there.
        number: u64,
        /// For which service.
        service: Bytes,
        /// When it expires.
        expires: Millis,
        /// The request.
        body: Body,
    },
    /// It has an outcome.
    Finished {
        /// Its name in the journal.
        id: u64,
        /// How it ended.
        status: Status,
        /// The reply or the reason.
        body: Body,
    },
    /// Nothing of it is needed any more.
    Forgotten {
        /// Its name in the journal.
        id: u64,
    },
}

/// A request that came out of the journal.
#[derive(Debug, Clone)]
pub struct Restored {
    /// Its name in the journal.
    pub id: u64,
    /// Whose it is.
    pub client: ClientId,
    /// Its number there.
    pub number: u64,
    /// For which service.
    pub service: Bytes,
    /// When it expires.
    pub expires: Millis,
    /// The request; of no use if it has an outcome.
    pub body: Body,
    /// Its outcome, if it has one.
    pub outcome: Option<(Status, Body)>,
}

/// Where a stored request is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredState {
    /// It has no outcome yet.
    Pending,
    /// Its outcome.
    Done(Status, Body),
}

#[derive(Debug, Clone, Copy)]
enum Awaiting {
    Accepted(u32, u32),
    Finished(u32, u32),
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Durability {
    entries: Vec<Entry>,
    /// One for each entry that isn't on the disk yet.
    awaiting: VecDeque<Awaiting>,
    written: u64,
    last_id: u64,
    /// Up to here they are those of an earlier process.
    restored_id: u64,
    /// Answers of the broker that wait until a request is on the disk.
    answers: HashMap<u64, (Token, Body)>,
    /// Answers of the broker that wait until so many entries are there.
    closing: VecDeque<(u64, Token, Body)>,
}

impl Durability {
    pub fn is_settled(&self) -> bool {
        self.awaiting.is_empty()
    }

    fn push(&mut self, entry: Entry, awaiting: Awaiting) {
        self.entries.push(entry);
        self.awaiting.push_back(awaiting);
    }
}

impl Core {
    /// Moves what is to be written to the journal to the end of `entries`, in order.
    pub fn take_entries(&mut self, entries: &mut Vec<Entry>) {
        entries.append(&mut self.durability.entries);
    }

    pub(super) fn journal_accepted(&mut self, slot: u32) {
        self.durability.last_id += 1;
        let id = self.durability.last_id;
        let request = self.requests.at_mut(slot);
        request.journal_id = id;
        let session = &mut self.sessions[request.session];
        session.is_journalled = true;
        let entry = Entry::Accepted {
            id,
            client: session.client.unwrap_or_default(),
            number: request.number,
            service: self.services.at(request.service).name.clone(),
            expires: request.expires,
            body: request.body.clone(),
        };
        self.durability.push(entry, Awaiting::Accepted(slot, request.generation));
    }

    pub(super) fn journal_finished(&mut self, slot: u32) {
        let request = self.requests.at_mut(slot);
        request.may_send_outcome = false;
        let entry = Entry::Finished { id: request.journal_id, status: request.status, body: request.body.clone() };
        self.durability.push(entry, Awaiting::Finished(slot, request.generation));
    }

    pub(super) fn journal_forgotten(&mut self, slot: u32) {
        let id = self.requests.at(slot).journal_id;
        if !self.durability.answers.is_empty() {
            self.durability.answers.remove(&id);
        }
        self.durability.push(Entry::Forgotten { id }, Awaiting::Nothing);
    }

    /// So many entries, counted from the start, are on the disk: what waited for that is told.
    pub fn persisted(&mut self, entries: u64) {
        let mut run: Option<(SessionKey, u64, u32)> = None;
        while self.durability.written < entries {
            let Some(awaiting) = self.durability.awaiting.pop_front() else { break };
            self.durability.written += 1;
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
                    if let Some((token, answer)) = self.durability.answers.remove(&id) {
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

    /// Answers those whose stored requests are forgotten on the disk too.
    fn answer_closed(&mut self) {
        while let Some((upto, ..)) = self.durability.closing.front()
            && *upto <= self.durability.written
            && let Some((_, token, answer)) = self.durability.closing.pop_front()
        {
            self.built_in_reply(&token, Status::OK, answer);
        }
    }

    /// The entry behind those that [`Core::persisted`] counts is never going to be on the disk, because the journal takes nothing like
    /// it: what was to be promised by it fails, and its client is told so. It counts as one of them from now on.
    pub fn entry_rejected(&mut self, now: Millis) {
        let Some(awaiting) = self.durability.awaiting.pop_front() else { return };
        self.durability.written += 1;
        match awaiting {
            Awaiting::Accepted(slot, generation) if self.requests.find(slot, generation).is_some() => {
                if self.take_from_journal(now, slot, NOT_KEPT) {
                    return;
                }
                if self.requests.at(slot).state == State::Settled {
                    return self.fail_again(slot);
                }
                self.withdraw(now, slot);
                self.settle(slot, Status::TOO_LARGE, Body::from(NOT_KEPT).into());
            }
            Awaiting::Finished(slot, generation)
                if self.requests.find(slot, generation).is_some_and(|request| request.journal_id != 0) =>
            {
                self.fail_again(slot);
            }
            _ => {}
        }
    }

    /// The journal's disk is full: nothing of these requests is in the journal, nor will be. Of which no worker had any, that is refused.
    /// The others go on as volatile ones: it is too late to say that they aren't taken.
    pub fn journal_full(&mut self, now: Millis, ids: &HashSet<u64>) {
        let mut found = Vec::new();
        for awaiting in &mut self.durability.awaiting {
            if let Awaiting::Accepted(slot, generation) = *awaiting
                && self.requests.find(slot, generation).is_some_and(|request| ids.contains(&request.journal_id))
            {
                *awaiting = Awaiting::Nothing;
                found.push((slot, generation));
            }
        }
        for (slot, generation) in found {
            if self.requests.find(slot, generation).is_none() || self.take_from_journal(now, slot, NO_JOURNAL.reason) {
                continue;
            }
            let request = self.requests.at(slot);
            match request.state {
                State::Settled => self.send_outcome(slot),
                State::Waiting | State::Parked if request.attempt == 0 => self.refuse_taken(now, slot),
                _ => {}
            }
        }
    }

    /// Refuses a request that was taken, of which nobody has heard since.
    fn refuse_taken(&mut self, now: Millis, slot: u32) {
        self.withdraw(now, slot);
        let request = self.requests.at(slot);
        if let Some(peer) = self.sessions[request.session].peer {
            let Refusal { status, retry_ms, reason } = NO_JOURNAL;
            self.counters.refused += 1;
            self.actions.push(Action::Refused { peer, number: request.number, status, retry_ms, reason });
        }
        self.forget(slot);
    }

    /// A request isn't in the journal, which nobody was told. Whether that is its end, being of no use to anyone then.
    fn take_from_journal(&mut self, now: Millis, slot: u32, reason: &'static str) -> bool {
        let request = self.requests.at_mut(slot);
        let id = std::mem::take(&mut request.journal_id);
        request.may_send_outcome = true;
        let session = request.session;
        let answer = self.durability.answers.remove(&id);
        if answer.is_none() && !self.sessions[session].is_dead_letter {
            return false;
        }
        if let Some((token, _)) = answer {
            // Nobody was told its name.
            self.built_in_reply(&token, Status::OK, failed(reason));
        }
        self.remove_session(now, session);
        true
    }

    /// Puts a failure in the place of an outcome that nobody was told.
    fn fail_again(&mut self, slot: u32) {
        let before = self.requests.at(slot).bytes();
        self.update_request(slot, |request| (request.status, request.body) = (Status::TOO_LARGE, Body::from(NOT_KEPT)));
        let request = self.requests.at(slot);
        let (session, after) = (request.session, request.bytes());
        self.replies.remove_unconfirmed(&mut self.sessions[session].replies, before);
        self.replies.add_unconfirmed(&mut self.sessions[session].replies, after);
        let request = self.requests.at(slot);
        if request.journal_id != 0 {
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

    /// Takes a request out of the journal of an earlier process. Before anything else.
    pub fn restore(&mut self, now: Millis, restored: Restored) {
        let Restored { id, client, number, service, expires, body, outcome } = restored;
        self.durability.last_id = self.durability.last_id.max(id);
        let session = self.absent_session(now, client);
        let service = self.services.find_or_add(&service);
        self.services.at_mut(service).live += 1;
        let slot = self.requests.insert(session, number, service, expires, body.into());
        let request = self.requests.at_mut(slot);
        request.journal_id = id;
        request.is_durable = true;
        // Nobody knows whether a worker had it.
        request.attempt = 1;
        let is_settled = outcome.is_some();
        if let Some((status, reply)) = outcome {
            (request.state, request.status, request.body, request.expires) = (State::Settled, status, reply, NEVER);
        }
        let (bytes, large_bytes) = (request.bytes(), request.body.large_bytes());
        self.deadlines.expires_at(request.expires);
        self.bytes += bytes;
        let state = &mut self.sessions[session];
        state.is_journalled = true;
        state.bytes += bytes;
        state.requests.insert(number, slot);
        state.highest = state.highest.max(number);
        if number == dead_letter::NUMBER {
            self.mark_dead_letter(session, bytes, large_bytes);
        }
        if is_settled {
            self.replies.add_unconfirmed(&mut self.sessions[session].replies, bytes);
        } else {
            self.enqueue(slot, false);
        }
    }

    /// The last name that the journal knows, if that is greater than those of what is restored.
    pub fn restored_up_to(&mut self, last_id: u64) {
        self.durability.last_id = self.durability.last_id.max(last_id);
        self.durability.restored_id = self.durability.last_id;
    }

    pub(super) fn absent_session(&mut self, now: Millis, client: ClientId) -> SessionKey {
        if let Some(key) = self.sessions.find(client) {
            return key;
        }
        let mut session = Session::new(Some(client), None);
        session.absent_since = now;
        // Until it comes by itself, if it ever does, there is nobody to take parts.
        session.one_reply = true;
        self.sessions.insert(session)
    }

    /// Keeps a request, and later its reply, under a name that nobody can guess. When it is on the disk, the broker's own
    /// request `token` is answered with `answer`.
    pub fn store(&mut self, now: Millis, name: ClientId, service: &[u8], body: Body, token: Token, answer: Body) {
        // It is bounded as what clients hold themselves, since nobody may ever ask for it.
        let refusal = self.admit(None, service, body.memory_bytes(), true).err().map(|refusal| refusal.reason);
        let is_taken = self.sessions.find(name).is_some();
        if let Some(reason) = refusal.or(is_taken.then_some("the name is taken; ask again for another")) {
            return self.built_in_reply(&token, Status::OK, failed(reason));
        }
        let session = self.absent_session(now, name);
        self.durability.answers.insert(self.durability.last_id + 1, (token, answer));
        self.accept(now, session, STORED_NUMBER, NEVER, true, service, body.into(), None);
    }

    /// Where a stored request is; `None`: there is none of that name.
    pub fn stored(&self, name: ClientId) -> Option<StoredState> {
        let key = self.sessions.find(name)?;
        let slot = self.sessions[key].requests.get(STORED_NUMBER)?;
        let request = self.requests.at(slot);
        Some(match request.state {
            State::Settled if request.may_send_outcome => StoredState::Done(request.status, request.body.clone()),
            _ => StoredState::Pending,
        })
    }

    /// Whether an earlier process has kept a request under this name.
    pub fn was_restored(&self, name: ClientId) -> bool {
        let session = self.sessions.find(name).map(|key| &self.sessions[key]);
        let slot = session.and_then(|session| session.requests.get(STORED_NUMBER));
        slot.is_some_and(|slot| (1..=self.durability.restored_id).contains(&self.requests.at(slot).journal_id))
    }

    /// Which numbered client's request it is, whose replies are in memory or in one file, and its number there.
    pub fn numbered_request_of(&self, token: &Token) -> Option<(ClientId, u64)> {
        let ticket = Ticket::read(token);
        let request = self.requests.find(ticket.slot, ticket.generation)?;
        Some((self.sessions[request.session].client?, request.number))
    }

    /// Whether an answer of so many bytes, which isn't in memory yet, may be brought there for a numbered client's request: beside
    /// what the client has not confirmed, unless that is nothing, and beside what is everybody's.
    pub fn reply_fits_in_memory(&self, token: &Token, bytes: usize) -> bool {
        let ticket = Ticket::read(token);
        let settings = &self.settings;
        self.requests.find(ticket.slot, ticket.generation).is_some_and(|request| {
            let unconfirmed = self.sessions[request.session].replies.unconfirmed();
            (unconfirmed == 0 || unconfirmed + bytes <= settings.client_bytes_max)
                // Who asks and goes away leaves them here for a while. That must not keep others from being served.
                && self.bytes + bytes <= (settings.bytes_max / 2).max(BODY_BYTES_MAX)
        })
    }

    #[cfg(test)]
    pub(super) fn awaiting_closes(&self) -> usize {
        self.durability.closing.len()
    }

    /// Forgets a stored request, if there is one of that name. The broker's own request `token` is answered when a crash can't bring
    /// it back: neither this time's nor an earlier time's forgetting of the name may be on its way to the disk then.
    pub fn close_stored(&mut self, now: Millis, name: ClientId, token: Token, answer: Body) {
        if let Some(key) = self.sessions.find(name)
            && self.sessions[key].requests.get(STORED_NUMBER).is_some()
            && self.sessions[key].peer.is_none()
        {
            self.remove_session(now, key);
        }
        let durability = &mut self.durability;
        if durability.closing.len() > 2 * self.requests.len() {
            // Most of them don't wait any more: a disk may stand still for long.
            durability.closing.retain(|(_, token, _)| {
                let ticket = Ticket::read(token);
                self.requests.find(ticket.slot, ticket.generation).is_some()
            });
        }
        durability.closing.push_back((durability.written + durability.awaiting.len() as u64, token, answer));
        self.answer_closed();
    }
}
