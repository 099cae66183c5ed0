//! Gets files: drives a transfer between a connection and a disk.

mod driver;
mod sweep;

use crate::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use super::exchange::Connector;
use super::objects::ObjectStore;
use super::ordered_writer::OrderedWriter;
use super::output::Sink;
use super::plan::OnPlanned;
use crate::disk::{DiskOptions, Metadata, Modes};
use crate::filter::Filter;
use crate::limits::CHUNK_BYTES_DEFAULT;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Compression, FollowLinks};
use crate::transfer::{FileFailure, LIST_ENTRIES_MAX, Progress, Source, Transfer, TransferOptions};
pub(super) use driver::workers;
use driver::{Driver, ObjectsTarget, ProgressReporter, Target};
use towpath_blocking::CancelToken;
use towpath_quota::Quota;

/// Default limit of the credit window, in bytes.
pub const WINDOW_BYTES_DEFAULT: u64 = 256 << 20;
/// Memory that the windows of all transfers of a process share for what they grow, in bytes.
const WINDOWS_BYTES_MAX: u64 = 256 << 20;
/// See [`WINDOWS_BYTES_MAX`].
static WINDOWS: LazyLock<Arc<Quota>> = LazyLock::new(|| Quota::new(WINDOWS_BYTES_MAX));

/// Memory for windows.
pub(super) fn windows() -> Arc<Quota> {
    Arc::clone(&WINDOWS)
}

/// Options of [`FileClient::get`](super::FileClient::get).
pub struct GetOptions {
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
    /// Limit of the credit window, in bytes: how much may be in flight or not yet written. The window begins with 8 MiB, and grows as the
    /// round-trip time needs it.
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
    /// Filter for a directory or the matches of a pattern.
    pub filter: Filter,
    /// Delete what is in the destination and not in the source, when all of that is in place. Of a directory only.
    pub delete: bool,
    /// Deletions, beyond which none is made; by default 1,000 if that is over a tenth, or everything.
    pub max_delete: Option<u64>,
    /// Change nothing, and call this for each change that would be made. Only with a path as destination.
    pub dry_run: Option<OnPlanned>,
    /// Bytes that the server may send in a second, on average; [`BYTES_PER_SECOND_MIN`](super::BYTES_PER_SECOND_MIN) at least.
    pub bytes_per_second: Option<u64>,
}

/// The destination of [`FileClient::get`](super::FileClient::get).
pub enum Destination {
    /// A path. A single file goes to it, or into it if it is a directory; what is in a directory goes directly into
    /// it. `None`: the source's own name in the working directory; a root that is a directory has none.
    Path(Option<PathBuf>),
    /// A directory that a file or directory goes into under its own name, made if there is none; what a pattern matches
    /// goes directly into it.
    Into(PathBuf),
    /// An output for a single file, written in order; each leaf is checked before it is written. Blocks as long as the
    /// output does.
    Writer(Box<dyn Write + Send>),
    /// An object store. What is in a directory goes below the prefix. A single file gets it as its key, or goes below it under its own name
    /// if it ends in `/` or is empty. Links and empty directories are left out, and nothing is deleted.
    Objects {
        /// The store.
        store: Arc<dyn ObjectStore>,
        /// Beginning of all keys.
        prefix: String,
        /// A file or directory goes below the prefix under its own name, as with [`Destination::Into`].
        into: bool,
        /// Address of the prefix, for people.
        place: String,
    },
    /// Nowhere, to measure. Nothing is verified.
    Discard,
}

impl GetOptions {
    /// The defaults for a source.
    pub fn new(source: Source) -> Self {
        Self {
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
            filter: Filter::default(),
            delete: false,
            max_delete: None,
            dry_run: None,
            bytes_per_second: None,
        }
    }
}

/// The outcome of [`FileClient::get`](super::FileClient::get).
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
    /// Paths that were deleted, or would be.
    pub deleted: u64,
    /// Deletions that are held: none was made.
    pub held: u64,
    /// Of a dry run: files that would be received.
    pub planned_files: u64,
    /// Bytes of these.
    pub planned_bytes: u64,
}

/// Warnings that are kept.
const WARNINGS_KEPT_MAX: usize = 1000;

pub(super) fn get(
    connector: &Connector,
    options: GetOptions,
    progress: &mut dyn FnMut(Progress),
    cancel: &CancelToken,
) -> Result<Summary, Error> {
    let begun = Instant::now();
    tracing::info!("buffers of {}", towpath_buffers::describe_buffer_bytes());
    let idle_timeout = connector.options.idle_timeout;
    let GetOptions { source, follow, destination, verify, compress, chunk_bytes, window_bytes, durable, .. } = options;
    let in_order = matches!(destination, Destination::Writer(_));
    let path = match &destination {
        Destination::Path(path) => path.as_ref().map(|path| Target::Path(path.clone())),
        Destination::Into(dir) => Some(Target::Into(dir.clone())),
        Destination::Objects { prefix, into: false, .. } => Some(Target::Path(prefix.into())),
        Destination::Objects { prefix, into: true, .. } => Some(Target::Into(prefix.into())),
        Destination::Writer(_) | Destination::Discard => None,
    };
    if in_order && matches!(source, Source::Glob(_)) {
        let message = "a pattern was given where a single file is needed".to_owned();
        return Err(Error::Unmet { code: ErrorCode::NotAFile, message });
    }
    let verify = verify && !matches!(destination, Destination::Discard);
    let is_path = matches!(destination, Destination::Path(_) | Destination::Into(_));
    let objects = match &destination {
        Destination::Objects { store, prefix, place, .. } => Some(ObjectsTarget::look_at(store, prefix, place)?),
        _ => None,
    };
    let durable = durable && (is_path || objects.is_some());
    let dry_run = options.dry_run.filter(|_| is_path);
    let transfer = TransferOptions {
        source: source.clone(),
        follow,
        window_bytes,
        windows: windows(),
        chunk_bytes,
        compress,
        verify,
        check: options.check && verify,
        durable,
        bytes_per_second: options.bytes_per_second,
        idle_timeout,
        in_order,
        objects: objects.is_some(),
        max_bytes: options.max_bytes,
        max_entries: options.max_entries,
        filter: options.filter.clone(),
        sweep: options.delete && is_path && matches!(source, Source::Path(_)),
    };
    let metadata = Metadata::new(options.modes, options.times);
    let disk =
        DiskOptions { durable, verify, check: transfer.check, metadata, workers: workers(), ..DiskOptions::default() };
    let sink = match destination {
        Destination::Path(_) | Destination::Into(_) | Destination::Objects { .. } => Sink::Unopened,
        Destination::Writer(output) => Sink::Writer(Box::new(OrderedWriter::new(output, cancel.clone()))),
        Destination::Discard => Sink::Discard,
    };
    let mut exchange = connector.exchange(cancel)?;
    let mut driver = Driver {
        transfer: Transfer::new(transfer, begun),
        sink,
        source,
        path,
        objects,
        filter: options.filter,
        max_delete: options.max_delete,
        dry_run,
        disk,
        notices: Arc::default(),
        progress: ProgressReporter::new(progress, begun),
        cancel,
        was_connected: false,
        warnings: Vec::new(),
        warned: 0,
        pieces_read: 0,
        finished: false,
        is_sweeping: false,
        deleted: 0,
        held: 0,
    };
    let failure = exchange.run(&mut driver)?.map(|error| exchange.explain(error));
    exchange.close();
    driver.end(failure, idle_timeout)
}
