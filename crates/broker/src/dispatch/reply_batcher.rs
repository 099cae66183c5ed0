//! Batches of replies to stock clients that have many requests outstanding.
//!
//! Each of their replies is a message of its own, and comes when some worker has one. Written one by one, each costs a system call,
//! and two of the client's threads are woken for it, on processors that the workers could use. A client that waits for a hundred
//! others doesn't notice that one comes a fraction of a millisecond later. Numbered records need none of this: they are collected
//! into blocks by each turn.

use super::Dispatch;
use crate::core::Peer;
use crate::store::Store;
use crate::transport::Transport;
use std::collections::VecDeque;
use std::time::Duration;
use towpath_sockets::Message;

/// Outstanding requests of a client below which each reply is sent at once.
const OUTSTANDING_MIN: usize = 128;

/// Replies of a batch, at most.
const REPLIES_MAX: usize = 32;

/// Bytes of a reply above which it is sent at once.
const REPLY_BYTES_MAX: u64 = 4 * 1024;

/// How long a batch is collected while the broker has something else to do.
const WAIT: Duration = Duration::from_micros(400);

/// How long, in milliseconds, if it has nothing else to do: the granularity of the kernel's timer.
pub(super) const IDLE_WAIT_MS: u64 = 1;

/// Clients with a batch, in the order in which these were begun.
#[derive(Debug, Default)]
pub(super) struct ReplyBatcher(VecDeque<(Peer, Duration)>);

impl ReplyBatcher {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A client's batch has this many replies now. True if it is to be sent at once.
    fn added(&mut self, now: Duration, peer: Peer, replies: usize) -> bool {
        if replies == 1 {
            self.0.push_back((peer, now));
        }
        replies == REPLIES_MAX
    }

    /// The next client whose batch is due: collected for long enough, or sent meanwhile.
    fn next_due(&mut self, now: Duration, is_sent: impl Fn(Peer) -> bool) -> Option<Peer> {
        let &(peer, since) = self.0.front()?;
        let is_due = now.saturating_sub(since) >= WAIT || is_sent(peer);
        if is_due {
            self.0.pop_front();
        }
        is_due.then_some(peer)
    }
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Sends a stock client a reply, at once or in a batch.
    pub(super) fn send_reply(&mut self, peer: Peer, message: Message) {
        let outstanding = self.core.outstanding(peer);
        let Some(connection) = self.connections.find(peer) else { return };
        if outstanding < OUTSTANDING_MIN || message.length() > REPLY_BYTES_MAX {
            self.send_batch(peer);
            return self.send(peer, message);
        }
        connection.batch.push(message);
        let replies = connection.batch.len();
        if self.batcher.added(self.transport.now(), peer, replies) {
            self.send_batch(peer);
        }
    }

    fn send_batch(&mut self, peer: Peer) {
        let Some(connection) = self.connections.find(peer) else { return };
        for message in std::mem::take(&mut connection.batch) {
            self.send(peer, message);
        }
    }

    /// Sends the batches that are due, or all.
    pub(super) fn send_batches(&mut self, all: bool) {
        if self.batcher.is_empty() {
            return;
        }
        let now = if all { Duration::MAX } else { self.transport.now() };
        loop {
            let connections = &self.connections;
            let Some(peer) = self.batcher.next_due(now, |peer| !connections.has_batch(peer)) else { return };
            self.send_batch(peer);
        }
    }
}
