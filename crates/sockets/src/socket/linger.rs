//! The end of a socket: sends what can be sent, and reports what can't.

use crate::hub::Hub;
use crate::unsent::Unsent;
use std::time::Duration;

/// A hub without its socket. However it ends, such as with its runtime, it sends what the kernel takes at once.
pub(super) struct LingerGuard(Option<Hub>);

impl LingerGuard {
    pub(super) fn new(hub: Hub) -> LingerGuard {
        LingerGuard(Some(hub))
    }

    /// Sends for at most this long, on a thread that may block.
    pub(super) fn linger(mut self, linger: Duration) {
        match self.0.take().map(|hub| hub.close(linger)) {
            Some(Ok(unsent)) => report(unsent),
            Some(Err(error)) => tracing::error!(%error, "cannot send what a closed socket has queued"),
            None => {}
        }
    }

    /// Sends what leaves at once; counts the rest.
    pub(super) fn end(&mut self) -> Unsent {
        let Some(mut hub) = self.0.take() else { return Unsent::default() };
        hub.flush();
        let unsent = hub.unsent();
        report(unsent);
        unsent
    }
}

impl Drop for LingerGuard {
    fn drop(&mut self) {
        self.end();
    }
}

fn report(unsent: Unsent) {
    let Unsent { messages, peers } = unsent;
    if messages > 0 {
        tracing::warn!(messages, peers, "a socket was closed with unsent messages");
    }
}
