//! The journal, as the driver uses it.

use super::BrokerError;
use crate::core::{Core, Entry, Millis, Restored};
use crate::journal::{self, Journal, JournalError, JournalOptions};
use crate::wire::{ClientId, Status};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use towpath_sockets::Hub;

/// The journal, and what is on its way into it.
pub(super) struct Keeping {
    journal: Journal,
    /// What the journal has not taken yet.
    entries: VecDeque<Entry>,
    taken: Vec<Entry>,
    /// The position of each entry that isn't known to be on the disk.
    positions: VecDeque<journal::Lsn>,
    durable: u64,
    failing: bool,
    started: Instant,
    started_unix_ms: u64,
}

impl Keeping {
    /// Opens the journal and gives the core what is in it.
    pub fn open(directory: &Path, core: &mut Core, hub: &Hub) -> Result<Keeping, BrokerError> {
        let waker = hub.waker();
        let (journal, recovered) = Journal::open(directory, JournalOptions::default(), move || waker.wake())?;
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
                    body: request.body,
                    outcome: request.outcome.map(|(status, body)| (Status(status), body)),
                },
            );
        }
        core.restored_up_to(recovered.next_id.saturating_sub(1));
        tracing::info!(waiting, settled, directory = %directory.display(), "the journal is open");
        Ok(Keeping {
            journal,
            entries: VecDeque::new(),
            taken: Vec::new(),
            positions: VecDeque::new(),
            durable: 0,
            failing: false,
            started: Instant::now(),
            started_unix_ms,
        })
    }

    /// Gives the journal what the core wants to keep.
    pub fn write(&mut self, core: &mut Core) {
        core.take_entries(&mut self.taken);
        self.entries.extend(self.taken.drain(..));
        while let Some(entry) = self.entries.front() {
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
                    self.positions.push_back(position);
                    self.entries.pop_front();
                }
                Err(JournalError::Full | JournalError::Failing(_)) => break,
                Err(error) => {
                    // It will never be taken: the promise to keep it can't be held.
                    tracing::error!(%error, "something isn't kept in the journal");
                    self.positions.push_back(journal::Lsn(0));
                    self.entries.pop_front();
                }
            }
        }
    }

    /// Tells the core what is on the disk by now, and whether the journal works.
    pub fn take_durable(&mut self, core: &mut Core) {
        let durable = self.journal.durable();
        while self.positions.front().is_some_and(|position| *position < durable) {
            self.positions.pop_front();
            self.durable += 1;
        }
        core.persisted(self.durable);
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
