//! The contents of a push: files, all files of a directory, and the bytes of a reader.

use super::{OnEvent, PushEvent, PushFile, PushOptions, PushProgress, PushSource, Show};
use crate::error::Error;
use crate::filter::Filter;
use crate::limits::PUSH_NAMES_MAX;
use crate::path::{RelPath, is_reserved};
use crate::root::{Dir, FileKind, FileStat, Links, Root, RootError};
use crate::transfer::LIST_ENTRIES_MAX;
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use towpath_blocking::CancelToken;

/// Bytes that are read of a reader at a time.
const READ_BYTES: usize = 256 << 10;
/// Names in a directory and those above it.
const NAMES_MAX: usize = 1 << 22;
/// Permission bits of what a reader has.
const READER_MODE: u32 = 0o644;

/// A file to push.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) file: PushFile,
    content: Content,
    /// Bytes when it was looked at.
    pub(super) size: u64,
}

/// Where the content of a file is.
#[derive(Debug)]
enum Content {
    /// At its path.
    AtPath,
    /// Below a directory.
    Below(Arc<Root>, RelPath),
    /// In an unnamed file.
    Spooled(File),
}

/// All files of the sources. What can't be pushed is reported.
pub(super) fn items(
    options: &mut PushOptions,
    on_event: &mut OnEvent<'_>,
    show: &mut Show<'_>,
    cancel: &CancelToken,
) -> Result<Vec<Item>, Error> {
    let mut items = Vec::new();
    for source in std::mem::take(&mut options.sources) {
        match source {
            PushSource::File(file) => {
                let size = std::fs::metadata(&file.local).map_or(0, |metadata| metadata.len());
                items.push(Item { file, content: Content::AtPath, size });
            }
            PushSource::Tree { local, remote, filter } => {
                Walk { local: &local, remote: &remote, filter: &filter, items: &mut items, empty: 0 }
                    .all(on_event, cancel)?;
            }
            PushSource::Reader { reader, remote } => {
                let spooled = spool(reader, &options.spool_dir, show, cancel)?;
                let size = spooled.metadata().map_or(0, |metadata| metadata.len());
                let file = PushFile { local: Default::default(), remote };
                items.push(Item { file, content: Content::Spooled(spooled), size });
            }
        }
    }
    let mut remotes = HashSet::with_capacity(items.len());
    match items.iter().find(|item| !remotes.insert(&item.file.remote)) {
        Some(twice) => Err(Error::Local(format!("two of the files would be {} on the server", twice.file.remote))),
        None => Ok(items),
    }
}

/// Reads a reader to its end, into an unnamed file.
fn spool(
    mut reader: Box<dyn Read + Send>,
    dir: &Path,
    show: &mut Show<'_>,
    cancel: &CancelToken,
) -> Result<File, Error> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::DiskFull(format!("{}: {error}; what is read is kept there until it is pushed", dir.display()))
        }
        _ => Error::Local(format!("{}: cannot keep what is read: {error}", dir.display())),
    };
    let mut file = tempfile::tempfile_in(dir).map_err(failed)?;
    let (mut buffer, mut bytes) = (vec![0; READ_BYTES], 0);
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(file),
            Ok(count) => {
                file.write_all(buffer.get(..count).unwrap_or_default()).map_err(failed)?;
                bytes += count as u64;
                show(PushProgress { files: 1, bytes, ..PushProgress::default() });
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Local(format!("cannot read what is to be pushed: {error}"))),
        }
    }
}

/// A directory of a walk.
struct Level {
    path: RelPath,
    dir: Dir,
    /// Names that are still to be looked at, the next one last.
    left: Vec<Box<[u8]>>,
}

/// A walk through a directory, depth first, in the order of names.
struct Walk<'a> {
    local: &'a Path,
    remote: &'a RelPath,
    filter: &'a Filter,
    items: &'a mut Vec<Item>,
    /// Directories that have nothing.
    empty: u64,
}

