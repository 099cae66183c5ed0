//! Limits on what a peer may make us hold. Each is checked before anything is allocated.

/// Maximum bytes of any frame: the top bit of a length is not used (RFC 37).
pub const FRAME_BYTES_MAX: u64 = (1 << 63) - 1;

/// Maximum bytes of a command body during the handshake. libzmq's READY has under 100.
pub const HANDSHAKE_COMMAND_BYTES_MAX: u64 = 16 * 1024;

/// Maximum bytes of a command body after the handshake: PING, PONG, and unknown commands.
pub const COMMAND_BYTES_MAX: u64 = 64 * 1024;

/// Maximum properties in a READY or INITIATE.
pub const METADATA_PROPERTIES_MAX: usize = 64;

/// Maximum bytes of a routing id, the `Identity` property (RFC 37).
pub const ROUTING_ID_BYTES_MAX: usize = 255;

/// Maximum bytes of a PING context that a PONG repeats (RFC 37). libzmq cuts longer ones, and so do we.
pub const PING_CONTEXT_BYTES_MAX: usize = 16;

/// Maximum TTL that a PING announces, in tenths of a second: libzmq's timer overflows above it (libzmq #4226).
pub const PING_TTL_DECISECONDS_MAX: u16 = 655;

/// Maximum PONGs queued. Nothing more is taken from a peer that sends PINGs and doesn't read the answers.
pub const REPLIES_WAITING_MAX: usize = 16;

/// Frames of at least this size are read into a dedicated buffer, so that keeping one keeps little else alive. A smaller one is a slice of
/// the buffer that it was read with: copy it to keep it for long.
pub const DEDICATED_BUFFER_BYTES: usize = 64 * 1024;

/// Initial size of such a buffer at most. For a larger frame it grows with what arrives, to twice that at most. A sealed piece of 1 MiB fits
/// without growing, which would copy it.
pub(crate) const DEDICATED_BUFFER_FIRST_BYTES: usize = 1024 * 1024 + 4096;

/// A buffer isn't allocated on the word of a header: one part in this many of the frame must have arrived.
pub(crate) const DEDICATED_BUFFER_PART: usize = 32;

/// Maximum plain bytes of a sealed frame that would otherwise be streamed: sealing and opening need it whole in memory.
pub const SEALED_FRAME_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bodies of more bytes are sealed elsewhere: sealing takes about 0.7 ms a MiB.
pub const SEAL_INLINE_MAX: usize = 16 * 1024;

/// The same with AES-256-GCM: another thread would take longer than sealing.
pub const SEAL_INLINE_MAX_AES: usize = 128 * 1024;

/// Sealed frames of more bytes are opened elsewhere, if the driver takes them ([`crate::Connection::open_large_elsewhere`]): opening takes about
/// 0.7 ms a MiB.
pub const OPEN_INLINE_MAX: usize = 128 * 1024;

/// The same with AES-256-GCM, which takes a fraction of that.
pub const OPEN_INLINE_MAX_AES: usize = 1024 * 1024 + 4096;

/// Largest number of a frame that is sealed by AES-256-GCM: 8 PiB of a file in pieces of 1 MiB; at most 128 PiB, where each frame has 16 MiB. What an
/// attacker learns from blocks that repeat grows with the square of the bytes under one key.
pub const AES_NUMBERS_MAX: u64 = 1 << 33;

/// As many bytes of a sealed frame within a heartbeat's timeout are a sign of life though the frame isn't complete.
pub const UNOPENED_BYTES_MIN: usize = 4 * 1024;

/// Maximum bytes of one [`crate::Event::BodyData`] of a sealed frame.
pub(crate) const OPENED_PIECE_BYTES: usize = 512 * 1024;

/// Default maximum bytes of one whole message, all frames together.
pub const MESSAGE_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// Default maximum frames of one message: endless MORE ends here.
pub const MESSAGE_FRAMES_DEFAULT: usize = 4_096;

/// Default maximum bytes of one streamed frame.
pub const STREAMED_FRAME_BYTES_DEFAULT: u64 = 1 << 50;

/// Memory of a frame besides its body, counted against the limits of queues so that empty frames are not free.
pub const FRAME_OVERHEAD_BYTES: usize = 64;
