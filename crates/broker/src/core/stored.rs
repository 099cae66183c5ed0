//! Stored requests: those of the built-in store-and-forward service (Titanic), each kept under a name until it is closed.
//!
//! Every stored request is the only one of an absent client of that name. The broker answers the request that stored or closed it when a
//! crash can't undo that any more.

use super::clients::Claim;
use super::requests::State;
use super::settings::{Millis, NEVER};
use super::tenants::NOBODY;
use super::token::Ticket;
use super::{Core, TenantKey};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use towpath_requests::body::Body;
use towpath_requests::limits::BODY_BYTES_MAX;
use towpath_requests::numbered::{ClientId, Status, Token};

/// The number of a stored request.
const STORED_NUMBER: u64 = 1;

/// Titanic's answer to a request that isn't taken. The code is its own, whichever ours would be.
fn failed(reason: &'static str) -> Body {
    Body::of_frames(["500", reason].map(|frame| Bytes::from_static(frame.as_bytes())))
}

/// State of a stored request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredState {
    /// Without an outcome yet.
    Pending,
    /// Its outcome.
    Done(Status, Body),
}

/// The broker's own answers that wait for the disk.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// By the journal id of the request that is stored.
    answers: HashMap<u64, (Token, Body)>,
    /// In the order of the number of entries that must be on the disk.
    closing: VecDeque<(u64, Token, Body)>,
}

impl Stored {
    pub fn take_answer(&mut self, journal_id: u64) -> Option<(Token, Body)> {
        self.answers.remove(&journal_id)
    }

    /// Drops an answer whose stored request is forgotten before it was on the disk.
    #[inline]
    pub fn cancel_answer(&mut self, journal_id: u64) {
        if !self.answers.is_empty() {
            self.answers.remove(&journal_id);
        }
    }

    fn next_closed(&mut self, durable: u64) -> Option<(Token, Body)> {
        self.closing.front().filter(|(entries, ..)| *entries <= durable)?;
        self.closing.pop_front().map(|(_, token, answer)| (token, answer))
    }
}

impl Core {
    /// Stores a request, and later its reply, under a name that nobody can guess. When it is on the disk, the broker's own request `token`
    /// is answered with `answer`.
    pub fn store(&mut self, now: Millis, name: ClientId, service: &[u8], body: Body, token: Token, answer: Body) {
        // Limited like what clients hold themselves, since nobody may ever ask for it.
        let tenant = self.tenant_of(&token);
        let refusal = self.admit(tenant, None, service, body.memory_bytes(), true).err().map(|refusal| refusal.reason);
        let is_taken = self.sessions.find(name).is_some();
        if let Some(reason) = refusal.or(is_taken.then_some("the name is taken; ask again for another")) {
            return self.built_in_reply(&token, Status::OK, failed(reason));
        }
        let session = self.absent_session(now, name);
        self.set_tenant(session, tenant);
        self.sessions[session].is_stored = true;
        self.stored.answers.insert(self.durability.next_id(), (token, answer));
        self.accept(now, session, STORED_NUMBER, NEVER, true, Claim::default(), service, body.into(), None);
    }

    /// The state of a stored request. `None`: there is none of that name.
    pub fn stored(&self, name: ClientId) -> Option<StoredState> {
        let request = self.requests.at(self.stored_slot(name)?);
        Some(match request.state {
            State::Settled if request.may_send_outcome => StoredState::Done(request.status, request.body.clone()),
            _ => StoredState::Pending,
        })
    }

    /// Whether an earlier process stored a request under this name.
    pub fn was_restored(&self, name: ClientId) -> bool {
        let slot = self.stored_slot(name);
        slot.is_some_and(|slot| self.durability.is_restored(self.requests.at(slot).journal_id))
    }

    /// Forgets a stored request, if there is one of that name. The broker's own request `token` is answered when a crash can't bring it
    /// back: when every entry so far is on the disk, since an earlier one may be about the same name.
    pub fn close_stored(&mut self, now: Millis, name: ClientId, token: Token, answer: Body) {
        if let Some(key) = self.sessions.find(name)
            && self.sessions[key].requests.get(STORED_NUMBER).is_some()
            && self.sessions[key].peer.is_none()
        {
            self.remove_session(now, key);
        }
        if self.stored.closing.len() > 2 * self.requests.len() {
            // Most clients have gone: a disk may hang for long.
            self.stored.closing.retain(|(_, token, _)| {
                let ticket = Ticket::read(token);
                self.requests.find(ticket.slot, ticket.generation).is_some()
            });
        }
        self.stored.closing.push_back((self.durability.appended(), token, answer));
        self.answer_closed();
    }

    /// Answers requests to close whose effect is on the disk.
    pub(super) fn answer_closed(&mut self) {
        while let Some((token, answer)) = self.stored.next_closed(self.durability.durable()) {
            self.built_in_reply(&token, Status::OK, answer);
        }
    }

    /// The journal doesn't take a request. Returns whether it was one to store, whose name nobody knows then.
    pub(super) fn fail_stored(&mut self, journal_id: u64, reason: &'static str) -> bool {
        let answer = self.stored.take_answer(journal_id);
        if let Some((token, _)) = &answer {
            self.built_in_reply(token, Status::OK, failed(reason));
        }
        answer.is_some()
    }

    /// The tenant of the client that asked.
    fn tenant_of(&self, token: &Token) -> TenantKey {
        let ticket = Ticket::read(token);
        let request = self.requests.find(ticket.slot, ticket.generation);
        request.map_or(NOBODY, |request| self.sessions[request.session].tenant)
    }

    /// The client and number of a numbered client's request, whose reply must be in memory or in one file.
    pub fn numbered_request_of(&self, token: &Token) -> Option<(ClientId, u64)> {
        let ticket = Ticket::read(token);
        let request = self.requests.find(ticket.slot, ticket.generation)?;
        Some((self.sessions[request.session].client?, request.number))
    }

    /// Whether a reply of this many bytes, which isn't in memory yet, may be read for a numbered client's request: it fits beside what the
    /// client hasn't confirmed, unless that is nothing, and into half of the memory.
    pub fn reply_fits_in_memory(&self, token: &Token, bytes: usize) -> bool {
        let ticket = Ticket::read(token);
        let settings = &self.settings;
        self.requests.find(ticket.slot, ticket.generation).is_some_and(|request| {
            let unconfirmed = self.sessions[request.session].replies.unconfirmed();
            (unconfirmed == 0 || unconfirmed + bytes <= settings.client_bytes_max)
                // A client that asks and leaves keeps them here for a while. Others must be served meanwhile.
                && self.bytes + bytes <= (settings.bytes_max / 2).max(BODY_BYTES_MAX)
        })
    }

    fn stored_slot(&self, name: ClientId) -> Option<u32> {
        self.sessions[self.sessions.find(name)?].requests.get(STORED_NUMBER)
    }

    #[cfg(test)]
    pub(super) fn awaiting_closes(&self) -> usize {
        self.stored.closing.len()
    }
}