impl Walk<'_> {
    fn all(mut self, on_event: &mut OnEvent<'_>, cancel: &CancelToken) -> Result<(), Error> {
        let opened = Root::directory(self.local, Links::Never);
        let opened = opened.and_then(|root| root.open_dir(&RelPath::root()).map(|top| (Arc::new(root), top)));
        let (root, top) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.leave_out(&RelPath::root(), error.to_string(), on_event),
        };
        // By descriptors, so that nothing that is renamed leads elsewhere.
        let mut dirs: Vec<Level> = self.enter(RelPath::root(), top, on_event)?.into_iter().collect();
        while let Some(Level { path, dir, left }) = dirs.last_mut() {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let Some(name) = left.pop() else {
                dirs.pop();
                continue;
            };
            let Ok(below) = path.join(&name) else {
                let path = path.clone();
                self.leave_out(&path, "a name in it, or a path, is too long".to_owned(), on_event)?;
                continue;
            };
            match dir.stat(&name) {
                Ok(stat) if stat.kind == FileKind::Dir => {
                    if self.filter.excludes(&below, true) {
                        continue;
                    }
                    match dir.open_dir(&name) {
                        Ok(_) if dirs.len() >= PUSH_NAMES_MAX => {
                            let reason = format!("what is below it has more than {PUSH_NAMES_MAX} names in its path");
                            self.leave_out(&below, reason, on_event)?;
                        }
                        Ok(opened) => dirs.extend(self.enter(below, opened, on_event)?),
                        Err(error) => self.leave_out(&below, error.to_string(), on_event)?,
                    }
                }
                Ok(_) if !self.filter.takes(&below, false) => {}
                Ok(stat) if stat.kind == FileKind::File => {
                    let Some(file) = self.file(&below) else {
                        self.leave_out(&below, "its path would be too long on the server".to_owned(), on_event)?;
                        continue;
                    };
                    if self.items.len() >= LIST_ENTRIES_MAX {
                        return Err(Error::Local(format!("more than {LIST_ENTRIES_MAX} files at a time")));
                    }
                    let content = Content::Below(Arc::clone(&root), below);
                    self.items.push(Item { file, content, size: stat.size });
                }
                Ok(stat) => {
                    let what = if stat.kind == FileKind::Link { "a symbolic link" } else { "a device, pipe or socket" };
                    self.leave_out(&below, format!("it is {what}, and only regular files are pushed"), on_event)?;
                }
                // It is gone.
                Err(RootError::NotFound) => {}
                Err(error) => self.leave_out(&below, error.to_string(), on_event)?,
            }
        }
        if self.empty > 0 {
            let empty = match self.empty {
                1 => "an empty directory is".to_owned(),
                count => format!("{count} empty directories are"),
            };
            let of = self.local.display();
            on_event(PushEvent::Warning(format!("{of}: {empty} left out, since only files are pushed")))?;
        }
        Ok(())
    }

    fn enter(&mut self, path: RelPath, dir: Dir, on_event: &mut OnEvent<'_>) -> Result<Option<Level>, Error> {
        match dir.entries(NAMES_MAX) {
            Ok(entries) => {
                self.empty += u64::from(entries.is_empty());
                // Incomplete files aren't pushed.
                let names = entries.into_iter().map(|entry| entry.name).filter(|name| !is_reserved(name));
                let mut left: Vec<_> = names.collect();
                left.sort_unstable_by(|left, right| right.cmp(left));
                Ok(Some(Level { path, dir, left }))
            }
            Err(error) => self.leave_out(&path, error.to_string(), on_event).map(|()| None),
        }
    }

    /// The file at a path below the directory.
    fn file(&self, below: &RelPath) -> Option<PushFile> {
        let remote = below.names().try_fold(self.remote.clone(), |at, name| at.join(name)).ok()?;
        let local = if below.is_root() { self.local.to_owned() } else { self.local.join(below.as_os_str()) };
        Some(PushFile { local, remote })
    }

    fn leave_out(&self, below: &RelPath, reason: String, on_event: &mut OnEvent<'_>) -> Result<(), Error> {
        let file = self.file(below);
        let file = file.unwrap_or_else(|| PushFile { local: self.local.to_owned(), remote: self.remote.clone() });
        on_event(PushEvent::Failed { file, code: None, reason })?;
        Ok(())
    }
}

impl Item {
    /// Opens a regular file. Anything else could block.
    pub(super) fn open(&self) -> Result<(File, FileStat), String> {
        match &self.content {
            Content::AtPath => open(&self.file.local),
            Content::Below(root, path) => root.open_file(path).map_err(|error| error.to_string()),
            Content::Spooled(file) => {
                let file = file.try_clone().map_err(|error| error.to_string())?;
                let stat = FileStat::try_from(&file).map_err(|error| error.to_string())?;
                Ok((file, FileStat { mode: READER_MODE, ..stat }))
            }
        }
    }

    /// Removes a file that is as it was when it was pushed.
    pub(super) fn remove(&self, pushed: &FileStat) -> Result<(), String> {
        match &self.content {
            Content::AtPath => {
                let now = rustix::fs::lstat(&self.file.local).map_err(|errno| io::Error::from(errno).to_string())?;
                check_unchanged(&now.into(), pushed)?;
                std::fs::remove_file(&self.file.local).map_err(|error| error.to_string())
            }
            Content::Below(root, path) => {
                let (parent, name) = path.split().ok_or_else(|| RootError::NotAFile.to_string())?;
                let dir = root.open_dir(&parent).map_err(|error| error.to_string())?;
                check_unchanged(&dir.stat(name).map_err(|error| error.to_string())?, pushed)?;
                dir.remove_file(name).map_err(|error| error.to_string())
            }
            Content::Spooled(_) => Ok(()),
        }
    }
}

fn open(path: &Path) -> Result<(File, FileStat), String> {
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let file = File::from(opened.map_err(|errno| io::Error::from(errno).to_string())?);
    let stat = FileStat::try_from(&file).map_err(|error| error.to_string())?;
    match stat.kind {
        FileKind::File => Ok((file, stat)),
        FileKind::Dir => Err("it is a directory".to_owned()),
        FileKind::Link | FileKind::Other => Err("it is not a regular file".to_owned()),
    }
}

fn check_unchanged(now: &FileStat, pushed: &FileStat) -> Result<(), String> {
    if now.kind == FileKind::Link {
        return Err("it is a link, and neither that nor what it leads to is removed".to_owned());
    }
    if !now.same_content(pushed) {
        return Err("it was changed meanwhile".to_owned());
    }
    Ok(())
}
