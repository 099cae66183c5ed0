//! Installs files, directories and links: atomically, complete, with mode and time.
//!
//! Without `durable` nothing is synced, as with cp, rsync and curl: after a crash of the *machine* a file that was
//! installed shortly before may be empty or old. With `durable` a file is synced before it gets its name, and its
//! directory after; the names of directories are synced when something is first put into them.

use std::fs::File;
use std::io::Write;

use bytes::Bytes;

use super::cancel::Cancelled;
use super::destination::{self, Destination};
use super::lock::{self, Unclaimed};
use super::metadata::SET_GROUP_ID;
use super::partial::{self, OpenPartial, PartialFile, io_error, root_error};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::{Dir, FileKind, FileStat, RootError, Timestamp, set_mode, set_modified};
use crate::transfer::{DiskError, SmallFile, SmallOutcome, Version};

/// Mode bits that the owner of a file needs to open it.
const READABLE_MODE: u32 = 0o400;

/// Installs a partial file that is complete and right.
pub(super) fn install(content: &PartialFile, open: &OpenPartial, cancelled: &Cancelled) -> Result<(), DiskError> {
    let (destination, local) = (&*content.destination, &content.spec.local);
    let stat = complete(content, open, cancelled)?;
    // The system reports lost bytes once, and the next sync would succeed: nobody may resume them.
    sync_file(&open.file, destination).inspect_err(|_| content.abandon())?;
    content.check_place(open)?;
    if let Some(there) = open.dir.existing(&open.name).map_err(|error| root_error("cannot rename", &error))? {
        // It will never get this name, so nothing is kept.
        destination.claim(&open.dir, &open.name, &there, local).inspect_err(|_| content.abandon())?;
    }
    put_in_place(destination, &open.dir, &open.part_name, &stat, &open.name, local)?;
    destination.placed(local, || partial::stat_of(&open.file))?;
    open.remove_state();
    sync_dir(&open.dir, destination)
}

/// Gives a partial file its length, mode and time: its metadata before.
pub(super) fn complete(
    content: &PartialFile,
    open: &OpenPartial,
    cancelled: &Cancelled,
) -> Result<FileStat, DiskError> {
    let (destination, local, version) = (&*content.destination, &content.spec.local, &content.spec.version);
    let stat = partial::stat_of(&open.file)?;
    if stat.size < version.size || open.was_cut(&stat, cancelled)? {
        return Err(content.shortened());
    }
    if stat.size > version.size {
        open.file.set_len(version.size).map_err(|error| io_error("cannot set its length", &error))?;
    }
    finish_file(destination, &open.file, stat.mode, version, local)?;
    Ok(stat)
}

/// Checks, writes and installs a small file.
pub(super) fn install_small(
    destination: &Destination,
    dir: &Dir,
    name: &[u8],
    small: &SmallFile,
) -> Result<SmallOutcome, DiskError> {
    if small.digest.is_some_and(|digest| digest_of(&small.data) != digest) {
        return Ok(SmallOutcome::Mismatch);
    }
    let mode = destination.options.metadata.file_mode(small.version.mode);
    match dir.create_unnamed(mode).map_err(|error| root_error("cannot create the file", &error))? {
        Some(file) => install_unnamed(destination, dir, name, file, small)?,
        None => install_renamed(destination, dir, name, small)?,
    }
    sync_dir(dir, destination)?;
    Ok(SmallOutcome::Installed)
}

/// The quick way: the directory changes only once, and a transfer that is killed leaves nothing behind.
fn install_unnamed(
    destination: &Destination,
    dir: &Dir,
    name: &[u8],
    file: File,
    small: &SmallFile,
) -> Result<(), DiskError> {
    let stat = partial::stat_of(&file)?;
    write_small(destination, &file, stat.mode, small)?;
    // Before it has the name, as in `put_in_place`.
    destination.installed.record(&stat, &small.local);
    match dir.link_unnamed(&file, name) {
        Ok(()) => destination.placed(&small.local, || partial::stat_of(&file))?,
        Err(RootError::Exists) => {
            // Only a rename replaces a file without a moment in which neither is there.
            lock::lock(&file)?;
            let ((), (part_name, _)) = lock::under_free_name(destination, dir, name, |(part_name, _)| {
                dir.link_unnamed(&file, part_name).map(Some).map_err(Unclaimed::Closed)
            })?;
            rename_small(destination, dir, &part_name, &file, name, &small.local)?;
        }
        // Not every sandbox allows it, nor every file system.
        Err(_) => {
            destination.installed.forget(&stat);
            install_renamed(destination, dir, name, small)?;
        }
    }
    Ok(())
}

