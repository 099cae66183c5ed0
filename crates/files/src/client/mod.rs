//! The client: gets files and trees from a server, verifies them, and installs them.
//!
//! [`transfer`](crate::transfer) decides, without I/O; `crate::disk` hashes, writes and installs; `connection` is the wire. [`get()`] joins
//! them: one thread for the wire and the decisions, a few for the disk.

mod ask;
mod connection;
mod destination;
mod exchange;
pub mod follow;
mod get;
mod listing;
pub(crate) mod ordered_writer;
mod output;
mod plan;
pub mod push;
mod sweep;

pub use crate::disk::Modes;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use crate::disk::fuzz_partial_state;
pub use crate::error::{Error, Fault};
pub use crate::filter::{Filter, FilterRule};
pub use crate::transfer::BYTES_PER_SECOND_MIN;
pub use crate::transfer::{Activity, FileFailure, HOLE_BYTES_MAX, LIST_ENTRIES_MAX, Progress, Source};
pub use ask::{Asker, Holding};
pub use connection::ConnectOptions;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use follow::fuzz_follow_record;
pub use get::{Destination, GetOptions, Summary, WINDOW_BYTES_DEFAULT, get};
pub use listing::{ListOptions, list};
pub use plan::{OnPlanned, Planned, PlannedChange, PlannedKind};
pub use towpath_blocking::CancelToken;
