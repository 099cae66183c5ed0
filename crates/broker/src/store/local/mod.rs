//! The store of the real broker: a log on this machine's disk, which it has to itself, or one of a cell; and a spool on this machine's disk.

mod body_loader;
#[cfg(feature = "nats")]
mod keeper;
mod log;
mod spooler;

use super::{AppendError, Failure, Leadership, LostBody, Place, Position, Recovered, SpoolUsage, Store};
use crate::core::{Entry, LetterDetails, Millis, Restored, RestoredLetter};
use body_loader::BodyLoader;
use bytes::Bytes;
use log::Log;
use spooler::{SpoolTicket, Spooler};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use towpath_cell::{CellFigures, Questions};
use towpath_journal::{self, Expiry, JournalError, JournalFigures, Letter, RecoveredLetter};
use towpath_requests::body::{Body, RequestChecksum};
use towpath_requests::numbered::{ClientId, Status, Token};
use towpath_sockets::{Tenant, Waker};
use towpath_spool::{BodyKind, Spool, SpooledBody};

/// The log of a cell, and the way to it.
#[cfg(feature = "nats")]
pub type CellOptions = towpath_cell::nats::NatsOptions;

/// This build can't have any.
#[cfg(not(feature = "nats"))]
#[derive(Debug, Clone)]
pub enum CellOptions {}

/// A log, if there is one, a spool, and the threads that read and write them. They wake the hub when something is done.
#[derive(Debug)]
pub struct LocalStore {
    log: Log,
    /// Content of a log without rivals at start, until it is taken: the store leads from then on.
    recovered: Option<Option<towpath_journal::Recovered>>,
    clocks: Clocks,
    spooler: Spooler,
    /// To where a cell has large bodies, if it has such a place.
    #[cfg(feature = "nats")]
    keeper: Option<keeper::Keeper>,
    loader: BodyLoader,
}

/// Both clocks at one moment. Deadlines in the journal use the system's clock, which outlives the process and may be set;
/// the core's don't.
#[derive(Debug, Clone, Copy, Default)]
struct Clocks {
    now: Millis,
    unix_ms: u64,
}

impl Clocks {
    fn at(now: Millis) -> Clocks {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Clocks { now, unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX) }
    }

    /// A deadline of the core's, as it is in the journal. 0: there is none.
    fn of_journal(self, expires: Millis) -> Expiry {
        match expires {
            Millis::MAX => Expiry::NEVER,
            at => Expiry {
                unix_ms: self.unix_ms.saturating_add(at).saturating_sub(self.now).max(1),
                left_ms: at.saturating_sub(self.now),
            },
        }
    }

    /// The other way round. The clock that wrote it may have been ahead of ours: no more is left than was.
    fn of_core(self, expires: Expiry) -> Millis {
        match expires.unix_ms {
            0 => Millis::MAX,
            at => self.now.saturating_add(at.saturating_sub(self.unix_ms).min(expires.left_ms)),
        }
    }

    /// A dead letter as it is in the journal.
    fn letter_of_journal(self, letter: &LetterDetails) -> Letter<'_> {
        let LetterDetails { attempts, kept, reason, client, worker } = letter;
        let age = i64::try_from(self.now).unwrap_or(i64::MAX).saturating_sub(*kept);
        Letter { attempts: *attempts, kept_unix_ms: self.unix_ms.saturating_add_signed(-age), reason, client, worker }
    }

    /// A dead letter of the journal. One that was kept in the future, by a clock that was set back, was kept now.
    fn restored(self, letter: RecoveredLetter) -> RestoredLetter {
        let RecoveredLetter { attempts, moves, kept_unix_ms, reason, client, worker } = letter;
        let age = i64::try_from(self.unix_ms.saturating_sub(kept_unix_ms)).unwrap_or(i64::MAX);
        let kept = i64::try_from(self.now).unwrap_or(i64::MAX).saturating_sub(age);
        RestoredLetter { moves, details: Box::new(LetterDetails { attempts, kept, reason, client, worker }) }
    }

    /// For how long a deadline of the journal is over.
    fn overdue_ms(self, expires: Expiry) -> Millis {
        if expires.unix_ms == 0 { 0 } else { self.unix_ms.saturating_sub(expires.unix_ms) }
    }
}

