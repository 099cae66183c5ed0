//! Commands to a disk, and its reports.

use std::sync::Arc;

use bytes::Bytes;

use crate::digest::{Digest, Leaf, LeafSize};
use crate::path::RelPath;
use crate::protocol::control::{Base, DirStat, Range, Request};
use crate::root::{FileStat, Timestamp};

/// Leaves that are whole on the disk, each with its index.
pub type WrittenLeaves = Vec<(u64, Leaf)>;

/// Identifies a file of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey(pub u64);

/// Identifies an attempt to receive a file's content. A file that changed gets another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentKey(pub u64);

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Bytes.
    pub size: u64,
    /// Modification time.
    pub modified: Timestamp,
    /// Permission bits.
    pub mode: u32,
    /// Has holes, which are kept.
    pub sparse: bool,
}

impl Version {
    /// Whether size and time are the same, so that the content should be.
    pub fn same_content(&self, other: &Self) -> bool {
        (self.size, self.modified) == (other.size, other.modified)
    }
}

/// A command for the driver, in order.
#[derive(Debug)]
pub enum Output {
    /// Send a request.
    Send(Request),
    /// Find out where the files go, and call [`super::Transfer::destination`]. Comes once, before any command to the
    /// disk.
    OpenDestination {
        /// Kind of the source.
        base: Base,
        /// The source's own name, if it is a file or link.
        name: Option<RelPath>,
        /// Mode and time of a source that is a directory, if the server sent them.
        dir: Option<DirStat>,
    },
    /// Carry out a command. Each is answered by a [`DiskReport`] unless its documentation says otherwise.
    Disk(DiskCommand),
    /// All files are in place: delete what isn't in the source, and call [`super::Transfer::swept`]. Comes once at most, and
    /// only if nothing has failed.
    Sweep,
    /// All that was fed is in place, or has failed.
    InPlace,
    /// Show a warning.
    Warn(String),
    /// The end. Comes once, and last.
    Finished,
}

/// A command to a disk. Those of one content and leaf are in order. Others may be carried out in any order, except
/// that those without a report are done before what comes after them.
#[derive(Debug)]
pub enum DiskCommand {
    /// Inspect the place of a file. Report: [`DiskReport::Inspected`].
    Inspect {
        /// The file.
        file: FileKey,
        /// Its path below the destination.
        local: RelPath,
        /// The file as it was listed.
        listed: Version,
        /// The digest that it must have, if size and time aren't enough.
        digest: Option<Digest>,
    },
    /// Report the free space: [`DiskReport::Space`].
    CheckSpace {
        /// Bytes that are still to come.
        bytes: u64,
    },
    /// Make a directory; its mode and time follow at the end. Report: [`DiskReport::Entry`].
    MakeDir {
        /// Its path below the destination.
        local: RelPath,
    },
    /// Make a symbolic link, replacing a file or link. Report: [`DiskReport::Entry`].
    MakeLink {
        /// Its path below the destination.
        local: RelPath,
        /// Its target, checked to stay inside the destination.
        target: Vec<u8>,
        /// Modification time.
        modified: Timestamp,
    },
    /// Set the mode and time of a directory. Comes when nothing more is written below it. Report:
    /// [`DiskReport::Entry`].
    FinishDir {
        /// Its path. The root is the destination itself, which keeps its mode if it wasn't made for this transfer.
        local: RelPath,
        /// Permission bits.
        mode: u32,
        /// Modification time.
        modified: Timestamp,
    },
    /// Set the mode and time of a file that has the right content. Report: [`DiskReport::Installed`].
    Touch {
        /// The file.
        file: FileKey,
        /// Its path below the destination.
        local: RelPath,
        /// Its metadata.
        version: Version,
    },
    /// Give a file that is in place another name, replacing a file or link. Report: [`DiskReport::Installed`].
    HardLink {
        /// The file of the other name.
        file: FileKey,
        /// The other name.
        local: RelPath,
        /// The name that it has.
        first: RelPath,
        /// Its metadata.
        version: Version,
    },
    /// Check, write and install a small file. Report: [`DiskReport::Small`].
    Small(SmallFile),
    /// Begin a content. No report: an error shows when something is written.
    Begin(ContentSpec),
    /// Note the digest of a content beside its partial file. No report.
    NoteDigest {
        /// The content.
        content: ContentKey,
        /// BLAKE3 of the file.
        digest: Digest,
    },
    /// Note that these leaves, in ascending order, are wrong. No report.
    ForgetLeaves {
        /// The content.
        content: ContentKey,
        /// Their numbers.
        leaves: Vec<u64>,
    },
    /// Hash and write. Report: [`DiskReport::Written`].
    Write {
        /// The content.
        content: ContentKey,
        /// Position of the bytes.
        part: Part,
        /// The bytes.
        data: Bytes,
    },
    /// Hash zeros and leave a hole. Report: [`DiskReport::Written`].
    Zeros {
        /// The content.
        content: ContentKey,
        /// The first leaf. A range of several leaves begins and ends at borders of leaves.
        leaf: u64,
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Credit to report as free again.
        credit: u64,
    },
    /// Copy leaves from the file in place, as far as they have these values there. At most as many as take a fraction of a second. Report:
    /// [`DiskReport::Reused`].
    Reuse {
        /// The content.
        content: ContentKey,
        /// Their numbers and values.
        leaves: Vec<(u64, Leaf)>,
    },
    /// Install a content that is complete and right: mode, time and name. Report: [`DiskReport::Installed`].
    Install {
        /// The file.
        file: FileKey,
        /// Its content.
        content: ContentKey,
    },
    /// Remove a content that is of no use. No report, but those of earlier writes still come.
    Abandon {
        /// The content.
        content: ContentKey,
    },
    /// Keep a content for a later transfer; no more comes in this one. No report.
    Leave {
        /// The content.
        content: ContentKey,
    },
}

