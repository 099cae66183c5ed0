//! The client: lists, gets, reads, pushes and follows files of a server.
//!
//! [`FileClient`] is what programs use. Each of its operations runs on a connection of its own (`exchange`).
//!
//! [`transfer`] decides what is fetched, without I/O; `disk` hashes, writes and installs; `connection` is the wire. `get` joins
//! them: one thread for the wire and the decisions, a few for the disk.

mod ask;
pub mod assembler;
#[expect(clippy::module_inception, reason = "the client itself, among what it is made of")]
mod client;
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
mod open;
mod ordered_writer;
mod output;
mod pacing;
mod plan;
pub mod push;
mod ranges;
mod reconnects;
mod stream;
mod sweep;
pub mod transfer;

pub use ask::Holding;
pub use client::FileClient;
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
pub use get::{Destination, GetOptions, Summary, WINDOW_BYTES_DEFAULT};
pub use listing::{Entries, ListOptions};
pub use open::RemoteFile;
pub use pacing::BYTES_PER_SECOND_MIN;
pub use plan::{Planned, PlannedChange, PlannedKind, TellPlanned};
pub use towpath_blocking::CancelToken;
pub use transfer::{Activity, FileFailure, HOLE_BYTES_MAX, LIST_ENTRIES_MAX, Progress, Source};
