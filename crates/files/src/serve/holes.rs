//! Where a sparse file has data and where holes.

use super::Failure;
use super::pieces::Extent;
use super::source::Source;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Extents of a file that are looked for. What lies behind them is sent as data: correct, only longer.
const EXTENTS_MAX: usize = 4096;

/// The extents of a file from its beginning, none if it has no holes (or the file system doesn't tell). Blocks.
///
/// Moves the position of the open file, which nothing else uses.
pub(super) fn extents(source: &Source) -> Result<Vec<Extent>, Failure> {
    let size = source.stat.size;
    let mut extents = Vec::new();
    let mut has_holes = false;
    let mut at = 0;
    while at < size && extents.len() + 2 <= EXTENTS_MAX {
        let data = match seek(&*source.file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => size,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(Failure::io(&errno.into())),
        };
        if data > at {
            extents.push(Extent { offset: at, length: data - at, hole: true });
            has_holes = true;
        }
        if data >= size {
            break;
        }
        let hole = match seek(&*source.file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(size),
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(Failure::io(&errno.into())),
        };
        if hole <= data {
            // The file changed between the two calls; sending will notice.
            break;
        }
        extents.push(Extent { offset: data, length: hole - data, hole: false });
        at = hole;
    }
    Ok(if has_holes { extents } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;
    use crate::root::Root;
    use std::os::unix::fs::FileExt;

    #[test]
    fn extents_cover_the_file_and_hold_what_was_written() {
        let temp = tempfile::TempDir::new().unwrap();
        let file = std::fs::File::create(temp.path().join("a")).unwrap();
        let size = 8u64 << 20;
        file.set_len(size).unwrap();
        let written = [(1u64 << 20, 4096usize), (5 << 20, 100_000)];
        for (offset, length) in written {
            file.write_all_at(&vec![1; length], offset).unwrap();
        }
        let root = Root::serve(temp.path()).unwrap();
        let source = Source::open(&root, &RelPath::new("a").unwrap()).unwrap();
        let extents = extents(&source).unwrap();
        // A file system without holes would give none, and then nothing is promised about them.
        if source.stat.is_sparse() {
            assert!(extents.iter().any(|extent| extent.hole));
            let mut at = 0;
            for extent in &extents {
                assert_eq!(extent.offset, at);
                at += extent.length;
            }
            assert_eq!(at, size);
            for (offset, length) in written {
                let in_hole = extents.iter().any(|extent| {
                    extent.hole && extent.offset < offset + length as u64 && offset < extent.offset + extent.length
                });
                assert!(!in_hole);
            }
        }
    }
}
