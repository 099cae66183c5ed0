use memmap2::{MmapMut, MmapOptions};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::ops::Deref;

/// Memory of a fixed size that goes back to the system when it is dropped, for large buffers that come and go. Begins at a page, as
/// [`PageBuffer`](crate::PageBuffer) does.
///
/// The allocator may keep what is freed: glibc gives the first block of a megabyte back, takes the next ones from the heap of each thread, and
/// keeps them there.
pub struct MappedBuffer {
    memory: MmapMut,
    length: usize,
}

impl MappedBuffer {
    /// An empty buffer with space for this many bytes.
    ///
    /// # Errors
    /// The system has no memory left, or the process has too many mappings.
    pub fn with_capacity(bytes: usize) -> io::Result<MappedBuffer> {
        Ok(MappedBuffer { memory: MmapOptions::new().len(bytes).populate().map_anon()?, length: 0 })
    }

    /// Bytes it has space for.
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Drops all bytes but the first ones.
    pub fn truncate(&mut self, bytes: usize) {
        self.length = self.length.min(bytes);
    }

    /// Appends what one pread gives, at most as much as there is space for; how many bytes that were, 0 at the file's end.
    ///
    /// # Errors
    /// Those of pread, but for an interrupted one, which is repeated.
    pub fn append_from(&mut self, file: impl AsFd, offset: u64) -> rustix::io::Result<usize> {
        self.append_with(|space| {
            loop {
                match rustix::io::pread(&file, &mut *space, offset) {
                    Err(Errno::INTR) => {}
                    result => return result,
                }
            }
        })
    }

    /// Appends what is put into the space that is left; `fill` returns how many bytes that are, and so does this.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn append_with<E>(&mut self, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        let space = self.memory.get_mut(self.length..).unwrap_or_default();
        let most = space.len();
        let count = fill(space)?.min(most);
        self.length += count;
        Ok(count)
    }
}

impl Deref for MappedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Debug for MappedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedBuffer").field("length", &self.length).field("capacity", &self.capacity()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn reading_appends_as_far_as_there_is_space() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one two").unwrap();
        let mut buffer = MappedBuffer::with_capacity(10).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, 10));
        assert_eq!(buffer.append_from(&file, 4), Ok(3));
        assert_eq!(buffer.append_from(&file, 7), Ok(0));
        assert_eq!(buffer.append_from(&file, 0), Ok(7));
        assert_eq!(&buffer[..], b"twoone two");
        assert_eq!(buffer.append_from(&file, 0), Ok(0));
        buffer.truncate(3);
        assert_eq!(buffer.append_from(&file, 3), Ok(4));
        assert_eq!(&buffer[..], b"two two");
    }
}
