//! The header of a data message: bytes 0 to 11, then 32 for each entry, big-endian ("Data messages").

use super::{DATA_TAG, WireError};
use crate::limits::{CHUNK_BYTES_MAX, DATA_ENTRIES_MAX, FETCH_FILES_MAX, FILE_BYTES_MAX, PIECE_COST_MIN};

/// Bytes before the first entry.
pub const HEADER_BYTES: usize = 12;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;
/// Version of the header.
pub const DATA_VERSION: u8 = 1;

const FLAG_END: u8 = 1;
const FLAG_ZSTD: u8 = 2;
const FLAG_HOLE: u8 = 4;

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The bytes of the file themselves.
    Plain,
    /// One zstd frame that holds them.
    Zstd,
    /// Nothing: the bytes are zeros, a hole in a sparse file.
    Hole,
}

/// One piece of a file: what the body frame at the same place in the message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataEntry {
    /// Index of the file in its fetch.
    pub n: u32,
    /// With this piece the file is complete, and did not change meanwhile.
    pub end: bool,
    /// Encoding of the body.
    pub body: Body,
    /// Offset of the piece in the file.
    pub offset: u64,
    /// Bytes of the file that the piece covers.
    pub length: u64,
    /// Bytes of the body frame.
    pub body_length: u64,
}

impl DataEntry {
    /// Credit that this piece costs.
    pub fn cost(&self) -> u64 {
        self.body_length.max(PIECE_COST_MIN)
    }

    /// Checks one entry on its own. The receiver checks that it was requested.
    fn check(&self) -> Result<(), &'static str> {
        if self.n as usize >= FETCH_FILES_MAX {
            return Err("file index is over the files of a fetch");
        }
        if self.offset > FILE_BYTES_MAX || self.length > FILE_BYTES_MAX - self.offset {
            return Err("offset + length is over 2^63 - 1");
        }
        if self.length == 0 && !self.end {
            return Err("an empty piece that ends nothing");
        }
        match self.body {
            Body::Hole if self.body_length != 0 => Err("a hole with a body"),
            Body::Hole => Ok(()),
            _ if self.length > CHUNK_BYTES_MAX => Err("piece is over 4 MiB"),
            Body::Plain if self.body_length != self.length => Err("body length differs from length"),
            Body::Zstd if self.body_length > self.length => Err("compressed body is larger than what it holds"),
            Body::Zstd if self.body_length == 0 => Err("compressed body is empty"),
            _ => Ok(()),
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        let body = match self.body {
            Body::Plain => 0,
            Body::Zstd => FLAG_ZSTD,
            Body::Hole => FLAG_HOLE,
        };
        into.extend_from_slice(&self.n.to_be_bytes());
        into.extend_from_slice(&[body | if self.end { FLAG_END } else { 0 }, 0, 0, 0]);
        into.extend_from_slice(&self.offset.to_be_bytes());
        into.extend_from_slice(&self.length.to_be_bytes());
        into.extend_from_slice(&self.body_length.to_be_bytes());
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Result<Self, &'static str> {
        let [n0, n1, n2, n3, flags, r0, r1, r2, ..] = *bytes;
        if [r0, r1, r2] != [0, 0, 0] {
            return Err("reserved bytes are not 0");
        }
        let body = match flags & !FLAG_END {
            0 => Body::Plain,
            FLAG_ZSTD => Body::Zstd,
            FLAG_HOLE => Body::Hole,
            _ => return Err("unknown flags"),
        };
        let entry = Self {
            n: u32::from_be_bytes([n0, n1, n2, n3]),
            end: flags & FLAG_END != 0,
            body,
            offset: u64_at(bytes, 8),
            length: u64_at(bytes, 16),
            body_length: u64_at(bytes, 24),
        };
        entry.check()?;
        Ok(entry)
    }
}

/// The header of a data message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Id of the fetch that the pieces answer.
    pub id: u32,
    /// The pieces, one body frame each, 1 to [`DATA_ENTRIES_MAX`].
    pub entries: Vec<DataEntry>,
}

impl DataHeader {
    /// The header's frame. More than [`DATA_ENTRIES_MAX`] entries are the caller's mistake: the count would not fit its field
    /// and no receiver would take it, so they are refused.
    ///
    /// # Errors
    /// The number of entries, or one of them, is outside of what the protocol allows.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let count = u16::try_from(self.entries.len())
            .ok()
            .filter(|count| (1..=DATA_ENTRIES_MAX).contains(&usize::from(*count)));
        let Some(count) = count else {
            return Err(WireError::bad(format!("{} entries in one data message", self.entries.len())));
        };
        let mut frame = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        frame.extend_from_slice(DATA_TAG);
        frame.extend_from_slice(&[DATA_VERSION, 0]);
        frame.extend_from_slice(&count.to_be_bytes());
        frame.extend_from_slice(&self.id.to_be_bytes());
        for entry in &self.entries {
            entry.check().map_err(WireError::bad)?;
            entry.encode(&mut frame);
        }
        Ok(frame)
    }

    /// Decodes a header. Anything that is not exactly as specified is an error.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let Some((fixed, rest)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::bad("data header is shorter than 12 bytes"));
        };
        let [t0, t1, t2, t3, version, reserved, c0, c1, i0, i1, i2, i3] = *fixed;
        let id = u32::from_be_bytes([i0, i1, i2, i3]);
        let bad = |message: &str| Err(WireError::bad(format!("data header: {message}")).of_request(Some(id)));
        if [t0, t1, t2, t3] != *DATA_TAG {
            return Err(WireError::bad("data header does not begin with TOWD"));
        }
        if version != DATA_VERSION || reserved != 0 {
            return bad("unknown version");
        }
        let count = usize::from(u16::from_be_bytes([c0, c1]));
        if count == 0 || count > DATA_ENTRIES_MAX {
            return bad("count of entries is not in 1 to 1,024");
        }
        let (bytes, remainder) = rest.as_chunks::<ENTRY_BYTES>();
        if bytes.len() != count || !remainder.is_empty() {
            return bad("length does not fit the count of entries");
        }
        let entries = bytes.iter().map(DataEntry::decode).collect::<Result<Vec<_>, _>>();
        match entries {
            Ok(entries) => Ok(Self { id, entries }),
            Err(message) => bad(message),
        }
    }
}

/// The big-endian number at `at`; the bytes of an entry always reach that far.
fn u64_at(bytes: &[u8; ENTRY_BYTES], at: usize) -> u64 {
    bytes.iter().skip(at).take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}
