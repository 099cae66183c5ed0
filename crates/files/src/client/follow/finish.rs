//! What a follower does when a page is in place: stores how far it is, deletes what is gone, and tries again what failed.

use super::super::get::GetError;
use super::super::names::glob_base;
use super::super::sweep::is_too_much;
use super::super::transfer::Source;
use super::feed::Failed;
use super::follower::Follower;
use super::place::Removal;
use super::{FollowEnd, FollowEvent};
use crate::path::RelPath;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Time before what failed is tried again, at first and at most.
pub(super) const RETRY_MIN: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// With [`FollowOptions::once`](super::FollowOptions::once), time in which the server may notice that something isn't there any more, or is
/// another version by now: longer than its settle time by default.
const PATIENCE: Duration = Duration::from_secs(5);

impl Follower<'_> {
    /// Stores the cursor, if everything up to it is in place.
    pub(super) fn store(&mut self) -> Result<(), GetError> {
        let is_all = self.failed.is_empty() && self.gone.is_empty() && self.pages.seen.is_none();
        let cursor = if is_all { self.cursor } else { self.record.cursor() };
        self.record.store(cursor, self.options.durable).map_err(|error| self.record_failed(&error))?;
        match cursor.filter(|_| is_all) {
            Some(cursor) => self.report.in_place(cursor, &self.place),
            None => Ok(()),
        }
    }

    pub(super) fn record_failed(&self, error: &std::io::Error) -> GetError {
        let reason = format!("cannot write the record of what was followed: {error}");
        GetError::Destination { path: self.options.destination.clone(), reason }
    }

    /// The server knows nothing more: deletes what is gone, and says that it is all there.
    pub(super) fn up_to_date(&mut self, is_retry: bool) -> Result<(), GetError> {
        let seq = self.cursor.map_or(0, |cursor| cursor.seq);
        if let Some(seen) = self.pages.seen.take() {
            // A full state without it. What matches a glob comes without the directories above it.
            let parents = |path: &RelPath| std::iter::successors(path.parent(), RelPath::parent);
            let above: HashSet<RelPath> = seen.iter().flat_map(parents).collect();
            let is_seen = |path: &RelPath| seen.contains(path) || above.contains(path);
            let unseen = self.record.iter().map(|(path, _)| path).filter(|path| !is_seen(path));
            let base = self.base();
            let gone: Vec<_> = unseen.map(|path| (path.clone(), (join(&base, path), seq))).collect();
            if self.options.mirror {
                self.gone.extend(gone);
            }
        }
        self.delete()?;
        if !self.failed.is_empty() && !is_retry {
            // What was deleted may have been in the way.
            return self.retry();
        }
        self.store()?;
        if self.options.once && !self.is_holding && self.failed.values().any(|failed| failed.is_out_of_date) {
            let now = self.now;
            let until = *self.patience_until.get_or_insert(now + PATIENCE);
            if now < until {
                // The server's next page says what became of it.
                self.retry_at = Some(until);
                return Ok(());
            }
        }
        // With `once` nobody waits for what isn't there any more: the next run is told what became of it.
        let is_out_of_date = self.failed.values().all(|failed| failed.is_out_of_date);
        let is_complete = self.failed.is_empty() || (self.options.once && is_out_of_date);
        if self.options.once && is_complete {
            for Failed { placed, reason, .. } in self.failed.values() {
                let text = format!("{}: {reason}; the server has not published what it is now", placed.remote);
                (self.tell)(FollowEvent::Warning(text))?;
            }
        }
        if is_complete && !self.is_holding {
            (self.retry_at, self.retry_after) = (None, RETRY_MIN);
            self.said.clear();
            (self.tell)(FollowEvent::UpToDate { seq })?;
        } else if !is_complete {
            let mut said = HashMap::with_capacity(self.failed.len());
            for Failed { placed, reason, .. } in self.failed.values() {
                // Once, however often it is tried.
                if self.said.get(&placed.remote) != Some(reason) {
                    (self.tell)(FollowEvent::Failed { path: placed.remote.clone(), reason: reason.clone() })?;
                }
                said.insert(placed.remote.clone(), reason.clone());
            }
            self.said = said;
            self.retry_at = Some(self.now + self.retry_after);
            self.retry_after = (self.retry_after * 2).min(RETRY_MAX);
        }
        if self.options.once {
            self.end = Some(match (self.is_holding, is_complete) {
                (true, _) => FollowEnd::Held,
                (false, true) => FollowEnd::UpToDate,
                (false, false) => FollowEnd::Incomplete,
            });
        }
        Ok(())
    }

    /// Tries again what failed.
    pub(super) fn retry(&mut self) -> Result<(), GetError> {
        let failed = std::mem::take(&mut self.failed);
        let placed = failed.into_values().map(|failed| failed.placed).collect();
        self.start(placed, None, true, true)
    }

    /// Deletes what is gone, unless that isn't wanted or too much.
    fn delete(&mut self) -> Result<(), GetError> {
        if self.gone.is_empty() {
            self.is_holding = false;
            return Ok(());
        }
        if !self.options.mirror {
            for (_, (path, seq)) in std::mem::take(&mut self.gone) {
                (self.tell)(FollowEvent::Gone { path, seq, kept: true })?;
            }
            return Ok(());
        }
        let (count, known) = (self.gone.len(), self.record.len());
        if is_too_much(count as u64, known as u64, self.options.max_delete) {
            if !std::mem::replace(&mut self.is_holding, true) {
                let paths = self.gone.values().map(|(path, _)| path.clone()).collect();
                (self.tell)(FollowEvent::Held { paths })?;
            }
            return Ok(());
        }
        self.is_holding = false;
        // What is in a directory before the directory.
        for (local, (path, seq)) in std::mem::take(&mut self.gone).into_iter().rev() {
            let Some(known) = self.record.get(&local).copied() else { continue };
            let removal = match self.place.remove(&local, &known, seq) {
                Ok(removal) => removal,
                Err(error) => {
                    (self.tell)(FollowEvent::Failed { path: path.clone(), reason: error.to_string() })?;
                    Removal::Kept
                }
            };
            // Told twice rather than never, should this be killed here.
            (self.tell)(FollowEvent::Gone { path, seq, kept: removal == Removal::Kept })?;
            self.record.forget(&local).map_err(|error| self.record_failed(&error))?;
            self.dirs.remove(&local);
            if let Some(Some(path)) = self.untold.remove(&local) {
                // It was renamed, and nobody was told of that.
                (self.tell)(FollowEvent::Gone { path, seq, kept: false })?;
            }
        }
        Ok(())
    }

    fn base(&self) -> RelPath {
        match &self.options.source {
            Source::Path(path) => path.clone(),
            Source::Glob(glob) => glob_base(glob),
        }
    }
}

fn join(base: &RelPath, path: &RelPath) -> RelPath {
    path.names().try_fold(base.clone(), |at, name| at.join(name)).unwrap_or_else(|_| path.clone())
}
