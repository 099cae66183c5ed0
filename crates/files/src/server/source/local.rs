//! A directory or file of this machine as a source.

use super::{Attributes, Content, Opened, OpenedDir, Source};
use crate::path::RelPath;
use crate::root::{FileStat, Root, RootError};
use std::fs::File;

impl Source for Root {
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        Root::stat(self, path).map(Attributes::from)
    }

    fn open(&self, path: &RelPath) -> Result<Opened, RootError> {
        self.open_file(path).map(Opened::from)
    }

    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError> {
        Root::open_dir(self, path).map(OpenedDir::Local)
    }

    fn local(&self) -> Option<&Root> {
        Some(self)
    }
}

impl From<FileStat> for Attributes {
    fn from(stat: FileStat) -> Attributes {
        let FileStat { kind, size, modified, mode, .. } = stat;
        Attributes { kind, size, modified, mode, validator: (&stat).into(), local: Some(stat) }
    }
}

impl From<(File, FileStat)> for Opened {
    fn from((file, stat): (File, FileStat)) -> Opened {
        Opened { attributes: stat.into(), content: Content::File(file) }
    }
}
