//! The journal, as the driver uses it.

use super::BrokerError;
use crate::core::{Core, Entry, Millis, Restored};
use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use towpath_journal::spool::{SpoolQuota, SpooledBody};
use towpath_journal::{self, Journal, JournalError, JournalOptions, Recovered};
use towpath_requests::body::Body;
use towpath_requests::numbered::{ClientId, Status};
use towpath_sockets::Hub;

/// The journal, and what is on its way into it.
pub(super) struct Keeping {
    journal: Journal,
    /// What the journal has not taken yet.
    entries: VecDeque<Entry>,
    taken: Vec<Entry>,
    /// The position of each entry that isn't known to be on the disk; `None`: the journal doesn't take it, and never will.
    positions: VecDeque<Option<towpath_journal::Lsn>>,
    /// How many of those the core hasn't been told of.
    refused: usize,
    /// Requests whose acceptance isn't in the journal, as long as the core may think that it is. An outcome of one would be damage.
    unknown: HashSet<u64>,
    /// Entries that are on the disk, or never will be.
    done: u64,
    failing: bool,
    /// When the core's time began.
    started: Instant,
}

/// What both clocks say at the same time. Deadlines in the journal are of the system's clock, which outlives the process and may be set
/// meanwhile; the core's are not.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    now: Millis,
    unix_ms: u64,
}

impl Clocks {
    fn read(started: Instant) -> Clocks {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Clocks { now: millis(started.elapsed()), unix_ms: millis(unix) }
    }

    /// A deadline of the core's, as it is in the journal. 0: there is none.
    fn of_journal(self, expires: Millis) -> u64 {
        match expires {
            Millis::MAX => 0,
            at => self.unix_ms.saturating_add(at).saturating_sub(self.now).max(1),
        }
    }

