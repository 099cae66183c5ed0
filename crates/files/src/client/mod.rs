//! The client: lists, gets, reads, pushes and follows files of a server.
//!
//! [`FileClient`] is what programs use. Each of its operations runs on a connection of its own (`exchange`).
//!
//! [`transfer`](crate::transfer) decides what is fetched, without I/O; `crate::disk` hashes, writes and installs; `connection` is the wire. `get` joins
//! them: one thread for the wire and the decisions, a few for the disk.

mod ask;
#[expect(clippy::module_inception, reason = "the client itself, among what it is made of")]
mod client;
mod connection;
mod destination;
mod exchange;
pub mod follow;
mod get;
mod listing;
pub mod objects;
mod open;
pub(crate) mod ordered_writer;
mod output;
mod plan;
pub mod push;
mod stream;
mod sweep;

pub use crate::disk::Modes;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use crate::disk::fuzz_partial_state;
pub use crate::error::{Error, Fault};
pub use crate::filter::{Filter, FilterRule};
pub use crate::transfer::BYTES_PER_SECOND_MIN;
pub use crate::transfer::{Activity, FileFailure, HOLE_BYTES_MAX, LIST_ENTRIES_MAX, Progress, Source};
pub use ask::Holding;
pub use client::FileClient;
pub use connection::ConnectOptions;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use follow::fuzz_follow_record;
pub use get::{Destination, GetOptions, Summary, WINDOW_BYTES_DEFAULT};
pub use listing::{Entries, ListOptions};
pub use open::{EachFile, KnownFile, RemoteFile};
pub use plan::{OnPlanned, Planned, PlannedChange, PlannedKind};
pub use towpath_blocking::CancelToken;
