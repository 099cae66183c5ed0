//! How much peers are given at a time: what there is may be more than a connection should have waiting for it.
//!
//! A worker may have credit for thousands of requests, and a client may come back to thousands of outcomes. What they can't be given
//! yet waits here, where it is anyway, and not in their connections: there it would be a copy, and nobody could tell any more who
//! doesn't read from who had no time to.

use super::settings::{Millis, Settings};
use super::{Core, Role, SessionKey};

/// What a record costs beside its body.
const RECORD_BYTES: usize = 64;

/// What a peer was given since it was last known to take more.
#[derive(Debug, Default)]
pub(super) struct InFlightWindow {
    bytes: usize,
    is_full: bool,
}

impl InFlightWindow {
    /// It gets nothing more for now.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Counts a record with a body of so many bytes; tells whether it was the one that was enough.
    #[inline]
    pub fn add(&mut self, body_bytes: usize, all: &mut InFlightWindows) -> bool {
        let bytes = body_bytes + RECORD_BYTES;
        self.bytes += bytes;
        all.bytes += bytes;
        (self.bytes > all.most_of_one || all.bytes > all.most) && !std::mem::replace(&mut self.is_full, true)
    }

    /// It takes more.
    pub fn reset(&mut self) {
        *self = InFlightWindow::default();
    }
}

/// What all peers were given since it was last sent, and how much they are to be.
#[derive(Debug)]
pub(super) struct InFlightWindows {
    bytes: usize,
    most: usize,
    most_of_one: usize,
}

impl InFlightWindows {
    /// A quarter of all memory for all, but at least as much as for one.
    pub fn new(settings: &Settings) -> InFlightWindows {
        let most_of_one = settings.window_bytes_max;
        InFlightWindows { bytes: 0, most: most_of_one.max(settings.bytes_max / 4), most_of_one }
    }
}

impl Core {
    /// So many bytes are as much as one peer is to be given at a time: what a connection takes. It is less where much waits for all.
    pub fn set_window_bytes_max(&mut self, bytes: usize) {
        self.windows.most_of_one = bytes.min(self.settings.window_bytes_max);
    }

    /// What has been given so far is sent, or [`Core::peer_blocked`] was called. Those that had enough for one time get more, unless
    /// they are blocked. Tells whether that was so for any: then there is more to do and to send.
    pub fn flushed(&mut self, now: Millis) -> bool {
        let mut any = false;
        self.windows.bytes = 0;
        for peer in std::mem::take(&mut self.full) {
            match self.role(peer) {
                Role::Client(key) if !self.sessions[key as usize].blocked => self.open_client_window(key),
                Role::Worker(key) if !self.workers[key as usize].blocked => self.open_worker_window(now, key),
                _ => continue,
            }
            any = true;
        }
        any
    }

    /// Tells a numbered client an outcome, if it is there, as soon as it takes it.
    #[inline]
    pub(super) fn send_outcome(&mut self, slot: u32) {
        let request = self.requests.at(slot);
        let session = &mut self.sessions[request.session as usize];
        let Some(peer) = session.peer else { return };
        if session.window.is_full() {
            // Once is enough, however often it asks.
            if !request.outcome_pending {
                self.requests.push_back(&mut session.pending_outcomes, slot);
                self.requests.at_mut(slot).outcome_pending = true;
            }
            return;
        }
        if session.window.add(request.body.memory_bytes(), &mut self.windows) {
            self.full.push(peer);
        }
        self.queue_reply(peer, slot);
    }

    /// A client takes more outcomes.
    pub(super) fn open_client_window(&mut self, key: SessionKey) {
        self.sessions[key as usize].window.reset();
        while !self.sessions[key as usize].window.is_full()
            && let Some(slot) = self.sessions[key as usize].pending_outcomes.first()
        {
            self.clear_pending_outcome(key, slot);
            self.send_outcome(slot);
        }
    }

    /// A client's connection is gone: on the next one it asks again for what it doesn't have.
    pub(super) fn forget_pending_outcomes(&mut self, key: SessionKey) {
        while let Some(slot) = self.sessions[key as usize].pending_outcomes.first() {
            self.clear_pending_outcome(key, slot);
        }
        self.sessions[key as usize].window.reset();
    }

    /// Takes a request out of those whose outcome waits to be told, if it is there.
    #[inline]
    pub(super) fn clear_pending_outcome(&mut self, key: SessionKey, slot: u32) {
        if std::mem::take(&mut self.requests.at_mut(slot).outcome_pending) {
            self.requests.unlink(&mut self.sessions[key as usize].pending_outcomes, slot);
        }
    }

    /// Panics if a list isn't what it should be: for [`Core::check`].
    pub(super) fn check_windows(&self) {
        let listed: usize = self.sessions.iter().map(|(_, session)| session.pending_outcomes.len).sum();
        assert_eq!(listed, self.requests.iter().filter(|(_, request)| request.outcome_pending).count());
        for (_, session) in &self.sessions {
            assert!(session.pending_outcomes.len == 0 || (session.window.is_full() && session.peer.is_some()));
        }
    }
}
