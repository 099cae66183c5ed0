//! Watching the served directory: what is finished there gets into the catalogue.
//!
//! Two threads. One takes the kernel's events ([`events`]), which only say where to look. The other looks ([`look`]), waits until files are
//! finished and hashes them ([`finish`]), and records them in the catalogue, which the jobs that make pages read.

mod dirty;
mod events;
mod finish;
mod limit;
mod look;
mod mounts;
mod names;
mod polled;
mod published;
#[cfg(test)]
pub(crate) mod simulated;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod unread;

pub(super) use look::open as open_below;
pub(super) use polled::Polled;
pub(super) use published::SharedCatalogue;
#[cfg(fuzzing)]
pub use state::fuzz_body as fuzz_catalogue;
pub(super) use state::{State, StateError};
pub use stats::{CatalogueStats, WatchStats};

use super::jobs::Context;
use super::snapshot::RootWatch;
use crate::path::RelPath;
use crate::root::{FileStat, Root};
use dirty::Dirty;
use events::{Events, Woken};
use finish::Unfinished;
use limit::DeleteLimit;
use mounts::Mounts;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unread::Unread;

/// Options of watching.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// How long nothing may have happened to a file before it is published, if it isn't known that nobody has it open for writing.
    pub settle: Duration,
    /// Time between looks at the whole tree.
    pub rescan: Duration,
    /// Deletions at a time, beyond which all are held if they are over a tenth.
    pub max_delete: u64,
    /// Set to publish the deletions that are held.
    pub release_deletions: Arc<AtomicBool>,
    /// Directories that are watched at most; the others are looked at each 30 s, as where the kernel refuses more.
    pub watches_max: usize,
}

/// Deletions that are published at a time, however few paths there are.
const MAX_DELETE: u64 = 1000;

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions {
            settle: Duration::from_secs(2),
            rescan: Duration::from_secs(3600),
            max_delete: MAX_DELETE,
            release_deletions: Arc::default(),
            watches_max: usize::MAX,
        }
    }
}

/// Longest wait for the threads at the end.
const END_MAX: Duration = Duration::from_secs(1);
/// Events that come together are looked at together.
const COALESCE: Duration = Duration::from_millis(2);
/// Time between looks at whether the root is where it was.
const ROOT_CHECK: Duration = Duration::from_secs(2);
/// Time between looks at the whole tree where the kernel doesn't report changes, and while deletions are held; and between looks at what
/// can't be read.
const RESCAN_BLIND: Duration = Duration::from_secs(30);
/// Unreadable paths that the log names.
const UNREAD_SHOWN_MAX: usize = 20;

/// The threads. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Watch {
    events: Arc<Events>,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Starts them.
    pub(super) fn start(
        options: WatchOptions,
        (context, path): (Arc<Context>, Arc<RootWatch>),
        published: Arc<SharedCatalogue>,
    ) -> std::io::Result<Watch> {
        let events = Events::new(options.watches_max)?;
        events.everything();
        published.is_watched_by(Arc::clone(&events));
        let mut watch = Watch { events: Arc::clone(&events), threads: Vec::new() };
        let taker = Arc::clone(&events);
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        watch.threads.push(thread("tow-events").spawn(move || taker.run())?);
        let watcher = Watcher::new(options, (context, path), published, events);
        watch.threads.push(thread("tow-watch").spawn(move || watcher.run())?);
        Ok(watch)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.events.stop();
        // One that hangs in a call to the disk isn't waited for.
        let until = Instant::now() + END_MAX;
        while Instant::now() < until && !self.threads.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(COALESCE);
        }
        for thread in self.threads.extract_if(.., |thread| thread.is_finished()) {
            if thread.join().is_err() {
                tracing::error!("a thread that watches panicked");
            }
        }
    }
}

/// The thread that looks.
struct Watcher {
    options: WatchOptions,
    context: Arc<Context>,
    /// The path that is watched.
    path: Arc<RootWatch>,
    /// The root when it was last checked.
    root: Arc<Root>,
    published: Arc<SharedCatalogue>,
    events: Arc<Events>,
    /// Inode and device of the root at the start, or of the one before: nothing is deleted because another one has less.
    accepted: (Option<u64>, Option<u64>),
    unfinished: Unfinished,
    limit: DeleteLimit,
    mounts: Mounts,
    unread: Unread,
    /// Paths of files with several names below the root, by device and inode: no event names all of them.
    linked: HashMap<(u64, u64), names::Links>,
    /// The first of what can't be read, and how much it is.
    unread_shown: (Vec<String>, usize),
    /// Some directories can't be watched.
    is_blind: bool,
    /// The same at the full scan before.
    was_blind: bool,
    /// When everything was last looked at, a directory that has something published could not be read.
    lacks_known: bool,
    /// Why deletions are held, which was logged.
    holding: Option<&'static str>,
    /// Whether there are too many paths, which was logged.
    is_full: bool,
    /// When everything was last looked at, and how long that took.
    looked: Option<(Instant, Duration)>,
    overflows: u64,
}

