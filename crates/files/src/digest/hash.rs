//! Hashing a file that may change meanwhile.

use super::{Digested, FileKey, FileVersion, Leaf, LeafSize, TreeHasher, may_be_remembered, wall_clock};
use crate::root::{FileStat, RootError, Timestamp};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use towpath_buffers::PageBuffer;

/// Bytes per read: several of BLAKE3's widest strides, well within the processor's cache.
const READ_BYTES: usize = 256 << 10;

/// Why a file has no digest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The file changed before or while it was read.
    #[error("the file changed while it was hashed")]
    Changed,
    /// The file ends before its size, and didn't change.
    #[error("{}", RootError::SizeUnknown)]
    SizeUnknown,
    /// The caller cancelled it.
    #[error("hashing was given up")]
    GivenUp,
    /// Reading failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The source refused to read it.
    #[error(transparent)]
    Refused(RootError),
}

impl From<RootError> for HashError {
    fn from(error: RootError) -> HashError {
        match error {
            RootError::Changed => HashError::Changed,
            RootError::Io(error) => HashError::Io(error),
            other => HashError::Refused(other),
        }
    }
}

/// An open file, as far as it is hashed.
pub trait ReadAt {
    /// Reads bytes from an offset on; returns their number, 0 at the end. Blocks.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError>;

    /// Its digest and leaves, if they needn't be hashed. Blocks.
    fn known(&self) -> Result<Option<Arc<Digested>>, RootError> {
        Ok(None)
    }

    /// Whether it still is this version. Blocks.
    fn is_still(&self, version: &FileVersion) -> Result<bool, RootError>;

    /// Length of the hole that begins at an offset; 0 if there is none, or if that is unknown.
    fn hole_at(&self, offset: u64, size: u64) -> u64;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError> {
        loop {
            match FileExt::read_at(self, buffer, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => return read.map_err(RootError::Io),
            }
        }
    }

    fn is_still(&self, version: &FileVersion) -> Result<bool, RootError> {
        Ok(FileKey::from(&FileStat::try_from(self)?) == version.key)
    }

    fn hole_at(&self, offset: u64, size: u64) -> u64 {
        match seek(self, SeekFrom::Data(offset)) {
            Ok(data) => data.min(size).saturating_sub(offset),
            // Up to the end. It may have shrunk: that is seen afterwards.
            Err(Errno::NXIO) => size - offset,
            Err(_) => 0,
        }
    }
}

impl<F: ReadAt> ReadAt for Arc<F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError> {
        F::read_at(self, buffer, offset)
    }

    fn known(&self) -> Result<Option<Arc<Digested>>, RootError> {
        F::known(self)
    }

    fn is_still(&self, version: &FileVersion) -> Result<bool, RootError> {
        F::is_still(self, version)
    }

    fn hole_at(&self, offset: u64, size: u64) -> u64 {
        F::hole_at(self, offset, size)
    }
}

/// Resumable hashing of one version of a file, also through another descriptor of that version.
#[derive(Debug)]
pub struct FileHasher {
    version: FileVersion,
    began: Timestamp,
    tree: TreeHasher,
    at: u64,
}

impl FileHasher {
    /// A hasher of this version of a file, beginning now.
    pub fn new(file: impl Into<FileVersion>) -> FileHasher {
        let version = file.into();
        let tree = TreeHasher::new(LeafSize::for_file(version.key.size));
        FileHasher { version, began: wall_clock(), tree, at: 0 }
    }

    /// The version of the file.
    pub fn key(&self) -> FileKey {
        self.version.key
    }

    /// Time at which hashing began.
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Bytes hashed so far.
    pub fn hashed_bytes(&self) -> u64 {
        self.at
    }

