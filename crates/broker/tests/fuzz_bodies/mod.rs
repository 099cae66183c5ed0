//! What the fuzz targets of `fuzz/` do with their octets. `tests/corpus.rs` does the same with those that are kept, so that the
//! two can't drift apart.

/// A fuzz target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus folder.
#[allow(dead_code, reason = "each fuzz target uses its own body")]
pub const TARGETS: [Target; 1] = [("broker_journal", broker_journal)];

/// Octets as records of a journal, and as a segment of one.
pub fn broker_journal(data: &[u8]) {
    towpath_broker::journal::fuzz_segment(data);
}
