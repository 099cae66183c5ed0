//! Bytes that must not end in a log.

use bytes::Bytes;
use std::fmt;
use std::ops::Deref;

/// A password from the wire, hidden in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Bytes);

impl From<Bytes> for Secret {
    fn from(bytes: Bytes) -> Secret {
        Secret(bytes)
    }
}

impl Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"...\"")
    }
}
