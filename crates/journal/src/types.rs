//! What the journal's owner sees.

use super::CutTail;
use bytes::Bytes;
use towpath_requests::body::Body;

/// What can be set.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Bytes of a segment's file. Up to some of them are there ahead of what is in them. Within 4 KiB and 1 GiB.
    pub segment_bytes: u64,
    /// Bytes of entries that may wait for the disk before [`Journal::append`](super::Journal::append) refuses more. At most 128 MiB. One entry is taken
    /// however large it is.
    pub pending_bytes: usize,
    /// Requests for which the disk has no room are given up ([`Journal::take_given_up`](super::Journal::take_given_up)) instead of waiting
    /// for it.
    pub gives_up: bool,
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        JournalOptions { segment_bytes: 64 * 1024 * 1024, pending_bytes: 64 * 1024 * 1024, gives_up: false }
    }
}

/// What is told of a request. Its id is the owner's to give: each once in the life of the journal, from [`Recovered::next_id`] up.
#[derive(Clone, Debug)]
pub enum Entry<'a> {
    /// It was accepted.
    Accepted {
        /// Never used before.
        id: u64,
        /// Who sent it.
        client: [u8; 16],
        /// How the client calls it.
        number: u64,
        /// What it is for.
        service: &'a [u8],
        /// When it need not be done any more, in milliseconds since 1970; 0 is never.
        expires_unix_ms: u64,
        /// What the worker gets.
        body: &'a Body,
    },
    /// Its outcome, kept until its client has confirmed it. The request's own body isn't kept any longer.
    Finished {
        /// Which request.
        id: u64,
        /// How it ended.
        status: u16,
        /// What the client gets.
        body: &'a Body,
    },
    /// Its client has confirmed the outcome: nothing of it is needed any more.
    Forgotten {
        /// Which request.
        id: u64,
    },
}

/// The place of an entry among all that were appended since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// What a journal held when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// All that were accepted and not forgotten, by their ids.
    pub requests: Vec<RecoveredRequest>,
    /// The end that was cut off, if it wasn't whole.
    pub cut: Option<CutTail>,
    /// Larger than every id that was ever used. At least 1.
    pub next_id: u64,
}

/// A request that was accepted and not forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredRequest {
    /// As it was appended.
    pub id: u64,
    /// Who sent it.
    pub client: [u8; 16],
    /// How the client calls it.
    pub number: u64,
    /// What it is for.
    pub service: Bytes,
    /// When it need not be done any more, in milliseconds since 1970; 0 is never.
    pub expires_unix_ms: u64,
    /// What the worker gets; empty if there is an outcome. What isn't in memory is a [`SpooledBody`](crate::spool::SpooledBody).
    pub body: Body,
    /// How it ended and what its client gets, if that is known.
    pub outcome: Option<(u16, Body)>,
}

/// Whether the journal can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// As far as is known.
    Working,
    /// It can't, for this reason, and is tried again at least every two seconds. What was appended before is kept in memory meanwhile, and
    /// becomes durable when it can be written; nothing more is taken.
    Failing(String),
}

/// Figures for an operator, of a moment not long ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalFigures {
    /// Segments there are.
    pub segments: u64,
    /// Bytes of the segments.
    pub log_bytes: u64,
    /// Bytes of the records that are needed.
    pub needed_bytes: u64,
    /// Requests that are not forgotten.
    pub requests: u64,
    /// Batches that became durable since the start.
    pub commits: u64,
    /// Bytes written to segments since the start.
    pub written_bytes: u64,
}
