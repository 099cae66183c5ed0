//! The broker's own entries in the journal: numbers whose outcomes were dropped, which stay over across a restart, and paused services.
//!
//! A mark is an accepted request for the service without a name, which nobody can ask for. One has all dropped numbers of a client. It precedes the
//! records that forget the requests, and a later one takes its place.

use super::durability::Entry;
use super::settings::{Millis, NEVER};
use super::{Core, SessionKey};
use bytes::Bytes;
use std::collections::HashSet;
use towpath_requests::body::{Body, RequestChecksum};
use towpath_requests::numbered::ClientId;

/// Number of a mark whose body has dropped numbers of its client.
const DROPPED: u64 = 0;

/// Number of a mark whose body is the name of a paused service.
const PAUSED: u64 = 1;

impl Core {
    /// Writes a mark, and gives its id.
    fn journal_mark(&mut self, client: ClientId, number: u64, body: Body) -> u64 {
        let (id, service, checksum) = (self.durability.take_id(), Bytes::new(), RequestChecksum::default());
        let entry = Entry::Accepted { id, client, number, service, expires: NEVER, checksum, letter: None, body };
        self.durability.push_unawaited(entry);
        id
    }

    /// The mark of this id isn't needed any more. 0: there was none.
    pub(super) fn forget_mark(&mut self, id: u64) {
        if id != 0 {
            self.durability.push_unawaited(Entry::Forgotten { id });
        }
    }

    /// The disk was full, and these marks aren't on it: they wait until they are.
    pub(super) fn journal_marks_again(&mut self, ids: &HashSet<u64>) {
        let lost = self.sessions.iter().filter(|(_, session)| ids.contains(&session.dropped_id));
        let lost: Vec<SessionKey> = lost.map(|(key, _)| key).collect();
        lost.into_iter().for_each(|key| self.journal_dropped(key));
        let lost = self.services.paused.iter().filter(|(_, mark)| ids.contains(mark));
        let lost: Vec<Bytes> = lost.map(|(name, _)| name.clone()).collect();
        lost.into_iter().for_each(|name| self.mark_paused(name));
    }

    /// Restores what a mark says.
    pub(super) fn restore_mark(&mut self, now: Millis, id: u64, client: ClientId, number: u64, body: &Body) {
        match number {
            PAUSED => self.restore_paused(id, body.single().unwrap_or_default()),
            _ => self.restore_dropped(now, id, client, body),
        }
    }

    /// Keeps that a service is paused.
    pub(super) fn mark_paused(&mut self, name: Bytes) {
        let mark = match self.settings.journal {
            true => self.journal_mark(ClientId::default(), PAUSED, Body::from(name.clone())),
            false => 0,
        };
        self.services.paused.insert(name, mark);
    }

    fn restore_paused(&mut self, mark: u64, name: &[u8]) {
        self.services.paused.insert(Bytes::copy_from_slice(name), mark);
        if let Some(key) = self.services.find_by_name(name) {
            self.services.at_mut(key).is_paused = true;
        }
    }

    /// Rewrites the dropped numbers of a client, or forgets the record if none is.
    pub(super) fn journal_dropped(&mut self, key: SessionKey) {
        let former = std::mem::take(&mut self.sessions[key].dropped_id);
        let session = &self.sessions[key];
        if !session.dropped.is_empty() {
            let (client, numbers) = (session.client.unwrap_or_default(), Body::from(session.dropped.to_bytes()));
            self.sessions[key].dropped_id = self.journal_mark(client, DROPPED, numbers);
            self.sessions[key].dropped_by = self.durability.appended();
        }
        self.forget_mark(former);
    }

    /// A client has confirmed numbers, perhaps the last ones that were dropped.
    #[inline]
    pub(super) fn dropped_confirmed(&mut self, key: SessionKey) {
        let session = &self.sessions[key];
        if session.dropped_id != 0 && session.dropped.is_empty() {
            self.journal_dropped(key);
        }
    }

    fn restore_dropped(&mut self, now: Millis, id: u64, client: ClientId, numbers: &Body) {
        let key = self.absent_session(now, client);
        let session = &mut self.sessions[key];
        let gaps = session.gaps();
        let end = session.dropped.insert_bytes(numbers.single().unwrap_or_default());
        session.highest = session.highest.max(end.saturating_sub(1));
        session.is_journalled = true;
        // After a crash before it was forgotten.
        let former = std::mem::replace(&mut session.dropped_id, id);
        self.update_gap_bytes(key, gaps);
        self.forget_mark(former);
    }
}
