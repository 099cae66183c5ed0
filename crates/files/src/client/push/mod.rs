//! Pushes files to a server, which takes each as a whole or not at all.

mod contents;
mod driver;
mod sending;

pub use sending::Sending;

use super::exchange::Connector;
use crate::digest::Digest;
use crate::error::Error;
use crate::filter::Filter;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::Expected;
use driver::Driver;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use towpath_blocking::CancelToken;

/// Something to push.
pub enum PushSource {
    /// A regular file.
    File(PushFile),
    /// All regular files below a directory, each to the same path below another one on the server. Neither symbolic links nor empty
    /// directories can be pushed. Names of incomplete files, `.tow-*.part` and its like, are left out.
    Tree {
        /// The directory here.
        local: PathBuf,
        /// The directory on the server, from its root. Made if there is none.
        remote: RelPath,
        /// Which of its files are pushed.
        filter: Filter,
    },
    /// The bytes of a reader until its end. They are read before anything is sent, into an unnamed file.
    Reader {
        /// The reader.
        reader: Box<dyn Read + Send>,
        /// On the server, from its root.
        remote: RelPath,
    },
}

/// A file to push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushFile {
    /// Here; empty for what a reader has.
    pub local: PathBuf,
    /// On the server, from its root.
    pub remote: RelPath,
}

/// Options of [`FileClient::push`](super::FileClient::push).
#[derive(Debug)]
pub struct PushOptions {
    /// The sources. No two files may have the same path on the server.
    pub sources: Vec<PushSource>,
    /// State of the path without which a file isn't put there.
    pub expected: Expected,
    /// Sync each file on the server before it is confirmed.
    pub durable: bool,
    /// Remove each file here when the server has confirmed it.
    pub remove_source: bool,
    /// Bytes that are sent in a second, on average; [`BYTES_PER_SECOND_MIN`](super::BYTES_PER_SECOND_MIN) at least.
    pub bytes_per_second: Option<u64>,
    /// The directory of the unnamed file for what a reader has. By default that for temporary files.
    pub spool_dir: PathBuf,
}

impl PushOptions {
    /// The defaults.
    pub fn new(sources: Vec<PushSource>) -> PushOptions {
        PushOptions {
            sources,
            expected: Expected::Anything,
            durable: false,
            remove_source: false,
            bytes_per_second: None,
            spool_dir: std::env::temp_dir(),
        }
    }
}

impl fmt::Debug for PushSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.fmt(f),
            Self::Tree { local, remote, .. } => {
                f.debug_struct("Tree").field("local", local).field("remote", remote).finish_non_exhaustive()
            }
            Self::Reader { remote, .. } => f.debug_struct("Reader").field("remote", remote).finish_non_exhaustive(),
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

/// Called with what happens; its errors end the push.
type OnEvent<'a> = dyn FnMut(PushEvent) -> std::io::Result<()> + 'a;
/// Called with the progress.
type Show<'a> = dyn FnMut(PushProgress) + 'a;

pub(super) fn push(
    connector: &Connector,
    mut options: PushOptions,
    on_event: &mut OnEvent<'_>,
    show: &mut Show<'_>,
    cancel: &CancelToken,
) -> Result<(), Error> {
    if options.sources.iter().any(|source| matches!(source, PushSource::Reader { .. })) {
        // What can't be pushed needn't be read.
        connector.connect(cancel)?;
    }
    let items = contents::items(&mut options, on_event, show, cancel)?;
    connector.run(&mut Driver::new(&options, items, on_event, show, cancel), cancel)
}
