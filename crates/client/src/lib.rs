//! Requests over ZeroMQ's wire protocol: asynchronous clients and workers that hold what is outstanding and resend it.
//!
//! `docs/protocol/requests.md` specifies what is spoken and what is promised.

#![warn(missing_debug_implementations)]

pub mod client;
mod connection;
#[doc(hidden)]
pub mod sans_io;
pub mod worker;

pub use connection::{Dialect, LinkOptions};
pub use towpath_journal::{Spool, SpoolWriter, SpooledBody};
pub use towpath_requests::{Body, BodyReader, LargeBody};
/// Used by the options of clients and workers.
pub use towpath_sockets::{Endpoint, MechanismConfig, SocketError};
