//! Files with several names: fetched under the first one that is listed, and linked to the others.

use crate::error::Error;
use std::collections::HashMap;

use super::Transfer;
use super::command::{DiskCommand, FileKey, Version};
use super::file::{FileTask, Phase};
use crate::path::RelPath;

/// Memory of the first names, in bytes. Beyond it, further files are fetched under each of their names.
const NAMES_BYTES_MAX: usize = 16 << 20;

/// The first names of files that have several, by the server's numbers.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    first: HashMap<u64, FirstName>,
    names_bytes: usize,
    /// Other names whose first name is in place.
    ready: Vec<FileKey>,
}

#[derive(Debug)]
struct FirstName {
    key: FileKey,
    local: RelPath,
    version: Version,
    /// The way in which it was put in place.
    installed: Option<Installed>,
    /// Other names, until it is in place.
    waiting: Vec<FileKey>,
}

#[derive(Clone, Copy, Debug)]
struct Installed {
    is_skipped: bool,
    is_verified: bool,
}

impl HardLinks {
    /// Remembers a first name, if there is memory for it.
    fn remember(&mut self, number: u64, key: FileKey, task: &FileTask) {
        let bytes = size_of::<(u64, FirstName)>() + task.local.as_bytes().len();
        if self.names_bytes + bytes <= NAMES_BYTES_MAX {
            self.names_bytes += bytes;
            let (local, version) = (task.local.clone(), task.version);
            self.first.insert(number, FirstName { key, local, version, installed: None, waiting: Vec::new() });
        }
    }
}

impl Transfer {
    /// Whether a file is another name of one that was listed before; if not, it may be the first of several.
    pub(super) fn waits_for_first_name(&mut self, key: FileKey) -> bool {
        let Some(task) = self.files.get(key) else { return false };
        let Some(number) = task.hard_link.filter(|_| !self.options.in_order && !self.options.objects) else {
            return false;
        };
        let Some(first) = self.hard_links.first.get_mut(&number) else {
            self.hard_links.remember(number, key, task);
            return false;
        };
        if first.version != task.version {
            return false;
        }
        match first.installed {
            Some(_) => self.hard_links.ready.push(key),
            None => first.waiting.push(key),
        }
        true
    }

    /// A file is in place: its other names can be linked if it was the first.
    pub(super) fn first_name_installed(
        &mut self,
        key: FileKey,
        number: Option<u64>,
        is_skipped: bool,
        is_verified: bool,
    ) {
        let HardLinks { first, ready, .. } = &mut self.hard_links;
        if let Some(first) = number.and_then(|number| first.get_mut(&number)).filter(|first| first.key == key) {
            first.installed = Some(Installed { is_skipped, is_verified });
            ready.append(&mut first.waiting);
        }
    }

    /// A file has failed: if it was the first name, the next one is fetched.
    pub(super) fn first_name_failed(&mut self, key: FileKey, number: Option<u64>) {
        let Some(number) = number.filter(|number| self.hard_links.first.get(number).is_some_and(|of| of.key == key))
        else {
            return;
        };
        let Some(first) = self.hard_links.first.remove(&number) else { return };
        for other in first.waiting {
            if !self.waits_for_first_name(other) {
                self.begin_file(other);
            }
        }
    }

    /// Has other names linked when nothing can stand in the place of a directory above them any more.
    pub(super) fn pump_links(&mut self) {
        if self.tree.pending() > 0 {
            return;
        }
        for file in std::mem::take(&mut self.hard_links.ready) {
            let Some(FileTask { local, version, hard_link, .. }) = self.files.get(file) else { continue };
            let Some(first) = hard_link.and_then(|number| self.hard_links.first.get(&number)) else { continue };
            let (local, version, first) = (local.clone(), *version, first.local.clone());
            self.command(DiskCommand::HardLink { file, local, first, version });
        }
    }

    /// Another name is linked.
    pub(super) fn linked(&mut self, task: FileTask) {
        let first = task.hard_link.and_then(|number| self.hard_links.first.get(&number));
        let Installed { is_skipped, is_verified } =
            first.and_then(|first| first.installed).unwrap_or(Installed { is_skipped: false, is_verified: false });
        self.totals.bytes = self.totals.bytes.saturating_add(task.version.size);
        self.totals.skipped += u64::from(is_skipped);
        self.totals.verified += u64::from(is_verified);
    }

    /// Another name can't be linked: the file is fetched under it. False if it isn't such a name.
    pub(super) fn link_failed(&mut self, key: FileKey, error: &Error) -> bool {
        let Some(task) = self.files.get_mut(key).filter(|task| matches!(task.phase, Phase::Linking)) else {
            return false;
        };
        task.hard_link = None;
        let warning = format!("{}: {error}; it becomes a file of its own", task.remote);
        self.warn(warning);
        self.begin_file(key);
        true
    }
}
