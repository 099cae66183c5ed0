#![doc = include_str!("../README.md")]
// docs/protocol/requests.md specifies the protocol and its guarantees.
#![warn(missing_debug_implementations)]

pub mod client;
mod connection;
#[doc(hidden)]
pub mod sans_io;
pub mod worker;

pub use connection::{Dialect, LinkOptions};
pub use towpath_requests::numbered::{ClientId, RequestId, Status};
pub use towpath_requests::{Body, BodyReader, LargeBody};
/// Used by the options of clients and workers, by what they report, and by bodies in files.
pub use towpath_sockets::{
    Endpoint, FileRange, MechanismConfig, PublicKey, Random, Refusal, SecretKey, SocketError, system_random,
};
pub use towpath_spool::{Spool, SpoolWriter, SpooledBody, default_spool_folder};
