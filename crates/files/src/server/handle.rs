//! Controlling a server from other threads.

use super::clients::Clients;
use super::stats::Stats;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
use towpath_sockets::{Command, Hub, PeerId, Waker};

/// Peers looked at for a snapshot between two turns of the event loop.
const SNAPSHOT_SLICE: usize = 256;

/// Controls a server from any thread. After a shutdown, clients resume when the server is back.
pub type Handle = towpath_sockets::Handle<Stats>;

/// The event loop's end of handles.
pub(super) struct Control {
    handle: Handle,
    commands: Receiver<Command<Stats>>,
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
        let (handle, commands) = Handle::new(waker);
        Control { handle, commands, snapshots: VecDeque::new(), is_shutdown: false }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Carries out what handles want. Called in each turn of the event loop.
    pub(super) fn turn(&mut self, hub: &mut Hub, clients: &Clients) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Shutdown { .. } => self.is_shutdown = true,
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
            self.handle.wake();
        }
    }
}
