//! Copies leaves of the file in place into the partial file of its next version.

use std::fs::File;

use rustix::fs::copy_file_range;
use rustix::io::Errno;
use towpath_buffers::PageBuffer;

use super::cancel::Cancelled;
use super::inspect::read_range;
use super::partial::{PartialFile, io_error};
use crate::digest::{Leaf, LeafHasher};
use crate::transfer::DiskError;

/// Copies the leaves that have these values, and returns those. The file in place may be written to meanwhile: what counts is what arrived.
/// One that can't be read has none of them.
pub(super) fn reuse(
    content: &PartialFile,
    wanted: &[(u64, Leaf)],
    buffer: &mut PageBuffer,
    cancelled: &Cancelled,
) -> Result<Vec<(u64, Leaf)>, DiskError> {
    let open = content.open()?;
    let Ok((older, stat)) = open.dir.open_file(&open.name) else { return Ok(Vec::new()) };
    let leaves = content.spec.leaves;
    let mut copied = Vec::new();
    for &(leaf, value) in wanted {
        let (Ok((offset, length)), Ok(mut hasher)) = (leaves.range(leaf), LeafHasher::new(leaves, leaf)) else {
            continue;
        };
        if offset + length > stat.size {
            continue;
        }
        let writing = open.writing();
        if !open.is_long_enough()? {
            return Err(content.shortened());
        }
        let end = copy(&older, &open.file, offset, length)?;
        if end > offset {
            // Also of a leaf that isn't whole: a hole of the new version that is there has to be punched.
            open.wrote(end);
        }
        drop(writing);
        if end < offset + length {
            continue;
        }
        let hashed = read_range(&open.file, offset, length, buffer, |bytes| {
            let _ = hasher.update(bytes);
            cancelled.count_piece()
        });
        hashed.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => content.shortened(),
            _ => io_error("cannot read back", &error),
        })?;
        if hasher.finish() == Ok(value) {
            copied.push((leaf, value));
        }
    }
    open.note_leaves(&copied)?;
    Ok(copied)
}

/// Copies a range within the kernel, which shares the blocks where the file system can. Up to where: not to the end if that isn't possible here,
/// or the file got shorter.
fn copy(from: &File, to: &File, offset: u64, length: u64) -> Result<u64, DiskError> {
    let (mut from_offset, mut to_offset, end) = (offset, offset, offset + length);
    while to_offset < end {
        let left = usize::try_from(end - to_offset).unwrap_or(usize::MAX);
        match copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), left) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => return Err(io_error("cannot write", &errno.into())),
            Err(errno) => {
                tracing::debug!(%errno, "cannot copy from the file in place");
                break;
            }
        }
    }
    Ok(to_offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_says_how_far_it_got() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        std::io::Write::write_all(&mut &from, b"12345").unwrap();
        assert_eq!(copy(&from, &to, 1, 2), Ok(3));
        // As if it had got shorter meanwhile.
        assert_eq!(copy(&from, &to, 1, 9), Ok(5));
        assert_eq!(copy(&from, &to, 5, 9), Ok(5));
    }
}
