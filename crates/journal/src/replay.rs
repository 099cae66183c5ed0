//! Rebuilding requests from records.

use super::index::{Index, body_name};
use super::record::{Record, Stored, What};
use super::storage::Storage;
use super::types::CutTail;
use super::{Expiry, JournalError, RecoveredLetter, RecoveredRequest};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use towpath_requests::body::{Body, LargeBody};
use towpath_spool::{BodyPlace, SpooledBody};

/// Requests rebuilt so far.
#[derive(Default)]
pub(super) struct Replay {
    requests: HashMap<u64, Box<Parts>>,
}

/// A table of these would be mostly empty: there may be a million, and few have all members.
#[derive(Default)]
struct Parts {
    accepted: Option<Accepted>,
    moved: Option<Box<Moved>>,
    outcome: Option<Box<(u16, Part)>>,
}

/// The last move of a dead letter.
struct Moved {
    service: Bytes,
    letter: RecoveredLetter,
}

struct Accepted {
    client: [u8; 16],
    number: u64,
    service: Bytes,
    expires: Expiry,
    checksum: u32,
    letter: Option<Box<RecoveredLetter>>,
    body: Part,
}

/// A body, or where it is.
enum Part {
    Here(Body),
    InFile(u64),
    Shared(BodyPlace),
    Dropped,
}

impl Part {
    fn of(stored: Stored) -> Part {
        match stored {
            Stored::File(length) => Part::InFile(length),
            Stored::Shared(place) => Part::Shared(place),
            Stored::Dropped => Part::Dropped,
            stored => Part::Here(stored.to_body()),
        }
    }
}

impl Replay {
    /// Adds a record, in the order of writing. Moved records come again, and an outcome may come before its moved request.
    pub(super) fn apply(&mut self, record: &Record) {
        match record.what {
            What::Accepted { client, number, expires, checksum, letter, service, body } => {
                let parts = self.requests.entry(record.id).or_default();
                // The body isn't needed once there is an outcome.
                let body = if parts.outcome.is_some() { Part::Dropped } else { Part::of(body) };
                let service = Bytes::copy_from_slice(service);
                let letter = letter.map(|letter| Box::new(RecoveredLetter::new(letter, 0)));
                parts.accepted = Some(Accepted { client, number, service, expires, checksum, letter, body });
            }
            What::Moved { moves, letter, service } => {
                let parts = self.requests.entry(record.id).or_default();
                if parts.moved.as_ref().is_none_or(|last| last.letter.moves <= moves) {
                    let service = Bytes::copy_from_slice(service);
                    parts.moved = Some(Box::new(Moved { service, letter: RecoveredLetter::new(letter, moves) }));
                }
            }
            What::Finished { status, body } => {
                let parts = self.requests.entry(record.id).or_default();
                parts.outcome = Some(Box::new((status, Part::of(body))));
                if let Some(accepted) = &mut parts.accepted {
                    accepted.body = Part::Dropped;
                }
            }
            What::Forgotten => {
                self.requests.remove(&record.id);
            }
        }
    }

    /// The requests by id, and the names of the files that they need. A missing part is an error, unless the end was cut, or there is a gap, which
    /// may have held it: then the request is given up.
    pub(super) fn finish<S: Storage>(
        self,
        storage: &S,
        mut cut: Option<&mut CutTail>,
        has_gaps: bool,
    ) -> Result<Finished, JournalError> {
        let mut requests = Vec::with_capacity(self.requests.len());
        let (mut files, mut given_up) = (HashSet::new(), Vec::new());
        for (id, parts) in self.requests {
            let mut open = |of_outcome, place| {
                let Place::File(length) = place else { return Err(damaged("a body is in a directory of a cell")) };
                let name = body_name(id, of_outcome);
                let body = open_body(storage, &name, length)?;
                files.insert(name);
                Ok(Body::large(body))
            };
            match complete(&storage.path(""), id, *parts, &mut open) {
                Ok(request) => requests.push(request),
                Err(error) if cut.is_none() && !has_gaps => return Err(error),
                Err(error) => {
                    if let Some(cut) = &mut cut {
                        cut.lost_requests += 1;
                    }
                    given_up.push(id);
                    tracing::warn!(id, %error, "a request is given up, since a part of the journal is damaged");
                }
            }
        }
        requests.sort_unstable_by_key(|request| request.id);
        Ok(Finished { requests, files, given_up })
    }