/// Bytes of the bodies that are in files of their own.
fn large_bytes(recovered: &towpath_journal::Recovered) -> u64 {
    let bodies = recovered.requests.iter().map(|request| match &request.outcome {
        Some((_, reply)) => reply,
        None => &request.body,
    });
    bodies.filter(|body| body.as_large().is_some()).map(Body::length).sum()
}

/// Why a store can't be opened, or not be closed well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The log of a cell.
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Cell(#[from] towpath_cell::nats::NatsError),
    /// The place of large bodies that the brokers of a cell share.
    #[cfg(feature = "nats")]
    #[error(
        "the place of large bodies can't be used: {}: {reason}. `tow queue init --bodies` makes it, once; a directory must be mounted",
        directory.display()
    )]
    Bodies {
        /// The directory, or the address of a bucket.
        directory: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The place for large bodies.
    #[error("no place for large bodies: {}: {reason}", directory.display())]
    Spool {
        /// Directory where they should be.
        directory: PathBuf,
        /// Why they can't.
        reason: io::Error,
    },
}

impl LocalStore {
    /// Joins the cell, or opens the journal in `journal`, damaged or not if it `repairs`, and the spool in `spool` (default: below the journal, or the system's folder for temporary files),
    /// of which bodies may have `spool_bytes_max` (default: half of what the disk has space for).
    pub(crate) fn open(
        journal: Option<&Path>,
        cell: Option<CellOptions>,
        repairs: bool,
        spool: Option<&Path>,
        spool_bytes_max: Option<u64>,
        waker: Waker,
    ) -> Result<LocalStore, StoreError> {
        #[cfg(feature = "nats")]
        let shared = cell.as_ref().and_then(|cell| cell.bodies.clone());
        #[cfg(feature = "nats")]
        if let Some(bodies) = &shared {
            bodies.check().map_err(|reason| StoreError::Bodies { directory: bodies.place().into(), reason })?;
        }
        let (log, recovered) = Log::open(journal, cell, repairs, &waker)?;
        let kept = recovered.as_ref().and_then(Option::as_ref).map_or(0, large_bytes);
        let directory = spool.map(Path::to_owned).or_else(|| Some(journal?.join("spool")));
        let spooler = Spool::open(directory.as_deref())
            .and_then(|spool| Spooler::start(spool, spool_bytes_max, kept, journal.is_some(), waker.clone()));
        let named = |directory: Option<PathBuf>| directory.unwrap_or_else(towpath_spool::default_spool_folder);
        let spooler = spooler.map_err(|reason| StoreError::Spool { directory: named(directory), reason })?;
        #[cfg(feature = "nats")]
        let keeper = shared.map(|bodies| {
            let named = |reason| StoreError::Spool { directory: bodies.place().into(), reason };
            keeper::Keeper::start(bodies.clone(), waker.clone()).map_err(named)
        });
        let (clocks, loader) = (Clocks::default(), BodyLoader::new(waker));
        Ok(LocalStore {
            log,
            recovered,
            clocks,
            spooler,
            #[cfg(feature = "nats")]
            keeper: keeper.transpose()?,
            loader,
        })
    }

    /// Figures of the journal, if there is one, and why it can't be written now.
    pub(crate) fn figures(&self) -> Option<(JournalFigures, Option<String>)> {
        Some((self.log.figures()?, self.failure().map(|failure| failure.why)))
    }

    /// The road to the leader of its cell, if it is in one.
    pub(crate) fn questions(&self) -> Option<Questions> {
        self.log.questions()
    }

    /// This broker's part in a cell.
    pub(crate) fn cell(&self) -> Option<CellFigures> {
        #[cfg(feature = "nats")]
        let bodies_failure = self.keeper.as_ref().and_then(keeper::Keeper::failure);
        #[cfg(not(feature = "nats"))]
        let bodies_failure = None;
        Some(CellFigures { bodies_failure, ..self.log.cell()? })
    }

    /// Takes the place of a cell's clients and workers, if it is another one than at the last call.
    pub(crate) fn take_place(&mut self) -> Option<Place> {
        self.log.take_place()
    }

