//! Controlling a server from other threads.

use super::cause::FROZEN;
use super::clients::Clients;
use super::drain::Drain;
use super::driver::{NOT_ADMITTED, may};
use super::stats::{FollowerStats, PeerStats, Stats, TransferStats};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;
use towpath_sockets::{Authenticator, Command, Hub, PAGE_MAX, Page, PeerId, Waker, Wanted};

/// Why a client has to connect again.
const OTHER_RIGHTS: &str = "the rules have changed for this client; connect again";

/// Controls a server from any thread. After a shutdown, clients resume when the server is back.
pub type Handle = towpath_sockets::Handle<Stats, OperatorAction>;

/// Commands of an operator.
#[derive(Debug)]
#[non_exhaustive]
pub enum OperatorAction {
    /// Take no new connections, and end those whose clients have nothing to do; or take them again.
    Drain {
        /// Take no new ones.
        on: bool,
        /// Receives the answer.
        done: SyncSender<()>,
    },
    /// List the follows that lack most.
    LastFollows(
        /// Receives them, the last one first.
        SyncSender<Vec<FollowerStats>>,
    ),
}

/// Follows that are listed as the last ones.
const LAST_FOLLOWS_MAX: usize = 20;

/// The event loop's end of handles.
pub(super) struct Control {
    handle: Handle,
    commands: Receiver<Command<Stats, OperatorAction>>,
    /// Set while the server is being drained.
    pub(super) drain: Option<Drain>,
    pub(super) is_shutdown: bool,
}

impl Control {
    pub(super) fn new(waker: Waker) -> Control {
        let (handle, commands) = Handle::new(waker);
        Control { handle, commands, drain: None, is_shutdown: false }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Carries out a command of handles. Called in each turn of the event loop.
    pub(super) fn turn(&mut self, hub: &mut Hub, clients: &mut Clients, authenticator: Option<&Authenticator>) {
        if let Some(drain) = &mut self.drain {
            drain.turn(hub, clients);
        }
        let Ok(command) = self.commands.try_recv() else { return };
        match command {
            Command::Shutdown { .. } => self.is_shutdown = true,
            Command::Snapshot { wanted, reply } => {
                let _ = reply.send(Stats { is_draining: self.drain.is_some(), ..stats(hub, clients, wanted) });
            }
            Command::Action(OperatorAction::LastFollows(done)) => {
                let mut last = clients.last_follows(LAST_FOLLOWS_MAX, |peer| hub.peer(peer));
                last.iter_mut().for_each(|follower| follower.transfer = slowest(hub, clients, follower.info.id));
                let _ = done.send(last);
            }
            Command::Action(OperatorAction::Drain { on, done }) => {
                self.drain = self.drain.take().or_else(|| Some(Drain::new())).filter(|_| on);
                let _ = done.send(());
            }
            Command::Disconnect { peer, reason, was_there } => {
                let _ = was_there.send(hub.peer(peer).is_some());
                hub.disconnect(peer, &reason);
            }
            Command::EndBlocked(reply) => {
                let _ = reply.send(hub.end_blocked());
            }
            Command::Reauthorize(reply) => {
                let _ = reply.send(judge_again(hub, clients, authenticator));
            }
        }
        // One a turn: others may wait.
        self.handle.wake();
    }
}

/// Ends the connections of clients whose permissions have changed. Returns how many.
fn judge_again(hub: &mut Hub, clients: &Clients, authenticator: Option<&Authenticator>) -> usize {
    hub.end_logins();
    let infos = hub.peers().collect::<Vec<_>>().into_iter().filter_map(|peer| hub.peer(peer));
    let changed = infos.filter_map(|info| {
        // Others have no permissions yet.
        let before = clients.permissions(info.id)?;
        let now = may(authenticator, &info, false);
        (now.as_ref() != Some(before)).then_some((info, now.is_some()))
    });
    let changed: Vec<_> = changed.collect();
    for (info, is_admitted) in &changed {
        let why = if *is_admitted { OTHER_RIGHTS } else { NOT_ADMITTED };
        tracing::info!(address = %info.address, who = %info.principal, why, "disconnected");
        hub.disconnect(info.id, why);
    }
    changed.len()
}

fn stats(hub: &mut Hub, clients: &mut Clients, wanted: Wanted) -> Stats {
    let mut stats = Stats { hub: hub.stats(), ..clients.stats() };
    match wanted {
        Wanted::Peers(from) => {
            let peers: Vec<_> = hub.peers_from(from).take(PAGE_MAX).collect();
            stats.peers = Page::of(peers.into_iter().map(|id| (id.slot(), peer_stats(hub, clients, id))));
        }
        Wanted::Gone(from) => stats.gone = hub.gone_from(from),
        Wanted::Followers(from) => {
            stats.followers = clients.follower_page(from, |peer| hub.peer(peer));
            for (_, follower) in &mut stats.followers.entries {
                follower.transfer = slowest(hub, clients, follower.info.id);
            }
        }
        Wanted::Failures(from) => stats.failures = clients.failure_page(from),
        Wanted::Sums => (stats.follows, stats.transfers) = (clients.follow_sums(), clients.transfer_count()),
        Wanted::Services(_) | Wanted::Workers(_) => {}
    }
    stats
}

/// The slowest transfer of a follower.
fn slowest(hub: &mut Hub, clients: &mut Clients, peer: PeerId) -> Option<TransferStats> {
    let peers = clients.fetch_for(peer);
    let transfers = peers.filter_map(|peer| peer_stats(hub, clients, peer)).flat_map(|peer| peer.transfers);
    transfers.max_by_key(|transfer| transfer.pace.stalled)
}

/// A peer with its transfers. One that may be frozen is sent a PING: the next time its answer is there, or missing.
fn peer_stats(hub: &mut Hub, clients: &mut Clients, peer: PeerId) -> Option<PeerStats> {
    let (info, now) = (hub.peer(peer)?, Instant::now());
    let is_silent = now.saturating_duration_since(info.last_received) >= FROZEN && info.unanswered_since.is_none();
    let stats = clients.peer_stats(info, || hub.tcp_info(peer), now)?;
    if is_silent && !stats.transfers.is_empty() {
        hub.ping_soon(peer);
    }
    Some(stats)
}
