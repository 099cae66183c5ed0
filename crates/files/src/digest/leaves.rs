//! Leaves: the BLAKE3 chaining values of equal pieces of a file, which merge to its digest.
//!
//! A file of one leaf has no chaining value apart from its digest, since BLAKE3 finalizes the root differently. Here such a file
//! has one leaf whose value *is* the digest, so that the code needs no special case; on the wire it has none (see the
//! specification, "leaves").

use super::{DIGEST_BYTES, Digest};
use blake3::hazmat::{self, HasherExt, Mode};

/// The least bytes of file that a leaf stands for (the last leaf of a file apart).
pub const LEAF_BYTES_MIN: u64 = 1 << 20;
/// The most leaves of a file: beyond as many, leaves are doubled in size.
pub const LEAVES_MAX: u64 = 1 << 20;

/// The value of one leaf: of a file with several, its chaining value; of a file with one, its digest.
pub type Leaf = [u8; DIGEST_BYTES];

/// Misuse of leaves, or impossible leaves from a peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeafError {
    /// More bytes than the leaf, or the file, has.
    #[error("more bytes than were announced")]
    TooLong,
    /// Fewer bytes than the leaf, or the file, has.
    #[error("fewer bytes than were announced")]
    TooShort,
    /// No leaf of this index in the file.
    #[error("no such leaf")]
    NoSuchLeaf,
    /// Not a size that leaves can have.
    #[error("leaf size must be a power of two of at least 1024")]
    BadSize,
    /// A file has at least one leaf.
    #[error("no leaves")]
    Empty,
}

/// Division of a file into leaves.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LeafSize {
    leaf_bytes: u64,
    file_bytes: u64,
}

impl LeafSize {
    /// The specified division of a file of this size: leaves of 1 MiB, doubled until there are no more than [`LEAVES_MAX`].
    pub fn for_file(file_bytes: u64) -> LeafSize {
        let mut leaf_bytes = LEAF_BYTES_MIN;
        while file_bytes.div_ceil(leaf_bytes) > LEAVES_MAX {
            leaf_bytes *= 2;
        }
        LeafSize { leaf_bytes, file_bytes }
    }

    /// A division announced by a peer. Fails if it is not a power of two, or if there would be too many leaves.
    pub fn announced(leaf_bytes: u64, file_bytes: u64) -> Result<LeafSize, LeafError> {
        let smallest = blake3::CHUNK_LEN as u64;
        if !leaf_bytes.is_power_of_two() || leaf_bytes < smallest || file_bytes.div_ceil(leaf_bytes) > LEAVES_MAX {
            return Err(LeafError::BadSize);
        }
        Ok(LeafSize { leaf_bytes, file_bytes })
    }

    /// Bytes of file in each leaf but the last.
    pub fn leaf_bytes(self) -> u64 {
        self.leaf_bytes
    }

    /// Bytes of the whole file.
    pub fn file_bytes(self) -> u64 {
        self.file_bytes
    }

    /// Number of leaves; an empty file has one.
    pub fn count(self) -> u64 {
        self.file_bytes.div_ceil(self.leaf_bytes).max(1)
    }

    /// Offset and length of a leaf.
    pub fn range(self, index: u64) -> Result<(u64, u64), LeafError> {
        if index >= self.count() {
            return Err(LeafError::NoSuchLeaf);
        }
        let offset = index * self.leaf_bytes;
        Ok((offset, self.leaf_bytes.min(self.file_bytes - offset)))
    }

    /// The leaf that a byte of the file is in.
    pub fn index_at(self, offset: u64) -> u64 {
        offset / self.leaf_bytes
    }
}

/// Hashes one leaf, in as many pieces as it comes in.
#[derive(Clone, Debug)]
pub struct LeafHasher {
    hasher: blake3::Hasher,
    remaining: u64,
    is_root: bool,
}

impl LeafHasher {
    /// A hasher of the leaf of this index in a file divided like this.
    pub fn new(leaves: LeafSize, index: u64) -> Result<LeafHasher, LeafError> {
        let (offset, remaining) = leaves.range(index)?;
        let mut leaf = LeafHasher::first(leaves);
        leaf.hasher.set_input_offset(offset);
        leaf.remaining = remaining;
        Ok(leaf)
    }

