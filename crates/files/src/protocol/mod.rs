//! The file protocol on the wire, in types. Nothing here touches a socket or a file.
//!
//! Decoders take bytes from anybody, never panic, and check every count and length against [`crate::limits`].
// docs/protocol/files.md has the tables.

pub mod assembler;
pub mod control;
pub mod data;
pub mod envelope;
mod error;
pub mod follow;
pub mod manifest;
pub mod plain;

pub use error::{ErrorCode, WireError};

#[cfg(test)]
mod tests;

/// Property of READY by which servers and clients of files are known.
pub const PROPERTY: &str = "X-Towpath-Files";

/// Value of [`PROPERTY`].
pub const PROPERTY_VALUE: &[u8] = b"1";

/// Property of READY by which brokers are known.
pub(crate) const REQUESTS_PROPERTY: &str = "X-Towpath-Requests";

/// First frame of a control message.
pub const CONTROL_TAG: &[u8; 4] = b"TOW1";
/// First bytes of the header of a data message.
pub const DATA_TAG: &[u8; 4] = b"TOWD";
/// First frame of a request in the plain dialect.
pub const PLAIN_FETCH: &[u8] = b"fetch";
/// First frame of a follow in the plain dialect.
pub const PLAIN_FOLLOW: &[u8] = b"follow";
/// First frame that gives credit in the plain dialect.
pub const PLAIN_CREDIT: &[u8] = b"credit";
/// First frame of an error in the plain dialect.
pub const PLAIN_ERROR: &[u8] = b"error";

/// Kind of a message, by its first frame after the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `TOW1`: a JSON object follows.
    Control,
    /// `TOWD…`: the header of a data message; bodies follow.
    Data,
    /// `fetch`, `follow` or `credit`: the plain dialect.
    Plain,
}

impl Dialect {
    /// Finds the dialect by a message's first frame; `None` for anything that this protocol does not know.
    pub fn of(first_frame: &[u8]) -> Option<Self> {
        if first_frame == CONTROL_TAG {
            Some(Self::Control)
        } else if first_frame.starts_with(DATA_TAG) {
            Some(Self::Data)
        } else if [PLAIN_FETCH, PLAIN_FOLLOW, PLAIN_CREDIT].contains(&first_frame) {
            Some(Self::Plain)
        } else {
            None
        }
    }
}
