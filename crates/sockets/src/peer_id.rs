//! Names of connected peers.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Names a peer of one [`crate::Hub`] while it is connected. Never used again for another peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl PeerId {
    /// The peer of a slot, for transports other than a hub.
    pub const fn new(slot: u32, generation: u32) -> PeerId {
        PeerId { slot, generation }
    }

    /// A small number for tables. No two peers have the same at a time, but it is used again when a peer is gone.
    pub fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn token(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.slot)
    }

    pub(crate) fn from_token(token: u64) -> PeerId {
        PeerId { slot: token as u32, generation: (token >> 32) as u32 }
    }
}

impl FromStr for PeerId {
    type Err = ParseIntError;

    /// Parses what [`fmt::Display`] writes.
    fn from_str(text: &str) -> Result<PeerId, ParseIntError> {
        let (slot, generation) = text.split_once('.').unwrap_or((text, ""));
        Ok(PeerId { slot: slot.parse()?, generation: generation.parse()? })
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}
