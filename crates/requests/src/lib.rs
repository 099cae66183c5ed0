#![doc = include_str!("../README.md")]
// docs/protocol/requests.md specifies both dialects.
#![warn(missing_debug_implementations)]

pub mod assembler;
pub mod body;
pub mod limits;
pub mod majordomo;
pub mod message;
pub mod numbered;

pub use body::{Body, BodyReader, IncomingBody, LargeBody};

use std::borrow::Cow;

/// Milliseconds since a moment before all others.
pub type Millis = u64;

/// Whether the broker itself answers for a service: Majordomo's `mmi.*` (RFC 8), and Titanic's (RFC 9).
pub fn is_built_in(service: &[u8]) -> bool {
    service.starts_with(b"mmi.") || service.starts_with(b"titanic.")
}

/// The name of a service as text for people: one that isn't UTF-8 is escaped, so that names differ.
pub fn shown(service: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(service).map_or_else(|_| service.escape_ascii().to_string().into(), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_utf8_differ() {
        let names: [&[u8]; 3] = [b"echo", b"\xff\xfe", b"\xfe\xff"];
        assert_eq!(names.map(shown), ["echo", "\\xff\\xfe", "\\xfe\\xff"]);
    }
}
