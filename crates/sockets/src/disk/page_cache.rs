//! Probing whether a file range is in the page cache, and reading it into it.
//!
//! sendfile(2) of an uncached range makes the calling thread wait for the disk, and so all peers of this thread. So a range is probed first:
//! one byte in each stride is read with `RWF_NOWAIT`, which fails rather than wait. Another thread reads what isn't cached.

use rustix::fd::AsFd;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_buffers::PageBuffer;

/// Stride of probes. Read-ahead fills the cache in stretches of at least this (its default, 128 KiB), so that the smaller
/// gaps that a probe overlooks are rare, and each costs the event thread one short read. So does what the kernel drops between the probe
/// and sending. Half as much would cost the event thread a twelfth more of its time for a large file.
const PROBE_STRIDE_BYTES: u64 = 128 << 10;
/// Buffer for reading a range into the page cache, small enough to stay in the processor's cache.
const PREFETCH_BUFFER_BYTES: usize = 128 << 10;

/// The kernel can't probe: RWF_NOWAIT is missing or forbidden by a sandbox.
static CANNOT_PROBE: AtomicBool = AtomicBool::new(false);

/// Result of a probe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Everything probed is in memory: sending the range will hardly wait for a disk.
    Cached,
    /// Not all in memory, or not known.
    Uncached,
}

/// Probes whether a file range is in the page cache. Never waits for a disk.
pub fn probe(file: impl AsFd, offset: u64, length: u64) -> Residency {
    if CANNOT_PROBE.load(Ordering::Relaxed) {
        return Residency::Uncached;
    }
    for at in probe_points(offset, length) {
        let mut byte = [0];
        match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) {
            // No byte: the file shrank. Sending will find out without waiting.
            Ok(_) => {}
            Err(Errno::NOSYS | Errno::PERM) => {
                CANNOT_PROBE.store(true, Ordering::Relaxed);
                return Residency::Uncached;
            }
            // EAGAIN: not cached. EOPNOTSUPP and others: this file system can't answer, so the file has to be read.
            Err(_) => return Residency::Uncached,
        }
    }
    Residency::Cached
}

/// Reads a file range into the page cache, and has the kernel start on as many bytes behind it. Waits for the disk.
///
/// # Errors
/// Errors of reading. The end of the file is none.
pub fn prefetch(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let Some(ahead) = NonZeroU64::new(length.saturating_mul(2)) else { return Ok(()) };
    // This range and the next: the disk reads that while this one is sent.
    if fadvise(&file, offset, Some(ahead), Advice::WillNeed).is_ok() {
        // The kernel reads by itself; copying what it reads would cost more than sending it, so it is only waited for.
        probe_points(offset, length).try_for_each(|at| read_some(&file, &mut [0], at).map(drop))
    } else {
        let mut buffer = PageBuffer::zeroed(PREFETCH_BUFFER_BYTES);
        let (mut at, end) = (offset, offset.saturating_add(length));
        while at < end {
            match read_some(&file, &mut buffer, at)? {
                // The file shrank: nothing is left to read.
                0 => break,
                count => at += count as u64,
            }
        }
        Ok(())
    }
}

/// Offsets of a byte in each stride of a range, and of its last byte.
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
    fn written_pages_are_cached_and_dropped_pages_are_not() {
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
