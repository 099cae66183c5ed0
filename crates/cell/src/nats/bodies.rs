//! Bodies in the directory that all brokers of a cell share: opened by whichever leads, and removed by it when no record needs them.

use std::io;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use towpath_journal::Content;
use towpath_requests::body::Body;
use towpath_spool::{BodyName, BodyPlace, SharedDir};

/// Time for which an unneeded body stays: a dead letter that has it may be on its way to the log.
const STAYS: Duration = Duration::from_secs(30);
/// Between two looks for bodies that no record names, and their age.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// The directory, if there is one, and what is to be removed from it.
#[derive(Debug)]
pub(super) struct Bodies {
    dir: Option<SharedDir>,
    unneeded: Vec<(Instant, BodyName)>,
    sweep_at: Instant,
    looking: Option<JoinHandle<Vec<BodyName>>>,
    /// Old files, to be removed if no record names them once this broker has appended something more.
    leftovers: Vec<BodyName>,
    /// Blocks of this broker since they were found.
    appended: bool,
}

impl Bodies {
    pub fn new(dir: Option<SharedDir>) -> Bodies {
        let sweep_at = Instant::now();
        Bodies { dir, unneeded: Vec::new(), sweep_at, looking: None, leftovers: Vec::new(), appended: false }
    }

    /// Opens a body.
    pub fn open(&self, place: &BodyPlace) -> io::Result<Body> {
        let Some(dir) = &self.dir else {
            return Err(io::Error::other("it is in a directory that all brokers share: give this one --bodies, too"));
        };
        let body = dir
            .open(place)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", dir.path().display())))?;
        Ok(Body::large(body))
    }

    /// Begins anew: leadership was won or lost.
    pub fn restart(&mut self) {
        *self = Bodies::new(self.dir.take());
    }

    /// A block of this broker is in the log: until then it led, and knew all that was in the log.
    pub fn appended(&mut self) {
        self.appended = true;
    }

    /// Removes what isn't needed, off this thread. True: the leader is to append something, so that it is known whether it still leads.
    pub async fn tidy(&mut self, content: &mut Content) -> bool {
        let names = content.take_unneeded_bodies();
        let Some(dir) = self.dir.clone() else { return false };
        let now = Instant::now();
        self.unneeded.extend(names.into_iter().map(|name| (now + STAYS, name)));
        let mut removed: Vec<_> = self.unneeded.extract_if(.., |(at, _)| *at <= now).map(|(_, name)| name).collect();
        if std::mem::take(&mut self.appended) {
            removed.append(&mut self.leftovers);
        }
        removed.retain(|name| !content.needs_body(name));
        if !removed.is_empty() {
            let dir = dir.clone();
            tokio::task::spawn_blocking(move || remove(&dir, &removed));
        }
        if self.looking.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(looking) = self.looking.take()
        {
            self.leftovers = looking.await.unwrap_or_default();
            self.leftovers.retain(|name| !content.needs_body(name));
            self.appended = false;
            return !self.leftovers.is_empty();
        }
        if now >= self.sweep_at && self.looking.is_none() {
            self.sweep_at = now + SWEEP_EVERY;
            self.looking = Some(tokio::task::spawn_blocking(move || leftovers(&dir)));
        }
        false
    }
}

fn leftovers(dir: &SharedDir) -> Vec<BodyName> {
    dir.older_than(LEFTOVER_AGE).unwrap_or_else(|error| {
        tracing::warn!(directory = %dir.path().display(), %error, "cannot look for bodies that were left over");
        Vec::new()
    })
}

fn remove(dir: &SharedDir, names: &[BodyName]) {
    for name in names {
        if let Err(error) = dir.remove(name) {
            // The next look finds it.
            tracing::warn!(directory = %dir.path().display(), %error, "cannot remove a body that nobody needs");
            return;
        }
    }
}
