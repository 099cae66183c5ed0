//! Why transfers and listings fail, in words and as exit statuses.

use crate::cli::connect_args::FileServerArgs;
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use std::ffi::OsStr;
use towpath_files::client::{GetError, Summary, TransferError};
use towpath_files::protocol::ErrorCode;
use towpath_sockets::Refusal;

/// Explains why a transfer failed, and what to do. Errors of connecting and of the destination name their place themselves.
pub fn failure_at(location: &OsStr, error: &GetError, server: &FileServerArgs) -> Failure {
    let is_glob = || Location::parse(location).is_ok_and(|location| location.is_glob());
    let status = status_of(error);
    match error {
        GetError::Transfer(
            TransferError::Refused { code: ErrorCode::NotFound, .. }
            | TransferError::Unmet { code: ErrorCode::NotFound, .. },
        ) if is_glob() => Failure::new(
            status,
            format_args!("{}: {error}; to take * ? [ or {{ literally, put a \\ before it", location.display()),
        ),
        GetError::Transfer(TransferError::Limit(_)) => Failure::new(
            status,
            format_args!("{}: {error}; --max-bytes and --max-files set the limits", location.display()),
        ),
        GetError::Transfer(_) => Failure::new(status, format_args!("{}: {error}", location.display())),
        GetError::Refused { refusal: Refusal::Login, .. } => {
            Failure::new(status, format_args!("{error} ({})", server.login_hint()))
        }
        GetError::NoDestination => Failure::new(status, format_args!("{}: {error}", location.display())),
        _ => Failure::new(status, error),
    }
}

/// Exit status of a transfer or a listing that failed.
pub fn status_of(error: &GetError) -> Status {
    match error {
        GetError::Connect { .. } | GetError::Refused { refusal: Refusal::Peer, .. } => Status::NoServer,
        GetError::Refused { refusal: Refusal::Login, .. } => Status::Refused,
        GetError::NoDestination | GetError::Foreign { .. } => Status::Usage,
        GetError::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Status::ReaderGone,
        GetError::Transfer(TransferError::Stalled { connected: false, .. }) => Status::NoServer,
        GetError::Transfer(TransferError::Cancelled) => Status::Interrupted,
        GetError::Transfer(TransferError::Refused { code, .. } | TransferError::Unmet { code, .. }) => {
            status_of_code(*code)
        }
        _ => Status::Failed,
    }
}

/// Exit status for a server's code.
pub fn status_of_code(code: ErrorCode) -> Status {
    match code {
        ErrorCode::NotFound => Status::NotFound,
        ErrorCode::Denied => Status::Refused,
        _ => Status::Failed,
    }
}

/// Why a transfer is incomplete, if it is. The reason of one file counts only if nothing else was to be had.
fn incomplete(summary: &Summary) -> Option<Status> {
    match (summary.failed, summary.files) {
        (0, _) => None,
        (1, 0) => {
            Some(summary.failures.first().and_then(|failure| failure.code).map_or(Status::Failed, status_of_code))
        }
        _ => Some(Status::Failed),
    }
}

/// Exit status of a transfer that came to its end; `None` if all is done.
pub fn status_of_summary(summary: &Summary) -> Option<Status> {
    incomplete(summary).or((summary.held > 0).then_some(Status::Held))
}
