//! What the state machine asks of a disk, and what it hears back.

use std::sync::Arc;

use bytes::Bytes;

use crate::digest::{Digest, Leaf, LeafSize};
use crate::path::RelPath;
use crate::protocol::control::{Base, DirStat, Range, Request};
use crate::root::Timestamp;

/// A file of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey(pub u64);

/// One attempt to receive a file's content: another one when the file changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentKey(pub u64);

/// What a file is, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Bytes.
    pub size: u64,
    /// When its content last changed.
    pub modified: Timestamp,
    /// Permission bits.
    pub mode: u32,
    /// Has holes, which are to be kept.
    pub sparse: bool,
}

impl Version {
    /// Whether this and the other are the same content, as far as size and time tell.
    pub fn same_content(&self, other: &Self) -> bool {
        (self.size, self.modified) == (other.size, other.modified)
    }
}

/// Something for the driver to do, in this order.
#[derive(Debug)]
pub enum Output {
    /// Send this to the server.
    Send(Request),
    /// Find out where the files go, and answer with [`super::Transfer::destination`]. Comes once, before any disk command.
    OpenDestination {
        /// What the source is.
        base: Base,
        /// The source's own name, where it is a file or link.
        name: Option<RelPath>,
        /// What a directory is itself, if the server told.
        dir: Option<DirStat>,
    },
    /// Do this on the disk, and answer with a [`DiskReport`] unless said otherwise.
    Disk(DiskCommand),
    /// Tell the person, and go on.
    Warn(String),
    /// There is nothing more to do. Comes once, and last.
    Finished,
}

/// Work for a disk. Commands of the same content and leaf are in order; others may be done in any order, but that what isn't answered is
/// done before whatever comes after it.
#[derive(Debug)]
pub enum DiskCommand {
    /// Say what is at the place of a file: [`DiskReport::Inspected`].
    Inspect {
        /// The file.
        file: FileKey,
        /// Its place.
        local: RelPath,
        /// What the server says that it is.
        listed: Version,
    },
    /// Say whether so many bytes fit: [`DiskReport::Space`].
    CheckSpace {
        /// Bytes that are still to come.
        bytes: u64,
    },
    /// Make a directory: [`DiskReport::Entry`]. Its mode and time follow at the end.
    MakeDir {
        /// Its place.
        local: RelPath,
    },
    /// Make a symbolic link, in place of a file or link that is there: [`DiskReport::Entry`].
    MakeLink {
        /// Its place.
        local: RelPath,
        /// Where it points, checked to stay inside.
        target: Vec<u8>,
        /// Its time.
        modified: Timestamp,
    },
    /// Give a directory its mode and time: [`DiskReport::Entry`]. Comes when nothing more is written below it.
    FinishDir {
        /// Its place; the root is the destination itself, which keeps its mode if it wasn't made for this.
        local: RelPath,
        /// Permission bits.
        mode: u32,
        /// Its time.
        modified: Timestamp,
    },
    /// The file at this place has the right content: give it mode and time: [`DiskReport::Installed`].
    Touch {
        /// The file.
        file: FileKey,
        /// Its place.
        local: RelPath,
        /// What it is to be.
        version: Version,
    },
    /// A whole file that fits into one message: check, write, install: [`DiskReport::Small`].
    Small(SmallFile),
    /// Bytes for this content will follow. Not answered: an error shows when something is written.
    Begin(ContentSpec),
    /// The digest of this content has become known: remember it beside what is there. Not answered.
    NoteDigest {
        /// The content.
        content: ContentKey,
        /// BLAKE3 of the file.
        digest: Digest,
    },
    /// These leaves, ascending, are not what they should be: nobody is to take them for whole any more. Not answered.
    ForgetLeaves {
        /// The content.
        content: ContentKey,
        /// Which.
        leaves: Vec<u64>,
    },
    /// Hash and write: [`DiskReport::Written`].
    Write {
        /// The content.
        content: ContentKey,
        /// Where all of it goes.
        part: Part,
        /// The bytes.
        data: Bytes,
    },
    /// Hash zeros and leave a hole: [`DiskReport::Written`].
    Zeros {
        /// The content.
        content: ContentKey,
        /// The first leaf that it is in; if it goes on to others, it begins and ends with a whole leaf.
        leaf: u64,
        /// Where it begins in the file.
        offset: u64,
        /// How many.
        length: u64,
        /// What to report as credit that is free again.
        credit: u64,
    },
    /// All of the content is written and right: give it its mode, time and name: [`DiskReport::Installed`].
    Install {
        /// The file.
        file: FileKey,
        /// Its content.
        content: ContentKey,
    },
    /// This content is of no use: remove it. Not answered; reports of what was written of it still come.
    Abandon {
        /// The content.
        content: ContentKey,
    },
    /// No more will come for this content in this transfer, but what is there may be of use to a later one. Not answered.
    Leave {
        /// The content.
        content: ContentKey,
    },
}

