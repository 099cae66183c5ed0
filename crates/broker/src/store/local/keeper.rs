//! Brings large bodies from the spool to where all brokers of a cell have them, before any record names them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_requests::body::Body;
use towpath_sockets::Waker;
use towpath_spool::{SharedBodies, SpooledBody};

/// Between two looks whether the place is there.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A body's number, and itself.
type Numbered<T> = (u64, T);

/// The thread that does it.
#[derive(Debug)]
pub(super) struct Keeper {
    jobs: Sender<Numbered<Body>>,
    kept: Receiver<Numbered<io::Result<Body>>>,
    state: Arc<State>,
    /// Time after which the place hangs.
    hangs: Option<Duration>,
}

/// State of the place.
#[derive(Debug, Default)]
struct State {
    is_away: AtomicBool,
    /// Since when the thread has been doing something there.
    since: Mutex<Option<Instant>>,
}

impl State {
    /// Does something there.
    fn during<T>(&self, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let set = |since| *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
        set(Some(Instant::now()));
        let done = what();
        set(None);
        done
    }
}

impl Keeper {
    /// A thread that wakes the hub when a body is there.
    pub fn start(place: Arc<dyn SharedBodies>, waker: Waker) -> io::Result<Keeper> {
        let (jobs, todo) = channel();
        let (done, kept) = channel();
        let state = Arc::new(State::default());
        let hangs = place.may_take();
        let thread = Thread { place, waker, state: state.clone(), done };
        std::thread::Builder::new().name("bodies".to_owned()).spawn(move || thread.run(&todo))?;
        Ok(Keeper { jobs, kept, state, hangs })
    }

    /// Whether the place isn't there, can't be written, or hangs.
    pub fn is_away(&self) -> bool {
        let since = *self.state.since.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.is_away.load(Ordering::Relaxed)
            || since.zip(self.hangs).is_some_and(|(since, hangs)| since.elapsed() > hangs)
    }

    /// Has a body kept. [`Keeper::next`] gives it, or the error.
    pub fn begin(&self, number: u64, body: Body) {
        // The thread ends after this.
        let _ = self.jobs.send((number, body));
    }

    /// The next body that is there, or can't be.
    pub fn next(&self) -> Option<Numbered<io::Result<Body>>> {
        self.kept.try_recv().ok()
    }
}

struct Thread {
    place: Arc<dyn SharedBodies>,
    waker: Waker,
    state: Arc<State>,
    done: Sender<Numbered<io::Result<Body>>>,
}

impl Thread {
    fn run(&self, todo: &Receiver<Numbered<Body>>) {
        self.look();
        loop {
            match todo.recv_timeout(LOOK_EVERY) {
                Ok((number, body)) => {
                    let kept = self.state.during(|| self.keep(&body));
                    if let Err(error) = &kept {
                        tracing::error!(place = self.place.place(), %error, "cannot keep a large body");
                        self.look();
                    }
                    // The broker may have ended.
                    let _ = self.done.send((number, kept));
                    self.waker.wake();
                }
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn keep(&self, body: &Body) -> io::Result<Body> {
        let spooled = SpooledBody::of(body).ok_or(io::ErrorKind::InvalidInput)?;
        let mut name = [0; 16];
        rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
        Ok(Body::large(self.place.keep(name, &spooled)?))
    }

    /// Looks whether the place is there.
    fn look(&self) {
        let found = self.state.during(|| self.place.check());
        let was_away = self.state.is_away.swap(found.is_err(), Ordering::Relaxed);
        let place = self.place.place();
        match (found, was_away) {
            (Err(error), false) => tracing::error!(
                place, %error,
                "the place of large bodies can't be used: requests over 16 MiB are refused. Is it mounted, or reachable? `tow queue init --bodies` makes it, once"
            ),
            (Ok(()), true) => tracing::info!(place, "the place of large bodies is there again"),
            _ => {}
        }
    }
}
