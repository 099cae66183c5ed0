//! Where the files come from that a server serves.
//!
//! A [`Root`] is one source: a directory of this machine, or one file. Others, such as an object store, give listings by pages and contents by
//! pieces. The jobs run on any of them. What only a directory of this machine can do asks for [`Source::local`]: links, mounts, holes, hard
//! links and versions. Pushed files are renamed in a directory, and put into any other source that is a [`Store`]. A directory is watched by events of the system; others are listed again and again.

mod local;
#[cfg(test)]
pub(super) mod memory;

use crate::digest::{Digest, Digested, FileKey, FileVersion, Validator};
use crate::path::RelPath;
use crate::relay::Via;
use crate::root::{Dir, FileKind, FileStat, Root, RootError, Timestamp};
use bytes::Bytes;
use std::fmt::Debug;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// The files that a server serves.
///
/// All calls come from threads that may block, some of them at the same time. A call that takes long keeps one of a few threads; it has to end
/// by itself, as by a timeout. An error concerns the one path, but for [`RootError::Busy`], after which clients try again later.
pub trait Source: Debug + Send + Sync + 'static {
    /// Attributes of what is at a path; of the top for the empty one.
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError>;

    /// Opens a regular file. A source may fetch the beginning of its content at the same time.
    fn open(&self, path: &RelPath) -> Result<Opened, RootError>;

    /// Opens a directory to list it; the top for the empty path.
    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError>;

    /// Learns of files that will be opened soon, in this order, and may ask for or fetch some of them. Blocks for a moment at most.
    fn will_open(&self, _paths: &mut dyn Iterator<Item = &RelPath>) {}

    /// Figures of its cache, if it has one. Doesn't block.
    fn cache(&self) -> Option<CacheStats> {
        None
    }

    /// Why nothing can be had from where the files are, and since when, as far as that is known. Doesn't block.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// The servers that its files come through, if it has them from another server. The server that has this source is the last of them.
    fn via(&self) -> Option<Arc<Via>> {
        None
    }

    /// This source, if it is a directory or file of this machine.
    fn local(&self) -> Option<&Root> {
        None
    }

    /// The same as a place for files that clients push, if it is one. A directory of this machine takes them without.
    fn store(&self) -> Option<&dyn Store> {
        None
    }
}

/// A source that takes whole files, and has each in place at once or not at all. As of a [`Source`], calls block, and end by themselves.
pub trait Store {
    /// Why no file of this path and size can be put, if that is so. Doesn't block.
    fn check(&self, path: &RelPath, size: u64) -> Result<(), String>;

    /// The file at a path now; `None` if nothing is there. Of a directory, fails with [`RootError::NotAFile`].
    fn look(&self, path: &RelPath) -> Result<Option<Stored>, RootError>;

    /// Puts a file at a path, if that is as it has to be. It isn't there before all of it has been put and has its digest; else fails with
    /// [`RootError::Changed`]. `given_up` is polled: then it fails.
    fn put(
        &self,
        path: &RelPath,
        file: &NewFile<'_>,
        replaced: &Replaced,
        given_up: &(dyn Fn() -> bool + Sync),
    ) -> Result<Put, RootError>;
}

/// A file that is in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its attributes.
    pub attributes: Attributes,
    /// BLAKE3, if the store was given it with the file.
    pub digest: Option<Digest>,
    /// The store's own name for its version.
    pub tag: Option<String>,
}

/// A file to put into a store.
#[derive(Debug)]
pub struct NewFile<'a> {
    /// Its content, which isn't verified.
    pub content: NewContent<'a>,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification.
    pub modified: Timestamp,
    /// The permission bits.
    pub mode: u32,
    /// BLAKE3 that the content has to have.
    pub digest: Digest,
}

/// The content of a file to put into a store.
#[derive(Debug)]
pub enum NewContent<'a> {
    /// In memory.
    Bytes(Bytes),
    /// In a file of this machine.
    File(&'a File),
}

/// State of a path without which a file isn't put there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// Any.
    Anything,
    /// Nothing is there.
    Nothing,
    /// A file with this [`Stored::tag`] is there.
    Tag(String),
}