/// Bytes of one leaf of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The leaf that all of them are in.
    pub leaf: u64,
    /// Where the first one is in the file.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// What to report as credit that is free again.
    pub credit: u64,
}

impl Part {
    /// What a disk says of it.
    pub fn written(&self, content: ContentKey, result: Result<Vec<(u64, Leaf)>, DiskError>) -> DiskReport {
        DiskReport::Written { content, offset: self.offset, length: self.length, credit: self.credit, result }
    }
}

/// A whole file in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallFile {
    /// The file.
    pub file: FileKey,
    /// Its place.
    pub local: RelPath,
    /// What it is.
    pub version: Version,
    /// What its content has to hash to; `None` where that need not be checked.
    pub digest: Option<Digest>,
    /// Its content, in the pieces in which it came.
    pub data: Vec<Bytes>,
    /// What to report as credit that is free again.
    pub credit: u64,
}

impl SmallFile {
    /// Bytes of its content.
    pub fn bytes(&self) -> u64 {
        self.data.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// What is going to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentSpec {
    /// The content.
    pub content: ContentKey,
    /// The place of the file.
    pub local: RelPath,
    /// What the file is.
    pub version: Version,
    /// How it is divided.
    pub leaves: LeafSize,
    /// Whether leaves are hashed.
    pub verify: bool,
    /// If it is known already.
    pub digest: Option<Digest>,
    /// The values of its leaves, if they were known before any of it came: an output that is written in order gets no others.
    pub values: Option<Arc<[Leaf]>>,
    /// Go on with what [`Found::Partial`] told, instead of starting anew.
    pub resume: bool,
}

/// What was on the disk at the place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing of use.
    Nothing,
    /// A file of the same size and time; with another mode if `touch`.
    Same {
        /// Whether its mode has to be set.
        touch: bool,
    },
    /// A file of the same size, but another time, that hashes to this.
    SameSize(Digest),
    /// Part of the file, left by an earlier transfer.
    Partial(Partial),
}

/// Part of a file, left by an earlier transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The digest of the whole file, if it was known.
    pub digest: Option<Digest>,
    /// How the file is divided.
    pub leaves: LeafSize,
    /// Leaves that are whole, and their values (zeros where nothing was verified).
    pub whole: Vec<(u64, Leaf)>,
    /// What is there of the leaf that was being written.
    pub tail: Option<Range>,
}

/// An answer to a [`DiskCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskReport {
    /// To [`DiskCommand::Inspect`].
    Inspected {
        /// The file.
        file: FileKey,
        /// What is there.
        found: Result<Found, DiskError>,
    },
    /// To [`DiskCommand::CheckSpace`].
    Space {
        /// Bytes that are free; `None` where that is not known.
        free: Option<u64>,
    },
    /// To [`DiskCommand::MakeDir`], [`DiskCommand::MakeLink`] and [`DiskCommand::FinishDir`].
    Entry {
        /// The place.
        local: RelPath,
        /// Whether it was done.
        result: Result<(), DiskError>,
    },
    /// To [`DiskCommand::Small`].
    Small {
        /// The file.
        file: FileKey,
        /// Credit that is free again.
        credit: u64,
        /// How it came out.
        result: Result<SmallOutcome, DiskError>,
    },
    /// To [`DiskCommand::Write`] and [`DiskCommand::Zeros`].
    Written {
        /// The content.
        content: ContentKey,
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Credit that is free again.
        credit: u64,
        /// The leaves that this made whole, and their values (zeros where nothing is verified).
        result: Result<Vec<(u64, Leaf)>, DiskError>,
    },
    /// To [`DiskCommand::Install`] and [`DiskCommand::Touch`].
    Installed {
        /// The file.
        file: FileKey,
        /// Whether it was done.
        result: Result<(), DiskError>,
    },
}

impl DiskReport {
    /// What went wrong.
    pub fn error_mut(&mut self) -> Option<&mut DiskError> {
        match self {
            Self::Inspected { found: Err(error), .. }
            | Self::Entry { result: Err(error), .. }
            | Self::Small { result: Err(error), .. }
            | Self::Written { result: Err(error), .. }
            | Self::Installed { result: Err(error), .. } => Some(error),
            _ => None,
        }
    }
}

/// How a file in one piece came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallOutcome {
    /// In place.
    Installed,
    /// Its content is not what the digest says; nothing was written.
    Mismatch,
}

/// Why something could not be done on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DiskError {
    /// The disk is full: nothing else will succeed either.
    pub full: bool,
    /// For people.
    pub message: String,
}
