//! Brings large bodies from the spool to where all brokers of a cell have them, before any record names them, and checks those there that this broker
//! takes over.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_journal::Recovered;
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;
use towpath_sockets::Waker;
use towpath_spool::{SharedBodies, SpooledBody};

/// Between two looks whether the directory is there.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Something, and its number.
type Numbered<T> = (u64, T);

#[derive(Debug)]
enum Job {
    Keep(u64, Body),
    Check(u64, Recovered),
}

/// The thread that does it.
#[derive(Debug)]
pub(super) struct Keeper {
    jobs: Sender<Job>,
    kept: Receiver<Numbered<io::Result<Body>>>,
    checked: Receiver<Numbered<Recovered>>,
    /// Number of the last check, and whether its answer is still wanted.
    check: (u64, bool),
    state: Arc<Mutex<State>>,
    /// Time after which the place hangs.
    hangs: Option<Duration>,
}

/// State of the place.
#[derive(Debug, Default)]
struct State {
    /// Why it can't be used.
    failure: Option<String>,
    /// Since when the thread has been in the file system.
    since: Option<Instant>,
    /// Number of the check whose answer is wanted; 0: none.
    wanted_check: u64,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something in the file system.
fn during<T>(state: &Mutex<State>, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    locked(state).since = Some(Instant::now());
    let done = what();
    locked(state).since = None;
    done
}

impl Keeper {
    /// A thread that wakes the hub when a body is there.
    pub fn start(place: Arc<dyn SharedBodies>, waker: Waker) -> io::Result<Keeper> {
        let (jobs, todo) = channel();
        let ((done, kept), (done_checks, checked)) = (channel(), channel());
        let state = Arc::default();
        let hangs = place.may_take();
        let thread = Thread { place, waker, state: Arc::clone(&state), done, done_checks };
        std::thread::Builder::new().name("bodies".to_owned()).spawn(move || thread.run(&todo))?;
        Ok(Keeper { jobs, kept, checked, check: (0, false), state, hangs })
    }

    /// Why the directory can't be used now: it isn't there, can't be written, or hangs.
    pub fn failure(&self) -> Option<String> {
        let state = locked(&self.state);
        let hangs = || {
            let time = state.since?.elapsed();
            self.hangs
                .is_some_and(|hangs| time > hangs)
                .then(|| format!("its disk or mount hangs for {} s", time.as_secs()))
        };
        state.failure.clone().or_else(hangs)
    }

    /// Has a body kept. [`Keeper::next`] gives it, or the error.
    pub fn begin(&self, number: u64, body: Body) {
        // The thread ends after this.
        let _ = self.jobs.send(Job::Keep(number, body));
    }

    /// Has the large bodies of a log's content read, and compared with their digests. [`Keeper::next_checked`] gives the content with an outcome for
    /// each request whose body is damaged.
    pub fn check(&mut self, content: Recovered) {
        self.check = (self.check.0 + 1, true);
        locked(&self.state).wanted_check = self.check.0;
        let _ = self.jobs.send(Job::Check(self.check.0, content));
    }

    /// The answer to the last check isn't wanted any more.
    pub fn give_up_check(&mut self) {
        self.check.1 = false;
        locked(&self.state).wanted_check = 0;
    }

    /// The content that was last given to [`Keeper::check`], once that is done.
    pub fn next_checked(&mut self) -> Option<Recovered> {
        let (number, is_wanted) = self.check;
        while let Ok((of, content)) = self.checked.try_recv() {
            if is_wanted && of == number {
                self.check.1 = false;
                return Some(content);
            }
        }
        None
    }

    /// The next body that is in the directory, or can't be.
    pub fn next(&self) -> Option<Numbered<io::Result<Body>>> {
        self.kept.try_recv().ok()
    }
}

struct Thread {
    place: Arc<dyn SharedBodies>,
    waker: Waker,
    state: Arc<Mutex<State>>,
    done: Sender<Numbered<io::Result<Body>>>,
    done_checks: Sender<Numbered<Recovered>>,
}

impl Thread {
    fn run(&self, todo: &Receiver<Job>) {
        self.look();
        loop {
            match todo.recv_timeout(LOOK_EVERY) {
                Ok(Job::Check(number, mut content)) => {
                    self.check(number, &mut content);
                    let _ = self.done_checks.send((number, content));
                    self.waker.wake();
                }
                Ok(Job::Keep(number, body)) => {
                    let kept = during(&self.state, || self.keep(&body));
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

    /// The disk doesn't hang.
    fn moves(&self) {
        locked(&self.state).since = Some(Instant::now());
    }

    fn keep(&self, body: &Body) -> io::Result<Body> {
        let spooled = SpooledBody::of(body).ok_or(io::ErrorKind::InvalidInput)?;
        let mut name = [0; 16];
        rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
        Ok(Body::large(self.place.keep(name, &spooled, &mut || self.moves())?))
    }

    /// Answers requests whose bodies are damaged, and leaves out dead letters with such bodies. Ends early if the answer isn't wanted any more.
    fn check(&self, number: u64, content: &mut Recovered) {
        let (began, mut count, mut unchecked, mut bytes) = (Instant::now(), 0, 0, 0);
        content.requests.retain_mut(|request| {
            if locked(&self.state).wanted_check != number {
                return true;
            }
            let (body, whose) = match &request.outcome {
                Some((_, reply)) => (reply, "reply"),
                None => (&request.body, "body"),
            };
            let Some(spooled) = SpooledBody::of(body) else { return true };
            let why = match self.damage(&spooled) {
                Some(Some(why)) => why,
                Some(None) => {
                    (count, bytes) = (count + 1, bytes + body.length());
                    return true;
                }
                None => {
                    unchecked += 1;
                    return true;
                }
            };
            tracing::error!(place = self.place.place(), id = request.id, "the {whose} of a request {why}");
            let words = format!("the {whose} {why} in the place of large bodies that the brokers of the cell share");
            (request.body, request.outcome) = (Body::default(), Some((Status::FAILED.0, Body::from(words))));
            request.letter.is_none()
        });
        let (mib, seconds) = (bytes >> 20, began.elapsed().as_secs_f64());
        tracing::info!(count, mib, unchecked, seconds, "large bodies were checked");
    }

    /// How a body differs from what it was when it was kept. `None`: that isn't known, since it can't be read now, or is checked when it is sent.
    fn damage(&self, body: &SpooledBody) -> Option<Option<&'static str>> {
        if body.is_coming() {
            return None;
        }
        during(&self.state, || body.damage(|| self.moves()))
            .inspect_err(|error| tracing::warn!(place = self.place.place(), %error, "a large body can't be checked"))
            .ok()
    }

    /// Looks whether the directory is there.
    fn look(&self) {
        let found = during(&self.state, || self.place.check());
        let place = self.place.place();
        let failure = found.as_ref().err().map(|error| format!("{place}: {error}"));
        let was_away = std::mem::replace(&mut locked(&self.state).failure, failure).is_some();
        match (found, was_away) {
            (Err(error), false) => tracing::error!(
                place, %error,
                "the place of large bodies can't be used: requests over 16 MiB are refused. `tow queue init --bodies` makes it, once; a directory must be mounted"
            ),
            (Ok(()), true) => tracing::info!(place, "the place of large bodies is there again"),
            _ => {}
        }
    }
}
