//! A directory on the path of a walk.

use super::{memory_bytes, name_bytes};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::root::{Dir, DirEntry, RootError};
use crate::server::Failure;
use crate::server::client_root::{ClientRoot, SeenDir};
use crate::server::resource_errors::Shortage;
use crate::server::source::{Attributes, Listed, OpenedDir, Pages};
use std::sync::Arc;
use towpath_quota::{Permit, Quota};

#[derive(Debug)]
pub(super) struct Level {
    pub(super) path: RelPath,
    /// The same with links resolved: for rules.
    pub(super) real: RelPath,
    pub(super) names: Names,
    /// For the names.
    permit: Permit,
    /// Device and inode of a local directory, by which a loop of links is noticed.
    pub(super) identity: Option<(u64, u64)>,
    /// Everything below is listed, since the listing is recursive or the directory matched.
    pub(super) all: bool,
}

/// Names not walked yet, in reverse order.
#[derive(Debug)]
pub(super) enum Names {
    /// All of them, and the directory while it is open.
    Dir { names: Vec<DirEntry>, open: Option<Dir> },
    /// Those of the last page.
    Pages { entries: Vec<Listed>, pages: Box<dyn Pages>, is_last: bool },
}

/// The names of a directory can't be read.
pub(super) enum LevelError {
    Root(RootError),
    /// Memory for names, or another resource, is exhausted.
    Busy(Failure),
}

impl From<RootError> for LevelError {
    fn from(error: RootError) -> LevelError {
        if Shortage::is_why(&error) { LevelError::Busy(error.into()) } else { LevelError::Root(error) }
    }
}

impl LevelError {
    pub(super) fn no_space() -> LevelError {
        LevelError::Busy(Failure::new(ErrorCode::Busy, "listings that are not over keep too many names"))
    }
}

impl From<LevelError> for Failure {
    fn from(error: LevelError) -> Failure {
        match error {
            LevelError::Root(error) => error.into(),
            LevelError::Busy(failure) => failure,
        }
    }
}

impl Level {
    /// A level of a local directory, whose names are these in reverse order.
    pub(super) fn local(
        path: &RelPath,
        (real, dir): (RelPath, Dir),
        names: Vec<DirEntry>,
        quota: &Arc<Quota>,
        all: bool,
    ) -> Result<Level, LevelError> {
        let permit = quota.try_acquire(memory_bytes(&names)).ok_or_else(LevelError::no_space)?;
        let stat = dir.own_stat()?;
        let identity = Some((stat.device, stat.inode));
        Ok(Level { path: path.clone(), real, names: Names::Dir { names, open: Some(dir) }, permit, identity, all })
    }

    /// A level of a directory that is listed by pages.
    pub(super) fn of_pages(
        path: &RelPath,
        (real, pages): (RelPath, Box<dyn Pages>),
        quota: &Arc<Quota>,
        all: bool,
    ) -> Result<Level, LevelError> {
        let permit = quota.try_acquire(0).ok_or_else(LevelError::no_space)?;
        let names = Names::Pages { entries: Vec::new(), pages, is_last: false };
        let mut level = Level { path: path.clone(), real, names, permit, identity: None, all };
        // So that a directory that can't be listed is known now.
        level.next_page(quota)?;
        Ok(level)
    }

    /// Gets the next page of names; false if there is none.
    pub(super) fn next_page(&mut self, quota: &Arc<Quota>) -> Result<bool, LevelError> {
        let Names::Pages { entries, pages, is_last: is_last @ false } = &mut self.names else { return Ok(false) };
        let Some(mut page) = pages.next()? else {
            *is_last = true;
            return Ok(false);
        };
        page.reverse();
        let names: u64 = page.iter().map(|entry| name_bytes(&entry.name)).sum();
        let bytes = (page.capacity() * size_of::<Listed>()) as u64 + names;
        self.permit = quota.try_acquire(bytes).ok_or_else(LevelError::no_space)?;
        *entries = page;
        Ok(true)
    }

    /// The directory, which is a local one.
    pub(super) fn open(&mut self, root: &ClientRoot) -> Result<&Dir, RootError> {
        let Names::Dir { open, .. } = &mut self.names else { return Err(RootError::NotFound) };
        let dir = match open.take() {
            Some(dir) => dir,
            None => match root.open_dir(&self.path)? {
                SeenDir { dir: OpenedDir::Local(dir), path } => {
                    self.real = path;
                    dir
                }
                SeenDir { .. } => return Err(RootError::NotFound),
            },
        };
        Ok(open.insert(dir))
    }
}

impl Names {
    /// Takes the next one, with its attributes if the listing has them.
    pub(super) fn pop(&mut self) -> Option<(Box<[u8]>, Option<Attributes>)> {
        match self {
            Names::Dir { names, .. } => names.pop().map(|entry| (entry.name, None)),
            Names::Pages { entries, .. } => entries.pop().map(|of| (of.name, Some(of.attributes))),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Names::Dir { names, .. } => names.len(),
            Names::Pages { entries, .. } => entries.len(),
        }
    }

    /// Whether there are no more.
    pub(super) fn is_over(&self) -> bool {
        self.len() == 0 && !matches!(self, Names::Pages { is_last: false, .. })
    }

    /// Drops them all.
    pub(super) fn clear(&mut self) {
        match self {
            Names::Dir { names, .. } => names.clear(),
            Names::Pages { entries, is_last, .. } => {
                entries.clear();
                *is_last = true;
            }
        }
    }

    /// Closes the directory until it is needed again.
    pub(super) fn close(&mut self) {
        if let Names::Dir { open, .. } = self {
            *open = None;
        }
    }
}
