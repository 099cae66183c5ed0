//! Controlling a server from other threads.

use super::clients::Clients;
use super::stats::Stats;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use towpath_sockets::{Hub, PeerId, Waker};

/// Peers looked at for a snapshot between two turns of the event loop.
const SNAPSHOT_SLICE: usize = 256;

/// Controls a server from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: Sender<Command>,
    waker: Waker,
}

#[derive(Debug)]
enum Command {
    Shutdown,
    Snapshot(SyncSender<Stats>),
    Disconnect { peer: PeerId, reason: String, was_there: SyncSender<bool> },
}

impl Handle {
    /// Makes [`Server::run`](super::Server::run) close all connections and return. Clients resume when the server is back.
    pub fn shutdown(&self) {
        self.send(Command::Shutdown);
    }

    /// The server's peers, transfers and counters. Waits for the event loop; None if the server has ended.
    pub fn snapshot(&self) -> Option<Stats> {
        self.ask(Command::Snapshot)
    }

    /// Ends a connection; the client is told the reason. False if there is no such peer any more.
    pub fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.ask(|was_there| Command::Disconnect { peer, reason: reason.to_owned(), was_there }).unwrap_or(false)
    }

    fn send(&self, command: Command) {
        // Fails if the server has ended.
        let _ = self.commands.send(command);
        self.waker.wake();
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        self.send(command(sender));
        receiver.recv().ok()
    }
}

/// The event loop's end of handles.
pub(super) struct Control {
    handle: Handle,
    commands: Receiver<Command>,
    snapshots: VecDeque<Snapshot>,
    pub(super) is_shutdown: bool,
}

/// Peers that are still to be looked at.
struct Snapshot {
    peers: std::vec::IntoIter<PeerId>,
    stats: Stats,
    reply: SyncSender<Stats>,
}

impl Control {
    pub(super) fn new(waker: Waker) -> Control {
        let (sender, commands) = channel();
        let handle = Handle { commands: sender, waker };
        Control { handle, commands, snapshots: VecDeque::new(), is_shutdown: false }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Carries out what handles want. Called in each turn of the event loop.
    pub(super) fn turn(&mut self, hub: &mut Hub, clients: &Clients) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Shutdown => self.is_shutdown = true,
                Command::Snapshot(reply) => {
                    let peers = hub.peers().collect::<Vec<_>>().into_iter();
                    self.snapshots.push_back(Snapshot { peers, stats: clients.stats(), reply });
                }
                Command::Disconnect { peer, reason, was_there } => {
                    let _ = was_there.send(hub.peer(peer).is_some());
                    hub.disconnect(peer, &reason);
                }
            }
        }
        let Some(snapshot) = self.snapshots.front_mut() else { return };
        let slice = snapshot.peers.by_ref().take(SNAPSHOT_SLICE);
        snapshot.stats.peers.extend(slice.filter_map(|peer| clients.peer_stats(hub.peer(peer)?)));
        if snapshot.peers.as_slice().is_empty()
            && let Some(Snapshot { stats, reply, .. }) = self.snapshots.pop_front()
        {
            let _ = reply.send(stats);
        }
        if !self.snapshots.is_empty() {
            self.handle.waker.wake();
        }
    }
}
