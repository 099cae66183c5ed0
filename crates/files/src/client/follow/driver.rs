//! Joins a follow with its connection, its destination, and the transfer that fetches.

use super::super::assembler::Inbound;
use super::super::connection::{Connection, ConnectionEvent};
use super::super::disk::{Disk, DiskOptions};
use super::super::filter::Filter;
use super::super::get::{GetError, workers};
use super::super::output::Sink;
use super::super::transfer::{LIST_ENTRIES_MAX, Output, Transfer, TransferError, TransferOptions};
use super::feed::{Failed, Feed};
use super::finish::RETRY_MIN;
use super::frozen::{Frozen, Seed};
use super::pages::{FOLLOW_ID, Pages, Placed};
use super::place::Place;
use super::record::Record;
use super::report::Report;
use super::{FollowEnd, FollowEvent, FollowOptions};
use crate::limits::CATALOGUE_PATHS_MAX;
use crate::path::RelPath;
use crate::protocol::control::{ChangeContent, ChangesReply, ErrorReply, FollowLinks, HelloReply, Reply, request_id};
use crate::protocol::follow::Cursor;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// Bytes that may be queued for the disk; beyond it the connection isn't read.
const DISK_QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Longest wait while something is being fetched, and while nothing is.
const POLL_BUSY_MAX: Duration = Duration::from_millis(100);
const POLL_IDLE_MAX: Duration = Duration::from_secs(10);
/// Replies that may wait: a page, and that the follow begins again.
const TOLD_MAX: usize = 8;
/// Paths that are known, or have failed; those of a full state besides.
const PATHS_MAX: usize = 2 * CATALOGUE_PATHS_MAX;

pub(super) struct Driver<'a> {
    pub(super) options: &'a FollowOptions,
    pub(super) tell: &'a mut dyn FnMut(FollowEvent) -> std::io::Result<()>,
    pub(super) connection: Connection,
    pub(super) is_connected: bool,
    lost_since: Option<Instant>,
    last_reason: Option<String>,
    pub(super) transfer: Transfer,
    pub(super) sink: Sink,
    pages_read: u64,
    pub(super) place: Place,
    pub(super) record: Record,
    pub(super) pages: Pages,
    pub(super) report: Report,
    /// A version, whose pages come from its manifest.
    frozen: Option<Frozen>,
    pub(super) seed: Option<Seed>,
    pub(super) feed: Option<Feed>,
    /// What the server said while something was fetched.
    told: VecDeque<Reply>,
    /// What is gone at the server and was put here, by path on the destination.
    pub(super) gone: BTreeMap<RelPath, (RelPath, u64)>,
    /// What could not be put in place.
    pub(super) failed: BTreeMap<RelPath, Failed>,
    pub(super) retry_at: Option<Instant>,
    pub(super) retry_after: Duration,
    /// Until when the end waits for what the server has not noticed yet.
    pub(super) patience_until: Option<Instant>,
    pub(super) is_holding: bool,
    /// The cursor when everything fed is in place.
    pub(super) cursor: Option<Cursor>,
    pub(super) end: Option<FollowEnd>,
}

