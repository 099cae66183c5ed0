//! Files with several names (hard links): an event names only the one under which something happened.

use super::Watcher;
use crate::catalogue::Content;
use crate::path::RelPath;
use crate::root::FileStat;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Files with several names that are remembered.
const LINKED_MAX: usize = 1 << 20;

/// The names of a file.
#[derive(Debug, Default)]
pub(super) struct Links {
    names: BTreeSet<RelPath>,
    /// How many names it had when those that are published were searched for.
    searched: u64,
}

impl Watcher {
    /// Notes a name of a file, if it has others.
    pub(super) fn note_name(&mut self, path: &RelPath, stat: &FileStat) {
        if stat.links > 1 && self.linked.len() < LINKED_MAX {
            self.linked.entry((stat.device, stat.inode)).or_default().names.insert(path.clone());
        }
    }

    /// Finds the other names of files that have more of them than are known: no event under the first name says that there is a second one. Not needed
    /// while everything is read, which notes them all.
    pub(super) fn find_names(&mut self, files: &[(RelPath, FileStat)]) {
        let mut new = HashMap::new();
        for (path, stat) in files.iter().filter(|(_, stat)| stat.links > 1) {
            self.note_name(path, stat);
            let key = (stat.device, stat.inode);
            if let Some(links) = self.linked.get(&key)
                && links.searched != stat.links
                && (links.names.len() as u64) < stat.links
            {
                new.insert(key, stat.links);
            }
        }
        if new.is_empty() {
            return;
        }
        let catalogue = self.published.read();
        let published = catalogue.below(b"").filter(|(_, entry)| matches!(entry.content, Content::File { .. }));
        let published = published.map(|(path, entry)| (path, (entry.identity.device, entry.identity.inode)));
        let published = published.filter(|(_, key)| new.contains_key(key));
        let published = published.filter_map(|(path, key)| Some((RelPath::new(path.to_vec()).ok()?, key)));
        let waiting = self.unfinished.waiting().map(|(path, stat)| (path.clone(), (stat.device, stat.inode)));
        for (path, key) in published.chain(waiting.filter(|(_, key)| new.contains_key(key))) {
            self.linked.entry(key).and_modify(|links| _ = links.names.insert(path));
        }
        for (key, searched) in new {
            self.linked.entry(key).and_modify(|links| links.searched = searched);
        }
    }

    /// The other names of files that changed, since their content has changed as well. Whether they are there is seen when they are opened.
    pub(super) fn other_names(&mut self, files: &[(RelPath, FileStat)], gone: &[RelPath]) -> Vec<(RelPath, FileStat)> {
        self.forget_names(gone);
        files.iter().for_each(|(path, stat)| self.note_name(path, stat));
        let mut others = Vec::new();
        if self.linked.is_empty() {
            return others;
        }
        let found: HashMap<&RelPath, &FileStat> = files.iter().map(|(path, stat)| (path, stat)).collect();
        let catalogue = self.published.read();
        for (path, stat) in files.iter().filter(|(_, stat)| stat.links > 1) {
            let Some(Links { names, .. }) = self.linked.get_mut(&(stat.device, stat.inode)) else { continue };
            // One that isn't published yet is another name all the same, and the catalogue may have what was there before.
            names.retain(|other| match found.get(other) {
                Some(other) => (other.device, other.inode) == (stat.device, stat.inode),
                None if self.unfinished.has(other, stat) || self.unread.has_file(other) => true,
                None => catalogue.get(other.as_bytes()).is_none_or(|entry| entry.identity.is_same_inode(stat)),
            });
            let is_other = |name: &&RelPath| catalogue.get(name.as_bytes()).is_none_or(|entry| !entry.is_file(stat));
            let names = names.iter().filter(|name| *name != path && !found.contains_key(*name));
            others.extend(names.filter(is_other).map(|name| (name.clone(), *stat)));
        }
        others
    }

    /// Forgets names that are gone.
    fn forget_names(&mut self, gone: &[RelPath]) {
        if self.linked.is_empty() {
            return;
        }
        let catalogue = self.published.read();
        let itself = |path: &RelPath| catalogue.get(path.as_bytes()).map(|entry| (path.as_bytes().into(), entry));
        for path in gone {
            let below = catalogue.below(path.as_bytes()).map(|(path, entry)| (Arc::clone(path), entry));
            for (path, entry) in itself(path).into_iter().chain(below) {
                let key = (entry.identity.device, entry.identity.inode);
                if let Some(Links { names, .. }) = self.linked.get_mut(&key)
                    && let Ok(path) = RelPath::new(path.to_vec())
                {
                    names.remove(&path);
                    if names.is_empty() {
                        self.linked.remove(&key);
                    }
                }
            }
        }
    }
}
