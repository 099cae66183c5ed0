//! Drain: a server that is drained takes no new connections, and ends those whose clients have nothing to do. Transfers that run finish.

use super::clients::Clients;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use towpath_sockets::{Hub, PeerId};

/// Why a connection is refused, or ended.
pub(super) const DRAINING: &str = "the server is being drained; try again later";

/// Between two looks at the clients. One that has nothing to do at two of them, and has sent nothing meanwhile, isn't between two requests of
/// one transfer.
const PAUSE: Duration = Duration::from_secs(1);

/// A drain that goes on.
#[derive(Debug)]
pub(super) struct Drain {
    looked_at: Instant,
    /// Clients that had nothing to do, and the messages that they had sent.
    idle: BTreeMap<PeerId, u64>,
}

impl Drain {
    pub fn new() -> Drain {
        Drain { looked_at: Instant::now(), idle: BTreeMap::new() }
    }

    /// When the next look is due.
    pub fn wait(&self) -> Duration {
        PAUSE.saturating_sub(self.looked_at.elapsed())
    }

    /// Ends the connections of those that have nothing to do. Called in each turn of the event loop.
    pub fn turn(&mut self, hub: &mut Hub, clients: &Clients) {
        if !self.wait().is_zero() {
            return;
        }
        let has_nothing = |peer: &PeerId| hub.queued(*peer).messages == 0 && !clients.is_busy(*peer);
        let idle = hub.peers().filter(has_nothing).filter_map(|peer| Some((peer, hub.peer(peer)?.messages_in)));
        let idle: BTreeMap<PeerId, u64> = idle.collect();
        for (peer, _) in idle.iter().filter(|(peer, sent)| self.idle.get(*peer) == Some(*sent)) {
            hub.disconnect(*peer, DRAINING);
        }
        *self = Drain { looked_at: Instant::now(), idle };
    }
}
