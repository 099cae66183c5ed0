//! Digests of files: BLAKE3, in leaves that can be checked on their own.

mod cache;
mod hash;
mod leaves;
mod store;

pub use cache::{DigestCache, Digested, FileKey, SETTLED_AFTER_SECONDS, wall_clock};
pub use hash::{HashError, hash_file};
pub use leaves::{LEAF_BYTES_MIN, LEAVES_MAX, Leaf, LeafError, LeafHasher, LeafSize, TreeHasher, merge_leaves};

use std::fmt;
use std::str::FromStr;

/// The octets of a digest, and of a leaf.
pub const DIGEST_OCTETS: usize = 32;

/// The BLAKE3 digest of a whole file. Its text form, also in JSON, is 64 lower-case hex digits.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; DIGEST_OCTETS]);

/// A text that is not 64 lower-case hex digits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hex digits")]
pub struct DigestParseError;

impl Digest {
    /// The digest of octets in memory.
    pub fn of(octets: &[u8]) -> Digest {
        Digest(*blake3::hash(octets).as_bytes())
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
        if text.bytes().any(|octet| octet.is_ascii_uppercase()) {
            return Err(DigestParseError);
        }
        blake3::Hash::from_hex(text).map(|hash| Digest(*hash.as_bytes())).map_err(|_| DigestParseError)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
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
        assert!(serde_json::from_str::<Digest>("\"00\"").is_err());
    }
}
