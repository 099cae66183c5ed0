//! Content of a log of records that is kept elsewhere than in a directory: in blocks on other machines.

use super::index::{Index, Needed};
use super::record::{self, Record};
use super::replay::Replay;
use super::shared_bodies::SharedBodies;
use super::{Entry, JournalError, RecoveredRequest};
use std::io;
use towpath_requests::body::Body;
use towpath_requests::limits::JOURNAL_RECORD_BYTES_MAX;
use towpath_spool::{BodyName, BodyPlace, SpooledBody};

/// Appends an entry's record to `out`.
///
/// Errors: [`JournalError::TooLarge`]; [`JournalError::UnknownBody`] for a body that is neither in memory nor in a shared directory. Nothing was appended.
pub fn encode(entry: &Entry, out: &mut Vec<u8>) -> Result<(), JournalError> {
    if let Entry::Accepted { body, .. } | Entry::Finished { body, .. } = entry
        && body.as_large().is_some()
        && SpooledBody::place_of(body).is_none()
    {
        return Err(JournalError::UnknownBody);
    }
    let bytes = record::encoded_bytes(entry)?;
    if bytes > JOURNAL_RECORD_BYTES_MAX {
        return Err(JournalError::TooLarge("the entry"));
    }
    record::encode(entry, bytes, out);
    Ok(())
}

/// Requests that the records so far restore, and which stretch of the log has what is still needed. Stretches are numbered from 1, in order.
#[derive(Default)]
pub struct Content {
    /// Until the requests were taken.
    replay: Option<Replay>,
    index: Index,
    bodies: SharedBodies,
    last_id: u64,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content").field("requests", &self.requests()).field("needed", &self.needed()).finish()
    }
}

impl Content {
    /// Content of a log without records.
    pub fn new() -> Content {
        Content { replay: Some(Replay::default()), ..Content::default() }
    }

    /// Adds records of a stretch. The error says what is wrong with the first that can't be read; those before it count.
    pub fn apply(&mut self, mut records: &[u8], stretch: u32) -> Result<(), &'static str> {
        while !records.is_empty() {
            let record = Record::take(&mut records)?;
            self.last_id = self.last_id.max(record.id);
            if let Some(replay) = &mut self.replay {
                replay.apply(&record);
            }
            self.index.apply(&record, stretch, |_| {});
            self.bodies.apply(&record);
        }
        Ok(())
    }

    /// Takes the requests, by id: later records are about what the owner has. Nothing after the first call. `open` opens bodies in the shared
    /// directory.
    pub fn take_requests(
        &mut self,
        mut open: impl FnMut(&BodyPlace) -> io::Result<Body>,
    ) -> Result<Vec<RecoveredRequest>, JournalError> {
        self.replay.take().map_or(Ok(Vec::new()), |replay| replay.finish_shared(&mut open))
    }

    /// Takes names of bodies in the shared directory that no record needs any more.
    pub fn take_unneeded_bodies(&mut self) -> Vec<BodyName> {
        self.bodies.take_unneeded()
    }

    /// Whether a record needs this body in the shared directory.
    pub fn needs_body(&self, name: &BodyName) -> bool {
        self.bodies.needs(name)
    }

    /// Appends to `out` those of a stretch's records that are still needed, and gives how many they are. All that is needed of it is in `out`
    /// when all its records were given.
    pub fn copy_needed(&self, mut records: &[u8], stretch: u32, out: &mut Vec<u8>) -> Result<usize, &'static str> {
        let mut copied = 0;
        while !records.is_empty() {
            let record = Record::take(&mut records)?;
            let needed = self.index.needed(&record, stretch);
            if needed != Needed::No {
                record.copy(out, needed == Needed::Whole);
                copied += 1;
            }
        }
        Ok(copied)
    }

    /// Needed bytes of a stretch.
    pub fn needed_of(&self, stretch: u32) -> u64 {
        self.index.needed_of(stretch)
    }

    /// Needed bytes in all.
    pub fn needed(&self) -> u64 {
        self.index.total()
    }

    /// Requests that aren't forgotten.
    pub fn requests(&self) -> usize {
        self.index.requests()
    }

    /// The largest id so far.
    pub fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Drops the counts of stretches before this one.
    pub fn forget_before(&mut self, stretch: u32) {
        self.index.forget_before(stretch);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Expiry;

    fn nowhere(_: &BodyPlace) -> io::Result<Body> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn accepted(id: u64, body: &Body) -> Vec<u8> {
        let mut out = Vec::new();
        let (client, service) = ([3; 16], &b"echo"[..]);
        let entry = Entry::Accepted {
            id,
            client,
            number: id,
            service,
            expires: Expiry::NEVER,
            checksum: 7,
            letter: None,
            body,
        };
        encode(&entry, &mut out).unwrap();
        out
    }

    fn of(entry: &Entry) -> Vec<u8> {
        let mut out = Vec::new();
        encode(entry, &mut out).unwrap();
        out
    }

    #[test]
    fn needed_records_of_a_stretch_move_to_a_later_one() {
        let body = Body::from("all of it");
        let mut content = Content::new();
        let first: Vec<u8> = (1..=3).flat_map(|id| accepted(id, &body)).collect();
        content.apply(&first, 1).unwrap();
        content.apply(&of(&Entry::Finished { id: 2, status: 200, body: &Body::from("done") }), 2).unwrap();
        content.apply(&of(&Entry::Forgotten { id: 3 }), 2).unwrap();
        let mut moved = Vec::new();
        assert_eq!(content.copy_needed(&first, 1, &mut moved).unwrap(), 2);
        assert!(moved.len() < first.len());
        content.apply(&moved, 3).unwrap();
        assert_eq!((content.needed_of(1), content.requests(), content.last_id()), (0, 2, 3));
        content.forget_before(2);
        let requests = content.take_requests(nowhere).unwrap();
        let found: Vec<_> = requests.iter().map(|request| (request.id, request.outcome.is_some())).collect();
        assert_eq!(found, [(1, false), (2, true)]);
        assert!(content.take_requests(nowhere).unwrap().is_empty());
    }

    #[test]
    fn damaged_records_are_reported() {
        let mut content = Content::new();
        let records = accepted(1, &Body::from("x"));
        assert!(content.apply(&records[..records.len() - 1], 1).is_err());
        content.apply(&of(&Entry::Finished { id: 9, status: 200, body: &Body::default() }), 1).unwrap();
        assert!(content.take_requests(nowhere).unwrap_err().to_string().contains("without its request"));
    }
}
