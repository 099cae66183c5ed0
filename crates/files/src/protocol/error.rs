//! Error codes of the protocol, and what a decoder says about bytes that it cannot accept.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a request, or one file of it, failed ("Errors").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// Malformed, or over a limit: the client's fault.
    BadRequest,
    /// An operation or feature that the server does not have.
    Unsupported,
    /// Too many requests at a time, or the id is in use.
    Busy,
    /// No such file, or a path that leaves the root.
    NotFound,
    /// The server may not read it.
    Denied,
    /// A directory or special file where a file is needed.
    NotAFile,
    /// The file changed while it was read; nobody's fault.
    Changed,
    /// Reading or writing failed at the server.
    Io,
    /// The path doesn't have the content that the client expects, or another client is pushing to it.
    Conflict,
    /// The server's disk, or what it takes from clients, is full.
    Full,
    /// A code of a later protocol: over, for a reason that is only in the message.
    Other,
}

impl ErrorCode {
    /// Every code that this version of the protocol names.
    pub const NAMED: [Self; 10] = [
        Self::BadRequest,
        Self::Unsupported,
        Self::Busy,
        Self::NotFound,
        Self::Denied,
        Self::NotAFile,
        Self::Changed,
        Self::Io,
        Self::Conflict,
        Self::Full,
    ];

    /// The code as it is on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::Unsupported => "unsupported",
            Self::Busy => "busy",
            Self::NotFound => "not-found",
            Self::Denied => "denied",
            Self::NotAFile => "not-a-file",
            Self::Changed => "changed",
            Self::Io => "io",
            Self::Conflict => "conflict",
            Self::Full => "full",
            Self::Other => "other",
        }
    }

    /// The code that is written so; [`ErrorCode::Other`] for one that this version does not know.
    pub fn from_wire(text: &str) -> Self {
        Self::NAMED.into_iter().find(|code| code.as_str() == text).unwrap_or(Self::Other)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_wire(&String::deserialize(deserializer)?))
    }
}

/// Bytes that are not what the protocol allows: always the sender's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WireError {
    /// The request that the message belongs to, as far as it could be read.
    pub id: Option<u32>,
    /// Code of the answer: `bad-request` or `unsupported`.
    pub code: ErrorCode,
    /// Says what is wrong, naming the limit where there is one.
    pub message: String,
}

impl WireError {
    /// Malformed or over a limit.
    pub fn bad(message: impl Into<String>) -> Self {
        Self { id: None, code: ErrorCode::BadRequest, message: message.into() }
    }

    /// Well formed, but nothing that this side has.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { id: None, code: ErrorCode::Unsupported, message: message.into() }
    }

    /// This error with the id of its request.
    #[must_use]
    pub fn of_request(self, id: Option<u32>) -> Self {
        Self { id, ..self }
    }
}
