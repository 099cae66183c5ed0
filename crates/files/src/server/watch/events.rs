//! The kernel's events, as places to look at. A thread does nothing but take them, so that the kernel's queue doesn't overflow.

use super::dirty::Dirty;
use super::mounts::open_table;
use crate::path::RelPath;
use crate::root::{Dir, FileStat};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes of events read at a time.
const READ_BYTES: usize = 64 << 10;

/// Watched directories, and where something happened. Shared by the thread that takes events and the one that looks.
#[derive(Debug)]
pub(super) struct Events {
    /// Or why there is none: nothing can be watched then.
    inotify: Result<OwnedFd, Errno>,
    /// The table of mounts, if there is one.
    mounts: Option<File>,
    stop: OwnedFd,
    watches_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    watched: HashMap<i32, Watched>,
    watches: BTreeMap<RelPath, i32>,
    dirty: Dirty,
    overflows: u64,
    is_stopped: bool,
}

/// A directory that a watch is on. While the watch is there, no other one can have its inode.
#[derive(Debug)]
struct Watched {
    path: RelPath,
    device: u64,
    inode: u64,
}

/// Reason for waking the watcher.
#[derive(Debug)]
pub(super) enum Woken {
    /// Events came.
    Dirty { dirty: Dirty, overflows: u64 },
    /// A time has come.
    Due,
    /// The server ends.
    Stopped,
}