    /// The requests of a log whose large bodies are in a shared directory, by id. A missing part is an error.
    pub(super) fn finish_shared(
        self,
        open_shared: &mut dyn FnMut(&BodyPlace) -> io::Result<Body>,
    ) -> Result<Vec<RecoveredRequest>, JournalError> {
        let log = Path::new("the log");
        let mut open = |_, place| match place {
            Place::File(_) => Err(damaged("a body isn't in the log")),
            Place::Shared(place) => open_shared(&place).map_err(|source| {
                let path = Path::new(&place.file_name()).to_owned();
                JournalError::Io { action: "open the body", path, source }
            }),
        };
        let requests = self.requests.into_iter().map(|(id, parts)| complete(log, id, *parts, &mut open));
        let mut requests = requests.collect::<Result<Vec<_>, _>>()?;
        requests.sort_unstable_by_key(|request| request.id);
        Ok(requests)
    }
}

/// Content of a journal.
pub(super) struct Finished {
    pub(super) requests: Vec<RecoveredRequest>,
    /// Names of the files that they need.
    pub(super) files: HashSet<String>,
    /// Requests of which a part is missing.
    pub(super) given_up: Vec<u64>,
}

/// Where a body is that isn't in the log.
enum Place {
    /// In the journal's directory, of this length.
    File(u64),
    Shared(BodyPlace),
}

fn damaged(what: &'static str) -> JournalError {
    JournalError::Damaged { path: Path::new("the log").to_owned(), offset: 0, what }
}

fn complete(
    log: &Path,
    id: u64,
    parts: Parts,
    open: &mut impl FnMut(bool, Place) -> Result<Body, JournalError>,
) -> Result<RecoveredRequest, JournalError> {
    let missing = |what| JournalError::Damaged { path: log.to_owned(), offset: 0, what };
    let Some(accepted) = parts.accepted else { return Err(missing("there is an outcome without its request")) };
    let mut body_of = |part, of_outcome| match part {
        Part::Here(body) => Ok(body),
        Part::Dropped => Ok(Body::default()),
        Part::InFile(length) => open(of_outcome, Place::File(length)),
        Part::Shared(place) => open(of_outcome, Place::Shared(place)),
    };
    let outcome = match parts.outcome.map(|outcome| *outcome) {
        Some((status, part)) => Some((status, body_of(part, true)?)),
        None if matches!(accepted.body, Part::Dropped) => return Err(missing("a request's outcome is missing")),
        None => None,
    };
    let Accepted { client, number, service, expires, checksum, letter, body } = accepted;
    let body = body_of(body, false)?;
    let (service, letter) = match (parts.moved, letter) {
        (Some(moved), Some(_)) => (moved.service, Some(moved.letter)),
        (_, letter) => (service, letter.map(|letter| *letter)),
    };
    Ok(RecoveredRequest { id, client, number, service, expires, checksum, letter, body, outcome })
}

fn open_body<S: Storage>(storage: &S, name: &str, length: u64) -> Result<Arc<dyn LargeBody>, JournalError> {
    let path = storage.body_path(name);
    let file = match storage.open_body(name) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(JournalError::Damaged { path, offset: 0, what: "the file of a body is missing" });
        }
        Err(source) => return Err(JournalError::Io { action: "open", path, source }),
    };
    let there = file.metadata().map_err(JournalError::io("read", &path))?.len();
    if there != length {
        return Err(JournalError::Damaged { path, offset: there, what: "the file of a body has another length" });
    }
    Ok(SpooledBody::kept(file, length))
}

/// Replay and index, filled together when the journal is opened.
#[derive(Default)]
pub(super) struct Loading {
    pub(super) replay: Replay,
    pub(super) index: Index,
}

impl Loading {
    pub(super) fn apply(&mut self, record: &Record, segment: u32) {
        self.replay.apply(record);
        // Unneeded files are found by name later.
        self.index.apply(record, segment, |_| {});
    }
}
