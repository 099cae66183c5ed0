//! Notifications to the service manager (sd_notify(3)), if there is one.

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

/// Interval of watchdog pings: half of the service manager's limit.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
