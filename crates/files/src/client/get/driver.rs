//! Joins a transfer with its connection and its destination.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::connection::{ConnectOptions, Connection, ConnectionEvent};
use super::super::destination::{look_at, own_name, place};
use super::super::disk::{Disk, DiskOptions, Notices};
use super::super::filter::Filter;
use super::super::output::Sink;
use super::super::pacing::Pacer;
use super::super::plan::{Plan, TellPlanned};
use super::super::transfer::{Output, Placement, Progress, Source, Totals, Transfer, TransferError};
use super::{GetError, Summary, WARNINGS_KEPT_MAX};
use crate::path::RelPath;
use crate::protocol::control::{Base, DirStat, Request};
use towpath_blocking::CancelToken;

/// Bytes that may be queued for the disk; beyond it the connection isn't read. Compressed bodies count as they are in
/// the file, so that a server can't fill the memory with zeros.
const DISK_QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Disk workers, at least.
const WORKERS_MIN: usize = 4;
/// Disk workers, at most.
const WORKERS_MAX: usize = 16;
/// Longest wait for an event. Cancelling wakes it; this is for the progress bar.
const POLL_MAX: Duration = Duration::from_millis(100);
/// How long to wait for a disk that does nothing when the transfer has failed.
const FAILED_DISK_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Twice as many as there are cores. All bytes of a leaf go to one worker: with no more workers than cores, leaves
/// would wait for a worker that waits for a core or for its turn to write to the file, and a core would be idle.
pub(in crate::client) fn workers() -> usize {
    std::thread::available_parallelism().map_or(WORKERS_MIN, |cores| (2 * cores.get()).clamp(WORKERS_MIN, WORKERS_MAX))
}

/// Reports progress, at most every [`PROGRESS_INTERVAL`].
pub(super) struct ProgressReporter<'a> {
    progress: &'a mut dyn FnMut(Progress),
    last: Instant,
}

impl ProgressReporter<'_> {
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
    /// Where a source goes, by itself.
    fn path_of(&self, base: Base, source: &Source) -> PathBuf {
        match self {
            Target::Path(path) => path.clone(),
            // With a slash at the end it is a directory.
            Target::Into(dir) if matches!(base, Base::File | Base::Link) => dir.join(""),
            Target::Into(dir) => dir.join(own_name(source)),
        }
    }
}

pub(super) struct Driver {
    pub(super) connection: Connection,
    pub(super) transfer: Transfer,
    pub(super) sink: Sink,
    pub(super) source: Source,
    /// The destination, if it is a path that was given.
    pub(super) path: Option<Target>,
    pub(super) filter: Filter,
    pub(super) max_delete: Option<u64>,
    pub(super) dry_run: Option<TellPlanned>,
    pub(super) pacer: Option<Pacer>,
    pub(super) disk: DiskOptions,
    pub(super) notices: Arc<Notices>,
    pub(super) connect: ConnectOptions,
    pub(super) ever_connected: bool,
    /// Why the last attempt to connect failed.
    pub(super) last_reason: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) warned: u64,
    /// Last seen value of [`Sink::pieces_read`].
    pub(super) pieces_read: u64,
    pub(super) finished: bool,
    /// What isn't in the source is to be deleted now.
    pub(super) is_sweeping: bool,
    pub(super) deleted: u64,
    pub(super) held: u64,
}

