//! What can go wrong with a journal, told so that someone can do something about it.

use std::io;
use std::path::PathBuf;

/// Why a journal can't be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Something about a file of the journal failed.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path}: another process is using this journal{holder}", path = path.display())]
    Locked {
        /// The journal's directory.
        path: PathBuf,
        /// ` (process 123)`, or nothing if that isn't known.
        holder: String,
    },
    /// The directory isn't where it was opened any more. Nothing is written to it, nor to another one.
    #[error(
        "{path}: this is not the directory any more in which the journal was opened: it was moved, removed or replaced. Nothing \
         is kept until it is put back, or the broker is restarted",
        path = path.display()
    )]
    Moved {
        /// Where the journal's directory was.
        path: PathBuf,
    },
    /// What had become durable can't be read. Nothing was changed.
    #[error(
        "{path}: damaged at byte {offset}: {what}. Nothing was changed. Put the file back from a copy; or, to go on without \
         what the journal holds, move its directory away",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// It was written by a build that is newer than this.
    #[error("{path}: a journal of format {version}; this build knows format {known}. Use the build that wrote it", path = path.display(), known = super::block::VERSION)]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// The format that it says it has.
        version: u32,
    },
    /// As much as may wait for the disk is waiting for it. Nothing was appended; there is room again when the journal wakes its
    /// owner.
    #[error("the journal's queue is full: the disk is slower than what comes in")]
    Full,
    /// The journal can't be written now, as when the disk is full. Nothing was appended; it tries again by itself.
    #[error("the journal cannot be written: {0}")]
    Failing(String),
    /// An entry breaks a limit ([`towpath_requests::limits`]). Nothing was appended.
    #[error("{0} is larger than a journal takes")]
    TooLarge(&'static str),
    /// A body that isn't in memory, nor a [`SpooledBody`](crate::spool::SpooledBody). Nothing was appended.
    #[error("a body that is neither in memory nor spooled")]
    UnknownBody,
    /// The journal's thread can't be started, or has ended.
    #[error("the journal's thread: {0}")]
    Thread(String),
}

impl JournalError {
    /// Whether the disk has no room.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, JournalError::Io { source, .. } if super::segments::is_full(source))
    }

    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> JournalError {
        let path = path.into();
        move |source| JournalError::Io { action, path, source }
    }
}
