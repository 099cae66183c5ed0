//! Dead letters: requests that used up their attempts. Those in the journal are kept as requests for the dead-letter queue of their
//! service, whose workers can inspect and repair them.

use super::requests::REQUEST_BYTES;
use super::settings::{Millis, NEVER, Settings};
use super::tenants::NOBODY;
use super::{Action, Core, SessionKey};
use bytes::Bytes;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::borrow::Cow;
use std::hash::Hasher;
use towpath_requests::body::Body;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::numbered::{ClientId, Status};

/// How the name of a dead-letter queue begins.
const PREFIX: &[u8] = b"dlq.";

/// How it began in older versions, whose journals may have such names. An alias everywhere.
const ALIAS: &[u8] = b"aside.";

/// The number of a dead letter in its session. Those of clients begin with 1.
pub(super) const NUMBER: u64 = 0;

/// Dead letters that are dispatched again in a second: a worker that fails them all must not keep the broker busy.
const RETRIES_PER_SECOND: usize = 1_000;

/// The dead letters of all services.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    count: usize,
    /// Bytes of memory, with the requests' own.
    bytes: usize,
    /// Bytes of their bodies that aren't in memory.
    large_bytes: u64,
    /// Where the next retry begins.
    next: SessionKey,
}

impl DeadLetters {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether another one fits. They may stay for long, and new requests must fit beside them.
    fn has_room(&self, settings: &Settings, bytes: usize, large_bytes: u64) -> bool {
        self.count < settings.dead_letters_max()
            && self.bytes + bytes <= settings.dead_letter_bytes_max()
            && self.large_bytes.saturating_add(large_bytes) <= settings.large_bytes_max / 4
    }

    fn add(&mut self, bytes: usize, large_bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.large_bytes += large_bytes;
    }

    #[cold]
    pub fn remove(&mut self, bytes: usize, large_bytes: u64) {
        self.count -= 1;
        self.bytes -= bytes;
        self.large_bytes -= large_bytes;
    }

