//! The credit of the server: what it may still send, what is on its way to the disk, and what can be granted again.

/// Credit, in bytes. `unspent + held + owed` is the window at any time while connected.
#[derive(Debug)]
pub(super) struct Credit {
    window: u64,
    /// Largest piece that the server may send, in bytes.
    chunk: u64,
    /// Granted, and not used by the server yet.
    unspent: u64,
    /// Used, and not written yet.
    held: u64,
    /// Written, and not granted again yet.
    owed: u64,
}

impl Credit {
    pub(super) fn new(window: u64, chunk: u64) -> Self {
        Self { window, chunk: chunk.max(1), unspent: 0, held: 0, owed: window }
    }

    /// Begins anew with a new connection: the server knows of no credit.
    pub(super) fn reset(&mut self) {
        self.unspent = 0;
        self.owed = self.window.saturating_sub(self.held);
    }

    /// The server sent a piece: `None` if it had no credit for it.
    pub(super) fn spend(&mut self, cost: u64) -> Option<()> {
        self.unspent = self.unspent.checked_sub(cost)?;
        self.held += cost;
        Some(())
    }

    /// A piece is written, or dropped.
    pub(super) fn release(&mut self, cost: u64) {
        let cost = cost.min(self.held);
        self.held -= cost;
        self.owed = (self.owed + cost).min(self.window);
    }

    /// The credit to grant, once it is worth a message. Whole chunks if the window has room for several: the server
    /// would cut a piece to an uneven rest, and files would be written in pieces that don't end on pages.
    pub(super) fn take_if_worthwhile(&mut self) -> Option<u64> {
        if self.owed < (self.window / 4).max(1) {
            return None;
        }
        let uneven = if self.window >= 4 * self.chunk { self.owed % self.chunk } else { 0 };
        let grant = self.owed - uneven;
        self.owed = uneven;
        self.unspent += grant;
        Some(grant)
    }
}
