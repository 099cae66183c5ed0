//! The end of a socket: what can be sent still is, and what can't is told.

use crate::hub::Hub;
use crate::unsent::Unsent;
use std::time::Duration;

/// A hub without its socket. However it ends, such as with its runtime, it gives the kernel what that takes.
pub(super) struct Last(Option<Hub>);

impl Last {
    pub(super) fn of(hub: Hub) -> Last {
        Last(Some(hub))
    }

    /// Sends for so long, on a thread that may wait.
    pub(super) fn linger(mut self, linger: Duration) {
        match self.0.take().map(|hub| hub.close(linger)) {
            Some(Ok(unsent)) => tell(unsent),
            Some(Err(error)) => tracing::error!(%error, "what waits at a socket that is closed can't be sent"),
            None => {}
        }
    }

    /// Sends what leaves at once; gives the rest.
    pub(super) fn end(&mut self) -> Unsent {
        let Some(mut hub) = self.0.take() else { return Unsent::default() };
        hub.flush();
        let unsent = hub.unsent();
        tell(unsent);
        unsent
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        self.end();
    }
}

fn tell(unsent: Unsent) {
    let Unsent { messages, peers } = unsent;
    if messages > 0 {
        tracing::warn!(messages, peers, "a socket is closed before all was sent");
    }
}
