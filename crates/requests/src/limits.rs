//! Limits on input from the wire, each checked before anything is allocated.

/// Longest service name. Empty names are refused.
pub const SERVICE_BYTES_MAX: usize = 255;

/// Largest body in memory. Larger bodies of one frame are spooled to disk, as are smaller ones that arrive as a stream;
/// larger bodies of several frames are refused.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most frames of a body. MDP's requests and replies have one or more.
pub const BODY_FRAMES_MAX: usize = 1000;

/// Largest message in memory: a body, the lengths or overhead of its frames, and the frames before it.
pub const MESSAGE_BYTES_MAX: usize = BODY_BYTES_MAX + 2 * 1024 * 1024;

/// Largest body on disk.
pub const LARGE_BODY_BYTES_MAX: u64 = 1 << 40;

/// Largest record of the journal: a body with the lengths of its frames, and its metadata.
pub const JOURNAL_RECORD_BYTES_MAX: usize = BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX + 1024;

/// Upper limit on bytes queued for the journal's thread, whatever its options say.
pub const JOURNAL_PENDING_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Largest block that the journal writes at once: queued records, records moved by compaction, and one more record.
pub const JOURNAL_BLOCK_BYTES_MAX: usize = 256 * 1024 * 1024;
