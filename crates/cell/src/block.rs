//! A message of the log, in bytes: a block, or a part of one.
// docs/formats/log.md has the table.

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use std::borrow::Cow;
use std::cell::RefCell;

/// The format that this build writes and reads.
pub const VERSION: u16 = 3;
const MAGIC: &[u8; 8] = b"TOWCELL\n";
/// Bytes before the content.
pub const HEADER_BYTES: usize = 72;
/// Largest message. NATS allows as much unless it is configured otherwise.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Smallest limit for messages with which a cell works.
pub const MESSAGE_BYTES_MIN: usize = 32 * 1024;
/// Most parts of a block.
pub const PARTS_MAX: u32 = 1024;
/// Largest record: a body of 16 MiB, the lengths of its frames, and its metadata.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024 + 8 * 1024;
/// Most bytes of a leader's endpoint.
pub const ENDPOINT_BYTES_MAX: usize = 255;

const CHECKSUM_AT: std::ops::Range<usize> = 12..16;
/// Shortest content that is worth compressing.
const COMPRESSED_FROM: usize = 256;

thread_local! {
    /// A new one for each message would cost more than compressing it.
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = RefCell::new(zstd::bulk::Compressor::new(1).ok());
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = RefCell::new(zstd::bulk::Decompressor::new().ok());
}

/// The content compressed, if that is possible and shorter.
fn compressed(content: &[u8]) -> Option<Vec<u8>> {
    let compressed = COMPRESSOR.with_borrow_mut(|compressor| compressor.as_mut()?.compress(content).ok())?;
    (compressed.len() < content.len()).then_some(compressed)
}

/// Undoes [`compressed`].
fn decompressed(content: &[u8]) -> Option<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| decompressor.as_mut()?.decompress(content, MESSAGE_BYTES_MAX).ok())
}

/// Bytes of a term's secret.
pub const SECRET_BYTES: usize = 32;

/// The secret of a term, chosen by its leader: brokers of the cell show each other by it that they belong to it. Only those who may read the log have it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct TermSecret(pub [u8; SECRET_BYTES]);

impl std::fmt::Debug for TermSecret {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TermSecret")
    }
}

/// Content of TAKE and BEAT: the leader of a term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The term's secret.
    pub secret: TermSecret,
    /// Where clients and workers reach it.
    pub endpoint: String,
}

impl Leader {
    /// As content. An endpoint is cut off at [`ENDPOINT_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.endpoint.len().min(ENDPOINT_BYTES_MAX);
        while !self.endpoint.is_char_boundary(end) {
            end -= 1;
        }
        [&self.secret.0[..], &self.endpoint.as_bytes()[..end]].concat()
    }

    /// Of the content of a TAKE or BEAT.
    pub fn decode(content: &[u8]) -> Result<Leader, BadMessage> {
        let Some((secret, endpoint)) = content.split_first_chunk() else {
            return Err(BadMessage::Damaged("a leader's secret is too short"));
        };
        if endpoint.len() > ENDPOINT_BYTES_MAX {
            return Err(BadMessage::Damaged("a leader's endpoint is too long"));
        }
        let endpoint = str::from_utf8(endpoint).map_err(|_| BadMessage::Damaged("a leader's endpoint isn't text"))?;
        Ok(Leader { secret: TermSecret(*secret), endpoint: endpoint.to_owned() })
    }
}

/// Of a broker's process, chosen by chance at its start.
pub type BrokerId = [u8; 16];

/// The content's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Records of the journal.
    Records,
    /// A broker leads from here on. The content is a [`Leader`].
    Take,
    /// The leader is there. The content is the same [`Leader`].
    Beat,
    /// The leader ends. Without content.
    Leave,
}

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The content's kind.
    pub kind: Kind,
    /// The writer's term.
    pub epoch: u64,
    /// The writer.
    pub broker: BrokerId,
    /// Number of the block in its term: 0 is the one that takes, each adds one.
    pub block: u64,
    /// Number of the part, from 1.
    pub part: u32,
    /// Parts of the block.
    pub parts: u32,
    /// Checksum of the message before it, as far as messages count; 0 for the first of a log.
    pub previous: u32,
    /// The largest id of any record before this block.
    pub last_id: u64,
}

/// Why a message can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// Written by another build.
    #[error("it is of format {0}; this build knows format {VERSION}. Use a build that knows it")]
    Version(u16),
    /// Not as it was written, or not written by a broker.
    #[error("{0}")]
    Damaged(&'static str),
}

