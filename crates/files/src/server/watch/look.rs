//! Looks at directories and names, and compares them with the catalogue.

use super::Watcher;
use super::dirty::{Dirty, Names};
use super::finish::FILES_AT_A_TIME;
use super::limit::Verdict;
use super::mounts::Changed;
use crate::catalogue::{Catalogue, Content, Entry, Identity};
use crate::path::{RelPath, is_reserved};
use crate::root::{Dir, FileKind, FileStat, Root, RootError};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Names of one directory.
const NAMES_MAX: usize = 1 << 20;
/// Paths of held deletions that are logged.
const HELD_SHOWN_MAX: usize = 5;

/// Result of a look.
#[derive(Debug, Default)]
struct Findings {
    /// Directories that are still to be read, in whole.
    dirs: Vec<RelPath>,
    /// Entries that are published at once: directories and links.
    now: Vec<(RelPath, Content, Identity)>,
    /// Files that aren't what the catalogue has.
    files: Vec<(RelPath, FileStat)>,
    gone: Vec<RelPath>,
    /// A directory that has something published could not be read: what is missing below it isn't known.
    lacks_known: bool,
}

/// Key by which a renamed file is recognised: device, inode, size and time.
type Moved = HashMap<(u64, u64, u64, crate::root::Timestamp), (Content, bool)>;

impl Watcher {
    /// Looks where something may have changed. What is there is published, except files, which are published when they are finished.
    pub(super) fn look(&mut self, dirty: Dirty) {
        let root = self.path.look();
        let Some((before, is_accepted)) = self.root_now(&root) else {
            tracing::warn!("the served directory can't be read: nothing is published until it can");
            return;
        };
        let Dirty { is_everything, are_mounts, dirs } = dirty;
        if is_everything || are_mounts {
            self.read_mounts(&root);
        }
        if are_mounts && !is_everything {
            // One that was replaced between two looks may have all the numbers of the one before.
            self.mounts.mounted().for_each(|path| self.events.look_into(path));
        }
        let mut found = Findings::default();
        if is_everything {
            self.was_blind = std::mem::replace(&mut self.is_blind, !root.has_events());
            found.dirs.push(RelPath::root());
            self.linked.clear();
        }
        for (path, names) in dirs {
            match names {
                Names::All => found.dirs.push(path),
                Names::These(names) => {
                    let opened = open(&root, &path);
                    self.read(&path, opened, Some(names.into_iter().collect()), false, &mut found);
                }
            }
        }
        // Of a tree of which nothing is known, not all has to be read before anything is published: nothing can be gone or renamed.
        let is_new = is_everything && self.published.read().is_empty();
        while let Some(path) = found.dirs.pop() {
            if self.events.is_stopped() {
                return;
            }
            let opened = open(&root, &path);
            self.read(&path, opened, None, is_everything, &mut found);
            if is_new && found.files.len() >= FILES_AT_A_TIME {
                let (now, files) = (std::mem::take(&mut found.now), std::mem::take(&mut found.files));
                let rounds = files.len().div_ceil(FILES_AT_A_TIME);
                self.publish(Findings { now, files, ..Findings::default() }, false, is_accepted);
                (0..rounds).for_each(|_| self.finish());
            }
        }
        // What is gone may have been unmounted since.
        if !found.gone.is_empty() {
            self.read_mounts(&root);
        }
        // Only what was read of the same root is a reason to delete anything.
        let after = self.path.look();
        if self.root_now(&after).map(|(now, _)| (now.device, now.inode)) != Some((before.device, before.inode)) {
            tracing::warn!("the served directory was replaced while it was looked at: it is looked at again");
            return self.events.everything();
        }
        if !is_everything {
            self.find_names(&found.files);
        }
        let is_all = is_everything && !found.lacks_known;
        // What was held or gone below a directory that can be read again has no event.
        if is_everything {
            self.lacks_known = found.lacks_known;
        } else if self.lacks_known && !self.unread.has_dirs() {
            self.events.everything();
        }
        let is_held = self.publish(found, is_everything, is_accepted);
        if is_all && !is_held {
            self.mounts.forget_gone();
            self.published.note_mounts(self.mounts.known());
            if !is_accepted {
                self.accept_root(&before);
            }
        }
    }

    /// Reads the table of mounts: where something was mounted or unmounted, another directory is now.
    fn read_mounts(&mut self, root: &Root) {
        let is_first = self.looked.is_none();
        let Changed { mounted, gone } = self.mounts.read(root);
        for path in mounted.iter().filter(|_| !is_first) {
            tracing::info!(%path, "a file system is mounted below the served directory: it is published too");
        }
        for path in &gone {
            tracing::warn!(%path, "a file system below the served directory isn't mounted any more: what was published of it stays");
        }
        if !mounted.is_empty() || !gone.is_empty() {
            self.published.note_mounts(self.mounts.known());
        }
        for path in mounted.iter().chain(&gone) {
            // What happens in a directory out of sight has no events, or events of which nothing was found: all below is read again.
            self.events.unwatch(path);
            self.events.look_into(path);
            if let Some((parent, name)) = path.split() {
                self.events.look_at(&parent, name);
            }
        }
    }

