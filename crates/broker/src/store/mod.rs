//! The disk as the dispatch sees it: a journal of entries, and a spool of large bodies.

mod body_loader;
mod journal_store;
mod lost_body;
mod paused_file;
mod spooler;

pub use journal_store::JournalStore;
pub(crate) use journal_store::OpenError;
pub use lost_body::LostBody;
pub(crate) use paused_file::PausedFile;

use crate::core::{Entry, Millis, Restored};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use towpath_journal::JournalError;
use towpath_requests::assembler::BodySink;
use towpath_requests::body::Body;
use towpath_requests::numbered::Token;
use towpath_sockets::Tenant;
use towpath_spool::{BodyKind, NoRoom, SpooledBody};

/// Where entries and large bodies are kept. Nothing here waits for a disk; [`Store::durable`] and the `next_*` methods tell what is done.
pub trait Store {
    /// A large body that is being written.
    type Writer: BodySink<Lost = LostBody>;

    /// Gives what an earlier process has left. Called once, before anything else.
    fn recover(&mut self, now: Millis) -> Recovered;

    /// Appends an entry.
    fn append(&mut self, now: Millis, entry: &Entry) -> Result<Position, AppendError>;

    /// All entries before this position are on the disk.
    fn durable(&self) -> Position;

    /// Takes the ids of accepted requests that were appended, and are dropped because the disk is full.
    fn take_given_up(&mut self) -> Option<Vec<u64>>;

    /// Why nothing can be written now.
    fn failure(&self) -> Option<String>;

    /// Starts writing a large body of this length that a tenant sends.
    fn spool(&mut self, kind: BodyKind, tenant: Option<&Tenant>, length: u64) -> Result<Self::Writer, NoRoom>;

    /// Takes the number ([`BodySink::number`]) of a body that was finished, and the body.
    fn next_spooled(&mut self) -> Option<(u64, io::Result<Body>)>;

    /// How much of the spool is used.
    fn spool_usage(&self) -> SpoolUsage;

    /// Begins to read a large body into memory for the client `asker`; false if too many are being read.
    fn load(&mut self, asker: u64, token: Token, body: Arc<SpooledBody>) -> bool;

    /// Takes the token of a body that was read, and its bytes.
    fn next_loaded(&mut self) -> Option<(Token, io::Result<Bytes>)>;
}

/// The place of an entry among all that were appended.
pub type Position = towpath_journal::Lsn;

/// Why an entry wasn't appended.
#[derive(Debug)]
pub enum AppendError {
    /// There is no room now. To be tried again.
    Later,
    /// Such an entry is never taken.
    Never(JournalError),
}

/// Content of an earlier process's journal.
#[derive(Debug, Default)]
pub struct Recovered {
    /// All requests that were accepted and not forgotten.
    pub requests: Vec<Restored>,
    /// The largest id that was ever used.
    pub last_id: u64,
}

/// How much of the spool is used, of how much. Requests may use less than replies, so that what they led to has room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolUsage {
    /// Bytes used.
    pub bytes: u64,
    /// Most bytes.
    pub bytes_max: u64,
    /// Most bytes for a request to be taken.
    pub request_bytes_max: u64,
    /// Files used.
    pub files: u64,
    /// Most files.
    pub files_max: u64,
    /// Most files for a request to be taken.
    pub request_files_max: u64,
}
