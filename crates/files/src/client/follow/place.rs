//! A follower's operations at its destination beside those of a transfer: looks, keeps what a person changed, renames, copies, removes.

use super::FollowOptions;
use super::record::{Known, Record};
use super::trash::Trash;
use crate::digest::Digest;
use crate::disk::{Ledger, Metadata, remove_left_over};
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::control::{Change, ChangeContent};
use crate::root::{Dir, FileKind, FileStat, Links, Root, RootError, Timestamp, set_mode, set_modified};
use crate::transfer::names::{is_partial, partial_names, with_suffix};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIR_MODE: u32 = 0o777;
const MODE_BITS: u32 = 0o777;
/// Attempts to find a free name for what is kept.
const NAMES_MAX: u64 = 100;
/// Directories without a file within one another.
const DEPTH_MAX: usize = 64;
/// Entries of a directory without a file.
const ENTRIES_MAX: usize = 4096;

/// The destination.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    root: Root,
    /// Device of the file system whose times distinguish all changes, if they do.
    fine_device: Option<u64>,
    metadata: Metadata,
    trash: Option<Trash>,
    pub(super) ledger: Arc<Ledger>,
    /// Directories that distinguish all spellings of names.
    exact: RefCell<HashSet<RelPath>>,
}

/// Whether what is there is what was put there.
#[derive(Clone, Copy)]
enum Own {
    Yes,
    /// If it has this content.
    Perhaps(Digest),
    No,
}

