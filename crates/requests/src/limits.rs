//! Limits on what comes from the wire, each checked before anything is allocated.

/// Bytes of a service's name. It has at least one.
pub const SERVICE_BYTES_MAX: usize = 255;

/// Bytes of a body that is kept in memory. Larger ones of one frame are spooled to disk, as are smaller ones that come as a stream;
/// of several frames they are refused.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Frames of a body (MDP's requests and replies have one or more).
pub const BODY_FRAMES_MAX: usize = 1000;

/// Bytes of a message that is in memory: a body, the lengths of its frames, or what each costs, and what comes before it.
pub const MESSAGE_BYTES_MAX: usize = BODY_BYTES_MAX + 2 * 1024 * 1024;

/// Bytes of a body on disk.
pub const LARGE_BODY_BYTES_MAX: u64 = 1 << 40;

/// Bytes of one record of the journal: a body with its frames' lengths, and what is told of it.
pub const JOURNAL_RECORD_BYTES_MAX: usize = BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX + 1024;

/// Bytes that may wait for the journal's thread, however it is set up.
pub const JOURNAL_PENDING_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Bytes of the records that the journal writes at once: what waited, what is moved to free a segment, and a record to spare.
pub const JOURNAL_BLOCK_BYTES_MAX: usize = 256 * 1024 * 1024;