impl Driver {
    pub(super) fn run(
        mut self,
        begun: Instant,
        progress: &mut dyn FnMut(Progress),
        cancel: &CancelToken,
    ) -> Result<Summary, GetError> {
        let mut progress = ProgressReporter { progress, last: begun };
        while !self.finished {
            if cancel.is_cancelled() {
                self.transfer.cancel();
            }
            self.outputs()?;
            self.sink.flush();
            let now = Instant::now();
            progress.report(&self.transfer, now);
            if self.finished {
                break;
            }
            if !self.ever_connected && now.duration_since(begun) >= self.connect.connect_timeout {
                let reason = self.last_reason.take().unwrap_or_else(|| "no answer".to_owned());
                return Err(GetError::Connect { endpoint: self.connect.endpoint.to_string(), reason });
            }
            if std::mem::take(&mut self.is_sweeping) {
                self.sweep(&mut progress, cancel)?;
                continue;
            }
            let next = self.pace(now).unwrap_or(now + POLL_MAX).min(self.transfer.deadline());
            let timeout = next.saturating_duration_since(now).min(POLL_MAX);
            self.connection.poll(timeout)?;
            while let Some(event) = self.connection.next() {
                self.connection_event(event)?;
                self.wait_for_disk(&mut progress, cancel)?;
            }
            self.reports()?;
            self.tick(Instant::now());
        }
        (progress.progress)(self.transfer.progress());
        self.connection.close();
        let (totals, failure) = self.transfer.into_outcome();
        let (planned_files, planned_bytes) = match &self.sink {
            Sink::Plan(plan) => (plan.files, plan.bytes),
            _ => (0, 0),
        };
        // The workers finish what they have before the summary says that it is over. An interrupted transfer doesn't
        // wait for a disk that does nothing, nor does one that has waited for long enough already.
        let idle_timeout = self.connect.idle_timeout;
        let timeout = match failure {
            Some(TransferError::Cancelled | TransferError::Stalled { .. }) => FAILED_DISK_TIMEOUT.min(idle_timeout),
            _ => idle_timeout,
        };
        if let Err(place) = self.sink.end(timeout)
            && matches!(failure, None | Some(TransferError::Stalled { .. }))
        {
            return Err(GetError::Hangs { place, seconds: idle_timeout.as_secs() });
        }
        match failure {
            Some(TransferError::Stalled { seconds, connected: false }) if self.last_reason.is_some() => {
                let reason = format!("{}; gave up after {seconds} s", self.last_reason.unwrap_or_default());
                Err(GetError::Connect { endpoint: self.connect.endpoint.to_string(), reason })
            }
            Some(error) => Err(error.into()),
            None => {
                let lines = self.notices.lines();
                let warned = self.warned + lines.len() as u64;
                let warnings = lines.into_iter().chain(self.warnings).collect();
                let metadata_refused = self.notices.metadata_refused();
                let (deleted, held) = (self.deleted, self.held);
                let summary = summary(totals, self.disk.verify, warnings, begun);
                let skipped = summary.skipped.saturating_sub(planned_files);
                Ok(Summary {
                    skipped,
                    warned,
                    metadata_refused,
                    deleted,
                    held,
                    planned_files,
                    planned_bytes,
                    ..summary
                })
            }
        }
    }

    fn connection_event(&mut self, event: ConnectionEvent) -> Result<(), GetError> {
        match event {
            ConnectionEvent::Connected => {
                self.ever_connected = true;
                self.transfer.connected();
            }
            ConnectionEvent::Lost { reason } => {
                tracing::info!(%reason, "the connection is lost");
                self.last_reason = Some(reason);
                if let Some(pacer) = &mut self.pacer {
                    pacer.reset();
                }
                self.transfer.disconnected();
            }
            ConnectionEvent::Failed { reason } => {
                tracing::debug!(%reason, "cannot connect");
                self.last_reason = Some(reason);
            }
            ConnectionEvent::Refused { .. } if self.transfer.is_unconfirmed() => self.transfer.cancel(),
            ConnectionEvent::Refused { reason, refusal } => return Err(self.connect.refused(reason, refusal)),
            ConnectionEvent::Inbound(inbound) => self.transfer.inbound(inbound, Instant::now()),
            ConnectionEvent::FileSent { .. } => {}
            ConnectionEvent::Arriving => self.transfer.arriving(Instant::now()),
            ConnectionEvent::ProtocolError(error) => self.transfer.broken_wire(&error),
        }
        self.outputs()
    }

