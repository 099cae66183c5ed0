//! Numbers whose outcomes were dropped, in the journal: they stay over across a restart.
//!
//! One record of a client has them all, as an accepted request for the service without a name, which nobody can ask for. It precedes those that
//! forget the requests, and a later one takes its place.

use super::durability::Entry;
use super::settings::{Millis, NEVER};
use super::{Core, SessionKey};
use bytes::Bytes;
use std::collections::HashSet;
use towpath_requests::body::{Body, RequestChecksum};
use towpath_requests::numbered::ClientId;

impl Core {
    /// Writes anew which numbers of a client are dropped, or forgets the record if none is.
    pub(super) fn journal_dropped(&mut self, key: SessionKey) {
        let former = std::mem::take(&mut self.sessions[key].dropped_id);
        let session = &mut self.sessions[key];
        if !session.dropped.is_empty() {
            let id = self.durability.take_id();
            session.dropped_id = id;
            self.durability.push_unawaited(Entry::Accepted {
                id,
                client: session.client.unwrap_or_default(),
                number: 0,
                service: Bytes::new(),
                expires: NEVER,
                checksum: RequestChecksum::default(),
                letter: None,
                body: Body::from(session.dropped.to_bytes()),
            });
        }
        self.forget_dropped(former);
    }

    /// The record of this id isn't needed any more. 0: there was none.
    pub(super) fn forget_dropped(&mut self, id: u64) {
        if id != 0 {
            self.durability.push_unawaited(Entry::Forgotten { id });
        }
    }

    /// A client has confirmed numbers, perhaps the last ones that were dropped.
    #[inline]
    pub(super) fn dropped_confirmed(&mut self, key: SessionKey) {
        let session = &self.sessions[key];
        if session.dropped_id != 0 && session.dropped.is_empty() {
            self.journal_dropped(key);
        }
    }

    /// The disk was full, and these records aren't on it: they wait until they are.
    pub(super) fn journal_dropped_again(&mut self, ids: &HashSet<u64>) {
        let lost = self.sessions.iter().filter(|(_, session)| ids.contains(&session.dropped_id));
        let lost: Vec<SessionKey> = lost.map(|(key, _)| key).collect();
        lost.into_iter().for_each(|key| self.journal_dropped(key));
    }

    /// Restores the numbers of such a record.
    pub(super) fn restore_dropped(&mut self, now: Millis, id: u64, client: ClientId, numbers: &Body) {
        let key = self.absent_session(now, client);
        let session = &mut self.sessions[key];
        let gaps = session.gaps();
        let end = session.dropped.insert_bytes(numbers.single().unwrap_or_default());
        session.highest = session.highest.max(end.saturating_sub(1));
        session.is_journalled = true;
        // After a crash before it was forgotten.
        let former = std::mem::replace(&mut session.dropped_id, id);
        self.update_gap_bytes(key, gaps);
        self.forget_dropped(former);
    }
}
