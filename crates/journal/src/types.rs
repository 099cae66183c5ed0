//! Types of the journal's interface.

use bytes::Bytes;
use std::path::PathBuf;
use std::time::Duration;
use towpath_requests::body::Body;

/// Options of a journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Size of a segment's file, from 4 KiB to 1 GiB. A few files are allocated ahead.
    pub segment_bytes: u64,
    /// Queued bytes above which [`Journal::append`](super::Journal::append) refuses more. At most 128 MiB. A single entry
    /// is taken whatever its size.
    pub pending_bytes: usize,
    /// Start although durable records are damaged: what is damaged is marked as a gap in its file, and the requests of which a part was in it are
    /// given up.
    pub repairs: bool,
    /// Give up requests that the disk has no space for ([`Journal::take_given_up`](super::Journal::take_given_up)) instead
    /// of waiting for space.
    pub gives_up: bool,
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        JournalOptions {
            segment_bytes: 64 * 1024 * 1024,
            pending_bytes: 64 * 1024 * 1024,
            repairs: false,
            gives_up: false,
        }
    }
}

/// When a request expires. Clocks may be set, and brokers of a cell have one each: a request never has more time than it had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Milliseconds since 1970. 0: never.
    pub unix_ms: u64,
    /// Milliseconds that were left when the entry was written.
    pub left_ms: u64,
}

impl Expiry {
    /// Of a request that doesn't expire.
    pub const NEVER: Expiry = Expiry { unix_ms: 0, left_ms: 0 };
}

/// An entry about a request. Ids are chosen by the owner, each once in the life of the journal, from [`Recovered::next_id`]
/// up.
#[derive(Clone, Debug)]
pub enum Entry<'a> {
    /// The request was accepted.
    Accepted {
        /// Id, never used before.
        id: u64,
        /// Client that sent it.
        client: [u8; 16],
        /// Number that the client gave it.
        number: u64,
        /// Name of the service.
        service: &'a [u8],
        /// When it expires.
        expires: Expiry,
        /// Checksum of the request as its client sent it.
        checksum: u32,
        /// Set for a dead letter, the copy of this request of this client.
        letter: Option<Letter<'a>>,
        /// Body for the worker.
        body: &'a Body,
    },
    /// A dead letter is one for another service now.
    Moved {
        /// Id of the dead letter.
        id: u64,
        /// Number of this move: 1 more than that of the one before.
        moves: u32,
        /// The letter from now on.
        letter: Letter<'a>,
        /// Name of the service.
        service: &'a [u8],
    },
    /// The request has its outcome, which is kept until its client acknowledges it. The request's body is dropped.
    Finished {
        /// Id of the request.
        id: u64,
        /// Status of the outcome.
        status: u16,
        /// Body for the client.
        body: &'a Body,
    },
    /// The client has acknowledged the outcome: nothing is needed any more.
    Forgotten {
        /// Id of the request.
        id: u64,
    },
}

impl Entry<'_> {
    /// Id of the request that it is about.
    pub fn id(&self) -> u64 {
        let (Entry::Accepted { id, .. }
        | Entry::Moved { id, .. }
        | Entry::Finished { id, .. }
        | Entry::Forgotten { id }) = self;
        *id
    }
}

/// More of a dead letter. Its texts have at most 255 bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Letter<'a> {
    /// Attempts so far.
    pub attempts: u16,
    /// When it was kept, in milliseconds since 1970.
    pub kept_unix_ms: u64,
    /// Reason why it was given up.
    pub reason: &'a [u8],
    /// Client of the request, for people.
    pub client: &'a [u8],
    /// The last worker that had it, for people.
    pub worker: &'a [u8],
}

/// Position of an entry among all that were appended since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// An end that was cut off because it was torn or damaged. Its records may never have been durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    /// Path of the segment.
    pub path: PathBuf,
    /// Offset of the cut.
    pub offset: u64,
    /// Bytes cut off, without trailing zeros. In a reused file, most of them may be old.
    pub bytes: u64,
    /// Kind of the damage.
    pub what: &'static str,
    /// Requests that could not be restored because a needed part was cut off.
    pub lost_requests: u64,
}

impl CutTail {
    /// Consequence for clients.
    pub(super) const MEANING: &str = "the journal's end is cut off: what was written when the broker or its machine ended was never \
        acknowledged; but if the disk has damaged it since, acknowledged requests and outcomes may have been in it, which are gone";
}

/// Content of a journal when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// Requests that were accepted and not forgotten, by id.
    pub requests: Vec<RecoveredRequest>,
    /// The end that was cut off, if it was torn.
    pub cut: Option<CutTail>,
    /// Greater than every id that was ever used. At least 1.
    pub next_id: u64,
}

/// A request that was accepted and not forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredRequest {
    /// Id.
    pub id: u64,
    /// Client that sent it.
    pub client: [u8; 16],
    /// Number that the client gave it.
    pub number: u64,
    /// Name of the service.
    pub service: Bytes,
    /// When it expires.
    pub expires: Expiry,
    /// Checksum of the request as its client sent it.
    pub checksum: u32,
    /// Set for a dead letter: a copy of the request that has this number.
    pub letter: Option<RecoveredLetter>,
    /// Body for the worker, empty if there is an outcome. A body outside memory is a
    /// [`SpooledBody`](towpath_spool::SpooledBody).
    pub body: Body,
    /// Status and body of the outcome, if there is one.
    pub outcome: Option<(u16, Body)>,
}

/// More of a dead letter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredLetter {
    /// Attempts until it was last moved.
    pub attempts: u16,
    /// Moves so far.
    pub moves: u32,
    /// When it was last kept, in milliseconds since 1970.
    pub kept_unix_ms: u64,
    /// Reason why it was last given up.
    pub reason: Bytes,
    /// Client of the request, for people.
    pub client: Bytes,
    /// The last worker that had it, for people.
    pub worker: Bytes,
}

impl RecoveredLetter {
    /// A letter after this many moves.
    pub(super) fn new(letter: Letter, moves: u32) -> RecoveredLetter {
        let Letter { attempts, kept_unix_ms, reason, client, worker } = letter;
        let [reason, client, worker] = [reason, client, worker].map(Bytes::copy_from_slice);
        RecoveredLetter { attempts, moves, kept_unix_ms, reason, client, worker }
    }
}

/// Whether the journal can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Yes, as far as is known.
    Working,
    /// No, for this reason. Writing is retried at least every two seconds. Earlier entries stay in memory and become
    /// durable then; new ones are refused.
    Failing(String),
}

/// Recent figures for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalFigures {
    /// Count of segments.
    pub segments: u64,
    /// Bytes of all segments.
    pub log_bytes: u64,
    /// Bytes of needed records.
    pub needed_bytes: u64,
    /// Requests that aren't forgotten.
    pub requests: u64,
    /// Batches made durable since the start.
    pub commits: u64,
    /// Bytes written to segments since the start.
    pub written_bytes: u64,
    /// Bytes of entries that aren't durable yet.
    pub pending_bytes: u64,
    /// For how long a batch has been on its way to the disk now; none if none is.
    pub writing: Duration,
    /// Time that durable batches took, each until it was: all together, the last one, the longest.
    pub sync_sum: Duration,
    /// Of the last one.
    pub sync_last: Duration,
    /// Of the one that took longest.
    pub sync_max: Duration,
    /// Failed writes since the start.
    pub errors: u64,
}
