//! Exhausted resources of the process or the system. They say nothing about the file and may be available a moment later, so clients get
//! `busy` and retry. The log names the limit.

use crate::root::RootError;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An exhausted resource.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shortage {
    /// Descriptors that this process may have.
    Descriptors,
    /// Files that all processes may have open.
    SystemFiles,
    /// Memory of the kernel.
    Memory,
    /// Threads.
    Threads,
}

/// Interval of log lines about each, so that retrying clients can't fill the log.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Time of the last log line. Global, as the limits are the process's.
static LOGGED: Mutex<BTreeMap<Shortage, Instant>> = Mutex::new(BTreeMap::new());

impl Shortage {
    /// The resource that an operation failed for want of, if any.
    pub(super) fn of(error: &io::Error) -> Option<Shortage> {
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(Shortage::Descriptors),
            Errno::NFILE => Some(Shortage::SystemFiles),
            Errno::NOMEM => Some(Shortage::Memory),
            _ => None,
        }
    }

    /// Whether a lookup failed for want of a resource, here or where the files come from, so that nothing is known about the path.
    pub(super) fn is_why(error: &RootError) -> bool {
        match error {
            RootError::Busy(_) => true,
            RootError::Io(error) => Shortage::of(error).is_some(),
            _ => false,
        }
    }

    /// Message for clients.
    pub(super) fn message(self) -> &'static str {
        match self {
            Shortage::Descriptors => "the server has as many files open as it may (ulimit -n there)",
            Shortage::SystemFiles => "the server's system has as many files open as it may",
            Shortage::Memory => "the server's system is short of memory",
            Shortage::Threads => "the server can't start a thread (ulimit -u or pids.max there)",
        }
    }

    fn limit(self) -> &'static str {
        match self {
            Shortage::Descriptors => "ulimit -n",
            Shortage::SystemFiles => "fs.file-max",
            Shortage::Memory => "memory",
            Shortage::Threads => "ulimit -u, pids.max",
        }
    }

    /// Logs it, unless that was done just before.
    pub(super) fn log(self, error: &io::Error) {
        if self.is_due(Instant::now()) {
            tracing::warn!(limit = self.limit(), %error, "a resource is exhausted: clients are asked to retry");
        }
    }

    fn is_due(self, now: Instant) -> bool {
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.get(&self).is_none_or(|at| now.saturating_duration_since(*at) >= LOG_EVERY);
        if is_due {
            logged.insert(self, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ErrorCode;
    use crate::server::Failure;

    #[test]
    fn exhausted_resources_are_busy_and_other_errors_keep_their_codes() {
        for (errno, code) in [
            (Errno::MFILE, ErrorCode::Busy),
            (Errno::NFILE, ErrorCode::Busy),
            (Errno::NOMEM, ErrorCode::Busy),
            (Errno::IO, ErrorCode::Io),
            (Errno::ACCESS, ErrorCode::Denied),
        ] {
            assert_eq!(Failure::from(RootError::from(errno)).code, code, "{errno:?}");
        }
        let failure = Failure::io(&Errno::MFILE.into());
        assert!(failure.message.contains("ulimit -n"), "{}", failure.message);
        assert_eq!(Failure::no_thread(&Errno::AGAIN.into()).code, ErrorCode::Busy);
    }

    #[test]
    fn log_lines_are_rate_limited() {
        let now = Instant::now() + Duration::from_secs(1_000_000);
        assert!(Shortage::SystemFiles.is_due(now) && !Shortage::SystemFiles.is_due(now + LOG_EVERY / 2));
        assert!(Shortage::SystemFiles.is_due(now + LOG_EVERY));
    }
}
