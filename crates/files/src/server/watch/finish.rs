//! Files that aren't published yet: waits until each is finished, and hashes it once.

use super::Watcher;
use super::look::open;
use crate::catalogue::{Catalogue, Content, Identity};
use crate::digest::{Digest, FileHasher, HashError, LEAF_BYTES_MIN, may_be_remembered, wall_clock};
use crate::path::RelPath;
use crate::root::{FileStat, Root, RootError, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::time::{Duration, Instant};

/// Files that are hashed before events are taken again.
pub(super) const FILES_AT_A_TIME: usize = 256;
/// After so long a file that isn't finished is reported.
const REPORTED_AFTER: Duration = Duration::from_secs(60);
/// Files of these that the log names.
const WRITTEN_SHOWN_MAX: usize = 20;

/// Files that aren't published yet.
#[derive(Debug)]
pub(super) struct Unfinished {
    settle: Duration,
    files: BTreeMap<RelPath, Waiting>,
    /// Those that were reported.
    reported: BTreeSet<RelPath>,
    /// By the time at which they are looked at.
    by_due: BTreeSet<(Instant, RelPath)>,
    /// Large files that are finished, to be hashed one after another.
    large: VecDeque<RelPath>,
    /// State of each of these when it was last looked at. A file is in `large` once, however often it is written.
    large_stats: HashMap<RelPath, FileStat>,
    hashing: Option<Hashing>,
    /// Files that were there when the tree was first read, and nothing has happened to since: nobody is up to date without them.
    first: BTreeSet<RelPath>,
    is_first_read: bool,
    is_first_done: bool,
}

#[derive(Debug)]
struct Waiting {
    stat: FileStat,
    due: Instant,
    /// When nothing will have happened to it for the settle time.
    rested: Instant,
    since: Instant,
    is_reported: bool,
}

#[derive(Debug)]
struct Hashing {
    path: RelPath,
    file: File,
    stat: FileStat,
    began: Timestamp,
    progress: Option<FileHasher>,
}

impl Unfinished {
    pub(super) fn new(settle: Duration) -> Unfinished {
        Unfinished {
            settle,
            files: BTreeMap::new(),
            reported: BTreeSet::new(),
            by_due: BTreeSet::new(),
            large: VecDeque::new(),
            large_stats: HashMap::new(),
            hashing: None,
            first: BTreeSet::new(),
            is_first_read: false,
            is_first_done: false,
        }
    }

    /// Files that aren't published yet.
    pub(super) fn len(&self) -> usize {
        self.files.len() + self.large.len() + usize::from(self.hashing.is_some())
    }

    /// Number of files that are written to all the time, and the first of them.
    pub(super) fn written(&self) -> (usize, Vec<String>) {
        (self.reported.len(), self.reported.iter().take(WRITTEN_SHOWN_MAX).map(ToString::to_string).collect())
    }

    /// When something is to be done.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.hashing.is_some() || !self.large.is_empty() {
            return Some(Instant::now());
        }
        self.by_due.first().map(|(due, _)| *due)
    }

    /// Whether a path waits with this file.
    pub(super) fn has(&self, path: &RelPath, file: &FileStat) -> bool {
        let hashing = self.hashing.as_ref().filter(|hashing| hashing.path == *path).map(|hashing| &hashing.stat);
        let waiting = self.files.get(path).map(|waiting| &waiting.stat).or_else(|| self.large_stats.get(path));
        let is_it = |stat: &FileStat| (stat.device, stat.inode) == (file.device, file.inode);
        waiting.into_iter().chain(hashing).any(is_it)
    }

    /// Files that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&RelPath, &FileStat)> {
        let files = self.files.iter().map(|(path, waiting)| (path, &waiting.stat));
        files.chain(&self.large_stats).chain(self.hashing.iter().map(|hashing| (&hashing.path, &hashing.stat)))
    }

    /// Notes a file that had an event, or that differs from its published entry.
    pub(super) fn found(&mut self, path: RelPath, stat: FileStat) {
        self.first.remove(&path);
        // A reader that finds it meanwhile finds what is being hashed, and a later change would show in its times.
        let is_this = |hashing: &Hashing| {
            hashing.path == path && hashing.stat.same_content(&stat) && may_be_remembered(&stat, hashing.began)
        };
        if self.hashing.as_ref().is_some_and(is_this) {
            return;
        }
        self.hashing.take_if(|hashing| hashing.path == path);
        let before = self.remove_waiting(&path);
        self.wait(path, stat, before);
    }

    /// Waits for the settle time of a file that is open for writing, or may be.
    fn let_rest(&mut self, path: RelPath, waiting: Waiting) {
        self.by_due.insert((waiting.rested, path.clone()));
        if waiting.is_reported {
            self.reported.insert(path.clone());
        }
        self.files.insert(path, Waiting { due: waiting.rested, ..waiting });
    }

    fn wait(&mut self, path: RelPath, stat: FileStat, before: Option<Waiting>) {
        let now = Instant::now();
        // What was written long ago needs no rest.
        let rested = now + self.settle.saturating_sub(age(&stat));
        let (since, mut is_reported) = before.map_or((now, false), |before| (before.since, before.is_reported));
        if !is_reported && now.duration_since(since) > REPORTED_AFTER {
            tracing::warn!(%path, "it is written to all the time, and isn't published before it rests");
            is_reported = true;
        }
        // Perhaps its writer has closed it: then it is finished now.
        self.by_due.insert((now, path.clone()));
        if is_reported {
            self.reported.insert(path.clone());
        }
        self.files.insert(path, Waiting { stat, due: now, rested, since, is_reported });
    }

    /// A file is published, or isn't there.
    pub(super) fn remove(&mut self, path: &RelPath) {
        self.hashing.take_if(|hashing| hashing.path == *path);
        self.remove_waiting(path);
        self.first.remove(path);
    }

    fn remove_waiting(&mut self, path: &RelPath) -> Option<Waiting> {
        let waiting = self.files.remove(path)?;
        self.reported.remove(path);
        self.by_due.remove(&(waiting.due, path.clone()));
        Some(waiting)
    }

    /// A path is gone, with all below it.
    pub(super) fn remove_below(&mut self, path: &RelPath) {
        let begin = self.files.range(path.clone()..).map(|(path, _)| path);
        let near = begin.take_while(|other| other.as_bytes().starts_with(path.as_bytes()));
        let below: Vec<_> = near.filter(|other| other.below(path).is_some()).cloned().collect();
        below.iter().for_each(|path| self.remove(path));
        self.remove(path);
    }

    /// The whole tree was read.
    pub(super) fn tree_was_read(&mut self) {
        if !std::mem::replace(&mut self.is_first_read, true) {
            self.first = self.files.keys().cloned().collect();
        }
    }

    /// Whether all that was there at the start is published, unless it was changed since. Said once.
    fn take_first_done(&mut self) -> bool {
        let is_done = self.is_first_read && self.first.is_empty();
        is_done && !std::mem::replace(&mut self.is_first_done, true)
    }

    /// A large file is finished.
    fn add_large(&mut self, path: RelPath, stat: FileStat) {
        if self.large_stats.insert(path.clone(), stat).is_none() {
            self.large.push_back(path);
        }
    }

    fn take_large(&mut self) -> Option<(RelPath, FileStat)> {
        let path = self.large.pop_front()?;
        self.large_stats.remove_entry(&path)
    }

    fn take_due(&mut self, now: Instant) -> Option<(RelPath, Waiting)> {
        let path = self.by_due.first().filter(|(due, _)| *due <= now)?.1.clone();
        let waiting = self.remove_waiting(&path)?;
        Some((path, waiting))
    }
}

