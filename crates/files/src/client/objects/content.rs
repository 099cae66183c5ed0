//! The content of an object while it comes: leaves that are checked, and the parts that they are gathered in.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::ObjectUpload;
use crate::digest::{Digest, Leaf, LeafHasher};
use crate::transfer::{ContentSpec, DiskError, FileKey, Part, WrittenLeaves};

/// Length of parts. All of an object are equally long, but for the last.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// Parts that an object may have: larger objects have larger parts.
const PARTS_MAX: u64 = 10_000;
/// Largest part, which is in memory as a whole.
const PART_BYTES_MAX: u64 = 1 << 30;
/// Largest leaf, of which each part has a whole number.
const LEAF_BYTES_MAX: u64 = 16 << 20;
/// Parts that are gathered behind the first one that isn't whole. What comes for others is dropped, and fetched again.
const PARTS_AHEAD: u64 = 2;
const ZEROS: &[u8] = &[0; 64 << 10];
/// The value of a leaf that isn't verified.
const UNVERIFIED: Leaf = [0; 32];

/// Bytes that were taken of those on offer, and the values of the leaves that they completed.
pub(super) type Taken = (u64, WrittenLeaves);

/// The upload of a content.
#[derive(Debug)]
pub(super) enum Upload {
    /// None: the content is put as a whole, or not at all.
    No,
    /// The store was asked for it.
    Beginning,
    Begun(Arc<dyn ObjectUpload>),
}

/// A content that is gathered.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) spec: ContentSpec,
    pub(super) key: String,
    pub(super) part_bytes: u64,
    leaves: BTreeMap<u64, OpenLeaf>,
    parts: BTreeMap<u64, Gathered>,
    /// The first part that isn't whole, or wasn't taken.
    next: u64,
    pub(super) upload: Upload,
    /// Parts that were taken, and wait for the upload to begin.
    pub(super) waiting: Vec<(u64, Bytes)>,
    /// Parts that the store has not taken yet.
    pub(super) on_their_way: usize,
    pub(super) failure: Option<DiskError>,
    /// The file that waits for it to be in place.
    pub(super) install: Option<FileKey>,
}

/// A leaf that is coming.
#[derive(Debug)]
struct OpenLeaf {
    /// `None` if nothing is verified.
    hasher: Option<LeafHasher>,
    /// Offset of its next byte in the file.
    position: u64,
    end: u64,
}

/// Part of an object in memory.
#[derive(Debug)]
struct Gathered {
    bytes: Vec<u8>,
    /// Bytes of leaves that are whole and right.
    right: u64,
}

impl Content {
    /// Fails if the object would be too large.
    pub(super) fn new(spec: ContentSpec, key: String) -> Result<Content, String> {
        let leaf = spec.leaves.leaf_bytes();
        let part_bytes = spec.version.size.div_ceil(PARTS_MAX).max(PART_BYTES).div_ceil(leaf).saturating_mul(leaf);
        if part_bytes > PART_BYTES_MAX || leaf > LEAF_BYTES_MAX {
            return Err(format!("{} bytes are more than an object can have", spec.version.size));
        }
        Ok(Content { part_bytes, ..Content::of(spec, key) })
    }

    /// One that can't be put.
    pub(super) fn failed(spec: ContentSpec, failure: DiskError) -> Content {
        Content { failure: Some(failure), ..Content::of(spec, String::new()) }
    }

    fn of(spec: ContentSpec, key: String) -> Content {
        Content {
            spec,
            key,
            part_bytes: PART_BYTES,
            leaves: BTreeMap::new(),
            parts: BTreeMap::new(),
            next: 0,
            upload: Upload::No,
            waiting: Vec::new(),
            on_their_way: 0,
            failure: None,
            install: None,
        }
    }

    /// Nothing more of it is put.
    pub(super) fn fail(&mut self, failure: DiskError) {
        self.failure.get_or_insert(failure);
        self.parts.clear();
        self.leaves.clear();
    }