    /// A hasher of the first leaf.
    fn first(leaves: LeafSize) -> LeafHasher {
        LeafHasher {
            hasher: blake3::Hasher::new(),
            remaining: leaves.leaf_bytes.min(leaves.file_bytes),
            is_root: leaves.count() == 1,
        }
    }

    /// Bytes that the leaf still lacks.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Appends the next bytes of the leaf.
    pub fn update(&mut self, bytes: &[u8]) -> Result<(), LeafError> {
        self.remaining = self.remaining.checked_sub(bytes.len() as u64).ok_or(LeafError::TooLong)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// The value of the leaf, once it has all of its bytes.
    pub fn finish(self) -> Result<Leaf, LeafError> {
        if self.remaining != 0 {
            return Err(LeafError::TooShort);
        }
        // A leaf that isn't the root is never empty, which the chaining value of a subtree may not be.
        Ok(if self.is_root { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() })
    }
}

/// Hashes a whole file from its beginning to its end, and keeps the leaves.
#[derive(Clone, Debug)]
pub struct TreeHasher {
    leaves: LeafSize,
    done: Vec<Leaf>,
    current: LeafHasher,
}

impl TreeHasher {
    /// A hasher of a file divided like this.
    pub fn new(leaves: LeafSize) -> TreeHasher {
        TreeHasher { leaves, done: Vec::new(), current: LeafHasher::first(leaves) }
    }

    /// Appends the next bytes of the file.
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<(), LeafError> {
        while !bytes.is_empty() {
            if self.current.remaining() == 0 {
                let next = LeafHasher::new(self.leaves, self.done.len() as u64 + 1).map_err(|_| LeafError::TooLong)?;
                let full = std::mem::replace(&mut self.current, next);
                self.done.push(full.finish()?);
            }
            let now = usize::try_from(self.current.remaining()).unwrap_or(usize::MAX).min(bytes.len());
            let (head, tail) = bytes.split_at(now);
            self.current.update(head)?;
            bytes = tail;
        }
        Ok(())
    }

    /// Leaves that are complete.
    pub(super) fn leaves_so_far(&self) -> usize {
        self.done.len()
    }