/// Result of a look at a file that should be finished.
enum Look {
    /// Unchanged.
    Same(File),
    /// Changed.
    Changed(FileStat),
}

impl Watcher {
    /// Hashes files that are finished, and publishes them.
    pub(super) fn finish(&mut self) {
        let root = self.path.look();
        let mut done = Vec::new();
        for _ in 0..FILES_AT_A_TIME {
            let Some((path, waiting)) = self.unfinished.take_due(Instant::now()) else { break };
            let stat = waiting.stat;
            match look_at(&root, &path, &stat) {
                Ok(Look::Same(file)) if Instant::now() < waiting.rested && !is_closed(&file) => {
                    self.unfinished.let_rest(path, waiting);
                }
                Ok(Look::Same(file)) if stat.size <= LEAF_BYTES_MIN => match self.hash_small(&file, &stat) {
                    Ok(digest) => done.push((path, stat, digest)),
                    Err(HashError::Io(error)) => self.unreadable(&path, &error),
                    Err(_) => self.changed(&path),
                },
                Ok(Look::Same(_)) => self.unfinished.add_large(path, stat),
                Ok(Look::Changed(stat)) => {
                    self.unfinished.first.remove(&path);
                    self.unfinished.wait(path, stat, Some(waiting));
                }
                Err(error) => self.not_opened(&path, &error),
            }
        }
        done.extend(self.hash_slice());
        for (path, ..) in &done {
            self.unfinished.first.remove(path);
            self.unread.remove(path);
        }
        // Before anybody learns that this is all.
        self.note_unread();
        let is_first_done = self.unfinished.take_first_done();
        if done.is_empty() && !is_first_done {
            return;
        }
        let is_full = self.published.change(|catalogue| {
            let mut is_full = false;
            for (path, stat, (digest, is_settled)) in &done {
                if !has_place(catalogue, path) {
                    continue;
                }
                let FileStat { size, modified, mode, .. } = *stat;
                let content = Content::File { size, modified, mode, digest: *digest };
                is_full |= catalogue.put(path, content, Identity::of(stat, *is_settled)).is_err();
            }
            if is_first_done {
                catalogue.complete();
            }
            is_full
        });
        self.note_full(is_full);
    }

