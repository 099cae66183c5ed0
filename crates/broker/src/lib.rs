//! Requests over ZeroMQ's wire protocol: an asynchronous Majordomo broker that survives its own death.
//!
//! docs/protocol/requests.md specifies what is spoken and what is promised.

#![warn(missing_debug_implementations)]

mod body;
pub mod broker;
pub mod client;
pub mod core;
pub mod journal;
pub mod limits;
mod link;
pub mod mdp;
#[doc(hidden)]
pub mod pure;
mod spool;
pub mod wire;
pub mod worker;

#[doc(hidden)]
pub use body::Arriving;
pub use body::{Body, BodyReader, LargeBody};
pub use spool::{Spool, SpoolWriter, SpooledBody};
/// What the options of clients, workers and brokers are made of.
pub use towpath_sockets::{Endpoint, MechanismConfig, SocketError};