    /// A change of leadership of a cell. It leads only when the large bodies that it takes over are checked.
    fn next_change(&mut self) -> Option<Option<towpath_journal::Recovered>> {
        #[cfg(feature = "nats")]
        if let Some(keeper) = &mut self.keeper {
            while let Some(change) = self.log.next_change() {
                match change {
                    Some(recovered) if large_bytes(&recovered) > 0 => keeper.check(recovered),
                    change => {
                        keeper.give_up_check();
                        return Some(change);
                    }
                }
            }
            return keeper.next_checked().map(Some);
        }
        self.log.next_change()
    }

    /// Refuses bodies for which the log of a cell has no place.
    fn check_keeper(&self) -> Result<(), LostBody> {
        #[cfg(feature = "nats")]
        match &self.keeper {
            Some(keeper) if keeper.failure().is_some() => return Err(LostBody::PlaceAway),
            Some(_) => return Ok(()),
            None => {}
        }
        Err(LostBody::NotInLog)
    }

    /// Brings everything to the disk.
    pub fn close(self) -> Result<(), StoreError> {
        self.log.close()
    }
}

impl Store for LocalStore {
    type Writer = SpoolTicket;

    /// Recovered large bodies count as used space, even beyond the quota.
    fn next_leadership(&mut self, now: Millis) -> Option<Leadership> {
        let recovered = match self.recovered.take() {
            Some(Some(recovered)) => recovered,
            Some(None) => return Some(Leadership::Won(Recovered::default())),
            None => match self.next_change()? {
                Some(recovered) => recovered,
                None => return Some(Leadership::Lost),
            },
        };
        let (clocks, space) = (Clocks::at(now), self.spooler.quota());
        let requests = recovered.requests.into_iter().map(|request| Restored {
            id: request.id,
            client: ClientId(request.client),
            number: request.number,
            service: request.service,
            expires: clocks.of_core(request.expires),
            overdue_ms: clocks.overdue_ms(request.expires),
            checksum: RequestChecksum(request.checksum),
            letter: request.letter.map(|letter| clocks.restored(letter)),
            body: SpooledBody::counted(request.body, space),
            outcome: request.outcome.map(|(status, body)| (Status(status), SpooledBody::counted(body, space))),
        });
        let last_id = recovered.next_id.saturating_sub(1);
        Some(Leadership::Won(Recovered { requests: requests.collect(), last_id }))
    }

    fn append(&mut self, now: Millis, entry: &Entry) -> Result<Position, AppendError> {
        if self.clocks.now != now || self.clocks.unix_ms == 0 {
            self.clocks = Clocks::at(now);
        }
        if let Entry::Accepted { body, .. } | Entry::Finished { body, .. } = entry {
            SpooledBody::set_named(body);
        }
        let entry = match entry {
            Entry::Accepted { id, client, number, service, expires, checksum, letter, body } => {
                towpath_journal::Entry::Accepted {
                    id: *id,
                    client: client.0,
                    number: *number,
                    service,
                    expires: self.clocks.of_journal(*expires),
                    checksum: checksum.0,
                    letter: letter.as_deref().map(|letter| self.clocks.letter_of_journal(letter)),
                    body,
                }
            }
            Entry::Moved { id, moves, letter, service } => {
                let letter = self.clocks.letter_of_journal(letter);
                towpath_journal::Entry::Moved { id: *id, moves: *moves, letter, service }
            }
            Entry::Finished { id, status, body } => {
                towpath_journal::Entry::Finished { id: *id, status: status.0, body }
            }
            Entry::Forgotten { id } => towpath_journal::Entry::Forgotten { id: *id },
        };
        self.log.append(&entry).map(Position).map_err(|error| match error {
            JournalError::Full | JournalError::Failing(_) => AppendError::Later,
            error => AppendError::Never(error.to_string()),
        })
    }

    fn durable(&self) -> Position {
        Position(self.log.durable())
    }

    fn take_given_up(&mut self) -> Option<Vec<u64>> {
        self.log.take_given_up()
    }

