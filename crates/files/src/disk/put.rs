//! Installs a file if its path is as it is expected to be.

use super::cancel::Cancelled;
use super::destination::{Destination, in_the_way};
use super::inspect::has_digest;
use super::install::{complete, rename_over};
use super::partial::{OpenPartial, PartialFile, io_error, root_error, stat_of};
use crate::path::RelPath;
use crate::protocol::control::Expected;
use crate::root::{Dir, FileKind, FileStat, RootError};
use crate::transfer::DiskError;
use std::os::unix::fs::FileExt;

/// Finds out whether a path is as it is expected to be.
pub(super) fn check(
    destination: &Destination,
    local: &RelPath,
    expected: Expected,
    cancelled: &Cancelled,
) -> Result<bool, DiskError> {
    let failed = |error: RootError| root_error("cannot inspect its path", &error);
    let Some((parent, name)) = local.split() else { return Err(failed(RootError::NotAFile)) };
    match destination.existing_dir(&parent).map_err(failed)? {
        None => Ok(!matches!(expected, Expected::Digest(_))),
        Some(dir) => {
            let there = dir.existing(name).map_err(failed)?;
            is_as_expected(&dir, name, there.as_ref(), expected, cancelled)
        }
    }
}

fn is_as_expected(
    dir: &Dir,
    name: &[u8],
    there: Option<&FileStat>,
    expected: Expected,
    cancelled: &Cancelled,
) -> Result<bool, DiskError> {
    match (expected, there.map(|there| there.kind)) {
        (Expected::Anything | Expected::Nothing, None) => Ok(true),
        (Expected::Anything, Some(FileKind::File | FileKind::Link)) => Ok(true),
        (Expected::Anything, Some(FileKind::Dir)) => Err(in_the_way("a directory of this name")),
        (Expected::Anything, Some(FileKind::Other)) => Err(in_the_way("a device, pipe or socket of this name")),
        (Expected::Digest(digest), Some(FileKind::File)) => Ok(has_digest(dir, name, digest, cancelled)),
        (Expected::Nothing | Expected::Digest(_), _) => Ok(false),
    }
}

/// Installs a partial file that is complete and right: its metadata, or `None` if its path isn't as expected.
pub(super) fn put(
    content: &PartialFile,
    open: &OpenPartial,
    expected: Expected,
    durable: bool,
    cancelled: &Cancelled,
) -> Result<Option<FileStat>, DiskError> {
    complete(content, open, cancelled)?;
    if durable {
        // The system reports lost bytes once, and the next sync would succeed: nobody may resume them.
        let synced = open.file.sync_all().map_err(|error| io_error("cannot sync", &error));
        synced.inspect_err(|_| content.abandon())?;
    }
    content.check_place(open)?;
    if !place(open, expected, cancelled)? {
        content.abandon();
        return Ok(None);
    }
    open.remove_state();
    if durable {
        // Also those that were there: they may have been made by a push that didn't sync.
        let synced = content.destination.root().sync_above(&content.spec.local);
        synced.map_err(|error| root_error("cannot sync the directory", &error))?;
    }
    stat_of(&open.file).map(Some)
}

/// Writes a small file and installs it likewise. If that fails, nothing of it stays.
pub(super) fn put_small(
    content: &PartialFile,
    data: &[u8],
    expected: Expected,
    durable: bool,
    cancelled: &Cancelled,
) -> Result<Option<FileStat>, DiskError> {
    if !check(&content.destination, &content.spec.local, expected, cancelled)? {
        return Ok(None);
    }
    let installed = content.open().and_then(|open| {
        let written = open.file.write_all_at(data, 0).map_err(|error| io_error("cannot write", &error));
        open.wrote(data.len() as u64);
        written.and_then(|()| put(content, &open, expected, durable, cancelled))
    });
    installed.inspect_err(|_| content.abandon())
}

/// Gives the file its name, if what has it is as expected until right before.
fn place(open: &OpenPartial, expected: Expected, cancelled: &Cancelled) -> Result<bool, DiskError> {
    let cannot = |error: RootError| root_error("cannot rename", &error);
    let there = open.dir.existing(&open.name).map_err(cannot)?;
    if !is_as_expected(&open.dir, &open.name, there.as_ref(), expected, cancelled)? {
        return Ok(false);
    }
    if expected == Expected::Nothing {
        if open.dir.rename_to_free(&open.part_name, &open.name).map_err(cannot)? {
            return Ok(true);
        }
        // The name is taken, or the file system can't find that out by a rename.
        return match open.dir.link(&open.part_name, &open.dir, &open.name) {
            Ok(()) => open.dir.remove_file(&open.part_name).map_err(cannot).map(|()| true),
            Err(RootError::Exists) => Ok(false),
            Err(error) => Err(cannot(error)),
        };
    }
    if matches!(expected, Expected::Digest(_)) {
        // Hashing it took a while.
        let now = open.dir.existing(&open.name).map_err(cannot)?;
        let is_same = |now: &FileStat| there.as_ref().is_some_and(|there| there.same_content(now));
        if !now.as_ref().is_some_and(is_same) {
            return Ok(false);
        }
    }
    rename_over(&open.dir, &open.part_name, &open.name)?;
    Ok(true)
}
