//! Files for which the server is too short of something now: they are asked for again a little later, for as long as it may be idle.

use std::time::{Duration, Instant};

use super::Transfer;
use super::command::FileKey;
use super::file::{LeafQuery, Phase};
use super::outcome::TransferError;

/// Until they are asked for again.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// What waits for better times.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    files: Vec<FileKey>,
    again_at: Option<Instant>,
    /// Since when it has been refused, and no file was opened.
    since: Option<Instant>,
    is_told: bool,
}

impl RetryQueue {
    /// The server could open a file.
    pub(super) fn opened_one(&mut self) {
        self.since = None;
    }

    pub(super) fn again_at(&self) -> Option<Instant> {
        self.again_at
    }
}

impl Transfer {
    /// The server is too busy for this file now: what is here of it stays.
    pub(super) fn busy_with(&mut self, key: FileKey, error: TransferError) -> Result<(), TransferError> {
        // It came just now.
        let now = self.idle.since();
        let since = *self.retry.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.options.idle_timeout {
            return self.file_failed(key, error);
        }
        let Some(task) = self.files.get_mut(&key) else { return Ok(()) };
        if matches!(task.phase, Phase::Requested) {
            task.phase = Phase::Waiting;
        }
        if !std::mem::replace(&mut self.retry.is_told, true) {
            let warning = format!("{}: {error}; it is asked for again later", task.remote);
            self.warn(warning);
        }
        self.retry.again_at.get_or_insert(now + BUSY_WAIT);
        self.retry.files.push(key);
        Ok(())
    }

    /// Queues them once it is time to. Whether it was.
    pub(super) fn ask_later_ones(&mut self, now: Instant) -> bool {
        if self.retry.again_at.take_if(|at| *at <= now).is_none() {
            return false;
        }
        for key in std::mem::take(&mut self.retry.files) {
            match self.files.get_mut(&key).map(|task| &mut task.phase) {
                Some(Phase::Waiting) => self.waiting.push_back(key),
                Some(Phase::Leaves(query)) => {
                    *query = LeafQuery::default();
                    self.leaves_wanted.push(key);
                }
                _ => {}
            }
        }
        true
    }
}
