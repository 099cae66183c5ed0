//! Requests that were given up, because every worker that had one went: what is in the journal is kept aside, as a request for a
//! service of its own, so that somebody who works for that service can look at them, and do something about them.

use super::requests::{REQUEST_BYTES, State};
use super::settings::{Millis, NEVER};
use super::{Action, Core, SessionKey};
use bytes::Bytes;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use towpath_requests::body::Body;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::numbered::{ClientId, Status};

/// What the names of such services begin with.
const PREFIX: &[u8] = b"aside.";

/// The number of such a request. Those of clients begin with 1.
pub(super) const NUMBER: u64 = 0;

/// Requests that are put off no longer, each second: a worker that fails them all must not keep the broker busy with them.
const RETRIES_PER_SECOND: usize = 1_000;

/// What is kept aside, in all.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    pub requests: usize,
    /// As they count in memory.
    pub bytes: usize,
    /// Of their bodies that aren't in memory.
    pub large_bytes: u64,
    /// The next of them that is put off no longer.
    next: SessionKey,
}

/// For which service a request is kept whose workers all went; `None`: such a name would be too long.
fn service_for(service: &[u8]) -> Option<Bytes> {
    if service.starts_with(PREFIX) {
        return Some(Bytes::copy_from_slice(service));
    }
    (PREFIX.len() + service.len() <= SERVICE_BYTES_MAX).then(|| [PREFIX, service].concat().into())
}

impl Core {
    /// A request that is in no list has been given to as many workers as it may be, and all of them went.
    #[cold]
    pub(super) fn give_up(&mut self, now: Millis, slot: u32) {
        if self.is_dead_letter(slot) {
            return self.postpone(slot);
        }
        let kept_for = self.keep_dead_letter(now, slot);
        let attempts = self.settings.attempts_max;
        let kept =
            kept_for.as_ref().map_or(String::new(), |aside| format!("; kept for {}", String::from_utf8_lossy(aside)));
        let reason = format!("given up: {attempts} workers went while they had it{kept}");
        let request = self.requests.at(slot);
        let (number, client) = (request.number, self.sessions[request.session].client);
        let service = self.services.at(request.service).name.clone();
        self.actions.push(Action::GaveUp { client, number, service, attempts, kept_for });
        self.settle(slot, Status::ATTEMPTS_USED_UP, Body::from(reason.as_str()).into());
    }

    /// Keeps a request that is in the journal. It goes there before the outcome of the one that it was: after a crash in between
    /// there are both.
    fn keep_dead_letter(&mut self, now: Millis, slot: u32) -> Option<Bytes> {
        let request = self.requests.at(slot);
        if request.journal_id == 0 {
            return None;
        }
        let (body, id) = (request.body.clone(), request.journal_id);
        let service = service_for(&self.services.at(request.service).name)?;
        let (client, bytes) = (self.dead_letter_client(id), body.memory_bytes());
        // They may stay for long, and what is new must find room beside them. A broker that is stopping keeps them all the same.
        let (aside, settings) = (&self.dead_letters, &self.settings);
        let has_room = aside.requests < settings.dead_letters_max()
            && aside.bytes + REQUEST_BYTES + bytes <= settings.dead_letter_bytes_max()
            && aside.large_bytes.saturating_add(body.large_bytes()) <= settings.large_bytes_max / 4
            && self.admit_shared(&service, bytes).is_ok();
        if !has_room || self.sessions.find(client).is_some() {
            return None;
        }
        let session = self.absent_session(now, client);
        self.mark_dead_letter(session, REQUEST_BYTES + bytes, body.large_bytes());
        self.counters.kept_aside += 1;
        self.accept(now, session, NUMBER, NEVER, true, &service, body.into(), None);
        // No client's: it was counted when it came.
        self.counters.accepted -= 1;
        Some(service)
    }

    /// Whose it is: nobody's who could know it. The number in the journal is used once.
    fn dead_letter_client(&self, journal_id: u64) -> ClientId {
        let [first, second] = self.settings.secret;
        let mut hasher = SipHasher13::new_with_keys(first, second);
        hasher.write(PREFIX);
        hasher.write_u64(journal_id);
        ClientId(hasher.finish128().as_bytes())
    }

    /// A session is that of a request which is kept aside, and has so many bytes.
    pub(super) fn mark_dead_letter(&mut self, session: SessionKey, bytes: usize, large_bytes: u64) {
        self.dead_letters.requests += 1;
        self.dead_letters.bytes += bytes;
        self.dead_letters.large_bytes += large_bytes;
        let session = &mut self.sessions[session];
        session.is_dead_letter = true;
        // Nobody waits for a reply.
        session.one_reply = false;
    }

    /// Such a request is forgotten.
    #[cold]
    pub(super) fn remove_dead_letter(&mut self, bytes: usize, large_bytes: u64) {
        self.dead_letters.requests -= 1;
        self.dead_letters.bytes -= bytes;
        self.dead_letters.large_bytes -= large_bytes;
    }

    /// Looks at all that are kept: those whose time is over go, and what was put off is given to a worker again.
    pub(super) fn retry_dead_letters(&mut self, now: Millis) {
        if self.dead_letters.requests == 0 {
            return;
        }
        let kept = self.settings.journal_retention_ms;
        let aside = || self.sessions.iter().filter(|(_, session)| session.is_dead_letter);
        let over = aside().filter(|(_, session)| now.saturating_sub(session.absent_since) > kept);
        let over: Vec<SessionKey> = over.map(|(key, _)| key).collect();
        let next = self.dead_letters.next;
        let postpone = aside().map(|(key, session)| (key, session.parked.len > 0));
        let again = postpone.filter(|&(key, is_put_off)| is_put_off && key >= next).map(|(key, _)| key);
        let again: Vec<SessionKey> = again.take(RETRIES_PER_SECOND).collect();
        // The others have their turn a second later.
        self.dead_letters.next = again.get(RETRIES_PER_SECOND - 1).map_or(0, |last| last + 1);
        over.into_iter().for_each(|key| self.remove_session(now, key));
        for key in again {
            // Its time may be over.
            if self.sessions.contains(key) {
                self.unpark_all(now, key);
            }
        }
    }

    #[inline]
    pub(super) fn is_dead_letter(&self, slot: u32) -> bool {
        self.sessions[self.requests.at(slot).session].is_dead_letter
    }

    /// A worker that was to look after a request couldn't. It stays, and is given to one again, but not at once: whoever can't now
    /// probably can't the next moment either.
    #[cold]
    pub(super) fn postpone(&mut self, slot: u32) {
        let request = self.requests.at_mut(slot);
        request.state = State::Parked;
        let session = &mut self.sessions[request.session];
        self.requests.push_back(&mut session.parked, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_says_whose_requests_are_kept() {
        assert_eq!(service_for(b"echo").as_deref(), Some(&b"aside.echo"[..]));
        assert_eq!(service_for(b"aside.echo").as_deref(), Some(&b"aside.echo"[..]));
        assert_eq!(service_for(&[b'x'; SERVICE_BYTES_MAX - 6]).map(|name| name.len()), Some(SERVICE_BYTES_MAX));
        assert_eq!(service_for(&[b'x'; SERVICE_BYTES_MAX - 5]), None);
    }
}