    /// Reads a directory, or looks at some of its names.
    fn read(
        &mut self,
        path: &RelPath,
        opened: Result<Dir, RootError>,
        names: Option<Vec<Box<[u8]>>>,
        goes_down: bool,
        found: &mut Findings,
    ) {
        let is_whole = names.is_none();
        let listed = opened.and_then(|dir| {
            if is_whole && let Err(errno) = self.events.watch(path, &dir, &dir.own_stat()?) {
                self.blind(path, errno);
            }
            let names = match names {
                Some(names) => names,
                None => dir.entries(NAMES_MAX)?.into_iter().map(|entry| entry.name).collect(),
            };
            Ok((dir, names))
        });
        let (dir, names) = match listed {
            Ok(listed) => listed,
            // Gone, or something else by now: what is above it has the event that says so.
            Err(RootError::NotFound | RootError::NotADirectory | RootError::Outside) => {
                return self.unread.remove_below(path);
            }
            Err(error) => {
                self.unreadable_dir(path, &error);
                found.lacks_known |= path.is_root() || !self.published.read().children(path.as_bytes()).is_empty();
                return;
            }
        };
        let known: HashMap<Box<[u8]>, Entry> = {
            let catalogue = self.published.read();
            let child = |name: &[u8]| catalogue.get(path.join(name).ok()?.as_bytes()).cloned();
            if is_whole {
                let children = catalogue.children(path.as_bytes());
                let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().into();
                children.into_iter().map(|(path, entry)| (name(&path), entry.clone())).collect()
            } else {
                names.iter().filter_map(|name| Some((name.clone(), child(name)?))).collect()
            }
        };
        if is_whole {
            self.unread.keep(path, &names);
            // Some file systems don't report what others do in them.
            self.is_blind |= self.mounts.is_mounted(path) && !dir.has_events();
        }
        let mut unreadable = None;
        // In the order of their names, so that numbers don't depend on chance.
        let mut missing: BTreeMap<_, _> = known.iter().map(|(name, entry)| (name.clone(), entry)).collect();
        let root = self.path.last();
        for name in &names {
            let Ok(path) = path.join(name) else { continue };
            if is_reserved(name) || dir.is_lost_and_found(name) {
                continue;
            }
            let stat = match dir.stat(name) {
                Ok(stat) => stat,
                Err(RootError::NotFound) => {
                    self.unread.remove_below(&path);
                    continue;
                }
                // It is there, and can't be looked at.
                Err(error) => {
                    unreadable = Some(error);
                    missing.remove(name);
                    continue;
                }
            };
            if root.is_secret(&stat) {
                continue;
            }
            match stat.kind {
                FileKind::Dir => {}
                FileKind::File => self.unread.is_no_dir(&path),
                FileKind::Link | FileKind::Other => self.unread.remove_below(&path),
            }
            let entry = known.get(name);
            // What was in a directory isn't there if a file or a link has its name.
            let was_dir = entry.is_some_and(|entry| matches!(entry.content, Content::Dir { .. }));
            match stat.kind {
                FileKind::File => {
                    if !was_dir {
                        missing.remove(name);
                    }
                    if entry.is_some_and(|entry| entry.identity.is_settled && entry.is_file(&stat)) {
                        self.unfinished.remove(&path);
                        self.unread.remove(&path);
                        self.note_name(&path, &stat);
                    } else {
                        found.files.push((path, stat));
                    }
                }
                FileKind::Dir => {
                    missing.remove(name);
                    let content = Content::Dir { mode: stat.mode };
                    // With another mode, what could be read may be unreadable now.
                    let is_same = entry.is_some_and(|entry| entry.content == content);
                    found.now.push((path.clone(), content, Identity::of(&stat, true)));
                    if goes_down || !is_same || !self.events.is_watching(&path, &stat) {
                        found.dirs.push(path);
                    } else {
                        found.dirs.extend(self.unread.to_read(&path));
                    }
                }
                FileKind::Link => {
                    if let Ok(target) = dir.read_link(name) {
                        if !was_dir {
                            missing.remove(name);
                        }
                        let content = Content::Link { target: target.into(), modified: stat.modified };
                        found.now.push((path, content, Identity::of(&stat, true)));
                    }
                }
                // Something that isn't published took the name.
                FileKind::Other => {}
            }
        }
        found.gone.extend(missing.into_keys().filter_map(|name| path.join(&name).ok()));
        match unreadable {
            Some(error) => self.unreadable_dir(path, &error),
            None if is_whole => self.unread.remove(path),
            None => {}
        }
    }

