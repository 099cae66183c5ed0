//! Ending cleanly on SIGINT and SIGTERM.

use crate::exit::Failure;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Signals that come within this after another one are the same wish: timeout(1) and some supervisors send one to the process and
/// one to its group, and the second must not cut short what the first has begun.
const SAME_WISH: Duration = Duration::from_millis(100);

/// Calls `end` when one of these signals comes, and again for each later wish, on a thread of its own.
pub fn on_end(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let context = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    // A file that grows beyond what the system lets this process write: with a handler, the write fails and says so.
    drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map_err(Failure::failed)?);
    drop(context);
    let wait = move || {
        runtime.block_on(async {
            let mut last: Option<Instant> = None;
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if last.is_none_or(|last| last.elapsed() >= SAME_WISH) {
                    last = Some(Instant::now());
                    end();
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(Failure::failed)?;
    Ok(())
}
