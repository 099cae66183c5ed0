//! Time without a sign of life from a peer, after a PING or while its backlog keeps PINGs from being sent.
//!
//! Progress in delivering what this side's system still holds is a sign of life, too: on a slow link, megabytes of it may lie between our last
//! byte and the peer's answer. A driver that can see it is asked for it twice, at half of the timeout and at its end.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct LivenessTimer {
    timeout: Duration,
    since: Instant,
    /// Bytes written before the timer started. Only their delivery counts: the peer's system acknowledges later ones, such as further
    /// PINGs, even if the peer hangs.
    written_before: u64,
    /// The first check of delivered bytes is over, or was possible.
    checked: bool,
    /// Bytes delivered at the last check.
    delivered: Option<u64>,
}

impl LivenessTimer {
    pub fn new(timeout: Duration, written_before: u64, now: Instant) -> LivenessTimer {
        LivenessTimer { timeout, since: now, written_before, checked: false, delivered: None }
    }

    /// When it started, or last showed a sign of life.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Starts again at a sign of life, or because silence until then was not the peer's fault.
    pub fn restart(&mut self, at: Instant) {
        if at > self.since {
            *self = LivenessTimer::new(self.timeout, self.written_before, at);
        }
    }

    /// Whether the bytes delivered so far would help to decide.
    pub fn wants_delivered(&self, now: Instant) -> bool {
        self.is_over(now) || (!self.checked && self.waited(now) >= self.timeout / 2)
    }

    /// Takes in the bytes delivered to the peer's system in all: more than at the last check is a sign of life.
    pub fn on_delivered(&mut self, delivered: u64, now: Instant) {
        let delivered = delivered.min(self.written_before);
        match self.delivered {
            Some(before) if delivered > before => self.since = now,
            Some(_) => {}
            // This side was late: there is nothing to compare with yet.
            None if self.is_over(now) => self.since = now.checked_sub(self.timeout / 2).unwrap_or(now),
            None => {}
        }
        (self.checked, self.delivered) = (true, Some(delivered));
    }

    /// Whether the peer has to be given up. Past half of the timeout, the first check was possible.
    pub fn is_expired(&mut self, now: Instant) -> bool {
        self.checked |= self.waited(now) >= self.timeout / 2;
        self.is_over(now)
    }

    /// When to check next; `None`: beyond what a clock can represent.
    pub fn deadline(&self) -> Option<Instant> {
        self.since.checked_add(if self.checked { self.timeout } else { self.timeout / 2 })
    }

    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.waited(now) >= self.timeout
    }
}
