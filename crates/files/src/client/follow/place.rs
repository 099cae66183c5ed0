//! What a follower does at its destination beside what a transfer does: looks, keeps what a person changed, renames, copies, removes.

use super::FollowOptions;
use super::record::{Known, Record};
use super::trash::Trash;
use crate::client::disk::{Metadata, remove_left_over};
use crate::client::get::GetError;
use crate::client::names::partial_names;
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::control::{Change, ChangeContent};
use crate::root::{Dir, FileKind, FileStat, Links, Root, RootError, set_mode, set_modified};
use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

const DIR_MODE: u32 = 0o777;
const MODE_BITS: u32 = 0o777;
/// Attempts to find a free name for what is kept.
const NAMES_MAX: u64 = 100;

/// The destination.
#[derive(Debug)]
pub(super) struct Place {
    root: Root,
    metadata: Metadata,
    trash: Option<Trash>,
    /// Directories that tell all spellings of names apart.
    exact: RefCell<HashSet<RelPath>>,
}

/// What is to be done with something new or changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is there already.
    InPlace,
    /// It goes where nothing is, or where what is there may be replaced.
    Get,
    /// It can't be put there.
    Refused(String),
}

/// The outcome of a removal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Removed,
    /// A person changed it, or put something into it.
    Kept,
}

