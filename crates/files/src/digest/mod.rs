//! Digests of files: BLAKE3, in leaves that can be checked on their own.

mod cache;
mod hash;
mod leaves;
mod small;
mod store;
mod version;

pub use cache::{DigestCache, Digested, SETTLED_AFTER_SECONDS, wall_clock};
pub use hash::{FileHasher, HashError, ReadAt};
pub use leaves::{LEAF_BYTES_MIN, LEAVES_MAX, Leaf, LeafError, LeafHasher, LeafSize, TreeHasher, merge_leaves};
pub use version::{FileKey, FileVersion, Validator};

#[cfg(test)]
pub(crate) use cache::SHIFT;
use std::fmt;
use std::str::FromStr;
pub(crate) use version::may_be_remembered;

/// The bytes of a digest, and of a leaf.
pub const DIGEST_BYTES: usize = 32;

/// The BLAKE3 digest of a whole file. Its text form, also in JSON, is 64 lower-case hex digits.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

/// A text that is not 64 lower-case hex digits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hex digits")]
pub struct DigestParseError;

impl Digest {
    /// The digest of bytes in memory.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    fn from_str(text: &str) -> Result<Digest, DigestParseError> {
        parse(text.as_bytes())
    }
}

/// The value of each hex digit, and what has high bits for all else.
const HEX: [u8; 256] = {
    let mut values = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    values
};

fn parse(digits: &[u8]) -> Result<Digest, DigestParseError> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != DIGEST_BYTES || !rest.is_empty() {
        return Err(DigestParseError);
    }
    let (mut digest, mut seen) = ([0; DIGEST_BYTES], 0);
    for (byte, digits) in digest.iter_mut().zip(pairs) {
        let [high, low] = digits.map(|digit| HEX[usize::from(digit)]);
        *byte = high << 4 | low;
        seen |= high | low;
    }
    if seen < 16 { Ok(Digest(digest)) } else { Err(DigestParseError) }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        // As bytes: that they are text need not be checked, since they are digits or refused.
        deserializer.deserialize_bytes(OfText)
    }
}

/// Parses the text where it is: a listing has one for each file.
struct OfText;

impl serde::de::Visitor<'_> for OfText {
    type Value = Digest;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{DigestParseError}")
    }

    fn visit_bytes<E: serde::de::Error>(self, digits: &[u8]) -> Result<Digest, E> {
        parse(digits).map_err(E::custom)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Digest, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips_and_is_strict() {
        let digest = Digest::of(b"towpath");
        let text = digest.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse::<Digest>(), Err(DigestParseError));
        assert_eq!(text[1..].parse::<Digest>(), Err(DigestParseError));
        assert_eq!(serde_json::from_str::<Digest>(&serde_json::to_string(&digest).unwrap()).unwrap(), digest);
        for bad in
            ["\"00\"".to_owned(), format!("\"{}g\"", &text[1..]), format!("\"{}\u{e9}\"", &text[2..]), "7".to_owned()]
        {
            assert!(serde_json::from_str::<Digest>(&bad).is_err(), "{bad}");
        }
    }
}