/// The plan for a new or changed entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The entry is there already.
    InPlace,
    /// The entry goes where nothing is, or where the file in place may be replaced.
    Get,
    /// The entry can't be put there.
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
    pub(super) fn open(options: &FollowOptions) -> Result<Place, Error> {
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |error: RootError| Error::Destination { path, reason: error.to_string() }
        };
        let destination = &options.destination;
        let place = Place::of(destination).map_err(refused(destination))?;
        let trash = options.trash.as_deref().map(|path| Trash::open(path).map_err(refused(path))).transpose()?;
        Ok(Place { trash, ..place })
    }

    /// A directory without a trash.
    pub(super) fn of(directory: &Path) -> Result<Place, RootError> {
        let root = Root::directory(directory, Links::Never)?;
        let top = root.open_dir(&RelPath::root())?;
        let fine_device = top.distinguishes_changes().then(|| top.own_stat()).transpose()?.map(|stat| stat.device);
        let (path, ledger) = (directory.to_owned(), Arc::default());
        Ok(Place {
            path,
            root,
            fine_device,
            metadata: Metadata::default(),
            trash: None,
            ledger,
            exact: RefCell::default(),
        })
    }

    /// Whether the path of the destination still leads to it.
    pub(super) fn is_there(&self) -> bool {
        self.root.is_at(&self.path).is_ok_and(|is_there| is_there)
    }

    /// Whether a file keeps its inode number, as it may not on network file systems.
    pub(super) fn has_lasting_inodes(&self) -> bool {
        self.root.has_events()
    }

    /// The time of a file's last change, if another change would have another one.
    pub(super) fn changed(&self, stat: &FileStat) -> Option<Timestamp> {
        (self.fine_device == Some(stat.device)).then_some(stat.changed)
    }

    fn own(&self, path: &RelPath, known: &Known, there: &FileStat) -> Result<Own, RootError> {
        Ok(match (known, there.kind) {
            (&Known::File { size, modified, changed, digest }, FileKind::File) if size == there.size => {
                let is_as_left = (modified, changed) == (there.modified, Some(there.changed));
                if is_as_left { Own::Yes } else { Own::Perhaps(digest) }
            }
            (Known::Dir, FileKind::Dir) => Own::Yes,
            (Known::Link(digest), FileKind::Link) if Digest::of(&self.root.read_link(path)?) == *digest => Own::Yes,
            _ => Own::No,
        })
    }

    /// Whether what is there is what was put there, by its content if need be.
    fn is_own(&self, path: &RelPath, known: &Known, there: &FileStat) -> Result<bool, RootError> {
        match self.own(path, known, there)? {
            Own::Yes => Ok(true),
            Own::No => Ok(false),
            Own::Perhaps(digest) => Ok(self.digest(path)?.is_some_and(|(found, _)| found == digest)),
        }
    }

    pub(super) fn top(&self) -> Result<Dir, RootError> {
        self.root.open_dir(&RelPath::root())
    }

    /// Metadata of a path.
    pub(super) fn stat(&self, path: &RelPath) -> Result<Option<FileStat>, RootError> {
        match self.root.stat(path) {
            Ok(stat) => Ok(Some(stat)),
            Err(RootError::NotFound | RootError::NotADirectory | RootError::Outside) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks whether a change is in place, and makes way for it. A file that a person put there is kept under another name, with which `kept` is called.
    /// Which file it is takes its content to find out sometimes: the disk does, before it replaces it. `deletes`: what is gone at the server is
    /// going to be deleted.
    pub(super) fn plan(
        &self,
        path: &RelPath,
        change: &Change,
        known: Option<&Known>,
        deletes: bool,
        kept: &mut dyn FnMut(&RelPath),
    ) -> Result<Plan, RootError> {
        let had = known.and_then(Known::digest);
        let digests = had.into_iter().chain(Known::of(change).and_then(|wanted| wanted.digest())).collect();
        let Some(stat) = self.stat(path)? else {
            self.ledger.plan(path, None, false, digests);
            return Ok(Plan::Get);
        };
        if !self.is_spelled(path)? {
            let reason =
                "another path has this name here, as the file system ignores case or the composition of letters";
            return Ok(Plan::Refused(reason.to_owned()));
        }
        let own = known.map_or(Ok(Own::No), |known| self.own(path, known, &stat))?;
        // Whether it may be replaced as it is, or if it has one of these contents.
        let is_sure = match (&change.content, stat.kind, own) {
            (_, FileKind::Other, _) => return Ok(Plan::Refused("a device, pipe or socket is in the way".to_owned())),
            (&ChangeContent::File { size, mtime, mode, digest }, FileKind::File, own) => {
                let is_same = (stat.modified, stat.mode & MODE_BITS) == (mtime, self.metadata.file_mode(mode));
                match (own, known) {
                    (Own::Yes, Some(known)) if is_same && known.digest() == Some(digest) => return Ok(Plan::InPlace),
                    // Where times don't decide.
                    (Own::Perhaps(had), Some(&Known::File { modified, changed: None, .. }))
                        if is_same && had == digest && modified == stat.modified =>
                    {
                        return Ok(Plan::InPlace);
                    }
                    (Own::Yes, _) => Some(true),
                    _ if self.ledger.is_foreign(path, &stat) => None,
                    (Own::Perhaps(_), _) => Some(false),
                    (Own::No, _) => (stat.size == size).then_some(false),
                }
            }
            (ChangeContent::Link { target, .. }, FileKind::Link, own) => {
                if self.root.read_link(path)? == target.as_bytes() {
                    return Ok(Plan::InPlace);
                }
                matches!(own, Own::Yes).then_some(true)
            }
            (ChangeContent::Dir { .. }, FileKind::Dir, _) => Some(true),
            // Another type. If what is in a directory is going to be deleted, this is for later; what is left then isn't the follower's. One that
            // a follower before made for a file that it didn't finish isn't in the record: without files, it is nobody's work.
            (_, FileKind::Dir, own) => (matches!(own, Own::Yes) && deletes || self.cleared(path)?).then_some(true),
            (_, _, Own::Yes) => Some(true),
            (_, _, Own::Perhaps(digest)) => {
                let found = self.digest(path)?.filter(|(found, there)| *found == digest && there.same_content(&stat));
                found.map(|_| true)
            }
            (_, _, Own::No) => None,
        };
        if let Some(is_sure) = is_sure {
            self.ledger.plan(path, Some(stat), is_sure, digests);
            return Ok(Plan::Get);
        }
        self.ledger.plan(path, None, false, digests);
        let (dir, name) = self.parent(path)?;
        let parent = path.parent().unwrap_or_default();
        for number in 0..NAMES_MAX {
            let again = if number == 0 { String::new() } else { format!("-{number}") };
            let new_name = with_suffix(&parent, &name, &format!(".tow-conflict-{}{again}", change.seq));
            if dir.existing(&new_name)?.is_none() {
                dir.rename(&name, &dir, &new_name)?;
                kept(&parent.join(&new_name)?);
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
            if name.iter().any(u8::is_ascii_alphabetic) && dir.distinguishes_spellings(&name) {
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
        let Some(before) = self.stat(path)?.filter(|there| is_replaced && there.kind != FileKind::Dir) else {
            return Ok(None);
        };
        let (dir, name) = self.parent(path)?;
        let kept = trash.keep(&dir, &name, path, change.seq)?;
        // A link that is made to it is a change.
        if let Some(now) = self.stat(path)? {
            self.ledger.linked(path, &before, now);
        }
        Ok(Some(kept))
    }

    /// Undoes [`Place::keep`], since the file wasn't replaced.
    pub(super) fn keep_not(&self, kept: &RelPath) -> Result<(), RootError> {
        self.trash.as_ref().map_or(Ok(()), |trash| trash.forget(kept))
    }

    /// Whether a directory is empty. Of one that has no file in it, the parts of files that came into it once and the directories are removed.
    fn cleared(&self, path: &RelPath) -> Result<bool, RootError> {
        let dir = self.root.open_dir(path)?;
        if has_file(&dir, DEPTH_MAX)? {
            return Ok(false);
        }
        clear(&dir)?;
        Ok(!is_over(&dir, 0)?)
    }

    fn parent(&self, path: &RelPath) -> Result<(Dir, Vec<u8>), RootError> {
        let (parent, name) = path.split().ok_or(RootError::NotAFile)?;
        Ok((self.root.open_dir(&parent)?, name.to_vec()))
    }

    /// The digest of a file, and its metadata; `None` if it changes meanwhile.
    fn digest(&self, path: &RelPath) -> Result<Option<(Digest, FileStat)>, RootError> {
        let (file, before) = self.root.open_file(path)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&file).map_err(RootError::Io)?;
        let is_same = FileStat::try_from(&file)?.same_content(&before);
        Ok(is_same.then(|| (Digest(*hasher.finalize().as_bytes()), before)))
    }

    /// Whether what is there is as it was left here.
    pub(super) fn is_as_put(&self, path: &RelPath, known: &Known) -> bool {
        let there = self.stat(path).unwrap_or_default();
        there.is_some_and(|there| matches!(self.own(path, known, &there), Ok(Own::Yes)))
    }

    /// Whether a file of another content is there, as it was left here.
    pub(super) fn is_older(&self, path: &RelPath, known: &Known, wanted: &Known) -> Result<bool, RootError> {
        let Some(there) = self.stat(path)? else { return Ok(false) };
        let is_other = known.digest().is_some() && known.digest() != wanted.digest();
        Ok(is_other && matches!(self.own(path, known, &there)?, Own::Yes))
    }

    /// Renames a file or link that is as it was left here, to where nothing is, or an older file that it `replaces`. Returns what is there then, or
    /// `None` if it wasn't.
    pub(super) fn rename(
        &self,
        from: &RelPath,
        known: &Known,
        to: &RelPath,
        replaces: bool,
    ) -> Result<Option<Known>, RootError> {
        let Some(before) = self.stat(from)?.filter(|there| there.kind != FileKind::Dir) else { return Ok(None) };
        // Where times don't decide, the disk compares its content under the new name.
        let is_compared = matches!(known, Known::File { modified, changed: None, .. } if before.modified == *modified)
            && matches!(self.own(from, known, &before)?, Own::Perhaps(_));
        if (!replaces && self.stat(to)?.is_some()) || !(is_compared || self.is_own(from, known, &before)?) {
            return Ok(None);
        }
        let (new_parent, new_name) = to.split().ok_or(RootError::NotAFile)?;
        let new_dir = self.root.create_dirs(&new_parent, DIR_MODE)?;
        let (dir, name) = self.parent(from)?;
        dir.rename(&name, &new_dir, new_name)?;
        let now = new_dir.stat(new_name)?;
        let digests = known.digest().into_iter().collect();
        // A change by somebody else, who was quicker, isn't this follower's.
        let is_same = (now.inode, now.size, now.modified) == (before.inode, before.size, before.modified);
        let is_sure = is_same && !is_compared;
        self.ledger.plan(to, Some(now), is_sure, digests);
        Ok(Some(match *known {
            Known::File { digest, .. } if !is_sure => {
                Known::File { size: now.size, modified: now.modified, changed: None, digest }
            }
            known => self.as_put(&known, &now),
        }))
    }

    /// Copies a file to where it is wanted too, if its content has the digest. Returns what is there then, or `None` if it hasn't.
    pub(super) fn copy(
        &self,
        from: &RelPath,
        known: &Known,
        to: &RelPath,
        change: &Change,
    ) -> Result<Option<Known>, RootError> {
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
    ) -> Result<Option<Known>, RootError> {
        let ChangeContent::File { mtime, mode, digest, size } = change.content else { return Ok(None) };
        let (mut source, stat) = place.root.open_file(from)?;
        if known.digest() != Some(digest) || stat.size != size {
            return Ok(None);
        }
        let (parent, name) = to.split().ok_or(RootError::NotAFile)?;
        let dir = self.root.create_dirs(&parent, DIR_MODE)?;
        let (part, _) = partial_names(name);
        let mut file = match dir.create_file(&part, 0o600) {
            // A part of it is there already.
            Err(RootError::Exists) => return Ok(None),
            created => created?,
        };
        let copied = (|| {
            // By copy_file_range(2), which shares the blocks where the file system can.
            std::io::copy(&mut source, &mut file).map_err(RootError::Io)?;
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&dir.open_file(&part)?.0).map_err(RootError::Io)?;
            if Digest(*hasher.finalize().as_bytes()) != digest {
                return Ok(None);
            }
            set_mode(&file, self.metadata.file_mode(mode))?;
            set_modified(&file, mtime)?;
            if !dir.rename_to_free(&part, name)? {
                return Ok(None);
            }
            let stat = FileStat::try_from(&file)?;
            self.ledger.plan(to, Some(stat), true, vec![digest]);
            Ok(Some(Known::File { size, modified: stat.modified, changed: self.changed(&stat), digest }))
        })();
        if !matches!(copied, Ok(Some(_))) {
            let _ = dir.remove_file(&part);
        }
        copied
    }

    /// Removes what was put at a path, if it is as it was left.
    pub(super) fn remove(&self, path: &RelPath, known: &Known, seq: u64) -> Result<Removal, RootError> {
        let Some(stat) = self.stat(path)? else { return Ok(Removal::Removed) };
        if !self.is_own(path, known, &stat)? {
            return Ok(Removal::Kept);
        }
        let (dir, name) = self.parent(path)?;
        let removed = match known {
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
            if let Ok(Some(stat)) = self.stat(&path)
                && self.is_own(&path, &intended, &stat).is_ok_and(|is_own| is_own)
            {
                record.put(&path, self.as_put(&intended, &stat))?;
            }
        }
        Ok(())
    }

    /// The record of an entry that was put in place.
    pub(super) fn as_put(&self, known: &Known, stat: &FileStat) -> Known {
        match *known {
            Known::File { size, digest, .. } => {
                Known::File { size, modified: stat.modified, changed: self.changed(stat), digest }
            }
            known => known,
        }
    }

    /// Looks for everything that was put here: what isn't there any more, and the numbers of directories.
    pub(super) fn survey(&self, record: &Record) -> Survey {
        let mut all: Vec<_> = record.iter().collect();
        all.sort_unstable_by_key(|(path, _)| *path);
        let mut survey = Survey::default();
        let mut parent: Option<(RelPath, Option<Dir>)> = None;
        for (path, known) in all {
            let Some((above, name)) = path.split() else { continue };
            let dir = match parent.take() {
                Some((of, dir)) if of == above => dir,
                _ => match self.root.open_dir(&above) {
                    Ok(dir) => Some(dir),
                    Err(RootError::NotFound | RootError::NotADirectory | RootError::Outside) => None,
                    // What can't be looked at isn't known to be missing.
                    Err(_) => continue,
                },
            };
            match (known, dir.as_ref().map_or(Ok(None), |dir| dir.existing(name))) {
                (_, Ok(None)) => survey.missing.push(path.clone()),
                (Known::Dir, Ok(Some(there))) => _ = survey.dirs.insert(path.clone(), there.inode),
                _ => {}
            }
            parent = Some((above, dir));
        }
        survey
    }
}

/// Which of the recorded entries are still in place.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Isn't there any more.
    pub(super) missing: Vec<RelPath>,
    /// Inodes of directories.
    pub(super) dirs: HashMap<RelPath, u64>,
}

fn is_not_empty(error: &RootError) -> bool {
    match error {
        RootError::Exists => true,
        RootError::Io(error) => error.kind() == std::io::ErrorKind::DirectoryNotEmpty,
        _ => false,
    }
}

/// Whether there is a file in a directory or below it, other than a part of one. One that is too large or deep to search counts as having one.
fn has_file(dir: &Dir, depth: usize) -> Result<bool, RootError> {
    if is_over(dir, ENTRIES_MAX)? {
        return Ok(true);
    }
    for entry in dir.entries(ENTRIES_MAX)? {
        let has_file = match dir.stat(&entry.name)?.kind {
            FileKind::Dir => depth == 0 || has_file(&dir.open_dir(&entry.name)?, depth - 1)?,
            _ => !is_partial(&entry.name),
        };
        if has_file {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes parts of files, and directories.
fn clear(dir: &Dir) -> Result<(), RootError> {
    for entry in dir.entries(ENTRIES_MAX)? {
        if dir.stat(&entry.name)?.kind == FileKind::Dir {
            clear(&dir.open_dir(&entry.name)?)?;
            dir.remove_dir(&entry.name)?;
        }
    }
    remove_left_over(dir)
}

fn is_over(dir: &Dir, entries: usize) -> Result<bool, RootError> {
    match dir.entries(entries) {
        Err(RootError::TooMany(_)) => Ok(true),
        entries => entries.map(|_| false),
    }
}
