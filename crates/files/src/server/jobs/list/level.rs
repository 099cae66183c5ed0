//! A directory on the path of a walk.

use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::root::{Dir, DirEntry, RootError};
use crate::server::Failure;
use crate::server::client_root::ClientRoot;
use crate::server::resource_errors::Shortage;
use towpath_quota::Permit;

#[derive(Debug)]
pub(super) struct Level {
    pub(super) path: RelPath,
    /// The same with links resolved: for rules.
    pub(super) real: RelPath,
    /// Names not walked yet, in reverse order.
    pub(super) names: Vec<DirEntry>,
    pub(super) _permit: Permit,
    pub(super) open: Option<Dir>,
    /// Device and inode, by which a loop of links is noticed.
    pub(super) identity: (u64, u64),
    /// Everything below is listed, since the listing is recursive or the directory matched.
    pub(super) all: bool,
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
    pub(super) fn open(&mut self, root: &ClientRoot) -> Result<&Dir, RootError> {
        let dir = match self.open.take() {
            Some(dir) => dir,
            None => {
                let seen = root.open_dir(&self.path)?;
                self.real = seen.path;
                seen.dir
            }
        };
        Ok(self.open.insert(dir))
    }
}
