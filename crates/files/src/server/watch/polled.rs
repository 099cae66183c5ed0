//! Watching a source that reports no changes, such as an object store: all of it is listed again and again.
//!
//! What is there is complete, so nothing has to rest before it is published.

use super::limit::{DeleteLimit, Verdict};
use super::{END_MAX, RESCAN_BLIND, ROOT_CHECK, SharedCatalogue, UNREAD_SHOWN_MAX, WatchOptions, WatchStats};
use crate::catalogue::{Content, Entry, Identity};
use crate::digest::HashError;
use crate::limits::CATALOGUE_PATHS_MAX;
use crate::path::{RelPath, is_reserved};
use crate::root::{FileKind, RootError};
use crate::server::client_root::ClientRoot;
use crate::server::jobs::Context;
use crate::server::open_file::OpenFile;
use crate::server::source::{Attributes, Listed, OpenedDir, Source};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_rules::Permissions;

/// Files that are opened soon, of which the source learns beforehand.
const EXPECTED: usize = 16;
/// Files and time after which what was hashed is published.
const BATCH_FILES: usize = 64;
const BATCH_TIME: Duration = Duration::from_secs(1);

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(in crate::server) struct Polled {
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct End {
    is_due: Mutex<bool>,
    wake: Condvar,
}

impl End {
    fn is_due(&self) -> bool {
        *self.is_due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, and says whether it is the end.
    fn wait(&self, time: Duration) -> bool {
        let is_due = self.is_due.lock().unwrap_or_else(PoisonError::into_inner);
        *self.wake.wait_timeout_while(is_due, time, |is_due| !*is_due).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Polled {
    pub(in crate::server) fn start(
        options: WatchOptions,
        (context, source): (Arc<Context>, Arc<dyn Source>),
        published: Arc<SharedCatalogue>,
    ) -> std::io::Result<Polled> {
        let end = Arc::new(End::default());
        let limit = DeleteLimit::new(options.max_delete, Arc::clone(&options.release_deletions));
        let root = ClientRoot::new(Arc::clone(&source), Permissions::unrestricted());
        let poller = Poller {
            rescan: options.rescan,
            context,
            source,
            root,
            published,
            end: Arc::clone(&end),
            limit,
            unread: BTreeMap::new(),
            waiting: 0,
            holding: None,
            is_full: false,
            looked: None,
        };
        let thread = std::thread::Builder::new().name("tow-watch".to_owned()).spawn(move || poller.run())?;
        Ok(Polled { end, thread: Some(thread) })
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        *self.end.is_due.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.wake.notify_all();
        let Some(thread) = self.thread.take() else { return };
        // One that waits for the source isn't waited for.
        let until = Instant::now() + END_MAX;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        if thread.is_finished() && thread.join().is_err() {
            tracing::error!("a thread that watches panicked");
        }
    }
}

struct Poller {
    rescan: Duration,
    context: Arc<Context>,
    source: Arc<dyn Source>,
    root: ClientRoot,
    published: Arc<SharedCatalogue>,
    end: Arc<End>,
    limit: DeleteLimit,
    /// Unreadable paths, and whether each is a directory.
    unread: BTreeMap<RelPath, bool>,
    /// Files that are to be hashed.
    waiting: usize,
    /// Why deletions are held, which was logged.
    holding: Option<&'static str>,
    is_full: bool,
    looked: Option<(Instant, Duration)>,
}

/// Result of a look at everything.
#[derive(Default)]
struct Findings {
    dirs: Vec<(RelPath, u32, Identity)>,
    /// Files that aren't what the catalogue has.
    files: Vec<(RelPath, Attributes)>,
    gone: Vec<RelPath>,
    unread: BTreeMap<RelPath, bool>,
    /// Whether a directory couldn't be listed, which may be possible in a moment.
    has_failed: bool,
    /// Whether there was anything at all.
    has_any: bool,
    /// Paths that may still be added to the catalogue.
    space: usize,
    is_full: bool,
}

impl Findings {
    /// Takes the space of a path that isn't in the catalogue yet; false if there is none left.
    fn take_space(&mut self) -> bool {
        let left = self.space.checked_sub(1);
        self.is_full |= left.is_none();
        self.space = left.unwrap_or_default();
        left.is_some()
    }
}

impl Poller {
    fn run(mut self) {
        loop {
            let begun = Instant::now();
            let is_whole = self.look();
            self.looked = Some((Instant::now(), begun.elapsed()));
            self.note_stats();
            let wait = if is_whole && self.holding.is_none() { self.rescan } else { self.rescan.min(RESCAN_BLIND) };
            let next = Instant::now() + wait;
            while Instant::now() < next && !self.limit.take_release() {
                if self.end.wait(ROOT_CHECK.min(next.saturating_duration_since(Instant::now()))) {
                    return;
                }
            }
            if self.end.is_due() {
                return;
            }
        }
    }

    /// Looks at everything, and publishes what changed. Returns whether nothing failed.
    fn look(&mut self) -> bool {
        let found = match self.list() {
            Ok(Some(found)) => found,
            Ok(None) => return true,
            Err(error) => {
                tracing::warn!(reason = %error, "what is served can't be listed: nothing is published until it can");
                return false;
            }
        };
        let Findings { dirs, files, gone, mut unread, has_failed, has_any, is_full, .. } = found;
        self.note_full(is_full);
        // Files that couldn't be read stay listed until they are tried again.
        let still = files.iter().filter(|(path, _)| self.unread.get(path) == Some(&false));
        self.note_unread(unread.clone().into_iter().chain(still.map(|(path, _)| (path.clone(), false))).collect());
        let gone = if self.may_go(&gone, has_any) { gone } else { Vec::new() };
        if !gone.is_empty() || !dirs.is_empty() {
            let is_full = self.published.change(|catalogue| {
                gone.iter().for_each(|path| catalogue.remove(path.as_bytes()));
                let put = |(path, mode, identity): (RelPath, u32, Identity)| {
                    catalogue.put(&path, Content::Dir { mode }, identity).is_err()
                };
                dirs.into_iter().map(put).fold(false, |is_full, one| is_full | one)
            });
            self.note_full(is_full);
        }
        let Some((failed, is_all)) = self.finish(&files) else { return true };
        let has_failed = has_failed || !failed.is_empty();
        unread.extend(failed.into_iter().map(|path| (path.clone(), false)));
        // Before it is complete: a follower deletes what is neither published nor unread.
        self.note_unread(unread);
        if is_all && !self.published.read().is_complete() {
            self.published.change(|catalogue| catalogue.complete());
        }
        is_all && !has_failed
    }

    /// Lists everything, and compares it with the catalogue; `None` at the end of the server.
    fn list(&self) -> Result<Option<Findings>, RootError> {
        let space = CATALOGUE_PATHS_MAX.saturating_sub(self.published.read().len());
        let mut found = Findings { space, ..Findings::default() };
        let mut dirs = vec![RelPath::root()];
        while let Some(dir) = dirs.pop() {
            if self.end.is_due() {
                return Ok(None);
            }
            match self.list_dir(&dir, &mut dirs, &mut found) {
                Ok(()) => {}
                Err(error) if dir.is_root() => return Err(error),
                // With the last file in it, it is gone: those above it show that in the next look.
                Err(RootError::NotFound | RootError::NotADirectory) => {}
                Err(error) => {
                    self.warn_unread(&dir, &error);
                    found.unread.insert(dir, true);
                    found.has_failed = true;
                }
            }
        }
        Ok(Some(found))
    }

    fn list_dir(&self, dir: &RelPath, dirs: &mut Vec<RelPath>, found: &mut Findings) -> Result<(), RootError> {
        let OpenedDir::Pages(mut pages) = self.source.open_dir(dir)? else { return Err(RootError::NotADirectory) };
        let mut there: HashSet<Box<[u8]>> = HashSet::new();
        while let Some(page) = pages.next()? {
            if self.end.is_due() {
                return Ok(());
            }
            let catalogue = self.published.read();
            for Listed { name, attributes, unreadable } in page {
                if is_reserved(&name) {
                    continue;
                }
                found.has_any = true;
                let Ok(path) = dir.join(&name) else {
                    if found.unread.insert(dir.clone(), true).is_none() && !self.unread.contains_key(dir) {
                        tracing::warn!(%dir, name = %name.escape_ascii(), "a name that can't be in a path isn't published");
                    }
                    continue;
                };
                let entry = catalogue.get(path.as_bytes());
                if entry.is_none() && !found.take_space() {
                    continue;
                }
                let identity = Identity::of_version(attributes.validator);
                match attributes.kind {
                    FileKind::Dir => {
                        if !entry.is_some_and(|entry| entry.content == Content::Dir { mode: attributes.mode }) {
                            found.dirs.push((path.clone(), attributes.mode, identity));
                        }
                        dirs.push(path);
                    }
                    _ if entry.is_some_and(|entry| is_file(entry, &attributes, identity)) => {}
                    _ => match unreadable {
                        Some(why) => {
                            self.warn_unread(&path, &why);
                            found.unread.insert(path, false);
                        }
                        None => found.files.push((path, attributes)),
                    },
                }
                // Only what is published can be gone.
                if entry.is_some() {
                    there.insert(name);
                }
            }
        }
        let catalogue = self.published.read();
        for (path, _) in catalogue.children(dir.as_bytes()) {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if !there.contains(name) {
                found.gone.extend(RelPath::new(&*path).ok());
            }
        }
        Ok(())
    }

    /// Whether deletions are published now.
    fn may_go(&mut self, gone: &[RelPath], has_any: bool) -> bool {
        let (count, there) = {
            let catalogue = self.published.read();
            let of = |path: &RelPath| 1 + catalogue.below(path.as_bytes()).count() as u64;
            (gone.iter().map(of).sum::<u64>(), catalogue.len() as u64)
        };
        if count > 0 && self.limit.is_released(count) {
            tracing::warn!(paths = count, "deletions are released");
            self.holding = None;
            return true;
        }
        let reason = if count > 0 && !has_any {
            "there is nothing at all"
        } else {
            match self.limit.judge(count, there, true, Instant::now()) {
                Verdict::Publish => {
                    self.limit.hold(0);
                    self.holding = None;
                    return true;
                }
                Verdict::LookAgain | Verdict::Hold => "too many deletions at a time (--max-delete)",
            }
        };
        let is_more = self.limit.hold(count);
        if self.holding.replace(reason).is_none() || is_more {
            let first = gone.first().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(paths = count, %first, "{reason}: what is missing stays published; SIGUSR1 lets it go");
        }
        false
    }

    /// Hashes files, and publishes them. Returns those that can't be read, and whether no other is another one by now; `None` at the end of the
    /// server.
    fn finish<'a>(&mut self, files: &'a [(RelPath, Attributes)]) -> Option<(Vec<&'a RelPath>, bool)> {
        let (mut failed, mut is_all, mut done, mut since) = (Vec::new(), true, Vec::new(), Instant::now());
        for (at, (path, listed)) in files.iter().enumerate() {
            if self.end.is_due() {
                return None;
            }
            if at % EXPECTED == 0 {
                let soon = files.iter().skip(at).take(2 * EXPECTED);
                self.source.will_open(&mut soon.map(|(path, _)| path));
            }
            self.waiting = files.len() - at;
            match self.hash(path, listed) {
                Ok(Some(content)) => done.push((path, content, Identity::of_version(listed.validator))),
                Ok(None) => is_all = false,
                // It is gone, as the next look finds.
                Err(RootError::NotFound) => {}
                Err(error) => {
                    self.warn_unread(path, &error);
                    failed.push(path);
                }
            }
            if done.len() >= BATCH_FILES || since.elapsed() > BATCH_TIME {
                self.put(&mut done);
                self.note_stats();
                since = Instant::now();
            }
        }
        self.waiting = 0;
        self.put(&mut done);
        Some((failed, is_all))
    }

    /// The content of a file; `None` if it is another one by now, which the next look finds.
    fn hash(&self, path: &RelPath, listed: &Attributes) -> Result<Option<Content>, RootError> {
        let file = match OpenFile::open_quietly(&self.root, path) {
            Err(RootError::NotAFile | RootError::Changed) => return Ok(None),
            file => file?,
        };
        let attributes = file.attributes;
        if attributes.validator != listed.validator {
            return Ok(None);
        }
        let mut progress = None;
        loop {
            match self.context.hasher.slice(&file, &attributes, &mut progress, || self.end.is_due()) {
                Ok(Some(digested)) => {
                    let Attributes { size, modified, mode, .. } = attributes;
                    return Ok(Some(Content::File { size, modified, mode, digest: digested.digest }));
                }
                Ok(None) => {}
                Err(HashError::Changed | HashError::GivenUp) => return Ok(None),
                Err(HashError::SizeUnknown) => return Err(RootError::SizeUnknown),
                Err(HashError::Io(error)) => return Err(RootError::Io(error)),
                Err(HashError::Refused(error)) => return Err(error),
            }
        }
    }

    fn put(&mut self, done: &mut Vec<(&RelPath, Content, Identity)>) {
        if done.is_empty() {
            return;
        }
        let is_full = self.published.change(|catalogue| {
            let put = |(path, content, identity)| catalogue.put(path, content, identity).is_err();
            done.drain(..).map(put).fold(false, |is_full, one| is_full | one)
        });
        self.note_full(is_full);
    }

    fn warn_unread(&self, path: &RelPath, reason: &dyn std::fmt::Display) {
        if !self.unread.contains_key(path) {
            tracing::warn!(%path, %reason, "it can't be read: what was published of it stays");
        }
    }

    fn note_unread(&mut self, unread: BTreeMap<RelPath, bool>) {
        if unread != self.unread {
            self.unread = unread.clone();
            self.published.change(|catalogue| catalogue.set_unread(unread, 0));
        }
    }

    fn note_full(&mut self, is_full: bool) {
        if is_full && !std::mem::replace(&mut self.is_full, true) {
            tracing::error!("{}: the others aren't published", crate::catalogue::TooManyPaths);
        }
    }

    fn note_stats(&self) {
        self.published.note_watch(WatchStats {
            waiting: self.waiting,
            written: 0,
            written_paths: Vec::new(),
            unread: self.unread.len(),
            unread_paths: self.unread.keys().take(UNREAD_SHOWN_MAX).map(ToString::to_string).collect(),
            held: self.holding.map(|reason| (self.limit.held(), reason)),
            looked: self.looked,
            is_blind: false,
            is_full: self.is_full,
            overflows: 0,
        });
    }
}

/// Whether an entry is the file that was listed.
fn is_file(entry: &Entry, listed: &Attributes, identity: Identity) -> bool {
    let Content::File { size, modified, .. } = entry.content else { return false };
    (size, modified) == (listed.size, listed.modified) && entry.identity == identity
}
