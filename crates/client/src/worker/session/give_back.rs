//! Requests that a worker gives back, since it can't begin them.

use super::{Link, Session};
use towpath_requests::body::Body;
use towpath_requests::numbered::{Block, FromWorker, Status, Token};

impl Session {
    /// Gives a request back that wasn't begun. Returns whether it is still wanted. A stock broker can't be given one back: it is sent the
    /// reason as a reply. One whose connection was lost has gone to another worker already.
    pub fn give_back(&mut self, token: Token, reason: &str, out: &mut Block) -> bool {
        let Some(held) = self.held.get(&token) else { return false };
        if !held.address.is_empty() || held.has_parts {
            return self.reply(token, Status::FAILED, None, &Body::from(reason), out);
        }
        let is_orphan = held.orphan;
        if self.link == Link::Numbered && !is_orphan {
            FromWorker::give_back(out, token, reason);
        }
        if let Some(held) = self.held.remove(&token) {
            self.released(&held, out);
        }
        !is_orphan
    }
}
