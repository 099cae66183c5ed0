//! Bodies that come from streams and go to them: in memory as long as they are small, in a file otherwise.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use towpath_buffers::PageBuffer;
use towpath_journal::{Spool, SpoolWriter, SpooledBody};
use towpath_requests::Body;

/// Bytes that are kept in memory.
const MEMORY_BYTES_MAX: usize = 1024 * 1024;

/// Bytes read at a time.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Why a body that is coming in isn't kept: the place for large ones.
#[derive(Debug)]
pub struct NoPlace {
    folder: PathBuf,
    reason: io::Error,
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no place for a large body: {}: {}", self.folder.display(), self.reason)
    }
}

/// Why there is no body.
#[derive(Debug)]
pub enum Unread {
    /// The stream.
    Stream(io::Error),
    /// It was read, and not kept.
    NoPlace(NoPlace),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Stream(error) => error.fmt(f),
            Unread::NoPlace(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        Unread::Stream(error)
    }
}

impl From<NoPlace> for Unread {
    fn from(error: NoPlace) -> Unread {
        Unread::NoPlace(error)
    }
}

/// A body that is coming in.
pub struct Collector {
    memory: Vec<u8>,
    file: Option<SpoolWriter>,
    folder: PathBuf,
}

impl Collector {
    /// Nothing yet; what is large goes to a file in this folder.
    pub fn new(folder: PathBuf) -> Collector {
        Collector { memory: Vec::new(), file: None, folder }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), NoPlace> {
        self.keep(bytes).map_err(|reason| NoPlace { folder: self.folder.clone(), reason })
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() && self.needs_disk(bytes.len()) {
            let mut file = Spool::new(&self.folder)?.create()?;
            file.write(&std::mem::take(&mut self.memory))?;
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => {
                self.memory.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Whether so many more bytes would go to the disk, which may take its time.
    pub fn needs_disk(&self, more: usize) -> bool {
        self.file.is_some() || self.memory.len() + more > MEMORY_BYTES_MAX
    }

    /// The body.
    pub fn finish(self) -> Body {
        match self.file {
            Some(file) => Body::large(file.finish()),
            None => Body::from(self.memory),
        }
    }
}

/// All that a stream has.
pub fn read_body(mut from: impl Read, folder: PathBuf) -> Result<Body, Unread> {
    let mut collector = Collector::new(folder);
    let mut piece = PageBuffer::zeroed(PIECE_BYTES);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(collector.finish()),
            Ok(bytes) => collector.push(&piece[..bytes])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A large body's file, opened anew: with a position of its own.
pub fn open_large(body: &Body) -> Option<io::Result<File>> {
    let large: &dyn Any = &**body.as_large()?;
    let spooled: &SpooledBody = large.downcast_ref()?;
    let anew = File::open(format!("/proc/self/fd/{}", spooled.file().as_raw_fd()));
    // Without /proc they share a position, which nothing else uses: one command has a request at a time.
    Some(anew.or_else(|_| {
        let mut same = spooled.file().try_clone()?;
        same.rewind()?;
        Ok(same)
    }))
}

/// Writes the frames of a body one behind the other.
pub fn write_body(body: &Body, mut to: impl Write) -> io::Result<()> {
    match open_large(body) {
        Some(file) => io::copy(&mut file?, &mut to).map(drop)?,
        None => body.frames().into_iter().flatten().try_for_each(|frame| to.write_all(frame))?,
    }
    to.flush()
}
