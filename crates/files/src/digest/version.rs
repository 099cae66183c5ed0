//! Versions of a file, and the validators that distinguish them.

use super::SETTLED_AFTER_SECONDS;
use crate::root::{FileStat, Timestamp};

/// As many as a local file's device, inode and ctime take.
pub(super) const VALIDATOR_BYTES: usize = 28;

/// Opaque bytes that distinguish the versions of a file: another content has others.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Validator(pub(super) [u8; VALIDATOR_BYTES]);

impl Validator {
    /// The validator for whatever identifies a version, such as a name and its entity tag: a hash of all parts.
    pub fn of(parts: &[&[u8]]) -> Validator {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let mut bytes = [0; VALIDATOR_BYTES];
        hasher.finalize_xof().fill(&mut bytes);
        Validator(bytes)
    }
}

impl Validator {
    /// The same in the parts that a local file's has: device, inode and time.
    pub(crate) fn parts(self) -> (u64, u64, Timestamp) {
        let Validator(bytes) = self;
        let number =
            |from: usize| bytes.get(from..from + 8).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
        let nanoseconds = bytes.last_chunk().copied().unwrap_or_default();
        let changed =
            Timestamp { seconds: i64::from_be_bytes(number(16)), nanoseconds: u32::from_be_bytes(nanoseconds) };
        (u64::from_be_bytes(number(0)), u64::from_be_bytes(number(8)), changed)
    }
}

impl From<&FileStat> for Validator {
    fn from(stat: &FileStat) -> Validator {
        let mut bytes = [0; VALIDATOR_BYTES];
        let (device, rest) = bytes.split_at_mut(8);
        let (inode, rest) = rest.split_at_mut(8);
        let (seconds, nanoseconds) = rest.split_at_mut(8);
        device.copy_from_slice(&stat.device.to_be_bytes());
        inode.copy_from_slice(&stat.inode.to_be_bytes());
        seconds.copy_from_slice(&stat.changed.seconds.to_be_bytes());
        nanoseconds.copy_from_slice(&stat.changed.nanoseconds.to_be_bytes());
        Validator(bytes)
    }
}

/// Key of a cached digest. If a field differs, the content may too.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// Of its source.
    pub validator: Validator,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification.
    pub modified: Timestamp,
}

impl From<&FileStat> for FileKey {
    fn from(stat: &FileStat) -> FileKey {
        FileKey { validator: stat.into(), size: stat.size, modified: stat.modified }
    }
}

/// A version of a file, to be hashed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Key of its digest.
    pub key: FileKey,
    /// When it last changed, by a clock that ticks: a change within the same tick leaves the key as it is. `None`: no change does.
    pub changed: Option<Timestamp>,
    /// Whether it may have holes.
    pub is_sparse: bool,
}

impl From<&FileStat> for FileVersion {
    fn from(stat: &FileStat) -> FileVersion {
        FileVersion { key: stat.into(), changed: Some(stat.changed), is_sparse: stat.is_sparse() }
    }
}

/// Whether the digest of a file that was the same before and after hashing stays valid: see [`SETTLED_AFTER_SECONDS`].
pub(crate) fn may_be_remembered(version: impl Into<FileVersion>, hashing_began: Timestamp) -> bool {
    version.into().changed.is_none_or(|changed| {
        let settled = changed.seconds.saturating_add(SETTLED_AFTER_SECONDS);
        (hashing_began.seconds, hashing_began.nanoseconds) >= (settled, changed.nanoseconds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validators_differ_if_any_part_does() {
        let all = [
            Validator::of(&[b"a", b"b"]),
            Validator::of(&[b"ab", b""]),
            Validator::of(&[b"ab"]),
            Validator::of(&[b"a", b"c"]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == one), Some(at));
        }
    }
}
