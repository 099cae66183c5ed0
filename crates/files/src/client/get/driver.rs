//! Joins a transfer with its connection and its destination.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::connection::Connection;
use super::super::destination::{look_at, own_name, place, place_objects};
use super::super::exchange::{Operation, POLL_MAX, Turn, WaitLimit};
use super::super::objects::{ObjectOptions, ObjectStore, Objects};
use super::super::output::{DISK_QUEUE_BYTES_MAX, Sink};
use super::super::plan::{OnPlanned, Plan};
use super::{Error, Summary, WARNINGS_KEPT_MAX};
use crate::disk::{Disk, DiskOptions, Notices};
use crate::filter::Filter;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{Base, DirStat};
use crate::transfer::{Output, Placement, Progress, Source, Totals, Transfer};
use towpath_blocking::CancelToken;

/// Disk workers, at least.
const WORKERS_MIN: usize = 4;
/// Disk workers, at most.
const WORKERS_MAX: usize = 16;
/// How long to wait for a disk that does nothing when the transfer has failed.
const FAILED_DISK_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Twice as many as there are cores. All bytes of a leaf go to one worker: with no more workers than cores, leaves
/// would wait for a worker that waits for a core or for its turn to write to the file, and a core would be idle.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(WORKERS_MIN, |cores| (2 * cores.get()).clamp(WORKERS_MIN, WORKERS_MAX))
}

/// Reports progress, at most every [`PROGRESS_INTERVAL`].
pub(super) struct ProgressReporter<'a> {
    progress: &'a mut dyn FnMut(Progress),
    begun: Instant,
    last: Instant,
}

impl<'a> ProgressReporter<'a> {
    pub(super) fn new(progress: &'a mut dyn FnMut(Progress), begun: Instant) -> Self {
        Self { progress, begun, last: begun }
    }

    pub(super) fn report(&mut self, transfer: &Transfer, now: Instant) {
        if now.duration_since(self.last) >= PROGRESS_INTERVAL {
            self.last = now;
            (self.progress)(transfer.progress());
        }
    }
}

/// A path as destination, as it was given.
pub(super) enum Target {
    Path(PathBuf),
    Into(PathBuf),
}

impl Target {
    /// Destination of a source by itself.
    fn path_of(&self, base: Base, source: &Source) -> PathBuf {
        match self {
            Target::Path(path) => path.clone(),
            // With a slash at the end it is a directory.
            Target::Into(dir) if matches!(base, Base::File | Base::Link) => dir.join(""),
            Target::Into(dir) => dir.join(own_name(source)),
        }
    }
}

/// An object store as destination.
pub(super) struct ObjectsTarget {
    store: Arc<dyn ObjectStore>,
    /// Address of the prefix, for people.
    place: String,
    /// Nothing is below the prefix.
    is_empty: bool,
}

impl ObjectsTarget {
    /// Fails if nothing can be put there anyhow: there is no bucket, or no permission.
    pub(super) fn look_at(store: &Arc<dyn ObjectStore>, prefix: &str, place: &str) -> Result<Self, Error> {
        match store.is_empty(prefix.trim_end_matches('/')) {
            Ok(is_empty) => Ok(Self { store: Arc::clone(store), place: place.to_owned(), is_empty }),
            Err(error) => Err(Error::Destination { path: place.into(), reason: error.message }),
        }
    }
}

pub(super) struct Driver<'a> {
    pub(super) transfer: Transfer,
    pub(super) sink: Sink,
    pub(super) source: Source,
    /// The destination, if it is a path that was given.
    pub(super) path: Option<Target>,
    /// The destination, if it is an object store, until it is opened. Then the path is that of keys.
    pub(super) objects: Option<ObjectsTarget>,
    pub(super) filter: Filter,
    pub(super) max_delete: Option<u64>,
    pub(super) dry_run: Option<OnPlanned>,
    pub(super) disk: DiskOptions,
    pub(super) notices: Arc<Notices>,
    pub(super) progress: ProgressReporter<'a>,
    pub(super) cancel: &'a CancelToken,
    pub(super) was_connected: bool,
    pub(super) warnings: Vec<String>,
    pub(super) warned: u64,
    /// Last seen value of [`Sink::pieces_read`].
    pub(super) pieces_read: u64,
    pub(super) finished: bool,
    /// Whether paths that aren't in the source are to be deleted now.
    pub(super) is_sweeping: bool,
    pub(super) deleted: u64,
    pub(super) held: u64,
}

