//! Getting files: the transfer's state machine between a connection and a disk.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use towpath_sockets::{Endpoint, SocketError};

use super::connection::{CancelHandle, ConnectOptions, Connection, Happened};
use super::destination::place;
use super::disk::{Disk, DiskOptions};
use super::ordered_writer::OrderedWriter;
use super::output::Sink;
use super::transfer::{
    FileFailure, Output, Placement, Progress, Source, Totals, Transfer, TransferError, TransferOptions,
};
use crate::limits::CHUNK_BYTES_DEFAULT;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Base, Compression, DirStat};

/// Credit where nothing else is said, in bytes.
pub const WINDOW_BYTES_DEFAULT: u64 = 8 << 20;
/// Bytes that may wait for the disk, beyond which the wire has to wait. Bodies that were compressed count as they are in the
/// file, so that a server cannot fill the memory with zeros.
const DISK_QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Threads that hash and write, at least.
const WORKERS_MIN: usize = 4;
/// Threads that hash and write, at most.
const WORKERS_MAX: usize = 16;
/// The longest that nothing is looked at: cancelling wakes, this is for the progress bar.
const TURN_MAX: Duration = Duration::from_millis(100);
/// What the disk may do nothing for when the transfer has ended early, before it isn't waited for.
const ENDING: Duration = Duration::from_millis(500);
/// Between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// What to get, from where, to where, and how.
pub struct GetOptions {
    /// The server.
    pub connect: ConnectOptions,
    /// A path or a pattern there.
    pub source: Source,
    /// Where it goes.
    pub destination: Destination,
    /// Whether content is checked against digests.
    pub verify: bool,
    /// Whether bodies may come compressed.
    pub compress: Option<Compression>,
    /// Largest body frame, in bytes.
    pub chunk_bytes: u64,
    /// Credit, in bytes: how much may be on the way or unwritten.
    pub window_bytes: u64,
    /// Whether files are synced before they get their names, and directories after. Without it nothing is synced, as with cp,
    /// rsync and curl: a file is whole and verified under its name unless the machine itself crashes shortly after.
    pub durable: bool,
}

/// Where files go.
pub enum Destination {
    /// To a path: a single file to it, or into it if it is a directory; what is in a directory directly into it. `None`: to the
    /// source's own name in the working directory.
    Path(Option<PathBuf>),
    /// A single file, in order, every piece checked before it is written.
    Writer(Box<dyn Write + Send>),
    /// Nowhere: for measuring. Nothing is verified.
    Discard,
}

impl GetOptions {
    /// The defaults for a source.
    pub fn new(endpoint: Endpoint, source: Source) -> Self {
        Self {
            connect: ConnectOptions::new(endpoint),
            source,
            destination: Destination::Path(None),
            verify: true,
            compress: None,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            window_bytes: WINDOW_BYTES_DEFAULT,
            durable: false,
        }
    }
}

/// What a transfer came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Files that are in place, those that were there already included.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of bodies that crossed the wire.
    pub received_bytes: u64,
    /// Bytes that an earlier transfer had left, and that were not sent again.
    pub resumed_bytes: u64,
    /// Files that were there already.
    pub skipped: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Every file that was sent was checked against its digest. Not so if nothing came of what was asked for.
    pub verified: bool,
    /// Files, directories and links that failed.
    pub failed: u64,
    /// The first thousand of them.
    pub failures: Vec<FileFailure>,
    /// What was left out, such as links that may lead out of the destination: the first thousand.
    pub warnings: Vec<String>,
    /// How many they were in all.
    pub warned: u64,
}

