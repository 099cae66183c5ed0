//! In-flight windows: how many bytes a peer is sent before it has taken some.
//!
//! A worker may have credit for thousands of requests, and a client may reconnect to thousands of outcomes. Beyond the window they stay
//! here, where they are anyway: queued in the connection they would be a copy, and a slow consumer would look like one that had no time
//! to read yet.

use super::roles::Role;
use super::settings::{Millis, Settings};
use super::{Core, Peer, SessionKey};

/// Bytes that a record counts beside its body.
const RECORD_BYTES: usize = 64;

/// Bytes sent to one peer since its window last opened.
#[derive(Debug, Default)]
pub(super) struct InFlightWindow {
    bytes: usize,
    is_full: bool,
}

impl InFlightWindow {
    /// Whether the peer is sent nothing more for now.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Opens the window: the peer takes more.
    pub fn reset(&mut self) {
        *self = InFlightWindow::default();
    }
}

/// The limits of the windows, the bytes sent to all peers since the last flush, and the peers whose windows are full.
#[derive(Debug)]
pub(super) struct InFlightWindows {
    bytes: usize,
    bytes_max: usize,
    peer_bytes_max: usize,
    full: Vec<Peer>,
}

impl InFlightWindows {
    /// All peers together get a quarter of the memory, but at least one window.
    pub fn new(settings: &Settings) -> InFlightWindows {
        let peer_bytes_max = settings.window_bytes_max;
        let bytes_max = peer_bytes_max.max(settings.bytes_max / 4);
        InFlightWindows { bytes: 0, bytes_max, peer_bytes_max, full: Vec::new() }
    }

    /// Counts a record for `peer`. The one that fills the window is sent too.
    #[inline]
    pub fn add(&mut self, peer: Peer, window: &mut InFlightWindow, body_bytes: usize) {
        let bytes = body_bytes + RECORD_BYTES;
        window.bytes += bytes;
        self.bytes += bytes;
        if (window.bytes > self.peer_bytes_max || self.bytes > self.bytes_max)
            && !std::mem::replace(&mut window.is_full, true)
        {
            self.full.push(peer);
        }
    }

    /// Peers whose windows may be opened now that everything is sent. Some may have gone since.
    fn take_full(&mut self) -> Vec<Peer> {
        self.bytes = 0;
        std::mem::take(&mut self.full)
    }

    /// Whether no window waits for a flush.
    #[cfg(test)]
    pub fn none_is_full(&self) -> bool {
        self.full.is_empty()
    }
}

impl Core {
    /// Sets the window of a peer: as much as a connection queues. It shrinks while much is queued for all.
    pub fn set_window_bytes_max(&mut self, bytes: usize) {
        self.windows.peer_bytes_max = bytes.min(self.settings.window_bytes_max);
    }

    /// Everything so far has been sent, or [`Core::peer_blocked`] was called. Opens full windows of peers that aren't blocked. Returns
    /// whether there were any: then there are new actions.
    pub fn flushed(&mut self, now: Millis) -> bool {
        let mut any = false;
        for peer in self.windows.take_full() {
            match self.roles.get(peer) {
                Role::Client(key) if !self.sessions[key].blocked => self.open_client_window(key),
                Role::Worker(key) if !self.workers[key].blocked => self.open_worker_window(now, key),
                _ => continue,
            }
            any = true;
        }
        any
    }

    /// Sends a numbered client an outcome, or notes it as pending until the window opens. Does nothing if the client is absent.
    #[inline]
    pub(super) fn send_outcome(&mut self, slot: u32) {
        let request = self.requests.at(slot);
        let session = &mut self.sessions[request.session];
        let Some(peer) = session.peer else { return };
        if session.window.is_full() {
            // Listed once, however often the client asks.
            if !request.outcome_pending {
                self.requests.push_back(&mut session.pending_outcomes, slot);
                self.requests.at_mut(slot).outcome_pending = true;
            }
            return;
        }
        self.windows.add(peer, &mut session.window, request.body.memory_bytes());
        self.queue_reply(peer, slot);
    }

    /// Opens a client's window and sends pending outcomes until it is full.
    pub(super) fn open_client_window(&mut self, key: SessionKey) {
        self.sessions[key].window.reset();
        while !self.sessions[key].window.is_full()
            && let Some(slot) = self.sessions[key].pending_outcomes.first()
        {
            self.clear_pending_outcome(key, slot);
            self.send_outcome(slot);
        }
    }

    /// Forgets which outcomes are pending: the connection is gone, and on the next one the client asks again.
    pub(super) fn forget_pending_outcomes(&mut self, key: SessionKey) {
        while let Some(slot) = self.sessions[key].pending_outcomes.first() {
            self.clear_pending_outcome(key, slot);
        }
        self.sessions[key].window.reset();
    }

    /// Removes a request from the pending outcomes, if it is one of them.
    #[inline]
    pub(super) fn clear_pending_outcome(&mut self, key: SessionKey, slot: u32) {
        if std::mem::take(&mut self.requests.at_mut(slot).outcome_pending) {
            self.requests.unlink(&mut self.sessions[key].pending_outcomes, slot);
        }
    }

    /// Part of [`Core::check`].
    pub(super) fn check_windows(&self) {
        let listed: usize = self.sessions.iter().map(|(_, session)| session.pending_outcomes.len).sum();
        assert_eq!(listed, self.requests.iter().filter(|(_, request)| request.outcome_pending).count());
        for (_, session) in self.sessions.iter() {
            assert!(session.pending_outcomes.len == 0 || (session.window.is_full() && session.peer.is_some()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_fills_by_its_own_bytes_or_those_of_all() {
        let settings = Settings { window_bytes_max: 1_000, bytes_max: 8_000, ..Settings::default() };
        let mut windows = InFlightWindows::new(&settings);
        let (mut one, mut other) = (InFlightWindow::default(), InFlightWindow::default());
        windows.add(1, &mut one, 900);
        assert!(!one.is_full());
        // The one that fills it is sent too; the peer is listed once.
        windows.add(1, &mut one, 900);
        windows.add(1, &mut one, 0);
        assert!(one.is_full());
        windows.add(2, &mut other, 0);
        assert!(other.is_full(), "a quarter of the memory is in flight");
        assert_eq!(windows.take_full(), [1, 2]);
        other.reset();
        windows.add(2, &mut other, 900);
        assert!(!other.is_full() && windows.none_is_full());
    }
}