    /// A directory can't be read, or not all that is in it can be looked at.
    fn unreadable_dir(&mut self, path: &RelPath, reason: &RootError) {
        if self.unread.add(path, true) {
            tracing::warn!(%path, %reason, "a directory can't be read: what is known of it stays, and nothing new in it is published");
        }
    }

    /// A directory can't be watched.
    fn blind(&mut self, path: &RelPath, errno: Errno) {
        if !std::mem::replace(&mut self.is_blind, true) && !self.was_blind {
            let hint = match errno {
                Errno::NOSPC => " (raise fs.inotify.max_user_watches)",
                Errno::MFILE => " (raise fs.inotify.max_user_instances, or the limit on open files, and start again)",
                _ => "",
            };
            let every = self.rescan().as_secs();
            tracing::warn!(%path, reason = %errno, "a directory can't be watched{hint}: everything is looked at every {every} s");
        }
    }

    /// Publishes what was found, and says whether deletions are held.
    fn publish(&mut self, found: Findings, is_everything: bool, is_accepted: bool) -> bool {
        self.note_unread();
        let Findings { mut now, mut files, mut gone, .. } = found;
        let others = self.other_names(&files, &gone);
        let published = Arc::clone(&self.published);
        let held = {
            let catalogue = published.read();
            let nothing_found = now.is_empty() && files.is_empty();
            let is_found = |top: &RelPath| {
                let paths = now.iter().map(|(path, ..)| path).chain(files.iter().map(|(path, _)| path));
                paths.filter_map(|path| path.below(top)).any(|below| !below.is_root())
            };
            let reason = held(&catalogue, &gone, is_accepted, nothing_found);
            let hidden = self.mounts.out_of_sight(&catalogue, &gone, is_found);
            let count = |gone: &[RelPath]| missing(&catalogue, gone, &now, &files);
            self.hold(reason, hidden, &gone, count, catalogue.len() as u64, is_everything)
        };
        let is_held = !held.is_empty();
        if is_held {
            // What has its place comes when it goes.
            let held: HashSet<_> = held.into_iter().collect();
            gone.retain(|path| !held.contains(path));
            now.retain(|(path, ..)| !held.contains(path));
            files.retain(|(path, _)| !held.contains(path));
        }
        let moved = moved(&published.read(), &gone);
        for path in &gone {
            self.events.unwatch(path);
            self.unfinished.remove_below(path);
            self.unread.remove_below(path);
        }
        // A file that was renamed has the content that it had. Only its name is new.
        let (renamed, files): (Vec<_>, Vec<_>) = files
            .into_iter()
            .map(|(path, stat)| {
                let content = moved.get(&(stat.device, stat.inode, stat.size, stat.modified));
                (path, stat, content.cloned())
            })
            .partition(|(_, _, content)| content.is_some());
        if !gone.is_empty() || !renamed.is_empty() || !now.is_empty() {
            let full = published.change(|catalogue| {
                for path in &gone {
                    catalogue.remove(path.as_bytes());
                }
                let mut is_full = false;
                for (path, content, identity) in now {
                    is_full |= catalogue.put(&path, content, identity).is_err();
                }
                for (path, stat, content) in renamed {
                    if let Some((content, is_settled)) = with_mode(content, stat.mode) {
                        is_full |= catalogue.put(&path, content, Identity::of(&stat, is_settled)).is_err();
                    }
                }
                is_full
            });
            self.note_full(full);
        }
        for (path, stat) in files.into_iter().map(|(path, stat, _)| (path, stat)).chain(others) {
            self.unfinished.found(path, stat);
        }
        if is_everything {
            self.unfinished.tree_was_read();
        }
        is_held
    }

