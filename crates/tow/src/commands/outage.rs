//! A time in which a server has nothing from where its files are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use towpath_files::server::source::Outage;

/// Time between two attempts to end it.
const RETRY_TIME: Duration = Duration::from_secs(2);

/// Time after an attempt that succeeded in which no other one is made on a suspicion.
const SURE_TIME: Duration = Duration::from_secs(10);

/// Result of an attempt.
pub enum Tried {
    /// The files can be had.
    Reached,
    /// Why they can't.
    Failed(String),
    /// Nobody knows: the server ends.
    Ended,
}

/// Whether there is one. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Outages(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_trying: bool,
    since: Option<(Instant, String)>,
    reached: Option<Instant>,
}

impl Outages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present one, for an operator.
    pub fn get(&self) -> Option<Outage> {
        let state = self.state();
        state.since.as_ref().map(|(since, reason)| Outage { reason: reason.clone(), age: since.elapsed() })
    }

    /// One has begun; or if `reason` is `None`, may have: then it has if `attempt` fails. Ends when that succeeds, which a thread waits for.
    pub fn begin(&self, reason: Option<String>, attempt: impl Fn() -> Tried + Send + 'static) {
        let (mut state, is_sure) = (self.state(), reason.is_some());
        let was_reached = state.reached.is_some_and(|at| at.elapsed() < SURE_TIME);
        if !is_sure && was_reached || std::mem::replace(&mut state.is_trying, true) {
            return;
        }
        if let Some(reason) = reason {
            state.fail(reason);
        }
        let outage = self.clone();
        let attempts = move || {
            if is_sure {
                thread::sleep(RETRY_TIME);
            }
            loop {
                match attempt() {
                    Tried::Failed(reason) => outage.state().fail(reason),
                    Tried::Reached => break,
                    Tried::Ended => return,
                }
                thread::sleep(RETRY_TIME);
            }
            let reached = State { reached: Some(Instant::now()), ..State::default() };
            let former = std::mem::replace(&mut *outage.state(), reached);
            if former.since.is_some() {
                tracing::info!("the files can be fetched again");
            }
        };
        if thread::Builder::new().name("tow-outage".to_owned()).spawn(attempts).is_err() {
            *state = State::default();
        }
    }
}

impl State {
    fn fail(&mut self, reason: String) {
        match &mut self.since {
            Some((_, former)) => *former = reason,
            None => {
                tracing::warn!(reason, "no files can be fetched: nothing is served but what is known and in a cache");
                self.since = Some((Instant::now(), reason));
            }
        }
    }
}
