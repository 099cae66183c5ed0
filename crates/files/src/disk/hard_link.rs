//! Another name for a file that is in place.

use super::destination::{Destination, check_in_the_way};
use super::install::{put_in_place, sync_dir};
use super::lock::{Unclaimed, under_free_name};
use super::partial::root_error;
use crate::path::RelPath;
use crate::root::{FileKind, RootError};
use crate::transfer::{DiskError, Version};

/// Links a file, which must still be this version, to another name. Replaces what is there unless that is a directory
/// that isn't empty.
pub(super) fn hard_link(
    destination: &Destination,
    local: &RelPath,
    first: &RelPath,
    version: &Version,
) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot make a hard link", &error);
    let refused = |message: String| DiskError { full: false, message };
    let (from_dir, from) = destination.parent_of(first)?;
    let (dir, name) = destination.parent_of(local)?;
    let source = from_dir.stat(&from).map_err(failed)?;
    let is_version = (source.kind, source.size, source.modified) == (FileKind::File, version.size, version.modified);
    if !is_version || !destination.is_own(&source) {
        return Err(refused(format!("cannot make a hard link: {first} has changed")));
    }
    let existing = dir.existing(&name).map_err(failed)?;
    check_in_the_way(existing.as_ref())?;
    if existing.is_some_and(|there| (there.device, there.inode) == (source.device, source.inode)) {
        // A single name is the same one, as on file systems that ignore case.
        return if source.links > 1 { Ok(()) } else { Err(destination.one_name(local)) };
    }
    let ((), (part_name, _)) = under_free_name(destination, &dir, &name, |(part_name, _)| {
        from_dir.link(&from, &dir, part_name).map(Some).map_err(Unclaimed::Closed)
    })?;
    put_in_place(destination, &dir, &part_name, &source, &name, local).inspect_err(|_| {
        let _ = dir.remove_file(&part_name);
    })?;
    sync_dir(&dir, destination)
}
