//! An open file, of which one version is sent.

use super::Failure;
use super::client_root::ClientRoot;
use super::deferred_close::{DeferredClose, handle};
use super::resource_errors::Shortage;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::root::{FileStat, RootError};
use std::fs::File;
use std::sync::Arc;
use towpath_buffers::{MappedBuffer, PageBuffer};

/// An open regular file with its metadata at opening, which identifies the version. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) file: Arc<DeferredClose>,
    pub(super) stat: FileStat,
    /// Whether it is on a local file system. Elsewhere any operation may block.
    pub(super) is_local: bool,
}

impl OpenFile {
    /// Opens a file below the root. Blocks.
    pub(super) fn open(root: &ClientRoot, path: &RelPath) -> Result<OpenFile, Failure> {
        Ok(OpenFile::opened(root, root.open_file(path)?))
    }

    /// Opens a file whose path crosses no mount: [`Root::open_unmounted_file`].
    pub(super) fn open_unmounted(root: &ClientRoot, path: &RelPath) -> Result<Option<OpenFile>, Failure> {
        Ok(root.open_unmounted_file(path)?.map(|opened| OpenFile::opened(root, opened)))
    }

    fn opened(root: &ClientRoot, (file, stat): (File, FileStat)) -> OpenFile {
        let is_local = root.is_local(&file, &stat);
        let far = (!is_local).then_some(stat.device);
        OpenFile { file: Arc::new(handle(file, far)), stat, is_local }
    }

    /// Opens a file if that can't block; `None` if it might.
    pub(super) fn open_cached(root: &ClientRoot, path: &RelPath) -> Result<Option<OpenFile>, Failure> {
        let opened = root.open_cached_file(path)?;
        Ok(opened.map(|(file, stat)| OpenFile { file: Arc::new(handle(file, None)), stat, is_local: true }))
    }

    /// Appends the file up to this size, or a little more, as far as there is space, and returns the number of bytes. Blocks.
    pub(super) fn append(&self, buffer: &mut MappedBuffer, size: usize) -> Result<usize, Failure> {
        let begin = buffer.len();
        while buffer.len() - begin < size {
            let at = buffer.len() - begin;
            if buffer.append_from(&*self.file, at as u64).map_err(|errno| Failure::io(&errno.into()))? == 0 {
                break;
            }
        }
        Ok(buffer.len() - begin)
    }

    /// Reads exactly these bytes. Fails if the file has shrunk. Blocks.
    pub(super) fn read(&self, offset: u64, length: usize) -> Result<PageBuffer, Failure> {
        let mut bytes = PageBuffer::with_capacity(length);
        while bytes.len() < length {
            let at = offset.saturating_add(bytes.len() as u64);
            if bytes.append_from(&*self.file, at).map_err(|errno| Failure::io(&errno.into()))? == 0 {
                return Err(self.ended_early());
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The failure if the file has fewer bytes than it said. Blocks unless the file is on a local file system.
    pub(super) fn ended_early(&self) -> Failure {
        self.check().err().unwrap_or_else(|| RootError::SizeUnknown.into())
    }

    /// Fails if the file's times or size have changed since it was opened. Blocks unless the file is on a local file system.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let now = FileStat::try_from(&**self.file)?;
        if now.same_content(&self.stat) {
            return Ok(());
        }
        let what = if now.size < self.stat.size {
            "the file shrank"
        } else if now.size > self.stat.size {
            "the file grew"
        } else {
            "the file changed"
        };
        Err(Failure::changed(format!("{what} while it was sent")))
    }
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
