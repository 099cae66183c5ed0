//! Brings large bodies from the spool to the directory that all brokers of a cell share, before any record names them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_requests::body::Body;
use towpath_sockets::Waker;
use towpath_spool::{SharedDir, SpooledBody};

/// Between two looks whether the directory is there.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A disk that takes longer for anything hangs.
const HANGS: Duration = Duration::from_secs(10);

/// A body's number, and itself.
type Numbered<T> = (u64, T);

/// The thread that does it.
#[derive(Debug)]
pub(super) struct Keeper {
    jobs: Sender<Numbered<Body>>,
    kept: Receiver<Numbered<io::Result<Body>>>,
    state: Arc<State>,
}

/// State of the directory.
#[derive(Debug, Default)]
struct State {
    is_away: AtomicBool,
    /// Since when the thread has been in the file system.
    since: Mutex<Option<Instant>>,
}

impl State {
    /// Does something in the file system.
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
    pub fn start(dir: SharedDir, waker: Waker) -> io::Result<Keeper> {
        let (jobs, todo) = channel();
        let (done, kept) = channel();
        let state = Arc::new(State::default());
        let thread = Thread { dir, waker, state: state.clone(), done };
        std::thread::Builder::new().name("bodies".to_owned()).spawn(move || thread.run(&todo))?;
        Ok(Keeper { jobs, kept, state })
    }

    /// Whether the directory isn't there, can't be written, or hangs.
    pub fn is_away(&self) -> bool {
        let since = *self.state.since.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.is_away.load(Ordering::Relaxed) || since.is_some_and(|since| since.elapsed() > HANGS)
    }

    /// Has a body kept. [`Keeper::next`] gives it, or the error.
    pub fn begin(&self, number: u64, body: Body) {
        // The thread ends after this.
        let _ = self.jobs.send((number, body));
    }

    /// The next body that is in the directory, or can't be.
    pub fn next(&self) -> Option<Numbered<io::Result<Body>>> {
        self.kept.try_recv().ok()
    }
}

struct Thread {
    dir: SharedDir,
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
                        tracing::error!(directory = %self.dir.path().display(), %error, "cannot keep a large body");
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
        Ok(Body::large(self.dir.keep(name, &spooled)?))
    }

    /// Looks whether the directory is there.
    fn look(&self) {
        let found = self.state.during(|| self.dir.check());
        let was_away = self.state.is_away.swap(found.is_err(), Ordering::Relaxed);
        let directory = self.dir.path().display();
        match (found, was_away) {
            (Err(error), false) => tracing::error!(
                %directory, %error,
                "the directory of large bodies can't be used: requests over 16 MiB are refused. Is it mounted? `tow queue init --bodies` makes it, once"
            ),
            (Ok(()), true) => tracing::info!(%directory, "the directory of large bodies is there again"),
            _ => {}
        }
    }
}