    /// The digest of a small file, and whether it will stay valid as long as the file's times do.
    fn hash_small(&self, file: &File, stat: &FileStat) -> Result<(Digest, bool), HashError> {
        let cache = &self.context.hasher.cache;
        if let Some(digest) = cache.lookup_small(stat) {
            return Ok((digest, true));
        }
        let began = wall_clock();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        if !FileStat::try_from(file).is_ok_and(|after| after.same_content(stat)) {
            return Err(HashError::Changed);
        }
        let digest = Digest(*hasher.finalize().as_bytes());
        // Not for the cache: the catalogue has it.
        Ok((digest, may_be_remembered(stat, began)))
    }

    /// Hashes a part of a large file: its digest, if that was the last.
    fn hash_slice(&mut self) -> Option<(RelPath, FileStat, (Digest, bool))> {
        let hashing = match self.unfinished.hashing.take() {
            Some(hashing) => hashing,
            None => self.next_large()?,
        };
        let Hashing { path, file, stat, began, mut progress } = hashing;
        match self.context.hasher.slice(&file, &stat, &mut progress, || self.events.is_stopped()) {
            Ok(Some(digested)) => return Some((path, stat, (digested.digest, may_be_remembered(&stat, began)))),
            Ok(None) => self.unfinished.hashing = Some(Hashing { path, file, stat, began, progress }),
            Err(HashError::Io(error)) => self.unreadable(&path, &error),
            Err(_) => self.changed(&path),
        }
        None
    }

    /// The next large file, if it is as it was.
    fn next_large(&mut self) -> Option<Hashing> {
        let (path, stat) = self.unfinished.take_large()?;
        // Something has happened to it since, and it waits again.
        if self.unfinished.files.contains_key(&path) {
            return None;
        }
        match look_at(&self.path.look(), &path, &stat) {
            Ok(Look::Same(file)) => return Some(Hashing { path, file, stat, began: wall_clock(), progress: None }),
            Ok(Look::Changed(_)) => self.changed(&path),
            Err(error) => self.not_opened(&path, &error),
        }
        None
    }

    fn not_opened(&mut self, path: &RelPath, error: &RootError) {
        match error {
            // Perhaps only for a moment, while another file system was mounted above it: no event shows when it is there again.
            RootError::NotFound | RootError::NotAFile | RootError::NotADirectory | RootError::Outside => {
                self.changed(path);
                self.unread.remove(path);
            }
            error => self.unreadable(path, error),
        }
    }

