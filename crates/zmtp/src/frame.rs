//! Frame headers: one byte of flags, then a length of one or eight bytes (RFC 37).

/// More frames of the same message follow.
pub const MORE: u8 = 1;
/// The length takes eight bytes.
pub const LONG: u8 = 2;
/// The body is a command, not part of a message.
pub const COMMAND: u8 = 4;

/// The most bytes that a header takes.
pub const HEADER_BYTES_MAX: usize = 9;

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// More frames of the same message follow.
    pub more: bool,
    /// The body is a command.
    pub command: bool,
    /// Bytes of the body.
    pub length: u64,
    /// Reserved bits were set. They are ignored, as libzmq does, but counted.
    pub reserved_bits: bool,
}

impl Header {
    /// Decodes a header from the front of `input`, with its size; `None`: it isn't complete.
    ///
    /// A length with the top bit set is possible on the wire; the caller checks lengths against a limit.
    pub fn decode(input: &[u8]) -> Option<(Header, usize)> {
        let flags = *input.first()?;
        let (length, size) = if flags & LONG != 0 {
            let bytes: [u8; 8] = input.get(1..9)?.try_into().ok()?;
            (u64::from_be_bytes(bytes), 9)
        } else {
            (u64::from(*input.get(1)?), 2)
        };
        let header = Header {
            more: flags & MORE != 0,
            command: flags & COMMAND != 0,
            length,
            reserved_bits: flags & !(MORE | LONG | COMMAND) != 0,
        };
        Some((header, size))
    }
}

/// A frame's meaning beside its body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameFlags {
    /// More frames of the same message follow.
    pub more: bool,
    /// The body is a command.
    pub command: bool,
}

/// Appends a header. Always the short form under 256 bytes: JeroMQ rejects an empty frame in the long form.
#[inline]
pub fn encode_header(out: &mut Vec<u8>, flags: u8, length: u64) {
    match u8::try_from(length) {
        Ok(short) => out.extend_from_slice(&[flags, short]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_are_short_where_they_can_be() {
        for (length, size) in [(0, 2), (255, 2), (256, 9), (1 << 20, 9), (u64::MAX, 9)] {
            let mut wire = Vec::new();
            encode_header(&mut wire, MORE, length);
            assert_eq!(wire.len(), size);
            for cut in 0..size {
                assert_eq!(Header::decode(&wire[..cut]), None);
            }
            let expected = Header { more: true, command: false, length, reserved_bits: false };
            assert_eq!(Header::decode(&wire), Some((expected, size)));
        }
    }
}
