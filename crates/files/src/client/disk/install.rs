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
use super::lock;
use super::partial::{self, OpenPartial, PartialFile, io_error, root_error};
use crate::client::names::partial_names;
use crate::client::transfer::{DiskError, SmallFile, SmallOutcome, Version};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::{Dir, FileKind, FileStat, RootError, Timestamp, set_mode, set_modified};

/// Mode bits of files and directories. Set-user-id and its like are left out: a server must not make programs that run
/// with the rights of whoever fetched them.
const MODE_BITS: u32 = 0o777;
/// Mode bits that the owner of a file needs to open it.
const READABLE_MODE: u32 = 0o400;
/// Mode bits of directories. Without the sticky bit, anyone who can write into one could remove what others have
/// there.
pub(in crate::client) const DIR_MODE_BITS: u32 = 0o1777;

/// A directory that small files are installed into, one after another.
#[derive(Debug)]
pub(super) struct OpenDir {
    pub(super) path: RelPath,
    pub(super) dir: Dir,
    /// The mode that the last file was made with, and the one that it got: less the umask, or as the directory's
    /// default ACL says. Most files have the same, and need no look at it.
    made: Option<(u32, u32)>,
}

impl OpenDir {
    pub(super) fn new(path: RelPath, dir: Dir) -> Self {
        Self { path, dir, made: None }
    }

    /// The mode of a file that was just made with this one.
    fn mode_of(&mut self, file: &File, asked: u32) -> Result<u32, RootError> {
        match self.made {
            Some((as_before, got)) if as_before == asked => Ok(got),
            _ => {
                let got = FileStat::try_from(file)?.mode;
                self.made = Some((asked, got));
                Ok(got)
            }
        }
    }
}

/// Installs a partial file that is complete and right.
pub(super) fn install(
    content: &PartialFile,
    open: &OpenPartial,
    durable: bool,
    cancelled: &Cancelled,
) -> Result<(), DiskError> {
    let version = &content.spec.version;
    let stat = partial::stat_of(&open.file)?;
    let FileStat { size, mode, .. } = stat;
    if size < version.size || open.was_cut(&stat, cancelled)? {
        return Err(content.shortened());
    }
    if size > version.size {
        open.file.set_len(version.size).map_err(|error| io_error("cannot set its length", &error))?;
    }
    finish_file(&open.file, mode, version)?;
    // The system reports lost bytes once, and the next sync would succeed: nobody may resume them.
    sync_file(&open.file, durable).inspect_err(|_| content.abandon())?;
    // The name is what is renamed: it must not be that of an incomplete file.
    open.check_name()?;
    rename_over(&open.dir, &open.part_name, &open.name)?;
    match open.dir.remove_file(&open.state_name) {
        Ok(()) | Err(RootError::NotFound) => {}
        Err(error) => tracing::warn!(%error, "cannot remove the state of a partial file"),
    }
    sync_dir(&open.dir, durable)
}

/// Checks, writes and installs a small file.
pub(super) fn install_small(
    open: &mut OpenDir,
    name: &[u8],
    small: &SmallFile,
    durable: bool,
) -> Result<SmallOutcome, DiskError> {
    if small.digest.is_some_and(|digest| digest_of(&small.data) != digest) {
        return Ok(SmallOutcome::Mismatch);
    }
    let mode = small.version.mode & MODE_BITS;
    let cannot = |error: RootError| root_error("cannot create the file", &error);
    match open.dir.create_unnamed(mode).map_err(cannot)? {
        Some(file) => {
            let mode = open.mode_of(&file, mode).map_err(cannot)?;
            install_unnamed(&open.dir, name, file, mode, small, durable)?;
        }
        None => install_renamed(&open.dir, name, small, durable)?,
    }
    sync_dir(&open.dir, durable)?;
    Ok(SmallOutcome::Installed)
}

/// The quick way: the directory changes only once, and a transfer that is killed leaves nothing behind.
fn install_unnamed(
    dir: &Dir,
    name: &[u8],
    file: File,
    mode: u32,
    small: &SmallFile,
    durable: bool,
) -> Result<(), DiskError> {
    write_small(&file, mode, small, durable)?;
    match dir.link_unnamed(&file, name) {
        Ok(()) => Ok(()),
        Err(RootError::Exists) => {
            // Only a rename replaces a file without a moment in which neither is there.
            let (part_name, _) = partial_names(name);
            lock::lock(&file)?;
            let linked = match dir.link_unnamed(&file, &part_name) {
                Err(RootError::Exists) => {
                    let _displaced = lock::displace(dir, &part_name)?;
                    dir.link_unnamed(&file, &part_name)
                }
                other => other,
            };
            linked.map_err(|error| root_error("cannot name the file", &error))?;
            rename_small(dir, &part_name, &file, name)
        }
        Err(error) => Err(root_error("cannot name the file", &error)),
    }
}

