//! Operations on threads of their own.

use crate::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use towpath_blocking::CancelToken;

/// A thread that runs an operation. Cancels it when dropped, and waits for its end.
pub(super) struct Worker<R> {
    thread: Option<JoinHandle<R>>,
    cancel: CancelToken,
}

impl<R: Send + 'static> Worker<R> {
    /// Starts `work`, which ends with `cancel`.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn start(
        cancel: CancelToken,
        work: impl FnOnce(&CancelToken) -> R + Send + 'static,
    ) -> Result<Self, Error> {
        let token = cancel.clone();
        let thread = std::thread::Builder::new().name("tow-client".to_owned()).spawn(move || work(&token));
        let thread = thread.map_err(|error| Error::Local(format!("cannot start a thread: {error}")))?;
        Ok(Self { thread: Some(thread), cancel })
    }

    /// Waits for the end. `None` the second time.
    fn join(&mut self) -> Option<R> {
        let joined = self.thread.take()?.join();
        Some(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl<R> Drop for Worker<R> {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was printed, and the result is of no interest.
            let _ = thread.join();
        }
    }
}

/// The items of an operation, and how it ended.
pub(super) struct Stream<T, R> {
    // Dropped first: the operation may wait for space.
    items: Receiver<T>,
    worker: Worker<Result<R, Error>>,
}

impl<T: Send + 'static, R: Send + 'static> Stream<T, R> {
    /// Starts `work`, which may be ahead by so many items.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn start(
        ahead: usize,
        cancel: CancelToken,
        work: impl FnOnce(SyncSender<T>, &CancelToken) -> Result<R, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, items) = sync_channel(ahead);
        let worker = Worker::start(cancel, move |cancel| work(sender, cancel))?;
        Ok(Self { items, worker })
    }

    /// The next item; `None` at the end.
    pub(super) fn next(&mut self) -> Option<T> {
        self.items.recv().ok()
    }

    /// How the operation ended: waits for that. `None` the second time.
    pub(super) fn outcome(&mut self) -> Option<Result<R, Error>> {
        self.worker.join()
    }
}
