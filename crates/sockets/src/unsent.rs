//! What could not be sent, counted.

use crate::message::FileRange;
use std::ops::AddAssign;
use towpath_zmtp::Outbox;

/// What a socket that is closed had still to send: see [`crate::Socket::close`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsent {
    /// Messages that the kernel has not taken to their end. Small ones that were being written together count until all of them are.
    pub messages: usize,
    /// Peers that they were for.
    pub peers: usize,
}

impl Unsent {
    /// Whether all was sent.
    pub fn is_empty(self) -> bool {
        self.messages == 0
    }

    /// What waits for one peer.
    pub(crate) fn of(outbox: &Outbox<FileRange>) -> Unsent {
        let messages = outbox.messages_unwritten();
        Unsent { messages, peers: usize::from(messages > 0) }
    }
}

impl AddAssign for Unsent {
    fn add_assign(&mut self, more: Unsent) {
        self.messages += more.messages;
        self.peers += more.peers;
    }
}
