//! Limits of the file protocol. Everything from the wire is checked against one of them before anything is allocated or opened. In brackets is
//! the section of the protocol's description that has it.
// docs/protocol/files.md, follow.md and push.md.

pub use crate::digest::{LEAF_BYTES_MIN, LEAVES_MAX};
pub use crate::path::{NAME_BYTES_MAX, PATH_BYTES_MAX};

/// Longest glob, in bytes ("list").
pub const GLOB_BYTES_MAX: usize = 4096;

/// Frames of an envelope ("Control messages").
pub const ENVELOPE_FRAMES_MAX: usize = 16;
/// Bytes of all frames of an envelope ("Control messages").
pub const ENVELOPE_BYTES_MAX: usize = 4096;

/// Largest JSON frame of a control message, either way ("Control messages").
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// Largest text of an error or a reason that is kept; the rest is cut off.
pub const REASON_BYTES_MAX: usize = 1024;

/// Files in one fetch ("fetch").
pub const FETCH_FILES_MAX: usize = 4096;
/// Ranges of one file in a fetch ("fetch").
pub const FILE_RANGES_MAX: usize = 1024;
/// Requests of one client that may be open at a time ("hello").
pub const REQUESTS_MAX: usize = 64;

/// Features that a server may name ("hello").
pub const FEATURES_MAX: usize = 256;

/// Entries in one page of a list ("list").
pub const LIST_PAGE_ENTRIES_MAX: usize = 4096;
/// Bytes of JSON in one page of a list ("list").
pub const LIST_PAGE_BYTES_MAX: usize = 512 << 10;

/// Changes in one page (following, "changes").
pub const CHANGES_PAGE_ENTRIES_MAX: usize = 1024;
/// Bytes of JSON in one page of changes ("changes").
pub const CHANGES_PAGE_BYTES_MAX: usize = 512 << 10;
/// Unreadable paths that a page names, and their bytes in it.
pub const CHANGES_PAGE_UNREAD_MAX: usize = 256;
/// Of these, in bytes.
pub const CHANGES_PAGE_UNREAD_BYTES_MAX: usize = 64 << 10;
/// Follows of one client ("follow").
pub const FOLLOWS_MAX: usize = 16;
/// Paths of a server that watches ("Limits").
pub const CATALOGUE_PATHS_MAX: usize = 1 << 22;
/// Deletions that a server remembers at least ("Sequence numbers").
pub const TOMBSTONES_MIN: usize = 1 << 16;
/// Longest name of a holder, in bytes ("have").
pub const HOLDER_NAME_BYTES_MAX: usize = 64;
/// Longest path whose versions a holder reports, in bytes ("have").
pub const HOLDER_PATH_BYTES_MAX: usize = 256;
/// Longest error that a holder reports, in bytes ("have").
pub const HOLDER_ERROR_BYTES_MAX: usize = 256;
/// Holders in one message of a client ("have").
pub const HAVE_HOLDERS_MAX: usize = 256;
/// Holders in one answer ("holders").
pub const HOLDERS_PAGE_MAX: usize = 256;
/// Bytes of the holders in one answer ("holders").
pub const HOLDERS_PAGE_BYTES_MAX: usize = 512 << 10;
/// Holders that a server remembers ("Limits").
pub const HOLDERS_MAX: usize = 16_384;
/// Holders that a server remembers across a restart, and that it may be given a list of.
pub const FOLLOWERS_KEPT_MAX: usize = 10_000;
/// Relays in a row ("Relays").
pub const RELAY_DEPTH_MAX: usize = 8;
/// Versions of a path ("Versions").
pub const VERSIONS_MAX: usize = 1000;
/// Versions of all paths that a client lists ("Versions").
pub const VERSIONS_LISTED_MAX: usize = 65_536;
/// Longest label of a version, in bytes ("publish").
pub const LABEL_BYTES_MAX: usize = 64;
/// Largest manifest that a client takes, in bytes ("Versions").
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Servers that something may come through: the first one, and relays ("Relays").
pub const VIA_MAX: usize = RELAY_DEPTH_MAX + 1;

/// Largest body frame of a push, in bytes (pushing, "Data messages").
pub const PUSH_CHUNK_BYTES_MAX: u64 = 256 << 10;
/// Largest file that is sent with its push, in bytes (pushing, "push").
pub const PUSH_CONTENT_BYTES_MAX: u64 = 64 << 10;
/// Open pushes of one client ("Limits").
pub const PUSHES_MAX: usize = 1024;
/// Open pushes of all clients ("Limits").
pub const PUSHES_OF_ALL_MAX: usize = 2048;
/// Ranges in the answer to a push ("push").
pub const HAVE_RANGES_MAX: usize = 1024;
/// Names of a pushed file's path below the directory that takes pushes ("Limits").
pub const PUSH_NAMES_MAX: usize = 32;

/// Smallest chunk that a client may ask for ("fetch").
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Chunk size where the client names none ("fetch").
pub const CHUNK_BYTES_DEFAULT: u64 = 1 << 20;
/// Largest body frame ("hello").
pub const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// Entries in one data message ("Data messages").
pub const DATA_ENTRIES_MAX: usize = 1024;
/// The least that a piece costs of the credit, in bytes ("credit").
pub const PIECE_COST_MIN: u64 = 256;
/// The most that credit can add up to ("credit").
pub const CREDIT_BYTES_MAX: u64 = 1 << 53;

/// Chaining values in one answer ("leaves").
pub const LEAVES_PAGE_MAX: u32 = 32_768;
/// Bytes of a leaf's chaining value ("leaves").
pub const LEAF_VALUE_BYTES: usize = 32;

/// Largest answer to `fetch OFFSET SIZE` ("The plain dialect").
pub const PLAIN_SIZE_MAX: u64 = 16 << 20;
/// Frame size of an answer to `fetch` without a range ("The plain dialect").
pub const PLAIN_FRAME_BYTES: u64 = 250_000;

/// Largest file: what a signed 64-bit file offset can express.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Permission bits that a mode may have: the ordinary nine, set-user-id, set-group-id and sticky.
pub const MODE_MAX: u32 = 0o7777;
