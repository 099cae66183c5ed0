//! Is a piece of a file in the page cache, and if not, getting it there.
//!
//! sendfile(2) of a cold piece would make the event thread, and so every client, wait for the disk. So each piece is probed first: one
//! octet in each stride is read with `RWF_NOWAIT`, which fails rather than wait. What isn't resident is read in the pool, in a lane
//! with a queue for each device.

use super::Failure;
use super::source::Source;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};

/// One octet in so many is probed. Read-ahead fills the cache in stretches of at least this (its default, 128 KiB), so that the smaller
/// gaps that a probe overlooks are rare, and each costs the event thread one short read. So does what the kernel drops between the probe
/// and sending. Half as much would cost the event thread a twelfth more of its time for a large file.
const PROBE_STRIDE_BYTES: u64 = 128 << 10;
/// A piece is read into the page cache through a buffer of this size, small enough to stay in the processor's cache.
const WARM_BUFFER_BYTES: usize = 128 << 10;

/// What a probe found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Residency {
    /// All that was probed is in memory: sending the piece will hardly wait for a disk.
    Resident,
    /// Something isn't, or can't be probed.
    Cold,
}

/// How pieces get into memory: the page cache, or in tests something that can be held up.
pub(super) trait Storage: Send + Sync + 'static {
    /// Whether a piece is resident. Called on the event thread: must not block.
    fn probe(&self, source: &Source, offset: u64, length: u64) -> Residency;
    /// Makes it resident. Called in the pool.
    fn warm(&self, source: &Source, offset: u64, length: u64) -> Result<(), Failure>;
}

/// The page cache of the kernel.
#[derive(Debug, Default)]
pub(super) struct PageCache {
    /// The kernel can't probe: RWF_NOWAIT is missing or forbidden by a sandbox.
    cannot_probe: AtomicBool,
}

impl Storage for PageCache {
    fn probe(&self, source: &Source, offset: u64, length: u64) -> Residency {
        if self.cannot_probe.load(Ordering::Relaxed) {
            return Residency::Cold;
        }
        for at in probe_points(offset, length) {
            let mut octet = [0];
            match preadv2(&*source.file, &mut [IoSliceMut::new(&mut octet)], at, ReadWriteFlags::NOWAIT) {
                // No octet there: the file shrank. Sending will find out, without waiting.
                Ok(_) => {}
                Err(Errno::NOSYS | Errno::PERM) => {
                    self.cannot_probe.store(true, Ordering::Relaxed);
                    return Residency::Cold;
                }
                // EAGAIN: not resident. EOPNOTSUPP and others: this file system doesn't say, so the pool has to read it.
                Err(_) => return Residency::Cold,
            }
        }
        Residency::Resident
    }

    fn warm(&self, source: &Source, offset: u64, length: u64) -> Result<(), Failure> {
        let Some(ahead) = NonZeroU64::new(length.saturating_mul(2)) else { return Ok(()) };
        // The piece and the one behind it: while this one travels, the disk reads the next.
        if fadvise(&*source.file, offset, Some(ahead), Advice::WillNeed).is_ok() {
            // The kernel reads by itself; copying what it reads would cost more than sending it, so it is only waited for.
            probe_points(offset, length).try_for_each(|at| read_some(source, &mut [0], at).map(drop))
        } else {
            let mut buffer = vec![0; WARM_BUFFER_BYTES];
            let (mut at, end) = (offset, offset.saturating_add(length));
            while at < end {
                match read_some(source, &mut buffer, at)? {
                    // The file shrank: nothing is left to warm.
                    0 => break,
                    count => at += count as u64,
                }
            }
            Ok(())
        }
    }
}

/// An octet in each stride of a piece, and its last one.
fn probe_points(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let strides = (0..length).step_by(PROBE_STRIDE_BYTES as usize);
    strides.chain(length.checked_sub(1)).map(move |at| offset.saturating_add(at))
}

fn read_some(source: &Source, buffer: &mut [u8], at: u64) -> Result<usize, Failure> {
    loop {
        match rustix::io::pread(&*source.file, &mut *buffer, at) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::io(&errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;
    use crate::root::Root;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_resident_and_dropped_pages_are_not() {
        // A file system in memory never drops pages: the test needs one on a disk, where the build directory usually is.
        let temp = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut file = std::fs::File::create(temp.path().join("a")).unwrap();
        let size = 1u64 << 20;
        file.write_all(&vec![7; size as usize]).unwrap();
        file.sync_all().unwrap();
        let root = Root::serve(temp.path()).unwrap();
        let source = Source::open(&root, &RelPath::new("a").unwrap()).unwrap();
        let cache = PageCache::default();
        assert_eq!(cache.probe(&source, 0, size), Residency::Resident);
        assert_eq!(cache.probe(&source, 0, 0), Residency::Resident);
        fadvise(&*source.file, 0, None, Advice::DontNeed).unwrap();
        if cache.probe(&source, 0, size) == Residency::Cold {
            cache.warm(&source, 0, size).unwrap();
            assert_eq!(cache.probe(&source, 0, size), Residency::Resident);
        }
        assert_eq!(probe_points(5, 0).count(), 0);
        assert_eq!(probe_points(5, 1).collect::<Vec<_>>(), [5, 5]);
        assert_eq!(probe_points(5, PROBE_STRIDE_BYTES + 2).collect::<Vec<_>>(), [5, 131_077, 131_078]);
        // Past the end there is nothing to wait for.
        assert_eq!(cache.probe(&source, size, size), Residency::Resident);
        cache.warm(&source, size, size).unwrap();
    }
}
