//! Is a piece of a file in the page cache, and if not, getting it there.
//!
//! sendfile(2) of a cold piece makes the thread that calls it wait for the disk, and so every peer that this thread has. So a piece is
//! probed first: one byte in each stride is read with `RWF_NOWAIT`, which fails rather than wait. What isn't resident is for another
//! thread to read.

use rustix::fd::AsFd;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_buffers::PageBuffer;

/// One byte in so many is probed. Read-ahead fills the cache in stretches of at least this (its default, 128 KiB), so that the smaller
/// gaps that a probe overlooks are rare, and each costs the event thread one short read. So does what the kernel drops between the probe
/// and sending. Half as much would cost the event thread a twelfth more of its time for a large file.
const PROBE_STRIDE_BYTES: u64 = 128 << 10;
/// A piece is read into the page cache through a buffer of this size, small enough to stay in the processor's cache.
const WARM_BUFFER_BYTES: usize = 128 << 10;

/// The kernel can't probe: RWF_NOWAIT is missing or forbidden by a sandbox.
static CANNOT_PROBE: AtomicBool = AtomicBool::new(false);

/// What a probe found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Residency {
    /// All that was probed is in memory: sending the piece will hardly wait for a disk.
    Cached,
    /// Something isn't, or can't be probed.
    Uncached,
}

/// Whether so many bytes of a file from an offset are in memory. Never waits for a disk.
pub fn probe(file: impl AsFd, offset: u64, length: u64) -> Residency {
    if CANNOT_PROBE.load(Ordering::Relaxed) {
        return Residency::Uncached;
    }
    for at in probe_points(offset, length) {
        let mut byte = [0];
        match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) {
            // No byte there: the file shrank. Sending will find out, without waiting.
            Ok(_) => {}
            Err(Errno::NOSYS | Errno::PERM) => {
                CANNOT_PROBE.store(true, Ordering::Relaxed);
                return Residency::Uncached;
            }
            // EAGAIN: not resident. EOPNOTSUPP and others: this file system doesn't say, so somebody has to read it.
            Err(_) => return Residency::Uncached,
        }
    }
    Residency::Cached
}

/// Reads so many bytes of a file into memory, and has the kernel begin with as many behind them. Waits for the disk.
///
/// # Errors
/// That of reading. A file that ends before is none.
pub fn prefetch(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let Some(ahead) = NonZeroU64::new(length.saturating_mul(2)) else { return Ok(()) };
    // The piece and the one behind it: while this one travels, the disk reads the next.
    if fadvise(&file, offset, Some(ahead), Advice::WillNeed).is_ok() {
        // The kernel reads by itself; copying what it reads would cost more than sending it, so it is only waited for.
        probe_points(offset, length).try_for_each(|at| read_some(&file, &mut [0], at).map(drop))
    } else {
        let mut buffer = PageBuffer::zeroed(WARM_BUFFER_BYTES);
        let (mut at, end) = (offset, offset.saturating_add(length));
        while at < end {
            match read_some(&file, &mut buffer, at)? {
                // The file shrank: nothing is left to warm.
                0 => break,
                count => at += count as u64,
            }
        }
        Ok(())
    }
}

/// A byte in each stride of a piece, and its last one.
fn probe_points(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let strides = (0..length).step_by(PROBE_STRIDE_BYTES as usize);
    strides.chain(length.checked_sub(1)).map(move |at| offset.saturating_add(at))
}

fn read_some(file: impl AsFd, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match rustix::io::pread(&file, &mut *buffer, at) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_resident_and_dropped_pages_are_not() {
        // A file system in memory never drops pages: the test needs one on a disk, where the build directory usually is.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let size = 1u64 << 20;
        file.write_all(&vec![7; size as usize]).unwrap();
        file.sync_all().unwrap();
        assert_eq!(probe(&file, 0, size), Residency::Cached);
        assert_eq!(probe(&file, 0, 0), Residency::Cached);
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        if probe(&file, 0, size) == Residency::Uncached {
            prefetch(&file, 0, size).unwrap();
            assert_eq!(probe(&file, 0, size), Residency::Cached);
        }
        assert_eq!(probe_points(5, 0).count(), 0);
        assert_eq!(probe_points(5, 1).collect::<Vec<_>>(), [5, 5]);
        assert_eq!(probe_points(5, PROBE_STRIDE_BYTES + 2).collect::<Vec<_>>(), [5, 131_077, 131_078]);
        // Past the end there is nothing to wait for.
        assert_eq!(probe(&file, size, size), Residency::Cached);
        prefetch(&file, size, size).unwrap();
    }
}
