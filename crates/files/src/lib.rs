#![doc = include_str!("../README.md")]

// docs/protocol/files.md specifies the protocol.

pub mod catalogue;
pub mod client;
mod counted;
pub mod digest;
mod disk;
mod error;
mod fields;
mod filter;
#[cfg(test)]
mod follow_model;
pub mod limits;
pub mod path;
pub mod protocol;
mod random;
mod record_log;
pub mod relay;
pub mod root;
pub mod server;
pub mod transfer;

pub use counted::{counted, counted_are};
/// Used by the options of servers and clients.
pub use towpath_sockets::{
    Authenticator, Endpoint, Heartbeat, HubOptions, MechanismConfig, PublicKey, Random, SecretKey, SocketError,
    system_random,
};
