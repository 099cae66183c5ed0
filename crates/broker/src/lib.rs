//! Requests over ZeroMQ's wire protocol: an asynchronous Majordomo broker that survives its own death.
//!
//! `docs/protocol/requests.md` specifies what is spoken and what is promised.

#![warn(missing_debug_implementations)]

mod access;
pub mod core;
pub mod dispatch;
pub mod server;
mod services;
mod stats;
pub mod store;
mod transport;

pub use access::asked_of_rules;
pub use stats::{
    Activity, Concerns, LISTED_MAX, PeerStats, RequestStats, ServiceStats, Stats, WorkerStats, add_name, listed_name,
    queue_json, request_json, seconds, spool_json, worker_json,
};
/// Figures in [`Stats`].
pub use towpath_cell::{CellFigures, MemberFigures, Monitored, NatsFigures, Role, StreamState, Sync};
/// Of a broker in a cell: [`server::Broker::questions`].
pub use towpath_cell::{QuestionHandler, Questions};
/// Figures in [`Stats`].
pub use towpath_journal::JournalFigures;
pub use transport::Transport;

/// Used by the options of brokers.
pub use towpath_sockets::{Endpoint, MechanismConfig, SocketError};
