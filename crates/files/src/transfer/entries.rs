//! Entries: what a source yields, and what the transfer does with each.

use crate::error::Error;
use std::collections::BTreeMap;

use super::Transfer;
use super::command::{DiskCommand, FileKey, Version};
use super::file::{FileTask, Phase};
use super::listing::Opened;
use super::{FILES_IN_PROGRESS_MAX, Output};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::control::{DirStat, ListPage};
use crate::root::Timestamp;

/// Memory that directories may take until they are finished, in bytes.
const DIRS_BYTES_MAX: usize = 256 << 20;

/// An entry for the destination. Its paths are checked.
#[derive(Debug)]
pub(super) enum Entry {
    /// A file, fetched unless it is there already.
    File {
        remote: RelPath,
        local: RelPath,
        version: Version,
        /// Bytes that it takes on the server's disk.
        allocated: u64,
        /// The digest that it must have, if it must have one.
        digest: Option<Digest>,
        /// Number that it has in common with other names of the same file.
        hard_link: Option<u64>,
    },
    /// A directory, whose mode and time are set when nothing more is written below it.
    Dir { local: RelPath, stat: DirStat },
    /// A symbolic link that stays inside the destination.
    Link { local: RelPath, target: Vec<u8>, modified: Timestamp },
}

/// An entry that can't be had.
#[derive(Debug)]
pub(super) struct Unusable {
    /// Its path on the server, for people.
    pub(super) path: String,
    pub(super) reason: String,
}

/// Directories and links, and inspections, which wait for them: a file is inspected only when nothing can stand in the place of a directory
/// above it any more.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Directories and links that the disk is making, or directories that it is finishing.
    pending: usize,
    /// Directories to be finished, by depth, but for those that could not be made.
    dirs: BTreeMap<usize, BTreeMap<RelPath, DirStat>>,
    /// Memory that these take, in bytes.
    dirs_bytes: usize,
    /// Files to be inspected.
    deferred: Vec<FileKey>,
    /// Files to be inspected, and those that the disk is inspecting.
    inspecting: usize,
}

impl Tree {
    /// Directories and links that the disk is working on.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Whether files are still to be inspected.
    pub(super) fn is_inspecting(&self) -> bool {
        self.inspecting > 0
    }

    /// A command to make or finish a directory or link was sent.
    fn begin(&mut self) {
        self.pending += 1;
    }

    /// The disk has made or finished a directory or link, or failed to.
    pub(super) fn done(&mut self, local: &RelPath, is_ok: bool) {
        self.pending = self.pending.saturating_sub(1);
        if !is_ok && let Some(dirs) = self.dirs.get_mut(&local.names().count()) {
            dirs.remove(local);
        }
    }

    fn finish_later(&mut self, local: RelPath, stat: DirStat) {
        self.dirs_bytes += size_of::<(RelPath, DirStat)>() + local.as_bytes().len();
        self.dirs.entry(local.names().count()).or_default().insert(local, stat);
    }

    fn inspect(&mut self, file: FileKey) {
        self.deferred.push(file);
        self.inspecting += 1;
    }

    /// The disk has inspected a file.
    pub(super) fn inspected(&mut self) {
        self.inspecting = self.inspecting.saturating_sub(1);
    }

    /// Files that can be inspected now.
    fn take_deferred(&mut self) -> Vec<FileKey> {
        if self.pending == 0 { std::mem::take(&mut self.deferred) } else { Vec::new() }
    }

    /// The deepest directories that can be finished: `None` if all are. What is in a directory may be unreachable once it has its mode.
    fn next_to_finish(&mut self) -> Option<BTreeMap<RelPath, DirStat>> {
        let (_, dirs) = self.dirs.pop_last()?;
        self.dirs_bytes = if self.dirs.is_empty() { 0 } else { self.dirs_bytes };
        Some(dirs)
    }
}

impl Transfer {
    /// Requests the listing or its next page. Directories and links wait for the disk as files do.
    pub(super) fn pump_listing(&mut self) {
        let has_space = self.files.len() + self.tree.pending() < FILES_IN_PROGRESS_MAX;
        let requests = &mut self.requests;
        if let Some(request) = self.listing.next_request(|| requests.next_id(), has_space) {
            self.send(request);
        }
    }