    fn failure(&self) -> Option<Failure> {
        self.log.failure()
    }

    fn leader(&self) -> Option<String> {
        self.log.leader()
    }

    fn spool(&mut self, kind: BodyKind, tenant: Option<&Tenant>, length: u64) -> Result<SpoolTicket, LostBody> {
        if self.log.has_bodies() {
            self.check_keeper()?;
        }
        self.spooler.begin(kind, tenant, length).map_err(LostBody::NoSpace)
    }

    fn next_spooled(&mut self) -> Option<(u64, io::Result<Body>)> {
        #[cfg(feature = "nats")]
        if let Some(keeper) = &self.keeper {
            while let Some((number, body)) = self.spooler.next_finished() {
                match body {
                    Ok(body) => keeper.begin(number, body),
                    Err(error) => return Some((number, Err(error))),
                }
            }
            let quota = self.spooler.quota();
            return keeper.next().map(|(number, body)| (number, body.map(|body| SpooledBody::counted(body, quota))));
        }
        self.spooler.next_finished()
    }

    fn spool_usage(&self) -> SpoolUsage {
        self.spooler.usage()
    }

    fn load(&mut self, client: u64, token: Token, body: Body) -> bool {
        self.loader.begin(client, token, body)
    }

    fn next_loaded(&mut self) -> Option<(Token, io::Result<Bytes>)> {
        self.loader.next()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_sockets::{Hub, HubOptions, SocketType};

    impl LocalStore {
        /// A store with this journal, and no space for large bodies.
        pub(crate) fn with_journal(
            (journal, recovered): (towpath_journal::Journal, towpath_journal::Recovered),
        ) -> LocalStore {
            let waker = Hub::new(HubOptions::new(SocketType::Router)).unwrap().waker();
            let folder = tempfile::tempdir().unwrap();
            let spooler = Spooler::start(Spool::new(folder.path()).unwrap(), Some(0), 0, false, waker.clone()).unwrap();
            LocalStore {
                log: Log::Journal(journal),
                recovered: Some(Some(recovered)),
                clocks: Clocks::default(),
                spooler,
                #[cfg(feature = "nats")]
                keeper: None,
                loader: BodyLoader::new(waker),
            }
        }

        pub(crate) fn recovered(&mut self, now: Millis) -> Recovered {
            match self.next_leadership(now) {
                Some(Leadership::Won(recovered)) => recovered,
                other => panic!("{other:?}"),
            }
        }

        pub(crate) fn unix_ms(&self) -> u64 {
            self.clocks.unix_ms
        }
    }

    #[test]
    fn a_clock_that_is_behind_gives_no_request_more_time_than_it_had() {
        // The leader's clock is an hour ahead of the one of the broker that leads next, or an hour behind.
        let next = Clocks { now: 10, unix_ms: 10_000_000 };
        for (ahead_ms, left) in [(3_600_000, 60_000), (-3_600_000, 0), (5_000, 60_000), (-5_000, 55_000)] {
            let leader = Clocks { now: 7, unix_ms: next.unix_ms.saturating_add_signed(ahead_ms) };
            assert_eq!(next.of_core(leader.of_journal(7 + 60_000)) - next.now, left, "{ahead_ms}");
        }
    }

    #[test]
    fn deadline_keeps_its_distance_when_the_clock_is_set() {
        // The system's clock may be set between any two of these.
        let [write, read] = [(70_000, 5_000_000), (3, 9_000_000)].map(|(now, unix_ms)| Clocks { now, unix_ms });
        let at = |unix_ms| Expiry { unix_ms, left_ms: 60_000 };
        assert_eq!(write.of_journal(70_000 + 60_000), at(5_060_000));
        assert_eq!(read.of_core(at(9_000_500)), 503);
        assert_eq!((read.of_core(at(8_000_000)), read.overdue_ms(at(8_000_000))), (3, 1_000_000));
        assert_eq!((read.overdue_ms(at(9_000_500)), read.overdue_ms(Expiry::NEVER)), (0, 0));
        assert_eq!((write.of_journal(Millis::MAX), read.of_core(Expiry::NEVER)), (Expiry::NEVER, Millis::MAX));
    }
}