    /// Which deletions are held: all, for this reason or because of their number, or those that may only be out of sight.
    fn hold(
        &mut self,
        reason: Option<&'static str>,
        hidden: Option<(&'static str, Vec<RelPath>)>,
        gone: &[RelPath],
        count: impl Fn(&[RelPath]) -> u64,
        there: u64,
        is_everything: bool,
    ) -> Vec<RelPath> {
        let all = count(gone);
        if is_everything && self.limit.is_released(all) {
            tracing::warn!(paths = all, "deletions are released");
            self.holding = None;
            return Vec::new();
        }
        let (reason, held) = match reason {
            Some(reason) => (reason, gone.to_vec()),
            None => {
                let (why, hidden) = hidden.unwrap_or_default();
                let set: HashSet<_> = hidden.iter().collect();
                let others: Vec<_> = gone.iter().filter(|path| !set.contains(path)).cloned().collect();
                match self.limit.judge(count(&others), there, is_everything, Instant::now()) {
                    Verdict::Publish if hidden.is_empty() => {
                        if is_everything {
                            self.holding = None;
                            self.limit.hold(0);
                        }
                        return hidden;
                    }
                    Verdict::Publish => (why, hidden),
                    Verdict::Hold if is_everything => ("too many deletions at a time (--max-delete)", gone.to_vec()),
                    Verdict::Hold => return gone.to_vec(),
                    Verdict::LookAgain => {
                        self.events.everything();
                        return gone.to_vec();
                    }
                }
            }
        };
        if !is_everything {
            // How many they are is for a look at everything, which is on its way if they are held already.
            if self.holding.is_none() {
                self.events.everything();
            }
            return held;
        }
        // At least 1: if all were only renamed in another root, none counts as missing, yet a person must be able to release them.
        let paths = count(&held);
        let is_more = self.limit.hold(paths.max(1));
        if self.holding.replace(reason).is_none() || is_more {
            let first: Vec<_> = held.iter().take(HELD_SHOWN_MAX).map(ToString::to_string).collect();
            let first = first.join(", ");
            tracing::warn!(paths, %first, "{reason}: what is missing stays published; SIGUSR1 lets it go");
        }
        held
    }

    /// Logs that there are too many paths, once.
    pub(super) fn note_full(&mut self, is_full: bool) {
        if is_full && !std::mem::replace(&mut self.is_full, true) {
            tracing::error!("{}: the others aren't published", crate::catalogue::TooManyPaths);
        }
    }
}

/// Why nothing is deleted, if so.
fn held(catalogue: &Catalogue, gone: &[RelPath], is_accepted: bool, nothing_found: bool) -> Option<&'static str> {
    if gone.is_empty() {
        return None;
    }
    if !is_accepted {
        return Some("another directory has taken the place of the served one");
    }
    if nothing_found {
        let gone: HashSet<_> = gone.iter().map(RelPath::as_bytes).collect();
        if catalogue.children(b"").iter().all(|(path, _)| gone.contains(&**path)) {
            return Some("the served directory is empty");
        }
    }
    None
}

/// How many paths are gone, and weren't only renamed.
fn missing(
    catalogue: &Catalogue,
    gone: &[RelPath],
    now: &[(RelPath, Content, Identity)],
    files: &[(RelPath, FileStat)],
) -> u64 {
    if gone.is_empty() {
        return 0;
    }
    let others: HashSet<_> = now.iter().map(|(_, _, identity)| (identity.device, identity.inode)).collect();
    // The inode of a file that is gone may be that of a new one.
    let files: HashSet<_> = files.iter().map(|(_, stat)| (stat.device, stat.inode, stat.size, stat.modified)).collect();
    let is_missing = |entry: &Entry| {
        let Identity { device, inode, .. } = entry.identity;
        match entry.content {
            Content::File { size, modified, .. } => !files.contains(&(device, inode, size, modified)),
            _ => !others.contains(&(device, inode)),
        }
    };
    let of = |path: &RelPath| {
        let itself = catalogue.get(path.as_bytes()).into_iter();
        itself.chain(catalogue.below(path.as_bytes()).map(|(_, entry)| entry)).filter(|entry| is_missing(entry)).count()
    };
    gone.iter().map(|path| of(path) as u64).sum()
}

/// The contents of files that are gone.
fn moved(catalogue: &Catalogue, gone: &[RelPath]) -> Moved {
    let mut moved = Moved::new();
    let mut note = |entry: &Entry| {
        if let Content::File { size, modified, .. } = entry.content {
            let key = (entry.identity.device, entry.identity.inode, size, modified);
            moved.insert(key, (entry.content.clone(), entry.identity.is_settled));
        }
    };
    for path in gone {
        catalogue.get(path.as_bytes()).into_iter().for_each(&mut note);
        catalogue.below(path.as_bytes()).for_each(|(_, entry)| note(entry));
    }
    moved
}

fn with_mode(content: Option<(Content, bool)>, mode: u32) -> Option<(Content, bool)> {
    match content? {
        (Content::File { size, modified, digest, .. }, is_settled) => {
            Some((Content::File { size, modified, mode, digest }, is_settled))
        }
        _ => None,
    }
}

/// Opens a directory, through no link.
pub(in crate::server) fn open(root: &Root, path: &RelPath) -> Result<Dir, RootError> {
    let top = root.open_dir(&RelPath::root())?;
    path.names().try_fold(top, |dir, name| dir.open_dir(name))
}
