//! Entries of a listing, from what the directory has.

use crate::path::{Escaped, RelPath};
use crate::protocol::control::{EntryKind, LinkTarget, ListEntry, WirePath};
use crate::root::{Dir, FileKind, FileStat, RootError};
use crate::server::Failure;
use crate::server::resource_errors::Shortage;
use crate::server::source::Attributes;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

pub(super) fn look(dir: &Dir, name: &[u8]) -> Result<(Attributes, Option<Vec<u8>>), RootError> {
    let stat = dir.stat(name)?;
    let target = if stat.kind == FileKind::Link { Some(dir.read_link(name)?) } else { None };
    Ok((stat.into(), target))
}

pub(super) fn not_followed(target: &[u8], error: &RootError) -> String {
    format!("a link to {} that can't be followed: {error}", Escaped(target))
}

pub(super) fn entry(path: &RelPath, of: &Attributes, target: Option<Vec<u8>>) -> ListEntry {
    let has_names = |stat: &FileStat| stat.kind == FileKind::File && stat.links > 1;
    ListEntry {
        path: WirePath::from(path),
        kind: match of.kind {
            FileKind::File => EntryKind::File,
            FileKind::Dir => EntryKind::Dir,
            FileKind::Link => EntryKind::Link,
            FileKind::Other => EntryKind::Other,
        },
        size: of.size,
        mtime: of.modified,
        mode: of.mode,
        allocated: of.local.filter(FileStat::is_sparse).map(|stat| stat.allocated),
        hard_link: of.local.filter(has_names).map(|stat| file_number(&stat)),
        target: target.map(LinkTarget::from),
        digest: None,
        message: None,
    }
}

/// A number for a file that has several names. It reveals nothing about the file system, and hardly ever belongs to two files.
fn file_number(stat: &FileStat) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    // All that a number in JSON can hold anywhere.
    KEY.hash_one((stat.device, stat.inode)) >> 11
}

/// An error entry. An exhausted resource fails the whole listing instead, since entries would be missing from it.
pub(super) fn failed(path: impl Into<WirePath>, error: RootError) -> Result<ListEntry, Failure> {
    if Shortage::is_why(&error) {
        return Err(error.into());
    }
    Ok(unreadable(path, error.to_string()))
}

pub(super) fn unreadable(path: impl Into<WirePath>, message: String) -> ListEntry {
    ListEntry {
        path: path.into(),
        kind: EntryKind::Error,
        size: 0,
        mtime: Default::default(),
        mode: 0,
        allocated: None,
        hard_link: None,
        target: None,
        digest: None,
        message: Some(message),
    }
}