impl Watcher {
    fn new(
        options: WatchOptions,
        (context, path): (Arc<Context>, Arc<RootWatch>),
        published: Arc<SharedCatalogue>,
        events: Arc<Events>,
    ) -> Watcher {
        let mounts = Mounts::known_before(published.mounts_before());
        Watcher {
            root: path.last(),
            path,
            context,
            published,
            events,
            accepted: (None, None),
            unfinished: Unfinished::new(options.settle),
            limit: DeleteLimit::new(options.max_delete, Arc::clone(&options.release_deletions)),
            mounts,
            unread: Unread::default(),
            linked: HashMap::new(),
            unread_shown: (Vec::new(), 0),
            is_blind: false,
            was_blind: false,
            lacks_known: false,
            holding: None,
            is_full: false,
            looked: None,
            overflows: 0,
            options,
        }
    }

    fn run(mut self) {
        let (mut next_rescan, mut next_root) = (Instant::now() + self.options.rescan, Instant::now());
        let mut next_unread = next_root;
        loop {
            let due = [Some(next_rescan), Some(next_root), self.unfinished.due()].into_iter().flatten().min();
            match self.events.wait(due) {
                Woken::Stopped => return,
                Woken::Dirty { mut dirty, overflows } => {
                    std::thread::sleep(COALESCE);
                    // What came meanwhile.
                    if let Woken::Dirty { dirty: more, overflows } = self.events.wait(Some(Instant::now())) {
                        dirty.add(more);
                        self.note_overflows(overflows);
                    }
                    self.note_overflows(overflows);
                    let (is_whole, begun) = (dirty.is_everything, Instant::now());
                    self.look(dirty);
                    if is_whole {
                        self.looked = Some((Instant::now(), begun.elapsed()));
                    }
                    // A look at a part may have found that others are needed sooner.
                    let next = Instant::now() + self.rescan();
                    next_rescan = if is_whole { next } else { next_rescan.min(next) };
                }
                Woken::Due => {
                    if Instant::now() >= next_rescan {
                        self.events.everything();
                        next_rescan = Instant::now() + self.rescan();
                    }
                }
            }
            if Instant::now() >= next_root {
                next_root = Instant::now() + ROOT_CHECK;
                self.check();
            }
            if self.unread.is_empty() {
                next_unread = Instant::now() + RESCAN_BLIND;
            } else if Instant::now() >= next_unread {
                next_unread = Instant::now() + RESCAN_BLIND;
                self.look_at_unread();
            }
            self.finish();
            self.note_stats();
        }
    }

    /// Not every change that makes something readable comes with an event.
    fn look_at_unread(&mut self) {
        let mut dirty = Dirty::default();
        self.unread.look_again(&mut dirty);
        self.look(dirty);
    }

    /// Notifies followers of unreadable paths.
    fn note_unread(&mut self) {
        if let Some(unread) = self.unread.take_changed() {
            let shown = unread.keys().take(UNREAD_SHOWN_MAX).map(ToString::to_string).collect();
            self.unread_shown = (shown, unread.len());
            self.published.change(|catalogue| catalogue.set_unread(unread, 0));
        }
    }

    fn note_stats(&self) {
        let (written, written_paths) = self.unfinished.written();
        self.published.note_watch(WatchStats {
            waiting: self.unfinished.len(),
            written,
            written_paths,
            unread: self.unread_shown.1,
            unread_paths: self.unread_shown.0.clone(),
            held: self.holding.map(|reason| (self.limit.held(), reason)),
            looked: self.looked,
            is_blind: self.is_blind,
            is_full: self.is_full,
            overflows: self.overflows,
        });
    }

    fn note_overflows(&mut self, overflows: u64) {
        self.overflows += overflows;
        if overflows > 0 {
            tracing::warn!("the kernel's queue of events overflowed: the whole directory is looked at");
        }
    }

    /// Checks for changes without events: another directory in the root's place, deletions that a person has released.
    fn check(&mut self) {
        let now = self.path.look();
        if !Arc::ptr_eq(&now, &self.root) {
            self.root = now;
            self.events.everything();
        }
        if self.limit.take_release() {
            self.holding = None;
            self.events.everything();
        }
    }

    fn rescan(&self) -> Duration {
        if self.is_blind || self.holding.is_some() {
            self.options.rescan.min(RESCAN_BLIND)
        } else {
            self.options.rescan
        }
    }

    /// Whether the root is the same as at the start, and its current identity; `None` if it can't be read.
    fn root_now(&mut self, root: &Root) -> Option<(FileStat, bool)> {
        let now = root.stat(&RelPath::root()).ok()?;
        let (inode, device) = &mut self.accepted;
        let inode = *inode.get_or_insert_with(|| self.published.watched_before(now.inode));
        // The device's number may be another one after the system was started.
        let is_accepted = inode == now.inode && *device.get_or_insert(now.device) == now.device;
        Some((now, is_accepted))
    }

    /// The root is another one, and nothing is missing in it or a person has released what is: it is the one to compare with from now on.
    fn accept_root(&mut self, now: &FileStat) {
        self.accepted = (Some(now.inode), Some(now.device));
        self.published.note_root(now.inode);
        tracing::info!("the directory that has taken the place of the served one is the served one from now on");
    }
}
