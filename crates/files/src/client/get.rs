//! Gets files: drives a transfer between a connection and a disk.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_sockets::{Endpoint, Refusal, SocketError};

use super::connection::{ConnectOptions, Connection, ConnectionEvent};
use super::destination::place;
use super::disk::{Disk, DiskOptions, Metadata, Modes, Notices};
use super::ordered_writer::OrderedWriter;
use super::output::Sink;
use super::transfer::{
    FileFailure, LIST_ENTRIES_MAX, Output, Placement, Progress, Source, Totals, Transfer, TransferError,
    TransferOptions,
};
use crate::limits::CHUNK_BYTES_DEFAULT;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Base, Compression, DirStat, FollowLinks};
use towpath_blocking::CancelToken;

/// Default credit window, in bytes.
pub const WINDOW_BYTES_DEFAULT: u64 = 8 << 20;
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

/// Options of [`get()`].
pub struct GetOptions {
    /// The server.
    pub connect: ConnectOptions,
    /// A path or a pattern on the server.
    pub source: Source,
    /// Links that are followed: by default the source itself, if it is one.
    pub follow: FollowLinks,
    /// The destination.
    pub destination: Destination,
    /// Whether content is verified by its digest.
    pub verify: bool,
    /// Whether bodies may be compressed.
    pub compress: Option<Compression>,
    /// Largest body frame, in bytes.
    pub chunk_bytes: u64,
    /// Credit window, in bytes: how much may be in flight or not yet written.
    pub window_bytes: u64,
    /// Whether files are synced before they get their names, and directories after. Otherwise nothing is synced, as
    /// with cp, rsync and curl: a file is whole and verified under its name unless the machine itself crashes shortly
    /// after.
    pub durable: bool,
    /// Whether files that are there already are compared by digest. Otherwise size and time decide.
    pub check: bool,
    /// Which permission bits files and directories get.
    pub modes: Modes,
    /// Whether files, directories and links get the times of their sources.
    pub times: bool,
    /// Bytes of all files, beyond which the transfer fails. `None`: any number, but of holes no more than
    /// [`HOLE_BYTES_MAX`](super::HOLE_BYTES_MAX).
    pub max_bytes: Option<u64>,
    /// Files, directories and links, beyond which the transfer fails.
    pub max_entries: usize,
}

/// The destination of [`get()`].
pub enum Destination {
    /// A path. A single file goes to it, or into it if it is a directory; what is in a directory goes directly into
    /// it. `None`: the source's own name in the working directory.
    Path(Option<PathBuf>),
    /// An output for a single file, written in order; each leaf is checked before it is written. Blocks as long as the
    /// output does.
    Writer(Box<dyn Write + Send>),
    /// Nowhere, to measure. Nothing is verified.
    Discard,
}

impl GetOptions {
    /// The defaults for a source.
    pub fn new(endpoint: Endpoint, source: Source) -> Self {
        Self {
            connect: ConnectOptions::new(endpoint),
            source,
            follow: FollowLinks::Path,
            destination: Destination::Path(None),
            verify: true,
            compress: None,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            window_bytes: WINDOW_BYTES_DEFAULT,
            durable: false,
            check: false,
            modes: Modes::default(),
            times: true,
            max_bytes: None,
            max_entries: LIST_ENTRIES_MAX,
        }
    }
}

/// The outcome of [`get()`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Files in place, including those that existed.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
    /// Bytes of partial files that were resumed, and not received again.
    pub resumed_bytes: u64,
    /// Bytes of older files that were in place, and not received.
    pub reused_bytes: u64,
    /// Files that existed.
    pub skipped: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Every file that was received was compared with its digest, and there was one that was received or compared. Files
    /// that existed by size and time are not meant.
    pub verified: bool,
    /// Files compared with their digest.
    pub verified_files: u64,
    /// Modes and times that the destination refused to set.
    pub metadata_refused: u64,
    /// Files, directories and links that failed.
    pub failed: u64,
    /// The first thousand of them.
    pub failures: Vec<FileFailure>,
    /// Warnings, such as of links that may lead out of the destination: the first thousand.
    pub warnings: Vec<String>,
    /// Number of warnings.
    pub warned: u64,
}

