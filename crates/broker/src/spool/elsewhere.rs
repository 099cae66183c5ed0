//! Files of bodies are closed on another thread.
//!
//! Closing the last descriptor of a file without a name gives back what it had on the disk, which takes 0.1 to 0.2 s a GiB, or for ever
//! where the disk hangs. Who drops a body last is often the thread that has all peers.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is dropped on another thread.
#[derive(Debug)]
pub(super) struct Elsewhere<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Elsewhere<T> {
    pub fn new(value: T) -> Self {
        Elsewhere(Some(value))
    }
}

impl<T: Send + 'static> Deref for Elsewhere<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_elsewhere(Box::new(value));
        }
    }
}

struct State {
    waiting: Vec<Box<dyn Send>>,
    /// A thread takes what waits, and ends when nothing does.
    is_running: bool,
}

static STATE: Mutex<State> = Mutex::new(State { waiting: Vec::new(), is_running: false });

fn lock() -> MutexGuard<'static, State> {
    // Nothing that can panic is done under the lock.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn drop_elsewhere(value: Box<dyn Send>) {
    {
        let mut state = lock();
        state.waiting.push(value);
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
    }
    if std::thread::Builder::new().name("spool-close".to_owned()).spawn(drop_all).is_err() {
        // Slow is better than never.
        drop_all();
    }
}

fn drop_all() {
    loop {
        let waiting = {
            let mut state = lock();
            if state.waiting.is_empty() {
                state.is_running = false;
                return;
            }
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn all_is_dropped_and_not_here() {
        let (sender, dropped) = channel();
        for _ in 0..100 {
            drop(Elsewhere::new(Tells(sender.clone())));
        }
        for _ in 0..100 {
            assert_ne!(dropped.recv_timeout(Duration::from_secs(60)).unwrap(), thread::current().id());
        }
    }
}
