//! Watches a thread that may hang in a system call, on a FUSE or network disk or on a pipe that isn't read. No such call can be ended
//! from within the process, so the work has a thread of its own and the main thread can still end the process.

use crate::cli::escape::Printable;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::eprint_line;
use crate::runtime::signals;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a client may take to end after an interruption. It keeps what has arrived in order; what isn't written by then is fetched
/// again.
pub const END_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a last message may take: standard error may be what hangs.
const PRINT_TIMEOUT: Duration = Duration::from_millis(200);

enum WatchdogEvent {
    Progress,
    Interrupted,
    Ended,
}

/// Reports progress and interruptions to a [`Watchdog`]. Cheap, from any thread.
#[derive(Clone)]
pub struct Heartbeat(Sender<WatchdogEvent>);

impl Heartbeat {
    /// The work has made progress.
    pub fn beat(&self) {
        let _ = self.0.send(WatchdogEvent::Progress);
    }

    /// The work was asked to end.
    pub fn interrupted(&self) {
        let _ = self.0.send(WatchdogEvent::Interrupted);
    }
}

/// Reports the end of a thread, also by a panic.
struct EndGuard(Heartbeat);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let _ = self.0.0.send(WatchdogEvent::Ended);
    }
}

/// Why a thread is taken to hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// No end after an interruption.
    Interrupted,
    /// No progress for this long.
    Silent(Duration),
}

/// Runs work on a thread of its own and notices when it hangs.
pub struct Watchdog {
    heartbeat: Heartbeat,
    events: Receiver<WatchdogEvent>,
}

impl Watchdog {
    /// A watchdog for pieces of work, one after another.
    pub fn new() -> Watchdog {
        let (sender, events) = channel();
        Watchdog { heartbeat: Heartbeat(sender), events }
    }

    /// A handle for the work, and for signal handlers.
    pub fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    /// Runs `work` until it ends or hangs; a thread that hangs is left behind, and nothing more may be run then. `silence`: longest time without progress. `end_timeout`:
    /// longest time from an interruption to the end.
    pub fn run<T: Send + 'static>(
        &self,
        silence: Option<Duration>,
        end_timeout: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Result<T, Hang>, Failure> {
        let guard = EndGuard(self.heartbeat.clone());
        let thread = std::thread::Builder::new().name("work".to_owned());
        let thread = thread.spawn(move || {
            let _guard = guard;
            work()
        });
        let thread = thread.map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        if let Err(hang) = wait(&self.events, silence, end_timeout) {
            return Ok(Err(hang));
        }
        Ok(Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    }
}

/// Waits until the work ends or hangs.
fn wait(events: &Receiver<WatchdogEvent>, silence: Option<Duration>, end_timeout: Duration) -> Result<(), Hang> {
    let mut progress = Instant::now();
    let mut interrupted: Option<Instant> = None;
    loop {
        let end = interrupted.map(|at| (at + end_timeout, Hang::Interrupted));
        let silent = silence.map(|silence| (progress + silence, Hang::Silent(silence)));
        let next = end.into_iter().chain(silent).min_by_key(|(at, _)| *at);
        let event = match next {
            Some((at, _)) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => events.recv().map_err(RecvTimeoutError::from),
        };
        match (event, next) {
            (Ok(WatchdogEvent::Ended) | Err(RecvTimeoutError::Disconnected), _) => return Ok(()),
            (Ok(WatchdogEvent::Progress), _) => progress = Instant::now(),
            (Ok(WatchdogEvent::Interrupted), _) => interrupted = interrupted.or_else(|| Some(Instant::now())),
            (Err(RecvTimeoutError::Timeout), Some((_, hang))) => return Err(hang),
            (Err(RecvTimeoutError::Timeout), None) => {}
        }
    }
}

/// Ends the process whatever its threads are doing, after it has printed why and called `report`. Either is given up if it hangs.
pub fn exit_now(failure: Failure, report: impl FnOnce() + Send + 'static) -> ! {
    let why = format!("tow: {}", Printable(&failure.to_string()));
    run_within(PRINT_TIMEOUT, move || eprint_line(why));
    run_within(PRINT_TIMEOUT, report);
    if failure.status == Status::Interrupted {
        signals::end_by_signal();
    }
    std::process::exit(failure.status as i32)
}

/// Runs something on another thread and waits at most `timeout` for its end.
fn run_within(timeout: Duration, something: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::Builder::new().spawn(move || {
        something();
        let _ = done.send(());
    });
    if thread.is_ok() {
        let _ = ended.recv_timeout(timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn result_of_the_work_is_returned() {
        let watchdog = Watchdog::new();
        let heartbeat = watchdog.heartbeat();
        let result = watchdog.run(Some(LONG), LONG, move || {
            heartbeat.beat();
            7
        });
        assert_eq!(result.unwrap(), Ok(7));
    }

    #[test]
    fn interrupted_work_that_does_not_end_is_left_behind() {
        let watchdog = Watchdog::new();
        let (heartbeat, (release, blocked)) = (watchdog.heartbeat(), channel::<()>());
        heartbeat.interrupted();
        let result = watchdog.run(Some(LONG), END_TIMEOUT, move || {
            // Like a system call that doesn't return.
            let _ = blocked.recv();
        });
        assert_eq!(result.unwrap(), Err(Hang::Interrupted));
        drop(release);
    }

    #[test]
    fn work_without_progress_is_left_behind() {
        let silence = Duration::from_millis(20);
        let (heartbeat, events) = channel();
        assert_eq!(wait(&events, Some(silence), LONG), Err(Hang::Silent(silence)));
        // A heartbeat counts, and without a limit there may be none for ever.
        heartbeat.send(WatchdogEvent::Progress).unwrap();
        assert_eq!(wait(&events, Some(silence), LONG), Err(Hang::Silent(silence)));
        drop(heartbeat);
        assert_eq!(wait(&events, None, LONG), Ok(()));
    }
}