    /// Memory of the leaves so far, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.tree.leaves_so_far() * size_of::<Leaf>()
    }

    /// Whether the same key will always mean the same content: see [`super::SETTLED_AFTER_SECONDS`].
    pub fn is_of_settled_file(&self) -> bool {
        may_be_remembered(self.version, self.began)
    }

    /// Hashes this many more bytes, or a little more; returns whether the end is reached. `given_up` is polled; a cancelled hash can be resumed.
    /// Blocks.
    pub fn advance(&mut self, file: &impl ReadAt, bytes: u64, given_up: impl Fn() -> bool) -> Result<bool, HashError> {
        let FileVersion { key: FileKey { size, .. }, is_sparse, .. } = self.version;
        let end = size.min(self.at.saturating_add(bytes));
        let left = usize::try_from(end - self.at).unwrap_or(READ_BYTES);
        let mut buffer = PageBuffer::zeroed(READ_BYTES.min(left).max(1));
        // Reading a hole would make the kernel fill its cache with zeros.
        let zeros = if is_sparse { vec![0; buffer.len()] } else { Vec::new() };
        while self.at < end {
            if given_up() {
                return Err(HashError::GivenUp);
            }
            let hole = if is_sparse { file.hole_at(self.at, size) } else { 0 };
            let data = if hole > 0 {
                &zeros[..usize::try_from(hole).unwrap_or(READ_BYTES).min(zeros.len())]
            } else {
                match file.read_at(&mut buffer, self.at)? {
                    0 if file.is_still(&self.version).is_ok_and(|is_still| is_still) => {
                        return Err(HashError::SizeUnknown);
                    }
                    0 => return Err(HashError::Changed),
                    count => buffer.get(..count).unwrap_or_default(),
                }
            };
            // More than the size that was announced: the file grew.
            self.tree.update(data).map_err(|_| HashError::Changed)?;
            self.at += data.len() as u64;
        }
        Ok(self.at >= size)
    }

    /// Digest and leaves, once all is hashed. Fails if the file has changed.
    pub fn finish(self, file: &impl ReadAt) -> Result<Digested, HashError> {
        if !file.is_still(&self.version)? {
            return Err(HashError::Changed);
        }
        let leaf_size = LeafSize::for_file(self.version.key.size);
        let (digest, leaves) = self.tree.finish().map_err(|_| HashError::Changed)?;
        Ok(Digested { digest, leaf_size, leaves: leaves.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use std::io::Write;

    fn hash_file(file: &File, stat: &FileStat, given_up: impl Fn() -> bool) -> Result<Digested, HashError> {
        let mut hasher = FileHasher::new(stat);
        assert!(hasher.advance(file, u64::MAX, given_up)?);
        hasher.finish(file)
    }

    #[test]
    fn hashing_stops_and_goes_on_anywhere() {
        let mut file = tempfile::tempfile().unwrap();
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&data).unwrap();
        let stat = FileStat::try_from(&file).unwrap();
        for bytes in [1 << 20, 300_001, 2_999_999, 3_000_000] {
            let mut hasher = FileHasher::new(&stat);
            let mut slices = 1;
            while !hasher.advance(&file, bytes, || false).unwrap() {
                assert!(hasher.hashed_bytes() >= slices * bytes);
                let before = hasher.hashed_bytes();
                assert!(matches!(hasher.advance(&file, bytes, || true), Err(HashError::GivenUp)));
                assert_eq!(hasher.hashed_bytes(), before);
                slices += 1;
            }
            assert!(
                slices <= stat.size.div_ceil(bytes) && (slices > 1 || bytes * 2 > stat.size),
                "{slices} of {bytes}"
            );
            let digested = hasher.finish(&file).unwrap();
            assert_eq!((digested.digest, digested.leaves.len()), (Digest::of(&data), 3));
        }
    }

    #[test]
    fn hashes_what_the_file_holds_or_says_that_it_changed() {
        let mut file = tempfile::tempfile().unwrap();
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&data).unwrap();
        let stat = FileStat::try_from(&file).unwrap();
        let digested = hash_file(&file, &stat, || false).unwrap();
        assert_eq!(digested.digest.0, *blake3::hash(&data).as_bytes());
        assert_eq!(digested.leaves.len(), 3);
        assert!(matches!(hash_file(&file, &stat, || true), Err(HashError::GivenUp)));
        file.set_len(2_999_999).unwrap();
        assert!(matches!(hash_file(&file, &stat, || false), Err(HashError::Changed)));
        file.set_len(4_000_000).unwrap();
        assert!(matches!(hash_file(&file, &stat, || false), Err(HashError::Changed)));
    }
    #[test]
    fn holes_are_zeros() {
        let size = 5_000_000u64;
        for pieces in
            [&[][..], &[(0, 10)], &[(4_999_999, 1)], &[(300_000, 5_000), (2_097_152, 1), (3_000_000, 900_000)]]
        {
            let file = tempfile::tempfile().unwrap();
            file.set_len(size).unwrap();
            let mut data = vec![0; size as usize];
            for &(from, length) in pieces {
                data[from..from + length].fill(7);
                file.write_all_at(&data[from..from + length], from as u64).unwrap();
            }
            let stat = FileStat::try_from(&file).unwrap();
            let digested = hash_file(&file, &stat, || false).unwrap();
            assert_eq!(digested.digest.0, *blake3::hash(&data).as_bytes(), "{pieces:?}");
            file.set_len(size - 1).unwrap();
            assert!(matches!(hash_file(&file, &stat, || false), Err(HashError::Changed)), "{pieces:?}");
        }
    }
}
