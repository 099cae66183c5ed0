//! Pushes files to a server, which takes each as a whole or not at all.

mod driver;
mod sending;

pub use sending::Sending;

use super::connection::ConnectOptions;
use super::exchange::Exchange;
use crate::digest::Digest;
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::Expected;
use driver::Driver;
use std::path::PathBuf;
use towpath_blocking::CancelToken;
use towpath_sockets::Endpoint;

/// A file to push.
#[derive(Clone, Debug)]
pub struct PushFile {
    /// Here.
    pub local: PathBuf,
    /// On the server, from its root.
    pub remote: RelPath,
}

/// Options of [`push()`].
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// The server.
    pub connect: ConnectOptions,
    /// The files, each to a path of its own.
    pub files: Vec<PushFile>,
    /// State of the path without which a file isn't put there.
    pub expected: Expected,
    /// Sync each file on the server before it is confirmed.
    pub durable: bool,
    /// Remove each file here when the server has confirmed it.
    pub remove_source: bool,
    /// Bytes that are sent in a second, on average; [`BYTES_PER_SECOND_MIN`](super::BYTES_PER_SECOND_MIN) at least.
    pub bytes_per_second: Option<u64>,
}

impl PushOptions {
    /// The defaults for a server.
    pub fn new(endpoint: Endpoint, files: Vec<PushFile>) -> PushOptions {
        PushOptions {
            connect: ConnectOptions::new(endpoint),
            files,
            expected: Expected::Anything,
            durable: false,
            remove_source: false,
            bytes_per_second: None,
        }
    }
}

/// An event of a push.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PushEvent {
    /// A file is in place on the server: whole, verified and under its name.
    Pushed {
        /// The file.
        file: PushFile,
        /// Bytes.
        size: u64,
        /// BLAKE3.
        digest: Digest,
        /// The number of the change, if the server watches its directory.
        seq: Option<u64>,
        /// Synced to disk.
        durable: bool,
        /// Whether it was there already.
        same: bool,
        /// Bytes that the server had of an earlier push.
        resumed_bytes: u64,
    },
    /// A file failed.
    Failed {
        /// The file.
        file: PushFile,
        /// The server's code; `None` if it failed here.
        code: Option<ErrorCode>,
        /// The reason.
        reason: String,
    },
    /// The connection is lost, and tried again.
    Interrupted {
        /// The reason.
        reason: String,
    },
    /// A minor problem of a file that is in place.
    Warning(String),
}

/// Progress of a push.
#[derive(Clone, Copy, Debug, Default)]
pub struct PushProgress {
    /// Files that are over.
    pub files_done: u64,
    /// All files.
    pub files: u64,
    /// Bytes that needn't be sent any more.
    pub bytes_done: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Pushes files; blocks until each is in place or has failed. What the server has of a file that isn't complete stays there for a day, and is
/// resumed.
///
/// # Errors
/// There is no connection, or nothing happens for too long. Failures of single files are events.
pub fn push(
    options: &PushOptions,
    on_event: &mut dyn FnMut(PushEvent) -> std::io::Result<()>,
    progress: &mut dyn FnMut(PushProgress),
    cancel: &CancelToken,
) -> Result<(), Error> {
    let mut exchange = Exchange::open(&options.connect, cancel)?;
    let outcome = exchange.run(&mut Driver::new(options, on_event, progress, cancel));
    exchange.close();
    outcome
}