impl Events {
    pub(super) fn new(watches_max: usize) -> std::io::Result<Arc<Events>> {
        Ok(Arc::new(Events {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK),
            mounts: open_table().ok(),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            watches_max,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a directory: whatever happens in it from now on is noticed. It is listed after this, never before.
    pub(super) fn watch(&self, path: &RelPath, dir: &Dir, stat: &FileStat) -> Result<(), Errno> {
        let inotify = self.inotify.as_ref().map_err(|errno| *errno)?;
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // With the lock held, so that no event comes of a watch that isn't known yet.
        let mut state = self.lock();
        if state.watches.len() >= self.watches_max && !state.watches.contains_key(path) {
            return Err(Errno::NOSPC);
        }
        let watch = inotify::add_watch(inotify, format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()), flags)?;
        // A directory that was renamed has the watch that it had.
        let watched = Watched { path: path.clone(), device: stat.device, inode: stat.inode };
        state.watched.insert(watch, watched);
        state.watches.insert(path.clone(), watch);
        Ok(())
    }

    /// Whether all that happens in this directory, found at this path, is noticed as happening there.
    pub(super) fn is_watching(&self, path: &RelPath, stat: &FileStat) -> bool {
        let state = self.lock();
        let watched = state.watches.get(path).and_then(|watch| state.watched.get(watch));
        watched.is_some_and(|watched| {
            watched.path == *path && (watched.device, watched.inode) == (stat.device, stat.inode)
        })
    }

    /// Forgets the watches of a directory that isn't there any more, and of all below it.
    pub(super) fn unwatch(&self, path: &RelPath) {
        let mut state = self.lock();
        let State { watched, watches, .. } = &mut *state;
        // What is below a path sorts behind it, but not right behind it.
        let near = watches.range(path.clone()..).map(|(path, _)| path);
        let near = near.take_while(|other| other.as_bytes().starts_with(path.as_bytes()));
        let below: Vec<_> = near.filter(|other| other.below(path).is_some()).cloned().collect();
        for path in below {
            if let Some(watch) = watches.remove(&path)
                && watched.get(&watch).is_some_and(|watched| watched.path == path)
            {
                watched.remove(&watch);
                // Fails if the directory itself is gone.
                let _ = self.inotify.as_ref().map(|inotify| inotify::remove_watch(inotify, watch));
            }
        }
    }

    /// Asks for a look at the whole tree.
    pub(super) fn everything(&self) {
        self.lock().dirty.everything();
        self.changed.notify_all();
    }

    /// Asks for a look at a name.
    pub(super) fn look_at(&self, dir: &RelPath, name: &[u8]) {
        self.lock().dirty.name(dir, name);
        self.changed.notify_all();
    }

    /// Asks for a look at all that is in a directory, whether or not it is watched.
    pub(super) fn look_into(&self, dir: &RelPath) {
        self.lock().dirty.dir(dir);
        self.changed.notify_all();
    }

    /// Waits until something happens, or until `due`.
    pub(super) fn wait(&self, due: Option<Instant>) -> Woken {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return Woken::Stopped;
            }
            if !state.dirty.is_empty() {
                let overflows = std::mem::take(&mut state.overflows);
                return Woken::Dirty { dirty: std::mem::take(&mut state.dirty), overflows };
            }
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            state = match left {
                Some(left) if left.is_zero() => return Woken::Due,
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Whether the server ends.
    pub(super) fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// Ends both threads.
    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Takes events until it is stopped.
    pub(super) fn run(&self) {
        let mut buffer = vec![MaybeUninit::uninit(); READ_BYTES];
        loop {
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
            fds.extend(self.mounts.as_ref().map(|mounts| PollFd::new(mounts, PollFlags::PRI)));
            fds.extend(self.inotify.as_ref().map(|inotify| PollFd::new(inotify, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return self.failed(errno),
            }
            if self.is_stopped() {
                return;
            }
            if self.mounts.is_some() && fds.get(1).is_some_and(|mounts| mounts.revents().contains(PollFlags::PRI)) {
                self.mounts_changed();
            }
            if let Err(errno) = self.read(&mut buffer) {
                return self.failed(errno);
            }
            self.changed.notify_all();
        }
    }

    /// Takes the events that there are.
    pub(super) fn read(&self, buffer: &mut [MaybeUninit<u8>]) -> Result<(), Errno> {
        let Ok(inotify) = &self.inotify else { return Ok(()) };
        let mut reader = Reader::new(inotify, buffer);
        loop {
            match reader.next() {
                Ok(event) => self.take(event.wd(), event.events(), event.file_name().map(std::ffi::CStr::to_bytes)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Notes whether the table of mounts has changed since this was called last.
    #[cfg(test)]
    pub(super) fn poll_mounts(&self) {
        let mut fds: Vec<_> = self.mounts.iter().map(|mounts| PollFd::new(mounts, PollFlags::PRI)).collect();
        let _ = poll(&mut fds, Some(&rustix::event::Timespec::default()));
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::PRI)) {
            self.mounts_changed();
        }
    }

    /// The table of mounts has changed.
    pub(super) fn mounts_changed(&self) {
        self.lock().dirty.are_mounts = true;
    }

    fn failed(&self, errno: Errno) {
        tracing::error!(reason = %errno, "the kernel's events can't be read: changes are seen by rescans alone");
        self.everything();
    }

    pub(super) fn take(&self, watch: i32, events: ReadFlags, name: Option<&[u8]>) {
        let mut state = self.lock();
        let State { watched, watches, dirty, overflows, .. } = &mut *state;
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            *overflows += 1;
            return dirty.everything();
        }
        let Some(Watched { path, .. }) = watched.get(&watch) else { return };
        match name {
            Some(name) => dirty.name(path, name),
            // The directory itself: what is above it says what happened.
            None => match path.split() {
                Some((parent, name)) => dirty.name(&parent, name),
                None => dirty.everything(),
            },
        }
        if events.contains(ReadFlags::IGNORED) {
            // The directory is gone, or its file system is. Another one may have its name, and its inode.
            if watches.get(path) == Some(&watch) {
                watches.remove(path);
            }
            watched.remove(&watch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::{Links, Root};

    #[test]
    fn an_overflow_asks_for_a_look_at_everything() {
        let events = Events::new(usize::MAX).unwrap();
        events.take(-1, ReadFlags::QUEUE_OVERFLOW, None);
        let Woken::Dirty { dirty, overflows } = events.wait(None) else { panic!("nothing is to be done") };
        assert!(dirty.is_everything && overflows == 1);
        assert!(matches!(events.wait(Some(Instant::now())), Woken::Due));
        events.stop();
        assert!(matches!(events.wait(None), Woken::Stopped));
    }

    #[test]
    fn a_renamed_directory_keeps_its_watch_and_gets_its_new_name() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("old")).unwrap();
        let root = Root::directory(temp.path(), Links::Never).unwrap();
        let (old, new): (RelPath, RelPath) = ("old".parse().unwrap(), "new".parse().unwrap());
        let events = Events::new(usize::MAX).unwrap();
        let watch = |path: &RelPath| {
            let dir = root.open_dir(path).unwrap();
            let stat = dir.own_stat().unwrap();
            events.watch(path, &dir, &stat).unwrap();
            stat
        };
        let stat = watch(&old);
        assert!(events.is_watching(&old, &stat));
        std::fs::rename(temp.path().join("old"), temp.path().join("new")).unwrap();
        watch(&new);
        assert!(events.is_watching(&new, &stat) && !events.is_watching(&old, &stat));
        events.unwatch(&old);
        std::thread::scope(|scope| {
            scope.spawn(|| events.run());
            std::fs::write(temp.path().join("new/f"), b"").unwrap();
            let mut seen = false;
            while !seen {
                let Woken::Dirty { dirty, .. } = events.wait(None) else { panic!("it was stopped") };
                seen = dirty.dirs.contains_key(&new);
            }
            events.stop();
        });
    }

    #[test]
    fn a_directory_made_anew_is_not_watched_even_if_it_has_the_old_inode() {
        let temp = tempfile::tempdir().unwrap();
        let root = Root::directory(temp.path(), Links::Never).unwrap();
        let path: RelPath = "d".parse().unwrap();
        let events = Events::new(usize::MAX).unwrap();
        std::fs::create_dir(temp.path().join("d")).unwrap();
        let dir = root.open_dir(&path).unwrap();
        let stat = dir.own_stat().unwrap();
        events.watch(&path, &dir, &stat).unwrap();
        drop(dir);
        std::fs::remove_dir(temp.path().join("d")).unwrap();
        events.read(&mut [MaybeUninit::uninit(); 4096]).unwrap();
        // Whatever the file system gives to the next one.
        assert!(!events.is_watching(&path, &stat));
        let Woken::Dirty { dirty, .. } = events.wait(None) else { panic!("nothing is to be done") };
        assert!(dirty.dirs.contains_key(&RelPath::root()), "its name is looked at: {dirty:?}");
    }

    #[test]
    fn without_an_instance_of_inotify_nothing_is_watched_and_the_rest_works() {
        let mut events = Arc::into_inner(Events::new(usize::MAX).unwrap()).unwrap();
        events.inotify = Err(Errno::MFILE);
        let temp = tempfile::tempdir().unwrap();
        let dir = Root::directory(temp.path(), Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        let stat = dir.own_stat().unwrap();
        assert_eq!(events.watch(&RelPath::root(), &dir, &stat), Err(Errno::MFILE));
        assert!(!events.is_watching(&RelPath::root(), &stat));
        std::thread::scope(|scope| {
            scope.spawn(|| events.run());
            events.everything();
            assert!(matches!(events.wait(None), Woken::Dirty { .. }));
            events.stop();
        });
    }
}
