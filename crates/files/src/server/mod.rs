//! The file server.
//!
//! One thread, the event loop, owns the sockets and the clients' state. It never does what may block: listing, hashing, opening and reading files
//! that aren't in the kernel's cache are jobs for a bounded pool of threads. For each client there is a `Session`, a pure state machine that says
//! which jobs to start and what to send. The socket sends large files by sendfile(2).

mod access_log;
mod catalogue_view;
mod cause;
mod chunks;
mod client_root;
mod clients;
mod deferred_close;
mod drain;
mod driver;
mod failures;
mod follow;
mod followers_look;
mod glob;
mod handle;
mod holding;
mod jobs;
mod kept_followers;
mod lasting_id;
mod open_file;
mod operations;
mod pace;
mod progress;
mod push;
mod quota;
mod rate;
mod resource_errors;
mod session;
mod snapshot;
pub mod source;
mod stats;
mod storage;
mod versions;
mod watch;
#[cfg(test)]
pub(crate) use jobs::PAGE_ENTRIES;
#[cfg(test)]
pub(crate) use watch::simulated;

#[cfg(test)]
mod tests;

pub use crate::relay::{ErrorStats, HolderStats, Presence};
pub use catalogue_view::{CatalogueView, VersionStats};
pub use driver::{ServeError, Server, ServerOptions};
pub use followers_look::{FollowersLook, Lagging, VersionLook};
pub use handle::{Handle, OperatorAction};
pub use pace::Pace;
pub use push::PushOptions;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use session::push::fuzz_body as fuzz_push;
pub use stats::{
    Counters, FailureStats, FollowStats, FollowerStats, PeerStats, QuotaStats, RequestKind, Stats, TransferStats, Wait,
};
pub use towpath_sockets::Authenticator;
pub use versions::NewestVersion;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use watch::fuzz_catalogue;
pub use watch::{CatalogueStats, WatchOptions, WatchStats};

use crate::protocol::ErrorCode;

/// Target of log lines about files that clients have received: the lines to keep.
pub const RECEIPTS: &str = "towpath_files::receipts";

/// Failure of a request, or of one file of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    code: ErrorCode,
    message: String,
}