    fn outputs(&mut self) -> Result<(), GetError> {
        while let Some(output) = self.transfer.next_output() {
            match output {
                Output::Send(mut request) => {
                    let is_left = self.pacer.as_mut().is_none_or(|pacer| hold_back_credit(&mut request, pacer));
                    if is_left {
                        self.connection.send(&request);
                    }
                }
                Output::Disk(command) => {
                    if let Some(report) = self.sink.command(command)? {
                        self.transfer.disk(report, Instant::now());
                    }
                }
                Output::OpenDestination { base, name, dir } => self.open_destination(base, name, dir)?,
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

    /// Passes on credit that is due. When more is.
    fn pace(&mut self, now: Instant) -> Option<Instant> {
        let pacer = self.pacer.as_mut()?;
        while let Some(bytes) = pacer.due(now) {
            self.connection.send(&Request::Credit { bytes });
        }
        pacer.next()
    }

    fn reports(&mut self) -> Result<(), GetError> {
        while let Some(report) = self.sink.next_report() {
            self.transfer.disk(report, Instant::now());
            self.outputs()?;
        }
        Ok(())
    }

    /// Back-pressure: while too much is queued for the disk, nothing is read from the connection.
    fn wait_for_disk(&mut self, progress: &mut ProgressReporter<'_>, cancel: &CancelToken) -> Result<(), GetError> {
        while self.sink.is_over(DISK_QUEUE_BYTES_MAX) && !cancel.is_cancelled() && !self.finished {
            if let Some(report) = self.sink.wait_while_over(DISK_QUEUE_BYTES_MAX, POLL_MAX) {
                self.transfer.disk(report, Instant::now());
                self.outputs()?;
            }
            let now = Instant::now();
            progress.report(&self.transfer, now);
            self.tick(now);
            self.outputs()?;
        }
        Ok(())
    }

    /// Checks for timeouts. Reading a large existing file shows no progress until it is over.
    fn tick(&mut self, now: Instant) {
        let pieces_read = self.sink.pieces_read();
        if std::mem::replace(&mut self.pieces_read, pieces_read) != pieces_read {
            self.transfer.reading(now);
        }
        self.transfer.tick(now);
    }

    fn open_destination(&mut self, base: Base, name: Option<RelPath>, dir: Option<DirStat>) -> Result<(), GetError> {
        if !matches!(self.sink, Sink::Unopened) {
            let placement = name.map_or(Placement::Below, Placement::As);
            self.transfer.destination(placement, true);
            return Ok(());
        }
        if self.path.is_none() && base == Base::Dir && matches!(&self.source, Source::Path(path) if path.is_root()) {
            return Err(GetError::NoDestination);
        }
        let path = self.path.as_ref().map(|target| target.path_of(base, &self.source));
        if let Some(tell) = self.dry_run.take() {
            let (dir, placement) = look_at(base, name, &self.source, path.as_deref());
            let plan = Plan::new(&dir, tell)
                .map_err(|error| GetError::Destination { path: dir, reason: error.to_string() })?;
            self.sink = Sink::Plan(Box::new(plan));
            self.transfer.destination(placement, false);
            return Ok(());
        }
        let DiskOptions { durable, metadata, .. } = self.disk;
        let place = place(base, name, dir, &self.source, path.as_deref(), durable, &metadata)?;
        let waker = self.connection.waker();
        (self.disk.fresh, self.disk.made) = (place.fresh, place.made);
        let disk = Disk::start(&place.dir, self.disk, move || waker.wake())
            .map_err(|error| GetError::Destination { path: place.dir.clone(), reason: error.to_string() })?;
        if place.placement == Placement::Below {
            disk.lock_tree(&self.source).map_err(|reason| GetError::Destination { path: place.dir.clone(), reason })?;
        }
        self.notices = disk.notices();
        self.sink = Sink::Disk(Box::new(disk));
        self.transfer.destination(place.placement, place.fresh);
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

/// Gives the credit in a request to the pacer. Whether there is anything else in it.
fn hold_back_credit(request: &mut Request, pacer: &mut Pacer) -> bool {
    match request {
        Request::Credit { bytes } => {
            pacer.owe(*bytes);
            false
        }
        Request::Fetch(fetch) => {
            pacer.owe(std::mem::take(&mut fetch.credit_bytes));
            true
        }
        _ => true,
    }
}
