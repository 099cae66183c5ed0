//! Counts of violations that are tolerated.

/// Counts of what a peer sent that the specification does not define. It is skipped, since a later version may define it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProtocolDeviations {
    /// Commands with unknown names.
    pub unknown_commands: u64,
    /// Frames with flags that the specification doesn't have: reserved bits, or MORE on a command.
    pub reserved_bits: u64,
}

impl ProtocolDeviations {
    /// Whether all counts are zero.
    pub fn is_empty(self) -> bool {
        self == ProtocolDeviations::default()
    }
}
