//! Drives a hub by a task on tokio.

use crate::error::SocketError;
use crate::hub::Hub;
use rustix::fd::{AsFd, OwnedFd};
use std::fmt;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Longest wait without a deadline.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Work that a turn leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There is more to do at once.
    Again,
    /// Nothing is to be done before this time, unless something happens.
    Wait(Option<Instant>),
    /// The hub is to be closed.
    Over,
}

/// When a hub has something to do, as tokio sees it.
pub struct HubReady {
    runtime: Handle,
    fd: AsyncFd<OwnedFd>,
}

impl HubReady {
    /// Watches a hub on the current runtime.
    ///
    /// # Errors
    /// [`SocketError::NoRuntime`] outside of a runtime, or an error of the system.
    ///
    /// # Panics
    /// If that runtime has I/O disabled.
    pub fn new(hub: &Hub) -> Result<HubReady, SocketError> {
        let runtime = Handle::try_current().map_err(|_| SocketError::NoRuntime)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(hub.as_fd(), 0)?;
        #[expect(deprecated, reason = "its successor is unsafe; an OwnedFd keeps what that one asks for")]
        let fd = AsyncFd::new(fd)?;
        Ok(HubReady { runtime, fd })
    }

    /// The runtime.
    pub fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Calls `turn`, which polls the hub without waiting, whenever the hub has something to do, its deadline is over, or `work` is notified,
    /// until it says that it is over or the runtime ends.
    pub async fn drive(self, mut turn: impl FnMut() -> Turn, work: &Notify) {
        let mut sleep = std::pin::pin!(tokio::time::sleep(WAIT_MAX));
        loop {
            let deadline = match turn() {
                Turn::Again => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Turn::Wait(deadline) => deadline.unwrap_or_else(|| Instant::now() + WAIT_MAX).into(),
                Turn::Over => return,
            };
            // Resetting the timer costs a system call to wake the runtime; a timer that fires early costs a turn.
            if deadline < sleep.deadline() || sleep.is_elapsed() {
                sleep.as_mut().reset(deadline);
            }
            tokio::select! {
                ready = self.fd.readable() => match ready {
                    // A turn takes all that there is, so an edge that comes from here on is a new one.
                    Ok(mut guard) => guard.clear_ready(),
                    Err(_) => return,
                },
                () = sleep.as_mut() => {}
                () = work.notified() => {}
            }
        }
    }
}

impl fmt::Debug for HubReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubReady").finish_non_exhaustive()
    }
}
