//! The bodies of the fuzz targets in `fuzz/`. `tests/corpus.rs` runs them on the kept inputs, so that the two can't drift apart.

/// A fuzz target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus folder.
#[allow(dead_code, reason = "each fuzz target uses its own body")]
pub const TARGETS: [Target; 1] = [("journal_segment", journal_segment)];

/// Bytes as records of a journal, and as a segment of one.
pub fn journal_segment(data: &[u8]) {
    towpath_journal::fuzz_segment(data);
}
