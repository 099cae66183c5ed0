//! Controlling the owner of a hub from other threads.

use crate::{PeerId, Waker};
use std::convert::Infallible;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Controls a server with statistics `S` and actions `A` from any thread. Cheap to clone.
pub struct Handle<S, A = Infallible> {
    commands: Sender<Command<S, A>>,
    waker: Waker,
}

/// Longest wait for the event loop.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Entries of a page: more would hold up the event loop. With 256, and 12,000 peers, it took over 2 ms at times.
pub const PAGE_MAX: usize = 64;

/// The list that a snapshot has beside the sums: a page of entries from this number on.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    #[default]
    Sums,
    /// Peers, by slot.
    Peers(u32),
    /// Peers that are gone, the latest first.
    Gone(u32),
    /// Services of a broker.
    Services(u32),
    /// Workers of a broker.
    Workers(u32),
    /// Follows of clients of a file server, by slot.
    Followers(u32),
    /// Refusals and failures of a file server, the latest first.
    Failures(u32),
}

/// A part of a list. Entries may come and go between two pages; none that stays is missed.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Entries with their numbers, at most [`PAGE_MAX`].
    pub entries: Vec<(u32, T)>,
    /// The number of the next page's first entry, if there may be more.
    pub next: Option<u32>,
}

impl<T> Page<T> {
    /// The first of numbered entries, without those that are `None`.
    pub fn of(numbered: impl Iterator<Item = (u32, Option<T>)>) -> Page<T> {
        let (mut entries, mut next) = (Vec::new(), None);
        for (index, (number, entry)) in numbered.take(PAGE_MAX).enumerate() {
            entries.extend(entry.map(|entry| (number, entry)));
            next = number.checked_add(1).filter(|_| index + 1 == PAGE_MAX);
        }
        Page { entries, next }
    }

    /// The same page with each entry replaced by as many others.
    pub fn flat_map<U, I: IntoIterator<Item = U>>(self, mut others: impl FnMut(T) -> I) -> Page<U> {
        let entries = self.entries.into_iter();
        let entries = entries.flat_map(|(number, entry)| others(entry).into_iter().map(move |other| (number, other)));
        Page { entries: entries.collect(), next: self.next }
    }
}

impl<T> Default for Page<T> {
    fn default() -> Page<T> {
        Page { entries: Vec::new(), next: None }
    }
}

/// A command for the event loop of a server.
#[derive(Debug)]
pub enum Command<S, A = Infallible> {
    /// End, at once or after a grace time.
    Shutdown {
        /// Without the grace time.
        now: bool,
    },
    /// Send statistics.
    Snapshot {
        /// The list that they are to have.
        wanted: Wanted,
        /// Receives them.
        reply: SyncSender<S>,
    },
    /// Do what only this kind of server can.
    Action(A),
    /// End a connection, and send whether there was one.
    Disconnect {
        /// The peer.
        peer: PeerId,
        /// Reason for the peer and the log.
        reason: String,
        /// Receives the answer.
        was_there: SyncSender<bool>,
    },
    /// End the connections of peers that the gate keeps out now ([`Hub::end_blocked`](crate::Hub::end_blocked)), and send their number.
    EndBlocked(SyncSender<usize>),
    /// Check each peer's permissions again, end the connections of those whose permissions have changed, and send their number.
    Reauthorize(SyncSender<usize>),
}

impl<S, A> Handle<S, A> {
    /// A handle, and the queue of its commands, which the event loop reads whenever the waker wakes it.
    pub fn new(waker: Waker) -> (Handle<S, A>, Receiver<Command<S, A>>) {
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

    /// Sums, and a page of a list. Waits for the event loop; `None` if the server has ended, or does not answer within 5 s.
    pub fn snapshot(&self, wanted: Wanted) -> Option<S> {
        self.ask(|reply| Command::Snapshot { wanted, reply })
    }

    /// Ends a connection; the peer receives the reason. False if there is no such peer any more, or the server doesn't answer.
    pub fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.ask(|was_there| Command::Disconnect { peer, reason: reason.to_owned(), was_there }).unwrap_or(false)
    }

    /// Asks the [`Authenticator`](crate::Authenticator) again what each peer may do, and ends the connections of those for whom the answer is
    /// another one: they may connect again. Returns how many these are; `None` if the server has ended.
    pub fn judge_again(&self) -> Option<usize> {
        // Without a limit of time: it has to be done, however long the event loop takes.
        let (sender, receiver) = sync_channel(1);
        self.send(Command::Reauthorize(sender));
        receiver.recv().ok()
    }

    /// Ends the connections of peers that the gate keeps out now. Returns how many; `None` as of [`Handle::snapshot`]; then it may still be done.
    pub fn end_blocked(&self) -> Option<usize> {
        self.ask(Command::EndBlocked)
    }

    /// Has an action done, and gives its answer. `None` as of [`Handle::snapshot`]; then it may still be done.
    pub fn act<T>(&self, action: impl FnOnce(SyncSender<T>) -> A) -> Option<T> {
        self.ask(|reply| Command::Action(action(reply)))
    }

    /// Wakes the event loop.
    pub fn wake(&self) {
        self.waker.wake();
    }

    fn send(&self, command: Command<S, A>) {
        // Fails if the server has ended.
        let _ = self.commands.send(command);
        self.wake();
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command<S, A>) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        self.send(command(sender));
        receiver.recv_timeout(ANSWER_TIMEOUT).ok()
    }
}

impl<S, A> Clone for Handle<S, A> {
    fn clone(&self) -> Self {
        Handle { commands: self.commands.clone(), waker: self.waker.clone() }
    }
}

impl<S, A> fmt::Debug for Handle<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