/// The end of putting a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// The file is in place. Its attributes, unless they are unknown, or another one is there by now.
    InPlace(Option<Attributes>),
    /// The path isn't as it has to be, or wasn't when the answer was lost by which this file was put.
    NotAsExpected,
}

/// A time in which a source can't get at its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its cause.
    pub reason: String,
    /// How long ago it began.
    pub age: Duration,
}

/// Figures of a source's cache: sizes now, and sums since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes in it.
    pub bytes: u64,
    /// Limit on them.
    pub bytes_max: u64,
    /// Pieces that were there when they were wanted.
    pub hits: u64,
    /// Pieces that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Pieces that were evicted.
    pub evicted: u64,
    /// Reads from behind it, since nothing could be kept.
    pub bypassed: u64,
    /// Whether nothing can be kept now.
    pub is_broken: bool,
}

/// Metadata of an entry, known without opening it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Other sources than a [`Root`] have files and directories only.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification of the content.
    pub modified: Timestamp,
    /// The permission bits.
    pub mode: u32,
    /// The version of the content.
    pub validator: Validator,
    /// Metadata of the local file with the content.
    pub local: Option<FileStat>,
}

/// An open file.
#[derive(Debug)]
pub struct Opened {
    /// Attributes of the version that will be read.
    pub attributes: Attributes,
    /// Where its content comes from.
    pub content: Content,
}

/// The content of an open file.
#[derive(Debug)]
pub enum Content {
    /// A regular file of this machine, which is sent from the page cache.
    File(File),
    /// Read into memory piece by piece.
    Pieces(Arc<dyn Pieces>),
}

/// One version of a file, read into memory piece by piece. Dropping it doesn't block.
pub trait Pieces: Debug + Send + Sync + 'static {
    /// Reads bytes from an offset on; returns their number, 0 only at the end. They are of the version that was opened: if there is another
    /// one by now, fails with [`RootError::Changed`].
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError>;

    /// The digest of the version with the values of its leaves, if the source knows them: otherwise it is read and hashed. Blocks.
    fn digested(&self) -> Result<Option<Arc<Digested>>, RootError> {
        Ok(None)
    }

    /// A file of a local file system that has these bytes of the version, and where they begin in it. It never changes. `None`: read them.
    /// Unless it may wait, this doesn't block.
    fn file_at(&self, _offset: u64, _length: u64, _may_wait: bool) -> Result<Option<(Arc<File>, u64)>, RootError> {
        Ok(None)
    }
}

/// A directory that was opened to be listed.
#[derive(Debug)]
pub enum OpenedDir {
    /// One of this machine.
    Local(Dir),
    /// Listed by pages.
    Pages(Box<dyn Pages>),
}

/// The entries of a directory, page by page. Between two pages it is kept for as long as a client likes, so it should hold no connection.
/// Dropping it doesn't block.
pub trait Pages: Debug + Send {
    /// The next page, which may be empty; `None` behind the last one. Names come in the order of their bytes, each of them once. After an error
    /// this may be called again.
    fn next(&mut self) -> Result<Option<Vec<Listed>>, RootError>;
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name. One that can't be in a path is reported to clients as unreadable.
    pub name: Box<[u8]>,
    /// Its attributes.
    pub attributes: Attributes,
    /// Why its content can't be read now, if the source knows that without asking.
    pub unreadable: Option<&'static str>,
}

impl Attributes {
    /// Whether it may have holes.
    pub(super) fn is_sparse(&self) -> bool {
        self.local.is_some_and(|stat| stat.is_sparse())
    }

    /// The device that its content is read from. Each file that is on none of this machine counts as one, so that a slow one delays no others.
    pub(super) fn device(&self) -> u64 {
        self.local.map_or_else(|| self.validator.parts().0, |stat| stat.device)
    }
}

impl From<&Attributes> for FileKey {
    fn from(of: &Attributes) -> FileKey {
        FileKey { validator: of.validator, size: of.size, modified: of.modified }
    }
}

impl From<&Attributes> for FileVersion {
    fn from(of: &Attributes) -> FileVersion {
        FileVersion { key: of.into(), changed: of.local.map(|stat| stat.changed), is_sparse: of.is_sparse() }
    }
}
