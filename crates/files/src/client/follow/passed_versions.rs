//! Versions that a relay passes on: in a directory of its destination as their server has them, `.tow-versions/LABEL/manifest` and `tree`.

use super::FollowOptions;
use super::version_list::Version;
use crate::catalogue::{Content, Entry, Identity};
use crate::digest::Digest;
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::follow::{Cursor, ServerId};
use crate::protocol::manifest::{MANIFEST, OF_PREFIX};
use crate::relay::Passed;
use crate::root::{FileStat, Timestamp, set_modified};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a version is in its directory. That gets its name only when it is whole.
pub(super) fn is_in_place(directory: &Path, digest: Digest) -> bool {
    manifest(directory, digest).is_some()
}

/// The metadata of a version's manifest, if it is in this directory.
fn manifest(directory: &Path, digest: Digest) -> Option<FileStat> {
    let file = File::open(directory.join(MANIFEST)).ok()?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&file).ok()?;
    let is_right = Digest(*hasher.finalize().as_bytes()) == digest;
    FileStat::try_from(&file).ok().filter(|_| is_right)
}

/// Gives a directory, whose tree is whole, its manifest and its name.
pub(super) fn put(new: &Path, whole: &Path, manifest: &[u8], published: Timestamp, durable: bool) -> io::Result<()> {
    let path = new.join(MANIFEST);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::create_new(path)?;
    file.write_all(manifest)?;
    set_modified(&file, published).map_err(|error| io::Error::other(error.to_string()))?;
    if durable {
        file.sync_all()?;
        File::open(new)?.sync_all()?;
    }
    match whole.exists() {
        // The label was another version's.
        true => renameat_with(CWD, new, CWD, whole, RenameFlags::EXCHANGE)?,
        false => std::fs::rename(new, whole)?,
    }
    if let Some(above) = whole.parent().filter(|_| durable) {
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

/// Passes the known versions that are in place to the relay's server.
pub(super) fn pass_on(
    options: &FollowOptions,
    server: Option<ServerId>,
    cursor: Cursor,
    known: Vec<Version>,
) -> Result<(), Error> {
    let Some(relay) = &options.relay else { return Ok(()) };
    let entry = |version: Version| -> Option<Passed> {
        let Version { name, digest, seq, published: modified, .. } = version;
        let path: RelPath = name.manifest().ok()?;
        let stat = manifest(options.destination.join(path.as_os_str()).parent()?, digest)?;
        let content = Content::File { size: stat.size, modified, mode: stat.mode, digest };
        Some((path.as_bytes().into(), Entry { seq, content, identity: Identity::of(&stat, true) }))
    };
    let entries = known.into_iter().filter_map(entry).collect();
    relay.reset(server, cursor, entries).map_err(|error| Error::unmet(error.to_string()))
}

/// Removes all but the versions of these labels.
pub(super) fn remove_old(top: &Path, kept: &[Option<&str>]) {
    for entry in std::fs::read_dir(top).into_iter().flatten().flatten() {
        // Those of paths below are others'.
        let is_below = entry.file_name().as_bytes().starts_with(&[OF_PREFIX]);
        if is_below || kept.contains(&entry.file_name().to_str()) {
            continue;
        }
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "an old version can't be removed");
        }
    }
}
