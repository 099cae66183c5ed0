//! Progress, totals and errors of a transfer.

use super::{RETRIES_MAX, Stage, Transfer};
use crate::error::Error;
use crate::protocol::ErrorCode;

/// Failures that are kept with their reason; all are counted.
const FAILURES_KEPT_MAX: usize = 1000;

/// The reason of a failure after too many retries.
pub(super) fn gave_up(reason: &str, is_changed: bool) -> String {
    let hint = if is_changed { ": a file that is being written to can't be fetched, but a copy of it can" } else { "" };
    format!("{reason}; gave up after {} attempts{hint}", RETRIES_MAX + 1)
}

/// A file, directory or link that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFailure {
    /// Its path on the server, for people.
    pub path: String,
    /// The reason.
    pub reason: String,
    /// The server's code, or the one that it would have sent; `None` if the failure is of this side.
    pub code: Option<ErrorCode>,
    /// This side's disk has no space for it.
    pub no_space: bool,
}

/// Counts of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
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
    /// Files compared with their digest.
    pub verified: u64,
    /// Files, directories and links that failed.
    pub failed: u64,
    /// The first of these failures.
    pub failures: Vec<FileFailure>,
    /// Files listed so far.
    pub listed_files: u64,
    /// Bytes of these.
    pub listed_bytes: u64,
    /// Bytes written of files that aren't in place yet.
    pub unfinished_bytes: u64,
    /// Bytes of holes that came.
    pub hole_bytes: u64,
}

/// Activity of a transfer, or what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activity {
    /// A connection, the first or another one.
    #[default]
    Connecting,
    /// The listing.
    Listing,
    /// This side's disk, which looks at what is there already.
    Comparing,
    /// Content.
    Receiving,
    /// The server, which has sent a file's content and hashes it.
    ServerHashes,
    /// The server, which has no space for it now.
    ServerBusy,
    /// All files are in place; directories are finished.
    Finishing,
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// Files in place.
    pub files_done: u64,
    /// Files listed so far.
    pub files_total: u64,
    /// Bytes in place or written.
    pub bytes_done: u64,
    /// Bytes listed so far.
    pub bytes_total: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
    /// Bytes of partial files that were resumed.
    pub resumed_bytes: u64,
    /// Files that existed.
    pub skipped: u64,
    /// Files compared with their digest.
    pub verified_files: u64,
    /// Files, directories and links that failed.
    pub failed: u64,
    /// The listing is complete: the totals are final.
    pub listed: bool,
    /// Its current activity.
    pub activity: Activity,
}

impl Totals {
    pub(super) fn fail(&mut self, path: String, reason: String, code: Option<ErrorCode>) {
        self.keep(FileFailure { path, reason, code, no_space: false });
    }

    pub(super) fn fail_by(&mut self, path: String, error: &Error) {
        let no_space = matches!(error, Error::DiskFull(_));
        self.keep(FileFailure { path, reason: error.to_string(), code: error.code(), no_space });
    }

    fn keep(&mut self, failure: FileFailure) {
        self.failed += 1;
        if self.failures.len() < FAILURES_KEPT_MAX {
            self.failures.push(failure);
        }
    }

    pub(super) fn progress(&self, listed: bool, activity: Activity) -> Progress {
        Progress {
            files_done: self.files,
            files_total: self.listed_files,
            bytes_done: self.bytes + self.unfinished_bytes,
            bytes_total: self.listed_bytes,
            received_bytes: self.received_bytes,
            resumed_bytes: self.resumed_bytes,
            skipped: self.skipped,
            verified_files: self.verified,
            failed: self.failed,
            listed,
            activity,
        }
    }
}

impl Transfer {
    /// Its current activity.
    pub(super) fn activity(&self) -> Activity {
        if !self.connected {
            Activity::Connecting
        } else if self.stage != Stage::Running {
            Activity::Finishing
        } else if self.listing.retry_at().is_some() {
            Activity::ServerBusy
        } else if !self.listing.is_placed() {
            Activity::Listing
        } else if self.bytes_hashed() > 0 {
            Activity::ServerHashes
        } else if self.requests.fetch_count() > 0 {
            Activity::Receiving
        } else if self.tree.is_inspecting() {
            Activity::Comparing
        } else if self.retry.at().is_some() {
            Activity::ServerBusy
        } else {
            Activity::Receiving
        }
    }
}
