//! Hashing a file that may change meanwhile.

use super::{Digested, LeafSize, TreeHasher};
use crate::root::{FileStat, RootError};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Octets read at a time: several of BLAKE3's widest strides, and well within the processor's cache.
const READ_BYTES: usize = 256 << 10;

/// Why a file has no digest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// It isn't what it was, or changed while it was read.
    #[error("the file changed while it was hashed")]
    Changed,
    /// Nobody waits for it any more.
    #[error("hashing was given up")]
    GivenUp,
    /// Reading failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// The digest and leaves of an open file, which is `stat` both before and after. Blocks; `given_up` is asked now and then.
pub fn hash_file(file: &File, stat: &FileStat, given_up: impl Fn() -> bool) -> Result<Digested, HashError> {
    let leaf_size = LeafSize::for_file(stat.size);
    let mut tree = TreeHasher::new(leaf_size);
    let mut buffer = vec![0; READ_BYTES.min(usize::try_from(stat.size).unwrap_or(READ_BYTES)).max(1)];
    // Reading a hole would make the kernel fill its cache with zeros.
    let zeros = if stat.is_sparse() { vec![0; buffer.len()] } else { Vec::new() };
    let mut at = 0;
    while at < stat.size {
        if given_up() {
            return Err(HashError::GivenUp);
        }
        let hole = if stat.is_sparse() { hole_at(file, at, stat.size) } else { 0 };
        let octets = if hole > 0 {
            &zeros[..usize::try_from(hole).unwrap_or(READ_BYTES).min(zeros.len())]
        } else {
            match file.read_at(&mut buffer, at) {
                Ok(0) => return Err(HashError::Changed),
                Ok(count) => buffer.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
        };
        // More than the size that was announced: the file grew.
        tree.update(octets).map_err(|_| HashError::Changed)?;
        at += octets.len() as u64;
    }
    let now = FileStat::try_from(file).map_err(|error| match error {
        RootError::Io(error) => HashError::Io(error),
        other => HashError::Io(std::io::Error::other(other)),
    })?;
    if !now.same_content(stat) {
        return Err(HashError::Changed);
    }
    let (digest, leaves) = tree.finish().map_err(|_| HashError::Changed)?;
    Ok(Digested { digest, leaf_size, leaves: leaves.into() })
}

/// Octets of the hole that begins here; 0 where there is none, or the file system doesn't tell.
fn hole_at(file: &File, at: u64, size: u64) -> u64 {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.min(size).saturating_sub(at),
        // Up to the end. It may have shrunk: that is seen afterwards.
        Err(Errno::NXIO) => size - at,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn hashes_what_the_file_holds_or_says_that_it_changed() {
        let mut file = tempfile::tempfile().unwrap();
        let octets: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&octets).unwrap();
        let stat = FileStat::try_from(&file).unwrap();
        let digested = hash_file(&file, &stat, || false).unwrap();
        assert_eq!(digested.digest.0, *blake3::hash(&octets).as_bytes());
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
            let mut octets = vec![0; size as usize];
            for &(from, length) in pieces {
                octets[from..from + length].fill(7);
                file.write_all_at(&octets[from..from + length], from as u64).unwrap();
            }
            let stat = FileStat::try_from(&file).unwrap();
            let digested = hash_file(&file, &stat, || false).unwrap();
            assert_eq!(digested.digest.0, *blake3::hash(&octets).as_bytes(), "{pieces:?}");
            file.set_len(size - 1).unwrap();
            assert!(matches!(hash_file(&file, &stat, || false), Err(HashError::Changed)), "{pieces:?}");
        }
    }
}