/// Limits on what clients can make this server hold. Those of the protocol are in [`crate::limits`].
mod limits {
    /// Largest small file, in bytes: one leaf. Small files are read whole and sent many to a message.
    pub(super) const SMALL_FILE_BYTES_MAX: u64 = crate::digest::LEAF_BYTES_MIN;
    /// Memory of names and ranges in a client's fetches, in bytes: more than one fetch can have.
    pub(super) const CLIENT_FETCH_NAMES_BYTES_MAX: u64 = 8 << 20;
    /// Guaranteed minimum of it: one fetch of many short names, or several of few.
    pub(super) const CLIENT_FETCH_NAMES_BYTES_SURE: u64 = 256 << 10;
    /// The same for all clients.
    pub(super) const FETCH_NAMES_BYTES_MAX: u64 = 256 << 20;
    /// Memory of names in a client's listings, in bytes: a directory of a million entries.
    pub(super) const CLIENT_LIST_NAMES_BYTES_MAX: u64 = 128 << 20;
    /// Guaranteed minimum of it.
    pub(super) const CLIENT_LIST_NAMES_BYTES_SURE: u64 = 1 << 20;
    /// The same for all clients.
    pub(super) const LIST_NAMES_BYTES_MAX: u64 = 256 << 20;
    /// Files that one job prepares.
    pub(super) const BATCH_FILES_MAX: usize = 512;
    /// Bytes of small files that one job reads.
    pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
    /// Files that one job leaves open.
    pub(super) const BATCH_OPEN_MAX: u64 = 8;
    /// Bytes of small files of a fetch that are ready and not sent, before it prepares no more.
    pub(super) const READY_BYTES_MAX: u64 = 1 << 20;
    /// Open large files of a fetch before it prepares no more.
    pub(super) const OPEN_FILES_MAX: usize = 8;
    /// Open files of a client, with those that its jobs may open, before each fetch opens only one at a time.
    pub(super) const CLIENT_OPEN_FILES_MAX: u64 = 32;
    /// Guaranteed minimum of open files.
    pub(super) const CLIENT_OPEN_FILES_SURE: u64 = 1;
    /// Large files of a fetch that are hashed ahead.
    pub(super) const HASH_AHEAD_MAX: usize = 4;
    /// Pieces of one file, or of the plain dialect, between the disk and the socket: at least 2, then up to these bytes and this number.
    pub(super) const PIPELINE_BYTES_MAX: u64 = 4 << 20;
    pub(super) const PIPELINE_PIECES_MAX: usize = 64;
    /// Memory of copies from file systems that aren't local, in bytes, guaranteed minimums excepted.
    pub(super) const COPIES_BYTES_MAX: usize = 32 << 20;
    /// The same for one client, unless a single piece is larger.
    pub(super) const CLIENT_COPIES_BYTES_MAX: usize = COPIES_BYTES_MAX / 2;
    /// The same for one device before it was read.
    pub(super) const DEVICE_COPIES_AHEAD_BYTES_MAX: usize = COPIES_BYTES_MAX / 4;
    /// Guaranteed minimum of a client that has no copies.
    pub(super) const CLIENT_COPIES_BYTES_SURE: usize = 256 << 10;
    /// Bytes of small files in one data message: the client's chunk size, between these.
    pub(super) const DATA_MESSAGE_BYTES_MIN: u64 = 64 << 10;
    pub(super) const DATA_MESSAGE_BYTES_MAX: u64 = 1 << 20;
    /// Memory of the names of a connection's clients that have credit, in bytes: of some hundreds, if it is a proxy's.
    pub(super) const CREDIT_NAMES_BYTES_MAX: usize = 64 << 10;
    /// Messages of a connection without one of a client, before its requests give way to those of others behind the same proxy. It may be gone:
    /// a proxy doesn't report that.
    pub(super) const MESSAGES_SILENT_MAX: u64 = 1024;
    /// Waiting replies before the client isn't read.
    pub(super) const REPLIES_WAITING_MAX: usize = 256;
    /// The same in bytes.
    pub(super) const REPLY_BYTES_WAITING_MAX: usize = 2 << 20;
    /// Waiting requests of the plain dialect before the client isn't read.
    pub(super) const PLAIN_WAITING_MAX: usize = 1024;
    /// Expected bytes of a page that is being made. Pages are begun while they and the waiting replies are within the limit on replies.
    pub(super) const PAGE_BYTES_EXPECTED: usize = 128 << 10;
    /// Pages of a listing that can be requested ahead.
    pub(super) const PAGES_AHEAD_MAX: u32 = 16;
    /// First memory of a push's pieces that aren't written yet, in bytes: half of what its client has left, between these.
    pub(super) const PUSH_WINDOW_BYTES_MIN: u64 = 32 << 10;
    pub(super) const PUSH_WINDOW_BYTES_FIRST: u64 = 4 << 20;
    /// The size to which it may grow with the round-trip time.
    pub(super) const PUSH_WINDOW_BYTES_MAX: u64 = 64 << 20;
    /// The same for a client's pushes.
    pub(super) const CLIENT_PUSH_WINDOW_BYTES_MAX: u64 = 64 << 20;
    /// Guaranteed minimum of it.
    pub(super) const CLIENT_PUSH_WINDOW_BYTES_SURE: u64 = 64 << 10;
    /// The same for all clients.
    pub(super) const PUSH_WINDOWS_BYTES_MAX: u64 = 256 << 20;
    /// Files that the plain dialect keeps open for one client.
    pub(super) const PLAIN_OPEN_MAX: usize = 4;
}
