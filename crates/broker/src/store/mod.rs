//! The store as the dispatch sees it: a log of entries, and a spool of large bodies.
//!
//! The trait is beside the dispatch because its vocabulary is the core's: entries and restored requests. `local` is the store on this machine's
//! disk, or on the log of a cell. The tests have two more, one of them a replicated log with several brokers of which one leads.

mod local;
mod lost_body;

pub use local::StoreError;
pub use local::{CellOptions, LocalStore};
pub use lost_body::LostBody;

use crate::core::{Entry, Millis, Restored, StorageFailure};
use bytes::Bytes;
use std::io;
use towpath_requests::assembler::BodySink;
use towpath_requests::body::Body;
use towpath_requests::numbered::Token;
use towpath_sockets::{RelayKey, RelayTo, Tenant};
use towpath_spool::BodyKind;

/// Storage of entries and large bodies. Nothing here waits for a disk or a network; [`Store::durable`] and the `next_*` methods report what is
/// done.
///
/// Several brokers may have one log, of which one leads: it alone appends. An append is in the log for good once [`Store::durable`] covers it. One
/// that isn't covered when leadership is lost may be in the log or not; nobody was promised it.
pub trait Store {
    /// A large body that is being written.
    type Writer: BodySink<Lost = LostBody>;

    /// Takes a change of leadership. Called in every round, before [`Store::durable`], and at the start, where a store without rivals gives
    /// [`Leadership::Won`] at once.
    fn next_leadership(&mut self, now: Millis) -> Option<Leadership>;

    /// Appends an entry. Only between [`Leadership::Won`] and [`Leadership::Lost`].
    fn append(&mut self, now: Millis, entry: &Entry) -> Result<Position, AppendError>;

    /// All entries before this position, of those appended since leadership was last won, are in the log for good.
    fn durable(&self) -> Position;

    /// Takes the ids of accepted requests that were appended, and are dropped because there is no space.
    fn take_given_up(&mut self) -> Option<Vec<u64>>;

    /// Why nothing can be written now, or soon can't be.
    fn failure(&self) -> Option<Failure>;

    /// The endpoint of the broker that leads, if it is another one and known.
    fn leader(&self) -> Option<String> {
        None
    }

    /// Starts writing a large body of this length that a tenant sends.
    fn spool(&mut self, kind: BodyKind, tenant: Option<&Tenant>, length: u64) -> Result<Self::Writer, LostBody>;

    /// Takes the number ([`BodySink::number`]) of a body that was finished, and the body.
    fn next_spooled(&mut self) -> Option<(u64, io::Result<Body>)>;

    /// Usage of the spool.
    fn spool_usage(&self) -> SpoolUsage;

    /// Begins to read a large body into memory; false if too many are being read. Clients take turns.
    fn load(&mut self, client: u64, token: Token, body: Body) -> bool;

    /// Takes the token of a body that was read, and its bytes.
    fn next_loaded(&mut self) -> Option<(Token, io::Result<Bytes>)>;
}

/// The place of an entry among those that were appended since leadership was won.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// Whether this broker leads.
#[derive(Debug)]
pub enum Leadership {
    /// This broker leads from now on, with the log's content.
    Won(Recovered),
    /// Another one does, or may.
    Lost,
}

/// Why nothing can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For people.
    pub why: String,
    /// For clients.
    pub kind: StorageFailure,
}

/// Where the clients and workers of a cell belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Nobody knows.
    Nowhere,
    /// Here, since this broker leads. Others relay with this key.
    Here(RelayKey),
    /// At the broker that leads.
    There(RelayTo),
}

/// Why an entry wasn't appended.
#[derive(Debug)]
pub enum AppendError {
    /// No space now; try again later.
    Later,
    /// Such an entry is never taken, for this reason.
    Never(String),
}

/// Content of the log.
#[derive(Debug, Default)]
pub struct Recovered {
    /// All requests that were accepted and not forgotten.
    pub requests: Vec<Restored>,
    /// The largest id in the log, of whichever broker's entries. New ones go on from it.
    pub last_id: u64,
}

/// Usage of the spool, and its limits. Requests may use less than replies, so that there is space for their outcomes.
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
