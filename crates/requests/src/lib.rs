//! Requests over ZeroMQ's wire protocol: messages, their bodies and their limits. No socket, file, thread or clock.
//!
//! `docs/protocol/requests.md` specifies both dialects.

#![warn(missing_debug_implementations)]

pub mod assembler;
pub mod body;
pub mod limits;
pub mod majordomo;
pub mod message;
pub mod numbered;

pub use body::{Arriving, Body, BodyReader, LargeBody};

/// Milliseconds since a moment before all others.
pub type Millis = u64;

/// Whether the broker itself answers for a service: Majordomo's `mmi.*` (RFC 8), and Titanic's (RFC 9).
pub fn is_built_in(service: &[u8]) -> bool {
    service.starts_with(b"mmi.") || service.starts_with(b"titanic.")
}