fn install_renamed(destination: &Destination, dir: &Dir, name: &[u8], small: &SmallFile) -> Result<(), DiskError> {
    let (file, (part_name, _)) = lock::create(destination, dir, name)?;
    let mode = partial::stat_of(&file)?.mode;
    write_small(destination, &file, mode, small).inspect_err(|_| remove_own(dir, &part_name, &file))?;
    rename_small(destination, dir, &part_name, &file, name, &small.local)
}

/// Gives a locked file, which has the name of a partial file, its own name.
fn rename_small(
    destination: &Destination,
    dir: &Dir,
    part_name: &[u8],
    file: &File,
    name: &[u8],
    local: &RelPath,
) -> Result<(), DiskError> {
    if !lock::has_name(dir, part_name, file)? {
        return Err(lock::lost());
    }
    let stat = partial::stat_of(file)?;
    put_in_place(destination, dir, part_name, &stat, name, local).inspect_err(|_| remove_own(dir, part_name, file))?;
    destination.placed(local, || partial::stat_of(file))
}

/// Gives something that is complete, and has the name of a partial file, its own name.
pub(super) fn put_in_place(
    destination: &Destination,
    dir: &Dir,
    part_name: &[u8],
    made: &FileStat,
    name: &[u8],
    local: &RelPath,
) -> Result<(), DiskError> {
    // Before it has the name: a second name of it may be installed at the same moment.
    destination.installed.record(made, local);
    let placed = put_in_place_of(destination, dir, part_name, name, local);
    placed.inspect_err(|_| destination.installed.forget(made))
}

fn put_in_place_of(
    destination: &Destination,
    dir: &Dir,
    part_name: &[u8],
    name: &[u8],
    local: &RelPath,
) -> Result<(), DiskError> {
    let cannot = |error: RootError| root_error("cannot rename", &error);
    if dir.rename_to_free(part_name, name).map_err(cannot)? {
        return Ok(());
    }
    let Some(mut there) = dir.existing(name).map_err(cannot)? else { return rename_over(dir, part_name, name) };
    destination.claim(dir, name, &there, local)?;
    // What was looked at may have been replaced, and forgotten, before it was claimed.
    if let Some(now) = dir.existing(name).map_err(cannot)? {
        if (now.device, now.inode) != (there.device, there.inode) {
            destination.installed.forget(&there);
            destination.claim(dir, name, &now, local)?;
        }
        there = now;
    }
    destination.may_replace(local, &there)?;
    rename_over(dir, part_name, name)?;
    destination.installed.forget(&there);
    Ok(())
}

fn remove_own(dir: &Dir, part_name: &[u8], file: &File) {
    if lock::has_name(dir, part_name, file).is_ok_and(|is_own| is_own) {
        let _ = dir.remove_file(part_name);
    }
}

fn write_small(destination: &Destination, mut file: &File, mode: u32, small: &SmallFile) -> Result<(), DiskError> {
    for piece in &small.data {
        file.write_all(piece).map_err(|error| io_error("cannot write", &error))?;
    }
    finish_file(destination, file, mode, &small.version, &small.local)?;
    sync_file(file, destination)
}

fn digest_of(pieces: &[Bytes]) -> Digest {
    match pieces {
        [piece] => Digest::of(piece),
        pieces => {
            let mut hasher = blake3::Hasher::new();
            for piece in pieces {
                hasher.update(piece);
            }
            Digest(*hasher.finalize().as_bytes())
        }
    }
}

/// Sets the mode and time of a file that has the right content. Its writer may not have synced it.
pub(super) fn touch(destination: &Destination, local: &RelPath, version: &Version) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot set mode and time", &error);
    let (dir, name) = destination.parent_of(local)?;
    let metadata = &destination.options.metadata;
    let mode = metadata.file_mode(version.mode);
    let there = dir.stat(&name).map_err(failed)?;
    destination.may_replace(local, &there)?;
    let file = match dir.open_file(&name) {
        // Its owner may make it readable, as its mode is to be set anyway.
        Err(RootError::Denied) if metadata.has_modes() => {
            dir.set_entry_mode(&name, mode | READABLE_MODE).and_then(|()| dir.open_file(&name))
        }
        file => file,
    };
    let (file, stat) = file.map_err(failed)?;
    if stat.links == 1 {
        destination.claim(&dir, &name, &stat, local)?;
    }
    if metadata.has_modes() {
        destination.mode_set(set_mode(&file, mode), local)?;
    }
    destination.set_time(local, || set_modified(&file, version.modified))?;
    destination.placed(local, || partial::stat_of(&file))?;
    sync_file(&file, destination)?;
    sync_dir(&dir, destination)
}

