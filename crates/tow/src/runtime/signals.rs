//! Clean shutdown on SIGINT, SIGTERM and SIGHUP.

use crate::cli::exit::Failure;
use rustix::process::Signal;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Signals within this time count as one. timeout(1) and some supervisors signal the process and its group, and the second signal must
/// not cut short the shutdown that the first one began.
const SAME_SIGNAL: Duration = Duration::from_millis(100);

/// The last signal that asked for the end.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Ends the process by the signal that asked for it, as if it weren't handled: a shell's loop ends too.
pub fn end_by_signal() -> ExitCode {
    let signal = LAST.load(Ordering::Relaxed);
    let signal = if signal == 0 { Signal::INT.as_raw() } else { signal };
    if let Err(error) = signal_hook::low_level::emulate_default_handler(signal) {
        tracing::debug!(%error, "cannot end by the signal");
    }
    ExitCode::from(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
}

/// Calls `stop` on a thread of its own for each of these signals, after it has begun to listen for them.
pub fn on_stop_signal(stop: impl Fn() + Send + 'static) -> Result<(), Failure> {
    on_signals(stop, None::<fn()>)
}

/// The same, but SIGHUP calls `reload` if there is one, unless it came because the terminal is gone.
pub fn on_signals(stop: impl Fn() + Send + 'static, reload: Option<impl Fn() + Send + 'static>) -> Result<(), Failure> {
    let had_terminal = std::io::stderr().is_terminal();
    let reload = reload.map(|reload| {
        move || {
            let is_hung_up = had_terminal && !std::io::stderr().is_terminal();
            if !is_hung_up {
                reload();
            }
            !is_hung_up
        }
    });
    let (started, has_started) = channel();
    let wait = move || {
        let signals = Signals::new();
        let (signals, outcome) = match signals {
            Ok(signals) => (Some(signals), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _ = started.send(outcome);
        if let Some(signals) = signals {
            signals.wait(&stop, reload.as_ref());
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error} (check ulimit -u and pids.max)")))?;
    match has_started.recv() {
        Ok(outcome) => outcome.map_err(|error| Failure::failed(format!("cannot listen for signals: {error}"))),
        Err(_) => Err(Failure::failed("cannot listen for signals")),
    }
}

/// Signals that end a process by default, and have no meaning here.
const HARMLESS: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Handles SIGXFSZ, so that a write beyond the file size limit fails instead of ending the process, and signals without a meaning. Call it
/// outside of a runtime.
pub fn handle_harmless() {
    let handlers = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        let _context = runtime.enter();
        HARMLESS.iter().chain([&Signal::XFSZ]).try_for_each(|one| signal(SignalKind::from_raw(one.as_raw())).map(drop))
    });
    if let Err(error) = handlers {
        tracing::debug!(%error, "cannot handle SIGXFSZ, SIGUSR1 and SIGUSR2");
    }
}

/// Signal streams and the runtime that polls them.
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

    fn wait(self, stop: &impl Fn(), reload: Option<&impl Fn() -> bool>) {
        let Signals { runtime, mut interrupt, mut terminate, mut hang_up } = self;
        runtime.block_on(async {
            let mut last: Option<Instant> = None;
            loop {
                let signal = tokio::select! {
                    _ = interrupt.recv() => Signal::INT,
                    _ = terminate.recv() => Signal::TERM,
                    _ = recv(hang_up.as_mut()) => Signal::HUP,
                };
                if signal == Signal::HUP && reload.is_some_and(|reload| reload()) {
                    continue;
                }
                LAST.store(signal.as_raw(), Ordering::Relaxed);
                if last.is_none_or(|last| last.elapsed() >= SAME_SIGNAL) {
                    last = Some(Instant::now());
                    stop();
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

/// True if the parent process ignores the signal, as nohup(1) does for SIGHUP.
fn is_ignored(signal: Signal) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// True if a process with this /proc/PID/status ignores a signal.
fn ignores(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_proc_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignores(status, Signal::HUP) && ignores(status, Signal::PIPE));
        assert!(!ignores(status, Signal::INT) && !ignores("", Signal::HUP));
    }
}