impl Operation for Driver<'_> {
    /// Why it failed, if it did.
    type Outcome = Option<Error>;

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<Option<Error>>, Error> {
        while let Some(report) = self.sink.next_report() {
            self.transfer.disk(report, now);
            self.outputs(connection)?;
        }
        if let Some(error) = self.sink.failure() {
            return Err(error);
        }
        self.tick(connection, now);
        self.outputs(connection)?;
        self.sink.flush();
        self.progress.report(&self.transfer, now);
        if self.finished {
            return Ok(Turn::Over(self.transfer.failure()));
        }
        if std::mem::take(&mut self.is_sweeping) {
            self.sweep()?;
            return Ok(Turn::Wait(Duration::ZERO));
        }
        // The transfer's time begins with the first connection.
        let due = if self.was_connected { self.transfer.deadline() } else { now + POLL_MAX };
        Ok(Turn::Wait(due.saturating_duration_since(now).min(POLL_MAX)))
    }

    fn connected(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error> {
        if !std::mem::replace(&mut self.was_connected, true) {
            self.transfer.reading(now);
        }
        self.transfer.connected();
        self.outputs(connection)
    }

    fn lost(&mut self, _reason: &str) -> Result<bool, Error> {
        self.transfer.disconnected();
        Ok(true)
    }

    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        self.transfer.inbound(inbound, now);
        self.outputs(connection)?;
        Ok(true)
    }

    fn arriving(&mut self, now: Instant) {
        self.transfer.arriving(now);
    }

    /// The transfer has a timer of its own, which knows what the server hashes.
    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::Unlimited
    }

    fn cancel(&mut self) -> Result<(), Error> {
        self.transfer.cancel();
        Ok(())
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        self.transfer.fail(error);
        Ok(())
    }

    /// Back-pressure: while too much is queued for the disk, nothing is read from the connection.
    fn make_space(&mut self, connection: &mut Connection) -> Result<bool, Error> {
        if self.finished || !self.sink.is_over(DISK_QUEUE_BYTES_MAX) {
            return Ok(true);
        }
        if let Some(report) = self.sink.wait_while_over(DISK_QUEUE_BYTES_MAX, POLL_MAX) {
            self.transfer.disk(report, Instant::now());
            self.outputs(connection)?;
        }
        let now = Instant::now();
        self.progress.report(&self.transfer, now);
        self.tick(connection, now);
        self.outputs(connection)?;
        Ok(false)
    }
}

