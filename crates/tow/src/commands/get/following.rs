//! Shows the progress of a transfer while it goes on.

use crate::cli::progress::Bar;
use crate::runtime::watchdog::Heartbeat;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_files::client::{Activity, Progress};

/// How long something else than receiving must last before the bar makes way for words.
const SHOWN_AFTER: Duration = Duration::from_millis(500);

/// Follows the progress of a transfer, on its thread.
pub struct ProgressFollower {
    endpoint: String,
    bar: Bar,
    last: Arc<Mutex<Progress>>,
    heartbeat: Heartbeat,
    started: bool,
    was_connected: bool,
    /// Its activity, and since when.
    activity: (Activity, Instant),
}

impl ProgressFollower {
    /// Follows a transfer from an endpoint. `last` is set to the latest progress.
    pub fn new(endpoint: String, bar: Bar, last: Arc<Mutex<Progress>>, heartbeat: Heartbeat) -> ProgressFollower {
        let activity = (Activity::Connecting, Instant::now());
        ProgressFollower { endpoint, bar, last, heartbeat, started: false, was_connected: false, activity }
    }

    /// Takes the progress.
    pub fn progress(&mut self, progress: Progress) {
        self.heartbeat.beat();
        if !self.started && progress.bytes_total > 0 {
            // Bytes of an earlier transfer don't count for the speed. They are known before anything arrives.
            self.bar.start_at(progress.bytes_done, progress.bytes_total);
            self.started = progress.received_bytes > 0;
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        if self.activity.0 != progress.activity {
            self.activity = (progress.activity, Instant::now());
        }
        self.was_connected |= progress.activity != Activity::Connecting;
        let lasts = self.activity.1.elapsed();
        match self.words(&progress, lasts) {
            // At first there is nothing else to show.
            Some(words) if lasts >= SHOWN_AFTER || !self.started => self.bar.say(words),
            _ => self.bar.set(progress.bytes_done, progress.bytes_total, files(&progress)),
        }
    }

    /// Words for what it waits for, unless that is content.
    fn words(&self, progress: &Progress, lasts: Duration) -> Option<String> {
        let so_far = match progress.files_total {
            // A single one is done when all is.
            0 | 1 => String::new(),
            _ => format!(" ({} of {} files)", progress.files_done, progress.files_total),
        };
        Some(match progress.activity {
            Activity::Connecting if self.was_connected => {
                format!("connection lost, trying again ({} s): {}", lasts.as_secs(), self.endpoint)
            }
            Activity::Connecting => format!("connecting to {}", self.endpoint),
            Activity::Listing => "waiting for the listing".to_owned(),
            Activity::Comparing => format!("looking at what is here{so_far}"),
            Activity::ServerHashes => format!("waiting for the server, which hashes{so_far}"),
            Activity::ServerBusy => format!("waiting for the server, which is busy{so_far}"),
            Activity::Finishing => format!("finishing{so_far}"),
            Activity::Receiving if progress.received_bytes == 0 && progress.bytes_done > 0 => {
                format!("resuming{so_far}")
            }
            Activity::Receiving => return None,
        })
    }
}

/// Files done, if there are several.
fn files(progress: &Progress) -> String {
    match progress.files_total {
        0 | 1 => String::new(),
        total => format!("{} of {total}{} files", progress.files_done, if progress.listed { "" } else { "+" }),
    }
}
