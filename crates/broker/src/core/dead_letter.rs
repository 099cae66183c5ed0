//! Dead letters: requests that used up their attempts. Those in the journal are kept as requests for the dead-letter queue of their
//! service, whose workers can inspect and repair them.

use super::clients::Claim;
use super::letter::{Failure, LETTER_BYTES, LetterDetails};
use super::requests::{REQUEST_BYTES, State};
use super::service::Place;
use super::settings::{Millis, NEVER, Settings};
use super::tenants::NOBODY;
use super::{Action, Core, ServiceKey, SessionKey};
use bytes::Bytes;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::Hasher;
use towpath_requests::body::Body;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::numbered::{ClientId, Status};
use towpath_requests::shown;

/// Prefix of the names of dead-letter queues.
const PREFIX: &[u8] = b"dlq.";

/// The prefix of older versions, whose journals may have such names. An alias everywhere.
const ALIAS: &[u8] = b"aside.";

/// The number of a dead letter in its session. Those of clients begin with 1.
pub(super) const NUMBER: u64 = 0;

/// Dead letters that are dispatched again in a second: a worker that fails them all must not keep the broker busy.
const RETRIES_PER_SECOND: usize = 1_000;

/// The number of a dead letter among all: the lowest is the oldest. 0: none.
pub(super) type LetterNumber = u32;

/// A time in the core's, as one that may be before that began.
fn signed(now: Millis) -> i64 {
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// The dead letters of all services: also those that were sent to their service again and haven't succeeded there yet.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    all: BTreeMap<LetterNumber, Letter>,
    /// Their numbers by their ids in the journal.
    by_id: BTreeMap<u64, LetterNumber>,
    /// The last number that was given.
    pub last: LetterNumber,
    /// Bytes of memory, with the requests' own.
    bytes: usize,
    /// Bytes of their bodies that aren't in memory.
    large_bytes: u64,
    /// Those that don't just wait in their dead-letter queue: a worker has them, or they were sent to their service again.
    away: usize,
    /// Number at which the next retry begins.
    next: LetterNumber,
}

/// A dead letter.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub session: SessionKey,
    /// Its id in the journal.
    pub id: u64,
    /// The client and the number of the request that it is a copy of.
    pub origin: (ClientId, u64),
    /// Moves so far, between its service and the dead-letter queue.
    pub moves: u32,
    pub details: Box<LetterDetails>,
}

impl DeadLetters {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// How many of them wait in their dead-letter queue, without a worker.
    pub fn at_rest(&self) -> usize {
        self.all.len() - self.away
    }

    /// The session of one.
    pub fn session(&self, number: LetterNumber) -> Option<SessionKey> {
        self.all.get(&number).map(|letter| letter.session)
    }

    /// The client and the number of the request that one is a copy of.
    pub fn origin(&self, number: LetterNumber) -> Option<(ClientId, u64)> {
        self.all.get(&number).map(|letter| letter.origin)
    }

    /// The number of the one with this id in the journal.
    pub fn of_id(&self, id: u64) -> Option<LetterNumber> {
        self.by_id.get(&id).copied()
    }

    /// Details of one.
    pub fn details(&self, number: LetterNumber) -> Option<&LetterDetails> {
        self.all.get(&number).map(|letter| &*letter.details)
    }

    /// The same, to be changed.
    pub fn details_mut(&mut self, number: LetterNumber) -> Option<&mut LetterDetails> {
        self.all.get_mut(&number).map(|letter| &mut *letter.details)
    }

    /// Whether another one fits. They may stay for long, and new requests must fit beside them.
    fn has_space(&self, settings: &Settings, bytes: usize, large_bytes: u64) -> bool {
        self.all.len() < settings.dead_letters_max()
            && self.last < LetterNumber::MAX
            && self.bytes + bytes <= settings.dead_letter_bytes_max()
            && self.large_bytes.saturating_add(large_bytes) <= settings.large_bytes_max / 4
    }

    fn add(&mut self, letter: Letter, bytes: usize, large_bytes: u64) -> LetterNumber {
        self.last = self.last.saturating_add(1);
        self.by_id.insert(letter.id, self.last);
        self.all.insert(self.last, letter);
        self.bytes += bytes;
        self.large_bytes += large_bytes;
        self.last
    }

    fn remove(&mut self, number: LetterNumber, bytes: usize, large_bytes: u64) {
        if let Some(letter) = self.all.remove(&number) {
            self.by_id.remove(&letter.id);
        }
        self.bytes -= bytes;
        self.large_bytes -= large_bytes;
    }

