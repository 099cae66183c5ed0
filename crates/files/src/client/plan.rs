//! Plan of a transfer: looks at the destination, and changes nothing.

use std::io;
use std::path::Path;

use super::output::answer_without_effect;
use crate::path::RelPath;
use crate::root::{FileKind, FileStat, Links, Root, RootError};
use crate::transfer::{DiskCommand, DiskError, DiskReport, Found};

/// A change that a transfer would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its path below the destination.
    pub local: RelPath,
    /// The change.
    pub change: PlannedChange,
    /// Kind of the entry.
    pub kind: PlannedKind,
}

/// The planned change of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PlannedChange {
    /// The name is free.
    New,
    /// The entry would be replaced.
    Changed,
    /// The entry would be deleted.
    Deleted,
}

/// Kind of an entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PlannedKind {
    /// A file, of this many bytes if it would be received.
    File(Option<u64>),
    /// A directory.
    Dir,
    /// A link.
    Link,
}

/// Takes what would be done.
pub type OnPlanned = Box<dyn FnMut(&Planned) -> io::Result<()> + Send>;

/// A destination that is only looked at.
pub(super) struct Plan {
    /// `None` if there is none yet.
    root: Option<Root>,
    on_planned: OnPlanned,
    /// Files that would be received.
    pub(super) files: u64,
    /// Bytes of these.
    pub(super) bytes: u64,
}

impl Plan {
    pub(super) fn new(path: &Path, on_planned: OnPlanned) -> Result<Self, RootError> {
        let root = match Root::directory(path, Links::Never) {
            Ok(root) => Some(root),
            Err(RootError::NotFound) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { root, on_planned, files: 0, bytes: 0 })
    }

    pub(super) fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    pub(super) fn report(&mut self, planned: &Planned) -> io::Result<()> {
        (self.on_planned)(planned)
    }

    /// Answers a command as if it were carried out: the transfer then fetches nothing.
    pub(super) fn command(&mut self, command: DiskCommand) -> io::Result<Option<DiskReport>> {
        match &command {
            DiskCommand::Inspect { file, local, listed, .. } => {
                let there = self.stat(local);
                if let Some(error) = self.in_the_way(local, there.as_ref()) {
                    return Ok(Some(DiskReport::Inspected { file: *file, found: Err(error) }));
                }
                let is_same = there.is_some_and(|there| {
                    there.kind == FileKind::File && (there.size, there.modified) == (listed.size, listed.modified)
                });
                if !is_same {
                    self.files += 1;
                    self.bytes = self.bytes.saturating_add(listed.size);
                    self.put(local, there, PlannedKind::File(Some(listed.size)))?;
                }
                let found = Ok(Found::Same { touch: false });
                return Ok(Some(DiskReport::Inspected { file: *file, found }));
            }
            DiskCommand::MakeDir { local } => {
                let there = self.stat(local);
                if there.is_none_or(|there| there.kind != FileKind::Dir) {
                    if let Some(error) = self.in_the_way(local, there.as_ref()) {
                        return Ok(Some(DiskReport::Entry { local: local.clone(), result: Err(error) }));
                    }
                    self.put(local, there, PlannedKind::Dir)?;
                }
            }
            DiskCommand::MakeLink { local, target, .. } => {
                let there = self.stat(local);
                let stored = self.root.as_ref().and_then(|root| root.read_link(local).ok());
                if stored.as_ref() != Some(target) {
                    if let Some(error) = self.in_the_way(local, there.as_ref()) {
                        return Ok(Some(DiskReport::Entry { local: local.clone(), result: Err(error) }));
                    }
                    self.put(local, there, PlannedKind::Link)?;
                }
            }
            DiskCommand::HardLink { local, .. } if self.stat(local).is_none() => {
                self.put(local, None, PlannedKind::File(None))?;
            }
            _ => {}
        }
        Ok(answer_without_effect(command))
    }

    /// Why something can't be put there.
    fn in_the_way(&self, local: &RelPath, there: Option<&FileStat>) -> Option<DiskError> {
        let what = match there?.kind {
            FileKind::Other => "a device, pipe or socket of this name",
            FileKind::Dir
                if !self.root.as_ref()?.open_dir(local).ok()?.entries(0).is_ok_and(|names| names.is_empty()) =>
            {
                "a directory of this name"
            }
            _ => return None,
        };
        Some(DiskError { full: false, message: format!("{what} is in the way") })
    }

    fn put(&mut self, local: &RelPath, there: Option<FileStat>, kind: PlannedKind) -> io::Result<()> {
        let change = if there.is_some() { PlannedChange::Changed } else { PlannedChange::New };
        self.report(&Planned { local: local.clone(), change, kind })
    }

    fn stat(&self, local: &RelPath) -> Option<FileStat> {
        self.root.as_ref()?.stat(local).ok()
    }
}
