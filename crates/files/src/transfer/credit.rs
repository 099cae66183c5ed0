//! The credit of the server: what it may still send, what is on its way to the disk, and what can be granted again.

use super::pacing::Pacer;
use super::window::Window;
use crate::protocol::control::Slow;
use std::time::{Duration, Instant};

/// Bytes on their way to the disk from which it lags: buffers for what comes are hardly twice as many.
const LAGGING_BYTES: u64 = 4 << 20;

/// Credit, in bytes. `unspent + held + ungranted` is the window at any time while connected.
#[derive(Debug)]
pub(super) struct Credit {
    window: Window,
    /// Largest piece that the server may send, in bytes.
    chunk: u64,
    /// Granted, and not used by the server yet.
    unspent: u64,
    /// Used, and not written yet.
    held: u64,
    /// Written, and not granted again yet.
    ungranted: u64,
    /// Limits the rate at which it is granted.
    pacer: Option<Pacer>,
}

impl Credit {
    pub(super) fn new(window: Window, chunk: u64, pacer: Option<Pacer>) -> Self {
        let ungranted = window.size();
        Self { window, chunk: chunk.max(1), unspent: 0, held: 0, ungranted, pacer }
    }

    /// Begins again with a new connection: the server knows of no credit.
    pub(super) fn reset(&mut self) {
        self.unspent = 0;
        self.ungranted = self.window.size().saturating_sub(self.held);
        self.window.reset();
    }

    /// Sets the time from a credit to its first byte.
    pub(super) fn round_trip(&mut self, time: Duration) {
        self.window.round_trip(time);
    }

    /// The round-trip time that was last set.
    pub(super) fn round_trip_time(&self) -> Duration {
        self.window.round_trip_time()
    }

    /// The server sent a piece: `None` if it had no credit for it.
    pub(super) fn spend(&mut self, cost: u64) -> Option<()> {
        self.unspent = self.unspent.checked_sub(cost)?;
        self.held += cost;
        Some(())
    }

    /// A piece is written, or dropped.
    pub(super) fn release(&mut self, cost: u64, now: Instant) {
        let cost = cost.min(self.held);
        self.held -= cost;
        self.ungranted += self.window.freed(cost, now);
    }

    /// The credit to grant now, once it is worth a message. Whole chunks if the window has space for several: the server
    /// would cut a piece to an uneven rest, and files would be written in pieces that don't end on pages.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        let window = self.window.size();
        let grant = match &mut self.pacer {
            Some(pacer) if self.ungranted >= self.chunk.min(window / 4) => pacer.take(self.ungranted, now),
            None if self.ungranted >= (window / 4).max(1) => {
                let uneven = if window >= 4 * self.chunk { self.ungranted % self.chunk } else { 0 };
                self.ungranted - uneven
            }
            _ => 0,
        };
        self.ungranted -= grant;
        self.unspent += grant;
        (grant > 0).then_some(grant)
    }

    /// A cause of this side for which credit is withheld: its rate, or its disk, which has most of the window.
    pub(super) fn withheld_for(&self, now: Instant) -> Option<Slow> {
        let is_lagging = (self.held > (self.window.size() / 2).min(LAGGING_BYTES)).then_some(Slow::Disk);
        is_lagging.or_else(|| self.next().filter(|at| *at > now).map(|_| Slow::Rate))
    }

    /// When there is more to grant, if that is a matter of time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pacer
            .as_ref()
            .filter(|_| self.ungranted > 0 && self.ungranted >= self.chunk.min(self.window.size() / 4))
            .map(Pacer::next)
    }
}
