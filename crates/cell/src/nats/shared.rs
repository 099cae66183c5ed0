//! State that the broker's thread and the log's thread share.

use crate::block::TermSecret;
use crate::figures::CellFigures;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_journal::{Entry, JournalError, Lsn, Recovered};

/// A change of leadership.
#[derive(Debug)]
pub enum Change {
    /// This broker leads, with the log's content.
    Won(Recovered),
    /// Another one does, or may.
    Lost,
}

/// Where the cell's clients and workers belong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Place {
    /// Nobody knows.
    #[default]
    Nowhere,
    /// At this broker, which leads.
    Here {
        /// Secret of its term.
        secret: TermSecret,
    },
    /// At another broker, which leads.
    There {
        /// Its endpoint.
        endpoint: String,
        /// Secret of its term.
        secret: TermSecret,
    },
}

pub(super) struct Shared {
    state: Mutex<State>,
    durable: AtomicU64,
    /// There is a place to take.
    has_moved: AtomicBool,
    /// The log's thread has something to do.
    pub changed: Notify,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    changes: VecDeque<Change>,
    /// The owner knows that this broker leads, and may append.
    is_open: bool,
    /// Records that the log's thread has not taken.
    records: Vec<u8>,
    /// Bytes that the log's thread has, and that aren't durable.
    in_flight: usize,
    since: Option<Instant>,
    appended: u64,
    /// Bytes that requests may still have in the log. Outcomes may have more.
    space: u64,
    /// A request found no space, and there isn't much since.
    is_full: bool,
    /// Requests for which there was no space, and that the owner takes for accepted.
    given_up: HashSet<u64>,
    failure: Option<(String, bool)>,
    figures: CellFigures,
    /// The latest, until the broker takes it.
    place: Option<Place>,
    leads_since: Option<Instant>,
    /// To end at this moment at the latest.
    closing: Option<Instant>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("durable", &self.durable).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn new(wake: Box<dyn Fn() + Send + Sync>) -> Shared {
        let (durable, has_moved) = (AtomicU64::new(0), AtomicBool::new(false));
        Shared { state: Mutex::default(), durable, has_moved, changed: Notify::new(), wake }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    // The broker's side.

    pub fn next_change(&self) -> Option<Change> {
        let mut state = self.state();
        let change = state.changes.pop_front()?;
        state.is_open = matches!(change, Change::Won(_)) && state.changes.is_empty();
        if state.is_open {
            (state.appended, state.in_flight, state.since) = (0, 0, None);
            state.records.clear();
            self.durable.store(0, Ordering::Release);
        }
        Some(change)
    }

    pub fn append(&self, entry: &Entry, record_max: usize, pending_max: usize) -> Result<Lsn, JournalError> {
        let mut state = self.state();
        if !state.is_open {
            return Err(JournalError::Failing("this broker doesn't lead".to_owned()));
        }
        let before = state.records.len();
        let waiting = before + state.in_flight;
        if waiting > pending_max {
            return Err(JournalError::Full);
        }
        towpath_journal::encode(entry, &mut state.records)?;
        let bytes = state.records.len() - before;
        // A small log has space for some outcomes whatever happens.
        if bytes > record_max.min((state.figures.bytes_max / 32) as usize) {
            state.records.truncate(before);
            return Err(JournalError::TooLarge("the entry"));
        }
        let id = entry.id();
        // A dead letter is part of an outcome.
        let is_new = matches!(entry, Entry::Accepted { letter: None, .. });
        let has_no_space = is_new && (waiting + bytes) as u64 > state.space;
        state.is_full |= has_no_space;
        if has_no_space || (!state.given_up.is_empty() && state.given_up.contains(&id)) {
            // In its place is a record that changes nothing, so that positions stay.
            state.records.truncate(before);
            towpath_journal::encode(&Entry::Forgotten { id }, &mut state.records)?;
            state.given_up.insert(id);
        }
        let lsn = Lsn(state.appended);
        state.appended += 1;
        drop(state);
        if before == 0 {
            self.changed.notify_one();
        }
        Ok(lsn)
    }

    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub fn take_given_up(&self) -> Option<Vec<u64>> {
        let mut state = self.state();
        (!state.given_up.is_empty()).then(|| state.given_up.drain().collect())
    }

    pub fn failure(&self) -> Option<(String, bool)> {
        let state = self.state();
        let full = || {
            let most = state.figures.bytes_max;
            let why = format!(
                "the log may have {most} bytes, and the space for new requests is used up; outcomes go on. Let workers do what \
                 waits, or give it more (nats stream edit, --max-bytes)"
            );
            state.is_full.then_some((why, true))
        };
        state.failure.clone().or_else(full)
    }

    pub fn take_place(&self) -> Option<Place> {
        self.has_moved.swap(false, Ordering::AcqRel).then(|| self.state().place.take())?
    }

    pub fn figures(&self) -> CellFigures {
        let state = self.state();
        let mut figures = state.figures.clone();
        figures.failure = state.failure.as_ref().map(|(why, _)| why.clone());
        figures.leads_for = state.leads_since.map(|since| since.elapsed());
        figures.log.pending_bytes = (state.in_flight + state.records.len()) as u64;
        figures.log.writing = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        figures
    }

    pub fn leader(&self) -> Option<(u64, String)> {
        self.state().figures.leader.clone()
    }

    /// Whether the owner knows that this broker leads.
    pub fn leads(&self) -> bool {
        self.state().is_open
    }

    pub fn close(&self, within: Duration) {
        self.state().closing = Some(Instant::now() + within);
        self.changed.notify_one();
    }

    // The log's side.

    pub fn closing(&self) -> Option<Instant> {
        self.state().closing
    }

    /// Takes all records that came, if there are any.
    pub fn take_records(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        if !state.is_open || state.records.is_empty() {
            return None;
        }
        state.in_flight += state.records.len();
        Some(std::mem::take(&mut state.records))
    }

    /// Whether records wait.
    pub fn has_records(&self) -> bool {
        let state = self.state();
        state.is_open && !state.records.is_empty()
    }

    /// A block of records is on its way.
    pub fn began(&self) {
        self.state().since = Some(Instant::now());
    }

    /// So many more records, of so many bytes, are durable.
    pub fn persisted(&self, records: u64, bytes: usize) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(bytes);
        state.space = state.space.saturating_sub(bytes as u64);
        let took = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let log = &mut state.figures.log;
        log.commits += 1;
        log.written_bytes += bytes as u64;
        (log.sync_sum, log.sync_last, log.sync_max) = (log.sync_sum + took, took, log.sync_max.max(took));
        drop(state);
        self.durable.fetch_add(records, Ordering::AcqRel);
        (self.wake)();
    }

