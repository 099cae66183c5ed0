//! The kernel's events, as places to look at. A thread does nothing but take them, so that the kernel's queue doesn't overflow.

use super::dirty::Dirty;
use crate::path::RelPath;
use crate::root::Dir;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes of events read at a time.
const READ_BYTES: usize = 64 << 10;

/// Watched directories, and where something happened. Shared by the thread that takes events and the one that looks.
#[derive(Debug)]
pub(super) struct Events {
    inotify: OwnedFd,
    stop: OwnedFd,
    watches_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    dirs: HashMap<i32, RelPath>,
    watches: BTreeMap<RelPath, i32>,
    dirty: Dirty,
    overflows: u64,
    is_stopped: bool,
}

/// What woke the one who looks.
#[derive(Debug)]
pub(super) enum Woken {
    /// Something happened.
    Dirty { dirty: Dirty, overflows: u64 },
    /// It is time.
    Due,
    /// The server ends.
    Stopped,
}

impl Events {
    pub(super) fn new(watches_max: usize) -> std::io::Result<Arc<Events>> {
        Ok(Arc::new(Events {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
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
    pub(super) fn watch(&self, path: &RelPath, dir: &Dir) -> Result<(), Errno> {
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
        let watch = inotify::add_watch(&self.inotify, format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()), flags)?;
        // A directory that was renamed has the watch that it had.
        state.dirs.insert(watch, path.clone());
        state.watches.insert(path.clone(), watch);
        Ok(())
    }

    /// Forgets the watches of a directory that isn't there any more, and of all below it.
    pub(super) fn unwatch(&self, path: &RelPath) {
        let mut state = self.lock();
        let State { dirs, watches, .. } = &mut *state;
        // What is below a path sorts behind it, but not right behind it.
        let near = watches.range(path.clone()..).map(|(path, _)| path);
        let near = near.take_while(|other| other.as_bytes().starts_with(path.as_bytes()));
        let below: Vec<_> = near.filter(|other| other.below(path).is_some()).cloned().collect();
        for path in below {
            if let Some(watch) = watches.remove(&path)
                && dirs.get(&watch) == Some(&path)
            {
                dirs.remove(&watch);
                // Fails if the directory itself is gone.
                let _ = inotify::remove_watch(&self.inotify, watch);
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
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return self.failed(errno),
            }
            if self.is_stopped() {
                return;
            }
            if let Err(errno) = self.read(&mut buffer) {
                return self.failed(errno);
            }
            self.changed.notify_all();
        }
    }

    /// Takes the events that there are.
    pub(super) fn read(&self, buffer: &mut [MaybeUninit<u8>]) -> Result<(), Errno> {
        let mut reader = Reader::new(&self.inotify, buffer);
        loop {
            match reader.next() {
                Ok(event) => self.take(event.wd(), event.events(), event.file_name().map(std::ffi::CStr::to_bytes)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn failed(&self, errno: Errno) {
        tracing::error!(reason = %errno, "the kernel's events can't be read: changes are seen by rescans alone");
        self.everything();
    }

    pub(super) fn take(&self, watch: i32, events: ReadFlags, name: Option<&[u8]>) {
        let mut state = self.lock();
        let State { dirs, watches, dirty, overflows, .. } = &mut *state;
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            *overflows += 1;
            return dirty.everything();
        }
        let Some(dir) = dirs.get(&watch) else { return };
        if events.contains(ReadFlags::IGNORED) {
            // The directory is gone, or its file system is.
            if watches.get(dir) == Some(&watch) {
                watches.remove(dir);
            }
            dirs.remove(&watch);
            return;
        }
        match name {
            Some(name) => dirty.name(dir, name),
            // The directory itself: what is above it says what happened.
            None => match dir.split() {
                Some((parent, name)) => dirty.name(&parent, name),
                None => dirty.everything(),
            },
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
        events.watch(&old, &root.open_dir(&old).unwrap()).unwrap();
        std::fs::rename(temp.path().join("old"), temp.path().join("new")).unwrap();
        events.watch(&new, &root.open_dir(&new).unwrap()).unwrap();
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
}
