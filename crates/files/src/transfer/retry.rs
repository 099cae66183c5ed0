//! Files that the server is too busy for: they are asked for again a little later, for as long as it may be idle.

use std::time::{Duration, Instant};

use super::command::FileKey;

/// Until they are asked for again.
const BUSY_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    files: Vec<FileKey>,
    /// When they are due.
    at: Option<Instant>,
    /// When the server first refused a file, having opened none since.
    busy_since: Option<Instant>,
    warned: bool,
}

impl RetryQueue {
    /// The server could open a file.
    pub(super) fn opened_one(&mut self) {
        self.busy_since = None;
    }

    /// When files are due.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Whether the server has refused all files for `timeout`, so that another refusal is final.
    pub(super) fn is_over(&mut self, now: Instant, timeout: Duration) -> bool {
        now.saturating_duration_since(*self.busy_since.get_or_insert(now)) >= timeout
    }

    /// Queues a file: `true` for the first one ever, which is worth a warning.
    pub(super) fn push(&mut self, file: FileKey, now: Instant) -> bool {
        self.at.get_or_insert(now + BUSY_WAIT);
        self.files.push(file);
        !std::mem::replace(&mut self.warned, true)
    }

    /// The files, once they are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Vec<FileKey>> {
        self.at.take_if(|at| *at <= now)?;
        Some(std::mem::take(&mut self.files))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_due_together_and_refusals_end() {
        let (now, timeout) = (Instant::now(), Duration::from_secs(10));
        let mut queue = RetryQueue::default();
        assert!(!queue.is_over(now, timeout));
        assert!(queue.push(FileKey(1), now), "the first one is worth a warning");
        assert!(!queue.push(FileKey(2), now + BUSY_WAIT / 2));
        assert_eq!(queue.take_due(now + BUSY_WAIT / 2), None);
        assert_eq!(queue.take_due(now + BUSY_WAIT), Some(vec![FileKey(1), FileKey(2)]));
        assert_eq!((queue.at(), queue.take_due(now + timeout)), (None, None));
        assert!(queue.is_over(now + timeout, timeout));
        queue.opened_one();
        assert!(!queue.is_over(now + timeout, timeout));
    }
}