impl Header {
    /// The message with this content, and its checksum. The caller has checked the limits.
    pub fn encode(&self, content: &[u8]) -> (Bytes, u32) {
        let is_long = self.kind == Kind::Records && content.len() >= COMPRESSED_FROM;
        let compressed = is_long.then(|| compressed(content)).flatten();
        let is_compressed = compressed.is_some();
        let content = compressed.as_deref().unwrap_or(content);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.push(match self.kind {
            Kind::Records => 1,
            Kind::Take => 2,
            Kind::Beat => 3,
            Kind::Leave => 4,
        });
        bytes.push(is_compressed.into());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.broker);
        bytes.extend_from_slice(&self.block.to_le_bytes());
        bytes.extend_from_slice(&self.part.to_le_bytes());
        bytes.extend_from_slice(&self.parts.to_le_bytes());
        bytes.extend_from_slice(&self.previous.to_le_bytes());
        bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.last_id.to_le_bytes());
        bytes.extend_from_slice(content);
        let checksum = crc32c(&bytes);
        bytes[CHECKSUM_AT].copy_from_slice(&checksum.to_le_bytes());
        (Bytes::from(bytes), checksum)
    }

    /// The header, content and checksum of a message.
    pub fn decode(message: &[u8]) -> Result<(Header, Cow<'_, [u8]>, u32), BadMessage> {
        let damaged = |what| Err(BadMessage::Damaged(what));
        if message.len() > MESSAGE_BYTES_MAX {
            return damaged("it is longer than messages of a log are");
        }
        let Some((header, content)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return damaged("it is shorter than a header");
        };
        if &header[..8] != MAGIC {
            return damaged("it doesn't begin as a block does");
        }
        // Before the checksum: another version may have it elsewhere.
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(BadMessage::Version(version));
        }
        let checksum = u32_at(header, CHECKSUM_AT.start);
        let found = crc32c_append(crc32c_append(crc32c(&header[..12]), &[0; 4]), &message[16..]);
        if found != checksum {
            return damaged("its checksum is wrong");
        }
        let kind = match (header[10], header[11]) {
            (1, 0 | 1) => Kind::Records,
            (2, 0) => Kind::Take,
            (3, 0) => Kind::Beat,
            (4, 0) => Kind::Leave,
            _ => return damaged("it is of an unknown kind"),
        };
        let is_compressed = header[11] == 1;
        let mut broker = [0; 16];
        broker.copy_from_slice(&header[24..40]);
        let (part, parts) = (u32_at(header, 48), u32_at(header, 52));
        let header = Header {
            kind,
            epoch: u64_at(header, 16),
            broker,
            block: u64_at(header, 40),
            part,
            parts,
            previous: u32_at(header, 56),
            last_id: u64_at(header, 64),
        };
        if u32_at(message, 60) as usize != content.len() {
            return damaged("its content has another length");
        }
        if part == 0 || part > parts || parts > PARTS_MAX || (parts > 1 && kind != Kind::Records) {
            return damaged("it has a part's number that can't be");
        }
        if header.epoch == 0 || (kind == Kind::Take) != (header.block == 0) {
            return damaged("it has a number that can't be");
        }
        match kind {
            Kind::Take | Kind::Beat => Leader::decode(content).map(|_| (header, Cow::Borrowed(content), checksum)),
            Kind::Leave if !content.is_empty() => damaged("it has content"),
            Kind::Records if is_compressed => match decompressed(content) {
                Some(content) => Ok((header, Cow::Owned(content), checksum)),
                None => damaged("its content isn't compressed as it says"),
            },
            _ => Ok((header, Cow::Borrowed(content), checksum)),
        }
    }

    /// The messages of a block, of at most this many bytes each, and the checksum of the last. The limit is at least [`MESSAGE_BYTES_MIN`].
    pub fn split(self, content: &[u8], message_bytes_max: usize) -> Vec<Bytes> {
        let most = message_bytes_max.clamp(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX) - HEADER_BYTES;
        let parts = content.len().div_ceil(most).max(1) as u32;
        let mut previous = self.previous;
        (1..=parts)
            .map(|part| {
                let from = (part - 1) as usize * most;
                let content = &content[from..content.len().min(from + most)];
                let (message, checksum) = Header { part, parts, previous, ..self }.encode(content);
                previous = checksum;
                message
            })
            .collect()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = Header> {
        let numbers = (1..u64::MAX, any::<BrokerId>(), 1..u64::MAX, any::<u32>(), any::<u64>());
        numbers.prop_map(|(epoch, broker, block, previous, last_id)| Header {
            kind: Kind::Records,
            epoch,
            broker,
            block,
            part: 1,
            parts: 1,
            previous,
            last_id,
        })
    }

    /// Content that can be compressed, and such that can't.
    fn content(most: usize) -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..most),
            (proptest::collection::vec(any::<u8>(), 1..50), 0..most).prop_map(|(word, length)| word
                .into_iter()
                .cycle()
                .take(length)
                .collect()),
        ]
    }

    fn header_of(kind: Kind) -> Header {
        Header { kind, epoch: 1, broker: [0; 16], block: 1, part: 1, parts: 1, previous: 0, last_id: 0 }
    }

    #[test]
    fn content_that_would_be_too_large_or_is_not_compressed_is_refused() {
        let header = header_of(Kind::Records);
        let with = |content: &[u8]| {
            let mut message = header.encode(&[]).0.to_vec();
            message[11] = 1;
            message[60..64].copy_from_slice(&(content.len() as u32).to_le_bytes());
            message.extend_from_slice(content);
            message[CHECKSUM_AT].fill(0);
            let checksum = crc32c(&message);
            message[CHECKSUM_AT].copy_from_slice(&checksum.to_le_bytes());
            message
        };
        let zeros = |length: usize| zstd::bulk::compress(&vec![0; length], 1).unwrap();
        assert_eq!(Header::decode(&with(&zeros(MESSAGE_BYTES_MAX))).unwrap().1.len(), MESSAGE_BYTES_MAX);
        for content in [zeros(MESSAGE_BYTES_MAX + 1), zeros(100 << 20), b"no frame".to_vec(), zeros(1000)[1..].to_vec()]
        {
            assert!(matches!(Header::decode(&with(&content)), Err(BadMessage::Damaged(_))));
        }
    }

    proptest! {
        #[test]
        fn block_is_the_same_after_encoding(header in header(), content in content(100_000)) {
            let messages = header.split(&content, MESSAGE_BYTES_MIN);
            let (mut joined, mut previous) = (Vec::new(), header.previous);
            for (index, message) in messages.iter().enumerate() {
                prop_assert!(message.len() <= MESSAGE_BYTES_MIN);
                let (found, part, checksum) = Header::decode(message).unwrap();
                let (part_number, parts) = (index as u32 + 1, messages.len() as u32);
                prop_assert_eq!(found, Header { part: part_number, parts, previous, ..header });
                previous = checksum;
                joined.extend_from_slice(&part);
            }
            prop_assert_eq!(joined, content);
        }

        #[test]
        fn changed_message_is_refused(header in header(), content in content(1000), at in any::<proptest::sample::Index>(), bit in 0..8u8) {
            let (message, _) = header.encode(&content);
            let mut changed = message.to_vec();
            let at = at.index(changed.len());
            changed[at] ^= 1u8 << bit;
            prop_assert!(Header::decode(&changed).is_err());
            prop_assert!(Header::decode(&message[..at]).is_err());
        }

        /// With the right magic, version and checksum, so that all fields are looked at.
        #[test]
        fn any_bytes_are_decoded_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), small in any::<bool>()) {
            let _ = Header::decode(&bytes);
            if bytes.len() >= HEADER_BYTES {
                bytes[..8].copy_from_slice(MAGIC);
                let kind = bytes[10] % 5;
                let compression = bytes[11] % 3;
                bytes[8..12].copy_from_slice(&[VERSION as u8, 0, kind, compression]);
                bytes[CHECKSUM_AT].fill(0);
                if small {
                    bytes[49..52].fill(0);
                    bytes[53..56].fill(0);
                    let length = (bytes.len() - HEADER_BYTES) as u32;
                    bytes[60..64].copy_from_slice(&length.to_le_bytes());
                }
                let checksum = crc32c(&bytes);
                bytes[CHECKSUM_AT].copy_from_slice(&checksum.to_le_bytes());
                if let Ok((header, content, _)) = Header::decode(&bytes) {
                    prop_assert!(header.part >= 1 && header.part <= header.parts);
                    // Its content may be compressed in many ways.
                    let (again, same, _) = Header::decode(&header.encode(&content).0).map(|(h, c, _)| (h, c.into_owned(), ())).unwrap();
                    prop_assert_eq!((again, &same[..]), (header, &content[..]));
                }
            }
        }
    }

    #[test]
    fn leader_is_the_same_after_encoding_and_shows_no_secret() {
        let leader = |endpoint: &str| Leader { secret: TermSecret([7; SECRET_BYTES]), endpoint: endpoint.to_owned() };
        let one = leader("tcp://a:5555");
        assert_eq!(Leader::decode(&one.encode()), Ok(one.clone()));
        assert!(!format!("{one:?}").contains('7'), "{one:?}");
        // Cut off between letters.
        let long = leader(&"ä".repeat(200));
        assert_eq!(Leader::decode(&long.encode()), Ok(leader(&"ä".repeat(127))));
        assert!(Leader::decode(&[0; SECRET_BYTES - 1]).is_err());
        assert!(Leader::decode(&[b'a'; SECRET_BYTES + ENDPOINT_BYTES_MAX + 1]).is_err());
        assert!(Leader::decode(&[0xff; SECRET_BYTES + 1]).is_err());
    }

    #[test]
    fn other_versions_are_named() {
        let header = header_of(Kind::Beat);
        let mut message = header.encode(&[0; SECRET_BYTES]).0.to_vec();
        message[8] = 9;
        assert_eq!(Header::decode(&message), Err(BadMessage::Version(9)));
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        assert!(matches!(Header::decode(&long), Err(BadMessage::Damaged(_))));
    }
}
