//! Counts of messages that could not be sent.

use crate::message::FileRange;
use std::ops::AddAssign;
use towpath_zmtp::Outbox;

/// Messages that a closed socket had still to send: see [`crate::Socket::close`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsent {
    /// Messages that the kernel has not taken completely. Small ones written together count until all of them are.
    pub messages: usize,
    /// Peers that they were for.
    pub peers: usize,
}

impl Unsent {
    /// Whether everything was sent.
    pub fn is_empty(self) -> bool {
        self.messages == 0
    }

    /// The messages queued for one peer.
    pub(crate) fn in_outbox(outbox: &Outbox<FileRange>) -> Unsent {
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
