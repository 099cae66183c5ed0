//! The replicated log of a cell: several brokers share it, and one of them leads.
//!
//! The log is a stream in NATS JetStream, which replicates it; its messages are blocks of the journal's records. [`member`] decides, without I/O and
//! without a clock, what is appended, what counts, and who leads.
// docs/formats/log.md has the format, and why this is sound.

#![warn(missing_debug_implementations)]

pub mod block;
pub mod member;
#[cfg(feature = "nats")]
pub mod nats;
mod order;

pub use member::Member;
pub use order::Block;
