//! Joins a follow with its connection, its destination, and the transfer that fetches.

use super::super::assembler::Inbound;
use super::super::connection::{Connection, ConnectionEvent};
use super::super::disk::{Disk, DiskOptions};
use super::super::filter::Filter;
use super::super::get::{GetError, workers};
use super::super::output::Sink;
use super::super::transfer::{LIST_ENTRIES_MAX, Output, Transfer, TransferError, TransferOptions};
use super::finish::RETRY_MIN;
use super::pages::{FOLLOW_ID, Pages, Placed};
use super::place::{Place, Plan};
use super::record::{Known, Record};
use super::{FollowEnd, FollowEvent, FollowOptions, PutKind};
use crate::digest::wall_clock;
use crate::limits::CATALOGUE_PATHS_MAX;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{ChangeContent, ChangesReply, ErrorReply, FollowLinks, Reply, request_id};
use crate::protocol::follow::Cursor;
use crate::root::RootError;
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
/// Smallest file that is copied from another one of the same content.
const COPY_FROM_BYTES: u64 = 64 << 10;

/// What the transfer is fed with.
#[derive(Debug)]
struct Feed {
    fed: Vec<Placed>,
    /// Of the page, unless this is a retry.
    cursor: Option<Cursor>,
    live: bool,
    is_retry: bool,
    /// Old paths of what was renamed.
    renamed: BTreeMap<RelPath, RelPath>,
    /// Where something was known to be before.
    known: HashSet<RelPath>,
    /// Where the trash has what is replaced.
    kept: BTreeMap<RelPath, RelPath>,
}

/// What could not be put in place.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) placed: Placed,
    pub(super) reason: String,
    /// The server has something else there by now, or nothing, and will say so.
    pub(super) is_out_of_date: bool,
}