/// Why a transfer as a whole failed. What had arrived stays, for another time to go on with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// No connection.
    #[error("cannot connect to {endpoint}: {reason}")]
    Connect {
        /// The server.
        endpoint: String,
        /// The last attempt's reason.
        reason: String,
    },
    /// The server does not let this client in: it would again and again say the same.
    #[error("{endpoint} does not let this client in: {reason}")]
    Refused {
        /// The server.
        endpoint: String,
        /// What it said, or what it is set up for.
        reason: String,
    },
    /// The destination is not possible.
    #[error("{}: {reason}", path.display())]
    Destination {
        /// As it was given.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The disk of the destination hangs: a thread waits for it, and ends with the process at the latest.
    #[error("the disk hangs: nothing came of what is written {place} for {seconds} s")]
    Hangs {
        /// Below which directory.
        place: String,
        /// For how long.
        seconds: u64,
    },
    /// The transfer ended early.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// This side's sockets failed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The writer failed.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

/// Warnings that are kept.
const WARNINGS_KEPT_MAX: usize = 1000;

/// Gets files. Blocks until it is done; `progress` is called now and then, on this thread: to a path several times a second, so that
/// silence tells that this thread itself hangs in a call to the disk.
///
/// # Errors
/// What ends the transfer as a whole. That single files failed is told in the [`Summary`].
pub fn get(
    options: GetOptions,
    progress: &mut dyn FnMut(Progress),
    cancel: &CancelHandle,
) -> Result<Summary, GetError> {
    let begun = Instant::now();
    let GetOptions { connect, source, destination, verify, compress, chunk_bytes, window_bytes, durable } = options;
    let in_order = matches!(destination, Destination::Writer(_));
    if in_order && matches!(source, Source::Glob(_)) {
        let message = "a pattern, where a single file is needed".to_owned();
        return Err(TransferError::Unmet { code: ErrorCode::NotAFile, message }.into());
    }
    let verify = verify && !matches!(destination, Destination::Discard);
    let durable = durable && matches!(destination, Destination::Path(_));
    let transfer = TransferOptions {
        source: source.clone(),
        window_bytes,
        chunk_bytes,
        compress,
        verify,
        durable,
        idle_timeout: connect.idle_timeout,
        in_order,
    };
    let driver = Driver {
        connection: Connection::open(&connect, cancel)?,
        transfer: Transfer::new(transfer, begun),
        sink: Sink::Unknown,
        source,
        destination: Some(destination),
        disk: DiskOptions { durable, verify, workers: workers(), fresh: false, made: false },
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

/// Twice as many as there are cores. A leaf's bytes all go to one worker: with no more workers than cores, whenever one waits, for a
/// core or for its turn to write to the file, leaves wait for it and a core has nothing to do.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(WORKERS_MIN, |cores| (2 * cores.get()).clamp(WORKERS_MIN, WORKERS_MAX))
}

/// Whoever follows the progress, told of it now and then.
struct Told<'a> {
    progress: &'a mut dyn FnMut(Progress),
    last: Instant,
}

impl Told<'_> {
    fn tell(&mut self, transfer: &Transfer, now: Instant) {
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
    /// Taken when it is opened.
    destination: Option<Destination>,
    disk: DiskOptions,
    connect: ConnectOptions,
    ever_connected: bool,
    /// Why the last attempt to connect failed.
    last_reason: Option<String>,
    warnings: Vec<String>,
    warned: u64,
    /// At the last look.
    pieces_read: u64,
    finished: bool,
}

impl Driver {
    fn run(
        mut self,
        begun: Instant,
        progress: &mut dyn FnMut(Progress),
        cancel: &CancelHandle,
    ) -> Result<Summary, GetError> {
        let mut progress = Told { progress, last: begun };
        while !self.finished {
            if cancel.is_cancelled() {
                self.transfer.cancel();
            }
            self.outputs(cancel)?;
            self.sink.flush();
            let now = Instant::now();
            progress.tell(&self.transfer, now);
            if self.finished {
                break;
            }
            if !self.ever_connected && now.duration_since(begun) >= self.connect.connect_timeout {
                let reason = self.last_reason.take().unwrap_or_else(|| "no answer".to_owned());
                return Err(GetError::Connect { endpoint: self.connect.endpoint.to_string(), reason });
            }
            let timeout = self.transfer.deadline().saturating_duration_since(now).min(TURN_MAX);
            self.connection.turn(timeout)?;
            while let Some(happened) = self.connection.next() {
                self.happened(happened, cancel)?;
                self.let_the_disk_keep_up(&mut progress, cancel)?;
            }
            self.reports(cancel)?;
            self.tick(Instant::now());
        }
        (progress.progress)(self.transfer.progress());
        self.connection.close();
        let (totals, failure) = self.transfer.into_outcome();
        // The workers finish what they have before the summary says that it is over. Whoever interrupts doesn't wait for a disk that
        // does nothing, and who has waited for long enough already doesn't either.
        let idle_timeout = self.connect.idle_timeout;
        let patience = match failure {
            Some(TransferError::Cancelled | TransferError::Stalled { .. }) => ENDING.min(idle_timeout),
            _ => idle_timeout,
        };
        if let Err(place) = self.sink.end(patience)
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
                let warned = self.warned;
                Ok(Summary { warned, ..summary(totals, self.disk.verify, self.warnings, begun) })
            }
        }
    }

    fn happened(&mut self, happened: Happened, cancel: &CancelHandle) -> Result<(), GetError> {
        match happened {
            Happened::Up => {
                self.ever_connected = true;
                self.transfer.connected();
            }
            Happened::Down { reason } => {
                tracing::info!(%reason, "the connection is lost");
                self.last_reason = Some(reason);
                self.transfer.disconnected();
            }
            Happened::Failed { reason } => {
                tracing::debug!(%reason, "cannot connect");
                self.last_reason = Some(reason);
            }
            Happened::Refused { .. } if self.transfer.is_whole() => self.transfer.cancel(),
            Happened::Refused { reason } => return Err(self.connect.refused(reason)),
            Happened::Inbound(inbound) => self.transfer.inbound(inbound, Instant::now()),
            Happened::Arriving => self.transfer.arriving(Instant::now()),
            Happened::Broken(error) => self.transfer.broken_wire(&error),
        }
        self.outputs(cancel)
    }

    fn outputs(&mut self, cancel: &CancelHandle) -> Result<(), GetError> {
        while let Some(output) = self.transfer.next_output() {
            match output {
                Output::Send(request) => self.connection.send(&request),
                Output::Disk(command) => {
                    if let Some(report) = self.sink.command(command)? {
                        self.transfer.disk(report, Instant::now());
                    }
                }
                Output::OpenDestination { base, name, dir } => self.open_destination(base, name, dir, cancel)?,
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

    fn reports(&mut self, cancel: &CancelHandle) -> Result<(), GetError> {
        while let Some(report) = self.sink.next_report() {
            self.transfer.disk(report, Instant::now());
            self.outputs(cancel)?;
        }
        Ok(())
    }

    /// Back-pressure: while too much waits in memory for the disk, nothing is taken from the wire.
    fn let_the_disk_keep_up(&mut self, progress: &mut Told<'_>, cancel: &CancelHandle) -> Result<(), GetError> {
        while self.sink.is_over(DISK_QUEUE_BYTES_MAX) && !cancel.is_cancelled() && !self.finished {
            if let Some(report) = self.sink.wait_while_over(DISK_QUEUE_BYTES_MAX, TURN_MAX) {
                self.transfer.disk(report, Instant::now());
                self.outputs(cancel)?;
            }
            let now = Instant::now();
            progress.tell(&self.transfer, now);
            self.tick(now);
            self.outputs(cancel)?;
        }
        Ok(())
    }

    /// Looks whether too little has happened for too long. Reading a large file that is here already tells nothing until it is over.
    fn tick(&mut self, now: Instant) {
        let pieces_read = self.sink.pieces_read();
        if std::mem::replace(&mut self.pieces_read, pieces_read) != pieces_read {
            self.transfer.reading(now);
        }
        self.transfer.tick(now);
    }

    fn open_destination(
        &mut self,
        base: Base,
        name: Option<RelPath>,
        dir: Option<DirStat>,
        cancel: &CancelHandle,
    ) -> Result<(), GetError> {
        let path = match self.destination.take() {
            Some(Destination::Path(path)) => path,
            other => {
                self.sink = match other {
                    Some(Destination::Writer(output)) => {
                        Sink::Writer(Box::new(OrderedWriter::new(output, cancel.clone())))
                    }
                    _ => Sink::Discard,
                };
                let placement = name.map_or(Placement::Below, Placement::As);
                self.transfer.destination(placement, true);
                return Ok(());
            }
        };
        let place = place(base, name, dir, &self.source, path.as_deref(), self.disk.durable)?;
        let waker = self.connection.waker();
        (self.disk.fresh, self.disk.made) = (place.fresh, place.made);
        let disk = Disk::start(&place.dir, self.disk, move || waker.wake())
            .map_err(|error| GetError::Destination { path: place.dir.clone(), reason: error.to_string() })?;
        if place.placement == Placement::Below {
            disk.lock_tree(&self.source).map_err(|reason| GetError::Destination { path: place.dir.clone(), reason })?;
        }
        self.sink = Sink::Disk(Box::new(disk));
        self.transfer.destination(place.placement, place.fresh);
        Ok(())
    }
}

fn summary(totals: Totals, verify: bool, warnings: Vec<String>, begun: Instant) -> Summary {
    let sent = totals.files.saturating_sub(totals.skipped);
    Summary {
        files: totals.files,
        bytes: totals.bytes,
        received_bytes: totals.received_bytes,
        resumed_bytes: totals.resumed_bytes,
        skipped: totals.skipped,
        seconds: begun.elapsed().as_secs_f64(),
        verified: verify && totals.verified >= sent && (totals.failed == 0 || totals.files > 0),
        failed: totals.failed,
        failures: totals.failures,
        warned: warnings.len() as u64,
        warnings,
    }
}