/// Position of bytes within one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The leaf.
    pub leaf: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Credit to report as free again.
    pub credit: u64,
}

impl Part {
    /// The report of having written these bytes.
    pub fn written(&self, content: ContentKey, result: Result<WrittenLeaves, DiskError>) -> DiskReport {
        DiskReport::Written { content, offset: self.offset, length: self.length, credit: self.credit, result }
    }
}

/// A file that arrived as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallFile {
    /// The file.
    pub file: FileKey,
    /// Its path below the destination.
    pub local: RelPath,
    /// Its metadata.
    pub version: Version,
    /// The digest that its content must have; `None` if it isn't verified.
    pub digest: Option<Digest>,
    /// Its content, in the pieces in which it arrived.
    pub data: Vec<Bytes>,
    /// Credit to report as free again.
    pub credit: u64,
}

impl SmallFile {
    /// Bytes of its content.
    pub fn bytes(&self) -> u64 {
        self.data.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// A content that is going to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentSpec {
    /// The content.
    pub content: ContentKey,
    /// The place of the file.
    pub local: RelPath,
    /// Metadata of the file.
    pub version: Version,
    /// Size of its leaves.
    pub leaves: LeafSize,
    /// Whether leaves are hashed.
    pub verify: bool,
    /// The digest, if it is known.
    pub digest: Option<Digest>,
    /// Leaf values, if they are known before any of the content arrives. An output that is written in order gets no
    /// leaf with another value.
    pub values: Option<Arc<[Leaf]>>,
    /// Resume [`Found::Partial`] instead of starting over.
    pub resume: bool,
    /// Leaves are copied from the file in place.
    pub reuse: bool,
}

/// Result of inspecting the place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing usable.
    Nothing,
    /// A file of the same size and time.
    Same {
        /// Its mode differs.
        touch: bool,
    },
    /// A file of the same size and another time, with this digest.
    SameSize(Digest),
    /// A file of another size, which may have leaves in common with the new one.
    Older {
        /// Its size.
        bytes: u64,
    },
    /// A partial file of an earlier transfer.
    Partial(Partial),
}

/// Part of a file, left by an earlier transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The digest of the whole file, if it was known.
    pub digest: Option<Digest>,
    /// Size of the file's leaves.
    pub leaves: LeafSize,
    /// Complete leaves and their values (zeros if nothing was verified).
    pub whole: WrittenLeaves,
    /// The part that is there of the leaf that was being written.
    pub tail: Option<Range>,
}

/// The report of a [`DiskCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskReport {
    /// To [`DiskCommand::Inspect`].
    Inspected {
        /// The file.
        file: FileKey,
        /// Result of the inspection.
        found: Result<Found, DiskError>,
    },
    /// To [`DiskCommand::CheckSpace`].
    Space {
        /// Free bytes; `None` if unknown.
        free: Option<u64>,
    },
    /// To [`DiskCommand::MakeDir`], [`DiskCommand::MakeLink`] and [`DiskCommand::FinishDir`].
    Entry {
        /// The path.
        local: RelPath,
        /// The outcome.
        result: Result<(), DiskError>,
    },
    /// To [`DiskCommand::Small`].
    Small {
        /// The file.
        file: FileKey,
        /// Credit that is free again.
        credit: u64,
        /// The outcome.
        result: Result<SmallOutcome, DiskError>,
    },
    /// To [`DiskCommand::Write`] and [`DiskCommand::Zeros`].
    Written {
        /// The content.
        content: ContentKey,
        /// Offset in the file.
        offset: u64,
        /// Length in bytes. Of an output that is written in order, 0 if these bytes weren't the next ones.
        length: u64,
        /// Credit that is free again.
        credit: u64,
        /// The leaves that this completed, and their values (zeros if nothing is verified).
        result: Result<WrittenLeaves, DiskError>,
    },
    /// To [`DiskCommand::Reuse`].
    Reused {
        /// The content.
        content: ContentKey,
        /// The leaves that are now in the content, with their values.
        result: Result<WrittenLeaves, DiskError>,
    },
    /// To [`DiskCommand::Install`], [`DiskCommand::Touch`] and [`DiskCommand::HardLink`].
    Installed {
        /// The file.
        file: FileKey,
        /// The outcome.
        result: Result<(), DiskError>,
    },
    /// Whether a path is as a push expects it to be.
    Checked {
        /// The file.
        file: FileKey,
        /// Whether the path is as expected.
        result: Result<bool, DiskError>,
    },
    /// A pushed file was installed, or not.
    Put {
        /// The file.
        file: FileKey,
        /// The file's metadata; `None` if its path wasn't as expected.
        result: Result<Option<FileStat>, DiskError>,
    },
}

impl DiskReport {
    /// The error, if there is one.
    pub fn error_mut(&mut self) -> Option<&mut DiskError> {
        match self {
            Self::Inspected { found: Err(error), .. }
            | Self::Entry { result: Err(error), .. }
            | Self::Small { result: Err(error), .. }
            | Self::Written { result: Err(error), .. }
            | Self::Reused { result: Err(error), .. }
            | Self::Installed { result: Err(error), .. }
            | Self::Checked { result: Err(error), .. }
            | Self::Put { result: Err(error), .. } => Some(error),
            _ => None,
        }
    }
}

/// The outcome of a small file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallOutcome {
    /// Installed.
    Installed,
    /// Its content doesn't match the digest; nothing was written.
    Mismatch,
}

/// An error of the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DiskError {
    /// The disk is full: nothing else would succeed.
    pub full: bool,
    /// Operation that failed and the reason, for people.
    pub message: String,
}
