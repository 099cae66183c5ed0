//! Ending cleanly on SIGINT and SIGTERM.

use crate::exit::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// Calls `end` when the first of these signals comes, on a thread of its own.
pub fn on_end(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let context = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    drop(context);
    let wait = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => end(),
                    _ = terminate.recv() => end(),
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(Failure::failed)?;
    Ok(())
}
