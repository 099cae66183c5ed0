//! Controlling the owner of a hub from other threads.

use crate::{PeerId, Waker};
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Controls a server with statistics `S` from any thread. Cheap to clone.
pub struct Handle<S> {
    commands: Sender<Command<S>>,
    waker: Waker,
}

/// A command for the event loop of a server.
#[derive(Debug)]
pub enum Command<S> {
    /// End, at once or after a grace time.
    Shutdown {
        /// Without the grace time.
        now: bool,
    },
    /// Send the statistics.
    Snapshot(SyncSender<S>),
    /// End a connection, and send whether there was one.
    Disconnect {
        /// The peer.
        peer: PeerId,
        /// Reason for the peer and the log.
        reason: String,
        /// Receives the answer.
        was_there: SyncSender<bool>,
    },
}

impl<S> Handle<S> {
    /// A handle, and the queue of its commands, which the event loop reads whenever the waker wakes it.
    pub fn new(waker: Waker) -> (Handle<S>, Receiver<Command<S>>) {
        let (commands, receiver) = channel();
        (Handle { commands, waker }, receiver)
    }

    /// Makes the server end. A broker takes no more requests, and lets workers finish for the grace time.
    pub fn shutdown(&self) {
        self.send(Command::Shutdown { now: false });
    }

    /// Makes the server end without a grace time.
    pub fn shutdown_now(&self) {
        self.send(Command::Shutdown { now: true });
    }

    /// Current peers, work and counters. Waits for the event loop; `None` if the server has ended.
    pub fn snapshot(&self) -> Option<S> {
        self.ask(Command::Snapshot)
    }

    /// Ends a connection; the peer is told the reason. False if there is no such peer any more.
    pub fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.ask(|was_there| Command::Disconnect { peer, reason: reason.to_owned(), was_there }).unwrap_or(false)
    }

    /// Wakes the event loop.
    pub fn wake(&self) {
        self.waker.wake();
    }

    fn send(&self, command: Command<S>) {
        // Fails if the server has ended.
        let _ = self.commands.send(command);
        self.wake();
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command<S>) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        self.send(command(sender));
        receiver.recv().ok()
    }
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Handle { commands: self.commands.clone(), waker: self.waker.clone() }
    }
}

impl<S> fmt::Debug for Handle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