impl Driver<'_> {
    pub(super) fn run(
        options: &FollowOptions,
        tell: &mut dyn FnMut(FollowEvent) -> std::io::Result<()>,
        cancel: &CancelToken,
        was_connected: &mut bool,
    ) -> Result<FollowEnd, GetError> {
        let refused = |reason: String| GetError::Destination { path: options.destination.clone(), reason };
        std::fs::create_dir_all(&options.destination).map_err(|error| refused(error.to_string()))?;
        let place = Place::open(options)?;
        let top = place.top().map_err(|error| refused(error.to_string()))?;
        let record = Record::open(&top, &options.source, &options.exclude);
        let mut record = record.map_err(|error| refused(error.to_string()))?;
        place.adopt(&mut record).map_err(|error| refused(error.to_string()))?;
        let connection = Connection::open(&options.connect, cancel)?;
        let waker = connection.waker();
        let durable = options.durable;
        let disk = DiskOptions { durable, verify: true, workers: workers(), ..DiskOptions::default() };
        let disk = Disk::start(&options.destination, disk, move || waker.wake())
            .map_err(|error| refused(error.to_string()))?;
        disk.lock_tree(&options.source).map_err(refused)?;
        let transfer = TransferOptions {
            source: options.source.clone(),
            window_bytes: options.window_bytes,
            chunk_bytes: options.chunk_bytes,
            compress: options.compress,
            verify: true,
            durable: options.durable,
            idle_timeout: options.connect.idle_timeout,
            follow: FollowLinks::None,
            in_order: false,
            check: false,
            max_bytes: None,
            max_entries: LIST_ENTRIES_MAX,
            filter: Filter::default(),
            sweep: false,
        };
        let now = Instant::now();
        let mut driver = Driver {
            options,
            tell,
            connection,
            is_connected: false,
            lost_since: Some(now),
            last_reason: None,
            transfer: Transfer::fed(transfer, now),
            sink: Sink::Disk(Box::new(disk)),
            pages_read: 0,
            place,
            // A relay has to know everything that it passes on, and a version is compared as a whole.
            pages: Pages::new(
                options.source.clone(),
                options.exclude.clone(),
                record.cursor().filter(|_| !options.begins_anew()),
            ),
            report: Report::new(options),
            seed: options.frozen.as_ref().and_then(|frozen| {
                let (directory, source) = frozen.seed.as_ref()?;
                Seed::open(directory, source)
            }),
            frozen: options.frozen.clone(),
            cursor: record.cursor(),
            record,
            feed: None,
            told: VecDeque::new(),
            gone: BTreeMap::new(),
            failed: BTreeMap::new(),
            retry_at: None,
            retry_after: RETRY_MIN,
            patience_until: None,
            is_holding: false,
            end: None,
        };
        let outcome = driver.turns(cancel, was_connected);
        driver.connection.close();
        let ended = driver.sink.end(options.connect.idle_timeout);
        if outcome.is_ok()
            && let Err(place) = ended
        {
            return Err(GetError::Hangs { place, seconds: options.connect.idle_timeout.as_secs() });
        }
        outcome
    }

    fn turns(&mut self, cancel: &CancelToken, was_connected: &mut bool) -> Result<FollowEnd, GetError> {
        loop {
            if cancel.is_cancelled() {
                return Err(TransferError::Cancelled.into());
            }
            self.outputs()?;
            self.sink.flush();
            if let Some(end) = self.end {
                return Ok(end);
            }
            self.told.extend(std::iter::from_fn(|| self.frozen.as_mut().and_then(Frozen::next_reply)));
            self.take_told()?;
            let now = Instant::now();
            self.check_connected(now, *was_connected)?;
            self.connection.poll(self.wait(now))?;
            while let Some(event) = self.connection.next() {
                *was_connected |= matches!(event, ConnectionEvent::Connected);
                self.event(event)?;
                self.wait_for_disk(cancel)?;
            }
            while let Some(report) = self.sink.next_report() {
                self.transfer.disk(report, Instant::now());
                self.outputs()?;
            }
            self.tick(Instant::now())?;
        }
    }

    fn wait(&self, now: Instant) -> Duration {
        if self.frozen.as_ref().is_some_and(Frozen::has_reply) {
            return Duration::ZERO;
        }
        let most = if self.feed.is_some() || !self.is_connected { POLL_BUSY_MAX } else { POLL_IDLE_MAX };
        let report = self.report.due().filter(|_| self.is_connected);
        let retry = self.retry_at.filter(|_| self.pages.is_live);
        let due = [report, retry].into_iter().flatten().min();
        due.map_or(most, |at| at.saturating_duration_since(now).min(most))
    }

    /// Gives up where there is no connection: the first one for so long, another one only if following is to end.
    fn check_connected(&mut self, now: Instant, was_connected: bool) -> Result<(), GetError> {
        let connect = &self.options.connect;
        let limit = match was_connected {
            false => connect.connect_timeout,
            true if self.options.once => connect.idle_timeout,
            true => return Ok(()),
        };
        if self.lost_since.is_none_or(|since| now.duration_since(since) < limit) {
            return Ok(());
        }
        let reason = self.last_reason.take().unwrap_or_else(|| "no answer".to_owned());
        Err(GetError::Connect { endpoint: connect.endpoint.to_string(), reason })
    }

    fn tick(&mut self, now: Instant) -> Result<(), GetError> {
        let read = self.sink.pieces_read();
        // With nothing to do, or nobody to do it with, no time passes for the transfer.
        if std::mem::replace(&mut self.pages_read, read) != read || self.feed.is_none() || !self.is_connected {
            self.transfer.reading(now);
        }
        self.transfer.tick(now);
        while self.is_connected
            && let Some(request) = self.report.next_request(now)
        {
            self.connection.send(&request);
        }
        // In the middle of a full state it isn't known yet what is gone; the end of it tries again too.
        if self.feed.is_none() && self.pages.is_live && self.retry_at.take_if(|at| *at <= now).is_some() {
            self.retry()?;
        }
        self.outputs()
    }

    fn event(&mut self, event: ConnectionEvent) -> Result<(), GetError> {
        match event {
            ConnectionEvent::Connected => {
                self.is_connected = true;
                if self.lost_since.take().is_some() && self.last_reason.take().is_some() {
                    tracing::info!("connected again");
                }
                self.transfer.connected();
                self.report.connected();
                self.ask();
            }
            ConnectionEvent::Lost { reason } => {
                (self.is_connected, self.lost_since) = (false, Some(Instant::now()));
                (self.tell)(FollowEvent::Interrupted { reason: format!("the connection is lost: {reason}") })?;
                self.last_reason = Some(reason);
                self.pages.lost();
                self.told.clear();
                self.transfer.disconnected();
            }
            ConnectionEvent::Failed { reason } => self.last_reason = Some(reason),
            ConnectionEvent::Refused { reason, refusal } => {
                return Err(self.options.connect.refused(reason, refusal));
            }
            ConnectionEvent::FileSent { .. } => {}
            ConnectionEvent::Arriving => self.transfer.arriving(Instant::now()),
            ConnectionEvent::ProtocolError(error) => return Err(TransferError::from(error).into()),
            ConnectionEvent::Inbound(Inbound::Control { json, .. }) if request_id(&json) == Some(FOLLOW_ID) => {
                if self.told.len() >= TOLD_MAX {
                    return TransferError::protocol("more pages than were asked for").map_err(GetError::from);
                }
                self.told.push_back(Reply::decode(&json).map_err(TransferError::from)?);
                self.take_told()?;
            }
            ConnectionEvent::Inbound(inbound) => match hello(&inbound) {
                Some(hello) => self.report.hello(&hello)?,
                None => self.transfer.inbound(inbound, Instant::now()),
            },
        }
        self.outputs()
    }

    /// Takes what the server said, unless something is being fetched: what failed before may be tried again while a page comes.
    pub(super) fn take_told(&mut self) -> Result<(), GetError> {
        while self.feed.is_none()
            && self.end.is_none()
            && let Some(reply) = self.told.pop_front()
        {
            match reply {
                Reply::Following(following) => {
                    let is_full = self.pages.following(&following)?;
                    self.report.following(is_full);
                    // What is told anew needn't be remembered.
                    self.gone.retain(|_, _| !is_full);
                    self.failed.retain(|_, _| !is_full);
                }
                Reply::Changes(page) => self.page(page)?,
                Reply::Error(ErrorReply { code, message, .. }) => {
                    return Err(TransferError::Refused { code, message }.into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Back-pressure: while too much is queued for the disk, nothing is read from the connection.
    fn wait_for_disk(&mut self, cancel: &CancelToken) -> Result<(), GetError> {
        while self.sink.is_over(DISK_QUEUE_BYTES_MAX) && !cancel.is_cancelled() {
            if let Some(report) = self.sink.wait_while_over(DISK_QUEUE_BYTES_MAX, POLL_BUSY_MAX) {
                self.transfer.disk(report, Instant::now());
                self.outputs()?;
            }
            self.tick(Instant::now())?;
        }
        Ok(())
    }

    pub(super) fn outputs(&mut self) -> Result<(), GetError> {
        while let Some(output) = self.transfer.next_output() {
            match output {
                Output::Send(request) => self.connection.send(&request),
                Output::Disk(command) => {
                    if let Some(report) = self.sink.command(command)? {
                        self.transfer.disk(report, Instant::now());
                    }
                }
                // That of a fed transfer is known, and nothing is deleted by it.
                Output::OpenDestination { .. } | Output::Sweep => {}
                Output::Warn(text) => (self.tell)(FollowEvent::Warning(text))?,
                Output::InPlace => self.in_place()?,
                Output::Finished => {
                    let options = &self.options.connect;
                    let stalled =
                        || TransferError::Stalled { seconds: options.idle_timeout.as_secs(), connected: true };
                    return Err(self.transfer.failure().unwrap_or_else(stalled).into());
                }
            }
        }
        Ok(())
    }

    /// Asks for the next page, if there is nothing else to do.
    pub(super) fn ask(&mut self) {
        if self.is_connected
            && self.feed.is_none()
            && self.end.is_none()
            && let Some(request) = self.pages.next_request()
        {
            match &mut self.frozen {
                Some(frozen) => frozen.ask(&request),
                None => self.connection.send(&request),
            }
        }
    }

    /// Takes a page of changes, and makes way for them.
    fn page(&mut self, page: ChangesReply) -> Result<(), GetError> {
        let page = self.pages.page(page)?;
        if self.record.len() + self.failed.len() + self.pages.seen.as_ref().map_or(0, HashSet::len) > PATHS_MAX {
            return Err(TransferError::Limit(format!("more than {CATALOGUE_PATHS_MAX} paths")).into());
        }
        for warning in page.warnings {
            (self.tell)(FollowEvent::Warning(warning))?;
        }
        self.report.page(&page.changes);
        // What is gone first: content of it may be wanted.
        let (gone, there): (Vec<_>, Vec<_>) =
            page.changes.into_iter().partition(|placed| placed.change.content == ChangeContent::Gone);
        for Placed { remote, local, change } in gone {
            self.failed.remove(&local);
            if self.record.get(&local).is_some() {
                self.gone.insert(local, (remote, change.seq));
            }
        }
        self.start(there, Some(page.cursor), page.live, false)
    }
}

/// The server's answer to `hello`, if this is one.
fn hello(inbound: &Inbound) -> Option<HelloReply> {
    let Inbound::Control { json, .. } = inbound else { return None };
    match request_id(json).is_none().then(|| Reply::decode(json)) {
        Some(Ok(Reply::Hello(hello))) => Some(hello),
        _ => None,
    }
}
