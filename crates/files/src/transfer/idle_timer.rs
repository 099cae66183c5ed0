//! The time since which nothing has happened.
//!
//! Bytes of an incomplete message count, as one may take minutes over a slow link, but only until the message turns
//! out to be of no use: a server that says what this side doesn't know, however often, isn't waited for without end.

use std::time::Instant;

use crate::protocol::control::Reply;

/// Measures how long nothing has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleTimer {
    since: Instant,
    /// The time before bytes of an incomplete message arrived.
    before: Option<Instant>,
}

impl IdleTimer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, before: None }
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Notes progress.
    pub(crate) fn progressed(&mut self, now: Instant) {
        *self = Self::new(self.since.max(now));
    }

    /// Bytes of an incomplete message arrived.
    pub(crate) fn arriving(&mut self, now: Instant) {
        self.before.get_or_insert(self.since);
        self.since = self.since.max(now);
    }

    /// The message is complete, and of no use: its bytes don't count.
    pub(crate) fn was_no_progress(&mut self) {
        self.since = self.before.take().unwrap_or(self.since);
    }
}

/// Whether a reply is no progress unless the client waits for just this one.
pub(crate) fn is_no_progress(reply: &Reply) -> bool {
    match reply {
        Reply::Unknown | Reply::Hello(_) | Reply::Cancelled(_) | Reply::Slow(_) => true,
        Reply::Files(files) => files.files.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_bytes_of_useless_messages_are_forgotten() {
        let at = |begin: Instant, seconds| begin + Duration::from_secs(seconds);
        let begin = Instant::now();
        let mut idle = IdleTimer::new(begin);
        idle.arriving(at(begin, 1));
        idle.arriving(at(begin, 2));
        assert_eq!(idle.since(), at(begin, 2));
        idle.was_no_progress();
        assert_eq!(idle.since(), begin);
        idle.was_no_progress();
        assert_eq!(idle.since(), begin);
        idle.arriving(at(begin, 3));
        idle.progressed(at(begin, 4));
        idle.was_no_progress();
        assert_eq!(idle.since(), at(begin, 4));
    }
}
