//! What a service manager is told (sd_notify(3)). Nothing is, where there is none.

use sd_notify::NotifyState;
use std::time::Duration;

/// The server listens.
pub fn ready() {
    notify(NotifyState::Ready);
}

/// The server has been asked to end.
pub fn stopping() {
    notify(NotifyState::Stopping);
}

/// The event loop runs.
pub fn alive() {
    notify(NotifyState::Watchdog);
}

/// How often the service manager wants to hear that the event loop runs: half of its limit.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "cannot tell the service manager");
    }
}