    /// Takes the postponed ones that are dispatched again now. The others follow a second later.
    fn take_turn(&mut self, postponed: impl Iterator<Item = LetterNumber>) -> Vec<LetterNumber> {
        let next = self.next;
        let turn: Vec<LetterNumber> = postponed.filter(|&number| number >= next).take(RETRIES_PER_SECOND).collect();
        self.next = turn.get(RETRIES_PER_SECOND - 1).map_or(0, |last| last + 1);
        turn
    }
}

/// Whether a service, by its own name, is a dead-letter queue.
pub(crate) fn is_dead_letter_queue(service: &[u8]) -> bool {
    service.starts_with(PREFIX)
}

/// The name of a service, which may be asked for by an alias.
pub(crate) fn canonical_name(service: &[u8]) -> Cow<'_, [u8]> {
    match service.strip_prefix(ALIAS) {
        Some(rest) => Cow::Owned([PREFIX, rest].concat()),
        None => Cow::Borrowed(service),
    }
}

/// The service of a dead-letter queue.
pub(crate) fn service_of_queue(queue: &[u8]) -> &[u8] {
    queue.strip_prefix(PREFIX).unwrap_or(queue)
}

/// The dead-letter queue of a service. `None`: its name would be too long.
pub(super) fn queue_of(service: &[u8]) -> Option<Bytes> {
    if service.starts_with(PREFIX) {
        return Some(Bytes::copy_from_slice(service));
    }
    (PREFIX.len() + service.len() <= SERVICE_BYTES_MAX).then(|| [PREFIX, service].concat().into())
}

impl Core {
    /// Ends a request that is in no list and has used up its attempts.
    #[cold]
    pub(super) fn give_up(&mut self, now: Millis, slot: u32, failure: Failure) {
        if self.is_dead_letter(slot) {
            self.note_failure(slot, failure);
            return self.postpone(slot);
        }
        let why = failure.reason.clone();
        let kept_for = self.keep_dead_letter(now, slot, failure);
        let attempts = self.settings.attempts_max;
        let kept = kept_for.as_ref().map_or(String::new(), |queue| format!("; kept for {}", shown(queue)));
        let reason = format!("given up at attempt {attempts}: workers went while they had it, or couldn't do it{kept}");
        let request = self.requests.at(slot);
        let (number, client) = (request.number, self.sessions[request.session].client);
        let service = self.services.at(request.service).name.clone();
        self.actions.push(Action::GaveUp { client, number, service, attempts, why, kept_for });
        self.settle(slot, Status::ATTEMPTS_USED_UP, Body::from(reason.as_str()).into());
    }

    /// Keeps a journalled request as a dead letter. Its entry precedes the outcome of the request: after a crash in between, the start ends the
    /// request. Returns the queue.
    fn keep_dead_letter(&mut self, now: Millis, slot: u32, failure: Failure) -> Option<Bytes> {
        let request = self.requests.at(slot);
        if request.journal_id == 0 {
            return None;
        }
        let (body, attempts) = (request.body.clone(), request.attempt);
        let origin = (self.sessions[request.session].client?, request.number);
        let queue = queue_of(&self.services.at(request.service).name)?;
        let id = self.durability.next_id();
        let client = self.dead_letter_client(id);
        let (bytes, large_bytes) = (body.memory_bytes(), body.large_bytes());
        // A stopping broker keeps them all the same.
        let has_space = self.dead_letters.has_space(&self.settings, REQUEST_BYTES + LETTER_BYTES + bytes, large_bytes)
            && self.admit_shared(NOBODY, &queue, bytes).is_ok();
        if !has_space || self.sessions.find(client).is_some() {
            return None;
        }
        self.counters.dead_letters += 1;
        let Failure { reason, worker } = failure;
        let asked_by = self.name_of_tenant(self.sessions[self.requests.at(slot).session].tenant);
        let details = Box::new(LetterDetails { attempts, kept: signed(now), reason, client: asked_by, worker });
        let session = self.absent_session(now, client);
        let key = self.find_or_add_service(NOBODY, &queue);
        let letter = Letter { session, id, origin, moves: 0, details };
        self.mark_dead_letter(letter, key, REQUEST_BYTES + LETTER_BYTES + bytes, large_bytes);
        self.accept(
            now,
            session,
            NUMBER,
            NEVER,
            true,
            Claim { attempts, ..Claim::default() },
            &queue,
            body.into(),
            None,
        );
        // No client's: it was counted when it came.
        self.counters.accepted -= 1;
        Some(queue)
    }

