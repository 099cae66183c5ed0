//! An open file, of which one version is sent.

use super::Failure;
use super::client_root::ClientRoot;
use super::deferred_close::{DeferredClose, handle};
use super::resource_errors::Shortage;
use super::source::{Attributes, Content, Opened, Pieces};
use crate::digest::{Digested, FileVersion, ReadAt};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::root::{FileStat, RootError};
use std::fs::File;
use std::sync::Arc;
use towpath_buffers::{MappedBuffer, PageBuffer};
use towpath_sockets::FileRange;

/// An open regular file with its attributes at opening, which identify the version. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    content: Handle,
    pub(super) attributes: Attributes,
}

#[derive(Clone, Debug)]
enum Handle {
    /// Its metadata at opening is among the attributes. On a file system that isn't local any operation may block.
    File {
        file: Arc<DeferredClose>,
        is_local: bool,
    },
    Pieces(Arc<dyn Pieces>),
    /// A local file that has some bytes of such a file, and never changes.
    Piece(Arc<File>),
}

impl OpenFile {
    /// Opens a file below the root. Blocks.
    pub(super) fn open(root: &ClientRoot, path: &RelPath) -> Result<OpenFile, Failure> {
        Ok(OpenFile::opened(root, root.open_file(path)?)?)
    }

    /// The same without a word to the operator if it may not be read.
    pub(super) fn open_quietly(root: &ClientRoot, path: &RelPath) -> Result<OpenFile, RootError> {
        OpenFile::opened(root, root.open_file_quietly(path)?)
    }

    /// Opens a local file whose path crosses no mount: [`Root::open_unmounted_file`](crate::root::Root::open_unmounted_file).
    pub(super) fn open_unmounted(root: &ClientRoot, path: &RelPath) -> Result<Option<OpenFile>, Failure> {
        let opened = root.open_unmounted_file(path)?;
        Ok(opened.map(|opened| OpenFile::opened(root, opened)).transpose()?)
    }

    fn opened(root: &ClientRoot, Opened { mut attributes, content }: Opened) -> Result<OpenFile, RootError> {
        let content = match content {
            Content::File(file) => {
                let stat = attributes.local.map_or_else(|| FileStat::try_from(&file), Ok)?;
                attributes.local = Some(stat);
                let is_local = root.is_local(&file, &stat);
                let far = (!is_local).then_some(stat.device);
                Handle::File { file: Arc::new(handle(file, far)), is_local }
            }
            Content::Pieces(pieces) => Handle::Pieces(pieces),
        };
        Ok(OpenFile { content, attributes })
    }

    /// Opens a file if that can't block; `None` if it might.
    pub(super) fn open_cached(root: &ClientRoot, path: &RelPath) -> Result<Option<OpenFile>, Failure> {
        let opened = root.open_cached_file(path)?;
        Ok(opened.map(|(file, stat)| {
            let content = Handle::File { file: Arc::new(handle(file, None)), is_local: true };
            OpenFile { content, attributes: stat.into() }
        }))
    }

    /// The file itself, if it is one of this machine.
    pub(super) fn descriptor(&self) -> Option<&File> {
        match &self.content {
            Handle::File { file, .. } => Some(file),
            Handle::Piece(file) => Some(file),
            Handle::Pieces(_) => None,
        }
    }

    /// A range of it to be sent from the page cache, if it is one of this machine.
    pub(super) fn range(&self, offset: u64, length: u64) -> Option<FileRange> {
        match &self.content {
            Handle::File { file, .. } => Some(FileRange::new(Arc::clone(file), offset, length)),
            Handle::Piece(file) => Some(FileRange::new(Arc::clone(file), offset, length)),
            Handle::Pieces(_) => None,
        }
    }

    /// A local file that has these bytes, and where they begin in it, if it isn't one of this machine itself. Unless it may wait, this doesn't
    /// block.
    pub(super) fn piece(&self, offset: u64, length: u64, may_wait: bool) -> Result<Option<(OpenFile, u64)>, RootError> {
        let Handle::Pieces(pieces) = &self.content else { return Ok(None) };
        let found = pieces.file_at(offset, length, may_wait)?;
        Ok(found.map(|(file, at)| (OpenFile { content: Handle::Piece(file), attributes: self.attributes }, at)))
    }

