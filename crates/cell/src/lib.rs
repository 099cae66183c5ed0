//! The replicated log of a cell: several brokers share it, and one of them leads.
//!
//! The log is a stream in NATS JetStream, which replicates it; its messages are blocks of the journal's records. [`member`] decides, without I/O and
//! without a clock, what is appended, what counts, and who leads.
// docs/formats/log.md has the format, and why this is sound.

#![warn(missing_debug_implementations)]

pub mod block;
mod figures;
pub mod member;
#[cfg(feature = "nats")]
pub mod nats;
mod order;
mod questions;

pub use figures::{CellFigures, MemberFigures, Monitored, NatsFigures, StreamState, Sync};
pub use member::{Member, Role};
#[cfg(feature = "nats")]
pub use nats::Questions;
pub use order::Block;
pub use questions::Handler as QuestionHandler;
#[cfg(not(feature = "nats"))]
pub use questions::Questions;
