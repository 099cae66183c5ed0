//! Requests with large bodies that this worker has no place for. They are given back, for others to do, and not at once: a worker that
//! is done with every large request in no time would be given all of them.

use crate::body::Body;
use crate::wire::{Block, FromWorker, Status, Token};
use std::collections::VecDeque;
use std::time::Duration;

/// So long a request occupies a worker that has no place for it.
const REST: Duration = Duration::from_secs(1);

/// What is to be given back, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Unkept(VecDeque<Refused>);

#[derive(Debug)]
struct Refused {
    token: Token,
    why: String,
    /// Known at the first look at the clock.
    due: Option<Duration>,
}

impl Unkept {
    pub fn push(&mut self, token: Token, why: String) {
        self.0.push_back(Refused { token, why, due: None });
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it was among them. It needn't be given back any more.
    pub fn remove(&mut self, token: Token) -> bool {
        let before = self.0.len();
        self.0.retain(|refused| refused.token != token);
        self.0.len() < before
    }

    /// The connection is gone, and the broker has them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn deadline(&self) -> Option<Duration> {
        self.0.front().map(|refused| refused.due.unwrap_or_default())
    }

    /// Gives back what is due.
    pub fn on_time(&mut self, now: Duration, out: &mut Block) {
        for refused in &mut self.0 {
            refused.due.get_or_insert(now + REST);
        }
        while self.deadline().is_some_and(|due| due <= now) {
            let Some(Refused { token, why, .. }) = self.0.pop_front() else { return };
            give_back(token, why, out);
        }
    }

    /// Gives all of it back now.
    pub fn flush(&mut self, out: &mut Block) {
        self.0.drain(..).for_each(|refused| give_back(refused.token, refused.why, out));
    }
}

fn give_back(token: Token, why: String, out: &mut Block) {
    FromWorker::reply(out, token, Status::NO_STORAGE, None, &Body::from(why));
}
