//! The credit of one client, in bytes.

use crate::limits::CREDIT_BYTES_MAX;

/// How much may be sent. Begins at 0, grows by what the client gives, shrinks by what pieces cost.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Credit(u64);

impl Credit {
    /// More from the client, or back from what wasn't sent after all.
    pub(super) fn add(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes).min(CREDIT_BYTES_MAX);
    }

    /// Takes this much if there is as much.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        match self.0.checked_sub(bytes) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    pub(super) fn available(self) -> u64 {
        self.0
    }
}
