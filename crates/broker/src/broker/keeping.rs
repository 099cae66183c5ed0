//! The journal, as the driver uses it.

use super::BrokerError;
use crate::body::Body;
use crate::core::{Core, Entry, Millis, Restored};
use crate::journal::{self, Journal, JournalError, JournalOptions, Recovered};
use crate::spool::{Room, SpooledBody};
use crate::wire::{ClientId, Status};
use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use towpath_sockets::Hub;

/// The journal, and what is on its way into it.
pub(super) struct Keeping {
    journal: Journal,
    /// What the journal has not taken yet.
    entries: VecDeque<Entry>,
    taken: Vec<Entry>,
    /// The position of each entry that isn't known to be on the disk; `None`: the journal doesn't take it, and never will.
    positions: VecDeque<Option<journal::Lsn>>,
    /// How many of those the core hasn't been told of.
    refused: usize,
    /// Requests whose acceptance isn't in the journal, as long as the core may think that it is. An outcome of one would be damage.
    unknown: HashSet<u64>,
    /// Entries that are on the disk, or never will be.
    done: u64,
    failing: bool,
    started: Instant,
    started_unix_ms: u64,
}

/// Opens the journal.
pub(super) fn open(directory: &Path, hub: &Hub) -> Result<(Journal, Recovered), BrokerError> {
    let waker = hub.waker();
    let opened = Journal::open(directory, JournalOptions::default(), move || waker.wake())?;
    tracing::info!(directory = %directory.display(), "the journal is open");
    Ok(opened)
}

/// Octets of the bodies that are in files of their own.
pub(super) fn large_bytes(recovered: &Recovered) -> u64 {
    let bodies = recovered.requests.iter().map(|request| match &request.outcome {
        Some((_, reply)) => reply,
        None => &request.body,
    });
    bodies.filter(|body| body.as_large().is_some()).map(Body::length).sum()
}

impl Keeping {
    /// Gives the core what is in the journal. Large bodies have their part of the room, whether or not there is so much.
    pub fn new(journal: Journal, recovered: Recovered, core: &mut Core, room: &Arc<Room>) -> Keeping {
        let started_unix_ms = unix_ms();
        let (mut waiting, mut settled) = (0, 0);
        for request in recovered.requests {
            match request.outcome {
                None => waiting += 1,
                Some(_) => settled += 1,
            }
            core.restore(
                0,
                Restored {
                    id: request.id,
                    client: ClientId(request.client),
                    number: request.number,
                    service: request.service,
                    expires: match request.expires_unix_ms {
                        0 => Millis::MAX,
                        at => at.saturating_sub(started_unix_ms),
                    },
                    body: SpooledBody::with_room(request.body, room),
                    outcome: request.outcome.map(|(status, body)| (Status(status), SpooledBody::with_room(body, room))),
                },
            );
        }
        core.restored_up_to(recovered.next_id.saturating_sub(1));
        tracing::info!(waiting, settled, "requests of the journal");
        Keeping {
            journal,
            entries: VecDeque::new(),
            taken: Vec::new(),
            positions: VecDeque::new(),
            refused: 0,
            unknown: HashSet::new(),
            done: 0,
            failing: false,
            started: Instant::now(),
            started_unix_ms,
        }
    }

    /// Gives the journal what the core wants to keep.
    pub fn write(&mut self, core: &mut Core) {
        core.take_entries(&mut self.taken);
        self.entries.extend(self.taken.drain(..));
        while let Some(entry) = self.entries.front() {
            let (Entry::Accepted { id, .. } | Entry::Finished { id, .. } | Entry::Forgotten { id }) = *entry;
            if self.unknown.contains(&id) {
                self.refuse();
                continue;
            }
            let is_accepted = matches!(entry, Entry::Accepted { .. });
            let entry = match entry {
                Entry::Accepted { id, client, number, service, expires, body } => journal::Entry::Accepted {
                    id: *id,
                    client: client.0,
                    number: *number,
                    service,
                    expires_unix_ms: match *expires {
                        Millis::MAX => 0,
                        at => self.started_unix_ms.saturating_add(at),
                    },
                    body,
                },
                Entry::Finished { id, status, body } => journal::Entry::Finished { id: *id, status: status.0, body },
                Entry::Forgotten { id } => journal::Entry::Forgotten { id: *id },
            };
            match self.journal.append(&entry) {
                Ok(position) => {
                    self.positions.push_back(Some(position));
                    self.entries.pop_front();
                }
                Err(JournalError::Full | JournalError::Failing(_)) => break,
                Err(error) => {
                    // It will never be taken: nobody may be told that it is kept.
                    tracing::error!(%error, id, "something can't be kept in the journal, and fails");
                    if is_accepted {
                        self.unknown.insert(id);
                    }
                    self.refuse();
                }
            }
        }
        if self.refused == 0 && self.entries.is_empty() {
            self.unknown.clear();
        }
    }

    /// The first of the entries isn't going to be in the journal.
    fn refuse(&mut self) {
        self.positions.push_back(None);
        self.refused += 1;
        self.entries.pop_front();
    }