/// Creates a symbolic link, replacing what is there unless that is a directory that isn't empty.
pub(super) fn make_link(
    destination: &Destination,
    local: &RelPath,
    target: &[u8],
    modified: Timestamp,
) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot create the link", &error);
    let (dir, name) = destination.parent_of(local)?;
    let existing = dir.existing(&name).map_err(failed)?;
    destination::check_in_the_way(existing.as_ref())?;
    if existing.is_none_or(|stat| stat.kind != FileKind::Link) || dir.read_link(&name).ok().as_deref() != Some(target) {
        let ((), (part_name, _)) = lock::under_free_name(destination, &dir, &name, |(part_name, _)| {
            dir.symlink(target, part_name).map(Some).map_err(Unclaimed::Closed)
        })?;
        let made = dir.stat(&part_name).map_err(failed)?;
        put_in_place(destination, &dir, &part_name, &made, &name, local).inspect_err(|_| {
            let _ = dir.remove_file(&part_name);
        })?;
    } else if let Some(there) = &existing {
        destination.claim(&dir, &name, there, local)?;
    }
    destination.set_time(local, || dir.set_entry_modified(&name, modified))?;
    destination.placed(local, || dir.stat(&name).map_err(failed))?;
    sync_dir(&dir, destination)
}

/// Sets the mode and time of a directory.
pub(super) fn finish_dir(
    destination: &Destination,
    parent: &Dir,
    name: &[u8],
    local: &RelPath,
    mode: u32,
    modified: Timestamp,
) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot set mode and time", &error);
    let stat = parent.stat(name).map_err(failed)?;
    if stat.kind != FileKind::Dir {
        return Err(failed(RootError::NotADirectory));
    }
    let metadata = &destination.options.metadata;
    let mode = metadata.dir_mode(mode) | stat.mode & SET_GROUP_ID;
    if (stat.mode == mode || !metadata.has_modes()) && !destination.options.durable {
        // Most are made with their final mode, and needn't be opened.
        return destination.set_time(local, || parent.set_entry_modified(name, modified));
    }
    let dir = parent.open_dir(name).map_err(failed)?;
    if metadata.has_modes() {
        destination.mode_set(dir.set_own_mode(mode), local)?;
    }
    destination.set_time(local, || dir.set_own_modified(modified))?;
    sync_dir(&dir, destination)
}

/// Sets the mode and time of a file whose mode is `mode` now.
fn finish_file(
    destination: &Destination,
    file: &File,
    mode: u32,
    version: &Version,
    local: &RelPath,
) -> Result<(), DiskError> {
    let wanted = destination.options.metadata.file_mode(version.mode);
    if mode != wanted {
        destination.mode_set(set_mode(file, wanted), local)?;
    }
    destination.set_time(local, || set_modified(file, version.modified))
}

fn sync_file(file: &File, destination: &Destination) -> Result<(), DiskError> {
    if !destination.options.durable {
        return Ok(());
    }
    file.sync_all().map_err(|error| io_error("cannot sync", &error))
}

/// Renames over a file or link, or an empty directory.
pub(super) fn rename_over(dir: &Dir, from: &[u8], to: &[u8]) -> Result<(), DiskError> {
    let renamed = match dir.rename(from, dir, to) {
        // The system's error for a directory of this name.
        Err(RootError::NotAFile) => dir.remove_dir(to).and_then(|()| dir.rename(from, dir, to)),
        other => other,
    };
    renamed.map_err(|error| match dir.stat(to) {
        Ok(FileStat { kind: FileKind::Dir, .. }) => {
            DiskError { full: false, message: "a directory of this name is in the way".to_owned() }
        }
        _ => root_error("cannot rename", &error),
    })
}

pub(super) fn sync_dir(dir: &Dir, destination: &Destination) -> Result<(), DiskError> {
    if !destination.options.durable {
        return Ok(());
    }
    dir.sync().map_err(|error| root_error("cannot sync the directory", &error))
}
