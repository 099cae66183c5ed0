//! Statistics of a session.

use super::{Session, Ticket};
use crate::server::stats::{FollowStats, TransferStats};

impl<F: Clone> Session<F> {
    /// Open transfers.
    pub(in crate::server) fn transfers(&self) -> impl Iterator<Item = (Ticket, TransferStats)> {
        let plain = self.plain.stats().map(|stats| (self.plain.ticket(), stats));
        self.fetches.iter().map(|fetch| (fetch.ticket(), fetch.stats())).chain(plain).chain(self.pushes.stats())
    }

    /// Positions of follows: the last change that was sent, and the last page.
    pub(in crate::server) fn follows_sent(&self) -> impl Iterator<Item = (u64, u64)> {
        self.follows.sent().chain(self.plain_follow.as_ref().map(|follow| (follow.sent().unwrap_or(0), 0)))
    }

    /// Open follows, that of the plain dialect last.
    pub(in crate::server) fn follows(&self) -> impl Iterator<Item = FollowStats> {
        self.follows.stats().chain(self.plain_follow.as_ref().map(|follow| follow.stats()))
    }

    /// Listings and requests for leaves that are open.
    pub(in crate::server) fn queries(&self) -> usize {
        self.queries.len()
    }

    /// Bytes that may be sent.
    pub(in crate::server) fn credit(&self) -> u64 {
        self.shared.credits.available()
    }
}
