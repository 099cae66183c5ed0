//! Bodies that all brokers of a cell have: opened by whichever leads, and removed by it when no record needs them.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use towpath_journal::Content;
use towpath_requests::body::Body;
use towpath_spool::{BodyName, BodyPlace, SharedBodies};

/// Time for which an unneeded body stays: a dead letter that has it may be on its way to the log.
const STAYS: Duration = Duration::from_secs(30);
/// Between two looks for bodies that no record names, and their age.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// Their place, if there is one, and what is to be removed from it.
#[derive(Debug)]
pub(super) struct Bodies {
    place: Option<Arc<dyn SharedBodies>>,
    unneeded: Vec<(Instant, BodyName)>,
    sweep_at: Instant,
    looking: Option<JoinHandle<Vec<BodyName>>>,
    /// Old files, to be removed if no record names them once this broker has appended something more.
    leftovers: Vec<BodyName>,
    /// Blocks of this broker since they were found.
    appended: bool,
}

impl Bodies {
    pub fn new(place: Option<Arc<dyn SharedBodies>>) -> Bodies {
        let sweep_at = Instant::now();
        Bodies { place, unneeded: Vec::new(), sweep_at, looking: None, leftovers: Vec::new(), appended: false }
    }

    /// Opens a body.
    pub fn open(&self, place: &BodyPlace) -> io::Result<Body> {
        let Some(bodies) = &self.place else {
            return Err(io::Error::other("it is where all brokers have large bodies: give this one --bodies, too"));
        };
        let body =
            bodies.open(place).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", bodies.place())))?;
        Ok(Body::large(body))
    }

    /// Begins anew: leadership was won or lost.
    pub fn restart(&mut self) {
        *self = Bodies::new(self.place.take());
    }

    /// A block of this broker is in the log: until then it led, and knew all that was in the log.
    pub fn appended(&mut self) {
        self.appended = true;
    }

    /// Removes what isn't needed, off this thread. True: the leader is to append something, so that it is known whether it still leads.
    pub async fn tidy(&mut self, content: &mut Content) -> bool {
        let names = content.take_unneeded_bodies();
        let Some(place) = self.place.clone() else { return false };
        let now = Instant::now();
        self.unneeded.extend(names.into_iter().map(|name| (now + STAYS, name)));
        let mut removed: Vec<_> = self.unneeded.extract_if(.., |(at, _)| *at <= now).map(|(_, name)| name).collect();
        if std::mem::take(&mut self.appended) {
            removed.append(&mut self.leftovers);
        }
        removed.retain(|name| !content.needs_body(name));
        if !removed.is_empty() {
            let place = Arc::clone(&place);
            tokio::task::spawn_blocking(move || remove(&*place, &removed));
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
            self.looking = Some(tokio::task::spawn_blocking(move || leftovers(&*place)));
        }
        false
    }
}

fn leftovers(place: &dyn SharedBodies) -> Vec<BodyName> {
    place.older_than(LEFTOVER_AGE).unwrap_or_else(|error| {
        tracing::warn!(place = place.place(), %error, "cannot look for bodies that were left over");
        Vec::new()
    })
}

fn remove(place: &dyn SharedBodies, names: &[BodyName]) {
    for name in names {
        if let Err(error) = place.remove(name) {
            // The next look finds it.
            tracing::warn!(place = place.place(), %error, "cannot remove a body that nobody needs");
            return;
        }
    }
}
