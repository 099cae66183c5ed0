//! Ending cleanly on SIGINT and SIGTERM, and on SIGHUP: what commands of a worker do when its terminal is closed nobody sees any more.

use crate::cli::exit::Failure;
use rustix::process::Signal;
use std::io;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Signals that come within this after another one are the same wish: timeout(1) and some supervisors send one to the process and
/// one to its group, and the second must not cut short what the first has begun.
const SAME_WISH: Duration = Duration::from_millis(100);

/// Calls `end` when one of these signals comes, and again for each later wish, on a thread of its own.
pub fn on_end(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let (told, listens) = channel();
    let wait = move || {
        let signals = Signals::new();
        let (signals, outcome) = match signals {
            Ok(signals) => (Some(signals), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _ = told.send(outcome);
        if let Some(signals) = signals {
            signals.wait(&end);
        }
    };
    let started = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    started.map_err(|error| Failure::failed(format!("cannot start a thread: {error} (ulimit -u, pids.max?)")))?;
    match listens.recv() {
        Ok(outcome) => outcome.map_err(|error| Failure::failed(format!("cannot listen for signals: {error}"))),
        Err(_) => Err(Failure::failed("cannot listen for signals")),
    }
}

/// A file that grows beyond what the system lets this process write: with a handler, the write fails and says so. To be called first,
/// outside of a runtime.
pub fn let_writes_fail() {
    let heard = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        let _context = runtime.enter();
        signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
    });
    if let Err(error) = heard {
        tracing::debug!(%error, "no handler for SIGXFSZ");
    }
}

/// What is listened for, and the runtime that does.
struct Signals {
    runtime: tokio::runtime::Runtime,
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let context = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let hang_up = if is_ignored(Signal::HUP) { None } else { Some(signal(SignalKind::hangup())?) };
        drop(context);
        Ok(Signals { runtime, interrupt, terminate, hang_up })
    }

    fn wait(self, end: &impl Fn()) {
        let Signals { runtime, mut interrupt, mut terminate, mut hang_up } = self;
        runtime.block_on(async {
            let mut last: Option<Instant> = None;
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = recv(hang_up.as_mut()) => {}
                }
                if last.is_none_or(|last| last.elapsed() >= SAME_WISH) {
                    last = Some(Instant::now());
                    end();
                }
            }
        });
    }
}

async fn recv(signal: Option<&mut tokio::signal::unix::Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether whoever started this program wants it to outlive the signal, as nohup(1) does.
fn is_ignored(signal: Signal) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// Whether a process of this status (proc(5)) ignores a signal.
fn ignores(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignores(status, Signal::HUP) && ignores(status, Signal::PIPE));
        assert!(!ignores(status, Signal::INT) && !ignores("", Signal::HUP));
    }
}