/// Why [`get()`] failed. What has arrived is kept, for another one to resume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// There is no connection.
    #[error("cannot connect to {endpoint}: {reason}")]
    Connect {
        /// The server.
        endpoint: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// The server refuses this client, and would again.
    #[error("{endpoint}{}: {reason}", if *refusal == Refusal::Login { " does not let this client in" } else { "" })]
    Refused {
        /// The server.
        endpoint: String,
        /// Reason of the server, or the mismatch of both sides.
        reason: String,
        /// Whether it is about the login.
        refusal: Refusal,
    },
    /// The destination is impossible.
    #[error("{}: {reason}", path.display())]
    Destination {
        /// The path as it was given.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The disk of the destination hangs. A thread waits for it, until the process ends at the latest.
    #[error("the disk hangs: no write {place} has finished for {seconds} s")]
    Hangs {
        /// The directory, for people.
        place: String,
        /// For how long, in seconds.
        seconds: u64,
    },
    /// The transfer failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The sockets of this side failed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The output failed.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

/// Warnings that are kept.
const WARNINGS_KEPT_MAX: usize = 1000;

/// Gets files; blocks until it is done. `progress` is called now and then, on this thread: with a path as destination
/// several times a second, so that its silence shows that this thread hangs in a call to the disk.
///
/// # Errors
/// The transfer failed as a whole. Failures of single files are in the [`Summary`].
pub fn get(options: GetOptions, progress: &mut dyn FnMut(Progress), cancel: &CancelToken) -> Result<Summary, GetError> {
    let begun = Instant::now();
    tracing::info!("buffers of {}", towpath_buffers::describe_buffer_bytes());
    let GetOptions {
        connect, source, follow, destination, verify, compress, chunk_bytes, window_bytes, durable, ..
    } = options;
    let in_order = matches!(destination, Destination::Writer(_));
    if in_order && matches!(source, Source::Glob(_)) {
        let message = "a pattern was given where a single file is needed".to_owned();
        return Err(TransferError::Unmet { code: ErrorCode::NotAFile, message }.into());
    }
    let verify = verify && !matches!(destination, Destination::Discard);
    let durable = durable && matches!(destination, Destination::Path(_));
    let transfer = TransferOptions {
        source: source.clone(),
        follow,
        window_bytes,
        chunk_bytes,
        compress,
        verify,
        check: options.check && verify,
        durable,
        idle_timeout: connect.idle_timeout,
        in_order,
        max_bytes: options.max_bytes,
        max_entries: options.max_entries,
    };
    let metadata = Metadata::new(options.modes, options.times);
    let disk =
        DiskOptions { durable, verify, check: transfer.check, metadata, workers: workers(), ..DiskOptions::default() };
    let (sink, path) = match destination {
        Destination::Path(path) => (Sink::Unopened, path),
        Destination::Writer(output) => (Sink::Writer(Box::new(OrderedWriter::new(output, cancel.clone()))), None),
        Destination::Discard => (Sink::Discard, None),
    };
    let driver = Driver {
        connection: Connection::open(&connect, cancel)?,
        transfer: Transfer::new(transfer, begun),
        sink,
        source,
        path,
        disk,
        notices: Arc::default(),
        connect,
        ever_connected: false,
        last_reason: None,
        warnings: Vec::new(),
        warned: 0,
        pieces_read: 0,
        finished: false,
    };
    driver.run(begun, progress, cancel)
}

/// Twice as many as there are cores. All bytes of a leaf go to one worker: with no more workers than cores, leaves
/// would wait for a worker that waits for a core or for its turn to write to the file, and a core would be idle.
pub(super) fn workers() -> usize {
    std::thread::available_parallelism().map_or(WORKERS_MIN, |cores| (2 * cores.get()).clamp(WORKERS_MIN, WORKERS_MAX))
}

/// Reports progress, at most every [`PROGRESS_INTERVAL`].
struct ProgressReporter<'a> {
    progress: &'a mut dyn FnMut(Progress),
    last: Instant,
}

impl ProgressReporter<'_> {
    fn report(&mut self, transfer: &Transfer, now: Instant) {
        if now.duration_since(self.last) >= PROGRESS_INTERVAL {
            self.last = now;
            (self.progress)(transfer.progress());
        }
    }
}

struct Driver {
    connection: Connection,
    transfer: Transfer,
    sink: Sink,
    source: Source,
    /// The destination, if it is a path.
    path: Option<PathBuf>,
    disk: DiskOptions,
    notices: Arc<Notices>,
    connect: ConnectOptions,
    ever_connected: bool,
    /// Why the last attempt to connect failed.
    last_reason: Option<String>,
    warnings: Vec<String>,
    warned: u64,
    /// Last seen value of [`Sink::pieces_read`].
    pieces_read: u64,
    finished: bool,
}

impl Driver {
    fn run(
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
            let timeout = self.transfer.deadline().saturating_duration_since(now).min(POLL_MAX);
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
                Ok(Summary { warned, metadata_refused, ..summary(totals, self.disk.verify, warnings, begun) })
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
                Output::Send(request) => self.connection.send(&request),
                Output::Disk(command) => {
                    if let Some(report) = self.sink.command(command)? {
                        self.transfer.disk(report, Instant::now());
                    }
                }
                Output::OpenDestination { base, name, dir } => self.open_destination(base, name, dir)?,
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
        let DiskOptions { durable, metadata, .. } = self.disk;
        let place = place(base, name, dir, &self.source, self.path.as_deref(), durable, &metadata)?;
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
        metadata_refused: 0,
        failed: totals.failed,
        failures: totals.failures,
        warned: warnings.len() as u64,
        warnings,
    }
}