    /// Moves a dead letter that no worker has to another service. Its attempts so far don't count there.
    pub(super) fn move_dead_letter(&mut self, now: Millis, slot: u32, to: &[u8]) {
        self.withdraw(now, slot);
        let key = self.find_or_add_service(NOBODY, to);
        let request = self.requests.at(slot);
        let (former, session, id, attempts) = (request.service, request.session, request.journal_id, request.attempt);
        let bytes = request.bytes();
        let number = self.sessions[session].letter;
        let Some(letter) = self.dead_letters.all.get_mut(&number) else { return };
        letter.moves += 1;
        letter.details.attempts = attempts;
        if is_dead_letter_queue(to) {
            letter.details.kept = signed(now);
        }
        let (moves, details) = (letter.moves, letter.details.clone());
        // Its retention begins again.
        self.sessions[session].absent_since = now;
        self.unlist_dead_letter(number, former);
        self.list_dead_letter(number, key);
        let its = self.services.at_mut(former);
        its.live -= 1;
        its.change_bytes(bytes, 0);
        let its = self.services.at_mut(key);
        its.live += 1;
        its.change_bytes(0, bytes);
        let (purges, service) = (its.purges, its.name.clone());
        self.requests.at_mut(slot).move_to(key, now, purges);
        self.journal_moved(id, moves, details, service);
        self.enqueue(slot, Place::Back);
        self.dispatch(now, key);
        self.remove_service_if_unused(former);
    }

    /// The request of a dead letter.
    pub(super) fn slot_of_letter(&self, number: LetterNumber) -> Option<u32> {
        self.sessions.get(self.dead_letters.session(number)?)?.requests.get(NUMBER)
    }

    /// The client of the dead letter with this journal id, which is used once: one that nobody can claim to be.
    pub(super) fn dead_letter_client(&self, journal_id: u64) -> ClientId {
        let [first, second] = self.settings.secret;
        let mut hasher = SipHasher13::new_with_keys(first, second);
        hasher.write(PREFIX);
        hasher.write_u64(journal_id);
        ClientId(hasher.finish128().as_bytes())
    }

    /// Marks a session as that of a dead letter of this many bytes for a service.
    pub(super) fn mark_dead_letter(&mut self, letter: Letter, service: ServiceKey, bytes: usize, large_bytes: u64) {
        let session = letter.session;
        let number = self.dead_letters.add(letter, bytes, large_bytes);
        self.list_dead_letter(number, service);
        let session = &mut self.sessions[session];
        session.letter = number;
        // Nobody waits for a reply.
        session.one_reply = false;
    }

    /// Releases a dead letter of this service, of this many bytes.
    #[cold]
    pub(super) fn unmark_dead_letter(
        &mut self,
        letter: LetterNumber,
        service: ServiceKey,
        bytes: usize,
        large_bytes: u64,
    ) {
        self.unlist_dead_letter(letter, service);
        self.dead_letters.remove(letter, bytes, large_bytes);
    }

    fn list_dead_letter(&mut self, letter: LetterNumber, service: ServiceKey) {
        self.dead_letters.away += usize::from(!self.is_letter_queue(service));
        self.services.at_mut(service).letters.insert(letter);
    }

    fn unlist_dead_letter(&mut self, letter: LetterNumber, service: ServiceKey) {
        self.dead_letters.away -= usize::from(!self.is_letter_queue(service));
        self.services.at_mut(service).letters.remove(&letter);
    }

    /// A worker has got a request, or hasn't it any more. Does nothing if that is no dead letter.
    #[inline]
    pub(super) fn letter_is_held(&mut self, slot: u32, held: bool) {
        let request = self.requests.at(slot);
        if request.number != NUMBER || !self.is_dead_letter(slot) || !self.is_letter_queue(request.service) {
            return;
        }
        match held {
            true => self.dead_letters.away += 1,
            false => self.dead_letters.away -= 1,
        }
    }

    fn is_letter_queue(&self, service: ServiceKey) -> bool {
        is_dead_letter_queue(&self.services.at(service).name)
    }

