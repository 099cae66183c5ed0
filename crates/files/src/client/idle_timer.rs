//! Since when nothing has happened.
//!
//! Bytes of a message that isn't whole count, as over a slow link one may take minutes; but only as long as it isn't known that they
//! come to nothing. A server that says what this side doesn't know, however often, doesn't keep it waiting for ever.

use std::time::Instant;

use crate::protocol::control::Reply;

#[derive(Clone, Copy, Debug)]
pub(super) struct IdleTimer {
    since: Instant,
    /// What that was before bytes came of a message that isn't whole.
    before: Option<Instant>,
}

impl IdleTimer {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, before: None }
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Something happened.
    pub(super) fn progressed(&mut self, now: Instant) {
        *self = Self::new(self.since.max(now));
    }

    /// Bytes came of something that isn't whole.
    pub(super) fn arriving(&mut self, now: Instant) {
        self.before.get_or_insert(self.since);
        self.since = self.since.max(now);
    }

    /// It is whole, and nothing came of it.
    pub(super) fn came_to_nothing(&mut self) {
        self.since = self.before.take().unwrap_or(self.since);
    }
}

/// Whether a reply is of no use to anybody who doesn't wait for just this one.
pub(super) fn tells_nothing(reply: &Reply) -> bool {
    match reply {
        Reply::Unknown | Reply::Hello(_) | Reply::Cancelled(_) => true,
        Reply::Files(files) => files.files.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_comes_to_nothing_is_forgotten_and_no_more() {
        let at = |begin: Instant, seconds| begin + Duration::from_secs(seconds);
        let begin = Instant::now();
        let mut waiting = IdleTimer::new(begin);
        waiting.arriving(at(begin, 1));
        waiting.arriving(at(begin, 2));
        assert_eq!(waiting.since(), at(begin, 2));
        waiting.came_to_nothing();
        assert_eq!(waiting.since(), begin);
        waiting.came_to_nothing();
        assert_eq!(waiting.since(), begin);
        waiting.arriving(at(begin, 3));
        waiting.progressed(at(begin, 4));
        waiting.came_to_nothing();
        assert_eq!(waiting.since(), at(begin, 4));
    }
}
