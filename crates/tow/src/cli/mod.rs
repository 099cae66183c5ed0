//! The command line: arguments that several commands share, and what they print.

pub mod admission;
pub mod audit;
pub mod auth_args;
pub mod authorized_keys;
pub mod body_io;
#[cfg(all(feature = "nats", feature = "s3"))]
pub mod bucket_bodies;
pub mod certificate;
pub mod connect_args;
pub mod endpoint;
pub mod escape;
pub mod exit;
pub mod key_args;
pub mod known_servers;
pub mod listen_args;
pub mod location;
pub mod output;
pub mod passwords;
pub mod progress;
pub mod queue_args;
pub mod secrets;
pub mod service_name;
pub mod table;
pub mod tips;
pub mod units;
