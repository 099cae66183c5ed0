//! Requests over ZeroMQ's wire protocol: an asynchronous Majordomo broker that survives its own death.
//!
//! `docs/protocol/requests.md` specifies what is spoken and what is promised.

#![warn(missing_debug_implementations)]

pub mod core;
pub mod server;

/// Used by the options of brokers.
pub use towpath_sockets::{Endpoint, MechanismConfig, SocketError};
