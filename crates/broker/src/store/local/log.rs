//! The log of entries: a journal on this machine's disk, the log of a cell, or none.

use crate::core::StorageFailure;
use crate::store::{Failure, Place};
use std::path::Path;
#[cfg(feature = "nats")]
use std::time::Duration;
#[cfg(feature = "nats")]
use towpath_cell::nats::{CellLog, Change, Place as CellPlace};
use towpath_cell::{CellFigures, Questions};
use towpath_journal::{Entry, Journal, JournalError, JournalFigures, JournalOptions, Recovered, Status};
use towpath_sockets::Waker;
#[cfg(feature = "nats")]
use towpath_sockets::{RelayKey, RelayTo};

use super::{CellOptions, StoreError};

/// Time to bring the last entries to the log of a cell.
#[cfg(feature = "nats")]
const CELL_CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) enum Log {
    /// Entries are kept nowhere.
    None,
    Journal(Journal),
    #[cfg(feature = "nats")]
    Cell(CellLog),
}

impl Log {
    /// The log, and what is in it if this broker has it to itself.
    pub fn open(
        journal: Option<&Path>,
        cell: Option<CellOptions>,
        repairs: bool,
        waker: &Waker,
    ) -> Result<(Log, Option<Option<Recovered>>), StoreError> {
        let waker = waker.clone();
        match (journal, cell) {
            #[cfg(feature = "nats")]
            (_, Some(options)) => {
                let cell = CellLog::open(options, move || waker.wake())?;
                Ok((Log::Cell(cell), None))
            }
            #[cfg(not(feature = "nats"))]
            (_, Some(never)) => match never {},
            (Some(directory), None) => {
                let options = JournalOptions { repairs, gives_up: true, ..JournalOptions::default() };
                let (journal, recovered) = Journal::open(directory, options, move || waker.wake())?;
                tracing::info!(directory = %directory.display(), "the journal is open");
                Ok((Log::Journal(journal), Some(Some(recovered))))
            }
            (None, None) => Ok((Log::None, Some(None))),
        }
    }

    /// A change of leadership of a cell: won with the log's content, or lost.
    pub fn next_change(&mut self) -> Option<Option<Recovered>> {
        match self {
            Log::None | Log::Journal(_) => None,
            #[cfg(feature = "nats")]
            Log::Cell(cell) => Some(match cell.next_change()? {
                Change::Won(recovered) => Some(recovered),
                Change::Lost => None,
            }),
        }
    }

    pub fn append(&mut self, entry: &Entry) -> Result<u64, JournalError> {
        match self {
            Log::None => Err(JournalError::Full),
            Log::Journal(journal) => journal.append(entry).map(|lsn| lsn.0),
            #[cfg(feature = "nats")]
            Log::Cell(cell) => cell.append(entry).map(|lsn| lsn.0),
        }
    }

    pub fn durable(&self) -> u64 {
        match self {
            Log::None => 0,
            Log::Journal(journal) => journal.durable().0,
            #[cfg(feature = "nats")]
            Log::Cell(cell) => cell.durable().0,
        }
    }

    pub fn take_given_up(&mut self) -> Option<Vec<u64>> {
        match self {
            Log::None => None,
            Log::Journal(journal) => journal.take_given_up(),
            #[cfg(feature = "nats")]
            Log::Cell(cell) => cell.take_given_up(),
        }
    }

    pub fn failure(&self) -> Option<Failure> {
        match self {
            Log::None => None,
            Log::Journal(journal) => match journal.status() {
                Status::Working => None,
                Status::Failing(why) => Some(Failure { why, kind: StorageFailure::NoSpace }),
            },
            #[cfg(feature = "nats")]
            Log::Cell(cell) => cell.failure().map(|(why, is_full)| {
                let kind = if is_full { StorageFailure::NoSpace } else { StorageFailure::Unreachable };
                Failure { why, kind }
            }),
        }
    }

    pub fn leader(&self) -> Option<String> {
        match self {
            Log::None | Log::Journal(_) => None,
            #[cfg(feature = "nats")]
            Log::Cell(cell) => cell.leader().map(|(_, endpoint)| endpoint).filter(|endpoint| !endpoint.is_empty()),
        }
    }

    pub fn take_place(&mut self) -> Option<Place> {
        match self {
            Log::None | Log::Journal(_) => None,
            #[cfg(feature = "nats")]
            Log::Cell(cell) => Some(match cell.take_place()? {
                CellPlace::Nowhere => Place::Nowhere,
                CellPlace::Here { secret } => Place::Here(RelayKey::new(secret.0)),
                CellPlace::There { endpoint, secret } => match endpoint.parse() {
                    Ok(endpoint) => {
                        let through = cell.endpoint().to_owned();
                        Place::There(RelayTo { endpoint, key: RelayKey::new(secret.0), through })
                    }
                    Err(error) => {
                        tracing::warn!(%error, "no connections are relayed to the broker that leads: start it with another --advertise");
                        Place::Nowhere
                    }
                },
            }),
        }
    }

    pub fn cell(&self) -> Option<CellFigures> {
        match self {
            Log::None | Log::Journal(_) => None,
            #[cfg(feature = "nats")]
            Log::Cell(cell) => Some(cell.figures()),
        }
    }

    pub fn questions(&self) -> Option<Questions> {
        match self {
            Log::None | Log::Journal(_) => None,
            #[cfg(feature = "nats")]
            Log::Cell(cell) => Some(cell.questions()),
        }
    }

    pub fn figures(&self) -> Option<JournalFigures> {
        match self {
            Log::None => None,
            Log::Journal(journal) => Some(journal.figures()),
            #[cfg(feature = "nats")]
            Log::Cell(cell) => Some(cell.figures().log),
        }
    }

    /// Whether bodies go into it, instead of into files beside it.
    pub fn has_bodies(&self) -> bool {
        !matches!(self, Log::None | Log::Journal(_))
    }

    pub fn close(self) -> Result<(), StoreError> {
        match self {
            Log::None => Ok(()),
            Log::Journal(journal) => Ok(journal.close()?),
            #[cfg(feature = "nats")]
            Log::Cell(cell) => {
                cell.close(CELL_CLOSE_TIMEOUT);
                Ok(())
            }
        }
    }
}