impl Driver<'_> {
    /// Ends the disk's work, and says what became of the transfer.
    pub(super) fn end(self, failure: Option<Error>, idle_timeout: Duration) -> Result<Summary, Error> {
        (self.progress.progress)(self.transfer.progress());
        let (totals, _) = self.transfer.into_outcome();
        let (planned_files, planned_bytes) = match &self.sink {
            Sink::Plan(plan) => (plan.files, plan.bytes),
            _ => (0, 0),
        };
        // The workers finish what they have before the summary says that it is over. An interrupted transfer doesn't
        // wait for a disk that does nothing, nor does one that has waited for long enough already.
        let timeout = match failure {
            Some(Error::Cancelled | Error::Stalled { .. } | Error::Connect { .. } | Error::Rejected { .. }) => {
                FAILED_DISK_TIMEOUT.min(idle_timeout)
            }
            _ => idle_timeout,
        };
        if let Err(place) = self.sink.end(timeout)
            && matches!(failure, None | Some(Error::Stalled { .. } | Error::Connect { .. }))
        {
            return Err(Error::Hangs { place, seconds: idle_timeout.as_secs() });
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let lines = self.notices.lines();
        let warned = self.warned + lines.len() as u64;
        let warnings = lines.into_iter().chain(self.warnings).collect();
        let summary = summary(totals, self.disk.verify, warnings, self.progress.begun);
        Ok(Summary {
            skipped: summary.skipped.saturating_sub(planned_files),
            warned,
            metadata_refused: self.notices.metadata_refused(),
            deleted: self.deleted,
            held: self.held,
            planned_files,
            planned_bytes,
            ..summary
        })
    }

    fn outputs(&mut self, connection: &mut Connection) -> Result<(), Error> {
        while let Some(output) = self.transfer.next_output() {
            match output {
                Output::Send(request) => connection.send(&request),
                Output::Disk(command) => {
                    if let Some(report) = self.sink.command(command)? {
                        self.transfer.disk(report, Instant::now());
                    }
                }
                Output::OpenDestination { base, name, dir } => self.open_destination(base, name, dir, connection)?,
                Output::Sweep => self.is_sweeping = true,
                // Only of what is fed.
                Output::InPlace => {}
                Output::Warn(text) => {
                    tracing::warn!("{text}");
                    self.warned += 1;
                    if self.warnings.len() < WARNINGS_KEPT_MAX {
                        self.warnings.push(text);
                    }
                }
                Output::Finished => self.finished = true,
            }
        }
        Ok(())
    }

    /// Checks for timeouts. Reading a large existing file shows no progress until it is over.
    fn tick(&mut self, connection: &mut Connection, now: Instant) {
        let pieces_read = self.sink.pieces_read();
        if std::mem::replace(&mut self.pieces_read, pieces_read) != pieces_read {
            self.transfer.reading(now);
        }
        if let Some(time) = connection.round_trip(now) {
            self.transfer.round_trip(time);
        }
        if self.was_connected {
            self.transfer.tick(now);
        }
    }

    fn open_destination(
        &mut self,
        base: Base,
        name: Option<RelPath>,
        dir: Option<DirStat>,
        connection: &Connection,
    ) -> Result<(), Error> {
        if !matches!(self.sink, Sink::Unopened) {
            let placement = name.map_or(Placement::Below, Placement::As);
            self.transfer.destination(placement, true);
            return Ok(());
        }
        if self.path.is_none() && base == Base::Dir && matches!(&self.source, Source::Path(path) if path.is_root()) {
            return Err(Error::NoDestination);
        }
        let path = self.path.as_ref().map(|target| target.path_of(base, &self.source));
        if let Some(on_planned) = self.dry_run.take() {
            let (dir, placement) = look_at(base, name, &self.source, path.as_deref());
            let plan = Plan::new(&dir, on_planned)
                .map_err(|error| Error::Destination { path: dir, reason: error.to_string() })?;
            self.sink = Sink::Plan(Box::new(plan));
            self.transfer.destination(placement, false);
            return Ok(());
        }
        if let Some(objects) = self.objects.take() {
            return self.open_objects(objects, base, name, path.as_deref(), connection);
        }
        let DiskOptions { durable, metadata, .. } = self.disk;
        let place = place(base, name, dir, &self.source, path.as_deref(), durable, &metadata)?;
        let waker = connection.waker();
        (self.disk.fresh, self.disk.made) = (place.fresh, place.made);
        let disk = Disk::start(&place.dir, self.disk, move || waker.wake())
            .map_err(|error| Error::Destination { path: place.dir.clone(), reason: error.to_string() })?;
        if place.placement == Placement::Below {
            disk.lock_tree(&self.source).map_err(|reason| Error::Destination { path: place.dir.clone(), reason })?;
        }
        self.notices = disk.notices();
        self.sink = Sink::Disk(Box::new(disk));
        self.transfer.destination(place.placement, place.fresh);
        Ok(())
    }
}

impl Driver<'_> {
    fn open_objects(
        &mut self,
        objects: ObjectsTarget,
        base: Base,
        name: Option<RelPath>,
        prefix: Option<&Path>,
        connection: &Connection,
    ) -> Result<(), Error> {
        let ObjectsTarget { store, place, is_empty } = objects;
        let failed = |reason: String| Error::Destination { path: place.clone().into(), reason };
        let prefix = prefix.map_or(Some(""), Path::to_str).ok_or_else(|| failed("it isn't UTF-8".to_owned()))?;
        let (prefix, placement) = place_objects(base, name, prefix).map_err(failed)?;
        let DiskOptions { verify, check, metadata, .. } = self.disk;
        let (options, waker) = (ObjectOptions { verify, check, metadata }, connection.waker());
        let fresh = is_empty && placement == Placement::Below;
        let sink = Objects::start(store, prefix, place.clone(), options, move || waker.wake());
        let sink = sink.map_err(|error| failed(error.to_string()))?;
        self.notices = sink.notices();
        self.sink = Sink::Objects(Box::new(sink));
        self.transfer.destination(placement, fresh);
        Ok(())
    }
}

fn summary(totals: Totals, verify: bool, warnings: Vec<String>, begun: Instant) -> Summary {
    let sent = totals.files.saturating_sub(totals.skipped);
    let is_any_verified = totals.verified > 0 || totals.files == 0;
    Summary {
        files: totals.files,
        bytes: totals.bytes,
        received_bytes: totals.received_bytes,
        resumed_bytes: totals.resumed_bytes,
        reused_bytes: totals.reused_bytes,
        skipped: totals.skipped,
        seconds: begun.elapsed().as_secs_f64(),
        verified: verify && is_any_verified && totals.verified >= sent && (totals.failed == 0 || totals.files > 0),
        verified_files: totals.verified,
        failed: totals.failed,
        failures: totals.failures,
        warned: warnings.len() as u64,
        warnings,
        ..Summary::default()
    }
}
