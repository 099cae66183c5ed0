//! Limits on what comes from the wire, each checked before anything is allocated.

/// Octets of a service's name. It has at least one.
pub const SERVICE_BYTES_MAX: usize = 255;

/// Octets of a body that is kept in memory. Larger ones are spooled to disk, or refused where they can't be.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Frames of a body (MDP's requests and replies have one or more).
pub const BODY_FRAMES_MAX: usize = 1000;

/// Octets of a body on disk.
pub const LARGE_BODY_BYTES_MAX: u64 = 1 << 40;
