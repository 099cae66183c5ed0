//! What a transfer came to.

use super::RETRIES_MAX;
use crate::protocol::{ErrorCode, WireError};

/// Most failures of single files that are kept with their reason; all are counted.
const FAILURES_KEPT_MAX: usize = 1000;

/// Why a transfer as a whole failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The server refused the request.
    #[error("the server says: {message} ({code})")]
    Refused {
        /// Its reason.
        code: ErrorCode,
        /// Its reason, for people.
        message: String,
    },
    /// What was asked for can't be had, as this side found out.
    #[error("{message}")]
    Unmet {
        /// As if the server had refused it.
        code: ErrorCode,
        /// Why, for people.
        message: String,
    },
    /// The server does not keep to the protocol.
    #[error("the server breaks the protocol: {0}")]
    Protocol(String),
    /// Nothing happened for too long.
    #[error("nothing happened for {seconds} s{}", if *connected { "" } else { ": no connection" })]
    Stalled {
        /// For how long.
        seconds: u64,
        /// Whether there was a connection.
        connected: bool,
    },
    /// Connections break, one after the other, and nothing comes of them.
    #[error("the connection broke {times} times in a row without bringing anything")]
    Breaking {
        /// How often.
        times: u32,
    },
    /// The disk is full, or too small.
    #[error("no space left: {0}")]
    DiskFull(String),
    /// Cancelled by the person.
    #[error("interrupted")]
    Cancelled,
}

impl TransferError {
    /// The server has said what it can't.
    pub(crate) fn protocol<T>(why: &str) -> Result<T, TransferError> {
        Err(TransferError::Protocol(why.to_owned()))
    }

    /// A file can't be had, for a reason on this side.
    pub(crate) fn unmet(message: String) -> Self {
        Self::Unmet { code: ErrorCode::Io, message }
    }

    /// Of a pattern.
    pub fn nothing_matches() -> Self {
        Self::Unmet { code: ErrorCode::NotFound, message: "nothing matches".to_owned() }
    }
}

/// Why a file was asked for again, when it was in vain as often as it may be.
pub(super) fn gave_up(reason: &str, is_changed: bool) -> String {
    let hint = if is_changed { ": what is being written to can't be got, but a copy of it can" } else { "" };
    format!("{reason}; asked {} times{hint}", RETRIES_MAX + 1)
}

impl From<WireError> for TransferError {
    fn from(error: WireError) -> Self {
        Self::Protocol(error.message)
    }
}

/// A file, directory or link that could not be transferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFailure {
    /// Its path on the server, for people.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Counts of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
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
    /// Files that were checked against their digest.
    pub verified: u64,
    /// Files, directories and links that failed.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<FileFailure>,
    /// Files listed so far.
    pub listed_files: u64,
    /// Bytes of these.
    pub listed_bytes: u64,
    /// Bytes written of files that are not in place yet.
    pub unfinished_bytes: u64,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// Files in place.
    pub files_done: u64,
    /// Files known of.
    pub files_total: u64,
    /// Bytes in place or written.
    pub bytes_done: u64,
    /// Bytes known of.
    pub bytes_total: u64,
    /// Bytes of bodies that crossed the wire.
    pub received_bytes: u64,
    /// Bytes that an earlier transfer had left.
    pub resumed_bytes: u64,
    /// Files that were there already.
    pub skipped: u64,
    /// Files, directories and links that failed.
    pub failed: u64,
    /// The totals are final.
    pub listed: bool,
}

impl Totals {
    pub(super) fn fail(&mut self, path: String, reason: String) {
        self.failed += 1;
        if self.failures.len() < FAILURES_KEPT_MAX {
            self.failures.push(FileFailure { path, reason });
        }
    }

    pub(super) fn progress(&self, listed: bool) -> Progress {
        Progress {
            files_done: self.files,
            files_total: self.listed_files,
            bytes_done: self.bytes + self.unfinished_bytes,
            bytes_total: self.listed_bytes,
            received_bytes: self.received_bytes,
            resumed_bytes: self.resumed_bytes,
            skipped: self.skipped,
            failed: self.failed,
            listed,
        }
    }
}
