//! The end of a broker that is told to: no more requests are taken, what has been taken still goes to workers, and clients are sent to
//! another broker, if they have one.

use super::requests::State;
use super::settings::Millis;
use super::{Action, Core, Peer};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

pub(super) const STOPPING: &str = "the broker is stopping";

/// Why a request ends that a worker has, or had, when the broker ends.
const ENDED: &str = "the broker ended before its worker";

impl Core {
    /// Stops taking requests. What has been taken still goes to workers.
    pub fn stop(&mut self) {
        self.stopping = true;
        for (_, worker) in &self.workers {
            self.actions.push(Action::Leave { peer: worker.peer });
        }
        for (_, session) in &mut self.sessions {
            if let (None, Some(peer), false) = (session.client, session.peer, session.paused) {
                session.paused = true;
                self.actions.push(Action::Pause { peer, paused: true });
            }
        }
    }

    /// Whether no worker holds anything and nothing that waits could be given to one.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|(_, worker)| worker.held.len == 0) && self.durability.is_settled()
    }

    /// A numbered client was refused because the broker is stopping. Its other requests come to their end here, and then it has no
    /// reason to stay, and may have another broker to go to.
    pub(super) fn leave_when_done(&mut self, peer: Peer) {
        if let (true, Some(key)) = (self.stopping, self.numbered_session(peer))
            && !std::mem::replace(&mut self.sessions[key as usize].is_leaving, true)
        {
            self.leaving.push(key);
        }
    }

    /// Sends away those that were refused, and have nothing left here.
    pub(super) fn send_away(&mut self, now: Millis) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|&key| {
            let Some(session) = self.sessions.get_mut(key as usize).filter(|session| session.is_leaving) else {
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
            self.actions.push(Action::SendAway { peer, reason: STOPPING });
            false
        });
        self.leaving = leaving;
    }

    /// The broker ends now: stock clients, which can't ask again for what has no outcome, are told that it has none.
    pub fn end_stock_requests(&mut self, now: Millis) {
        let stock = self.sessions.iter().filter(|(_, session)| session.client.is_none());
        let slots: Vec<u32> = stock.flat_map(|(_, session)| session.requests.slots()).collect();
        for slot in slots {
            match self.requests.at(slot).state {
                // Its worker is given nothing else in the place of it: there is no time left for that.
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
