//! Octets of a body that stay in the kernel: from the socket into a pipe, and from there into a file, by splice(2).

use crate::pool::Pool;
use bytes::Bytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Octets that a pipe is handed over with.
pub(crate) const PIPED_BYTES: usize = 512 * 1024;

/// Octets that a pipe has room for, if they come in whole pages: what Linux lets everybody have (fs.pipe-max-size). Where packets
/// begin and end, pages are cut, and each part takes as much of the room as a whole one.
const PIPE_BYTES: usize = 1024 * 1024;

/// Read and written at a time where the file system can't take octets from a pipe.
const COPY_BYTES: usize = 64 * 1024;

/// A pipe.
pub(crate) struct Pipe {
    from: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Pipe> {
        let (from, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A user may have only so much in large pipes; a small one does it too, in more pieces.
        let _ = fcntl_setpipe_size(&into, PIPE_BYTES);
        Ok(Pipe { from, into })
    }

    /// Moves what is there, at most so many octets, from a socket into the pipe.
    pub(crate) fn fill(&self, socket: BorrowedFd<'_>, most: usize) -> rustix::io::Result<usize> {
        splice(socket, None, &self.into, None, most, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)
    }
}

/// Octets of a streamed body in a pipe. To be taken out: written to a file, or read. Dropped with octets in it, it takes its pipe
/// along. It holds one of a bounded number of pipes, and reading from peers waits for one.
pub struct Piped {
    pipe: Option<Pipe>,
    length: usize,
    pool: Pool<Pipe>,
}

impl Piped {
    pub(crate) fn new(pipe: Pipe, length: usize, pool: Pool<Pipe>) -> Piped {
        Piped { pipe: Some(pipe), length, pool }
    }

    /// Octets in it.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Writes all of it to a file, at this offset.
    ///
    /// # Errors
    /// The file's; some of the octets may have been written then.
    pub fn write_to(mut self, file: &File, offset: u64) -> io::Result<()> {
        let (pipe, end) = (self.pipe()?, offset + self.length as u64);
        let mut at = offset;
        let moved = move_all(self.length, |most| {
            splice(&pipe.from, None, file, Some(&mut at), most, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
        });
        match moved {
            // Not every file system can.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                let mut buffer = vec![0; COPY_BYTES];
                while at < end {
                    let left = usize::try_from(end - at).unwrap_or(COPY_BYTES);
                    let piece = buffer.get_mut(..left.min(COPY_BYTES)).unwrap_or_default();
                    read_exactly(pipe, piece)?;
                    file.write_all_at(piece, at)?;
                    at += piece.len() as u64;
                }
            }
            moved => moved?,
        }
        self.length = 0;
        Ok(())
    }

    /// Takes the first `length` octets out: all, if there are fewer.
    ///
    /// # Errors
    /// The pipe's; what is left of it can't be used then.
    pub fn read(&mut self, length: usize) -> io::Result<Bytes> {
        let mut octets = vec![0; length.min(self.length)];
        read_exactly(self.pipe()?, &mut octets)?;
        self.length -= octets.len();
        Ok(octets.into())
    }

    fn pipe(&self) -> io::Result<&Pipe> {
        self.pipe.as_ref().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl fmt::Debug for Piped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piped({} octets)", self.length)
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        match self.pipe.take() {
            Some(pipe) if self.length == 0 => self.pool.put(pipe),
            Some(_) => self.pool.lost(),
            None => {}
        }
    }
}

/// Repeats a call until it has moved so many octets. They are there: none left is an error.
fn move_all(length: usize, mut some: impl FnMut(usize) -> rustix::io::Result<usize>) -> io::Result<()> {
    let mut left = length;
    while left > 0 {
        match some(left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(octets) => left = left.saturating_sub(octets),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn read_exactly(pipe: &Pipe, buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    move_all(buffer.len(), |_| {
        let octets = rustix::io::read(pipe.from.as_fd(), buffer.get_mut(filled..).unwrap_or_default())?;
        filled += octets;
        Ok(octets)
    })
}
