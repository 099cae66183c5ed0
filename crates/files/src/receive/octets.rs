//! Octets of a body on their way to the disk: in memory, or in a pipe of the kernel, where nobody looks at them.

use std::io;

use bytes::Bytes;
use towpath_sockets::Piped;

/// Some octets. To be used once.
#[derive(Debug)]
pub enum Octets {
    /// In memory.
    Memory(Bytes),
    /// In a pipe.
    Piped(Piped),
}

impl Octets {
    /// How many they are.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(octets) => octets.len(),
            Self::Piped(piped) => piped.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits the first `length` octets off: all, if there are fewer.
    #[must_use = "what is split off and dropped is lost"]
    pub fn split_to(&mut self, length: usize) -> Self {
        match self {
            Self::Memory(octets) => Self::Memory(octets.split_to(length.min(octets.len()))),
            Self::Piped(piped) => Self::Piped(piped.split_to(length)),
        }
    }

    /// The octets in memory.
    ///
    /// # Errors
    /// A pipe cannot be read.
    pub fn into_bytes(self) -> io::Result<Bytes> {
        match self {
            Self::Memory(octets) => Ok(octets),
            Self::Piped(piped) => piped.into_bytes(),
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
