//! An open file of which a version is being sent: the stat at opening says which.

use super::Failure;
use super::deferred_close::{DeferredClose, handle};
use super::resource_errors::Shortage;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::root::{FileStat, Root, RootError};
use std::fs::File;
use std::sync::Arc;
use towpath_buffers::PageBuffer;

/// An open regular file, and what it was when it was opened. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) file: Arc<DeferredClose>,
    pub(super) stat: FileStat,
    /// Whether it is on a local file system. Elsewhere everything that isn't known to be in memory may block.
    pub(super) is_local: bool,
}

impl OpenFile {
    /// Opens a file below the root. Blocks.
    pub(super) fn open(root: &Root, path: &RelPath) -> Result<OpenFile, Failure> {
        Ok(OpenFile::opened(root, root.open_file(path)?))
    }

    /// The same if nothing that is mounted below the root is on the way: [`Root::open_unmounted_file`].
    pub(super) fn open_unmounted(root: &Root, path: &RelPath) -> Result<Option<OpenFile>, Failure> {
        Ok(root.open_unmounted_file(path)?.map(|opened| OpenFile::opened(root, opened)))
    }

    fn opened(root: &Root, (file, stat): (File, FileStat)) -> OpenFile {
        let is_local = root.is_local(&file, &stat);
        let far = (!is_local).then_some(stat.device);
        OpenFile { file: Arc::new(handle(file, far)), stat, is_local }
    }

    /// The same where it can't block; `None` where it may.
    pub(super) fn open_cached(root: &Root, path: &RelPath) -> Result<Option<OpenFile>, Failure> {
        let opened = root.open_cached_file(path)?;
        Ok(opened.map(|(file, stat)| OpenFile { file: Arc::new(handle(file, None)), stat, is_local: true }))
    }

    /// Appends the file from its beginning, as far as this size or a little beyond; how many bytes that were. Blocks.
    pub(super) fn append(&self, buffer: &mut PageBuffer, size: usize) -> Result<usize, Failure> {
        let begin = buffer.len();
        while buffer.len() - begin < size {
            let at = buffer.len() - begin;
            buffer.reserve(size - at);
            if buffer.append_from(&*self.file, at as u64).map_err(|errno| Failure::io(&errno.into()))? == 0 {
                break;
            }
        }
        Ok(buffer.len() - begin)
    }

    /// Reads exactly these bytes. Blocks. A file that ends before them has changed.
    pub(super) fn read(&self, offset: u64, length: usize) -> Result<PageBuffer, Failure> {
        let mut bytes = PageBuffer::with_capacity(length);
        while bytes.len() < length {
            let at = offset.saturating_add(bytes.len() as u64);
            if bytes.append_from(&*self.file, at).map_err(|errno| Failure::io(&errno.into()))? == 0 {
                return Err(Failure::changed("the file shrank while it was sent"));
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Whether the open file still is the version that it was at opening, so far as its times and size tell. Blocks where the file
    /// isn't on a local file system.
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

    /// What the system says of a file; or that there is too little of something, which it says nothing of the file by.
    pub(super) fn io(error: &std::io::Error) -> Failure {
        match Shortage::of(error) {
            Some(shortage) => Failure::short(shortage, error),
            None => Failure { code: ErrorCode::Io, message: error.to_string() },
        }
    }

    /// There is no thread for a job.
    pub(super) fn no_thread(error: &std::io::Error) -> Failure {
        Failure::short(Shortage::Threads, error)
    }

    fn short(shortage: Shortage, error: &std::io::Error) -> Failure {
        shortage.tell(error);
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
            RootError::Denied => ErrorCode::Denied,
            RootError::NotAFile => ErrorCode::NotAFile,
            // A limit of the protocol's server, and no fault of its disk.
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
    fn a_directory_over_the_limit_is_no_fault_of_the_disk() {
        let failure = Failure::from(RootError::TooMany(7));
        assert_eq!(failure.code, ErrorCode::BadRequest);
        assert!(failure.message.contains("more than 7 names"), "{}", failure.message);
    }
}