    /// Those of the postponed ones that are dispatched again now. The others have their turn a second later.
    fn take_turn(&mut self, postponed: impl Iterator<Item = SessionKey>) -> Vec<SessionKey> {
        let next = self.next;
        let turn: Vec<SessionKey> = postponed.filter(|&key| key >= next).take(RETRIES_PER_SECOND).collect();
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

/// The dead-letter queue of a service. `None`: its name would be too long.
fn queue_of(service: &[u8]) -> Option<Bytes> {
    if service.starts_with(PREFIX) {
        return Some(Bytes::copy_from_slice(service));
    }
    (PREFIX.len() + service.len() <= SERVICE_BYTES_MAX).then(|| [PREFIX, service].concat().into())
}

impl Core {
    /// Ends a request that is in no list and has used up its attempts.
    #[cold]
    pub(super) fn give_up(&mut self, now: Millis, slot: u32) {
        if self.is_dead_letter(slot) {
            return self.postpone(slot);
        }
        let kept_for = self.keep_dead_letter(now, slot);
        let attempts = self.settings.attempts_max;
        let kept =
            kept_for.as_ref().map_or(String::new(), |queue| format!("; kept for {}", String::from_utf8_lossy(queue)));
        let reason =
            format!("given up after {attempts} attempts: workers went while they had it, or couldn't do it{kept}");
        let request = self.requests.at(slot);
        let (number, client) = (request.number, self.sessions[request.session].client);
        let service = self.services.at(request.service).name.clone();
        self.actions.push(Action::GaveUp { client, number, service, attempts, kept_for });
        self.settle(slot, Status::ATTEMPTS_USED_UP, Body::from(reason.as_str()).into());
    }

    /// Keeps a journalled request as a dead letter. Its entry precedes the outcome of the request: after a crash in between there are
    /// both. Returns the queue.
    fn keep_dead_letter(&mut self, now: Millis, slot: u32) -> Option<Bytes> {
        let request = self.requests.at(slot);
        if request.journal_id == 0 {
            return None;
        }
        let (body, id) = (request.body.clone(), request.journal_id);
        let queue = queue_of(&self.services.at(request.service).name)?;
        let (client, bytes, large_bytes) = (self.dead_letter_client(id), body.memory_bytes(), body.large_bytes());
        // A stopping broker keeps them all the same.
        let has_room = self.dead_letters.has_room(&self.settings, REQUEST_BYTES + bytes, large_bytes)
            && self.admit_shared(NOBODY, &queue, bytes).is_ok();
        if !has_room || self.sessions.find(client).is_some() {
            return None;
        }
        let session = self.absent_session(now, client);
        self.mark_dead_letter(session, REQUEST_BYTES + bytes, large_bytes);
        self.counters.dead_letters += 1;
        self.accept(now, session, NUMBER, NEVER, true, &queue, body.into(), None);
        // No client's: it was counted when it came.
        self.counters.accepted -= 1;
        Some(queue)
    }

    /// The client of a dead letter: one that nobody can claim to be. A journal id is used once.
    fn dead_letter_client(&self, journal_id: u64) -> ClientId {
        let [first, second] = self.settings.secret;
        let mut hasher = SipHasher13::new_with_keys(first, second);
        hasher.write(PREFIX);
        hasher.write_u64(journal_id);
        ClientId(hasher.finish128().as_bytes())
    }

    /// Marks a session as that of a dead letter of so many bytes.
    pub(super) fn mark_dead_letter(&mut self, session: SessionKey, bytes: usize, large_bytes: u64) {
        self.dead_letters.add(bytes, large_bytes);
        let session = &mut self.sessions[session];
        session.is_dead_letter = true;
        // Nobody waits for a reply.
        session.one_reply = false;
    }

    /// Removes dead letters after their retention, and dispatches postponed ones again.
    pub(super) fn retry_dead_letters(&mut self, now: Millis) {
        if self.dead_letters.is_empty() {
            return;
        }
        let retention = self.settings.journal_retention_ms;
        let letters = || self.sessions.iter().filter(|(_, session)| session.is_dead_letter);
        let expired = letters().filter(|(_, session)| now.saturating_sub(session.absent_since) > retention);
        let expired: Vec<SessionKey> = expired.map(|(key, _)| key).collect();
        let postponed = letters().filter(|(_, session)| session.parked.len > 0);
        let turn = self.dead_letters.take_turn(postponed.map(|(key, _)| key));
        expired.into_iter().for_each(|key| self.remove_session(now, key));
        for key in turn {
            // It may have expired.
            if self.sessions.contains(key) {
                self.unpark_all(now, key);
            }
        }
    }

    #[inline]
    pub(super) fn is_dead_letter(&self, slot: u32) -> bool {
        self.sessions[self.requests.at(slot).session].is_dead_letter
    }

    /// Parks a dead letter that its worker failed. It is dispatched again, but not at once: a worker that fails it now would probably
    /// fail it the next moment.
    #[cold]
    pub(super) fn postpone(&mut self, slot: u32) {
        self.park(slot);
    }

    /// Part of [`Core::check`].
    pub(super) fn check_dead_letters(&self) {
        let (mut count, mut bytes, mut large_bytes) = (0, 0, 0);
        for (slot, request) in self.requests.iter().filter(|(slot, _)| self.is_dead_letter(*slot)) {
            assert_eq!(self.sessions[request.session].requests.get(NUMBER), Some(slot));
            (count, bytes) = (count + 1, bytes + request.bytes());
            large_bytes += request.body.large_bytes();
        }
        let DeadLetters { count: letters, bytes: their_bytes, large_bytes: their_large_bytes, .. } = self.dead_letters;
        assert_eq!((count, bytes, large_bytes), (letters, their_bytes, their_large_bytes), "the sums of dead letters");
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
        let all = || (0..2 * RETRIES_PER_SECOND as SessionKey + 1).filter(|key| key % 2 == 0);
        let first = letters.take_turn(all());
        assert_eq!(first.len(), RETRIES_PER_SECOND);
        assert_eq!(letters.take_turn(all()), [2 * RETRIES_PER_SECOND as SessionKey]);
        assert_eq!(letters.take_turn(all()), first);
    }
}