    /// A page of the listing arrived.
    pub(super) fn list_page(&mut self, page: ListPage) -> Result<(), Error> {
        let Some(Opened { base, name, dir }) = self.listing.page(page)? else { return self.take_entries() };
        if let Some(stat) = dir {
            self.tree.finish_later(RelPath::root(), stat);
        }
        self.outputs.push_back(Output::OpenDestination { base, name, dir });
        Ok(())
    }

    /// Takes the entries that came.
    pub(super) fn take_entries(&mut self) -> Result<(), Error> {
        while let Some(entry) = self.listing.next_entry(&mut |text| self.outputs.push_back(Output::Warn(text))) {
            match entry {
                Ok(entry) => self.take_entry(entry)?,
                Err(unusable) if self.options.in_order => return Err(Error::unmet(unusable.reason)),
                Err(Unusable { path, reason }) => self.totals.fail(path, reason, None),
            }
        }
        Ok(())
    }

    fn take_entry(&mut self, entry: Entry) -> Result<(), Error> {
        match entry {
            Entry::File { remote, local, version, allocated, digest, hard_link } => {
                self.totals.listed_files += 1;
                self.listed_bytes(self.totals.listed_bytes.saturating_add(version.size))?;
                let task = FileTask::new(remote, local, version, allocated, Phase::Linking);
                let key = self.files.insert(FileTask { digest, must_be: digest, hard_link, ..task });
                if !self.waits_for_first_name(key) {
                    self.begin_file(key);
                }
            }
            Entry::Dir { local, stat } => {
                self.tree.begin();
                self.command(DiskCommand::MakeDir { local: local.clone() });
                self.tree.finish_later(local, stat);
                if self.tree.dirs_bytes > DIRS_BYTES_MAX {
                    return Err(Error::Limit(format!("the listing has over {DIRS_BYTES_MAX} bytes of directories")));
                }
            }
            Entry::Link { local, target, modified } => {
                self.tree.begin();
                self.command(DiskCommand::MakeLink { local, target, modified });
            }
        }
        Ok(())
    }

    /// Takes the bytes of all files, as far as they are listed.
    pub(super) fn listed_bytes(&mut self, bytes: u64) -> Result<(), Error> {
        self.totals.listed_bytes = bytes;
        match self.options.max_bytes {
            Some(max) if bytes > max => Err(Error::Limit(format!("the files have more than {max} bytes in all"))),
            _ => Ok(()),
        }
    }

    /// Fetches a file, unless the disk finds that it is there.
    pub(super) fn begin_file(&mut self, key: FileKey) {
        let Some(task) = self.files.get_mut(key) else { return };
        if self.fresh {
            task.phase = Phase::Waiting;
            self.waiting.push_back(key);
        } else {
            task.phase = Phase::Inspecting;
            self.tree.inspect(key);
        }
    }

    /// Has files inspected that can be.
    pub(super) fn pump_inspections(&mut self) {
        for file in self.tree.take_deferred() {
            if let Some(FileTask { local, version, must_be, .. }) = self.files.get(file) {
                let (local, listed, digest) = (local.clone(), *version, *must_be);
                self.command(DiskCommand::Inspect { file, local, listed, digest });
            }
        }
    }

    /// Has directories finished, the deepest first: `true` once all are.
    pub(super) fn pump_dirs(&mut self) -> bool {
        while self.tree.pending() == 0 {
            let Some(dirs) = self.tree.next_to_finish() else { return true };
            for (local, DirStat { mode, mtime: modified }) in dirs {
                self.tree.begin();
                self.command(DiskCommand::FinishDir { local, mode, modified });
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_could_not_be_made_is_finished_when_it_comes_again() {
        let mut tree = Tree::default();
        let (dir, stat) = ("a/b".parse::<RelPath>().unwrap(), DirStat { mode: 0o755, mtime: Timestamp::default() });
        for is_made in [false, true] {
            tree.begin();
            tree.finish_later(dir.clone(), stat);
            tree.done(&dir, is_made);
            assert_eq!(tree.next_to_finish().unwrap().contains_key(&dir), is_made);
            assert!(tree.next_to_finish().is_none());
        }
    }
}
