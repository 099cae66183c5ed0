//! Exit statuses, the same for all commands. The manual page of `tow` lists them.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not succeed. Its number is the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The reader of standard output, such as head(1), has closed it. Not a failure.
    ReaderGone = 0,
    /// The command failed, or its result is incomplete.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Deletions are held, for a person to allow.
    Held = 3,
    /// There is no such file, service or name.
    NotFound = 4,
    /// The other side refuses: it allows this user too little, or the request is beyond its limits.
    Refused = 5,
    /// There is no server or broker, or something else answers.
    NoServer = 6,
    /// The request expired, and no worker had it.
    Expired = 7,
    /// The request expired or was lost while a worker had it, or may have had it.
    Lost = 8,
    /// The worker failed.
    WorkerFailed = 9,
    /// `tow status --check` found problems, none of them critical.
    Problems = 10,
    /// `tow status --check` found a critical problem.
    Critical = 11,
    /// A signal ended it, and ends the process.
    Interrupted = 130,
}

impl Status {
    /// Its name in `--json`.
    pub fn code(self) -> &'static str {
        match self {
            Status::ReaderGone => "done",
            Status::Failed => "failed",
            Status::Usage => "usage",
            Status::Held => "held",
            Status::NotFound => "not_found",
            Status::Refused => "refused",
            Status::NoServer => "no_server",
            Status::Expired => "expired",
            Status::Lost => "lost",
            Status::WorkerFailed => "worker_failed",
            Status::Problems => "problems",
            Status::Critical => "critical",
            Status::Interrupted => "interrupted",
        }
    }
}

/// A command that did not succeed: its exit status, and the reason for people.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub status: Status,
    message: String,
}

impl Failure {
    /// A failure with this status, from any error.
    pub fn new(status: Status, error: impl fmt::Display) -> Failure {
        Failure { status, message: error.to_string() }
    }

    /// A failure from any error.
    pub fn failed(error: impl fmt::Display) -> Failure {
        Failure::new(Status::Failed, error)
    }

    /// A usage error from any error.
    pub fn usage(error: impl fmt::Display) -> Failure {
        Failure::new(Status::Usage, error)
    }

    /// The end by a signal.
    pub fn interrupted() -> Failure {
        Failure::new(Status::Interrupted, "interrupted")
    }

    /// The same with something added to the reason.
    #[must_use]
    pub fn with(self, more: impl fmt::Display) -> Failure {
        Failure::new(self.status, format_args!("{self}{more}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> ExitCode {
        ExitCode::from(failure.status as u8)
    }
}
