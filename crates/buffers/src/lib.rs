//! Page-aligned buffers for file data that the kernel copies.

mod mapped;

pub use mapped::MappedBuffer;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

/// Alignment of every buffer, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Bounds of [`buffer_bytes`]. Smaller buffers cost too many calls; larger ones gained nothing on any processor that was measured.
const BUFFER_BYTES_MIN: usize = 128 << 10;
const BUFFER_BYTES_MAX: usize = 512 << 10;

/// Bytes of a buffer that one thread fills and another reads: half of this processor's second-level cache, within bounds, so that the data
/// is still in the cache when it is read.
pub fn buffer_bytes() -> usize {
    SECOND_LEVEL_CACHE_BYTES.map_or(BUFFER_BYTES_MAX, |bytes| (bytes / 2).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX))
}

/// The size of a buffer and where it comes from, for people.
pub fn describe_buffer_bytes() -> String {
    let (kib, min, max) = (buffer_bytes() >> 10, BUFFER_BYTES_MIN >> 10, BUFFER_BYTES_MAX >> 10);
    match *SECOND_LEVEL_CACHE_BYTES {
        Some(cache) => format!("{kib} KiB: half of the second-level cache of {} KiB, from {min} to {max}", cache >> 10),
        None => format!("{kib} KiB: the size of the second-level cache is unknown"),
    }
}

static SECOND_LEVEL_CACHE_BYTES: LazyLock<Option<usize>> = LazyLock::new(second_level_cache_bytes);

/// As sysfs has it of the first processor: a folder for each cache.
fn second_level_cache_bytes() -> Option<usize> {
    let read =
        |index: usize, name| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok();
    let index = (0..8).find(|&index| read(index, "level").is_some_and(|level| level.trim() == "2"))?;
    parse_size(read(index, "size")?.trim())
}

/// A size such as `512K`, rounded down to whole pages; none below a page.
fn parse_size(text: &str) -> Option<usize> {
    let kib: usize = text.strip_suffix('K')?.parse().ok()?;
    Some(kib.checked_mul(1024)? / (2 * PAGE_BYTES) * (2 * PAGE_BYTES)).filter(|bytes| *bytes > 0)
}

/// Bytes of which the first lies at a page boundary.
///
/// AMD's Zen 3 copies at a fifth of its speed where the destination lies 1 to 31 bytes above the source modulo a page. File data comes
/// in whole pages, and glibc puts large blocks at page + 16: exactly that case.
#[derive(Debug, Default)]
pub struct PageBuffer {
    /// `start` bytes of padding, then the content.
    memory: Vec<u8>,
    start: usize,
}

impl PageBuffer {
    /// An empty buffer with space for this many bytes, or up to a page more.
    pub fn with_capacity(bytes: usize) -> PageBuffer {
        PageBuffer::aligned(Vec::with_capacity(bytes.saturating_add(PAGE_BYTES - 1)), 0)
    }

    /// A buffer of this many zeros. Large ones cost no writing: the system's fresh memory is zero.
    pub fn zeroed(bytes: usize) -> PageBuffer {
        PageBuffer::aligned(vec![0; bytes.saturating_add(PAGE_BYTES - 1)], bytes)
    }

    fn aligned(mut memory: Vec<u8>, length: usize) -> PageBuffer {
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES - 1);
        memory.resize(start + length, 0);
        PageBuffer { memory, start }
    }

    /// Bytes it has space for without moving.
    pub fn capacity(&self) -> usize {
        self.memory.capacity() - self.start
    }

    /// Makes space for this many more bytes, moving to a larger buffer if need be.
    pub fn reserve(&mut self, more: usize) {
        let wanted = self.len().saturating_add(more);
        if wanted > self.capacity() {
            let mut larger = PageBuffer::with_capacity(wanted.max(self.capacity().saturating_mul(2)));
            larger.memory.extend_from_slice(self);
            *self = larger;
        }
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.memory.extend_from_slice(bytes);
    }

    /// Appends zeros or drops bytes at the end until there are this many.
    pub fn resize(&mut self, bytes: usize) {
        self.reserve(bytes.saturating_sub(self.len()));
        self.memory.resize(self.start + bytes, 0);
    }

    /// Drops all bytes but the first ones.
    pub fn truncate(&mut self, bytes: usize) {
        self.memory.truncate(self.start.saturating_add(bytes));
    }

    /// Appends what one pread gives, which may be as much as there is space for; how many bytes that were, 0 at the file's end.
    ///
    /// # Errors
    /// Those of pread, but for an interrupted one, which is repeated.
    pub fn append_from(&mut self, file: impl AsFd, offset: u64) -> rustix::io::Result<usize> {
        loop {
            // Uninitialized memory: not zeroed before it is overwritten.
            match rustix::io::pread(&file, spare_capacity(&mut self.memory), offset) {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.get(self.start..).unwrap_or_default()
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<PageBuffer> for Bytes {
    fn from(buffer: PageBuffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    fn is_aligned(bytes: &[u8]) -> bool {
        (bytes.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
    }

    #[test]
    fn content_begins_at_a_page_boundary_however_it_came_there() {
        for bytes in [1, 15, 4095, 4096, 4097, 65_536, 524_288, 1 << 20, 5_000_000] {
            let zeroed = PageBuffer::zeroed(bytes);
            assert!(is_aligned(&zeroed) && zeroed.len() == bytes && zeroed.iter().all(|byte| *byte == 0), "{bytes}");
            let mut grown = PageBuffer::with_capacity(bytes);
            assert!(grown.is_empty() && (bytes..bytes + PAGE_BYTES).contains(&grown.capacity()), "{bytes}");
            while grown.len() < 3 * bytes {
                grown.extend_from_slice(&[7, 8, 9]);
            }
            grown.resize(bytes * 5);
            grown.truncate(bytes * 4);
            assert!(is_aligned(&grown) && grown.len() == bytes * 4, "{bytes}");
            assert_eq!((&grown[..3], grown[grown.len() - 1]), (&[7, 8, 9][..], 0));
            assert!(is_aligned(&Bytes::from(grown)), "{bytes}");
        }
        assert!(PageBuffer::default().is_empty());
    }

    #[test]
    fn buffers_suit_the_cache_within_bounds() {
        for (text, bytes) in
            [("512K", Some(512 << 10)), ("1280K", Some(1280 << 10)), ("0K", None), ("1M", None), ("", None)]
        {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
        let bytes = buffer_bytes();
        assert!((BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(PAGE_BYTES), "{bytes}");
        assert!(describe_buffer_bytes().starts_with(&format!("{} KiB: ", bytes / 1024)), "{}", describe_buffer_bytes());
    }

    #[test]
    fn reading_appends() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one two").unwrap();
        let mut buffer = PageBuffer::default();
        buffer.reserve(10);
        assert_eq!(buffer.append_from(&file, 4), Ok(3));
        assert_eq!(buffer.append_from(&file, 0), Ok(7));
        assert_eq!(buffer.append_from(&file, 7), Ok(0));
        assert_eq!((&buffer[..], is_aligned(&buffer)), (&b"twoone two"[..], true));
    }
}
