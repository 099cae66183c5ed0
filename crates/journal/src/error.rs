//! Errors of the journal, each with what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a journal can't be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// An operation on a file failed.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// Operation that failed.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another process has the journal open.
    #[error("{path}: another process is using this journal{holder}", path = path.display())]
    Locked {
        /// The journal's directory.
        path: PathBuf,
        /// ` (process 123)`, or empty if unknown.
        holder: String,
    },
    /// The directory was moved, removed or replaced. Nothing is written to it, nor to its replacement.
    #[error(
        "{path}: this is not the directory any more in which the journal was opened: it was moved, removed or replaced. Nothing \
         is kept until it is put back, or the broker is restarted",
        path = path.display()
    )]
    Moved {
        /// Path of the journal's directory.
        path: PathBuf,
    },
    /// Durable records can't be read. Nothing was changed.
    #[error(
        "{path}: damaged at byte {offset}: {what}. Nothing was changed. Put the file back from a copy; or start once with \
         --repair-journal, which gives up what was there; or, to go on without what the journal holds, move its directory away",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the damage.
        offset: u64,
        /// Kind of the damage.
        what: &'static str,
    },
    /// Written by another build.
    #[error("{path}: a journal of format {version}; this build knows format {known}. Use the build that wrote it, or move the directory away", path = path.display(), known = super::block::VERSION)]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// Format version of the file.
        version: u32,
    },
    /// Too much is queued for the disk. Nothing was appended. There is space again when the journal wakes its owner.
    #[error("the journal's queue is full: the disk is slower than what comes in")]
    Full,
    /// The journal can't be written for now, for example because the disk is full. Nothing was appended; writing is
    /// retried.
    #[error("the journal cannot be written: {0}")]
    Failing(String),
    /// An entry exceeds a limit of [`towpath_requests::limits`]. Nothing was appended.
    #[error("{0} is larger than a journal takes")]
    TooLarge(&'static str),
    /// A body that is neither in memory nor a [`SpooledBody`](towpath_spool::SpooledBody). Nothing was appended.
    #[error("a body that is neither in memory nor spooled")]
    UnknownBody,
    /// The journal's thread can't be started, or has ended.
    #[error("the journal's thread: {0}")]
    Thread(String),
}

impl JournalError {
    /// Whether the disk is full.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, JournalError::Io { source, .. } if super::storage::is_full(source))
    }

    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> JournalError {
        let path = path.into();
        move |source| JournalError::Io { action, path, source }
    }
}
