//! Drain: a broker that is drained, or is stopping, accepts no more requests, still dispatches those that it has, and sends numbered clients to
//! another broker. A drain can be ended; a stopping broker ends.

use super::requests::State;
use super::settings::Millis;
use super::{Action, Core, Peer, SessionKey};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

const STOPPING: &str = "the broker is stopping";
const DRAINING: &str = "the broker is being drained";

/// Reason for a stock client whose request was dispatched when the broker ended.
const ENDED: &str = "the broker ended before its worker replied";

/// Whether the broker is drained or stopping, and which clients leave.
#[derive(Debug, Default)]
pub(super) struct Drain {
    is_stopping: bool,
    is_draining: bool,
    /// Numbered clients that were refused because of that. Each leaves when it has nothing left here.
    leaving: Vec<SessionKey>,
}

impl Drain {
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Why no more requests are taken, if they aren't.
    #[inline]
    pub(super) fn reason(&self) -> Option<&'static str> {
        match (self.is_stopping, self.is_draining) {
            (true, _) => Some(STOPPING),
            (false, true) => Some(DRAINING),
            (false, false) => None,
        }
    }

    #[inline]
    pub fn is_any_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

impl Core {
    /// Takes no more requests, but for built-in services, or takes them again. Those already taken still go to workers.
    pub fn drain(&mut self, on: bool) {
        self.drain.is_draining = on;
        if self.drain.reason().is_none() {
            for key in std::mem::take(&mut self.drain.leaving) {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.is_leaving = false;
                }
            }
        }
    }

    /// Whether it is being drained.
    pub fn is_draining(&self) -> bool {
        self.drain.is_draining
    }

    /// Requests without an outcome, but for dead letters that wait in their queue, where they stay.
    pub fn left(&self) -> usize {
        self.requests.len() - self.replies.kept().count - self.dead_letters.at_rest()
    }

    /// Why a request for a service isn't taken, of any client.
    #[inline]
    pub(super) fn refuses_all(&mut self, service: &[u8]) -> Option<&'static str> {
        let reason = self.drain.reason()?;
        // Built-in services leave nothing to be done, and report how much is left.
        (self.drain.is_stopping || !self.answers_for(service)).then_some(reason)
    }

    /// Stops taking requests. Those already taken still go to workers.
    pub fn stop(&mut self) {
        self.drain.is_stopping = true;
        for (_, worker) in self.workers.iter() {
            self.actions.push(Action::Leave { peer: worker.peer });
        }
        for (_, session) in self.sessions.iter_mut() {
            if let (None, Some(peer), false) = (session.client, session.peer, session.paused) {
                session.paused = true;
                self.actions.push(Action::Pause { peer, paused: true });
            }
        }
    }

    /// Whether no worker has a request and every entry is on the disk.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|(_, worker)| worker.held.len == 0) && self.durability.is_settled()
    }

    /// A numbered client was refused. If nothing more is taken, the client leaves when its other requests have ended.
    pub(super) fn leave_when_done(&mut self, peer: Peer) {
        if let (Some(_), Some(key)) = (self.drain.reason(), self.numbered_session(peer))
            && !std::mem::replace(&mut self.sessions[key].is_leaving, true)
        {
            self.drain.leaving.push(key);
        }
    }

    /// Sends away the leaving clients that have nothing left here.
    pub(super) fn send_away(&mut self, now: Millis) {
        let reason = self.drain.reason().unwrap_or(STOPPING);
        let mut leaving = std::mem::take(&mut self.drain.leaving);
        leaving.retain(|&key| {
            let Some(session) = self.sessions.get_mut(key).filter(|session| session.is_leaving) else {
                return false;
            };
            let Some(peer) = session.peer else {
                session.is_leaving = false;
                return false;
            };
            if !session.requests.is_empty() {
                return true;
            }
            self.peer_gone(now, peer);
            self.actions.push(Action::CloseAfterFlush { peer, reason });
            false
        });
        self.drain.leaving = leaving;
    }

    /// The broker ends now. Ends the requests of stock clients, which can't ask again.
    pub fn end_stock_requests(&mut self, now: Millis) {
        let stock = self.sessions.iter().filter(|(_, session)| session.client.is_none());
        let slots: Vec<u32> = stock.flat_map(|(_, session)| session.requests.slots()).collect();
        for slot in slots {
            match self.requests.at(slot).state {
                // Its worker gets no other request: there is no time left for one.
                State::Held(worker, _) => {
                    self.release_from_worker(worker, slot);
                    self.requests.at_mut(slot).state = State::Detached;
                }
                _ => self.withdraw(now, slot),
            }
            let (status, reason) = match self.requests.at(slot).attempt {
                0 => (Status::UNAVAILABLE, STOPPING),
                _ => (Status::TIMED_OUT, ENDED),
            };
            self.settle(slot, status, Body::from(reason).into());
        }
    }
}
