//! Finding data and holes of a sparse file.

use super::Answer;
use super::pool::{Pool, Requester};
use crate::server::Failure;
use crate::server::chunks::{Extent, Layout};
use crate::server::open_file::OpenFile;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Extents looked up at a time, which each fetch of the file keeps in memory.
const EXTENTS_MAX: usize = 128;

/// Finds data and holes of a file, which has this number in its fetch, from an offset on.
#[derive(Debug)]
pub(crate) struct FindExtents<F> {
    pub(crate) n: u32,
    pub(crate) file: F,
    pub(crate) from: u64,
}

impl FindExtents<OpenFile> {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester) {
        let FindExtents { n, file, from } = self;
        let failed = move |failure| Answer::FindExtents(n, Err(failure));
        pool.run(&pool.prefetch, file.attributes.device(), requester, failed, move |_| {
            Answer::FindExtents(n, layout(&file, from))
        });
    }
}

/// Looks up data and holes of a file from an offset on. Empty if it has no holes, or if the file system doesn't report them. Blocks.
///
/// Moves the position of the open file, which nothing else uses.
pub(crate) fn layout(source: &OpenFile, from: u64) -> Result<Layout, Failure> {
    let Some(file) = source.descriptor() else { return Ok(Layout::without_holes()) };
    let size = source.attributes.size;
    let mut extents = Vec::new();
    let mut at = from;
    while at < size {
        if extents.len() + 2 > EXTENTS_MAX {
            return Ok(Layout { extents, until: at });
        }
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // A hole up to the end.
            Err(Errno::NXIO) => size,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Err(errno) => return Err(Failure::io(&errno.into())),
        };
        if data > at {
            extents.push(Extent { offset: at, length: data - at, hole: true });
        }
        if data >= size {
            break;
        }
        let hole = match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(size),
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(Failure::io(&errno.into())),
        };
        if hole <= data {
            // The file changed between the two calls, which sending will notice.
            break;
        }
        extents.push(Extent { offset: data, length: hole - data, hole: false });
        at = hole;
    }
    extents = if extents.iter().any(|extent| extent.hole) { extents } else { Vec::new() };
    Ok(Layout { extents, until: u64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;
    use std::os::unix::fs::FileExt;

    /// The whole layout, as it is looked for bit by bit.
    fn whole(source: &OpenFile) -> Vec<Extent> {
        let (mut extents, mut from) = (Vec::new(), 0);
        while from < source.attributes.size {
            let next = layout(source, from).unwrap();
            assert!(next.extents.len() <= EXTENTS_MAX && next.until > from);
            extents.extend(next.extents);
            from = next.until;
        }
        extents
    }

    fn check(written: &[(u64, usize)], size: u64) {
        let temp = tempfile::TempDir::new().unwrap();
        let file = std::fs::File::create(temp.path().join("a")).unwrap();
        file.set_len(size).unwrap();
        for &(offset, length) in written {
            file.write_all_at(&vec![1; length], offset).unwrap();
        }
        let root = crate::server::client_root::tests::served(temp.path());
        let source = OpenFile::open(&root, &RelPath::new("a").unwrap()).unwrap();
        // A file system without holes would give none, and then nothing is promised about them.
        if !source.attributes.is_sparse() {
            return;
        }
        let extents = whole(&source);
        assert!(extents.iter().filter(|extent| extent.hole).count() >= written.len());
        let mut at = 0;
        for extent in &extents {
            assert_eq!(extent.offset, at);
            at += extent.length;
        }
        assert_eq!(at, size);
        for &(offset, length) in written {
            let in_hole = extents.iter().any(|extent| {
                extent.hole && extent.offset < offset + length as u64 && offset < extent.offset + extent.length
            });
            assert!(!in_hole);
        }
    }

    #[test]
    fn extents_cover_the_file_and_contain_all_data() {
        check(&[(1 << 20, 4096), (5 << 20, 100_000)], 8 << 20);
    }

    #[test]
    fn many_extents_are_found_in_parts() {
        let written: Vec<_> = (0..1000).map(|index| ((2 * index + 1) << 16, 4096)).collect();
        check(&written, 1 << 27);
    }
}