impl Place {
    pub(super) fn open(options: &FollowOptions) -> Result<Place, GetError> {
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |error: RootError| GetError::Destination { path, reason: error.to_string() }
        };
        let destination = &options.destination;
        let root = Root::directory(destination, Links::Never).map_err(refused(destination))?;
        let trash = options.trash.as_deref().map(|path| Trash::open(path).map_err(refused(path))).transpose()?;
        Ok(Place { root, metadata: Metadata::default(), trash, exact: RefCell::default() })
    }

    /// A directory that is only read.
    pub(super) fn of(directory: &Path) -> Result<Place, RootError> {
        let root = Root::directory(directory, Links::Never)?;
        Ok(Place { root, metadata: Metadata::default(), trash: None, exact: RefCell::default() })
    }

    pub(super) fn top(&self) -> Result<Dir, RootError> {
        self.root.open_dir(&RelPath::root())
    }

    /// What is at a path.
    pub(super) fn stat(&self, path: &RelPath) -> Result<Option<FileStat>, RootError> {
        match self.root.stat(path) {
            Ok(stat) => Ok(Some(stat)),
            Err(RootError::NotFound | RootError::NotADirectory | RootError::Outside) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks whether a change is in place, and makes way for it. What a person put there is kept under another name, which `kept` is told.
    /// `deletes`: what is gone at the server is going to be deleted.
    pub(super) fn plan(
        &self,
        path: &RelPath,
        change: &Change,
        known: Option<&Known>,
        deletes: bool,
        kept: &mut dyn FnMut(&RelPath),
    ) -> Result<Plan, RootError> {
        let Some(stat) = self.stat(path)? else { return Ok(Plan::Get) };
        if !self.is_spelled(path)? {
            let reason =
                "another path has this name here, as the file system ignores case or the composition of letters";
            return Ok(Plan::Refused(reason.to_owned()));
        }
        let is_own = known.is_some_and(|known| known.is(&stat));
        match (&change.content, stat.kind) {
            (_, FileKind::Other) => return Ok(Plan::Refused("a device, pipe or socket is in the way".to_owned())),
            (ChangeContent::Dir { .. }, FileKind::Dir) => return Ok(Plan::Get),
            (ChangeContent::File { size, mtime, mode, digest }, FileKind::File) => {
                if is_own && known.and_then(Known::digest) == Some(*digest) {
                    let is_same = (stat.modified, stat.mode & MODE_BITS) == (*mtime, self.metadata.file_mode(*mode));
                    return Ok(if is_same { Plan::InPlace } else { Plan::Get });
                }
                // Of the same size and time, it is compared when it is received.
                let is_equal = stat.size == *size && (stat.modified == *mtime || self.digest(path)? == Some(*digest));
                if is_own || is_equal {
                    return Ok(Plan::Get);
                }
            }
            (ChangeContent::Link { target, .. }, FileKind::Link) => {
                let there = self.root.read_link(path)?;
                if there == target.as_bytes() {
                    return Ok(Plan::InPlace);
                }
                if is_own && known == Some(&Known::Link(Digest::of(&there))) {
                    return Ok(Plan::Get);
                }
            }
            // Another type. If what is in a directory is going to be deleted, this is for later; what is left then isn't the follower's.
            (_, FileKind::Dir) if is_own && (deletes || self.is_empty(path)?) => return Ok(Plan::Get),
            (_, FileKind::Dir) => {}
            _ if is_own => return Ok(Plan::Get),
            _ => {}
        }
        let (dir, name) = self.parent(path)?;
        for number in 0..NAMES_MAX {
            let again = if number == 0 { String::new() } else { format!("-{number}") };
            let new_name = [&name[..], format!(".tow-conflict-{}{again}", change.seq).as_bytes()].concat();
            if dir.existing(&new_name)?.is_none() {
                dir.rename(&name, &dir, &new_name)?;
                kept(&path.parent().unwrap_or_default().join(&new_name)?);
                return Ok(Plan::Get);
            }
        }
        Ok(Plan::Refused("what is there was changed here, and no name is free to keep it".to_owned()))
    }

    /// Whether all directories above spell a path so.
    fn is_spelled(&self, path: &RelPath) -> Result<bool, RootError> {
        for (parent, name) in std::iter::successors(Some(path.clone()), RelPath::parent).filter_map(|path| {
            let (parent, name) = path.split()?;
            Some((parent, name.to_vec()))
        }) {
            if self.exact.borrow().contains(&parent) {
                continue;
            }
            let dir = self.root.open_dir(&parent)?;
            if !dir.is_spelled(&name)? {
                return Ok(false);
            }
            if name.iter().any(u8::is_ascii_alphabetic) && dir.tells_spellings_apart(&name) {
                self.exact.borrow_mut().insert(parent);
            }
        }
        Ok(true)
    }

    /// Keeps what is to be replaced in the trash, if it was put here and is something else. Returns where.
    pub(super) fn keep(&self, path: &RelPath, change: &Change, known: &Known) -> Result<Option<RelPath>, RootError> {
        let Some(trash) = &self.trash else { return Ok(None) };
        let is_replaced = match (&change.content, known) {
            (ChangeContent::File { digest, .. }, Known::File { digest: had, .. }) => digest != had,
            (ChangeContent::Link { target, .. }, Known::Link(had)) => Digest::of(target.as_bytes()) != *had,
            (_, known) => *known != Known::Dir,
        };
        if !is_replaced || !self.stat(path)?.is_some_and(|stat| known.is(&stat)) {
            return Ok(None);
        }
        let (dir, name) = self.parent(path)?;
        trash.keep(&dir, &name, path, change.seq).map(Some)
    }

    /// What was kept wasn't replaced.
    pub(super) fn keep_not(&self, kept: &RelPath) -> Result<(), RootError> {
        self.trash.as_ref().map_or(Ok(()), |trash| trash.forget(kept))
    }

    fn is_empty(&self, path: &RelPath) -> Result<bool, RootError> {
        match self.root.open_dir(path)?.entries(0) {
            Err(RootError::TooMany(_)) => Ok(false),
            entries => entries.map(|entries| entries.is_empty()),
        }
    }

    fn parent(&self, path: &RelPath) -> Result<(Dir, Vec<u8>), RootError> {
        let (parent, name) = path.split().ok_or(RootError::NotAFile)?;
        Ok((self.root.open_dir(&parent)?, name.to_vec()))
    }

    /// The digest of a file; `None` if it changes meanwhile.
    fn digest(&self, path: &RelPath) -> Result<Option<Digest>, RootError> {
        let (file, before) = self.root.open_file(path)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&file).map_err(RootError::Io)?;
        let is_same = FileStat::try_from(&file)?.same_content(&before);
        Ok(is_same.then(|| Digest(*hasher.finalize().as_bytes())))
    }

    /// Renames a file that is as it was left here. What is at the new path may be replaced, as [`Place::plan`] has found. Returns whether
    /// it was.
    pub(super) fn rename(&self, from: &RelPath, known: &Known, to: &RelPath) -> Result<bool, RootError> {
        if !self.stat(from)?.is_some_and(|stat| known.is(&stat)) {
            return Ok(false);
        }
        let (new_parent, new_name) = to.split().ok_or(RootError::NotAFile)?;
        let new_dir = self.root.create_dirs(&new_parent, DIR_MODE)?;
        let (dir, name) = self.parent(from)?;
        dir.rename(&name, &new_dir, new_name)?;
        Ok(true)
    }

    /// Copies a file to where it is wanted too, if its content has the digest. Returns whether it has.
    pub(super) fn copy(&self, from: &RelPath, known: &Known, to: &RelPath, change: &Change) -> Result<bool, RootError> {
        self.copy_from(self, from, known, to, change)
    }

    /// The same from another place.
    pub(super) fn copy_from(
        &self,
        place: &Place,
        from: &RelPath,
        known: &Known,
        to: &RelPath,
        change: &Change,
    ) -> Result<bool, RootError> {
        let ChangeContent::File { mtime, mode, digest, size } = change.content else { return Ok(false) };
        let (mut source, stat) = place.root.open_file(from)?;
        if !known.is(&stat) || stat.size != size {
            return Ok(false);
        }
        let (parent, name) = to.split().ok_or(RootError::NotAFile)?;
        let dir = self.root.create_dirs(&parent, DIR_MODE)?;
        let (part, _) = partial_names(name);
        let mut file = match dir.create_file(&part, 0o600) {
            // A part of it is there already.
            Err(RootError::Exists) => return Ok(false),
            created => created?,
        };
        let copied = (|| {
            // By copy_file_range(2), which shares the blocks where the file system can.
            std::io::copy(&mut source, &mut file).map_err(RootError::Io)?;
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&dir.open_file(&part)?.0).map_err(RootError::Io)?;
            if Digest(*hasher.finalize().as_bytes()) != digest {
                return Ok(false);
            }
            set_mode(&file, self.metadata.file_mode(mode))?;
            set_modified(&file, mtime)?;
            dir.rename(&part, &dir, name)?;
            Ok(true)
        })();
        if !matches!(copied, Ok(true)) {
            let _ = dir.remove_file(&part);
        }
        copied
    }

    /// Removes what was put at a path, if it is as it was left.
    pub(super) fn remove(&self, path: &RelPath, known: &Known, seq: u64) -> Result<Removal, RootError> {
        let Some(stat) = self.stat(path)? else { return Ok(Removal::Removed) };
        if !known.is(&stat) {
            return Ok(Removal::Kept);
        }
        let (dir, name) = self.parent(path)?;
        let removed = match known {
            Known::Link(digest) if Digest::of(&dir.read_link(&name)?) != *digest => return Ok(Removal::Kept),
            Known::Dir => match dir.remove_dir(&name) {
                Err(error) if is_not_empty(&error) => {
                    // Parts of files that are gone as well. What can't be removed keeps the directory.
                    let _ = dir.open_dir(&name).and_then(|dir| remove_left_over(&dir));
                    dir.remove_dir(&name)
                }
                removed => removed,
            },
            Known::File { .. } | Known::Link(_) => {
                if let Some(trash) = &self.trash {
                    trash.keep(&dir, &name, path, seq)?;
                }
                dir.remove_file(&name)
            }
        };
        match removed {
            Ok(()) | Err(RootError::NotFound) => Ok(Removal::Removed),
            // Not empty: something in it isn't the follower's.
            Err(error) if is_not_empty(&error) => Ok(Removal::Kept),
            Err(error) => Err(error),
        }
    }

    /// Notes what the follower before put in place just before it was killed. The contents of files are compared.
    pub(super) fn adopt(&self, record: &mut Record) -> std::io::Result<()> {
        for (path, intended) in record.take_intended() {
            let known = match intended {
                // One that was moved there may not have its time yet.
                Known::File { size, digest, .. } => self.stat(&path).ok().flatten().and_then(|stat| {
                    let is_it = stat.size == size && self.digest(&path).is_ok_and(|found| found == Some(digest));
                    is_it.then_some(Known::File { size, modified: stat.modified, digest })
                }),
                intended => self.known(&path, &intended).ok().flatten(),
            };
            if let Some(known) = known {
                record.put(&path, known)?;
            }
        }
        Ok(())
    }

    /// What is at a path, as it is to be found again, if it is what was to be put there.
    pub(super) fn known(&self, path: &RelPath, wanted: &Known) -> Result<Option<Known>, RootError> {
        let Some(stat) = self.stat(path)? else { return Ok(None) };
        Ok(match (wanted, stat.kind) {
            (&Known::File { size, modified, digest }, FileKind::File) => {
                // A file system may keep coarser times. Anything else is of somebody who was quicker.
                let is_own = stat.size == size && stat.modified.seconds.abs_diff(modified.seconds) <= 2;
                is_own.then_some(Known::File { size, modified: stat.modified, digest })
            }
            (Known::Dir, FileKind::Dir) => Some(Known::Dir),
            (Known::Link(digest), FileKind::Link) => {
                (Digest::of(&self.root.read_link(path)?) == *digest).then_some(Known::Link(*digest))
            }
            _ => None,
        })
    }
}

fn is_not_empty(error: &RootError) -> bool {
    match error {
        RootError::Exists => true,
        RootError::Io(error) => error.kind() == std::io::ErrorKind::DirectoryNotEmpty,
        _ => false,
    }
}
