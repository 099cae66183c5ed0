//! Drives a hub and its state in one task, behind a lock shared with callers.
//!
//! The lock is never held across a wait. Callers change the state and wake the task, unless it is about to run anyway: at
//! full load nobody is woken, and everything that callers did meanwhile is sent together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_sockets::{Hub, HubOptions, HubReady, SocketError, Turn};

/// State that a task drives.
pub(crate) trait Drive: Send + Sized + 'static {
    /// Does everything that can be done now. Returns whether to call again at once.
    fn turn(&mut self, hub: &mut Hub, now: Instant) -> Result<bool, SocketError>;

    /// When to call again even if nothing happens, beside the hub's own deadlines.
    fn deadline(&self) -> Option<Instant>;

    /// Whether the connection may be closed.
    fn is_over(&self) -> bool;

    /// Called after each turn without the lock.
    fn after_turn(shared: &Arc<Shared<Self>>);

    /// The task has ended.
    fn ended(&mut self, reason: String);

    /// Tasks to wake once the lock is released.
    fn wakers(&mut self) -> &mut Vec<Waker>;
}

/// The state, and its task.
pub(crate) struct Shared<S> {
    inner: Mutex<Inner<S>>,
    work: Notify,
    /// Set when the task has ended and the connection is closed.
    closed: tokio::sync::watch::Sender<bool>,
}

struct Inner<S> {
    state: S,
    hub: Option<Hub>,
    /// The task will look at the state before it waits.
    on_its_way: bool,
    hung_up: bool,
}

/// The locked state.
pub(crate) struct Guard<'a, S>(MutexGuard<'a, Inner<S>>);

impl<S> std::ops::Deref for Guard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0.state
    }
}

impl<S> std::ops::DerefMut for Guard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0.state
    }
}

impl<S: Drive> Shared<S> {
    /// Starts a task on the current tokio runtime that drives a hub with these options. `prepare` connects it.
    ///
    /// # Panics
    /// If that runtime does no I/O.
    pub fn start(
        options: HubOptions,
        state: S,
        linger: Duration,
        prepare: impl FnOnce(&mut Hub) -> Result<(), SocketError>,
    ) -> Result<Arc<Shared<S>>, SocketError> {
        let mut hub = Hub::new(options)?;
        prepare(&mut hub)?;
        let ready = HubReady::new(&hub)?;
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner { state, hub: Some(hub), on_its_way: true, hung_up: false }),
            work: Notify::new(),
            closed: tokio::sync::watch::Sender::new(false),
        });
        ready.runtime().spawn(drive(Ending(Arc::clone(&shared)), ready, linger));
        Ok(shared)
    }

    /// Locks the state. To give the task something to do, pass the guard to [`Shared::wake`].
    pub fn lock(&self) -> Guard<'_, S> {
        Guard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the task look at the state, unless it is about to.
    pub fn wake(&self, mut guard: Guard<'_, S>) {
        if !std::mem::replace(&mut guard.0.on_its_way, true) {
            drop(guard);
            self.work.notify_one();
        }
    }

    /// Ends the task, after sending what is queued for a while.
    pub fn hang_up(&self) {
        let mut guard = self.lock();
        guard.0.hung_up = true;
        self.wake(guard);
    }

    /// Waits until the task has ended.
    pub async fn closed(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    fn turn(self: &Arc<Self>) -> Turn {
        let mut guard = self.lock();
        let inner = &mut *guard.0;
        inner.on_its_way = true;
        let Some(hub) = inner.hub.as_mut() else { return Turn::Over };
        let outcome = inner.state.turn(hub, Instant::now());
        let turn = match outcome {
            Err(error) => {
                tracing::error!(%error, "the driver of a connection ends");
                inner.state.ended(error.to_string());
                Turn::Over
            }
            Ok(_) if inner.hung_up || inner.state.is_over() => Turn::Over,
            Ok(true) => Turn::Again,
            Ok(false) => {
                inner.on_its_way = false;
                Turn::Wait(inner.state.deadline().into_iter().chain(hub.deadline()).min())
            }
        };
        let mut wakers = std::mem::take(inner.state.wakers());
        drop(guard);
        wakers.drain(..).for_each(Waker::wake);
        if wakers.capacity() > 0 {
            // Returns the capacity, unless another turn was quicker.
            let mut guard = self.lock();
            if guard.wakers().capacity() == 0 {
                *guard.wakers() = wakers;
            }
        }
        S::after_turn(self);
        turn
    }
}

/// Ends the state of a task that panicked, or whose runtime is gone: else callers would wait for ever.
struct Ending<S: Drive>(Arc<Shared<S>>);

impl<S: Drive> Ending<S> {
    /// Ends the state for this reason, and returns the hub to send the rest.
    fn end(&self, reason: &str) -> Option<Hub> {
        let (hub, wakers) = {
            let mut guard = self.0.lock();
            let hub = guard.0.hub.take()?;
            guard.ended(reason.to_owned());
            (hub, std::mem::take(guard.wakers()))
        };
        wakers.into_iter().for_each(Waker::wake);
        S::after_turn(&self.0);
        Some(hub)
    }
}

impl<S: Drive> Drop for Ending<S> {
    fn drop(&mut self) {
        drop(self.end("its task has ended before it was closed"));
        self.0.closed.send_replace(true);
    }
}

async fn drive<S: Drive>(ending: Ending<S>, ready: HubReady, linger: Duration) {
    let shared = Arc::clone(&ending.0);
    ready.drive(|| shared.turn(), &shared.work).await;
    if let Some(hub) = ending.end("it was closed") {
        let _ = tokio::task::spawn_blocking(move || hub.close(linger)).await;
    }
}