    /// The other way round.
    fn of_core(self, expires_unix_ms: u64) -> Millis {
        match expires_unix_ms {
            0 => Millis::MAX,
            at => self.now.saturating_add(at.saturating_sub(self.unix_ms)),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Opens the journal.
pub(super) fn open(directory: &Path, hub: &Hub) -> Result<(Journal, Recovered), BrokerError> {
    let waker = hub.waker();
    let opened =
        Journal::open(directory, JournalOptions { gives_up: true, ..JournalOptions::default() }, move || waker.wake())?;
    tracing::info!(directory = %directory.display(), "the journal is open");
    Ok(opened)
}

/// Bytes of the bodies that are in files of their own.
pub(super) fn large_bytes(recovered: &Recovered) -> u64 {
    let bodies = recovered.requests.iter().map(|request| match &request.outcome {
        Some((_, reply)) => reply,
        None => &request.body,
    });
    bodies.filter(|body| body.as_large().is_some()).map(Body::length).sum()
}

impl Keeping {
    /// Gives the core, whose time began at `started`, what is in the journal. Large bodies have their part of the room, whether or not
    /// there is so much.
    pub fn new(
        journal: Journal,
        recovered: Recovered,
        core: &mut Core,
        room: &SpoolQuota,
        started: Instant,
    ) -> Keeping {
        let clocks = Clocks::read(started);
        let (mut waiting, mut settled) = (0, 0);
        for request in recovered.requests {
            match request.outcome {
                None => waiting += 1,
                Some(_) => settled += 1,
            }
            core.restore(
                clocks.now,
                Restored {
                    id: request.id,
                    client: ClientId(request.client),
                    number: request.number,
                    service: request.service,
                    expires: clocks.of_core(request.expires_unix_ms),
                    body: SpooledBody::counted(request.body, room),
                    outcome: request.outcome.map(|(status, body)| (Status(status), SpooledBody::counted(body, room))),
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
            started,
        }
    }

    /// Gives the journal what the core wants to keep.
    pub fn write(&mut self, core: &mut Core) {
        core.take_entries(&mut self.taken);
        self.entries.extend(self.taken.drain(..));
        if self.entries.is_empty() {
            return self.forget_unknown();
        }
        let clocks = Clocks::read(self.started);
        while let Some(entry) = self.entries.front() {
            let (Entry::Accepted { id, .. } | Entry::Finished { id, .. } | Entry::Forgotten { id }) = *entry;
            if self.unknown.contains(&id) {
                self.refuse();
                continue;
            }
            let is_accepted = matches!(entry, Entry::Accepted { .. });
            let entry = match entry {
                Entry::Accepted { id, client, number, service, expires, body } => towpath_journal::Entry::Accepted {
                    id: *id,
                    client: client.0,
                    number: *number,
                    service,
                    expires_unix_ms: clocks.of_journal(*expires),
                    body,
                },
                Entry::Finished { id, status, body } => {
                    towpath_journal::Entry::Finished { id: *id, status: status.0, body }
                }
                Entry::Forgotten { id } => towpath_journal::Entry::Forgotten { id: *id },
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
        self.forget_unknown();
    }

    fn forget_unknown(&mut self) {
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

    /// The disk is full: the journal has none of these requests, nor will it have those that it has not taken.
    fn give_up(&mut self, now: Millis, given_up: Vec<u64>, core: &mut Core) {
        core.take_entries(&mut self.taken);
        self.entries.extend(self.taken.drain(..));
        let mut ids = HashSet::from_iter(given_up);
        ids.extend(self.entries.iter().filter_map(|entry| match entry {
            Entry::Accepted { id, .. } => Some(*id),
            Entry::Finished { .. } | Entry::Forgotten { .. } => None,
        }));
        if !ids.is_empty() {
            tracing::warn!(
                requests = ids.len(),
                "the journal's disk has no room for requests that were not acknowledged yet"
            );
        }
        core.no_room(now, &ids);
        self.unknown.extend(ids);
    }

    /// Tells the core what is on the disk by now, what never will be, and whether the journal works.
    pub fn take_durable(&mut self, now: Millis, core: &mut Core) {
        let durable = self.journal.durable();
        // Before what became durable is told: it doesn't say so of these.
        if let Some(given_up) = self.journal.take_given_up() {
            self.give_up(now, given_up, core);
        }
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
            towpath_journal::Status::Working => None,
            towpath_journal::Status::Failing(why) => Some(why),
        };
        let failing = failure.is_some() || !self.entries.is_empty();
        if failing != self.failing {
            self.failing = failing;
            core.storage_failed(failing);
            match failure {
                Some(failure) => tracing::error!(failure, "the journal can't be written: new requests are refused"),
                None if failing => tracing::warn!("the disk is slower than what comes: new requests are refused"),
                None => tracing::info!(after_s = self.started.elapsed().as_secs(), "the journal takes requests again"),
            }
        }
    }

    /// Brings everything to the disk.
    pub fn close(self) -> Result<(), BrokerError> {
        Ok(self.journal.close()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::{Action, Kind, Settings, StoredState};
    use bytes::Bytes;
    use towpath_journal::faulty_disk::on_faulty_disk;
    use towpath_requests::body::Body;
    use towpath_requests::limits::BODY_BYTES_MAX;

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
        let mut keeping = Keeping::new(journal, recovered, &mut core, &SpoolQuota::new(0, 0), Instant::now());
        core.client_hello(0, 1, CLIENT, 1);
        for number in 1..=5 {
            let body = if number == 2 { too_large() } else { Body::from("small") };
            core.request(0, 1, number, 0, false, b"echo", body);
        }
        core.store(0, STORED, b"echo", too_large(), towpath_requests::numbered::Token([0; 16]), Body::default());
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

    #[test]
    fn a_deadline_is_as_far_away_in_the_journal_as_it_was_when_it_was_written() {
        // The system's clock may be set between any two of these.
        let [write, read] = [(70_000, 5_000_000), (3, 9_000_000)].map(|(now, unix_ms)| Clocks { now, unix_ms });
        assert_eq!(write.of_journal(70_000 + 60_000), 5_060_000);
        assert_eq!(read.of_core(9_000_500), 503);
        assert_eq!(read.of_core(8_000_000), 3);
        assert_eq!((write.of_journal(Millis::MAX), read.of_core(0)), (0, Millis::MAX));
    }

    #[test]
    fn the_time_that_the_journal_takes_to_open_is_nobodys() {
        const TTL_MS: u32 = 3_600_000;
        const TOOK_MS: u64 = 2 * TTL_MS as u64;
        let open = on_faulty_disk(0);
        let took = || Instant::now().checked_sub(Duration::from_millis(TOOK_MS)).unwrap();
        let (journal, recovered) = open();
        let mut first = core();
        let mut keeping = Keeping::new(journal, recovered, &mut first, &SpoolQuota::new(0, 0), took());
        first.client_hello(TOOK_MS, 1, CLIENT, 1);
        let before = Clocks::read(keeping.started);
        first.request(before.now, 1, 1, TTL_MS, false, b"nobody", Body::from("in an hour"));
        settle(&mut keeping, &mut first);
        keeping.close().unwrap();
        let (journal, recovered) = open();
        let expires = recovered.requests[0].expires_unix_ms;
        assert!(expires.abs_diff(before.unix_ms + u64::from(TTL_MS)) < u64::from(TTL_MS) / 2, "{expires} {before:?}");
        let mut second = core();
        let mut keeping = Keeping::new(journal, recovered, &mut second, &SpoolQuota::new(0, 0), took());
        second.tick(Clocks::read(keeping.started).now);
        second.client_hello(TOOK_MS, 1, CLIENT, 1);
        second.request(TOOK_MS, 1, 1, TTL_MS, false, b"nobody", Body::from("in an hour"));
        let actions = settle(&mut keeping, &mut second);
        assert!(!actions.iter().any(|action| matches!(action, Action::Reply { .. })), "{actions:?}");
        assert_eq!(second.load().0, 1);
    }
}
