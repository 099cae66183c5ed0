//! Reads bodies from streams and writes them to streams. Small ones are in memory, large ones in the spool.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use towpath_buffers::PageBuffer;
use towpath_client::{Spool, SpoolWriter, SpooledBody, default_spool_folder};
use towpath_requests::Body;

/// Largest body in memory.
const MEMORY_BYTES_MAX: usize = 1024 * 1024;

/// Bytes read at a time.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Failure to spool a large body.
#[derive(Debug)]
pub struct SpoolError {
    folder: Option<PathBuf>,
    reason: io::Error,
}

impl fmt::Display for SpoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.clone().unwrap_or_else(default_spool_folder);
        write!(f, "cannot spool a large body in {}: {}; set --spool", folder.display(), self.reason)
    }
}

/// Failure to read a body.
#[derive(Debug)]
pub enum ReadBodyError {
    /// The stream can't be read.
    Stream(io::Error),
    /// The body can't be spooled.
    Spool(SpoolError),
}

impl fmt::Display for ReadBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadBodyError::Stream(error) => error.fmt(f),
            ReadBodyError::Spool(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for ReadBodyError {
    fn from(error: io::Error) -> ReadBodyError {
        ReadBodyError::Stream(error)
    }
}

impl From<SpoolError> for ReadBodyError {
    fn from(error: SpoolError) -> ReadBodyError {
        ReadBodyError::Spool(error)
    }
}

/// Body that is being received.
pub struct BodyBuilder {
    memory: Vec<u8>,
    file: Option<SpoolWriter>,
    folder: Option<PathBuf>,
}

impl BodyBuilder {
    /// An empty body; a large one goes to a file in this folder ([`Spool::open`]).
    pub fn new(folder: Option<PathBuf>) -> BodyBuilder {
        BodyBuilder { memory: Vec::new(), file: None, folder }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.keep(bytes).map_err(|reason| SpoolError { folder: self.folder.clone(), reason })
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() && self.needs_disk(bytes.len()) {
            let mut file = Spool::open(self.folder.as_deref())?.create()?;
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

    /// True if pushing this many bytes writes to the disk, which may block.
    pub fn needs_disk(&self, more: usize) -> bool {
        self.file.is_some() || self.memory.len() + more > MEMORY_BYTES_MAX
    }

    /// The complete body.
    pub fn finish(self) -> Body {
        match self.file {
            Some(file) => Body::large(file.finish()),
            None => Body::from(self.memory),
        }
    }
}

/// Reads a stream to its end.
pub fn read_body(mut from: impl Read, folder: Option<PathBuf>) -> Result<Body, ReadBodyError> {
    let mut collector = BodyBuilder::new(folder);
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

/// Opens a spooled body's file with a position of its own; `None` for a body in memory.
pub fn open_large(body: &Body) -> Option<io::Result<File>> {
    let large: &dyn Any = &**body.as_large()?;
    let spooled: &SpooledBody = large.downcast_ref()?;
    let reopened = File::open(format!("/proc/self/fd/{}", spooled.file().as_raw_fd()));
    // Without /proc the position is shared, but nothing else uses it: a command has one request at a time.
    Some(reopened.or_else(|_| {
        let mut same = spooled.file().try_clone()?;
        same.rewind()?;
        Ok(same)
    }))
}

/// Writes the frames of a body, one after another.
pub fn write_body(body: &Body, mut to: impl Write) -> io::Result<()> {
    match open_large(body) {
        Some(file) => io::copy(&mut file?, &mut to).map(drop)?,
        None => body.frames().into_iter().flatten().try_for_each(|frame| to.write_all(frame))?,
    }
    to.flush()
}
