//! Consequences of a restart at once: requests that would be lost, and those that would be executed again.

use super::requests::State;
use super::{Core, SessionKey};

/// Requests that a restart at once would affect. All others are in the journal, or their clients send them again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestartCost {
    /// Requests of stock clients, which don't send them again.
    pub stock: usize,
    /// Requests and outcomes that aren't in the journal, of clients without a connection: only these could send them again.
    pub away: usize,
    /// Requests that workers have, of clients that number them: other workers would execute them again.
    pub again: usize,
}

/// Sums for [`RestartCost`].
#[derive(Debug, Default)]
pub(super) struct Fragile {
    stock: usize,
    /// Those of them that workers have.
    stock_held: usize,
    away: usize,
}

impl Core {
    /// Consequences of a restart at once.
    pub fn restart_cost(&self) -> RestartCost {
        let held: usize = self.workers.iter().map(|(_, worker)| worker.held.len).sum();
        let Fragile { stock, stock_held, away } = self.fragile;
        RestartCost { stock, away, again: held - stock_held }
    }

    /// The sum that a request of a session counts in, if it isn't in the journal.
    #[inline]
    fn fragile_sum(&mut self, key: SessionKey) -> Option<&mut usize> {
        let session = &self.sessions[key];
        match (session.client, session.peer) {
            (None, _) => Some(&mut self.fragile.stock),
            (Some(_), None) => Some(&mut self.fragile.away),
            (Some(_), Some(_)) => None,
        }
    }

    /// A session has a request more that isn't in the journal.
    #[inline]
    pub(super) fn add_fragile(&mut self, key: SessionKey) {
        if let Some(sum) = self.fragile_sum(key) {
            *sum += 1;
        }
    }

    /// A request of a session that wasn't in the journal is, or has gone.
    #[inline]
    pub(super) fn remove_fragile(&mut self, key: SessionKey) {
        if let Some(sum) = self.fragile_sum(key) {
            *sum -= 1;
        }
    }

    /// A numbered client has lost its connection, or connects again.
    pub(super) fn count_away(&mut self, key: SessionKey, is_away: bool) {
        let session = &self.sessions[key];
        let requests = session.requests.len() - session.journalled;
        match is_away {
            true => self.fragile.away += requests,
            false => self.fragile.away -= requests,
        }
    }

    /// A worker has got a request, or hasn't it any more.
    #[inline]
    pub(super) fn count_held(&mut self, slot: u32, is_held: bool) {
        if self.sessions[self.requests.at(slot).session].client.is_none() {
            match is_held {
                true => self.fragile.stock_held += 1,
                false => self.fragile.stock_held -= 1,
            }
        }
    }

    /// Part of [`Core::check`].
    pub(super) fn check_fragile(&self) {
        let mut fragile = Fragile::default();
        for (_, session) in self.sessions.iter() {
            let requests = || session.requests.slots().map(|slot| self.requests.at(slot));
            assert_eq!(session.journalled, requests().filter(|request| request.journal_id != 0).count());
            let others = session.requests.len() - session.journalled;
            match (session.client, session.peer) {
                (None, _) => {
                    fragile.stock += others;
                    fragile.stock_held += requests().filter(|request| matches!(request.state, State::Held(..))).count();
                }
                (Some(_), None) => fragile.away += others,
                (Some(_), Some(_)) => {}
            }
        }
        let sums = |of: &Fragile| (of.stock, of.stock_held, of.away);
        assert_eq!(sums(&fragile), sums(&self.fragile), "what a restart would cost");
    }
}
