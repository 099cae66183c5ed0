//! Named limits on what a peer may make us hold. Every one is checked before anything is allocated.

/// Bytes of any frame, whatever the other limits say: the top bit of a length is not used, RFC 37.
pub const FRAME_BYTES_MAX: u64 = (1 << 63) - 1;

/// Bytes of a command body during the handshake (READY, HELLO, INITIATE, ERROR …). libzmq's own READY is under 100.
pub const HANDSHAKE_COMMAND_BYTES_MAX: u64 = 16 * 1024;

/// Bytes of a command body once the handshake is over (PING, PONG, and what we don't know and skip).
pub const COMMAND_BYTES_MAX: u64 = 64 * 1024;

/// Properties in a READY or INITIATE.
pub const METADATA_PROPERTIES_MAX: usize = 64;

/// Bytes of a routing id (the `Identity` property), RFC 37.
pub const ROUTING_ID_BYTES_MAX: usize = 255;

/// Bytes of a PING context that a PONG repeats, RFC 37. libzmq cuts longer ones, and so do we.
pub const PING_CONTEXT_BYTES_MAX: usize = 16;

/// The largest TTL a PING may announce, in tenths of a second: libzmq overflows its timer above it (libzmq #4226).
pub const PING_TTL_DECISECONDS_MAX: u16 = 655;

/// PONGs that wait to be written at a time. A peer that sends PINGs and doesn't read gets the newest answers only.
pub const REPLIES_WAITING_MAX: usize = 16;

/// Frames of at least so many bytes come in a buffer of their own: whoever keeps one keeps little else alive with it. A smaller one
/// is a slice of whatever was read with it: whoever keeps it beyond the next reading copies it.
pub const DEDICATED_BUFFER_BYTES: usize = 64 * 1024;

/// So much room is made for such a frame at once; for a larger one it grows with what comes, to twice that at most.
pub(crate) const DEDICATED_BUFFER_FIRST_BYTES: usize = 1024 * 1024;

/// No room is made on the word of a header: one part of so many must be there.
pub(crate) const DEDICATED_BUFFER_PART: usize = 32;

/// Plain bytes of a sealed frame that would otherwise be streamed: it must be in memory whole before it can be sealed or opened.
pub const SEALED_FRAME_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bytes of one [`crate::Event::BodyData`] of a sealed frame.
pub(crate) const OPENED_PIECE_BYTES: usize = 512 * 1024;

/// A default for the bytes of one whole message, all frames together.
pub const MESSAGE_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// A default for the frames of one message: "endless MORE" ends here.
pub const MESSAGE_FRAMES_DEFAULT: usize = 4_096;

/// A default for the bytes of one frame that is streamed.
pub const STREAMED_FRAME_BYTES_DEFAULT: u64 = 1 << 50;

/// What a frame costs in memory beside its body, counted against queue bounds so that empty frames are not free.
pub const FRAME_OVERHEAD_BYTES: usize = 64;
