//! Work that may come to hang in a system call: on a disk of somebody else's (FUSE, the network), or on a pipe that nobody reads.
//! Nothing in this process can end such a call, so the work has a thread of its own, and this one can still end the process.

use crate::cli::escape::Shown;
use crate::cli::exit::Failure;
use crate::cli::output::say;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What getting files may take to end after it was told to. It keeps in order what is there already; what it hasn't written by then
/// comes again.
pub const ENDING: Duration = Duration::from_secs(1);

/// What saying something may take. Standard error may be what hangs.
const SAYING: Duration = Duration::from_millis(200);

enum News {
    /// The work gets on.
    Pulse,
    /// It was told to end.
    Interrupted,
    /// Its thread ends.
    Ended,
}

/// Tells how the work is. Cheap, and it may be called from any thread.
#[derive(Clone)]
pub struct Pulse(Sender<News>);

impl Pulse {
    /// The work gets on.
    pub fn beat(&self) {
        let _ = self.0.send(News::Pulse);
    }

    /// The work was told to end.
    pub fn interrupted(&self) {
        let _ = self.0.send(News::Interrupted);
    }
}

/// However the thread ends, that is told.
struct TellsEnd(Pulse);

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let _ = self.0.0.send(News::Ended);
    }
}

/// Why work is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangs {
    /// It was told to end, and doesn't.
    Interrupted,
    /// Nothing was heard of it for so long.
    Silent(Duration),
}

/// Where the work is heard of.
pub struct Attended {
    pulse: Pulse,
    news: Receiver<News>,
}

impl Attended {
    /// Nothing yet.
    pub fn new() -> Attended {
        let (sender, news) = channel();
        Attended { pulse: Pulse(sender), news }
    }

    /// What the work and whoever interrupts it tell by.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Does it on a thread of its own, and waits until it is done, or hangs: then the thread is left alone. `silence`: how long it may
    /// go on without a pulse. `ending`: what it may take to end after it was told to.
    pub fn run<T: Send + 'static>(
        self,
        silence: Option<Duration>,
        ending: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Result<T, Hangs>, Failure> {
        let tells = TellsEnd(self.pulse.clone());
        let thread = std::thread::Builder::new().name("work".to_owned());
        let thread = thread.spawn(move || {
            let _tells = tells;
            work()
        });
        let thread = thread.map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        if let Err(hangs) = wait(&self.news, silence, ending) {
            return Ok(Err(hangs));
        }
        // It has ended, but for giving what it came to.
        Ok(Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    }
}

/// Until the work has ended.
fn wait(news: &Receiver<News>, silence: Option<Duration>, ending: Duration) -> Result<(), Hangs> {
    let mut heard = Instant::now();
    let mut interrupted: Option<Instant> = None;
    loop {
        let end = interrupted.map(|at| (at + ending, Hangs::Interrupted));
        let silent = silence.map(|silence| (heard + silence, Hangs::Silent(silence)));
        let next = end.into_iter().chain(silent).min_by_key(|(at, _)| *at);
        let told = match next {
            Some((at, _)) => news.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => news.recv().map_err(RecvTimeoutError::from),
        };
        match (told, next) {
            (Ok(News::Ended) | Err(RecvTimeoutError::Disconnected), _) => return Ok(()),
            (Ok(News::Pulse), _) => heard = Instant::now(),
            (Ok(News::Interrupted), _) => interrupted = interrupted.or_else(|| Some(Instant::now())),
            (Err(RecvTimeoutError::Timeout), Some((_, hangs))) => return Err(hangs),
            (Err(RecvTimeoutError::Timeout), None) => {}
        }
    }
}

/// Ends the process, whatever its threads are doing, after saying why. What else there is to be said may hang too, and is given up
/// then.
pub fn end_anyway(failure: &Failure, also: impl FnOnce() + Send + 'static) -> ! {
    let why = format!("tow: {}", Shown(&failure.to_string()));
    within(SAYING, move || say(why));
    within(SAYING, also);
    std::process::exit(1)
}

/// Does something, and waits so long for its end.
fn within(most: Duration, something: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::Builder::new().spawn(move || {
        something();
        let _ = done.send(());
    });
    if thread.is_ok() {
        let _ = ended.recv_timeout(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn what_the_work_comes_to_is_given() {
        let attended = Attended::new();
        let pulse = attended.pulse();
        let came_to = attended.run(Some(LONG), LONG, move || {
            pulse.beat();
            7
        });
        assert_eq!(came_to.unwrap(), Ok(7));
    }

    #[test]
    fn work_that_is_told_to_end_and_does_not_is_left_alone() {
        let attended = Attended::new();
        let (pulse, (go_on, waits)) = (attended.pulse(), channel::<()>());
        pulse.interrupted();
        let hangs = attended.run(Some(LONG), ENDING, move || {
            // As a system call: it doesn't end before we let it.
            let _ = waits.recv();
        });
        assert_eq!(hangs.unwrap(), Err(Hangs::Interrupted));
        drop(go_on);
    }

    #[test]
    fn work_of_which_nothing_is_heard_is_left_alone() {
        let silence = Duration::from_millis(20);
        let (pulse, news) = channel();
        assert_eq!(wait(&news, Some(silence), LONG), Err(Hangs::Silent(silence)));
        // A pulse that came counts, and without a limit it may be silent for as long as it likes.
        pulse.send(News::Pulse).unwrap();
        assert_eq!(wait(&news, Some(silence), LONG), Err(Hangs::Silent(silence)));
        drop(pulse);
        assert_eq!(wait(&news, None, LONG), Ok(()));
    }
}
