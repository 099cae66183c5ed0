//! The credit of one client, in bytes.

use crate::limits::CREDIT_BYTES_MAX;

/// Bytes that may be sent: granted by the client, spent by pieces.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Credit(u64);

impl Credit {
    /// Adds credit from the client, or of pieces that were not sent.
    pub(super) fn add(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes).min(CREDIT_BYTES_MAX);
    }

    /// Spends credit if there is enough.
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
