//! Why transfers and listings fail, in words and as exit statuses.

use crate::cli::connect_args::FileServerArgs;
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use std::ffi::OsStr;
use towpath_files::client::{Error, Fault, Summary};
use towpath_files::protocol::ErrorCode;
use towpath_sockets::Refusal;

/// Explains why an operation failed, and what to do.
pub fn failure_at(location: &OsStr, error: &Error, server: &FileServerArgs) -> Failure {
    let is_glob = || Location::parse(location).is_ok_and(|location| location.is_glob());
    let place = location.display();
    let hint = match error {
        // These name their place themselves.
        Error::Rejected { refusal: Refusal::Login, .. } => {
            return Failure::new(status_of(error), format_args!("{error} ({})", server.login_hint()));
        }
        Error::Connect { .. }
        | Error::Rejected { .. }
        | Error::Destination { .. }
        | Error::Foreign { .. }
        | Error::Hangs { .. }
        | Error::Output { .. }
        | Error::Socket(_) => return Failure::new(status_of(error), error),
        _ if error.fault() == Fault::Refusal(ErrorCode::NotFound) && is_glob() => {
            "; to take * ? [ or { literally, put a \\ before it"
        }
        Error::Limit(_) => "; --max-bytes and --max-files set the limits",
        _ => "",
    };
    Failure::new(status_of(error), format_args!("{place}: {error}{hint}"))
}

/// Exit status of an operation that failed.
pub fn status_of(error: &Error) -> Status {
    match (error, error.fault()) {
        (Error::NoDestination | Error::Foreign { .. }, _) => Status::Usage,
        (Error::Output { kind: std::io::ErrorKind::BrokenPipe, .. }, _) => Status::ReaderGone,
        (Error::Breaking { .. }, _) => Status::Failed,
        (_, Fault::Network | Fault::Rejection(Refusal::Peer)) => Status::NoServer,
        (_, Fault::Rejection(Refusal::Login)) => Status::Refused,
        (_, Fault::Refusal(code)) => status_of_code(code),
        (_, Fault::Cancelled) => Status::Interrupted,
        (_, Fault::Local | Fault::Server) => Status::Failed,
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