    /// BLAKE3 of the content, as far as it is verified.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.spec.digest.filter(|_| self.spec.verify)
    }

    fn part_length(&self, index: u64) -> u64 {
        self.spec.version.size.saturating_sub(index * self.part_bytes).min(self.part_bytes)
    }

    /// Whether it is put as a whole.
    pub(super) fn is_one_part(&self) -> bool {
        self.spec.version.size <= self.part_bytes
    }

    /// Whether all parts were taken.
    pub(super) fn is_taken(&self) -> bool {
        self.next * self.part_bytes >= self.spec.version.size
    }

    /// Memory of parts that aren't whole, or wait for those before them.
    pub(super) fn gathered_bytes(&self) -> u64 {
        self.parts.values().map(|part| part.bytes.len() as u64).sum()
    }

    /// All of it, if it is one part. Its leaves are whole and right, or it isn't installed.
    pub(super) fn take_whole(&mut self) -> Bytes {
        self.next = 1;
        self.parts.remove(&0).map_or_else(Bytes::new, |part| part.bytes.into())
    }

    /// The next part, once it is whole and right.
    pub(super) fn take_part(&mut self) -> Option<(u64, Bytes)> {
        let index = self.next;
        let length = self.part_length(index);
        self.parts.get(&index).filter(|part| part.right == length)?;
        let part = self.parts.remove(&index)?;
        self.next += 1;
        Some((index, part.bytes.into()))
    }

    /// Takes bytes of a leaf if they are the next ones, and their part may be gathered now; `is_full`: no memory for another part.
    pub(super) fn write(&mut self, part: Part, data: &[u8], is_full: bool) -> Result<Taken, String> {
        if data.is_empty() || !self.opens(part.leaf, part.offset, is_full)? {
            return Ok((0, Vec::new()));
        }
        let leaf = self.take(part.leaf, data)?;
        Ok((data.len() as u64, leaf.into_iter().collect()))
    }

    /// Takes zeros from an offset on, as far as they may be gathered now. They may go over several leaves.
    pub(super) fn write_zeros(&mut self, offset: u64, length: u64, is_full: bool) -> Result<Taken, String> {
        let (mut at, end, mut leaves) = (offset, offset + length, Vec::new());
        while at < end {
            let leaf = self.spec.leaves.index_at(at);
            if !self.opens(leaf, at, is_full)? {
                break;
            }
            let rest = end - at;
            let rest = self.leaves.get(&leaf).map_or(rest, |open| rest.min(open.end - at));
            let zeros = ZEROS.get(..usize::try_from(rest).unwrap_or(usize::MAX)).unwrap_or(ZEROS);
            leaves.extend(self.take(leaf, zeros)?);
            at += zeros.len() as u64;
        }
        Ok((at - offset, leaves))
    }

    /// Whether the next byte of a leaf is the one at this offset, and its part may be gathered.
    fn opens(&mut self, leaf: u64, offset: u64, is_full: bool) -> Result<bool, String> {
        let index = offset / self.part_bytes;
        if index < self.next || index > self.next + PARTS_AHEAD {
            return Ok(false);
        }
        if !self.parts.contains_key(&index) {
            // Without the next one, those behind it would never leave the memory.
            let has_gap = index == self.next && !self.parts.is_empty();
            if is_full && !has_gap {
                return Ok(false);
            }
            let length = usize::try_from(self.part_length(index)).map_err(|error| error.to_string())?;
            self.parts.insert(index, Gathered { bytes: vec![0; length], right: 0 });
        }
        if !self.leaves.contains_key(&leaf) {
            let (start, length) = self.spec.leaves.range(leaf).map_err(|error| error.to_string())?;
            let hasher = self.spec.verify.then(|| LeafHasher::new(self.spec.leaves, leaf)).transpose();
            let hasher = hasher.map_err(|error| error.to_string())?;
            self.leaves.insert(leaf, OpenLeaf { hasher, position: start, end: start + length });
        }
        Ok(self.leaves.get(&leaf).is_some_and(|open| open.position == offset))
    }

    /// Adds bytes to an open leaf; its value if that completes it.
    fn take(&mut self, leaf: u64, data: &[u8]) -> Result<Option<(u64, Leaf)>, String> {
        let Some(open) = self.leaves.get_mut(&leaf) else { return Ok(None) };
        let index = open.position / self.part_bytes;
        let at = usize::try_from(open.position % self.part_bytes).unwrap_or(usize::MAX);
        let part = self.parts.get_mut(&index);
        let place = part.and_then(|part| part.bytes.get_mut(at..at.checked_add(data.len())?));
        let place = place.filter(|_| open.position + data.len() as u64 <= open.end);
        place.ok_or("more bytes than the leaf has")?.copy_from_slice(data);
        if let Some(hasher) = &mut open.hasher {
            hasher.update(data).map_err(|error| error.to_string())?;
        }
        open.position += data.len() as u64;
        if open.position < open.end {
            return Ok(None);
        }
        let Some(whole) = self.leaves.remove(&leaf) else { return Ok(None) };
        let value = match whole.hasher {
            Some(hasher) => hasher.finish().map_err(|error| error.to_string())?,
            None => UNVERIFIED,
        };
        let expected =
            self.spec.values.as_ref().map(|values| usize::try_from(leaf).ok().and_then(|leaf| values.get(leaf)));
        let is_right = expected.is_none_or(|expected| expected == Some(&value));
        let (_, length) = self.spec.leaves.range(leaf).map_err(|error| error.to_string())?;
        if let Some(part) = self.parts.get_mut(&index).filter(|_| is_right) {
            part.right += length;
        }
        Ok(Some((leaf, value)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::digest::LeafSize;
    use crate::path::RelPath;
    use crate::root::Timestamp;
    use crate::transfer::{ContentKey, Version};

    #[test]
    fn the_next_part_is_taken_without_memory_for_others() {
        let leaves = LeafSize::for_file(3 * PART_BYTES);
        let mut content = Content::new(
            ContentSpec {
                content: ContentKey(1),
                local: RelPath::new("a").unwrap(),
                version: Version { size: 3 * PART_BYTES, modified: Timestamp::default(), mode: 0, sparse: false },
                leaves,
                verify: false,
                digest: None,
                values: None,
                resume: false,
                reuse: false,
            },
            "a".to_owned(),
        )
        .unwrap();
        let mut zeros = |index: u64, is_full| {
            let taken = content.write_zeros(index * PART_BYTES, PART_BYTES, is_full).unwrap().0;
            (taken, std::iter::from_fn(|| content.take_part()).map(|(index, _)| index).collect::<Vec<_>>())
        };
        assert_eq!(zeros(1, false), (PART_BYTES, vec![]));
        assert_eq!(zeros(2, true), (0, vec![]));
        assert_eq!(zeros(0, true), (PART_BYTES, vec![0, 1]));
        assert_eq!(zeros(2, true), (0, vec![]));
        assert_eq!(zeros(2, false), (PART_BYTES, vec![2]));
    }
}