    /// Digest and leaves, once the whole file was appended.
    pub fn finish(mut self) -> Result<(Digest, Vec<Leaf>), LeafError> {
        self.done.push(self.current.finish()?);
        if self.done.len() as u64 != self.leaves.count() {
            return Err(LeafError::TooShort);
        }
        Ok((merge_leaves(&self.done)?, self.done))
    }
}

/// Merges leaves to the digest: pairwise, the left side as large a power of two as possible.
pub fn merge_leaves(leaves: &[Leaf]) -> Result<Digest, LeafError> {
    match leaves {
        [] => Err(LeafError::Empty),
        [only] => Ok(Digest(*only)),
        _ => {
            let (left, right) = leaves.split_at(left_count(leaves.len()));
            let (left, right) = (subtree(left)?, subtree(right)?);
            Ok(Digest(*hazmat::merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()))
        }
    }
}

/// Recurses no deeper than the logarithm of [`LEAVES_MAX`].
fn subtree(leaves: &[Leaf]) -> Result<Leaf, LeafError> {
    match leaves {
        [] => Err(LeafError::Empty),
        [only] => Ok(*only),
        _ => {
            let (left, right) = leaves.split_at(left_count(leaves.len()));
            Ok(hazmat::merge_subtrees_non_root(&subtree(left)?, &subtree(right)?, Mode::Hash))
        }
    }
}

/// The largest power of two below `count`, which is 2 at least.
fn left_count(count: usize) -> usize {
    count.div_ceil(2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1]).collect()
    }

    fn by_leaves(bytes: &[u8], leaves: LeafSize) -> Digest {
        let values: Vec<Leaf> = (0..leaves.count())
            .map(|index| {
                let (offset, length) = leaves.range(index).unwrap();
                let mut hasher = LeafHasher::new(leaves, index).unwrap();
                hasher.update(&bytes[offset as usize..(offset + length) as usize]).unwrap();
                hasher.finish().unwrap()
            })
            .collect();
        merge_leaves(&values).unwrap()
    }

    #[test]
    fn leaves_merge_to_the_digest_of_the_whole() {
        for count in [0, 1, 1023, 1024, 1025, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 7, 5 * MIB] {
            let bytes = bytes(count);
            let leaves = LeafSize::for_file(count as u64);
            assert_eq!(leaves.leaf_bytes(), LEAF_BYTES_MIN);
            assert_eq!(by_leaves(&bytes, leaves), Digest::of(&bytes), "{count} bytes");
            let mut tree = TreeHasher::new(leaves);
            for piece in bytes.chunks(300_001) {
                tree.update(piece).unwrap();
            }
            let (digest, values) = tree.finish().unwrap();
            assert_eq!(digest, Digest::of(&bytes), "{count} bytes");
            assert_eq!(merge_leaves(&values).unwrap(), digest);
        }
    }

    proptest! {
        #[test]
        fn any_leaf_size_gives_the_same_digest(count in 0usize..70_000, power in 10u32..17, piece in 1usize..9000) {
            let bytes = bytes(count);
            let leaves = LeafSize::announced(1 << power, count as u64).unwrap();
            prop_assert_eq!(by_leaves(&bytes, leaves), Digest::of(&bytes));
            let mut tree = TreeHasher::new(leaves);
            for piece in bytes.chunks(piece) {
                tree.update(piece).unwrap();
            }
            prop_assert_eq!(tree.finish().unwrap().0, Digest::of(&bytes));
        }

        #[test]
        fn one_changed_byte_changes_its_leaf_alone(at in 0usize..40_000) {
            let mut bytes = bytes(40_000);
            let leaves = LeafSize::announced(4096, 40_000).unwrap();
            let tree = |bytes: &[u8]| {
                let mut tree = TreeHasher::new(leaves);
                tree.update(bytes).unwrap();
                tree.finish().unwrap().1
            };
            let before = tree(&bytes);
            bytes[at] ^= 1;
            let after = tree(&bytes);
            let changed: Vec<_> = (0..before.len()).filter(|&leaf| before[leaf] != after[leaf]).collect();
            prop_assert_eq!(changed, vec![leaves.index_at(at as u64) as usize]);
        }
    }

    #[test]
    fn leaf_sizes_follow_the_specification() {
        const TIB: u64 = 1 << 40;
        assert_eq!(LeafSize::for_file(TIB).leaf_bytes(), 1 << 20);
        assert_eq!(LeafSize::for_file(TIB).count(), LEAVES_MAX);
        assert_eq!(LeafSize::for_file(TIB + 1).leaf_bytes(), 2 << 20);
        assert!(LeafSize::for_file(u64::MAX).count() <= LEAVES_MAX);
        assert_eq!(LeafSize::for_file(0).count(), 1);
        assert_eq!(LeafSize::announced(1000, 1), Err(LeafError::BadSize));
        assert_eq!(LeafSize::announced(0, 1), Err(LeafError::BadSize));
        assert_eq!(LeafSize::announced(1024, TIB), Err(LeafError::BadSize));
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let leaves = LeafSize::announced(1024, 1500).unwrap();
        assert_eq!(LeafHasher::new(leaves, 2).unwrap_err(), LeafError::NoSuchLeaf);
        let mut leaf = LeafHasher::new(leaves, 1).unwrap();
        assert_eq!(leaf.update(&[0; 477]), Err(LeafError::TooLong));
        let mut tree = TreeHasher::new(leaves);
        tree.update(&[0; 1500]).unwrap();
        assert_eq!(tree.update(&[0]), Err(LeafError::TooLong));
        let mut tree = TreeHasher::new(leaves);
        tree.update(&[0; 1024]).unwrap();
        assert_eq!(tree.finish().unwrap_err(), LeafError::TooShort);
        assert_eq!(merge_leaves(&[]), Err(LeafError::Empty));
    }
}
