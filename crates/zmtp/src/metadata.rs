//! Properties that peers exchange in READY and INITIATE (RFC 23).

use crate::error::Error;
use crate::limits::METADATA_PROPERTIES_MAX;
use bytes::{BufMut, Bytes, BytesMut};

/// An ordered list of properties: a name of 1 to 255 bytes, a value of up to 2^31-1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    properties: Vec<(String, Bytes)>,
}

impl Metadata {
    /// No properties.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Appends a property. Names of applications begin with `X-` (RFC 23).
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Bytes>) -> Metadata {
        self.properties.push((name.to_owned(), value.into()));
        self
    }

    /// The first property of that name; upper and lower case are the same (RFC 23).
    pub fn find(&self, name: &str) -> Option<&Bytes> {
        self.properties.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All properties in the order of the wire.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.properties.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Appends the properties as they are on the wire. Names over 255 bytes are cut.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        for (name, value) in &self.properties {
            let name = name.as_bytes().get(..255).unwrap_or(name.as_bytes());
            out.put_u8(name.len() as u8);
            out.put_slice(name);
            out.put_u32(value.len() as u32);
            out.put_slice(value);
        }
    }

    /// Reads properties to the end of `body`, which is already bounded by the frame's limit.
    pub(crate) fn decode(command: &'static str, mut body: Bytes) -> Result<Metadata, Error> {
        let malformed = |why| Error::MalformedCommand { command, why };
        let mut properties = Vec::new();
        while !body.is_empty() {
            if properties.len() == METADATA_PROPERTIES_MAX {
                return Err(malformed("over 64 properties"));
            }
            let name_length = usize::from(body.split_to(1)[0]);
            if name_length == 0 || name_length > body.len() {
                return Err(malformed("a property's name is empty or longer than the command"));
            }
            let name = body.split_to(name_length);
            if !name.iter().all(|byte| byte.is_ascii_graphic()) {
                return Err(malformed("a property's name has bytes that are not printable"));
            }
            if body.len() < 4 {
                return Err(malformed("a property's length is cut off"));
            }
            let length = body.split_to(4);
            let value_length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
            if value_length > body.len() {
                return Err(malformed("a property's value is longer than the command"));
            }
            let value = body.split_to(value_length);
            properties.push((String::from_utf8_lossy(&name).into_owned(), value));
        }
        Ok(Metadata { properties })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_found_in_any_case() {
        let metadata = Metadata::new().with("Socket-Type", "DEALER").with("X-Tow", "1");
        let mut wire = BytesMut::new();
        metadata.encode(&mut wire);
        let back = Metadata::decode("READY", wire.freeze()).unwrap();
        assert_eq!(back, metadata);
        assert_eq!(back.find("socket-type").unwrap(), "DEALER");
        assert!(back.find("Identity").is_none());
    }

    #[test]
    fn lies_about_lengths_are_named() {
        for wire in
            [&b"\x00"[..], b"\x05ab", b"\x02ab\x00\x00", b"\x02ab\xff\xff\xff\xff", b"\x02a\x01\x00\x00\x00\x00"]
        {
            assert!(Metadata::decode("READY", Bytes::copy_from_slice(wire)).is_err(), "{wire:?}");
        }
        let many = b"\x01a\x00\x00\x00\x00".repeat(METADATA_PROPERTIES_MAX + 1);
        assert!(Metadata::decode("READY", many.into()).is_err());
    }
}