fn install_renamed(dir: &Dir, name: &[u8], small: &SmallFile, durable: bool) -> Result<(), DiskError> {
    let (part_name, _) = partial_names(name);
    let file = lock::create(dir, &part_name)?;
    let mode = partial::stat_of(&file)?.mode;
    write_small(&file, mode, small, durable).inspect_err(|_| remove_own(dir, &part_name, &file))?;
    rename_small(dir, &part_name, &file, name)
}

/// Gives a locked file, which has the name of a partial file, its own name.
fn rename_small(dir: &Dir, part_name: &[u8], file: &File, name: &[u8]) -> Result<(), DiskError> {
    if !lock::has_name(dir, part_name, file)? {
        return Err(lock::lost());
    }
    rename_over(dir, part_name, name).inspect_err(|_| remove_own(dir, part_name, file))
}

fn remove_own(dir: &Dir, part_name: &[u8], file: &File) {
    if lock::has_name(dir, part_name, file).is_ok_and(|is_own| is_own) {
        let _ = dir.remove_file(part_name);
    }
}

fn write_small(mut file: &File, mode: u32, small: &SmallFile, durable: bool) -> Result<(), DiskError> {
    for piece in &small.data {
        file.write_all(piece).map_err(|error| io_error("cannot write", &error))?;
    }
    finish_file(file, mode, &small.version)?;
    sync_file(file, durable)
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
pub(super) fn touch(dir: &Dir, name: &[u8], version: &Version, durable: bool) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot set mode and time", &error);
    let file = match dir.open_file(name) {
        // Its owner may make it readable, as its mode is to be set anyway.
        Err(RootError::Denied) => {
            let mode = version.mode & MODE_BITS | READABLE_MODE;
            dir.set_entry_mode(name, mode).and_then(|()| dir.open_file(name))
        }
        file => file,
    };
    let (file, _) = file.map_err(failed)?;
    set_mode(&file, version.mode & MODE_BITS).and_then(|()| set_modified(&file, version.modified)).map_err(failed)?;
    sync_file(&file, durable)?;
    sync_dir(dir, durable)
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
        let (part_name, state_name) = partial_names(&name);
        if lock::displace(&dir, &part_name)?.is_some() {
            // Of a file that was here in part, and is a link now.
            let _ = dir.remove_file(&state_name);
        }
        dir.symlink(target, &part_name).map_err(failed)?;
        rename_over(&dir, &part_name, &name).inspect_err(|_| {
            let _ = dir.remove_file(&part_name);
        })?;
    }
    dir.set_entry_modified(&name, modified).map_err(failed)?;
    sync_dir(&dir, destination.durable)
}

/// Sets the mode and time of a directory.
pub(super) fn finish_dir(
    OpenDir { dir: parent, .. }: &OpenDir,
    name: &[u8],
    mode: u32,
    modified: Timestamp,
    durable: bool,
) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot set mode and time", &error);
    let stat = parent.stat(name).map_err(failed)?;
    if stat.kind != FileKind::Dir {
        return Err(failed(RootError::NotADirectory));
    }
    let mode = mode & DIR_MODE_BITS;
    if stat.mode == mode && !durable {
        // Most are made with their final mode, and needn't be opened.
        return parent.set_entry_modified(name, modified).map_err(failed);
    }
    let dir = parent.open_dir(name).map_err(failed)?;
    dir.set_own_mode(mode).map_err(failed)?;
    dir.set_own_modified(modified).map_err(failed)?;
    sync_dir(&dir, durable)
}

/// Sets the mode and time of a file whose mode is `mode` now.
fn finish_file(file: &File, mode: u32, version: &Version) -> Result<(), DiskError> {
    let failed = |error: RootError| root_error("cannot set mode and time", &error);
    let wanted = version.mode & MODE_BITS;
    if mode != wanted {
        set_mode(file, wanted).map_err(failed)?;
    }
    set_modified(file, version.modified).map_err(failed)
}

fn sync_file(file: &File, durable: bool) -> Result<(), DiskError> {
    if !durable {
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

pub(super) fn sync_dir(dir: &Dir, durable: bool) -> Result<(), DiskError> {
    if !durable {
        return Ok(());
    }
    dir.sync().map_err(|error| root_error("cannot sync the directory", &error))
}