pub(super) struct Driver<'a> {
    pub(super) options: &'a FollowOptions,
    pub(super) tell: &'a mut dyn FnMut(FollowEvent) -> std::io::Result<()>,
    connection: Connection,
    is_connected: bool,
    lost_since: Option<Instant>,
    last_reason: Option<String>,
    transfer: Transfer,
    sink: Sink,
    pages_read: u64,
    pub(super) place: Place,
    pub(super) record: Record,
    pub(super) pages: Pages,
    feed: Option<Feed>,
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
            pages: Pages::new(options.source.clone(), options.exclude.clone(), record.cursor()),
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
        let most = if self.feed.is_some() || !self.is_connected { POLL_BUSY_MAX } else { POLL_IDLE_MAX };
        self.retry_at.filter(|_| self.pages.is_live).map_or(most, |at| at.saturating_duration_since(now).min(most))
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
            ConnectionEvent::Inbound(inbound) => self.transfer.inbound(inbound, Instant::now()),
        }
        self.outputs()
    }

    /// Takes what the server said, unless something is being fetched: what failed before may be tried again while a page comes.
    fn take_told(&mut self) -> Result<(), GetError> {
        while self.feed.is_none()
            && self.end.is_none()
            && let Some(reply) = self.told.pop_front()
        {
            match reply {
                Reply::Following(following) => {
                    let is_full = self.pages.following(&following)?;
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

    fn outputs(&mut self) -> Result<(), GetError> {
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
    fn ask(&mut self) {
        if self.is_connected
            && self.feed.is_none()
            && self.end.is_none()
            && let Some(request) = self.pages.next_request()
        {
            self.connection.send(&request);
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

    pub(super) fn start(
        &mut self,
        there: Vec<Placed>,
        cursor: Option<Cursor>,
        live: bool,
        is_retry: bool,
    ) -> Result<(), GetError> {
        let mut feed = Feed {
            fed: Vec::new(),
            cursor,
            live,
            is_retry,
            renamed: BTreeMap::new(),
            known: HashSet::new(),
            kept: BTreeMap::new(),
        };
        // What a crash leaves in place is this follower's all the same.
        let intended = there.iter().filter_map(|placed| Some((&placed.local, Known::of(&placed.change)?)));
        let noted = { intended }.try_for_each(|(local, known)| self.record.intend(local, &known));
        noted.and_then(|()| self.record.flush()).map_err(|error| self.record_failed(&error))?;
        let mut entries = Vec::new();
        let now = wall_clock();
        for placed in there {
            self.gone.remove(&placed.local);
            self.failed.remove(&placed.local);
            let was_known = self.record.get(&placed.local).is_some();
            let refused = match self.plan(&placed, &mut feed) {
                Ok(Plan::InPlace) if was_known => continue,
                Ok(Plan::InPlace | Plan::Get) => None,
                Ok(Plan::Refused(reason)) => Some(reason),
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = refused {
                self.failed.insert(placed.local.clone(), Failed { placed, reason, is_out_of_date: false });
                continue;
            }
            if was_known {
                feed.known.insert(placed.local.clone());
            }
            entries.extend(placed.entry(now));
            feed.fed.push(placed);
        }
        self.feed = Some(feed);
        self.transfer.feed(entries, Instant::now());
        self.outputs()
    }

    fn plan(&mut self, placed: &Placed, feed: &mut Feed) -> Result<Plan, GetError> {
        let Placed { local, change, remote } = placed;
        let Driver { place, record, tell, options, .. } = self;
        let (mut kept, mut told) = (None, Ok(()));
        let failed = |error: RootError| GetError::Transfer(TransferError::unmet(error.to_string()));
        let plan = place
            .plan(local, change, record.get(local), options.mirror, &mut |path| kept = Some(path.clone()))
            .map_err(failed)?;
        if let Some(kept_as) = kept {
            told = tell(FollowEvent::Conflict { path: remote.clone(), kept_as });
            let _ = record.forget(local);
        }
        told?;
        if plan == Plan::Get
            && let Some(known) = record.get(local)
            && let Some(kept) = place.keep(local, change, known).map_err(failed)?
        {
            feed.kept.insert(local.clone(), kept);
        }
        let ChangeContent::File { digest, size, .. } = change.content else { return Ok(plan) };
        if plan != Plan::Get || size < COPY_FROM_BYTES || place.stat(local).map_err(failed)?.is_some() {
            return Ok(plan);
        }
        let Some((from, known)) = record.with_digest(digest).map(|(from, known)| (from.clone(), *known)) else {
            return Ok(plan);
        };
        if options.mirror
            && self.gone.contains_key(&from)
            && place.rename(&from, &known, local).unwrap_or_else(|error| log_unused(&from, &error))
        {
            if let Some((old, _)) = self.gone.remove(&from) {
                feed.renamed.insert(local.clone(), old);
            }
            let _ = record.forget(&from);
        } else {
            // What can't be copied is fetched.
            place.copy(&from, &known, local, change).unwrap_or_else(|error| log_unused(&from, &error));
        }
        Ok(plan)
    }

    /// All that was fed is in place, or has failed.
    fn in_place(&mut self) -> Result<(), GetError> {
        let Some(feed) = self.feed.take() else { return Ok(()) };
        self.sink.forget_installed();
        let (failures, count) = self.transfer.take_failures();
        let are_unknown = failures.len() as u64 != count;
        let mut reasons: BTreeMap<_, _> =
            failures.into_iter().map(|failure| (failure.path, (failure.reason, failure.code))).collect();
        for placed in feed.fed {
            let reason = reasons.remove(&placed.remote.to_string());
            if let Some((reason, code)) = reason.or_else(|| are_unknown.then(|| ("too many failed".to_owned(), None))) {
                let is_out_of_date =
                    matches!(code, Some(ErrorCode::Changed | ErrorCode::NotFound | ErrorCode::NotAFile));
                if let Some(kept) = feed.kept.get(&placed.local) {
                    self.place.keep_not(kept).unwrap_or_else(|error| _ = log_unused(kept, &error));
                }
                self.failed.insert(placed.local.clone(), Failed { placed, reason, is_out_of_date });
                continue;
            }
            let Placed { remote, local, change } = placed;
            let known = Known::of(&change).and_then(|known| self.place.known(&local, &known).unwrap_or_default());
            // A link that was left out, or what somebody else put there at once.
            let Some(known) = known else { continue };
            let is_news = self.record.get(&local) != Some(&known) || feed.renamed.contains_key(&local);
            if !is_news {
                continue;
            }
            let (seq, is_new) = (change.seq, !feed.known.contains(&local));
            let event = match (feed.renamed.get(&local), change.content) {
                (Some(from), _) => FollowEvent::Renamed { from: from.clone(), to: remote, seq },
                (None, ChangeContent::File { size, digest, .. }) => {
                    FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::File { size, digest } }
                }
                (None, ChangeContent::Link { target, .. }) => {
                    let target = target.into_bytes();
                    FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::Link { target } }
                }
                (None, _) => FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::Dir },
            };
            // Told twice rather than never, should this be killed here.
            (self.tell)(event)?;
            self.record.put(&local, known).map_err(|error| self.record_failed(&error))?;
        }
        self.cursor = feed.cursor.or(self.cursor);
        if feed.live || feed.is_retry {
            self.up_to_date(feed.is_retry)?;
        } else {
            self.store()?;
        }
        self.take_told()?;
        self.ask();
        Ok(())
    }
}

fn log_unused(path: &RelPath, error: &RootError) -> bool {
    tracing::debug!(%path, %error, "content that is there can't be used");
    false
}
