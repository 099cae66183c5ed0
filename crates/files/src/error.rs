//! Why an operation on files failed, and whose fault that is.

use crate::protocol::{ErrorCode, WireError};
use std::io;
use std::path::PathBuf;
use towpath_sockets::{Refusal, SocketError};

/// Why an operation failed. What has arrived is kept, for another one to resume. Each says whose fault it is, as [`Error::fault`] does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection ([`Fault::Network`]).
    #[error("cannot connect to {endpoint}: {reason}")]
    Connect {
        /// The server.
        endpoint: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// Nothing happened for too long ([`Fault::Server`], or [`Fault::Network`] if there was no connection).
    #[error("nothing happened for {seconds} s{}", if *connected { "" } else { ": no connection" })]
    Stalled {
        /// How long.
        seconds: u64,
        /// Whether there was a connection.
        connected: bool,
    },
    /// Connections broke one after another, without progress ([`Fault::Network`]).
    #[error("the connection broke {times} times in a row without any progress")]
    Breaking {
        /// How often.
        times: u32,
    },
    /// The server refuses this client, and would again ([`Fault::Rejection`]).
    #[error("{endpoint}{}: {reason}", if *refusal == Refusal::Login { " does not let this client in" } else { "" })]
    Rejected {
        /// The server.
        endpoint: String,
        /// Reason of the server, or the mismatch of both sides.
        reason: String,
        /// Whether it is about the login.
        refusal: Refusal,
    },
    /// The server refused the request ([`Fault::Refusal`]).
    #[error("the server says: {message} ({code})")]
    Refused {
        /// The server's code.
        code: ErrorCode,
        /// The server's reason.
        message: String,
    },
    /// The source can't be had, as this side found ([`Fault::Refusal`], with the code that the server would have sent).
    #[error("{message}")]
    Unmet {
        /// The code that the server would have sent.
        code: ErrorCode,
        /// The reason.
        message: String,
    },
    /// The server breaks the protocol ([`Fault::Server`]).
    #[error("the server breaks the protocol: {0}")]
    Protocol(String),
    /// More than this side takes ([`Fault::Local`]).
    #[error("{0}")]
    Limit(String),
    /// The destination is impossible ([`Fault::Local`]).
    #[error("{}: {reason}", path.display())]
    Destination {
        /// The path as it was given.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The destination has what comes from somewhere else ([`Fault::Local`]).
    #[error("{}: {reason}", path.display())]
    Foreign {
        /// The path as it was given.
        path: PathBuf,
        /// The owner of the copy, and what to do.
        reason: String,
    },
    /// Everything that a server has would go into the working directory ([`Fault::Local`]).
    #[error("name a destination for everything that is there; . is this directory")]
    NoDestination,
    /// The disk of this side is full, or too small ([`Fault::Local`]).
    #[error("no space left: {0}")]
    DiskFull(String),
    /// The disk of the destination hangs ([`Fault::Local`]). A thread waits for it, until the process ends at the latest.
    #[error("the disk hangs: no write {place} has finished for {seconds} s")]
    Hangs {
        /// The directory, for people.
        place: String,
        /// For how long, in seconds.
        seconds: u64,
    },
    /// The output failed, or whatever is called with what arrives ([`Fault::Local`]).
    #[error("cannot write the output: {reason}")]
    Output {
        /// Its kind, such as a reader that is gone.
        kind: io::ErrorKind,
        /// The reason.
        reason: String,
    },
    /// The sockets of this side failed ([`Fault::Local`]).
    #[error("{0}")]
    Socket(String),
    /// Something else on this side failed, such as reading what is to be pushed ([`Fault::Local`]).
    #[error("{0}")]
    Local(String),
    /// The operation was cancelled ([`Fault::Cancelled`]).
    #[error("interrupted")]
    Cancelled,
}

/// Whose fault an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This side's: its disk, its output, its sockets, its limits, or what it was asked to do.
    Local,
    /// The server's: it breaks the protocol, or does nothing.
    Server,
    /// Nobody's: the server refuses the request, with this code, or would have.
    Refusal(ErrorCode),
    /// Nobody's: the server refuses this client, or is something else.
    Rejection(Refusal),
    /// The network's, or there is no server.
    Network,
    /// Cancelled.
    Cancelled,
}

impl Error {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Connect { .. } | Self::Stalled { connected: false, .. } | Self::Breaking { .. } => Fault::Network,
            Self::Stalled { connected: true, .. } | Self::Protocol(_) => Fault::Server,
            Self::Rejected { refusal, .. } => Fault::Rejection(*refusal),
            Self::Refused { code, .. } | Self::Unmet { code, .. } => Fault::Refusal(*code),
            Self::Cancelled => Fault::Cancelled,
            Self::Limit(_)
            | Self::Destination { .. }
            | Self::Foreign { .. }
            | Self::NoDestination
            | Self::DiskFull(_)
            | Self::Hangs { .. }
            | Self::Output { .. }
            | Self::Socket(_)
            | Self::Local(_) => Fault::Local,
        }
    }

    /// A breach of the protocol.
    pub(crate) fn protocol<T>(why: &str) -> Result<T, Error> {
        Err(Error::Protocol(why.to_owned()))
    }

    /// A failure on this side.
    pub(crate) fn unmet(message: String) -> Self {
        Self::Unmet { code: ErrorCode::Io, message }
    }

    /// The server's code, or the one that it would have sent.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self.fault() {
            Fault::Refusal(code) => Some(code),
            _ => None,
        }
    }

    /// A pattern that matches nothing.
    pub fn nothing_matches() -> Self {
        Self::Unmet { code: ErrorCode::NotFound, message: "nothing matches".to_owned() }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::Protocol(error.message)
    }
}

impl From<SocketError> for Error {
    fn from(error: SocketError) -> Self {
        Self::Socket(error.to_string())
    }
}

/// Of the output, or of whatever is called with what arrives.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Output { kind: error.kind(), reason: error.to_string() }
    }
}

/// For readers: the error is the source of the other one.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind;
        let kind = match &error {
            // Not `Interrupted`, which readers try again.
            Error::Cancelled => ErrorKind::Other,
            Error::Stalled { connected: true, .. } => ErrorKind::TimedOut,
            Error::Protocol(_) => ErrorKind::InvalidData,
            error => match error.fault() {
                Fault::Network => ErrorKind::NotConnected,
                Fault::Refusal(ErrorCode::NotFound) => ErrorKind::NotFound,
                Fault::Refusal(ErrorCode::Denied) | Fault::Rejection(_) => ErrorKind::PermissionDenied,
                _ => ErrorKind::Other,
            },
        };
        io::Error::new(kind, error)
    }
}