    /// A file can't be read: it isn't published before it can, and nobody waits for it.
    fn unreadable(&mut self, path: &RelPath, reason: &dyn std::fmt::Display) {
        if self.unread.add(path, false) {
            tracing::warn!(%path, %reason, "it can't be read, and isn't published");
        }
        self.unfinished.remove(path);
    }

    /// A file isn't what it was: it is looked at again.
    fn changed(&mut self, path: &RelPath) {
        self.unfinished.remove(path);
        if let Some((parent, name)) = path.split() {
            self.events.look_at(&parent, name);
        }
    }
}

/// Whether a file may be published at a path. While a batch is hashed, a file and what is below it may follow each other on the disk.
/// The event that says so is on its way: the look that it causes finds the file again, and decides what is gone.
fn has_place(catalogue: &Catalogue, path: &RelPath) -> bool {
    let is_dir = |path: &RelPath| {
        catalogue.get(path.as_bytes()).is_some_and(|entry| matches!(entry.content, Content::Dir { .. }))
    };
    !is_dir(path) && path.parent().is_none_or(|parent| parent.is_root() || is_dir(&parent))
}

/// Whether it is known that nobody has a file open for writing.
fn is_closed(file: &File) -> bool {
    matches!(towpath_lease::is_open_for_writing(file), Ok(false))
}

fn look_at(root: &Root, path: &RelPath, expected: &FileStat) -> Result<Look, RootError> {
    let (parent, name) = path.split().ok_or(RootError::NotAFile)?;
    let (file, stat) = open(root, &parent)?.open_file(name)?;
    let is_same = stat.same_content(expected) && stat.mode == expected.mode;
    Ok(if is_same { Look::Same(file) } else { Look::Changed(stat) })
}

/// How long a file has been unchanged, as far as its times show.
fn age(stat: &FileStat) -> Duration {
    let since = |time: Timestamp| {
        let now = wall_clock();
        let seconds = now.seconds.saturating_sub(time.seconds);
        let whole = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        (whole + Duration::from_nanos(now.nanoseconds.into()))
            .saturating_sub(Duration::from_nanos(time.nanoseconds.into()))
    };
    since(stat.changed).min(since(stat.modified))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::follow::Epoch;

    #[test]
    fn a_file_has_no_place_below_a_file_nor_in_place_of_a_directory() {
        let mut catalogue = Catalogue::new(Epoch([1; 16]));
        let path = |text: &str| RelPath::new(text).unwrap();
        let file = Content::File { size: 0, modified: Timestamp::default(), mode: 0o644, digest: Digest([0; 32]) };
        assert!(has_place(&catalogue, &path("a")) && !has_place(&catalogue, &path("a/b")));
        catalogue.put(&path("a"), file, Identity::default()).unwrap();
        assert!(has_place(&catalogue, &path("a")) && !has_place(&catalogue, &path("a/b")));
        catalogue.put(&path("a"), Content::Dir { mode: 0o755 }, Identity::default()).unwrap();
        assert!(!has_place(&catalogue, &path("a")) && has_place(&catalogue, &path("a/b")));
    }

    #[test]
    fn files_that_are_always_written_are_named_until_they_rest() {
        let file = tempfile::tempfile().unwrap();
        let (stat, path) = (FileStat::try_from(&file).unwrap(), RelPath::new("log").unwrap());
        let mut unfinished = Unfinished::new(Duration::from_secs(3600));
        unfinished.found(path.clone(), stat);
        assert_eq!((unfinished.len(), unfinished.written()), (1, (0, Vec::new())));
        // It was found a while ago, and changes each time that it is looked at.
        let (_, mut waiting) = unfinished.take_due(Instant::now()).unwrap();
        waiting.since -= REPORTED_AFTER + Duration::from_secs(1);
        unfinished.wait(path.clone(), stat, Some(waiting));
        assert_eq!(unfinished.written(), (1, vec!["log".to_owned()]));
        let (_, waiting) = unfinished.take_due(Instant::now()).unwrap();
        unfinished.let_rest(path.clone(), waiting);
        assert_eq!((unfinished.len(), unfinished.written().0), (1, 1));
        unfinished.remove(&path);
        assert_eq!((unfinished.len(), unfinished.written()), (0, (0, Vec::new())));
    }
}