    pub fn change(&self, change: Change) {
        let mut state = self.state();
        state.leads_since = matches!(change, Change::Won(_)).then(Instant::now);
        if matches!(change, Change::Lost) {
            state.is_open = false;
            state.records.clear();
            state.given_up.clear();
            (state.in_flight, state.since) = (0, None);
        }
        state.changes.push_back(change);
        drop(state);
        (self.wake)();
    }

    /// The place is another one.
    pub fn moved(&self, place: Place) {
        self.state().place = Some(place);
        self.has_moved.store(true, Ordering::Release);
        (self.wake)();
    }

    /// Changes figures that need no other care.
    pub fn update(&self, update: impl FnOnce(&mut CellFigures)) {
        update(&mut self.state().figures);
    }

    /// Publishes figures, space for requests, and a failure.
    pub fn publish(&self, update: impl FnOnce(&mut CellFigures), space: u64, failure: Option<(String, bool)>) {
        let mut state = self.state();
        state.space = space;
        state.is_full &= space < state.figures.bytes_max / 16;
        update(&mut state.figures);
        let is_new = state.failure != failure;
        if is_new && failure.is_some() && state.failure.is_none() {
            state.figures.log.errors += 1;
        }
        state.failure = failure;
        drop(state);
        if is_new {
            (self.wake)();
        }
    }

    pub fn ended(&self) {
        let mut state = self.state();
        if state.closing.is_none() {
            state.failure = Some(("the thread of the cell's log has ended".to_owned(), false));
        }
        if std::mem::take(&mut state.is_open) {
            state.changes.push_back(Change::Lost);
        }
        drop(state);
        self.moved(Place::Nowhere);
    }
}