    /// Tells the core what is on the disk by now, what never will be, and whether the journal works.
    pub fn take_durable(&mut self, now: Millis, core: &mut Core) {
        let durable = self.journal.durable();
        while let Some(position) = self.positions.front() {
            match position {
                Some(position) if *position < durable => {}
                Some(_) => break,
                None => {
                    core.persisted(self.done);
                    core.not_kept(now);
                    self.refused -= 1;
                }
            }
            self.positions.pop_front();
            self.done += 1;
        }
        core.persisted(self.done);
        if !self.entries.is_empty() {
            self.write(core);
        }
        let failure = match self.journal.status() {
            journal::Status::Working => None,
            journal::Status::Failing(why) => Some(why),
        };
        let failing = failure.is_some() || !self.entries.is_empty();
        if failing != self.failing {
            self.failing = failing;
            core.storage_failed(failing);
            match failure {
                Some(failure) => tracing::error!(failure, "the journal can't be written: new requests are refused"),
                None if failing => tracing::warn!("the disk is slower than what comes: new requests are refused"),
                None => tracing::info!(after_s = self.started.elapsed().as_secs(), "the journal works again"),
            }
        }
    }

    /// Brings everything to the disk.
    pub fn close(self) -> Result<(), BrokerError> {
        Ok(self.journal.close()?)
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::body::Body;
    use crate::core::{Action, Kind, Settings, StoredState};
    use crate::journal::tests::on_faulty_disk;
    use crate::limits::BODY_BYTES_MAX;
    use bytes::Bytes;

    const CLIENT: ClientId = ClientId([7; 16]);
    const STORED: ClientId = ClientId([8; 16]);

    fn core() -> Core {
        Core::new(Settings { journal: true, ..Settings::default() })
    }

    /// Until everything is on the disk or never will be: what the core wants meanwhile.
    fn settle(keeping: &mut Keeping, core: &mut Core) -> Vec<Action> {
        let mut actions = Vec::new();
        let start = Instant::now();
        loop {
            keeping.write(core);
            if keeping.entries.is_empty() && keeping.positions.is_empty() {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", keeping.journal.status());
            keeping.take_durable(0, core);
            core.take_actions(&mut actions);
            std::thread::sleep(Duration::from_micros(200));
        }
        core.check();
        actions
    }

    fn too_large() -> Body {
        Body::from(Bytes::from(vec![0; BODY_BYTES_MAX + 1]))
    }

    fn is_failure(action: &Action, of: u64) -> bool {
        matches!(action, Action::Reply { number, status: Status::TOO_LARGE, .. } if *number == of)
    }

    #[test]
    fn what_the_journal_never_takes_is_not_acknowledged_and_fails() {
        let open = on_faulty_disk(20);
        let mut core = core();
        let (journal, recovered) = open();
        let mut keeping = Keeping::new(journal, recovered, &mut core, &Room::new(0));
        core.client_hello(0, 1, CLIENT, 1);
        for number in 1..=5 {
            let body = if number == 2 { too_large() } else { Body::from("small") };
            core.request(0, 1, number, 0, false, b"echo", body);
        }
        core.store(0, STORED, b"echo", too_large(), crate::wire::Token([0; 16]), Body::default());
        let actions = settle(&mut keeping, &mut core);
        let acknowledged = |number: u64| {
            let is_of = |first: u64, count: u32| (first..first + u64::from(count)).contains(&number);
            actions.iter().any(|a| matches!(a, Action::Accepted { first, count, .. } if is_of(*first, *count)))
        };
        assert_eq!((1..=5).map(acknowledged).collect::<Vec<_>>(), [true, false, true, true, true]);
        assert!(actions.iter().any(|action| is_failure(action, 2)));
        assert_eq!(core.stored(STORED), None::<StoredState>);

        // An outcome that isn't taken is none: its request ends with one that is. One of what wasn't taken itself is too late.
        core.worker_ready(1, 2, Kind::Numbered, b"echo", 10);
        core.request(1, 1, 6, 0, false, b"echo", too_large());
        let mut given = Vec::new();
        core.take_actions(&mut given);
        let tokens = given.iter().filter_map(|action| match action {
            Action::Dispatch { token, .. } => Some(*token),
            _ => None,
        });
        let tokens: Vec<_> = tokens.collect();
        assert_eq!(tokens.len(), 5);
        for (token, body) in tokens.iter().zip([Body::from("fine"), too_large(), Body::from("fine")]) {
            core.worker_reply(2, 2, token, Status::OK, None, body);
        }
        core.worker_reply(2, 2, &tokens[4], Status::OK, None, Body::from("fine"));
        let actions = settle(&mut keeping, &mut core);
        let told: Vec<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Reply { number, status, .. } => Some((*number, *status)),
                _ => None,
            })
            .collect();
        assert_eq!(told, [(6, Status::TOO_LARGE), (1, Status::OK), (4, Status::OK), (3, Status::TOO_LARGE)]);
        assert!(!actions.iter().any(|action| matches!(action, Action::Accepted { .. })));
        core.confirm(3, 1, 6, 1);
        core.confirm(3, 1, 2, 1);
        settle(&mut keeping, &mut core);
        assert!(keeping.unknown.is_empty() && keeping.positions.is_empty());

        // The next process finds what was promised, and a journal that isn't damaged.
        let _ = keeping.close();
        let found: Vec<_> = open().1.requests.into_iter().map(|r| (r.number, r.outcome.map(|o| Status(o.0)))).collect();
        let (done, failed) = (Some(Status::OK), Some(Status::TOO_LARGE));
        assert_eq!(found, [(1, done), (3, failed), (4, done), (5, None)]);
    }
}
