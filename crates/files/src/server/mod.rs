//! Serving files.
//!
//! One thread owns the sockets and all that is known of clients. It never lists or hashes, and it opens and reads nothing that may
//! make it wait: only files that are remembered as open, and what is in memory of them. For each client there is a `Session`, a pure
//! state machine that says what has to be done and what may be sent; a bounded pool of threads does the former, the socket sends
//! the latter, large files by sendfile(2).

mod chunks;
mod clients;
mod deferred_close;
mod driver;
mod glob;
mod handle;
mod jobs;
mod open_file;
mod quota;
mod resource_errors;
mod session;
mod snapshot;
mod stats;
mod storage;

#[cfg(test)]
mod tests;

pub use driver::{ServeError, Server, ServerOptions};
pub use handle::Handle;
pub use stats::{Counters, PeerStats, QuotaStats, Stats, TransferStats, Wait};
pub use towpath_sockets::Authenticator;

use crate::protocol::ErrorCode;

/// The target of log lines that say which files a client has whole: of all lines, those that are kept.
pub const RECEIPTS: &str = "towpath_files::receipts";

/// Why a request, or one file of it, can't be served.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    code: ErrorCode,
    message: String,
}

/// Names of the limits on what one client can make this server hold. The protocol's own are in [`crate::limits`].
mod limits {
    /// Files of up to this are read whole, and travel many to a message: those of one leaf.
    pub(super) const SMALL_FILE_BYTES_MAX: u64 = crate::digest::LEAF_BYTES_MIN;
    /// Bytes of memory of what the fetches of one client name: more than any one fetch can.
    pub(super) const CLIENT_FETCH_NAMES_BYTES_MAX: u64 = 8 << 20;
    /// So much of it a client may have whatever others have: a fetch of many short names, or several of few.
    pub(super) const CLIENT_FETCH_NAMES_BYTES_SURE: u64 = 256 << 10;
    /// The same of all clients, beyond what is sure.
    pub(super) const FETCH_NAMES_BYTES_MAX: u64 = 256 << 20;
    /// Bytes of memory of the names that the listings of one client keep: those of a directory with a million entries.
    pub(super) const CLIENT_LIST_NAMES_BYTES_MAX: u64 = 128 << 20;
    /// So much of it a client may have whatever others have.
    pub(super) const CLIENT_LIST_NAMES_BYTES_SURE: u64 = 1 << 20;
    /// The same of all clients.
    pub(super) const LIST_NAMES_BYTES_MAX: u64 = 256 << 20;
    /// Files that one job looks at.
    pub(super) const BATCH_FILES_MAX: usize = 512;
    /// Bytes of small files that one job reads.
    pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
    /// Files that one job leaves open.
    pub(super) const BATCH_OPEN_MAX: u64 = 8;
    /// Small files that are ready and not sent, of one fetch, before it looks at no more of them.
    pub(super) const READY_BYTES_MAX: u64 = 1 << 20;
    /// Large files that are open, of one fetch, before it looks at no more of them.
    pub(super) const OPEN_FILES_MAX: usize = 8;
    /// The same of all fetches of one client, and those that jobs may open, before a fetch opens only one, and only if it has none.
    pub(super) const CLIENT_OPEN_FILES_MAX: u64 = 32;
    /// So many of them a client may have whatever others have.
    pub(super) const CLIENT_OPEN_FILES_SURE: u64 = 1;
    /// Large files that are hashed ahead of their turn.
    pub(super) const HASH_AHEAD_MAX: usize = 4;
    /// Pieces of one file, or of the plain dialect, that are on their way from the disk to the socket: at least 2, then up to
    /// these bytes and this number.
    pub(super) const PIPELINE_BYTES_MAX: u64 = 4 << 20;
    pub(super) const PIPELINE_PIECES_MAX: usize = 64;
    /// Bytes of copies of pieces, of files that are not on a local disk, of all clients, beyond what is sure.
    pub(super) const COPIES_BYTES_MAX: usize = 32 << 20;
    /// Of these, what one client may have, or one piece.
    pub(super) const CLIENT_COPIES_BYTES_MAX: usize = COPIES_BYTES_MAX / 2;
    /// Of these, what one device may have that isn't read yet, or one piece.
    pub(super) const DEVICE_COPIES_AHEAD_BYTES_MAX: usize = COPIES_BYTES_MAX / 4;
    /// A client that has none of them may have so much, whatever others have.
    pub(super) const CLIENT_COPIES_BYTES_SURE: usize = 256 << 10;
    /// Bytes of small files in one data message: as many as the client wants in a chunk, between these.
    pub(super) const DATA_MESSAGE_BYTES_MIN: u64 = 64 << 10;
    pub(super) const DATA_MESSAGE_BYTES_MAX: u64 = 1 << 20;
    /// Replies that wait for the socket before no more requests are read.
    pub(super) const REPLIES_WAITING_MAX: usize = 256;
    /// The same in bytes.
    pub(super) const REPLY_BYTES_WAITING_MAX: usize = 2 << 20;
    /// Requests of the plain dialect that wait before no more are read.
    pub(super) const PLAIN_WAITING_MAX: usize = 1024;
    /// Bytes that a page which is being made is taken to have: no more of them are begun than would, together with the replies that
    /// wait, be over the limit on these.
    pub(super) const PAGE_BYTES_EXPECTED: usize = 128 << 10;
    /// Pages of a listing that can be asked for ahead.
    pub(super) const PAGES_AHEAD_MAX: u32 = 16;
    /// Files that the plain dialect keeps open for one client.
    pub(super) const PLAIN_OPEN_MAX: usize = 4;
}
