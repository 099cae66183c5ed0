//! The command line: arguments that several commands share, and what they print.

pub mod auth_args;
pub mod body_io;
pub mod connect_args;
pub mod endpoint;
pub mod escape;
pub mod exit;
pub mod listen_args;
pub mod location;
pub mod output;
pub mod progress;
pub mod units;
