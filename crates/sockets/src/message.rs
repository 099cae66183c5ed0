//! Messages to send: frames of bytes or file ranges.

use bytes::Bytes;
use rustix::fd::AsFd;
use smallvec::SmallVec;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use towpath_blocking::DropOffload;
use towpath_zmtp::Body;
use towpath_zmtp::limits::FRAME_OVERHEAD_BYTES;

/// An open file: a [`std::fs::File`], or an owner of one that is to live until all of it has left.
pub trait OpenFile: AsFd + Debug + Send + Sync {
    /// Itself, if it isn't all there yet.
    fn coming(&self) -> Option<&dyn ComingFile> {
        None
    }
}

impl OpenFile for std::fs::File {}
impl OpenFile for rustix::fd::OwnedFd {}
impl<T: OpenFile> OpenFile for Arc<T> {}
impl<T: OpenFile + 'static> OpenFile for DropOffload<T> {}

/// A file whose content comes from somewhere slower than a disk, from its beginning to its end.
pub trait ComingFile: Debug + Send + Sync {
    /// Bytes that are there.
    fn there(&self) -> u64;

    /// Waits until so many bytes are there. Comes from threads that may block, and fails by itself if the wait is over.
    fn wait_for(&self, bytes: u64) -> io::Result<()>;
}

/// Waits until so many bytes of a file are there. If they don't come, sending finds that the file is too short.
pub(crate) fn wait_for(file: &dyn OpenFile, bytes: u64) {
    if let Some(coming) = file.coming()
        && let Err(error) = coming.wait_for(bytes)
    {
        tracing::warn!(%error, "cannot have a file that is to be sent");
    }
}

/// A range of an open file, sent by the kernel as the body of a frame.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The open file. Its position is not used.
    pub file: Arc<dyn OpenFile>,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range. The frame's header promises them before the first one leaves.
    pub length: u64,
    /// If not 0, [`crate::Event::FileSent`] reports when the range has left.
    pub tag: u64,
    /// Behaviour if the file turns out to be shorter.
    pub if_short: IfShort,
    /// The range is in the page cache, so that the hub need not probe it. Otherwise it does, and other threads prefetch what isn't cached, so
    /// that a slow disk keeps no other peer waiting.
    pub assume_cached: bool,
    /// The file had fewer bytes when the range was sealed.
    pub(crate) was_short: bool,
}

/// Behaviour if a file is shorter than the frame that was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfShort {
    /// Finish the frame with zeros and report it in [`crate::Event::FileSent`], so that the sender can declare it void.
    #[default]
    Pad,
    /// Close the connection: for protocols in which nothing can be declared void afterwards.
    Close,
}

impl FileRange {
    /// A range of `length` bytes from an offset.
    pub fn new(file: Arc<impl OpenFile + 'static>, offset: u64, length: u64) -> FileRange {
        FileRange { file, offset, length, tag: 0, if_short: IfShort::Pad, assume_cached: false, was_short: false }
    }

    /// Asks for [`crate::Event::FileSent`] with this tag, other than 0.
    #[must_use]
    pub fn tagged(mut self, tag: u64) -> FileRange {
        self.tag = tag;
        self
    }

    /// Closes the connection if the file is shorter than promised.
    #[must_use]
    pub fn close_if_short(mut self) -> FileRange {
        self.if_short = IfShort::Close;
        self
    }

    /// States that the range is in the page cache: it is sent without probing.
    #[must_use]
    pub fn assume_cached(mut self) -> FileRange {
        self.assume_cached = true;
        self
    }
}

/// One frame to send.
#[derive(Debug, Clone)]
pub enum Frame {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file.
    File(FileRange),
}

impl Frame {
    /// Bytes of the frame's body.
    pub fn length(&self) -> u64 {
        match self {
            Frame::Bytes(bytes) => bytes.len() as u64,
            Frame::File(range) => range.length,
        }
    }

    pub(crate) fn into_body(self) -> Body<FileRange> {
        match self {
            Frame::Bytes(bytes) => Body::Bytes(bytes),
            Frame::File(range) => {
                let length = range.length;
                Body::External { source: range, length }
            }
        }
    }
}

impl<T: Into<Bytes>> From<T> for Frame {
    fn from(bytes: T) -> Self {
        Frame::Bytes(bytes.into())
    }
}

impl From<FileRange> for Frame {
    fn from(range: FileRange) -> Self {
        Frame::File(range)
    }
}

/// A message to send: its frames, and a tag by which it can be removed while it is queued.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// Its frames, at least one.
    pub frames: SmallVec<[Frame; 4]>,
    /// For [`crate::Hub::remove_queued`].
    pub tag: u64,
}

impl Message {
    /// A message without frames, to be filled.
    pub fn new() -> Message {
        Message::default()
    }

    /// Appends a frame.
    #[must_use]
    pub fn with(mut self, frame: impl Into<Frame>) -> Message {
        self.frames.push(frame.into());
        self
    }

    /// Sets the tag for [`crate::Hub::remove_queued`].
    #[must_use]
    pub fn tagged(mut self, tag: u64) -> Message {
        self.tag = tag;
        self
    }

    /// Bytes of all bodies.
    pub fn length(&self) -> u64 {
        self.frames.iter().map(Frame::length).sum()
    }

    /// Bytes of memory that it takes while it is queued; file ranges take none beside themselves.
    pub fn memory_bytes(&self) -> usize {
        let held = |frame: &Frame| match frame {
            Frame::Bytes(bytes) => bytes.len(),
            Frame::File(_) => 0,
        };
        let beside = if self.frames.spilled() { self.frames.capacity() * size_of::<Frame>() } else { 0 };
        let frames = self.frames.iter().map(|frame| FRAME_OVERHEAD_BYTES + held(frame));
        size_of::<Message>() + beside + frames.sum::<usize>()
    }
}

impl<F: Into<Frame>> FromIterator<F> for Message {
    fn from_iter<I: IntoIterator<Item = F>>(frames: I) -> Message {
        Message { frames: frames.into_iter().map(Into::into).collect(), tag: 0 }
    }
}
