//! Deletes what a destination has and the source hasn't.

use crate::filter::Filter;
use crate::path::RelPath;
use crate::root::{FileKind, FileStat, Root, RootError};
use crate::transfer::LIST_ENTRIES_MAX;
use crate::transfer::names::is_reserved;
use std::collections::HashSet;

/// Deletions that are never held, unless they are of everything.
const DELETE_FREELY: u64 = 1000;

/// Deletions are few if there is this many times as much.
pub(super) const FEW_OF: usize = 10;

/// Whether this many deletions, of `known` entries, are more than are made without being allowed.
pub(super) fn is_too_much(count: u64, known: u64, max_delete: Option<u64>) -> bool {
    match max_delete {
        Some(most) => count > most,
        None => (count > DELETE_FREELY && count > known / FEW_OF as u64) || (count == known && count > 1),
    }
}

/// Paths to delete.
#[derive(Debug, Default)]
pub(super) struct Doomed {
    /// Paths, each after what is below it, and whether it is a directory.
    pub(super) paths: Vec<(RelPath, bool)>,
    /// Entries that were found, these included.
    pub(super) found: u64,
}

/// An entry of the destination, as [`find`] asks about it.
pub(super) struct Candidate<'a> {
    pub(super) local: &'a RelPath,
    pub(super) stat: &'a FileStat,
}

/// Finds what is to be deleted: what `is_wanted` doesn't want and the filter doesn't leave out. Partial files stay, and so
/// do devices, pipes, sockets, and all of other file systems. `step` is called for each directory and may end it.
pub(super) fn find(
    root: &Root,
    filter: &Filter,
    is_wanted: &dyn Fn(Candidate<'_>) -> bool,
    step: &mut dyn FnMut() -> Result<(), RootError>,
) -> Result<Doomed, RootError> {
    let mut doomed = Doomed::default();
    // Directories in which something stays, which can't be deleted.
    let mut staying: HashSet<RelPath> = HashSet::new();
    let device = root.stat(&RelPath::root())?.device;
    let mut dirs = vec![RelPath::root()];
    while let Some(path) = dirs.pop() {
        step()?;
        let dir = root.open_dir(&path)?;
        for entry in dir.entries(LIST_ENTRIES_MAX)? {
            // Gone meanwhile.
            let Some(stat) = dir.existing(&entry.name)? else { continue };
            let local = path.join(&entry.name)?;
            let is_dir = stat.kind == FileKind::Dir;
            if is_reserved(&entry.name) || stat.device != device || filter.excludes(&local, is_dir) {
                staying.insert(path.clone());
                continue;
            }
            doomed.found += 1;
            if doomed.found > LIST_ENTRIES_MAX as u64 {
                return Err(RootError::TooMany(LIST_ENTRIES_MAX));
            }
            let stays = stat.kind == FileKind::Other
                || !filter.takes(&local, is_dir)
                || is_wanted(Candidate { local: &local, stat: &stat });
            if is_dir {
                dirs.push(local.clone());
            }
            if stays {
                staying.insert(path.clone());
            } else {
                doomed.paths.push((local, is_dir));
            }
        }
    }
    // What is below a path comes after it in their order.
    doomed.paths.sort_unstable_by(|a, b| b.cmp(a));
    doomed.paths.retain(|(path, is_dir)| {
        let stays = *is_dir && staying.contains(path);
        if stays {
            staying.extend(path.parent());
        }
        !stays
    });
    Ok(doomed)
}

/// Deletes a path; `false` if it is a directory in which something stays.
pub(super) fn delete(root: &Root, local: &RelPath, is_dir: bool) -> Result<bool, RootError> {
    let (parent, name) = local.split().ok_or(RootError::NotAFile)?;
    let dir = root.open_dir(&parent)?;
    let deleted = if is_dir { dir.remove_dir(name) } else { dir.remove_file(name) };
    match deleted {
        Ok(()) | Err(RootError::NotFound) => Ok(true),
        Err(RootError::Io(error)) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(RootError::Exists) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FilterRule;
    use crate::root::Links;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_not_wanted_is_found_and_deleted_and_nothing_else() {
        let (temp, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |path: &str| temp.path().join(path);
        for dir in ["kept", "gone/below", "skipped", "half"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let part = "half/.tow-0123456789abcdef.part";
        for file in ["a", "b.tmp", "kept/a", "kept/old", "gone/below/a", "skipped/a", part] {
            fs::write(at(file), b"").unwrap();
        }
        fs::write(outside.path().join("precious"), b"").unwrap();
        symlink(outside.path(), at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let exclude = |pattern: &str| FilterRule::Exclude(pattern.to_owned());
        let filter = Filter::new(&[exclude("*.tmp"), exclude("skipped/")]).unwrap();
        let root = Root::directory(temp.path(), Links::Never).unwrap();
        let wanted = ["a", "kept", "kept/a"];
        let is_wanted = |candidate: Candidate<'_>| wanted.iter().any(|path| *path == candidate.local.to_string());
        let doomed = find(&root, &filter, &is_wanted, &mut || Ok(())).unwrap();
        let paths: Vec<_> = doomed.paths.iter().map(|(path, _)| path.to_string()).collect();
        assert_eq!(paths, ["link", "kept/old", "gone/below/a", "gone/below", "gone"]);
        let stays: Vec<_> =
            doomed.paths.iter().filter(|(path, is_dir)| !delete(&root, path, *is_dir).unwrap()).collect();
        assert!(stays.is_empty(), "{stays:?}");
        for path in ["a", "b.tmp", "kept/a", "skipped/a", part, "socket"] {
            assert!(at(path).exists(), "{path}");
        }
        assert!(!at("gone").exists() && !at("link").exists() && !at("kept/old").exists());
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn many_deletions_at_a_time_are_too_much() {
        for (count, known, max, expected) in [
            (0, 0, None, false),
            (1, 1, None, false),
            (2, 2, None, true),
            (1000, 1001, None, false),
            (1001, 10_000, None, true),
            (1001, 20_000, None, false),
            (1, 10, Some(0), true),
            (10, 10, Some(10), false),
        ] {
            assert_eq!(is_too_much(count, known, max), expected, "{count} of {known}, {max:?}");
        }
    }
}