    /// Removes dead letters after their retention, and dispatches postponed ones again: one that was sent to its service again and failed
    /// there goes back to the dead-letter queue, as soon as that has space.
    pub(super) fn retry_dead_letters(&mut self, now: Millis) {
        if self.dead_letters.is_empty() {
            return;
        }
        let retention = self.settings.journal_retention_ms;
        let (mut expired, mut postponed) = (Vec::new(), Vec::new());
        for (&number, letter) in &self.dead_letters.all {
            let key = letter.session;
            let session = &self.sessions[key];
            if now.saturating_sub(session.absent_since) > retention {
                expired.push(key);
            }
            if session.parked.len > 0 {
                postponed.push(number);
            }
        }
        let turn = self.dead_letters.take_turn(postponed.into_iter());
        expired.into_iter().for_each(|key| self.remove_session(now, key));
        for number in turn {
            // It may have expired.
            let Some(slot) = self.slot_of_letter(number) else { continue };
            let request = self.requests.at(slot);
            let (session, service, bytes) =
                (request.session, &self.services.at(request.service).name, request.body.memory_bytes());
            match queue_of(service).filter(|queue| queue != service) {
                Some(queue) => {
                    if self.admit_shared(NOBODY, &queue, bytes).is_err() {
                        continue;
                    }
                    self.counters.dead_letters += 1;
                    self.move_dead_letter(now, slot, &queue);
                }
                None => self.unpark_all(now, session),
            }
        }
    }

    #[inline]
    pub(super) fn is_dead_letter(&self, slot: u32) -> bool {
        self.sessions[self.requests.at(slot).session].is_dead_letter()
    }

    /// Parks a dead letter that its worker failed. It is dispatched again, but not at once: a worker that fails it now would probably
    /// fail it the next moment.
    #[cold]
    pub(super) fn postpone(&mut self, slot: u32) {
        self.park(slot);
    }

    /// Bodies of all dead letters. For tests: looks at every one.
    #[doc(hidden)]
    pub fn letter_bodies(&self) -> Vec<Body> {
        let slots = self.dead_letters.all.keys().filter_map(|&number| self.slot_of_letter(number));
        slots.map(|slot| self.requests.at(slot).body.clone()).collect()
    }

    /// Part of [`Core::check`].
    pub(super) fn check_dead_letters(&self) {
        let (mut count, mut bytes, mut large_bytes, mut away) = (0, 0, 0, 0);
        for (slot, request) in self.requests.iter().filter(|(slot, _)| self.is_dead_letter(*slot)) {
            let letter = self.sessions[request.session].letter;
            assert_eq!(self.slot_of_letter(letter), Some(slot));
            assert_eq!(self.dead_letters.of_id(self.dead_letters.all[&letter].id), Some(letter));
            assert!(self.services.at(request.service).letters.contains(&letter), "a dead letter of no service");
            (count, bytes) = (count + 1, bytes + request.bytes());
            large_bytes += request.body.large_bytes();
            let is_at_rest = self.is_letter_queue(request.service) && !matches!(request.state, State::Held(..));
            away += usize::from(!is_at_rest);
        }
        assert_eq!(away, self.dead_letters.away, "dead letters that aren't at rest");
        let DeadLetters { all, bytes: their_bytes, large_bytes: their_large_bytes, .. } = &self.dead_letters;
        let sums = (all.len(), *their_bytes, *their_large_bytes);
        assert_eq!((count, bytes, large_bytes), sums, "the sums of dead letters");
        assert_eq!(all.len(), self.dead_letters.by_id.len());
        let of_services: usize = self.services.iter().map(|(_, service)| service.letters.len()).sum();
        assert_eq!(count, of_services, "the dead letters of services");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_named_after_the_service() {
        assert_eq!(queue_of(b"echo").as_deref(), Some(&b"dlq.echo"[..]));
        assert_eq!(queue_of(b"dlq.echo").as_deref(), Some(&b"dlq.echo"[..]));
        assert_eq!(queue_of(&[b'x'; SERVICE_BYTES_MAX - 4]).map(|name| name.len()), Some(SERVICE_BYTES_MAX));
        assert_eq!(queue_of(&[b'x'; SERVICE_BYTES_MAX - 3]), None);
    }

    #[test]
    fn the_older_name_is_an_alias() {
        assert_eq!(canonical_name(b"aside.echo"), &b"dlq.echo"[..]);
        assert_eq!(canonical_name(b"dlq.echo"), &b"dlq.echo"[..]);
        assert_eq!(canonical_name(b"echo"), &b"echo"[..]);
    }

    #[test]
    fn every_postponed_one_has_its_turn() {
        let mut letters = DeadLetters::default();
        let all = || (0..2 * RETRIES_PER_SECOND as LetterNumber + 1).filter(|key| key % 2 == 0);
        let first = letters.take_turn(all());
        assert_eq!(first.len(), RETRIES_PER_SECOND);
        assert_eq!(letters.take_turn(all()), [2 * RETRIES_PER_SECOND as LetterNumber]);
        assert_eq!(letters.take_turn(all()), first);
    }
}
