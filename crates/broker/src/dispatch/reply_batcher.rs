//! Replies to stock clients that have much outstanding go out several at a time.
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

/// A client with fewer requests under way gets each reply at once.
const OUTSTANDING_MIN: usize = 128;

/// So many replies go out together, at most.
const REPLIES_MAX: usize = 32;

/// A larger reply isn't worth waiting for others.
const REPLY_BYTES_MAX: u64 = 4 * 1024;

/// A reply waits for others so long, if the broker has something else to do in between.
const WAIT: Duration = Duration::from_micros(400);

/// And so long if it has nothing else to do: what the kernel's clock for such waits can tell apart.
pub(super) const IDLE_WAIT_MS: u64 = 1;

/// The clients for whom replies are being gathered, the first one longest.
#[derive(Debug, Default)]
pub(super) struct ReplyBatcher(VecDeque<(Peer, Duration)>);

impl ReplyBatcher {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Sends a stock client a reply, soon.
    pub(super) fn send_reply(&mut self, peer: Peer, message: Message) {
        let outstanding = self.core.outstanding(peer);
        let Some(connection) = self.connections.find(peer) else { return };
        if outstanding < OUTSTANDING_MIN || message.length() > REPLY_BYTES_MAX {
            self.release(peer);
            return self.send(peer, message);
        }
        connection.gathered.push(message);
        match connection.gathered.len() {
            1 => self.batcher.0.push_back((peer, self.transport.now())),
            REPLIES_MAX => self.release(peer),
            _ => {}
        }
    }

    /// Sends what was gathered for a client.
    fn release(&mut self, peer: Peer) {
        let Some(connection) = self.connections.find(peer) else { return };
        for message in std::mem::take(&mut connection.gathered) {
            self.send(peer, message);
        }
    }

    /// Sends what was gathered long enough, or all of it.
    pub(super) fn release_gathered(&mut self, all: bool) {
        if self.batcher.is_empty() {
            return;
        }
        let now = self.transport.now();
        while let Some(&(peer, since)) = self.batcher.0.front() {
            let is_there = self.connections.find(peer).is_some_and(|connection| !connection.gathered.is_empty());
            if is_there && !all && now.saturating_sub(since) < WAIT {
                break;
            }
            self.batcher.0.pop_front();
            self.release(peer);
        }
    }
}
