//! Entries on their way from the core to the store.

use crate::core::{Core, Entry, Millis, StorageFailure};
use crate::store::{AppendError, Failure, Position, Store};
use std::collections::{HashSet, VecDeque};

/// Entries that the store has not taken yet, and those that it has taken and that aren't known to be on the disk.
#[derive(Debug, Default)]
pub(super) struct EntryQueue {
    entries: VecDeque<Entry>,
    taken: Vec<Entry>,
    /// The position of each entry that isn't known to be on the disk; `None`: the store never takes it.
    positions: VecDeque<Option<Position>>,
    /// Refused entries that the core doesn't know of yet.
    refused: usize,
    /// Requests whose acceptance isn't in the store, as long as the core may think that it is. An outcome of one would be damage.
    unknown: HashSet<u64>,
    /// Entries that are on the disk, or never will be.
    done: u64,
    failing: Option<StorageFailure>,
}

impl EntryQueue {
    /// Gives the store what the core wants to keep.
    pub fn write(&mut self, now: Millis, core: &mut Core, store: &mut impl Store) {
        core.take_entries(&mut self.taken);
        self.entries.extend(self.taken.drain(..));
        while let Some(entry) = self.entries.front() {
            let id = entry.id();
            if self.unknown.contains(&id) {
                self.refuse();
                continue;
            }
            match store.append(now, entry) {
                Ok(position) => {
                    self.positions.push_back(Some(position));
                    self.entries.pop_front();
                }
                Err(AppendError::Later) => break,
                Err(AppendError::Never(error)) => {
                    // The client must not believe that it is kept.
                    tracing::error!(error, id, "something can't be kept in the journal, and fails");
                    if matches!(entry, Entry::Accepted { .. }) {
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

    /// The first of the entries isn't going to be in the store.
    fn refuse(&mut self) {
        self.positions.push_back(None);
        self.refused += 1;
        self.entries.pop_front();
    }

    /// The disk is full: the store has none of these requests, nor will it have those that it has not taken.
    fn give_up(&mut self, now: Millis, given_up: Vec<u64>, core: &mut Core) {
        core.take_entries(&mut self.taken);
        self.entries.extend(self.taken.drain(..));
        let mut ids = HashSet::from_iter(given_up);
        ids.extend(self.entries.iter().filter_map(|entry| match entry {
            // A dead letter is part of an outcome.
            Entry::Accepted { id, letter: None, .. } => Some(*id),
            Entry::Accepted { .. } | Entry::Moved { .. } | Entry::Finished { .. } | Entry::Forgotten { .. } => None,
        }));
        if !ids.is_empty() {
            tracing::warn!(
                requests = ids.len(),
                "the journal's disk has no space for requests that were not acknowledged yet"
            );
        }
        core.journal_full(now, &ids);
        self.unknown.extend(ids);
    }

    /// Reports to the core what is durable, what never will be, and whether the store works.
    pub fn take_durable(&mut self, now: Millis, core: &mut Core, store: &mut impl Store) {
        let durable = store.durable();
        // Before durable entries are reported, which don't include these.
        if let Some(given_up) = store.take_given_up() {
            self.give_up(now, given_up, core);
        }
        while let Some(position) = self.positions.front() {
            match position {
                Some(position) if *position < durable => {}
                Some(_) => break,
                None => {
                    core.persisted(self.done);
                    core.entry_rejected(now);
                    self.refused -= 1;
                }
            }
            self.positions.pop_front();
            self.done += 1;
        }
        core.persisted(self.done);
        if !self.entries.is_empty() {
            self.write(now, core, store);
        }
        let failure = store.failure();
        let failing = match &failure {
            Some(failure) => Some(failure.kind),
            None => (!self.entries.is_empty()).then_some(StorageFailure::NoSpace),
        };
        if failing != self.failing {
            self.failing = failing;
            core.storage_failed(failing);
            match failure {
                Some(Failure { why, .. }) => {
                    tracing::error!(failure = why, "the journal can't be written: new requests are refused");
                }
                None if failing.is_some() => {
                    tracing::warn!("the disk is slower than what comes: new requests are refused");
                }
                None => tracing::info!(after_s = now / 1000, "the journal takes requests again"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::{Action, Kind, Settings, StoredState};
    use crate::store::LocalStore;
    use bytes::Bytes;
    use std::time::{Duration, Instant};
    use towpath_journal::faulty_disk::on_faulty_disk;
    use towpath_requests::body::Body;
    use towpath_requests::limits::BODY_BYTES_MAX;
    use towpath_requests::numbered::{ClientId, Status};

    const CLIENT: ClientId = ClientId([7; 16]);
    const STORED: ClientId = ClientId([8; 16]);

    fn core() -> Core {
        Core::new(Settings { journal: true, ..Settings::default() })
    }

    /// Until everything is on the disk or never will be: what the core wants meanwhile.
    fn settle(queue: &mut EntryQueue, store: &mut LocalStore, core: &mut Core) -> Vec<Action> {
        let mut actions = Vec::new();
        let start = Instant::now();
        loop {
            queue.write(0, core, store);
            if queue.entries.is_empty() && queue.positions.is_empty() {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", store.failure());
            queue.take_durable(0, core, store);
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
    fn entry_that_the_journal_refuses_fails_its_request() {
        let open = on_faulty_disk(20);
        let mut core = core();
        let (mut queue, mut store) = (EntryQueue::default(), LocalStore::with_journal(open()));
        core.client_hello(0, 1, CLIENT, 1);
        for number in 1..=5 {
            let body = if number == 2 { too_large() } else { Body::from("small") };
            core.request(0, 1, number, 0, false, b"echo", body);
        }
        core.store(0, STORED, b"echo", too_large(), towpath_requests::numbered::Token([0; 16]), Body::default());
        let actions = settle(&mut queue, &mut store, &mut core);
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
        let actions = settle(&mut queue, &mut store, &mut core);
        let answered: Vec<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Reply { number, status, .. } => Some((*number, *status)),
                _ => None,
            })
            .collect();
        assert_eq!(answered, [(6, Status::TOO_LARGE), (1, Status::OK), (4, Status::OK), (3, Status::TOO_LARGE)]);
        assert!(!actions.iter().any(|action| matches!(action, Action::Accepted { .. })));
        core.confirm(3, 1, 6, 1);
        core.confirm(3, 1, 2, 1);
        settle(&mut queue, &mut store, &mut core);
        assert!(queue.unknown.is_empty() && queue.positions.is_empty());

        // The next process finds what was promised, and a journal that isn't damaged.
        let _ = store.close();
        let found: Vec<_> = open().1.requests.into_iter().map(|r| (r.number, r.outcome.map(|o| Status(o.0)))).collect();
        let (done, failed) = (Some(Status::OK), Some(Status::TOO_LARGE));
        assert_eq!(found, [(1, done), (3, failed), (4, done), (5, None)]);
    }

    #[test]
    fn time_to_open_the_journal_is_not_taken_from_requests() {
        const TTL_MS: u32 = 3_600_000;
        const TOOK_MS: u64 = 2 * TTL_MS as u64;
        let open = on_faulty_disk(0);
        let (mut queue, mut store) = (EntryQueue::default(), LocalStore::with_journal(open()));
        let mut first = core();
        first.client_hello(TOOK_MS, 1, CLIENT, 1);
        first.request(TOOK_MS, 1, 1, TTL_MS, false, b"nobody", Body::from("in an hour"));
        queue.write(TOOK_MS, &mut first, &mut store);
        let written_ms = store.unix_ms();
        settle(&mut queue, &mut store, &mut first);
        store.close().unwrap();
        let (journal, recovered) = open();
        let expires = recovered.requests[0].expires.unix_ms;
        assert!(expires.abs_diff(written_ms + u64::from(TTL_MS)) < u64::from(TTL_MS) / 2, "{expires} {written_ms}");
        let mut second = core();
        let (mut queue, mut store) = (EntryQueue::default(), LocalStore::with_journal((journal, recovered)));
        let recovered = store.recovered(TOOK_MS);
        recovered.requests.into_iter().for_each(|request| second.restore(TOOK_MS, request));
        second.tick(TOOK_MS);
        second.client_hello(TOOK_MS, 1, CLIENT, 1);
        second.request(TOOK_MS, 1, 1, TTL_MS, false, b"nobody", Body::from("in an hour"));
        let actions = settle(&mut queue, &mut store, &mut second);
        assert!(!actions.iter().any(|action| matches!(action, Action::Reply { .. })), "{actions:?}");
        assert_eq!(second.load().0, 1);
    }

    #[test]
    fn paused_services_are_paused_in_the_next_process_until_they_are_resumed() {
        let open = on_faulty_disk(0);
        let both: &[&[u8]] = &[b"b\xff", b"echo"];
        let (strange, plain) = (&both[..1], &both[1..]);
        let steps: [(_, &[u8], _, _); 4] = [
            (&[][..], b"echo", true, plain),
            (plain, b"b\xff", true, both),
            (both, b"echo", false, strange),
            (strange, b"other", false, strange),
        ];
        for (before, service, paused, after) in steps {
            let (mut queue, mut store, mut core) = (EntryQueue::default(), LocalStore::with_journal(open()), core());
            let recovered = store.recovered(0);
            recovered.requests.into_iter().for_each(|request| core.restore(0, request));
            core.restored_up_to(recovered.last_id);
            assert_eq!(core.paused_services().collect::<Vec<_>>(), before);
            assert!(core.pause_service(0, service, paused));
            // Found full meanwhile, the disk has nothing of what is not durable.
            queue.give_up(0, Vec::new(), &mut core);
            settle(&mut queue, &mut store, &mut core);
            assert_eq!(core.paused_services().collect::<Vec<_>>(), after);
            store.close().unwrap();
        }
    }

    #[test]
    fn dropped_numbers_are_over_in_the_next_process_too() {
        let open = on_faulty_disk(0);
        for is_next in [false, true] {
            let (mut queue, mut store, mut core) = (EntryQueue::default(), LocalStore::with_journal(open()), core());
            let recovered = store.recovered(0);
            recovered.requests.into_iter().for_each(|request| core.restore(0, request));
            core.restored_up_to(recovered.last_id);
            core.worker_ready(0, 2, Kind::Numbered, b"echo", 9);
            core.client_hello(0, 1, CLIENT, 1);
            core.request(0, 1, 1, 0, false, b"echo", Body::from("once"));
            let mut actions = settle(&mut queue, &mut store, &mut core);
            core.take_actions(&mut actions);
            let lost = actions.iter().any(|action| matches!(action, Action::Reply { status: Status::LOST, .. }));
            let given = actions.iter().find_map(|action| match action {
                Action::Dispatch { token, .. } => Some(*token),
                _ => None,
            });
            assert_eq!((given.is_some(), lost), (!is_next, is_next));
            if let Some(token) = given {
                core.worker_reply(0, 2, &token, Status::OK, None, Body::from("done"));
            }
            core.peer_gone(0, 1);
            core.drop_absent_outcomes();
            settle(&mut queue, &mut store, &mut core);
            store.close().unwrap();
        }
    }
}