    /// Whether it is on a local file system. Elsewhere any operation may block.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.content, Handle::File { is_local: true, .. } | Handle::Piece(_))
    }

    /// Appends the file up to this size, or a little more, as far as there is space, and returns the number of bytes. Blocks.
    pub(super) fn append(&self, buffer: &mut MappedBuffer, size: usize) -> Result<usize, Failure> {
        let begin = buffer.len();
        while buffer.len() - begin < size {
            let done = buffer.len() - begin;
            let at = done as u64;
            let count = match &self.content {
                Handle::File { file, .. } => buffer.append_from(&**file, at).map_err(reading)?,
                Handle::Piece(file) => buffer.append_from(&**file, at).map_err(reading)?,
                Handle::Pieces(pieces) => buffer.append_with(|space| {
                    let wanted = space.len().min(size - done);
                    pieces.read_at(space.get_mut(..wanted).unwrap_or_default(), at)
                })?,
            };
            if count == 0 {
                break;
            }
        }
        Ok(buffer.len() - begin)
    }

    /// Reads exactly these bytes. Fails if the file has shrunk. Blocks.
    pub(super) fn read(&self, offset: u64, length: usize) -> Result<PageBuffer, Failure> {
        let (mut bytes, mut count) = match self.content {
            Handle::File { .. } | Handle::Piece(_) => (PageBuffer::with_capacity(length), 0),
            Handle::Pieces(_) => (PageBuffer::zeroed(length), 0),
        };
        while count < length {
            let at = offset.saturating_add(count as u64);
            let read = match &self.content {
                Handle::File { file, .. } => bytes.append_from(&**file, at).map_err(reading)?,
                Handle::Piece(file) => bytes.append_from(&**file, at).map_err(reading)?,
                Handle::Pieces(pieces) => pieces.read_at(bytes.get_mut(count..).unwrap_or_default(), at)?,
            };
            if read == 0 {
                return Err(self.ended_early());
            }
            count += read;
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The failure if the file has fewer bytes than it said. Blocks unless the file is on a local file system.
    pub(super) fn ended_early(&self) -> Failure {
        self.check().err().unwrap_or_else(|| RootError::SizeUnknown.into())
    }

    /// Fails if the file's times or size have changed since it was opened. Blocks unless the file is on a local file system. Of pieces each
    /// was checked when it was read.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Some((was, now)) = self.change()? else { return Ok(()) };
        let what = if now.size < was.size {
            "the file shrank"
        } else if now.size > was.size {
            "the file grew"
        } else {
            "the file changed"
        };
        Err(Failure::changed(format!("{what} while it was sent")))
    }

    /// The metadata of a file of this machine at opening and now, if it has changed.
    fn change(&self) -> Result<Option<(&FileStat, FileStat)>, RootError> {
        let (Some(file), Some(stat)) = (self.descriptor(), &self.attributes.local) else { return Ok(None) };
        let now = FileStat::try_from(file)?;
        Ok((!now.same_content(stat)).then_some((stat, now)))
    }
}

impl ReadAt for OpenFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError> {
        match &self.content {
            Handle::File { file, .. } => <File as ReadAt>::read_at(file, buffer, offset),
            Handle::Piece(file) => <File as ReadAt>::read_at(file, buffer, offset),
            Handle::Pieces(pieces) => pieces.read_at(buffer, offset),
        }
    }

    fn known(&self) -> Result<Option<Arc<Digested>>, RootError> {
        match &self.content {
            Handle::Pieces(pieces) => pieces.digested(),
            _ => Ok(None),
        }
    }

    fn is_still(&self, _: &FileVersion) -> Result<bool, RootError> {
        Ok(self.change()?.is_none())
    }

    fn hole_at(&self, offset: u64, size: u64) -> u64 {
        self.descriptor().map_or(0, |file| file.hole_at(offset, size))
    }
}

fn reading(errno: rustix::io::Errno) -> Failure {
    Failure::io(&errno.into())
}

impl Failure {
    pub(super) fn changed(message: impl Into<String>) -> Failure {
        Failure { code: ErrorCode::Changed, message: message.into() }
    }

    /// An I/O error; `busy` if a resource is exhausted, which says nothing about the file.
    pub(super) fn io(error: &std::io::Error) -> Failure {
        match Shortage::of(error) {
            Some(shortage) => Failure::short(shortage, error),
            None => Failure { code: ErrorCode::Io, message: error.to_string() },
        }
    }

    /// No thread can be started for a job.
    pub(super) fn no_thread(error: &std::io::Error) -> Failure {
        Failure::short(Shortage::Threads, error)
    }

    fn short(shortage: Shortage, error: &std::io::Error) -> Failure {
        shortage.log(error);
        Failure { code: ErrorCode::Busy, message: shortage.message().to_owned() }
    }
}

impl From<RootError> for Failure {
    fn from(error: RootError) -> Failure {
        if let RootError::Io(error) = &error {
            return Failure::io(error);
        }
        let code = match &error {
            RootError::NotFound | RootError::Outside | RootError::Path(_) | RootError::NotADirectory => {
                ErrorCode::NotFound
            }
            RootError::Denied | RootError::NotAllowed => ErrorCode::Denied,
            RootError::NotAFile | RootError::SizeUnknown => ErrorCode::NotAFile,
            RootError::Changed => ErrorCode::Changed,
            RootError::Busy(_) => ErrorCode::Busy,
            // A limit of this server, not an error of its disk.
            RootError::TooMany(_) => ErrorCode::BadRequest,
            RootError::Exists | RootError::Io(_) => ErrorCode::Io,
        };
        Failure { code, message: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_over_the_limit_is_not_an_io_error() {
        let failure = Failure::from(RootError::TooMany(7));
        assert_eq!(failure.code, ErrorCode::BadRequest);
        assert!(failure.message.contains("more than 7 names"), "{}", failure.message);
    }
}
