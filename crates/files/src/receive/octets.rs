//! Octets of a body on their way to the disk: in memory, or in a pipe of the kernel, where nobody looks at them.

use bytes::Bytes;
use towpath_sockets::Piped;

/// Some octets.
#[derive(Debug)]
pub enum Octets {
    /// In memory.
    Memory(Bytes),
    /// In a pipe.
    Piped(Piped),
}

impl Octets {
    /// How many they are.
    pub fn count(&self) -> u64 {
        match self {
            Self::Memory(octets) => octets.len() as u64,
            Self::Piped(piped) => piped.len() as u64,
        }
    }
}

impl From<Bytes> for Octets {
    fn from(octets: Bytes) -> Self {
        Self::Memory(octets)
    }
}

impl From<Vec<u8>> for Octets {
    fn from(octets: Vec<u8>) -> Self {
        Self::Memory(octets.into())
    }
}

/// What is in a pipe can't be compared.
impl PartialEq for Octets {
    fn eq(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Memory(one), Self::Memory(other)) if one == other)
    }
}
