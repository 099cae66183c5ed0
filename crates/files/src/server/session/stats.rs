//! Statistics of a session.

use super::{Session, Ticket};
use crate::server::stats::{FollowStats, TransferStats, Wait};

impl<F: Clone> Session<F> {
    /// Open transfers.
    pub(in crate::server) fn transfers(&self) -> impl Iterator<Item = (Ticket, TransferStats)> {
        let plain = self.plain.stats().map(|stats| (self.plain.ticket(), stats));
        self.fetches.iter().map(|fetch| (fetch.ticket(), fetch.stats())).chain(plain).chain(self.pushes.stats())
    }

    /// Whether it has open fetches.
    pub(in crate::server) fn is_fetching(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// The wait of each, and the bytes that it has moved.
    pub(in crate::server) fn waits(&self) -> impl Iterator<Item = (Ticket, Option<Wait>, u64)> {
        let plain = self.plain.wait().map(|(wait, moved)| (self.plain.ticket(), Some(wait), moved));
        let fetches = self.fetches.iter().map(|fetch| (fetch.ticket(), fetch.wait(), fetch.sent_bytes()));
        fetches.chain(plain).chain(self.pushes.waits())
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
