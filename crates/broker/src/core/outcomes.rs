//! Outcomes that are kept, in number and size.

/// Cost of an outcome until it is confirmed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OutcomeSize {
    /// Bytes of memory, with what its request costs.
    pub bytes: usize,
    /// Bytes that aren't in memory.
    pub large_bytes: u64,
}

/// Outcomes that are kept, and what they take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    pub count: usize,
    pub bytes: usize,
    /// Of those that aren't in memory: their number, and their bytes.
    pub files: u64,
    pub large_bytes: u64,
}

impl Outcomes {
    #[inline]
    pub fn add(&mut self, size: OutcomeSize) {
        self.count += 1;
        self.bytes += size.bytes;
        self.files += u64::from(size.large_bytes > 0);
        self.large_bytes += size.large_bytes;
    }

    pub fn join(&mut self, others: Outcomes) {
        self.count += others.count;
        self.bytes += others.bytes;
        self.files += others.files;
        self.large_bytes += others.large_bytes;
    }

    pub fn take(&mut self, others: Outcomes) {
        self.count -= others.count;
        self.bytes -= others.bytes;
        self.files -= others.files;
        self.large_bytes -= others.large_bytes;
    }

    #[inline]
    pub fn remove(&mut self, size: OutcomeSize) {
        self.count -= 1;
        self.bytes -= size.bytes;
        self.files -= u64::from(size.large_bytes > 0);
        self.large_bytes -= size.large_bytes;
    }
}
