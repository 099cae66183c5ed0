#![doc = include_str!("../README.md")]
// docs/protocol/requests.md specifies the protocol and its guarantees.
#![warn(missing_debug_implementations)]

pub mod client;
mod connection;
#[doc(hidden)]
pub mod sans_io;
pub mod worker;

pub use connection::{Dialect, LinkOptions};
pub use towpath_journal::{Spool, SpoolWriter, SpooledBody};
pub use towpath_requests::numbered::{ClientId, Status};
pub use towpath_requests::{Body, BodyReader, LargeBody};
/// Used by the options of clients and workers.
pub use towpath_sockets::{Endpoint, MechanismConfig, PublicKey, Random, SecretKey, SocketError, system_random};
