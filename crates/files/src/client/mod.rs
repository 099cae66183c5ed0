//! The client: gets files and trees from a server, verifies them, and installs them.
//!
//! [`transfer`] decides, without I/O; `disk` hashes, writes and installs; `connection` is the wire. [`get()`] joins
//! them: one thread for the wire and the decisions, a few for the disk.

mod ask;
pub mod assembler;
mod connection;
mod destination;
mod disk;
mod error;
mod exchange;
pub(crate) mod filter;
pub mod follow;
mod get;
mod idle_timer;
mod listing;
mod names;
mod ordered_writer;
mod output;
mod pacing;
mod plan;
pub mod push;
mod ranges;
mod reconnects;
mod sweep;
pub mod transfer;

pub use ask::{Asker, Holding};
pub use connection::ConnectOptions;
pub use disk::Modes;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use disk::fuzz_partial_state;
pub(crate) use disk::{Disk, DiskOptions};
pub use error::{Error, Fault};
pub use filter::{Filter, FilterRule};
#[cfg(fuzzing)]
#[doc(hidden)]
pub use follow::fuzz_follow_record;
pub use get::{Destination, GetOptions, Summary, WINDOW_BYTES_DEFAULT, get};
pub use listing::{ListOptions, list};
pub use pacing::BYTES_PER_SECOND_MIN;
pub use plan::{OnPlanned, Planned, PlannedChange, PlannedKind};
pub use towpath_blocking::CancelToken;
pub use transfer::{Activity, FileFailure, HOLE_BYTES_MAX, LIST_ENTRIES_MAX, Progress, Source};
