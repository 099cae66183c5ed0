//! What this process, or its system, has too little of for now. It says nothing about a file, and there may be some a moment later: clients
//! hear `busy`, and ask again. The operator hears which limit it is.

use crate::root::RootError;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Something that there is too little of.
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

/// How often the operator hears of each: a client that asks again and again can't fill the log.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// When the operator heard of it last. Limits are of the process, so this is too.
static TOLD: Mutex<BTreeMap<Shortage, Instant>> = Mutex::new(BTreeMap::new());

impl Shortage {
    /// What an operation on a file failed for want of, if that is why.
    pub(super) fn of(error: &io::Error) -> Option<Shortage> {
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(Shortage::Descriptors),
            Errno::NFILE => Some(Shortage::SystemFiles),
            Errno::NOMEM => Some(Shortage::Memory),
            _ => None,
        }
    }

    /// Whether a path couldn't be looked at for want of something, so that nothing is known of what is there.
    pub(super) fn is_why(error: &RootError) -> bool {
        matches!(error, RootError::Io(error) if Shortage::of(error).is_some())
    }

    /// For clients.
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

    /// Tells the operator, unless that was just done.
    pub(super) fn tell(self, error: &io::Error) {
        if self.is_due(Instant::now()) {
            tracing::warn!(limit = self.limit(), %error, "short of what requests need: clients are told to ask again");
        }
    }

    fn is_due(self, now: Instant) -> bool {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.get(&self).is_none_or(|at| now.saturating_duration_since(*at) >= TOLD_EVERY);
        if is_due {
            told.insert(self, now);
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
    fn a_shortage_is_busy_and_other_errors_are_what_they_are() {
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
    fn it_is_told_seldom() {
        let now = Instant::now() + Duration::from_secs(1_000_000);
        assert!(Shortage::SystemFiles.is_due(now) && !Shortage::SystemFiles.is_due(now + TOLD_EVERY / 2));
        assert!(Shortage::SystemFiles.is_due(now + TOLD_EVERY));
    }
}
